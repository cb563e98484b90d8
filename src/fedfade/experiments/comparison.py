"""Which allocation policy gives the best model? One round after another, every policy.

Runs are seeds x policies. Runs of one seed share everything but the policy: the walk of the
clients, the fading, the partition, the first weights and the mini-batches. What differs in the
end is what the policy did.

Comparisons of several configurations go side by side: one batch of models, one of episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.agents import (
    load_policy_checkpoint,
    load_shipped_policy,
    shipped_policies,
    trained_agents,
)
from fedfade.allocation import GENIE, PERFECT, Outcome, Policy, load_policy
from fedfade.config import Config
from fedfade.device import matrix_products, one_thread, spare_bytes
from fedfade.errors import UserError
from fedfade.experiments.course import Course, Played, Reached
from fedfade.experiments.metrics import Row, check_complete, jain, read_rows
from fedfade.experiments.run_folder import RunFolder, digest
from fedfade.experiments.uploads import Uplink, Uploads
from fedfade.learning import (
    Dataset,
    Federation,
    ServerState,
    Updates,
    batch_key,
    by_run,
    gram,
    join,
    load_data,
    part,
    train_together,
)

_MODEL_SHARE, _MODEL_BYTES = 0.3, 2**30
"""Memory for the updates of comparisons side by side: of a GPU's free memory, and on the CPU."""
_COPIES = 6  # of all updates, at the moment when most of them exist

Progress = Callable[[int, str], None]
"""Told the rounds done and what is being done."""


@dataclass
class _Runs:
    """The order of runs: all policies of the first seed, then of the second, ..."""

    seeds: list[int]
    policies: list[str]

    @property
    def seed_of_run(self) -> list[int]:
        return [seed for seed in self.seeds for _ in self.policies]

    @property
    def pairs(self) -> list[tuple[int, str]]:
        """Seed and policy of every run."""
        return [(seed, policy) for seed in self.seeds for policy in self.policies]

    def of_policy(self, policy: str) -> slice:
        """Rows of a policy, one per seed."""
        return slice(self.policies.index(policy), None, len(self.policies))


class Measured(NamedTuple):
    """What tables want to know of a round, on the CPU."""

    inner: Tensor  # [run, client, client]
    delivered: Tensor  # [run, client]
    finite: Tensor  # [run, client]
    bias: Tensor  # [run]
    train_loss: Tensor  # [run]
    accuracy: Tensor  # [run], NaN in rounds that are not evaluated
    loss: Tensor  # [run], likewise


QMIX = "qmix"


def compared_names(config: Config) -> list[str]:
    """The policies of a comparison; trained agents join when a checkpoint is given."""
    trained = list(trained_agents(config))
    names: list[str] = []
    for name in config.allocation.policies:
        names += trained if name == QMIX and trained else [name]
    return list(dict.fromkeys([*names, *trained]))


def compared_policy(config: Config, name: str) -> Policy:
    """A policy of a comparison, going by what the user typed, so that the run folder names it."""
    if (folder := trained_agents(config).get(name)) is not None:
        policy = load_policy_checkpoint(folder, config)
    elif name in shipped_policies():
        policy = load_shipped_policy(name, config)
    else:
        policy = load_policy(name, shipped_policies())
    policy.name = name
    return policy


class Comparison:
    """`fedfade compare`: all policies on the same channel and the same mini-batches."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        dataset: Dataset | None = None,
        federation: Federation | None = None,
    ) -> None:
        """`dataset` and `federation`: what others have loaded and made already."""
        self.config = config
        self.device = device
        names = compared_names(config)
        sending = [name for name in names if name not in (PERFECT, GENIE)]
        self.policies = {name: compared_policy(config, name) for name in sending}
        learned = [name for name in names if name != GENIE]
        if not learned:
            raise UserError("allocation.policies = ['genie'] is not allowed: it needs a policy.")
        self.with_genie = GENIE in names
        self.federation = federation or Federation(
            config.learning,
            load_data(config.learning) if dataset is None else dataset,
            device=device,
            precision=config.run.precision,
        )
        self.uplink = Uplink(config, self.federation.payload_bits, device)
        self.runs = _Runs(self.uplink.seeds, learned)
        self.reached: Reached | None = None
        """Where the last run ended."""
        self._alone: SideBySide | None = None

    @property
    def all_policies(self) -> list[str]:
        """Policies with rows in the metrics, the genie among them."""
        return [*self.runs.policies, *([GENIE] if self.with_genie else [])]

    @property
    def update_bytes(self) -> int:
        """Memory of what all clients of all runs send in a round."""
        runs, clients = len(self.runs.seed_of_run), self.config.learning.clients
        return 4 * runs * clients * self.federation.values_sent

    @property
    def alone(self) -> SideBySide:
        """This comparison with none beside it."""
        if self._alone is None:
            self._alone = SideBySide([self])
        return self._alone

    def run(self, folder: RunFolder, progress: Progress) -> list[Row]:
        """All rounds, from wherever the folder's checkpoint left off."""
        return self.alone.run([folder], progress)[0]

    def play(self, at: Reached, progress: Progress) -> Played:
        """One round of all runs."""
        return self.alone.play({0: at}, lambda doing: progress(at.rounds, doing))[0]

    def start(self) -> Reached:
        """Before the first round."""
        runs, clients = len(self.runs.seed_of_run), self.config.learning.clients
        state = self.federation.start(self.runs.seed_of_run)
        return Reached(0, state, torch.zeros(runs, clients, dtype=torch.int64))

    def facts(self) -> dict[str, object]:
        """What a finished run notes about itself: scopes, and a digest of every final model."""
        assert self.reached is not None
        state = self.reached.state
        names = self.runs.policies * len(self.runs.seeds)
        models = {
            f"{name}, seed {seed}": digest(
                {"parameters": state.parameters[run], "buffers": state.buffers[run]}
            )
            for run, (name, seed) in enumerate(zip(names, self.runs.seed_of_run, strict=True))
        }
        return {"scopes": {p.name: p.scope for p in self.policies.values()}, "models": models}

    # --- one round -----------------------------------------------------------------------------

    def delivered(self, outcomes: dict[str, Outcome]) -> Tensor:
        """Whose update arrived: [run, client]."""
        shape = (len(self.runs.seed_of_run), self.config.learning.clients)
        delivered = torch.zeros(shape, dtype=torch.bool, device=self.device)
        if PERFECT in self.runs.policies:
            delivered[self.runs.of_policy(PERFECT)] = True
        for name, outcome in outcomes.items():
            delivered[self.runs.of_policy(name)] = outcome.delivered
        return delivered

    def evaluates(self, number: int) -> bool:
        """Whether the models are tested after a round."""
        return (number + 1) % self.config.run.evaluate_every == 0 or (
            number == self.config.run.rounds - 1
        )

    def account(
        self,
        before: Reached,
        state: ServerState,
        outcomes: dict[str, Outcome],
        genie: Tensor | None,
        measured: Measured,
    ) -> Played:
        """Rows of a round, and where it leads."""
        uploads = before.uploads + measured.delivered
        if not self.evaluates(before.rounds):  # though one beside it is
            blank = torch.full_like(measured.loss, math.nan)
            measured = measured._replace(accuracy=blank, loss=blank)
        rows = self._rows(before.rounds, outcomes, measured, uploads)
        if genie is not None:
            rows += self._genie_rows(before.rounds, genie)
        return Played(Reached(before.rounds + 1, state, uploads), rows, measured.inner)

    def _rows(
        self, number: int, outcomes: dict[str, Outcome], measured: Measured, uploads: Tensor
    ) -> list[Row]:
        payload = self.uplink.scenario.payload_bits
        rows = []
        for run, seed in enumerate(self.runs.seed_of_run):
            place, policy = divmod(run, len(self.runs.policies))
            name = self.runs.policies[policy]
            members = measured.delivered[run].nonzero().flatten().tolist()
            bad = (~measured.finite[run]).nonzero().flatten().tolist()
            sent = outcomes.get(name)
            bits = payload * len(members) if sent is None else float(sent.bits[place].sum())
            rows.append(
                Row(
                    seed=seed,
                    policy=name,
                    round=number,
                    accuracy=float(measured.accuracy[run]),
                    loss=float(measured.loss[run]),
                    train_loss=float(measured.train_loss[run]),
                    delivered=float(len(members)),
                    delivered_clients=" ".join(map(str, members)),
                    bits_sent=bits,
                    bits_wasted=max(0.0, bits - payload * len(members)),
                    sum_rate_bps=math.nan if sent is None else float(sent.sum_rate_bps[place]),
                    gradient_bias=float(measured.bias[run]),
                    fairness=jain(uploads[run].numpy().astype(float)),
                    reward=math.nan if sent is None else float(sent.reward[place]),
                    not_finite=len(bad),
                    not_finite_clients=" ".join(map(str, bad)),
                )
            )
        return rows

    def _genie_rows(self, number: int, bounds: Tensor) -> list[Row]:
        blank = dict.fromkeys(Row._fields, math.nan)
        return [
            Row(
                **blank  # type: ignore[arg-type]
                | {"seed": seed, "policy": GENIE, "round": number, "delivered": bound}
                | {"delivered_clients": "", "not_finite": 0, "not_finite_clients": ""}
            )
            for seed, bound in zip(self.runs.seeds, bounds.tolist(), strict=True)
        ]


def gradient_bias(updates: Updates, delivered: Tensor) -> Tensor:
    """|mean of all g_n - mean of the delivered g_n|^2, eq. (25)'s second term: [run].

    Nobody delivered means an aggregate of zero, so the bias is the whole mean's squared norm.
    """
    count = delivered.sum(-1, keepdim=True).clamp(min=1)
    finite = updates.finite
    share = finite / finite.sum(-1, keepdim=True).clamp(min=1) - delivered / count

    def square(share: Tensor, sent: Tensor, finite: Tensor) -> Tensor:
        sent = torch.where(finite[..., None], sent, 0.0)
        return torch.einsum("rn,rnd->rd", share, sent).square().sum(-1)

    return by_run(square, share, updates.parameters, finite)


# --- side by side ------------------------------------------------------------------------------


class _Models:
    """The models of comparisons, without those that would be trained twice.

    Where every upload succeeds the channel does not matter, so configurations that differ in the
    channel alone share the models of `perfect`.
    """

    def __init__(self, comparisons: Sequence[Comparison], device: torch.device) -> None:
        known: dict[object, int] = {}  # models by what tells them apart
        chosen: list[int] = []  # a run of each model
        model: list[int] = []  # of each run
        self._tasks: list[tuple[Federation, list[int]]] = []  # with the seeds of their models
        for one in comparisons:
            seeds = []
            for seed, policy in one.runs.pairs:
                run = len(model)
                name = (str(one.config.learning), seed) if policy == PERFECT else run
                if name not in known:
                    known[name] = len(chosen)
                    chosen.append(run)
                    seeds.append(seed)
                model.append(known[name])
            if seeds:
                self._tasks.append((one.federation, seeds))
        self._all_differ = len(chosen) == len(model)
        self._model = torch.tensor(model)
        self._chosen = torch.tensor(chosen).to(device, non_blocking=True)
        self._model_there = self._model.to(device, non_blocking=True)

    def __len__(self) -> int:
        return len(self._chosen)

    def of(self, state: ServerState) -> ServerState:
        """From runs to models."""
        return state if self._all_differ else part(state, self._chosen)

    def of_each(self, value: Tensor) -> Tensor:
        """From runs to models."""
        return value if self._all_differ else value[self._chosen]

    def for_all(self, value: Tensor) -> Tensor:
        """From models to runs."""
        if self._all_differ:
            return value
        return value[self._model if value.device.type == "cpu" else self._model_there]

    def train(self, state: ServerState, round: int) -> Updates:
        """Every client's update of every model."""
        federations, seeds = zip(*self._tasks, strict=True)
        return train_together(federations, [state], seeds, round)


class SideBySide:
    """Comparisons that share a model: their runs are one batch, their episodes another."""

    def __init__(self, comparisons: Sequence[Comparison]) -> None:
        self.comparisons = comparisons
        groups: dict[str, list[int]] = {}
        for member, one in enumerate(comparisons):
            alike = f"{one.uplink.scenario_key} {one.config.allocation}"
            groups.setdefault(alike, []).append(member)
        self._uploads = [(members, self._uploads_of(members)) for members in groups.values()]

    def _uploads_of(self, members: Sequence[int]) -> Uploads:
        these = [self.comparisons[member] for member in members]
        uplinks = [one.uplink for one in these]
        return Uploads(uplinks, list(these[0].policies.values()), these[0].with_genie)

    @property
    def plan(self) -> str:
        """How much is done at a time, in words."""
        ahead: dict[int, int] = {}
        for _, uploads in self._uploads:
            ahead.setdefault(uploads.rounds_ahead, 0)
            ahead[uploads.rounds_ahead] += uploads.episodes_a_round
        played = ", ".join(f"{rounds} rounds x {seeds} seeds" for rounds, seeds in ahead.items())
        models = len(_Models(self.comparisons, torch.device("cpu")))
        return f"playing {played} at a time; {models} models trained side by side"

    def run(self, folders: Sequence[RunFolder], progress: Progress) -> list[list[Row]]:
        """All rounds of all, each from wherever its folder's checkpoint left off."""
        courses = [Course(*pair) for pair in zip(self.comparisons, folders, strict=True)]

        def tell(doing: str) -> None:
            progress(sum(course.at.rounds for course in courses), doing)

        try:
            while behind := _furthest_behind(courses):
                played = self.play({member: courses[member].at for member in behind}, tell)
                for member, new in played.items():
                    courses[member].add(new)
                for course in courses:
                    course.save_if_due()
        except KeyboardInterrupt:
            for course in courses:
                course.save()
            raise
        for course in courses:
            course.finish()
        tell("done")
        return [course.rows for course in courses]

    def train(self, at: Mapping[int, Reached]) -> tuple[_Models, ServerState, Updates]:
        """Local training in the next round: the models, where they are, what their clients send."""
        models = _Models([self.comparisons[m] for m in at], self.comparisons[0].device)
        before = models.of(join([reached.state for reached in at.values()]))
        with matrix_products(self.comparisons[0].config.run.precision):
            return models, before, models.train(before, next(iter(at.values())).rounds)

    def play(self, at: Mapping[int, Reached], tell: Callable[[str], None]) -> dict[int, Played]:
        """The next round of some comparisons, which have all played as many."""
        these = {member: self.comparisons[member] for member in at}
        number = next(iter(at.values())).rounds
        sizes = [len(one.runs.seed_of_run) for one in these.values()]
        runs = dict(zip(these, _one_after_another(sizes), strict=True))
        lead = self.comparisons[0].federation
        tell("local training")
        models, before, updates = self.train(at)
        with matrix_products(self.comparisons[0].config.run.precision):
            inner, _ = gram(updates, before.previous)
            tell("uploads")
            every = models.for_all(inner)
            with one_thread():
                outcomes, genie = self._play_slots(number, {m: every[runs[m]] for m in these})
            arrived = torch.cat([one.delivered(outcomes[m]) for m, one in these.items()])
            delivered = models.of_each(arrived) & updates.finite
            after = lead.average(before, updates, delivered)
            tell("evaluation")
            due = any(one.evaluates(number) for one in these.values())
            loss = updates.loss.nanmean(-1)
            tested = lead.evaluate(after) if due else (loss, loss)
            bias = gradient_bias(updates, delivered)
            measured = Measured(inner, delivered, updates.finite, bias, loss, *tested)
        measured = Measured(*(models.for_all(value.cpu()) for value in measured))
        states = ServerState(**{n: models.for_all(value) for n, value in vars(after).items()})
        return {
            m: one.account(
                at[m],
                part(states, runs[m]),
                outcomes[m],
                genie.get(m),
                Measured(*(value[runs[m]] for value in measured)),
            )
            for m, one in these.items()
        }

    def _play_slots(
        self, number: int, inner: Mapping[int, Tensor]
    ) -> tuple[dict[int, dict[str, Outcome]], dict[int, Tensor]]:
        """The round under every policy that sends; Gram matrices [run, client, client]."""
        outcomes: dict[int, dict[str, Outcome]] = {}
        genie = {}
        for members, uploads in self._uploads:
            own = {
                place: {
                    name: inner[m][self.comparisons[m].runs.of_policy(name)]
                    for name in self.comparisons[m].policies
                }
                for place, m in enumerate(members)
                if m in inner
            }
            if not own:
                continue
            for place, answer in uploads.outcomes(number, own).items():
                outcomes[members[place]] = answer
                if uploads.with_genie:
                    genie[members[place]] = uploads.genie(number, place)
        return outcomes, genie


def _one_after_another(sizes: Iterable[int]) -> Iterator[slice]:
    first = 0
    for size in sizes:
        yield slice(first, first + size)
        first += size


def _furthest_behind(courses: Sequence[Course]) -> list[int]:
    """Those with the fewest rounds among the unfinished: after a hard stop some may lag."""
    left = [member for member, course in enumerate(courses) if course.at.rounds < course.rounds]
    least = min((courses[member].at.rounds for member in left), default=0)
    return [member for member in left if courses[member].at.rounds == least]


def compare_many(
    configs: Sequence[Config],
    folders: Sequence[Path],
    device: torch.device,
    progress: Progress = lambda done, doing: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[list[Row]]:
    """Compare under every config, each in a run folder of its own, all side by side.

    What can be trained in one batch is, as memory allows; `say` is told how much that is, and
    `progress` the rounds done of all configs together. Finished folders are read, interrupted
    ones continued. Leaves what `fedfade compare` leaves, but for the report.
    """
    places = [RunFolder(path, c, device) for path, c in zip(folders, configs, strict=True)]
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(place.open())
        waiting = [place for place in places if not place.finished]
        done = sum(place.config.run.rounds for place in places if place.finished)
        for group in _groups(waiting, device):
            together = SideBySide([comparison for comparison, _ in group])
            say(together.plan)
            together.run(
                [place for _, place in group],
                lambda rounds, doing, before=done: progress(before + rounds, doing),  # type: ignore[misc]
            )
            for comparison, place in group:
                place.finish(**comparison.facts())
                done += place.config.run.rounds
        return [stored_rows(place) for place in places]


def _groups(
    places: Sequence[RunFolder], device: torch.device
) -> Iterator[list[tuple[Comparison, RunFolder]]]:
    """Comparisons that can be trained in one batch, as many as fit the memory set aside."""
    datasets: dict[tuple[str, str | None], Dataset] = {}
    federations: dict[str, Federation] = {}
    alike: dict[tuple[object, ...], list[tuple[Comparison, RunFolder]]] = {}
    for place in places:
        learning, precision = place.config.learning, place.config.run.precision
        name = (learning.data, learning.data_dir)
        if name not in datasets:
            datasets[name] = load_data(learning).to(device)
        task = f"{learning} {precision}"
        known = federations.get(task)
        one = Comparison(place.config, device, datasets[name], known)
        federations[task] = one.federation
        key = batch_key(one.federation, one.runs.seeds)
        alike.setdefault(key, []).append((one, place))
    for members in alike.values():
        limit = spare_bytes(device, _MODEL_SHARE, _MODEL_BYTES)
        group: list[tuple[Comparison, RunFolder]] = []
        taken = 0
        for one, place in members:
            need = _COPIES * one.update_bytes
            if group and taken + need > limit:
                yield group
                group, taken = [], 0
            group.append((one, place))
            taken += need
        yield group


def stored_rows(place: RunFolder) -> list[Row]:
    """The rows of a finished run; refused unless all are there."""
    rows = read_rows(place.metrics)
    names = compared_names(place.config)
    check_complete(rows, place.metrics, names, place.config, place.config.run.rounds)
    return rows
