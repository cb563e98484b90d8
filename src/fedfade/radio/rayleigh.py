"""Correlated Rayleigh fading after Clarke: the simple alternative to clusters.

Rays come from everywhere in the plane with equal power, so the autocorrelation of the field is
J0(2 pi f_D t); sub-bands fade independently of each other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedfade.radio.response import time_series
from fedfade.radio.scenario import LIGHT_MPS
from fedfade.randomness import fold, uniform

RAYS = 64


def rayleigh_gains(
    keys: Tensor, bands: int, *, carrier_hz: float, speed_mps: float, slot_s: float, slots: int
) -> Tensor:
    """Power gains for keys [...]: [..., band, slot], unit mean.

    >>> from fedfade.randomness import fold, stream
    >>> keys = fold(stream(0, "doctest"), torch.arange(3))
    >>> rayleigh_gains(keys, 4, carrier_hz=3.5e9, speed_mps=18.0, slot_s=2e-3, slots=250).shape
    torch.Size([3, 4, 250])
    """
    # One ray per sector, anywhere in it: the mean correlation is exactly J0, and the draws
    # differ less from it than rays thrown independently would.
    sector = torch.arange(RAYS, device=keys.device)
    angle = (sector + uniform(fold(keys, 1), (bands, RAYS))) * (2.0 * math.pi / RAYS)
    doppler = torch.cos(angle) * (speed_mps * carrier_hz / LIGHT_MPS)
    phase = uniform(fold(keys, 2), (bands, RAYS))
    series = time_series(doppler, phase, slot_s, slots, groups=[RAYS]).squeeze(-2)
    return torch.view_as_real(series[..., :slots]).square().sum(-1) / RAYS
