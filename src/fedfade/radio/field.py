"""Gaussian random fields over the plane: shadowing that two clients at one place share.

A stationary field with exponential autocorrelation exp(-d / d0) is a sum of plane waves whose
wave vectors follow the field's spectrum. In two dimensions the spectrum of the exponential is
(1 + (k d0)^2)^(-3/2), whose radial distribution function 1 - (1 + (k d0)^2)^(-1/2) inverts in
closed form. So the field is a pure function of (key, position): no grid, no history.
"""

import math

import torch
from torch import Tensor

from fedfade.randomness import uniform

WAVES = 256
"""Plane waves in a field: its values are normal up to a kurtosis of -1.5 / WAVES."""
_ELEMENTS = 1 << 22  # values worked on at a time, to bound memory


def gaussian_field(keys: Tensor, position: Tensor, decorrelation_m: float) -> Tensor:
    """Standard normal values [run, ...] of the fields `keys` [run] at `position` [run, ..., 2]."""
    # float64 for the phases: short waves turn many times across a cell, and CPU and CUDA round
    # float32 differently.
    draws = uniform(keys, (3, WAVES)).to(torch.float64)  # [run, 3, wave]
    # Strata instead of plain draws for the radius: less error in the correlation of one field.
    strata = (torch.arange(WAVES, device=keys.device) + draws[:, 0]) / WAVES
    radius = torch.sqrt(1.0 / (1.0 - strata).clamp_min(1e-3) ** 2 - 1.0) / decorrelation_m
    direction, shift = 2.0 * math.pi * draws[:, 1], 2.0 * math.pi * draws[:, 2]
    wave = torch.stack([radius * torch.cos(direction), radius * torch.sin(direction)], dim=1)
    flat = position.reshape(position.shape[0], -1, 2)  # [run, place, 2]
    step = max(1, _ELEMENTS // (WAVES * flat.shape[0]))
    parts = []
    for place in torch.split(flat, step, dim=1):
        # Element by element, so that batches agree: [run, place, wave].
        x, y = torch.split(place.to(torch.float64), 1, dim=-1)
        phase = x * wave[:, None, 0] + y * wave[:, None, 1] + shift.unsqueeze(1)
        phase = torch.remainder(phase, 2.0 * math.pi).to(torch.float32)
        parts.append(torch.cos(phase).sum(-1) * math.sqrt(2.0 / WAVES))
    return torch.cat(parts, dim=1).reshape(position.shape[:-1])
