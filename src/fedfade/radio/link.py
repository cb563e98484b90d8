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


def rate_bps(ratio: Tensor, bandwidth_hz: float) -> Tensor:
    """Shannon rate B log2(1 + SINR) (paper: eq. 12)."""
    return torch.log1p(ratio) * (bandwidth_hz / math.log(2.0))


def delivered_bits(rate_bps: Tensor, slot_s: float, remaining_bits: Tensor) -> Tensor:
    """Bits of each client that arrive in a slot, no more than it has left to send: [..., client].

    A client has delivered when nothing is left (paper: eq. 13).
    """
    return torch.minimum(rate_bps * slot_s, remaining_bits)
