"""The rounds agents are trained on: the same federated round several times, then the next.

After T rounds the federated task and the channel start again with a new seed derived from the
run's (paper: section V-A), so no fading comes twice and none of it is what `compare` uses.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.errors import not_allowed
from fedfade.radio import Cell, Channel, Trajectory, db_to_linear
from fedfade.randomness import stream
from fedfade.uplink.gradients import GradientSource
from fedfade.uplink.slot import Round, scenario_from_config

_AHEAD = 4000
"""Client-rounds of fading drawn ahead on CUDA, where a few cost as much as many."""


class Rounds:
    """Upload problems in the order of training: batch b holds `episodes` episodes of one round.

    Several runs, one a seed, lie side by side: all their episodes are one batch of the uplink,
    those of the first run first.
    """

    def __init__(
        self,
        config: Config,
        gradients: GradientSource,
        episodes: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        per_round = config.run.episodes_per_round
        if per_round % episodes:
            fits = f"a divisor of run.episodes_per_round = {per_round}, the episodes of one round"
            raise not_allowed("qmix.parallel_episodes", episodes, fits)
        self.config, self.gradients, self.episodes = config, gradients, episodes
        self.seeds, self.device = list(seeds), torch.device(device)
        self.scenario = scenario_from_config(config, gradients.payload_bits, device)
        clients = config.learning.clients
        self._cell = Cell(config.cell, config.radio, clients)
        self._channel = Channel(config.radio, config.cell, clients, device)
        self._batches = per_round // episodes  # in a federated round
        whole = len(self.seeds) * per_round * clients  # client-rounds of a federated round
        self._at_once = 1 if self.device.type == "cpu" else max(1, _AHEAD // whole)  # rounds
        self._cycle = self._round = -1
        self._trajectory: Trajectory | None = None
        self._ahead: dict[tuple[int, int, int], Tensor] = {}
        self._inner: Tensor | None = None  # [run, client, client]

    def place(self, batch: int) -> tuple[int, int, int]:
        """Cycle, federated round and place in it of a batch of episodes."""
        number, part = divmod(batch, self._batches)
        cycle, round = divmod(number, self.config.run.rounds)
        return cycle, round, part

    def round(self, batch: int) -> Round:
        """The upload problem of batch number `batch`; batches are asked for in order."""
        cycle, number, _ = self.place(batch)
        seeds = [cycle_seed(seed, cycle) for seed in self.seeds]
        if self._trajectory is None or cycle != self._cycle:
            # One layout is one layout: `fixed` keeps its places when the task starts again.
            walks = self.seeds if self.config.cell.mobility == "fixed" else seeds
            rounds = self.config.run.rounds
            self._trajectory = self._cell.trajectory(walks, rounds, device=self.device)
        if self._inner is None or (cycle, number) != (self._cycle, self._round):
            self._inner = self.gradients.inner(seeds, number).to(self.device)
            self._cycle, self._round = cycle, number
        alpha = db_to_linear(self._trajectory.at(number).gain_db)  # [run, client]
        played = len(self.seeds) * self.episodes
        return Round(
            alpha=alpha.repeat_interleave(self.episodes, 0),
            fading=self._fading(seeds, batch, self._trajectory),
            inner=self._inner.repeat_interleave(self.episodes, 0),
            number=torch.full((played,), float(number), device=self.device),
        )

    def deliver(self, batch: int, delivered: Tensor) -> None:
        """The last episode of a round decides who is averaged: delivered [run, episode, client]."""
        runs, clients = len(self.seeds), self.scenario.clients
        assert delivered.shape == (runs, self.episodes, clients), delivered.shape
        if self.place(batch)[2] == self._batches - 1:
            self.gradients.deliver(delivered[:, -1])

    def _fading(self, seeds: Sequence[int], batch: int, trajectory: Trajectory) -> Tensor:
        """[run x episode, slot, client, band], fresh for every episode unless it is to repeat."""
        cycle, number, part = self.place(batch)
        if self.config.run.repeat_fading:
            one = self._channel.small_scale_gain(seeds, number, [0], trajectory)
            return one.expand(-1, self.episodes, -1, -1, -1).flatten(0, 1)
        if (cycle, number, part) not in self._ahead:
            rounds = range(number, min(number + self._at_once, self.config.run.rounds))
            episodes = range(part * self.episodes, (part + 1) * self.episodes)
            gains = self._channel.small_scale_gains(seeds, rounds, episodes, trajectory)
            by_round = gains.transpose(0, 1).flatten(1, 2)  # [round, run x episode, slot, ...]
            self._ahead |= {(cycle, n, part): x for n, x in zip(rounds, by_round, strict=True)}
        return self._ahead.pop((cycle, number, part))


def cycle_seed(seed: int, cycle: int) -> int:
    """The seed of the federated task and channel after `cycle` restarts."""
    return stream(seed, "training cycle", cycle) & (2**31 - 1)
