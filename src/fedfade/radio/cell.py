"""The cell: where clients are in each round and what that does to their gain.

A trajectory is a pure function of (seed, round, client): the round can be asked for alone or
together with a hundred others and comes out the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import not_allowed
from fedfade.radio.angles import direction
from fedfade.radio.field import gaussian_field
from fedfade.radio.scenario import log_spread, path_loss_db, table
from fedfade.randomness import fold, normal, streams, uniform


@dataclass(frozen=True)
class Place:
    """What the fading needs to know about clients: tensors of one shape, [run, client] or more."""

    position: Tensor
    """In metres, base station at (0, 0): [..., 2]."""
    distance_m: Tensor
    """In the plane."""
    heading_rad: Tensor
    """Direction of travel."""
    shadowing: Tensor
    """Standard normal; positive means more gain."""
    delay_spread_s: Tensor
    azimuth_spread_deg: Tensor
    """Of arrival at the client."""
    zenith_spread_deg: Tensor
    """Of arrival at the client."""
    gain_db: Tensor
    """Large-scale gain: antenna gain - path loss + shadowing, so alpha = 10^(gain_db / 10)."""


@dataclass(frozen=True)
class Trajectory(Place):
    """The places of all clients over rounds: [run, round, client]."""

    first_round: int = 0

    def at(self, round_index: int) -> Place:
        """The places in one round: [run, client].

        >>> cell = Cell(CellConfig(), RadioConfig(), clients=10)
        >>> cell.trajectory([0, 1], rounds=3).at(2).gain_db.shape
        torch.Size([2, 10])
        """
        return self._rows(self._row(round_index))

    def during(self, rounds: Sequence[int]) -> Place:
        """The places in several rounds: [run, round, client]."""
        rows = [self._row(round_index) for round_index in rounds]
        one_after_another = rows == list(range(rows[0], rows[0] + len(rows)))
        return self._rows(slice(rows[0], rows[-1] + 1) if one_after_another else rows)

    def _row(self, round_index: int) -> int:
        row = round_index - self.first_round
        if not 0 <= row < self.gain_db.shape[1]:
            last = self.first_round + self.gain_db.shape[1] - 1
            raise not_allowed("round", round_index, f"one of {self.first_round} ... {last}")
        return row

    def _rows(self, rows: int | slice | list[int]) -> Place:
        return Place(**{f.name: getattr(self, f.name)[:, rows] for f in fields(Place)})


class Cell:
    """A hexagon (vertices on the x axis) with the base station in its centre.

    >>> cell = Cell(CellConfig(), RadioConfig(), clients=10)
    >>> trajectory = cell.trajectory(seeds=[0, 1, 2], rounds=5)
    >>> trajectory.gain_db.shape                                  # [run, round, client]
    torch.Size([3, 5, 10])
    >>> later = cell.trajectory(seeds=[1], rounds=1, first_round=4)
    >>> bool((later.gain_db[0, 0] == trajectory.gain_db[1, 4]).all())
    True
    """

    def __init__(self, cell: CellConfig, radio: RadioConfig, clients: int) -> None:
        self.config = cell
        self.radio = radio
        self.clients = clients

    def trajectory(
        self,
        seeds: Sequence[int],
        rounds: int,
        first_round: int = 0,
        device: torch.device | str = "cpu",
    ) -> Trajectory:
        """Positions, headings, spreads and gains for every seed, round and client."""
        keys = fold(
            streams(seeds, "placement", device=device)[:, None],
            torch.arange(self.clients, device=device),
        )  # [run, client]
        round_index = torch.arange(first_round, first_round + rounds, device=device)
        keys_by_round = fold(keys[:, None, :], round_index[:, None])  # [run, round, client]
        heading = 2 * math.pi * uniform(fold(keys_by_round, 1), ())
        placement = self.config.placement
        if placement == "waypoint":
            position, heading = self._walk(keys, round_index, heading)
        elif placement == "redraw":
            position = self._uniform_in_hexagon(fold(keys_by_round, 2), ())
        elif placement == "fixed":
            position = self._uniform_in_hexagon(fold(keys, 2), ())
        else:
            position = self._on_ring(keys)
        if position.dim() == 3:
            position = position[:, None].expand(-1, rounds, -1, -1)
        return self._large_scale(seeds, first_round, position, heading, keys_by_round)

    # --- gains ---------------------------------------------------------------------------------

    def _large_scale(
        self,
        seeds: Sequence[int],
        first_round: int,
        position: Tensor,
        heading: Tensor,
        keys_by_round: Tensor,
    ) -> Trajectory:
        """Clause 7.5 step 4: shadowing and spreads, correlated with each other and in space."""
        names = table()["large_scale"]["correlation"]["order"][1:]
        spreads = [log_spread(name, self.radio.carrier_hz) for name in names]
        metres = [self.config.shadowing_decorrelation_m, *(s.decorrelation_m for s in spreads)]
        independent = [
            gaussian_field(streams(seeds, f"field {i}", device=position.device), position, m)
            for i, m in enumerate(metres)
        ]
        distance = torch.linalg.vector_norm(position, dim=-1)
        if self.config.placement == "ring":
            independent[0] = normal(fold(keys_by_round, 3), ())
            gain = self._ring_gain_db() + self.config.ring_spread_db * independent[0]
        else:
            gain = self.config.shadowing_db * independent[0] + self._mean_gain_db(distance)
        gain = gain.clamp(max=0.0)  # nothing arrives stronger than it was sent
        # Cholesky with shadowing first: its own field stays exactly exponential.
        matrix = torch.tensor(table()["large_scale"]["correlation"]["matrix"], dtype=torch.float64)
        factor = torch.linalg.cholesky(matrix).tolist()
        mixed = [
            sum((w * x for w, x in zip(row, independent, strict=True)), torch.zeros_like(gain))
            for row in factor
        ]
        return Trajectory(
            position=position.contiguous(),
            distance_m=distance,
            heading_rad=heading,
            shadowing=independent[0],
            delay_spread_s=spreads[0].value(mixed[1]),
            azimuth_spread_deg=spreads[1].value(mixed[2]),
            zenith_spread_deg=spreads[2].value(mixed[3]),
            gain_db=gain,
            first_round=first_round,
        )

    def _mean_gain_db(self, distance_m: Tensor) -> Tensor:
        loss = path_loss_db(
            distance_m,
            self.radio.carrier_hz,
            self.config.bs_height_m,
            self.config.client_height_m,
        )
        return self.radio.antenna_gain_dbi - loss

    def _ring_gain_db(self) -> float:
        """The gain at which full power arrives with the asked-for SNR."""
        full_dbm = self.radio.power_levels_dbm[self.radio.full_level]
        return self.config.ring_snr_db + self.radio.noise_dbm - full_dbm

    # --- places --------------------------------------------------------------------------------

    def _on_ring(self, keys: Tensor) -> Tensor:
        """All at the distance whose mean gain is the ring's, as far as the hexagon has it."""
        inner = self.config.side_m * math.sqrt(3) / 2
        candidates = torch.linspace(max(self.config.min_distance_m, 1.0), inner, 2000)
        miss = (self._mean_gain_db(candidates) - self._ring_gain_db()).abs()
        radius = float(candidates[miss.argmin()])
        angle = 2 * math.pi * uniform(fold(keys, 2), ())
        return radius * torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)

    def _uniform_in_hexagon(self, keys: Tensor, shape: Sequence[int]) -> Tensor:
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
        """Random waypoint: straight legs between uniform points, at constant speed.

        Returns position [run, round, client, 2] and heading [run, round, client].
        """
        # float64, because a long walk is summed up from its start.
        walked = self.radio.speed_mps * self.config.round_s * round_index.to(torch.float64)
        legs = 2 + int(float(walked[-1]) / (0.3 * self.config.side_m))
        leg_keys = fold(keys, 2)
        while True:
            stops = self._uniform_in_hexagon(leg_keys, (legs + 1,)).to(torch.float64)
            steps = stops.diff(dim=-2)  # [run, client, leg, 2]
            ends = torch.linalg.vector_norm(steps, dim=-1).cumsum(-1)  # [run, client, leg]
            if bool((ends[..., -1] > walked[-1]).all()):
                break
            legs *= 2
        leg = torch.searchsorted(ends, walked.expand(*ends.shape[:-1], -1).contiguous(), right=True)
        index = leg.unsqueeze(-1).expand(*leg.shape, 2)  # [run, client, round, 2]
        step = steps.gather(-2, index)
        length = torch.linalg.vector_norm(step, dim=-1)
        left = ends.gather(-1, leg) - walked
        position = stops.gather(-2, index) + step * (1.0 - left / length).unsqueeze(-1)
        position = self._keep_off(position).to(torch.float32).transpose(1, 2)
        heading = direction(step[..., 1], step[..., 0]).to(torch.float32).transpose(1, 2)
        # Nobody who stands still between rounds has a direction of travel: draw one.
        return position, heading if self.config.round_s * self.radio.speed_mps > 0 else idle

    def _keep_off(self, position: Tensor) -> Tensor:
        """Who would walk through the antenna walks around it, at the minimum distance."""
        distance = torch.linalg.vector_norm(position, dim=-1, keepdim=True)
        nearest = self.config.min_distance_m
        return position * torch.clamp(nearest / distance.clamp_min(1e-9), min=1.0)
