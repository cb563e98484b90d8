"""The link: who hears whom, and how many bits get through in a slot.

Shapes: gain [..., client, band], sub-band chosen [..., client], power [..., client]. Everything
works on any leading batch shape, on any device, without waiting for it.
"""

import math

import torch
from torch import Tensor

from fedfade.config import SILENT_DBM, RadioConfig


def db_to_linear(value_db: Tensor) -> Tensor:
    """10^(x/10)."""
    return torch.exp(value_db * (math.log(10.0) / 10.0))


def dbm_to_w(level_dbm: Tensor | float) -> Tensor:
    """Transmit power in watt; a level of -100 dBm or less means silent and is exactly zero.

    Not for noise, which lies below that level: see `noise_w`.
    """
    level = torch.as_tensor(level_dbm, dtype=torch.float32)
    return torch.where(level <= SILENT_DBM, torch.zeros_like(level), db_to_linear(level - 30.0))


def noise_w(radio: RadioConfig) -> float:
    """Noise power in one sub-band, in watt."""
    return float(10.0 ** ((radio.noise_dbm - 30.0) / 10.0))


def sinr(gain: Tensor, band: Tensor, power_w: Tensor, noise_w: Tensor | float) -> Tensor:
    """Signal to interference and noise ratio of each client: [..., client] (paper: eq. 10).

    Clients on the same sub-band disturb each other (paper: eq. 11); power 0 means silent: no
    signal and no interference. Gains may have axes in front that the choices lack.

    >>> gain = torch.tensor([[4.0, 1.0], [2.0, 3.0]])             # [client, band]
    >>> sinr(gain, torch.tensor([0, 0]), torch.tensor([1.0, 1.0]), 1.0)   # share band 0
    tensor([1.3333, 0.4000])
    >>> sinr(gain, torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), 1.0)   # a band each
    tensor([4., 3.])
    """
    where = band if gain.ndim == band.ndim + 1 else band.expand(gain.shape[:-1])
    heard = power_w * gain.gather(-1, where.unsqueeze(-1)).squeeze(-1)
    # The others are summed one by one: (everything on the band) - (own signal) would lose a
    # weak neighbour, and the noise, in the rounding of a strong own signal.
    together = band.unsqueeze(-1) == band.unsqueeze(-2)  # [..., client, other]
    oneself = torch.eye(band.shape[-1], dtype=torch.bool, device=band.device)
    others = torch.where(together & ~oneself, heard.unsqueeze(-2), 0.0).sum(-1)
    return heard / (others + noise_w)


def array_sinr(
    gain: Tensor,
    direction: Tensor,
    band: Tensor,
    power_w: Tensor,
    noise_w: Tensor | float,
    receiver: str,
) -> Tensor:
    """The same with several antennas, combined anew for every client: [..., client].

    `gain` is that of all antennas together, `direction` [..., client, band, antenna, 2] the unit
    vectors u in which it arrives, real and imaginary parts. `mrc` listens in the client's own
    direction, so another is heard with |u_n^H u_k|^2 of its power. `mmse` listens where the client
    stands out most from the others and the noise: SINR = s_n u_n^H (I + sum over others of
    s_k u_k u_k^H)^-1 u_n with received SNRs s. Alone on a sub-band, both hear a client with its
    whole gain. `noise_w` [..., client] or a number, alike at every antenna.

    >>> gain = torch.tensor([[8.0], [8.0]])                      # [client, band]
    >>> apart = torch.tensor([[[[1.0, 0], [0, 0]]], [[[0, 0], [1, 0]]]])
    >>> on = torch.tensor([0, 0]), torch.tensor([1.0, 1.0])
    >>> array_sinr(gain, apart, *on, 1.0, "mmse")                # as if each were alone
    tensor([8., 8.])
    """
    flat = direction.flatten(-2)
    place = band[..., None, None].expand(*band.shape, 1, flat.shape[-1])
    unit = flat.gather(-2, place).squeeze(-2)  # [..., client, (antenna, part)]
    heard = power_w * gain.gather(-1, band.unsqueeze(-1)).squeeze(-1) / noise_w
    oneself = torch.eye(band.shape[-1], dtype=torch.bool, device=band.device)
    together = (band.unsqueeze(-1) == band.unsqueeze(-2)) & ~oneself  # [..., client, other]
    others = torch.where(together, heard.unsqueeze(-2), 0.0)
    if receiver == "mrc":
        return heard / (1.0 + (others * coupling(unit)).sum(-1))
    # Double precision: next to a neighbour of 80 dB the noise would be lost in its rounding.
    # Complex numbers as pairs, which compilers can merge: u u^H is the sum of two outer products.
    wide = unit.double()
    both = torch.stack([wide, _turned(wide)], dim=-1)
    outer = (both.unsqueeze(-2) * both.unsqueeze(-3)).sum(-1)  # [..., other, pair, pair]
    covariance = (others.double() @ outer.flatten(-2)).unflatten(-1, outer.shape[-2:])
    return heard * _inverse_form(covariance, wide).to(heard.dtype)


def coupling(unit: Tensor) -> Tensor:
    """|u_n^H u_k|^2 of unit vectors [..., client, (antenna, part)]: [..., client, other]."""
    real = (unit.unsqueeze(-2) * unit.unsqueeze(-3)).sum(-1)
    imaginary = (unit.unsqueeze(-2) * _turned(unit).unsqueeze(-3)).sum(-1)
    return real.square() + imaginary.square()


def _turned(pairs: Tensor) -> Tensor:
    """i times complex numbers given as pairs: [..., (antenna, part)]."""
    real, imaginary = pairs.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([-imaginary, real], dim=-1).flatten(-2)


def _inverse_form(matrix: Tensor, vector: Tensor) -> Tensor:
    """v^T (I + A)^-1 v of non-negative A [..., n, n], by elimination: [...].

    n steps on the whole batch, in which nothing waits for a device.
    """
    total = torch.zeros_like(vector[..., 0])
    matrix = matrix + torch.eye(vector.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(vector.shape[-1]):
        pivot, first = matrix[..., 0, 0], vector[..., 0]
        total = total + first.square() / pivot
        column = matrix[..., 1:, 0] / pivot.unsqueeze(-1)
        vector = vector[..., 1:] - column * first.unsqueeze(-1)
        matrix = matrix[..., 1:, 1:] - column.unsqueeze(-1) * matrix[..., 0, 1:].unsqueeze(-2)
    return total


def rate_bps(ratio: Tensor, bandwidth_hz: float) -> Tensor:
    """Shannon rate B log2(1 + SINR) (paper: eq. 12)."""
    return torch.log1p(ratio) * (bandwidth_hz / math.log(2.0))


def delivered_bits(rate_bps: Tensor, slot_s: float, remaining_bits: Tensor) -> Tensor:
    """Bits of each client that arrive in a slot, no more than it has left to send: [..., client].

    A client has delivered when nothing is left (paper: eq. 13).
    """
    return torch.minimum(rate_bps * slot_s, remaining_bits)
