"""From rays to gains: time and frequency separate (TR 38.901 clause 7.5, step 11).

All rays of a sub-cluster share one delay, so

    H(t, f) = sum over sub-clusters k of  x_k(t) exp(-2 pi i f tau_k),
    x_k(t)  = sum over its rays m of      exp(2 pi i (phase_m + nu_m t)),

two products of small matrices of phasors. Time is split once more, t = coarse + fine, so that a
ray needs a sine for 16 + 16 instants instead of 256. Complex numbers are pairs of real rows, so
that both products are plain real matrix multiplications on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedfade.radio.clusters import Rays, subcluster_sizes


def _turns(phase: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a phase in turns; whole turns go first, for float32's sake."""
    angle = (phase - torch.round(phase)) * (2.0 * math.pi)
    return torch.cos(angle), torch.sin(angle)


def time_series(doppler_hz: Tensor, phase: Tensor, slot_s: float, slots: int) -> Tensor:
    """Sums of rotating rays: rays [..., ray] -> real and imaginary part [..., 2, slot]."""
    fine = math.ceil(math.sqrt(slots))
    coarse = math.ceil(slots / fine)
    per_slot = (doppler_hz * slot_s).unsqueeze(-2)  # [..., 1, ray]
    step = torch.arange(max(fine, coarse), device=phase.device, dtype=torch.float32)[:, None]
    cos_a, sin_a = _turns(phase.unsqueeze(-2) + per_slot * (step[:coarse] * fine))
    cos_b, sin_b = _turns(per_slot * step[:fine])
    real = torch.cat([cos_a, -sin_a], dim=-1)
    imaginary = torch.cat([sin_a, cos_a], dim=-1)
    left = torch.cat([real, imaginary], dim=-2)  # [..., (part, coarse), (part, ray)]
    right = torch.cat([cos_b, sin_b], dim=-1)  # [..., fine, (part, ray)]
    product = left @ right.transpose(-1, -2)  # [..., (part, coarse), fine]
    return product.reshape(*product.shape[:-2], 2, coarse * fine)[..., :slots]


def frequency_offsets(subbands: int, bandwidth_hz: float, subcarriers: int) -> Tensor:
    """Frequencies about the carrier a sub-band's gain is the mean over: [band, subcarrier].

    >>> frequency_offsets(4, 5e6, 1).flatten().tolist()
    [-7500000.0, -2500000.0, 2500000.0, 7500000.0]
    """
    centre = (torch.arange(subbands) - (subbands - 1) / 2) * bandwidth_hz
    inside = (torch.arange(subcarriers) - (subcarriers - 1) / 2) * (bandwidth_hz / subcarriers)
    return centre[:, None] + inside


def gains(rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int) -> Tensor:
    """Power gain of each sub-band: rays of a batch [...] -> [..., band, slot]."""
    batch = rays.power.shape[:-1]
    series = torch.cat(
        [
            time_series(doppler, phase, slot_s, slots)
            for doppler, phase in zip(
                torch.split(rays.doppler_hz, subcluster_sizes(), dim=-1),
                torch.split(rays.phase, subcluster_sizes(), dim=-1),
                strict=True,
            )
        ],
        dim=-3,
    )  # [..., (subcluster, cluster), part, slot]
    series = series.reshape(*batch, -1, slots)
    amplitude = torch.sqrt(rays.power / sum(subcluster_sizes()))
    turn = _frequency_phasors(rays.delay_s.transpose(-1, -2), amplitude, offsets_hz)
    field = turn @ series  # [..., (band, subcarrier, part), slot]
    bands, subcarriers = offsets_hz.shape
    energy = field.square().reshape(*batch, bands, subcarriers * 2, slots)
    return energy.sum(-2) / subcarriers


def _frequency_phasors(delay_s: Tensor, amplitude: Tensor, offsets_hz: Tensor) -> Tensor:
    """exp(-2 pi i f tau) as real pairs: [..., (frequency, part), (subcluster, cluster, part)]."""
    cos, sin = _turns(offsets_hz.reshape(-1, 1) * delay_s.flatten(-2).unsqueeze(-2))
    weight = amplitude.unsqueeze(-2).expand_as(delay_s).flatten(-2).unsqueeze(-2)
    cos, sin = cos * weight, sin * weight
    rows = torch.stack(
        [torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=-3
    )  # [..., frequency, part out, path, part in]
    return rows.flatten(-2).flatten(-3, -2)
