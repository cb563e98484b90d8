"""The rounds agents are trained on: the same federated round several times, then the next.

After T rounds the federated task and the channel start again with a new seed derived from the
run's (paper: section V-A), so no fading comes twice and none of it is what `compare` uses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.errors import not_allowed
from fedfade.radio import Cell, Channel, Trajectory, db_to_linear
from fedfade.randomness import stream
from fedfade.uplink.gradients import GradientSource
from fedfade.uplink.scenario import scenario_from_config
from fedfade.uplink.slot import Round

_AHEAD = 4000
"""Client-rounds of fading drawn at once on CUDA, where few cost as much as many."""


class Rounds:
    """Upload problems in the order of training: batch b holds `episodes` episodes of one round."""

    def __init__(
        self,
        config: Config,
        gradients: GradientSource,
        episodes: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        per_round = config.run.episodes_per_round
        if per_round % episodes:
            raise not_allowed(
                "qmix.parallel_episodes",
                episodes,
                f"a divisor of run.episodes_per_round = {per_round}, the episodes of one round",
            )
        self.config = config
        self.gradients = gradients
        self.episodes = episodes
        self.seed = seed
        self.device = torch.device(device)
        self.scenario = scenario_from_config(config, gradients.payload_bits, device)
        clients = config.learning.clients
        self._cell = Cell(config.cell, config.radio, clients)
        self._channel = Channel(config.radio, config.cell, clients, device)
        self._batches = per_round // episodes  # in a federated round
        self._cycle = -1
        self._round = -1
        self._trajectory: Trajectory | None = None
        self._ahead: dict[tuple[int, int, int], Tensor] = {}
        self._inner = torch.zeros(clients, clients, device=device)

    def place(self, batch: int) -> tuple[int, int, int]:
        """Cycle, federated round and place in it of a batch of episodes."""
        number, part = divmod(batch, self._batches)
        cycle, round = divmod(number, self.config.run.rounds)
        return cycle, round, part

    def round(self, batch: int) -> Round:
        """The upload problem of batch number `batch`; batches are asked for in order."""
        cycle, number, part = self.place(batch)
        seed = cycle_seed(self.seed, cycle)
        if cycle != self._cycle:
            self._trajectory = self._walk(seed)
        if (cycle, number) != (self._cycle, self._round):
            self._inner = self.gradients.inner(seed, number).to(self.device)
            self._cycle, self._round = cycle, number
        assert self._trajectory is not None
        alpha = db_to_linear(self._trajectory.at(number).gain_db)  # [1, client]
        return Round(
            alpha=alpha.expand(self.episodes, -1),
            fading=self._fading(seed, number, part),
            inner=self._inner.expand(self.episodes, -1, -1),
            number=torch.full((self.episodes,), float(number), device=self.device),
        )

    def deliver(self, batch: int, delivered: Tensor) -> None:
        """The last episode of a round decides who is averaged: delivered [episode, client]."""
        if self.place(batch)[2] == self._batches - 1:
            self.gradients.deliver(delivered[-1])

    def _walk(self, seed: int) -> Trajectory:
        # One layout is one layout: `fixed` keeps its places when the task starts again.
        seed = self.seed if self.config.cell.placement == "fixed" else seed
        return self._cell.trajectory([seed], self.config.run.rounds, device=self.device)

    def _fading(self, seed: int, number: int, part: int) -> Tensor:
        """[episode, slot, client, band], fresh for every episode unless it is to repeat."""
        assert self._trajectory is not None
        if self.config.run.repeat_fading:
            one = self._channel.small_scale_gain([seed], number, [0], self._trajectory)
            return one[0].expand(self.episodes, -1, -1, -1)
        place = (seed, number, part)
        if place not in self._ahead:
            self._ahead = self._fetch(seed, number, part)
        return self._ahead.pop(place)

    def _fetch(self, seed: int, number: int, part: int) -> dict[tuple[int, int, int], Tensor]:
        """The fading of this batch of episodes; on CUDA of the next rounds too, as cheaply."""
        assert self._trajectory is not None
        clients, last = self.config.learning.clients, self.config.run.rounds
        ahead = 1 if self.device.type == "cpu" else _AHEAD // (self.episodes * clients)
        rounds = range(number, min(number + max(1, ahead), last))
        first = part * self.episodes
        episodes = range(first, first + self.episodes)
        gains = self._channel.small_scale_gains([seed], rounds, episodes, self._trajectory)[0]
        return {(seed, n, part): gain for n, gain in zip(rounds, gains, strict=True)}


def cycle_seed(seed: int, cycle: int) -> int:
    """The seed of the federated task and channel after `cycle` restarts."""
    return stream(seed, "training cycle", cycle) & (2**31 - 1)
