"""Comparisons played round by round: a table of runs beside one batch of models.

A comparison of one configuration and a grid of forty are the same here. Each line of the table
is a run: which comparison, which seed, which policy, and which model of the batch it follows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedfade.allocation import PERFECT, Outcome, gradient_aware, play_round
from fedfade.config import Config
from fedfade.device import matrix_products, one_thread, spare_bytes
from fedfade.experiments.comparison import Comparison, RunMeasures, stored_rows
from fedfade.experiments.metrics import Row
from fedfade.experiments.run_folder import RunFolder
from fedfade.experiments.uploads import UploadGroup
from fedfade.learning import (
    Dataset,
    Federation,
    Models,
    Sent,
    ServerState,
    batch_key,
    federated_round,
    load_data,
)

_MODEL_SHARE, _MODEL_BYTES = 0.3, 2**30
"""Memory for the updates of comparisons side by side: of a GPU's free memory, and on the CPU."""
_COPIES = 6  # of all updates, at the moment when most of them exist

Tell = Callable[[int, str], None]
"""Told the rounds done and what is being done."""


class RunTable:
    """The runs of some comparisons, one after the other, and the models they follow.

    Where every upload succeeds the channel does not matter, so configurations that differ in the
    channel alone share the models of `perfect`: the batch holds each model once.
    """

    def __init__(self, comparisons: Sequence[Comparison]) -> None:
        self.comparisons = comparisons
        self.runs = [(one, *run) for one in comparisons for run in one.runs]
        names = [
            (str(one.config.learning), seed) if policy == PERFECT else run
            for run, (one, seed, policy) in enumerate(self.runs)
        ]  # what tells models apart
        first = {name: run for run, name in reversed([*enumerate(names)])}  # a run of each model
        chosen = sorted(first.values())
        model = {names[run]: place for place, run in enumerate(chosen)}
        device = comparisons[0].device
        self._all_differ = len(chosen) == len(self.runs)
        self._chosen = torch.tensor(chosen).to(device, non_blocking=True)
        self._model = torch.tensor([model[name] for name in names])
        self._model_there = self._model.to(device, non_blocking=True)
        tasks: dict[int, tuple[Federation, list[int]]] = {}
        for run in chosen:
            one, seed, _ = self.runs[run]
            tasks.setdefault(id(one), (one.federation, []))[1].append(seed)
        self.models = Models(list(tasks.values()))
        self._first = {id(one): run for run, (one, *_) in reversed([*enumerate(self.runs)])}

    def __len__(self) -> int:
        return len(self._chosen)

    def own(self, one: Comparison, of_runs: Tensor, policy: str | None = None) -> Tensor:
        """The runs of one comparison, all or those of a policy."""
        first = self._first[id(one)]
        own = of_runs[first : first + len(one.runs)]
        return own if policy is None else own[one.of_policy(policy)]

    def by_model(self, of_runs: Tensor) -> Tensor:
        """From runs to models."""
        return of_runs if self._all_differ else of_runs[self._chosen]

    def by_run(self, of_models: Tensor) -> Tensor:
        """From models to runs."""
        if self._all_differ:
            return of_models
        return of_models[self._model if of_models.device.type == "cpu" else self._model_there]


class SideBySide:
    """Comparisons that share a model: their runs are one batch, their episodes another."""

    def __init__(
        self, comparisons: Sequence[Comparison], folders: Sequence[RunFolder] = ()
    ) -> None:
        self.comparisons, self.folders = comparisons, folders
        groups: dict[str, list[Comparison]] = {}
        for one in comparisons:
            alike = f"{one.uplink.scenario_key} {one.config.allocation}"
            groups.setdefault(alike, []).append(one)
        self.groups: list[tuple[list[Comparison], UploadGroup]] = []
        for members in groups.values():
            policies, with_genie = list(members[0].policies.values()), members[0].with_genie
            uplinks = [one.uplink for one in members]
            self.groups.append((members, UploadGroup(uplinks, policies, with_genie)))
        self._tables: dict[tuple[int, ...], RunTable] = {}
        self._outcomes: dict[int, dict[str, Outcome]] = {}  # of the last round, by comparison
        self._genie: dict[int, Tensor | None] = {}

    @property
    def plan(self) -> str:
        """How much is done at a time, in words."""
        ahead: dict[int, int] = {}
        for _, group in self.groups:
            episodes = ahead.get(group.rounds_ahead, 0) + group.episodes_a_round
            ahead[group.rounds_ahead] = episodes
        played = ", ".join(f"{rounds} rounds x {seeds} seeds" for rounds, seeds in ahead.items())
        models = len(self.table(self.comparisons))
        return f"playing {played} at a time; {models} models trained side by side"

    def table(self, comparisons: Sequence[Comparison]) -> RunTable:
        """The runs of some of the comparisons: after a hard stop some may lag behind."""
        key = tuple(map(id, comparisons))
        if key not in self._tables:
            self._tables[key] = RunTable(comparisons)
        return self._tables[key]

    def behind(self) -> list[Comparison]:
        """Those with the fewest rounds among the unfinished."""
        left = [one for one in self.comparisons if not one.finished]
        least = min((one.at.rounds for one in left), default=0)
        return [one for one in left if one.at.rounds == least]

    def run(self, tell: Tell) -> None:
        """All rounds of all, each from wherever its folder's checkpoint left off."""
        pairs = list(zip(self.comparisons, self.folders, strict=True))
        for one, folder in pairs:
            one.resume(folder)

        def tell_all(doing: str) -> None:
            tell(sum(one.at.rounds for one in self.comparisons), doing)

        try:
            while these := self.behind():
                self.play(these, tell_all)
                for one, folder in pairs:
                    one.save_if_due(folder)
        except KeyboardInterrupt:
            for one, folder in pairs:
                one.save(folder)
            raise
        for one, folder in pairs:
            one.finish(folder)
        tell_all("done")

    def play(self, these: Sequence[Comparison], tell: Callable[[str], None]) -> None:
        """The next round of some comparisons, which have all played as many."""
        table, number = self.table(these), these[0].at.rounds
        states = [one.at.state.tensors() for one in these]
        before = ServerState.of(
            {name: table.by_model(torch.cat([s[name] for s in states])) for name in states[0]}
        )
        due = any(one.evaluates(number) for one in these)
        with matrix_products(these[0].config.run.precision):
            deliver = partial(self.deliver, table)
            done = federated_round(table.models, before, number, deliver, due, tell)
            updates = done.sent.updates
            known = (done.sent.inner, done.arrived, updates.finite, done.bias)
            measured = (*known, updates.loss.nanmean(-1), done.accuracy, done.loss)
        measures = [table.by_run(value.cpu()) for value in measured]
        after = done.after.each(table.by_run)
        for one in these:
            state = after.each(partial(table.own, one))
            own = RunMeasures(*(table.own(one, value) for value in measures))
            one.add(state, self._outcomes.get(id(one), {}), self._genie[id(one)], own)

    def deliver(self, table: RunTable, sent: Sent) -> Tensor:
        """Play the slots of a round under every policy: who delivered, by model."""
        number, inner = sent.number, table.by_run(sent.inner)
        for members, group in self.groups:
            here = [place for place, one in enumerate(members) if one in table.comparisons]
            if not here:
                continue
            with one_thread():
                group.draw_ahead(number)
                for policy in group.policies:
                    own = [
                        table.own(members[m], inner)[members[m].of_policy(policy.name)]
                        for m in here
                    ]
                    grams = torch.cat(own)
                    if gradient_aware(policy):
                        problem = group.now(policy, here, number, grams)
                        recorded = group.player(policy, *problem)
                        outcome = (
                            play_round(policy, group.scenario, *problem)
                            if recorded is None
                            else recorded.play(*problem)
                        )
                    else:
                        if policy.name not in group.played:
                            ahead = play_round(policy, group.scenario, *group.ahead(policy))
                            group.played[policy.name] = ahead
                        outcome = group.taken(policy, here, number, grams)
                    for place, part in zip(here, group.split(outcome, here), strict=True):
                        self._outcomes.setdefault(id(members[place]), {})[policy.name] = part
            self._genie |= {id(members[place]): group.genie(place, number) for place in here}
        delivered = [one.delivered(self._outcomes.get(id(one), {})) for one in table.comparisons]
        return table.by_model(torch.cat(delivered))


def compare_many(
    configs: Sequence[Config],
    folders: Sequence[Path],
    device: torch.device,
    tell: Tell = lambda done, doing: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[list[Row]]:
    """Compare under every config, each in a run folder of its own, all side by side.

    Finished folders are read, interrupted ones continued. Leaves what `fedfade compare` leaves,
    but for the report. `say` is told how much is done at a time, and `tell` the rounds done of
    all configs together.
    """
    places = [RunFolder(path, c, device) for path, c in zip(folders, configs, strict=True)]
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(place.open())
        finished = sum(place.config.run.rounds for place in places if place.finished)
        for batch in batches([place for place in places if not place.finished], device):
            say(batch.plan)
            batch.run(lambda done, doing, before=finished: tell(before + done, doing))  # type: ignore[misc]
            finished += sum(one.at.rounds for one in batch.comparisons)
        return [stored_rows(place) for place in places]


def batches(folders: Sequence[RunFolder], device: torch.device) -> Iterator[SideBySide]:
    """The comparisons of open folders: what can be trained in one batch, as memory allows."""
    datasets: dict[tuple[str, str | None], Dataset] = {}
    federations: dict[str, Federation] = {}
    alike: dict[tuple[object, ...], list[tuple[Comparison, RunFolder]]] = {}
    for folder in folders:
        learning, precision = folder.config.learning, folder.config.run.precision
        name = (learning.data, learning.data_dir)
        if name not in datasets:
            datasets[name] = load_data(learning).to(device)
        task = f"{learning} {precision}"
        one = Comparison(folder.config, device, datasets[name], federations.get(task))
        federations[task] = one.federation
        key = batch_key(one.federation, one.uplink.seeds)
        alike.setdefault(key, []).append((one, folder))
    limit = spare_bytes(device, _MODEL_SHARE, _MODEL_BYTES)
    for members in alike.values():
        group: list[tuple[Comparison, RunFolder]] = []
        taken = 0
        for one, folder in members:
            need = _COPIES * one.update_bytes
            if group and taken + need > limit:
                yield SideBySide(*zip(*group, strict=True))
                group, taken = [], 0
            group.append((one, folder))
            taken += need
        yield SideBySide(*zip(*group, strict=True))
