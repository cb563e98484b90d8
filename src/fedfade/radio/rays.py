"""Rays: what clusters are made of (TR 38.901 clause 7.5, steps 7 to 10).

Base station and client have one vertical antenna each that treats all directions alike. Then
departure angles and cross-polarisation drop out of the coefficient (eq. 7.5-22), and a ray is
its cluster's delay and power, its arrival direction at the moving client, and a phase. Every
cluster is split into three sub-clusters of slightly different delay, not only the two strongest
(as in QuaDRiGa: which two are strongest would jump from place to place).
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fedfade.radio.angles import direction
from fedfade.radio.cell import LargeScale
from fedfade.radio.clusters import Clusters
from fedfade.radio.microcell import table
from fedfade.randomness import fold, integers, stream, uniform

_COUPLINGS = 4096


@dataclass(frozen=True)
class Rays:
    """Rays of a batch; within a cluster they are ordered by sub-cluster (10, 6 and 4 rays)."""

    power: Tensor  # [..., cluster], the sum over clusters is 1
    delay_s: Tensor  # [..., cluster, subcluster]
    doppler_hz: Tensor  # [..., cluster, ray]
    phase: Tensor  # [..., cluster, ray] in turns, at the first slot


def draw_rays(
    keys: Tensor,
    at: LargeScale,
    clusters: Clusters,
    max_doppler_hz: float,
    height_difference_m: float,
) -> Rays:
    """Rays of `clusters` for keys [...] of clients in the same shape."""
    rows = table()["clusters"]
    offsets, delays, coupled = _within_cluster(keys.device)
    to_bs = direction(-at.position[..., 1], -at.position[..., 0]) - at.heading_rad
    azimuth = clusters.azimuth_rad + to_bs[..., None]
    azimuth_step = torch.deg2rad(rows["azimuth_spread_arrival_deg"] * offsets)
    up = direction(at.distance_m, torch.full_like(at.distance_m, height_difference_m))
    zenith = clusters.zenith_rad + up[..., None]
    # Step 8, random coupling: picking one of 4096 permutations costs a look-up, sorting every
    # cluster's rays would cost more than all their phasors.
    which = integers(fold(keys, 7), _COUPLINGS, (clusters.power.shape[-1],))
    zenith_step = torch.deg2rad(rows["zenith_spread_arrival_deg"] * coupled)[which]
    # Eq. 7.5-22: the arrival direction on the velocity, 2 pi r^T v t / lambda. A zenith beyond
    # 180 degrees is mirrored (step 7), which is the sine without its sign.
    along = torch.sin(zenith[..., None] + zenith_step).abs()
    along = along * torch.cos(azimuth[..., None] + azimuth_step)
    return Rays(
        power=clusters.power,
        delay_s=clusters.delay_s[..., None] + rows["delay_spread_s"] * delays,
        doppler_hz=along * max_doppler_hz,
        phase=uniform(fold(keys, 8), tuple(along.shape[keys.dim() :])),
    )


def subcluster_sizes() -> list[int]:
    """Rays in each sub-cluster (Table 7.5-5).

    >>> subcluster_sizes()
    [10, 6, 4]
    """
    return [len(row["rays"]) for row in table()["rays"]["subclusters"]]


@cache
def _within_cluster(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """What every cluster looks like inside, rays in sub-cluster order.

    Ray offsets for unit spread (Table 7.5-3) [ray], sub-cluster delays (Table 7.5-5)
    [subcluster], and the offsets permuted at random within sub-clusters [coupling, ray].
    """
    rows = table()["rays"]
    order = [ray - 1 for row in rows["subclusters"] for ray in row["rays"]]
    offsets = torch.tensor([rows["offsets"][ray] for ray in order])
    delays = torch.tensor([row["delay_in_cluster_spreads"] for row in rows["subclusters"]])
    keys = fold(stream(0, "coupling"), torch.arange(_COUPLINGS))
    parts = [
        part[uniform(fold(keys, i), (len(part),)).argsort(dim=-1)]
        for i, part in enumerate(torch.split(offsets, subcluster_sizes()))
    ]
    return offsets.to(device), delays.to(device), torch.cat(parts, dim=-1).to(device)
