"""Clusters and rays: delays, powers, arrival angles and Doppler (TR 38.901 clause 7.5, steps 5-10).

Base station and client have one vertical antenna each that treats all directions alike. Then
departure angles and cross-polarisation drop out of the coefficient (eq. 7.5-22), and a ray is
its delay, its power, its arrival direction at the moving client, and a phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfade.radio.cell import Place
from fedfade.radio.scenario import LIGHT_MPS, angle_scaling, table
from fedfade.randomness import bits, fold, normal, uniform


def scattering_clusters(clusters: int) -> int:
    """Clusters that scatter, when `clusters` are counted as QuaDRiGa counts them.

    QuaDRiGa's number includes the direct path, which is absent without line of sight. So 20 is
    the standard's own 19, and 2 is the least.

    >>> scattering_clusters(20)
    19
    """
    return clusters - 1


@dataclass(frozen=True)
class Rays:
    """Rays of a batch; within a cluster they are ordered by sub-cluster (10, 6 and 4 rays)."""

    power: Tensor
    """Of a cluster, the sum over clusters is 1: [..., cluster]."""
    delay_s: Tensor
    """[..., cluster, subcluster]."""
    doppler_hz: Tensor
    """[..., cluster, ray]."""
    phase: Tensor
    """At the first slot, in turns: [..., cluster, ray]."""


def draw_rays(
    keys: Tensor,
    place: Place,
    clusters: int,
    *,
    carrier_hz: float,
    speed_mps: float,
    height_difference_m: float,
) -> Rays:
    """All rays for keys [...] at places of the same shape."""
    count = scattering_clusters(clusters)
    power, delay = _delays_and_powers(keys, place.delay_spread_s, count)
    azimuth = _ray_azimuths(keys, place, power)
    zenith = _ray_zeniths(keys, place, power, height_difference_m)
    # Eq. 7.5-22: the arrival direction on the velocity, 2 pi r^T v t / lambda.
    along = torch.sin(zenith).abs() * torch.cos(azimuth - place.heading_rad[..., None, None])
    rows = table()["clusters"]
    strong = power >= 10 ** (rows["removed_below_db"] / 10) * power.amax(-1, keepdim=True)
    power = power * strong
    return Rays(
        power=power / power.sum(-1, keepdim=True),
        delay_s=delay[..., None] + rows["delay_spread_s"] * _subcluster_delays(keys.device),
        doppler_hz=along * (speed_mps * carrier_hz / LIGHT_MPS),
        phase=uniform(fold(keys, 8), tuple(along.shape[keys.dim() :])),
    )


def subcluster_sizes() -> list[int]:
    """Rays in each sub-cluster (Table 7.5-5).

    >>> subcluster_sizes()
    [10, 6, 4]
    """
    return [len(row["rays"]) for row in table()["rays"]["subclusters"]]


def _subcluster_delays(device: torch.device) -> Tensor:
    rows = table()["rays"]["subclusters"]
    return torch.tensor([row["delay_in_cluster_spreads"] for row in rows], device=device)


def _ray_offsets(device: torch.device) -> Tensor:
    """Table 7.5-3, reordered by sub-cluster: [ray]."""
    rows = table()["rays"]
    order = [ray - 1 for row in rows["subclusters"] for ray in row["rays"]]
    return torch.tensor([rows["offsets"][ray] for ray in order], device=device)


def _delays_and_powers(keys: Tensor, delay_spread_s: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Steps 5 and 6: exponential delays, powers falling with them: two of [..., cluster].

    Powers are not normalised yet. Clusters stay unsorted: nothing after this needs an order.
    """
    rows = table()["clusters"]
    scaling = rows["delay_scaling"]
    log_draw = torch.log(uniform(fold(keys, 1), (count,)))
    log_draw = log_draw - log_draw.amax(-1, keepdim=True)  # eq. 7.5-2: the first arrives at 0
    delay = -scaling * delay_spread_s[..., None] * log_draw  # eq. 7.5-1
    shadow_db = rows["shadowing_db"] * normal(fold(keys, 2), (count,))
    # Eq. 7.5-5; with eq. 7.5-1 put in, the delay spread cancels.
    power = torch.exp((scaling - 1.0) * log_draw - shadow_db * (math.log(10.0) / 10.0))
    return power, delay


def _ray_azimuths(keys: Tensor, place: Place, power: Tensor) -> Tensor:
    """Step 7, eqs. 7.5-9 to 7.5-13: arrival azimuth of every ray in rad, [..., cluster, ray]."""
    spread = place.azimuth_spread_deg[..., None]
    scaling = angle_scaling("azimuth", power.shape[-1])
    fall = torch.sqrt(-torch.log(power / power.amax(-1, keepdim=True)))
    cluster = _signs(fold(keys, 3), power.shape[-1]) * (2.0 / 1.4 / scaling) * spread * fall
    cluster = cluster + spread / 7.0 * normal(fold(keys, 4), (power.shape[-1],))
    to_bs = torch.atan2(-place.position[..., 1], -place.position[..., 0])[..., None, None]
    within = table()["clusters"]["azimuth_spread_arrival_deg"] * _ray_offsets(keys.device)
    return torch.deg2rad(cluster[..., None] + within) + to_bs


def _ray_zeniths(keys: Tensor, place: Place, power: Tensor, height_difference_m: float) -> Tensor:
    """Step 7, eqs. 7.5-14 to 7.5-18, and step 8: zeniths coupled at random to the azimuths.

    Returned in rad, [..., cluster, ray]. An angle beyond 180 degrees is left as it is: its sine
    changes sign where the standard mirrors it, so the caller takes the absolute value.
    """
    count = power.shape[-1]
    spread = place.zenith_spread_deg[..., None]
    fall = -torch.log(power / power.amax(-1, keepdim=True))
    cluster = _signs(fold(keys, 5), count) * spread * fall / angle_scaling("zenith", count)
    cluster = cluster + spread / 7.0 * normal(fold(keys, 6), (count,))
    to_bs = torch.atan2(place.distance_m, torch.full_like(place.distance_m, height_difference_m))
    within = table()["clusters"]["zenith_spread_arrival_deg"] * _coupled_offsets(keys, count)
    return torch.deg2rad(cluster[..., None] + within) + to_bs[..., None, None]


def _signs(keys: Tensor, count: int) -> Tensor:
    """+1 or -1: [..., count]."""
    return (bits(keys, (count,)) >> 63 | 1).to(torch.float32)


def _coupled_offsets(keys: Tensor, count: int) -> Tensor:
    """Ray offsets permuted at random within each sub-cluster: [..., cluster, ray]."""
    offsets = _ray_offsets(keys.device)
    draws = uniform(fold(keys, 7), (count, len(offsets)))
    parts = []
    for draw, offset in zip(
        torch.split(draws, subcluster_sizes(), dim=-1),
        torch.split(offsets, subcluster_sizes()),
        strict=True,
    ):
        # A random rank is a random permutation; for so few rays cheaper than sorting.
        rank = (draw[..., None] > draw[..., None, :]).sum(-1)
        parts.append(offset[rank])
    return torch.cat(parts, dim=-1)
