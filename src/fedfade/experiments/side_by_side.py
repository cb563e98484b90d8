"""Comparisons played round by round: a table of runs beside one batch of models.

A comparison of one configuration and a grid of forty are the same here. Each line of the table
is a run: which comparison, which seed, which policy, and which model of the batch it follows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade import learning
from fedfade.allocation import GENIE, PERFECT, gradient_aware, play_round
from fedfade.config import Config
from fedfade.device import matrix_products, one_thread, spare_bytes
from fedfade.experiments.comparison import Comparison, stored_rows
from fedfade.experiments.metrics import Row
from fedfade.experiments.run_folder import RunFolder
from fedfade.experiments.uploads import UploadGroup
from fedfade.interrupts import interrupts_held
from fedfade.learning import Dataset, Federation, Models, Sent, ServerState, federated_round
from fedfade.wording import counted

_MODEL_SHARE, _MODEL_BYTES = 0.3, 2**30
"""Memory for the updates of comparisons side by side: of a GPU's free memory, and on the CPU."""
_COPIES = 6  # of all updates, at the moment when most of them exist
_KEPT_COPIES = 4  # of what is kept beside the models, likewise

Tell = Callable[[int, str], None]
"""Told the rounds done and what is being done."""


class RunTable:
    """The runs of some comparisons, one after the other, and the models they follow.

    Where every upload succeeds the channel does not matter, so configurations that differ in the
    channel alone share the models of `perfect`: the batch holds each model once.
    """

    def __init__(self, comparisons: tuple[Comparison, ...]) -> None:
        self.comparisons = comparisons
        runs = [(one, *run) for one in comparisons for run in one.runs]
        names = [
            (str(one.config.learning), seed) if policy == PERFECT else run
            for run, (one, seed, policy) in enumerate(runs)
        ]  # what tells models apart
        first: dict[object, int] = {}  # a run of each model
        self._first: dict[Comparison, int] = {}  # and of each comparison
        for run, name in enumerate(names):
            first.setdefault(name, run)
            self._first.setdefault(runs[run][0], run)
        model = {name: place for place, name in enumerate(first)}
        device, chosen = comparisons[0].device, list(first.values())
        self._all_differ = len(chosen) == len(runs)
        self._chosen = torch.tensor(chosen).to(device, non_blocking=True)
        self._model = torch.tensor([model[name] for name in names])
        self._model_there = self._model.to(device, non_blocking=True)
        tasks = groupby((runs[run] for run in chosen), key=lambda run: run[0])
        self.models = Models([(one.federation, [run[1] for run in own]) for one, own in tasks])

    def __len__(self) -> int:
        return len(self._chosen)

    def own(self, one: Comparison, of_runs: Tensor, policy: str | None = None) -> Tensor:
        """The runs of one comparison, all or those of a policy."""
        first = self._first[one]
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


class _Ahead(NamedTuple):
    """A round whose slots are played before anybody is trained."""

    number: int
    inner: Tensor  # [model, client, client] not known


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
            policies, with_genie = list(members[0].policies.values()), GENIE in members[0].names
            uplinks = [one.uplink for one in members]
            self.groups.append((members, UploadGroup(uplinks, policies, with_genie)))
        self.table = cache(RunTable)  # of some comparisons: after a hard stop some may lag behind

    @property
    def plan(self) -> str:
        """How much is done at a time, in words."""
        ahead: Counter[int] = Counter()
        for _, group in self.groups:
            ahead[group.rounds_ahead] += group.episodes_a_round
        played = ", ".join(
            f"{counted(rounds, 'round')} x {counted(seeds, 'seed')}"
            for rounds, seeds in ahead.items()
        )
        models = len(self.table(tuple(self.comparisons)))
        return f"playing {played} at a time; {counted(models, 'model')} trained side by side"

    def behind(self) -> list[Comparison]:
        """Those with the fewest rounds among the unfinished."""
        left = [one for one in self.comparisons if one.at.rounds < one.config.run.rounds]
        least = min((one.at.rounds for one in left), default=0)
        return [one for one in left if one.at.rounds == least]

    def run(self, tell: Tell) -> None:
        """All rounds of all, each from wherever its folder's checkpoint left off."""
        pairs = list(zip(self.comparisons, self.folders, strict=True))
        for one, folder in pairs:
            one.resume(folder)

        def tell_all(doing: str) -> None:
            tell(sum(one.at.rounds for one in self.comparisons), doing)

        stopped = False
        try:
            while these := self.behind():
                self.play(these, tell_all)
                for one, folder in pairs:
                    one.save_if_due(folder)
        except KeyboardInterrupt:
            if self.behind():
                for one, folder in pairs:
                    one.save(folder)
                raise
            stopped = True  # too late for these, though not for what the caller has left
        with interrupts_held() as asked:
            for one, folder in pairs:
                one.finish(folder)
        tell_all("done")
        if stopped or asked():
            raise KeyboardInterrupt

    def play(self, these: Sequence[Comparison], tell: Callable[[str], None]) -> None:
        """The next round of some comparisons, which have all played as many."""
        table, number = self.table(tuple(these)), these[0].at.rounds
        states = [one.at.state.tensors() for one in these]
        both = {name: torch.cat([state[name] for state in states]) for name in states[0]}
        before = ServerState.of(both).each(table.by_model)
        due = any(one.evaluates(number) for one in these)
        with matrix_products(these[0].config.run.precision):
            unknown = ahead = None
            deliver = partial(self.deliver, table)
            if not these[0].config.run.train_absent:
                clients = these[0].config.learning.clients
                unknown = before.parameters.new_full((len(table), clients, clients), torch.nan)
                ahead = deliver(_Ahead(number, unknown))
            done = federated_round(table.models, before, number, deliver, due, tell, ahead)
            measured = {
                "inner": done.sent.inner if unknown is None else unknown,
                "delivered": done.arrived,
                "finite": done.received.finite,
                "bias": done.bias if unknown is None else unknown[:, 0, 0],
                "train_loss": done.sent.updates.loss.nanmean(-1),
                "accuracy": done.accuracy,
                "loss": done.loss,
                "accuracy_averaged": done.accuracy_averaged,
            }
        measured = {name: table.by_run(value.cpu()) for name, value in measured.items()}
        after = done.after.each(table.by_run)
        for one in these:
            own = {name: table.own(one, value) for name, value in measured.items()}
            one.add(after.each(partial(table.own, one)), own.pop("inner"), own)

    def deliver(self, table: RunTable, sent: Sent | _Ahead) -> Tensor:
        """Play the slots of a round under every policy: who delivered, by model."""
        number, inner = sent.number, table.by_run(sent.inner)
        for members, group in self.groups:
            here = [place for place, one in enumerate(members) if one in table.comparisons]
            if not here:
                continue
            with one_thread():
                group.draw_ahead(number)
                for policy in group.policies:
                    name = policy.name
                    grams = torch.cat([table.own(members[m], inner, name) for m in here])
                    if gradient_aware(policy):
                        at = [members[m].at.ages[members[m].of_policy(name)] for m in here]
                        problem = group.now(policy, here, number, grams, torch.cat(at))
                        outcome = group.player(policy, *problem)(*problem)
                    else:
                        if name not in group.played:
                            ahead = play_round(policy, group.scenario, *group.ahead(policy))
                            group.played[name] = ahead
                        outcome = group.taken(policy, here, number, grams)
                    for place, part in zip(here, group.split(outcome, here), strict=True):
                        members[place].outcomes[name] = part
            for place in here:
                members[place].genie = group.genie(place, number)
        return table.by_model(torch.cat([one.delivered() for one in table.comparisons]))


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
        run_missing(places, device, tell, say)
        return [stored_rows(place) for place in places]


def run_missing(
    folders: Sequence[RunFolder], device: torch.device, tell: Tell, say: Callable[[str], None]
) -> None:
    """Run what is not finished in open folders; `tell` counts the rounds of all of them."""
    done = sum(folder.config.run.rounds for folder in folders if folder.finished)
    for batch in batches([folder for folder in folders if not folder.finished], device):
        say(batch.plan)
        batch.run(lambda rounds, doing, before=done: tell(before + rounds, doing))  # type: ignore[misc]
        done += sum(one.at.rounds for one in batch.comparisons)


def batches(folders: Sequence[RunFolder], device: torch.device) -> Iterator[SideBySide]:
    """The comparisons of open folders: what can be trained in one batch, as memory allows."""
    datasets: dict[tuple[str, str | None], Dataset] = {}
    federations: dict[str, Federation] = {}
    first: dict[tuple[object, ...], Federation] = {}  # whose engine, once compiled, serves others
    alike: dict[tuple[object, ...], list[tuple[Comparison, RunFolder]]] = {}
    for folder in folders:
        task, precision = folder.config.learning, folder.config.run.precision
        name, known = (task.data, task.data_dir), f"{task} {precision}"
        if name not in datasets:
            datasets[name] = learning.load_data(task).to(device)
        if known not in federations:
            like = first.get(model := (task.model, name, precision))
            dealt = Federation(
                *(task, datasets[name]),
                device=device,
                precision=precision,
                engine=like.engine if like else "auto",
            )
            federations[known] = dealt
            first.setdefault(model, dealt)
        one = Comparison(folder.config, device, federations[known])
        key = learning.batch_key(one.federation, one.uplink.seeds)
        key = (folder.config.run.train_absent, *key)
        alike.setdefault(key, []).append((one, folder))
    limit = spare_bytes(device, _MODEL_SHARE, _MODEL_BYTES)
    for members in alike.values():
        while members:
            sizes = ((one.update_bytes, one.memory_bytes) for one, _ in members)
            needs = accumulate(_COPIES * sent + _KEPT_COPIES * kept for sent, kept in sizes)
            count = max(1, sum(need <= limit for need in needs))
            yield SideBySide(*zip(*members[:count], strict=True))
            del members[:count]
