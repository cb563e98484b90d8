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


def sinr(
    gain: Tensor,
    band: Tensor,
    power_w: Tensor,
    noise_w: Tensor | float,
    direction: Tensor | None = None,
    receiver: str = "mmse",
) -> Tensor:
    """Signal to interference and noise ratio of each client: [..., client] (paper: eq. 10).

    Clients on the same sub-band disturb each other (paper: eq. 11); power 0 means silent: no
    signal and no interference. Noise is a number, or [..., band]. Gains, noise and directions may
    have axes in front that the choices lack.

    With several antennas the gain is that of all together, and `direction` [..., client, band,
    antenna, 2] the unit vectors u in which it arrives, real and imaginary parts. The receiver `mrc`
    listens in the client's own direction, so another is heard with |u_n^H u_k|^2 of its power.
    `mmse` listens where the client stands out most from the others and the noise: SINR =
    s_n u_n^H (I + sum over others of s_k u_k u_k^H)^-1 u_n with received SNRs s. Alone on a
    sub-band, both hear a client with its whole gain.

    >>> gain = torch.tensor([[4.0, 1.0], [2.0, 3.0]])             # [client, band]
    >>> sinr(gain, torch.tensor([0, 0]), torch.tensor([1.0, 1.0]), 1.0)   # share band 0
    tensor([1.3333, 0.4000])
    >>> sinr(gain, torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), 1.0)   # a band each
    tensor([4., 3.])
    """
    where = band if gain.ndim == band.ndim + 1 else band.expand(gain.shape[:-1])
    heard = power_w * gain.gather(-1, where.unsqueeze(-1)).squeeze(-1)
    if isinstance(noise_w, Tensor):
        noise_w = noise_w.gather(-1, where)
    oneself = torch.eye(band.shape[-1], dtype=torch.bool, device=band.device)
    together = (band.unsqueeze(-1) == band.unsqueeze(-2)) & ~oneself  # [..., client, other]
    if direction is not None and direction.shape[-2]:
        flat = direction.flatten(-2)
        place = where[..., None, None].expand(*where.shape, 1, flat.shape[-1])
        unit = flat.gather(-2, place).squeeze(-2)  # [..., client, (antenna, part)]
        return _combined(heard / noise_w, together, unit, receiver)
    # The others are summed one by one: (everything on the band) - (own signal) would lose a
    # weak neighbour, and the noise, in the rounding of a strong own signal.
    others = (together.to(heard.dtype) * heard.unsqueeze(-2)).sum(-1)
    return heard / (others + noise_w)


def _combined(snr: Tensor, together: Tensor, unit: Tensor, receiver: str) -> Tensor:
    """SINR after combining antennas, from the received SNR of each: [..., client]."""
    others = torch.where(together, snr.unsqueeze(-2), 0.0)  # [..., client, other]
    if receiver == "mrc":
        return snr / (1.0 + (others * coupling(unit)).sum(-1))
    # Double precision: next to a neighbour of 80 dB the noise would be lost in its rounding.
    way = kept_by_solving if unit.device.type == "cpu" else kept_by_elimination
    return snr * way(unit.double(), others.double()).to(snr.dtype)


def coupling(unit: Tensor) -> Tensor:
    """|u_n^H u_k|^2 of unit vectors [..., client, (antenna, part)]: [..., client, other]."""
    real = (unit.unsqueeze(-2) * unit.unsqueeze(-3)).sum(-1)
    imaginary = (unit.unsqueeze(-2) * _turned(unit).unsqueeze(-3)).sum(-1)
    return real.square() + imaginary.square()


def _turned(pairs: Tensor) -> Tensor:
    """i times complex numbers given as pairs: [..., (antenna, part)]."""
    real, imaginary = pairs.reshape(*pairs.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([-imaginary, real], dim=-1).flatten(-2)


def kept_by_solving(unit: Tensor, others: Tensor) -> Tensor:
    """u_n^H (I + sum over k of others[n, k] u_k u_k^H)^-1 u_n, what MMSE keeps of a signal, for
    unit vectors [..., client, (antenna, part)] and SNRs [..., client, other]: [..., client]."""
    vector = torch.view_as_complex(unit.reshape(*unit.shape[:-1], -1, 2))
    outer = vector.unsqueeze(-1) * vector.conj().unsqueeze(-2)  # [..., other, antenna, antenna]
    pairs = others @ torch.view_as_real(outer).flatten(-3)
    covariance = torch.view_as_complex(pairs.view(*outer.shape, 2))
    covariance.diagonal(dim1=-2, dim2=-1).add_(1.0)
    solved: Tensor = torch.linalg.solve_ex(covariance, vector)[0]
    return (vector.conj() * solved).real.sum(-1)


def kept_by_elimination(unit: Tensor, others: Tensor) -> Tensor:
    """The same for GPUs: nothing waits, and compilers can merge it, for they have no complex
    numbers. As pairs, u u^H is the sum of two outer products."""
    both = torch.stack([unit, _turned(unit)], dim=-1)
    outer = (both.unsqueeze(-2) * both.unsqueeze(-3)).sum(-1)  # [..., other, pair, pair]
    matrix = (others @ outer.flatten(-2)).view(outer.shape)
    matrix = matrix + torch.eye(unit.shape[-1], dtype=matrix.dtype, device=matrix.device)
    vector, total = unit, torch.zeros_like(unit[..., 0])
    for _ in range(unit.shape[-1]):
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
