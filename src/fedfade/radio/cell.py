"""The cell: where clients are in each round and what that does to their gain.

A trajectory is a pure function of (seed, round, client): the round can be asked for alone or
together with a hundred others and comes out the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import not_allowed
from fedfade.radio.microcell import log_normal_spread, path_loss_db, table
from fedfade.randomness import fold, normal, streams, uniform

Ints = Sequence[int]


@dataclass(frozen=True)
class LargeScale:
    """Clients as the fading sees them: tensors of one shape, [run, client] or more."""

    position: Tensor  # [..., 2] in metres, base station at (0, 0)
    distance_m: Tensor  # in the plane
    heading_rad: Tensor  # direction of travel
    shadowing: Tensor  # standard normal; positive means more gain
    delay_spread_s: Tensor
    azimuth_spread_deg: Tensor  # of arrival at the client
    zenith_spread_deg: Tensor  # of arrival at the client
    departure_spread_deg: Tensor  # in azimuth, at the base station
    gain_db: Tensor  # antenna gain - path loss + shadowing: alpha = 10^(gain_db / 10)
    announced_db: Tensor  # what all are told of it

    def map(self, change: Callable[[Tensor], Tensor]) -> "LargeScale":
        """The same clients with every tensor changed alike."""
        return LargeScale(**{f.name: change(getattr(self, f.name)) for f in fields(LargeScale)})

    def __getitem__(self, index: Any) -> "LargeScale":
        return self.map(lambda value: value[index])


@dataclass(frozen=True)
class Trajectory(LargeScale):
    """All clients over rounds: [run, round, client]."""

    first_round: int = 0

    def at(self, round_index: int) -> LargeScale:
        """One round: [run, client]."""
        return self[:, self._row(round_index)]

    def during(self, rounds: Ints) -> LargeScale:
        """Several rounds: [run, round, client]."""
        rows = [self._row(round_index) for round_index in rounds]
        one_after_another = rows == list(range(rows[0], rows[0] + len(rows)))
        return self[:, rows[0] : rows[-1] + 1] if one_after_another else self[:, rows]

    def _row(self, round_index: int) -> int:
        row = round_index - self.first_round
        if not 0 <= row < self.gain_db.shape[1]:
            last = self.first_round + self.gain_db.shape[1] - 1
            raise not_allowed("round", round_index, f"one of {self.first_round} ... {last}")
        return row


class Cell:
    """A hexagon (vertices on the x axis) with the base station in its centre."""

    def __init__(self, cell: CellConfig, radio: RadioConfig, clients: int) -> None:
        self.config, self.radio, self.clients = cell, radio, clients

    def trajectory(
        self, seeds: Ints, rounds: int, first_round: int = 0, device: torch.device | str = "cpu"
    ) -> Trajectory:
        """Positions, headings, spreads and gains for every seed, round and client."""
        runs = streams(seeds, "placement", device=device)
        keys = fold(runs[:, None], torch.arange(self.clients, device=device))  # [run, client]
        round_index = torch.arange(first_round, first_round + rounds, device=device)
        keys_by_round = fold(keys[:, None, :], round_index[:, None])  # [run, round, client]
        heading = 2 * math.pi * uniform(fold(keys_by_round, 1), ())
        mobility = self.config.mobility
        if mobility in ("reflect", "waypoint"):
            position, heading = self._walk(keys, round_index, heading)
        elif mobility == "redraw":
            position = self.uniform_in_hexagon(fold(keys_by_round, 2))
        else:
            draw = self.uniform_in_hexagon if mobility == "fixed" else self._on_ring
            position = draw(fold(keys, 2))[:, None].expand(-1, rounds, -1, -1)
        rest = self._large_scale(seeds, position, keys_by_round)
        position = position.contiguous()
        return Trajectory(position, heading_rad=heading, first_round=first_round, **rest)

    def _large_scale(self, seeds: Ints, position: Tensor, keys: Tensor) -> dict[str, Any]:
        """Clause 7.5 step 4: shadowing and spreads, correlated with each other and in space."""
        rows, cell = table()["large_scale"], self.config
        names = rows["correlation"]["order"][1:]  # the first is shadowing
        metres = [cell.shadowing_decorrelation_m, *(rows[n]["decorrelation_m"] for n in names)]
        independent = [
            gaussian_field(streams(seeds, f"field {i}", device=position.device), position, m)
            for i, m in enumerate(metres)
        ]
        distance = torch.linalg.vector_norm(position, dim=-1)
        if cell.mobility == "ring":
            independent[0] = normal(fold(keys, 3), ())
            gain = self._ring_gain_db() + cell.ring_spread_db * independent[0]
        else:
            gain = cell.shadowing_db * independent[0] + self._mean_gain_db(distance)
        # Cholesky with shadowing first: its own field stays exactly exponential.
        matrix = torch.tensor(rows["correlation"]["matrix"], dtype=torch.float64)
        spreads = []
        for name, row in zip(names, torch.linalg.cholesky(matrix).tolist()[1:], strict=True):
            weighted = (w * x for w, x in zip(row, independent, strict=True))
            mixed = sum(weighted, torch.zeros_like(gain))
            spreads.append(log_normal_spread(name, self.radio.carrier_hz, mixed))
        spread_names = ["delay_spread_s", "azimuth_spread_deg", "zenith_spread_deg"]
        spread_names.append("departure_spread_deg")
        gain = gain.clamp(max=0.0)  # nothing arrives stronger than it was sent
        announced = gain + cell.announced_above_db
        if cell.announced_error_db:
            announced = announced + cell.announced_error_db * normal(fold(keys, 4), ())
        found = {"distance_m": distance, "shadowing": independent[0], "gain_db": gain}
        found |= {"announced_db": announced}
        return found | dict(zip(spread_names, spreads, strict=True))

    def gain_db(self, seeds: Ints, position: Tensor) -> Tensor:
        """Large-scale gain at places [run, ..., 2] anywhere in the plane: [run, ...]."""
        cell, keys = self.config, streams(seeds, "field 0", device=position.device)
        shadowing = gaussian_field(keys, position, cell.shadowing_decorrelation_m)
        distance = torch.linalg.vector_norm(position, dim=-1)
        return (cell.shadowing_db * shadowing + self._mean_gain_db(distance)).clamp(max=0.0)

    def _mean_gain_db(self, distance_m: Tensor) -> Tensor:
        heights_m = self.config.bs_height_m, self.config.client_height_m
        loss = path_loss_db(distance_m, self.radio.carrier_hz, *heights_m)
        return self.radio.antennas_dbi - loss

    def _ring_gain_db(self) -> float:
        """The gain at which full power arrives with the asked-for SNR."""
        full_dbm = self.radio.power_levels_dbm[self.radio.full_level]
        return self.config.ring_snr_db + self.radio.noise_dbm - full_dbm

    def _on_ring(self, keys: Tensor) -> Tensor:
        """All at the distance whose mean gain is the ring's, as far as the hexagon has it."""
        nearest, farthest = max(self.config.min_distance_m, 1.0), self.config.inner_radius_m
        candidates = torch.linspace(nearest, farthest, 2000)
        miss = (self._mean_gain_db(candidates) - self._ring_gain_db()).abs()
        radius = float(candidates[miss.argmin()])
        angle = 2 * math.pi * uniform(keys, ())
        return radius * _unit(angle)

    def uniform_in_hexagon(self, keys: Tensor, shape: Ints = ()) -> Tensor:
        """Uniform over the hexagon outside the minimum distance: [*keys.shape, *shape, 2]."""
        side, nearest = self.config.side_m, self.config.min_distance_m
        # Candidates enough that all of them being too near has a chance below 1e-12.
        too_near = math.pi * nearest**2 / (1.5 * math.sqrt(3) * side**2)
        tries = 1 if too_near < 1e-12 else math.ceil(math.log(1e-12) / math.log(too_near))
        draws = uniform(keys, (*shape, tries, 3))
        # Three rhombi, each spanned by two vertices 120 degrees apart, tile the hexagon.
        angle = torch.floor(3 * draws[..., 0]) * (2 * math.pi / 3)
        along, across = side * draws[..., 1], side * draws[..., 2]
        x = along * torch.cos(angle) + across * torch.cos(angle + 2 * math.pi / 3)
        y = along * torch.sin(angle) + across * torch.sin(angle + 2 * math.pi / 3)
        points = torch.stack([x, y], dim=-1)  # [..., try, 2]
        valid = torch.linalg.vector_norm(points, dim=-1) >= nearest
        first = valid.to(torch.int8).argmax(-1)
        return points.gather(-2, first[..., None, None].expand(*first.shape, 1, 2)).squeeze(-2)

    def _walk(self, keys: Tensor, round_index: Tensor, idle: Tensor) -> tuple[Tensor, Tensor]:
        """Straight legs at constant speed.

        Returns position [run, round, client, 2] and heading [run, round, client].
        """
        # float64, because a long walk is summed up from its start.
        walked = self.radio.speed_mps * self.config.round_s * round_index.to(torch.float64)
        find_stops = self._bounces if self.config.mobility == "reflect" else self._waypoints
        stops = find_stops(keys, float(walked[-1]))
        steps, ends = stops.diff(dim=-2), _walked(stops)  # [run, client, leg, 2], without the 2
        leg = torch.searchsorted(ends, walked.expand(*ends.shape[:-1], -1).contiguous(), right=True)
        index = leg.unsqueeze(-1).expand(*leg.shape, 2)  # [run, client, round, 2]
        step = steps.gather(-2, index)
        length = torch.linalg.vector_norm(step, dim=-1)
        left = ends.gather(-1, leg) - walked
        position = stops.gather(-2, index) + step * (1.0 - left / length).unsqueeze(-1)
        # A client that would walk through the antenna keeps its minimum distance.
        distance = torch.linalg.vector_norm(position, dim=-1, keepdim=True).clamp_min(1e-9)
        position = position * torch.clamp(self.config.min_distance_m / distance, min=1.0)
        position = position.to(torch.float32).transpose(1, 2)
        heading = direction(step[..., 1], step[..., 0]).to(torch.float32).transpose(1, 2)
        # A client that stands still between rounds has no direction of travel: draw one.
        return position, heading if self.config.round_s * self.radio.speed_mps > 0 else idle

    def _waypoints(self, keys: Tensor, walk_m: float) -> Tensor:
        """Uniform points, of which clients do not reach the last: [run, client, leg + 1, 2]."""
        legs = 2 + int(walk_m / (0.3 * self.config.side_m))
        while True:
            stops = self.uniform_in_hexagon(fold(keys, 2), (legs + 1,)).to(torch.float64)
            if bool((_walked(stops)[..., -1] > walk_m).all()):
                return stops
            legs *= 2

    def _bounces(self, keys: Tensor, walk_m: float) -> Tensor:
        """Where a walk from a uniform point is mirrored: [run, client, leg + 1, 2].

        Mirrors keep what is uniform in place and direction uniform. That is why the circle of the
        minimum distance is a mirror too, not only the edges.
        """
        inner, nearest = self.config.inner_radius_m, self.config.min_distance_m
        number = torch.arange(6, dtype=torch.float64, device=keys.device)
        edges = _unit(math.pi / 6 + math.pi / 3 * number)  # normals [edge, 2]
        place = self.uniform_in_hexagon(fold(keys, 2)).to(torch.float64)  # [run, client, 2]
        way = _unit(2 * math.pi * uniform(fold(keys, 1), ()).to(torch.float64))
        stops, walked = [place], torch.zeros_like(place[..., 0])
        enough = walk_m * (1 + 1e-9)  # legs may be summed in another order later
        while bool((walked <= enough).any()):
            towards = _dot(edges, way.unsqueeze(-2))  # [run, client, edge]
            ahead = (inner - _dot(edges, place.unsqueeze(-2))) / towards
            length, edge = ahead.where(towards > 0, math.inf).min(-1)
            # The circle is met by who comes nearer and would pass through it.
            along = _dot(place, way)
            beside = place[..., 0] * way[..., 1] - place[..., 1] * way[..., 0]
            to_circle = -along - torch.sqrt((nearest**2 - beside**2).clamp_min(0))
            meets = (along < 0) & (beside.abs() < nearest) & (to_circle < length)
            # Whom rounding has left a hair on the wrong side turns where it is.
            length = to_circle.where(meets, length).clamp_min(0)
            place = place + length.unsqueeze(-1) * way
            radial = place / torch.linalg.vector_norm(place, dim=-1, keepdim=True)
            normal = radial.where(meets.unsqueeze(-1), edges[edge])
            way = way - 2 * _dot(way, normal).unsqueeze(-1) * normal
            walked = walked + torch.linalg.vector_norm(place - stops[-1], dim=-1)
            stops.append(place)
        return torch.stack(stops, dim=-2)


WAVES = 256
"""Plane waves in a field: its values are normal up to a kurtosis of -1.5 / WAVES."""
_ELEMENTS = 1 << 22  # values worked on at a time, to bound memory


def gaussian_field(keys: Tensor, position: Tensor, decorrelation_m: float) -> Tensor:
    """Standard normal values [run, ...] of the fields `keys` [run] at `position` [run, ..., 2].

    A stationary field with exponential autocorrelation exp(-d / d0) is a sum of plane waves whose
    wave vectors follow the field's spectrum. In two dimensions the spectrum of the exponential is
    (1 + (k d0)^2)^(-3/2), whose radial distribution function 1 - (1 + (k d0)^2)^(-1/2) inverts in
    closed form. So the field is a pure function of (key, position): no grid, no history.
    """
    # float64 for the phases: short waves turn many times across a cell, and CPU and CUDA round
    # float32 differently.
    draws = uniform(keys, (3, WAVES)).to(torch.float64)  # [run, 3, wave]
    # Strata instead of plain draws for the radius: less error in the correlation of one field.
    strata = (torch.arange(WAVES, device=keys.device) + draws[:, 0]) / WAVES
    radius = torch.sqrt(1.0 / (1.0 - strata).clamp_min(1e-3) ** 2 - 1.0) / decorrelation_m
    angle, shift = 2.0 * math.pi * draws[:, 1], 2.0 * math.pi * draws[:, 2]
    wave = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
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


def _walked(stops: Tensor) -> Tensor:
    """How far a walk has gone at the end of each leg: [..., leg] of stops [..., leg + 1, 2]."""
    lengths: Tensor = torch.linalg.vector_norm(stops.diff(dim=-2), dim=-1)
    return lengths.cumsum(-1)


def _unit(angle: Tensor) -> Tensor:
    """Vectors of length 1: [..., 2]."""
    return torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of vectors in the plane, the same bits alone and in a batch."""
    return one[..., 0] * other[..., 0] + one[..., 1] * other[..., 1]


def direction(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y) in rad, like atan2, but the same bits alone and in a batch.

    torch's atan2 takes another routine for the elements that do not fill a vector register, so
    that a batch of 7 and a batch of 600 would differ in the last bit.
    """
    length = torch.sqrt(x.square() + y.square())
    # Half the angle, from whichever of two forms does not cancel.
    right = torch.atan(y / (length + x).clamp_min(1e-30))
    left = math.pi / 2 - torch.atan((length + x) / y.abs().clamp_min(1e-30))
    left = torch.where(y < 0, -left, left)
    return 2.0 * torch.where(x >= 0, right, left)
