"""Clusters and the rays they are made of (TR 38.901 clause 7.5, steps 5 to 10).

There are two ways to draw powers, delays and mean arrival angles of clusters, `radio.cluster_draw`:

`tr38901`   the standard's equations. Spreads are met on average, through tabulated constants.
`quadriga`  as QuaDRiGa does by default. Angles are uniform, power falls with delay and with every
            angle, then delays and angles are stretched until the drop has exactly the delay and
            angle spreads it should have. Fewer clusters then mean fewer strong paths, so more
            correlation between slots, which the standard's constants even out.

Base station and client have vertical antennas that treat all directions alike. Then
cross-polarisation drops out of the coefficient (eq. 7.5-22), and so do departure angles where the
base station has one antenna: a ray is its cluster's delay and power, its arrival direction at the
moving client, and a phase. (Departure and arrival are those of the standard's downlink: what
arrives at the client here leaves it in the uplink, by the same ways.) Every
cluster is split into three sub-clusters of slightly different delay, not only the two strongest
(as in QuaDRiGa: which two are strongest would jump from place to place).
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fedfade.radio.cell import LargeScale, direction
from fedfade.radio.microcell import angle_scaling, table
from fedfade.randomness import bits, fold, integers, normal, stream, uniform

_STRETCHES = 6  # steps of the search for a stretch; the spread is then met to a percent or better
_COUPLINGS = 4096


@dataclass(frozen=True)
class Clusters:
    """Clusters of a batch, each tensor [..., cluster]; angles are relative to the direct path."""

    power: Tensor  # the sum over clusters is 1
    delay_s: Tensor  # the first arrives at 0
    azimuth_rad: Tensor
    zenith_rad: Tensor


def draw_tr38901(keys: Tensor, at: LargeScale, count: int) -> Clusters:
    """Steps 5 to 7 as written, for keys [...] of clients in the same shape."""
    rows = table()["clusters"]
    scaling = rows["delay_scaling"]
    log_draw = torch.log(uniform(fold(keys, 1), (count,)))
    log_draw = log_draw - log_draw.amax(-1, keepdim=True)  # eq. 7.5-2: the first arrives at 0
    delay = -scaling * at.delay_spread_s[..., None] * log_draw  # eq. 7.5-1
    shadow_db = rows["shadowing_db"] * normal(fold(keys, 2), (count,))
    # Eq. 7.5-5; with eq. 7.5-1 put in, the delay spread cancels.
    log_power = (scaling - 1.0) * log_draw - shadow_db * (math.log(10.0) / 10.0)
    fall = log_power.amax(-1, keepdim=True) - log_power  # -ln(P_n / max P)

    azimuth = 2.0 / 1.4 / angle_scaling("azimuth", count) * torch.sqrt(fall)  # eq. 7.5-9
    azimuth = _signs(fold(keys, 3), count) * azimuth + normal(fold(keys, 4), (count,)) / 7.0
    zenith = fall / angle_scaling("zenith", count)  # eq. 7.5-14
    zenith = _signs(fold(keys, 5), count) * zenith + normal(fold(keys, 6), (count,)) / 7.0

    # Step 6: clusters 25 dB below the strongest are dropped; the constants above stay.
    kept = fall <= -rows["removed_below_db"] * (math.log(10.0) / 10.0)
    return Clusters(
        power=torch.softmax(log_power.masked_fill(~kept, -torch.inf), dim=-1),
        delay_s=delay,
        azimuth_rad=torch.deg2rad(azimuth * at.azimuth_spread_deg[..., None]),
        zenith_rad=torch.deg2rad(zenith * at.zenith_spread_deg[..., None]),
    )


def draw_quadriga(keys: Tensor, at: LargeScale, count: int) -> Clusters:
    """Uniform angles, powers that fall with them, then stretched to the spreads asked for."""
    rows, shape = table("quadriga_2_8_clusters"), table()["clusters"]
    draws = uniform(fold(keys, 1), (5, count))  # delay, two azimuths, two zeniths
    time = -torch.log(draws[..., 0, :])
    time = time - time.amin(-1, keepdim=True)
    # Departure angles fix no ray's Doppler here, but they take their share of the power.
    angles = (draws[..., 1:, :] - 0.5) * math.pi
    fall = rows["azimuth_fall"] * angles[..., :2, :].square().sum(-2)
    log_power = (1.0 - shape["delay_scaling"]) * time - fall
    log_power = log_power - rows["zenith_fall"] * angles[..., 2:, :].abs().sum(-2)
    power = torch.softmax(log_power, dim=-1)
    deviation = time - (power * time).sum(-1, keepdim=True)
    unit = torch.sqrt((power * deviation.square()).sum(-1)).clamp_min(1e-6)
    # Azimuth and zenith of arrival together: [..., 2, cluster].
    wanted = torch.stack([at.azimuth_spread_deg, at.zenith_spread_deg], dim=-1)
    limits = _pair((rows["azimuth_stretch_limit"], rows["zenith_stretch_limit"]), keys.device)
    arrival = angles[..., 1::2, :]
    arrival = _stretched(arrival, power.unsqueeze(-2), torch.deg2rad(wanted), limits)
    delay = time * (at.delay_spread_s / unit)[..., None]
    return Clusters(power, delay, azimuth_rad=arrival[..., 0, :], zenith_rad=arrival[..., 1, :])


def _stretched(angle: Tensor, power: Tensor, spread_rad: Tensor, limit: Tensor) -> Tensor:
    """The angles times the factor that gives them the wanted spread on the circle."""
    factor = torch.ones_like(spread_rad)
    for _ in range(_STRETCHES):
        reached = angle_spread(angle * factor[..., None], power)
        factor = torch.minimum(factor * spread_rad / reached.clamp_min(1e-6), limit)
    return angle * factor[..., None]


@cache
def _pair(values: tuple[float, float], device: torch.device) -> Tensor:
    """Two constants on a device, carried there once."""
    return torch.tensor(values, device=device)


def _signs(keys: Tensor, count: int) -> Tensor:
    return (bits(keys, (count,)) >> 63 | 1).to(torch.float32)


def angle_spread(angle_rad: Tensor, power: Tensor) -> Tensor:
    """Root mean square angle about the mean direction, weighted by power: [..., path] -> [...].

    >>> angle_spread(torch.tensor([3.1, -3.1]), torch.tensor([0.5, 0.5]))    # across the wrap
    tensor(0.0416)
    """
    cos, sin = (power * torch.cos(angle_rad)).sum(-1), (power * torch.sin(angle_rad)).sum(-1)
    turned = angle_rad - direction(sin, cos)[..., None]
    turned = turned - 2 * math.pi * torch.round(turned / (2 * math.pi))
    turned = turned - (power * turned).sum(-1, keepdim=True)
    return torch.sqrt((power * turned.square()).sum(-1))


@dataclass(frozen=True)
class Rays:
    """Rays of a batch; within a cluster they are ordered by sub-cluster (10, 6 and 4 rays)."""

    power: Tensor  # [..., cluster], the sum over clusters is 1
    delay_s: Tensor  # [..., cluster, subcluster]
    doppler_hz: Tensor  # [..., cluster, ray]
    phase: Tensor  # [..., cluster, ray] in turns, at the first slot


def draw_rays(
    keys: Tensor, at: LargeScale, clusters: Clusters, max_doppler_hz: float, bs_above_m: float
) -> Rays:
    """Rays of `clusters` for keys [...] of clients in the same shape."""
    rows = table()["clusters"]
    offsets, delays, coupled = _within_cluster(keys.device)
    to_bs = direction(-at.position[..., 1], -at.position[..., 0]) - at.heading_rad
    azimuth = clusters.azimuth_rad + to_bs[..., None]
    azimuth_step = torch.deg2rad(rows["azimuth_spread_arrival_deg"] * offsets)
    up = direction(at.distance_m, torch.full_like(at.distance_m, bs_above_m))
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


def draw_departures(keys: Tensor, at: LargeScale, clusters: Clusters, how: str) -> Tensor:
    """Clusters' azimuths at the base station, relative to the direct path: [..., cluster].

    As those at the client, with the base station's spread; `how` is `radio.cluster_draw`.
    """
    count = clusters.power.shape[-1]
    spread_rad = torch.deg2rad(at.departure_spread_deg)
    if how == "quadriga":
        # The draw that has taken its share of the power already.
        angle = (uniform(fold(keys, 1), (5, count))[..., 1, :] - 0.5) * math.pi
        limit = spread_rad.new_full((), table("quadriga_2_8_clusters")["azimuth_stretch_limit"])
        return _stretched(angle, clusters.power, spread_rad, limit)
    fall = torch.log(clusters.power.amax(-1, keepdim=True) / clusters.power.clamp_min(1e-30))
    angle = 2.0 / 1.4 / angle_scaling("azimuth", count) * torch.sqrt(fall)  # eq. 7.5-9
    angle = _signs(fold(keys, 9), count) * angle + normal(fold(keys, 10), (count,)) / 7.0
    return angle * spread_rad[..., None]


def antenna_turns(keys: Tensor, at: LargeScale, departure_rad: Tensor, bs_above_m: float) -> Tensor:
    """Phase of each ray from one antenna to the next, in turns: [..., cluster, ray].

    The antennas stand half a wavelength apart in a line along y. Rays leave level: spread in
    zenith is a degree or two there, and shortens the step by less than a percent.
    """
    rows, (_, _, coupled) = table()["clusters"], _within_cluster(keys.device)
    which = integers(fold(keys, 11), _COUPLINGS, (departure_rad.shape[-1],))
    step = torch.deg2rad(rows["azimuth_spread_departure_deg"] * coupled)[which]
    azimuth = direction(at.position[..., 1], at.position[..., 0])[..., None] + departure_rad
    level = at.distance_m / torch.sqrt(at.distance_m.square() + bs_above_m**2).clamp_min(1e-9)
    return 0.5 * level[..., None, None] * torch.sin(azimuth[..., None] + step)


def subcluster_sizes() -> list[int]:
    """Rays in each sub-cluster (Table 7.5-5): 10, 6 and 4."""
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
