"""The rounds agents are trained on: the same federated round several times, then the next.

After T rounds the federated task and the channel start again (paper: section V-A), with a seed
derived from the run's, so that no fading comes twice and none of it is what `compare` uses. With
`run.restart: same` layout, walk and partition are those of the run's own seed each time.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfade.config import Config, changed
from fedfade.errors import not_allowed
from fedfade.radio import Cell, Channel, OtherCells, Trajectory, db_to_linear
from fedfade.randomness import fold, stream, streams, uniform
from fedfade.uplink.cost import ready_slots
from fedfade.uplink.gradients import GradientSource, gradient_source
from fedfade.uplink.scenario import RewardWeights, Scenario, scenario_from_config
from fedfade.uplink.slot import Round, as_announced, draw_chance, plain_round

_AHEAD = 4000
"""Client-rounds of fading drawn ahead on CUDA, where a few cost as much as many."""


DrawnChannel = tuple[Tensor, Tensor, Tensor]
"""Fading, its directions and other cells' levels."""


class Rounds:
    """Upload problems in the order of training: batch b holds `episodes` episodes of one round.

    Several federated tasks, one a seed, lie side by side: all their episodes are one batch of the
    uplink, those of the first task first.

    A seed here is not the walk and fading that `fedfade compare` plays with it: these are kept
    unseen. With `run.restart: same` and `run.repeat_fading: true` it is, bit by bit.
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
            if (layouts := config.qmix.layouts) > 1:
                fits = f"qmix.layouts = {layouts} times {fits}"
            raise not_allowed("qmix.parallel_episodes", config.qmix.parallel_episodes, fits)
        self.config, self.gradients, self.episodes = config, gradients, episodes
        self.seeds, self.device = list(seeds), torch.device(device)
        self.scenario = scenario_from_config(config, gradients.payload_bits, device)
        clients = config.learning.clients
        self._cell = Cell(config.cell, config.radio, clients)
        self._channel = Channel(config.radio, config.cell, clients, device)
        self._other_cells = OtherCells(config.cell, config.radio, clients, device)
        self._batches = per_round // episodes  # in a federated round
        whole = len(self.seeds) * per_round * clients  # client-rounds of a federated round
        self._at_once = 1 if self.device.type == "cpu" else max(1, _AHEAD // whole)  # rounds
        self._cycle = self._round = -1
        self._trajectory: Trajectory | None = None
        self._ahead: dict[tuple[int, int, int], DrawnChannel] = {}
        self._inner: Tensor | None = None  # [task, client, client]

    def place(self, batch: int) -> tuple[int, int, int]:
        """Cycle, federated round and place in it of a batch of episodes."""
        number, part = divmod(batch, self._batches)
        cycle, round = divmod(number, self.config.run.rounds)
        return cycle, round, part

    def round(self, batch: int) -> Round:
        """The upload problem of batch number `batch`; batches are asked for in order."""
        cycle, number, _ = self.place(batch)
        same = self.config.run.restart == "same"
        if self._trajectory is None or cycle != self._cycle:
            fresh = [cycle_seed(seed, cycle) for seed in self.seeds]
            self._tasks = self.seeds if same else fresh
            self._fades = self.seeds if same and self.config.run.repeat_fading else fresh
            # One layout is one layout: `fixed` keeps its places when the task starts again.
            self._walks = self.seeds if self.config.cell.mobility == "fixed" else self._tasks
            rounds = self.config.run.rounds
            self._trajectory = self._cell.trajectory(self._walks, rounds, device=self.device)
            shifts = uniform(streams(self._walks, "gain", device=self.device), (1,))  # [task, 1]
            self._ready = ready_slots(self.config, self._tasks).to(self.device)  # [task, client]
            self._shift_db = self.config.qmix.gain_spread_db * (2.0 * shifts - 1.0)
        if self._inner is None or (cycle, number) != (self._cycle, self._round):
            self._inner = self.gradients.inner(self._tasks, number).to(self.device)
            self._cycle, self._round = cycle, number
        place = self._trajectory.at(number)
        alpha = db_to_linear(place.gain_db + self._shift_db)  # [task, client]
        played = len(self.seeds) * self.episodes
        fading, direction, other_cells_w = self._drawn(batch)
        round_ = plain_round(
            alpha=alpha.repeat_interleave(self.episodes, 0),
            fading=fading,
            inner=self._inner.repeat_interleave(self.episodes, 0),
            number=torch.full((played,), float(number), device=self.device),
            age=torch.zeros(played, self.scenario.clients, device=self.device),
            chance=self._chance(self._fades, batch),
        )
        if not self.config.cell.told_exactly:
            off_db = place.announced_db - place.gain_db
            round_ = as_announced(round_, off_db.repeat_interleave(self.episodes, 0))
        ready = self._ready.repeat_interleave(self.episodes, 0)
        return round_._replace(direction=direction, other_cells_w=other_cells_w, ready_slot=ready)

    def deliver(self, batch: int, delivered: Tensor) -> None:
        """The last episode decides who is averaged: `arrived` [task, episode, client]."""
        tasks, clients = len(self.seeds), self.scenario.clients
        assert delivered.shape == (tasks, self.episodes, clients), delivered.shape
        if self.place(batch)[2] == self._batches - 1:
            self.gradients.deliver(delivered[:, -1])

    def _chance(self, seeds: Sequence[int], batch: int) -> Tensor:
        """What the link draws by, repeated where the fading is: [task x episode, slot, client]."""
        _, number, part = self.place(batch)
        episodes = part * self.episodes + torch.arange(self.episodes, device=self.device)
        if self.config.run.repeat_fading:
            episodes = torch.zeros_like(episodes)
        keys = streams(seeds, "link", number, device=self.device)
        return draw_chance(self.scenario, fold(keys[:, None], episodes).flatten())

    def _drawn(self, batch: int) -> DrawnChannel:
        """What a batch of episodes is played on, fresh for every one unless it is to repeat."""
        cycle, number, part = self.place(batch)
        if self.config.run.repeat_fading:
            one = (
                part[:, 0].expand(-1, self.episodes, *part.shape[3:])
                for part in self._draw([number], [0])
            )
            fading, direction, others = (part.flatten(0, 1) for part in one)
            return fading, direction, others
        if (cycle, number, part) not in self._ahead:
            rounds = range(number, min(number + self._at_once, self.config.run.rounds))
            episodes = range(part * self.episodes, (part + 1) * self.episodes)
            drawn = self._draw(rounds, episodes)
            by_round = zip(*(part.transpose(0, 1).flatten(1, 2) for part in drawn), strict=True)
            self._ahead |= {(cycle, n, part): x for n, x in zip(rounds, by_round, strict=True)}
        return self._ahead.pop((cycle, number, part))

    def _draw(self, rounds: Sequence[int], episodes: Sequence[int]) -> DrawnChannel:
        """Fading, directions and other cells' levels: [task, round, episode, ...]."""
        assert self._trajectory is not None
        small = self._channel.small_scale(self._fades, rounds, episodes, self._trajectory)
        others = self._other_cells.levels_w(self._walks, self._fades, rounds, episodes)
        return small.gain, small.direction, others


class ManyRounds:
    """The rounds of several trainings side by side, all their episodes one batch of the uplink.

    A run is a configuration. Its `qmix.parallel_episodes` are dealt to `qmix.layouts` tasks, each
    with a cell, a walk and data of its own. Runs may differ in seed, cell, link budget, reward,
    what is hidden and where gradients come from. Only the ratio of gain to noise matters to the
    uplink, so the gains of every run are given in units of the first one's noise.
    """

    def __init__(self, configs: Sequence[Config], device: torch.device | str = "cpu") -> None:
        lead = configs[0]
        self.layouts, self.device = lead.qmix.layouts, torch.device(device)
        self.groups: list[Rounds] = []  # of runs that differ in their seed alone
        self._runs: list[int] = []  # in each group
        for config, seeds in _by_config(configs):
            tasks = [task for seed in seeds for task in layout_seeds(seed, self.layouts)]
            episodes = config.qmix.parallel_episodes // self.layouts
            source = gradient_source(config, device)
            self.groups.append(Rounds(config, source, episodes, tasks, device))
            self._runs.append(len(seeds))
        self.episodes = lead.qmix.parallel_episodes  # of a run
        self.place = self.groups[0].place
        self.scenario = replace(self.groups[0].scenario, reward=self._reward())

    def _reward(self) -> RewardWeights:
        """Weights of every episode, or numbers where all runs have the same."""
        found = [group.scenario.reward for group in self.groups]
        if all(weights == found[0] for weights in found):
            return found[0]
        played = torch.tensor(self._runs) * self.episodes
        columns = zip(*found, strict=True)
        each = [torch.tensor(column).repeat_interleave(played) for column in columns]
        return RewardWeights(*(weights.to(self.device) for weights in each))

    def by_hidden(self) -> list[tuple[Scenario, slice]]:
        """The scenario as agents see it, and whose: runs may hide different things."""
        found: list[tuple[Scenario, slice]] = []
        for group, runs in zip(self.groups, self._runs, strict=True):
            first = found[-1][1].stop if found else 0
            own = slice(first, first + runs * self.episodes)
            if found and found[-1][0].hide == group.scenario.hide:
                own = slice(found.pop()[1].start, own.stop)
            found.append((replace(self.scenario, hide=group.scenario.hide), own))
        return found

    def split(self, by_episode: Tensor) -> list[Tensor]:
        """The parts [run x episode, ...] of the groups."""
        return list(torch.split(by_episode, [runs * self.episodes for runs in self._runs]))

    def round(self, batch: int) -> Round:
        """The upload problem of batch number `batch`; batches are asked for in order."""
        noise_w = self.scenario.noise_w
        rounds = []
        for group in self.groups:
            round_ = group.round(batch)
            if group.scenario.noise_w != noise_w:
                unit = noise_w / group.scenario.noise_w
                other_cells_w = round_.other_cells_w * unit
                round_ = round_._replace(alpha=round_.alpha * unit, other_cells_w=other_cells_w)
            rounds.append(round_)
        if len(rounds) == 1:
            return rounds[0]
        return Round(*(torch.cat(parts) for parts in zip(*rounds, strict=True)))

    def deliver(self, batch: int, delivered: Tensor) -> None:
        """The last episode of each task decides: delivered [run, episode, client]."""
        for group, part in zip(self.groups, self.split(delivered.flatten(0, 1)), strict=True):
            group.deliver(batch, part.view(-1, group.episodes, part.shape[-1]))

    def accuracy(self) -> Tensor | None:
        """Test accuracy of the global models, the mean over a run's tasks: [run]."""
        found = [group.gradients.accuracy() for group in self.groups]
        known = [values for values in found if values is not None]
        if not known:
            return None
        nothing = known[0].new_full
        each = [
            nothing((runs * self.layouts,), torch.nan) if values is None else values
            for runs, values in zip(self._runs, found, strict=True)
        ]
        return torch.cat(each).view(-1, self.layouts).mean(-1)

    def take(self, run: int) -> dict[str, Tensor]:
        """What an exact continuation of one run needs: [task, ...]."""
        for group, runs in zip(self.groups, self._runs, strict=True):
            if run < runs:
                tasks = slice(run * self.layouts, (run + 1) * self.layouts)
                return {name: value[tasks] for name, value in group.gradients.tensors().items()}
            run -= runs
        raise IndexError(run)

    def restore(self, found: Sequence[dict[str, Tensor]]) -> None:
        """Continue from what `take` gave for each run."""
        rest = list(found)
        for group, runs in zip(self.groups, self._runs, strict=True):
            own, rest = rest[:runs], rest[runs:]
            group.gradients.restore({n: torch.cat([task[n] for task in own]) for n in own[0]})


def _by_config(configs: Sequence[Config]) -> list[tuple[Config, list[int]]]:
    """Consecutive configurations that differ in their seed alone, with their seeds."""
    found: list[tuple[Config, list[int]]] = []
    for config in configs:
        plain = changed(config, {"run.seed": 0})
        if not found or changed(found[-1][0], {"run.seed": 0}) != plain:
            found.append((config, []))
        found[-1][1].append(config.run.seed)
    return found


def layout_seeds(seed: int, layouts: int) -> list[int]:
    """The seeds of the tasks of one run; a single one has the run's own."""
    return [seed, *(stream(seed, "layout", n) & (2**31 - 1) for n in range(1, layouts))]


def cycle_seed(seed: int, cycle: int) -> int:
    """The seed of the federated task and channel after `cycle` restarts."""
    return stream(seed, "training cycle", cycle) & (2**31 - 1)
