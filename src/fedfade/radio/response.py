"""From rays to gains: time and frequency separate (TR 38.901 clause 7.5, step 11).

All rays of a sub-cluster share one delay, so

    H(t, f) = sum over sub-clusters k of  x_k(t) exp(-2 pi i f tau_k),
    x_k(t)  = sum over its rays m of      exp(2 pi i (phase_m + nu_m t)),

two products of small matrices of phasors. On the CPU time is split once more, t = coarse + fine:
the phasors of 16 + 16 instants, themselves powers of one number, make those of 256. On a GPU it
is the other way round: a sine costs nothing beside the memory it would be fetched from, so every
phasor is computed where it is summed.
"""

import math
from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from fedfade.config import RadioConfig
from fedfade.device import matrix_products
from fedfade.graphs import fused
from fedfade.radio.rays import Rays, subcluster_sizes

SMALL_BLOCK, LARGE_BLOCK = 64, 1024
"""Drops worked on at a time on a GPU; the large one takes a gigabyte."""


def _circle(turns: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi x; whole turns are taken off first, for float32's sake."""
    angle = (turns - torch.round(turns)) * (2.0 * math.pi)
    return torch.cos(angle), torch.sin(angle)


def _phasor(turns: Tensor) -> Tensor:
    return torch.complex(*_circle(turns))


def _powers(first: Tensor, ratio: Tensor, count: int) -> Tensor:
    """first * ratio^n for n = 0 ... count-1, by doubling: [...] -> [..., count]."""
    powers = first.unsqueeze(-1)
    while powers.shape[-1] < count:
        powers = torch.cat([powers, powers * ratio.unsqueeze(-1)], dim=-1)
        ratio = ratio * ratio
    return powers[..., :count]


def time_series(
    doppler_hz: Tensor, phase: Tensor, slot_s: float, slots: int, groups: list[int]
) -> Tensor:
    """Sums of rotating rays, one for each group of rays: [..., ray] -> complex [..., group, slot].

    At least `slots` instants come back, a few more where that makes whole rows of coarse steps.
    """
    fine = 2 ** math.ceil(math.log2(math.sqrt(slots)))
    coarse = math.ceil(slots / fine)
    per_slot = doppler_hz * slot_s
    unit = torch.ones_like(per_slot, dtype=torch.complex64)
    near = _powers(unit, _phasor(per_slot), fine)  # [..., ray, fine]
    far = _powers(_phasor(phase), _phasor(per_slot * fine), coarse)  # [..., ray, coarse]
    pairs = zip(*(torch.split(part, groups, dim=-2) for part in (far, near)), strict=True)
    sums = [(a.transpose(-1, -2) @ b).flatten(-2) for a, b in pairs]  # [..., (coarse, fine)]
    return torch.stack(sums, dim=-2)


def frequency_offsets(radio: RadioConfig) -> Tensor:
    """Frequencies about the carrier a sub-band's gain is the mean over: [band, subcarrier].

    >>> frequency_offsets(RadioConfig(subband_gain="centre")).flatten().tolist()
    [-7500000.0, -2500000.0, 2500000.0, 7500000.0]
    """
    bands, width_hz = radio.subbands, radio.bandwidth_hz
    subcarriers = radio.subcarriers if radio.subband_gain == "average" else 1
    centre = (torch.arange(bands) - (bands - 1) / 2) * width_hz
    inside = (torch.arange(subcarriers) - (subcarriers - 1) / 2) * (width_hz / subcarriers)
    return centre[:, None] + inside


def gains(rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int) -> Tensor:
    """Power gain of each sub-band: rays of drops -> [drop, band, slot]."""
    way = gains_by_powers if offsets_hz.device.type == "cpu" else gains_by_blocks
    return way(rays, offsets_hz, slot_s, slots)


def array_gains(
    rays: Rays, turns: Tensor, antennas: int, offsets_hz: Tensor, slot_s: float, slots: int
) -> tuple[Tensor, Tensor]:
    """Power of each sub-band summed over antennas [drop, band, slot], and the field of every
    antenna at the sub-band's centre, complex [drop, antenna, band, slot].

    `turns` [drop, cluster, ray] is what a ray's phase grows by from antenna to antenna.
    """
    subcarriers = offsets_hz.shape[1]
    with_centre = torch.cat([offsets_hz, offsets_hz.mean(-1, keepdim=True)], dim=-1)
    power, centres = torch.zeros((), device=turns.device), []
    for antenna in range(antennas):
        heard = replace(rays, phase=rays.phase + antenna * turns)
        field = _fields(heard, with_centre, slot_s, slots)
        power = power + torch.view_as_real(field[:, :, :-1]).square().sum((2, -1)) / subcarriers
        centres.append(field[:, :, -1])
    return power, torch.stack(centres, dim=1)


def _fields(rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int) -> Tensor:
    """Complex amplitude at every frequency: rays of drops -> [drop, band, subcarrier, slot]."""
    if offsets_hz.device.type == "cpu":
        field = field_by_powers(rays, offsets_hz, slot_s, slots)
        return field.view(len(field), *offsets_hz.shape, -1)[..., :slots]
    real, imaginary = _by_blocks(field_by_sines, rays, offsets_hz, slot_s, slots).unbind(1)
    return torch.complex(real, imaginary)[..., :slots]


def gains_by_powers(rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int) -> Tensor:
    """The way of the CPU: few phasors, matrix products; any batch [...] -> [..., band, slot]."""
    batch, (bands, subcarriers) = rays.power.shape[:-1], offsets_hz.shape
    field = field_by_powers(rays, offsets_hz, slot_s, slots)
    # Real and imaginary parts lie side by side: square, sum over subcarriers, then over the pair.
    energy = torch.view_as_real(field).flatten(-2).square_()
    energy = energy.reshape(*batch, bands, subcarriers, -1).sum(-2)
    return energy.reshape(*batch, bands, -1, 2)[..., :slots, :].sum(-1) / subcarriers


def field_by_powers(rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int) -> Tensor:
    """Complex [..., (band, subcarrier), slot], at least as many slots as asked for."""
    series = time_series(rays.doppler_hz, rays.phase, slot_s, slots, subcluster_sizes())
    weight, delay = _paths(rays)
    centre = offsets_hz.mean(-1)
    inside = offsets_hz[0] - centre[0]
    at_centre = weight * _phasor(-centre[:, None] * delay)  # [..., band, path]
    from_centre = _phasor(-inside[:, None] * delay)  # [..., subcarrier, path]
    turn = (at_centre.unsqueeze(-2) * from_centre.unsqueeze(-3)).flatten(-3, -2)
    return turn @ series.flatten(-3, -2)


def _paths(rays: Rays) -> tuple[Tensor, Tensor]:
    """Amplitude and delay of every path, a sub-cluster: [..., 1, (cluster, subcluster)]."""
    amplitude = torch.sqrt(rays.power / rays.phase.shape[-1]).unsqueeze(-1)
    weight = amplitude.expand_as(rays.delay_s).flatten(-2).unsqueeze(-2)
    return weight, rays.delay_s.flatten(-2).unsqueeze(-2)


# --- on a GPU ----------------------------------------------------------------------------------


def gains_by_blocks(rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int) -> Tensor:
    """As `gains_by_powers`."""
    return _by_blocks(gains_by_sines, rays, offsets_hz, slot_s, slots)


def _by_blocks(
    way: Callable[..., Tensor], rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int
) -> Tensor:
    """In blocks of two sizes, because a function is compiled for each size anew."""
    drops, first, groups = len(rays.power), 0, tuple(subcluster_sizes())
    parts = []
    with matrix_products("fp32"):  # whatever learning asks for, the channel is one
        while first < drops:
            size = LARGE_BLOCK if drops - first >= LARGE_BLOCK // 2 else SMALL_BLOCK
            # The last drop again where there are too few.
            which = torch.arange(first, first + size, device=rays.power.device).clamp(max=drops - 1)
            block = Rays(**{f.name: getattr(rays, f.name)[which] for f in fields(Rays)})
            parts.append(way(block, offsets_hz, slot_s, slots, groups)[: drops - first])
            first += size
    return torch.cat(parts)


@fused
def gains_by_sines(
    rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int, groups: tuple[int, ...]
) -> Tensor:
    """The way of a GPU: real numbers only, which compilers can merge, and one matrix product."""
    energy = _field(rays, offsets_hz, slot_s, slots, groups).square().sum((-4, -2))
    return energy[..., :slots] / offsets_hz.shape[1]


@fused
def field_by_sines(
    rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int, groups: tuple[int, ...]
) -> Tensor:
    """The amplitudes behind it: [..., part, band, subcarrier, slot]."""
    return _field(rays, offsets_hz, slot_s, slots, groups)


def _field(
    rays: Rays, offsets_hz: Tensor, slot_s: float, slots: int, groups: tuple[int, ...]
) -> Tensor:
    batch = rays.power.shape[:-1]
    series = _rotating_sums(rays, slot_s, -(-slots // 8) * 8, groups)  # whole rows
    weight, delay = _paths(rays)
    cos, sin = (weight * part for part in _circle(-offsets_hz.flatten()[:, None] * delay))
    # Complex weights as a real matrix: [..., (part, frequency), (part, path)].
    turn = torch.cat([torch.cat([cos, -sin], dim=-1), torch.cat([sin, cos], dim=-1)], dim=-2)
    field = torch.matmul(turn, series)  # [..., (part, band, subcarrier), slot]
    return field.view(*batch, 2, *offsets_hz.shape, -1)


def _rotating_sums(rays: Rays, slot_s: float, slots: int, groups: tuple[int, ...]) -> Tensor:
    """Real, then imaginary parts of every sub-cluster's rays: [..., (part, path), slot]."""
    slot = torch.arange(slots, device=rays.phase.device)
    per_slot = rays.doppler_hz * slot_s
    real, imaginary, ray = [], [], 0
    for size in groups:
        re = im = torch.zeros((), device=slot.device)
        for _ in range(size):  # summed as they come, no phasor is stored
            cos, sin = _circle(rays.phase[..., ray, None] + per_slot[..., ray, None] * slot)
            re, im, ray = re + cos, im + sin, ray + 1
        real.append(re)  # [..., cluster, slot]
        imaginary.append(im)
    both = [torch.stack(part, dim=-2).flatten(-3, -2) for part in (real, imaginary)]
    return torch.cat(both, dim=-2)
