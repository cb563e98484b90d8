"""The figures wanted of one GPU, each beside what is wanted and the floor it stands on.

`training`      QMIX at the paper's sizes with federated rounds in the loop
`seeds`         five trainings in one program against one
`round`         a federated round
`channel`       clustered fading
`max-sum-rate`  the exact schedule
`grid`          the nine cells of the accuracy figure

On a CPU the same code runs at sizes so small that the figures mean nothing, for the tests' sake.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from fedfade.allocation import max_sum_rate
from fedfade.bench import machine, median_ms, seconds
from fedfade.bench.floors import (
    Layer,
    fading_layers,
    local_layers,
    products,
    slot_layers,
    update_layers,
)
from fedfade.bench.learning import random_images
from fedfade.bench.schedule import SNRS_DB, instances
from fedfade.bench.train import EPISODES
from fedfade.config import Config, LearningConfig, Precision, load_config
from fedfade.device import matrix_products
from fedfade.errors import not_allowed
from fedfade.experiments.comparison import Comparison, SideBySide
from fedfade.experiments.course import Reached
from fedfade.learning import Dataset, Federation, gram, load_data
from fedfade.learning.data import find_cifar10
from fedfade.qmix.run import save
from fedfade.qmix.trainer import Trainer
from fedfade.radio import Cell, Channel
from fedfade.storage import write_npz

ALPHAS, CLUSTERS = (0.5, 5, 50), (14, 21, 28)
POLICIES = ["random", "max-individual-rate", "max-sum-rate", "perfect"]
"""What the accuracy figure shows beside trained agents."""

REDUCED = [
    "learning.data=digits",
    "learning.clients=4",
    "learning.batch_size=20",
    "learning.local_work=1",
    "learning.payload_bits=400000",
    "radio.slots=12",
    "radio.subbands=2",
    "radio.clusters=4",
    "radio.subcarriers=4",
    "qmix.hidden=[16, 8]",
    "qmix.batch_size=32",
    "qmix.replay_size=500",
    "qmix.evaluate_every=2",
    "run.rounds=6",
    "run.evaluate_every=3",
]


@dataclass(frozen=True)
class Figure:
    """One measured thing.

    >>> Figure("update", "us", 200.0, floor=50.0).share_of_floor
    0.25
    >>> Figure("channel", "1/s", 5.0, wanted=4.0, floor=20.0, more=True).reached
    True
    """

    name: str
    unit: str
    measured: float
    wanted: float | None = None
    floor: float | None = None
    more: bool = False  # more is better
    note: str = ""

    @property
    def share_of_floor(self) -> float | None:
        """1 where nothing but the floor's work is done."""
        if self.floor is None:
            return None
        return self.measured / self.floor if self.more else self.floor / self.measured

    @property
    def reached(self) -> bool | None:
        """Whether it is what is wanted."""
        if self.wanted is None:
            return None
        return self.measured >= self.wanted if self.more else self.measured <= self.wanted

    def plain(self) -> dict[str, object]:
        """For JSON: to four digits, and without what there is not."""
        whole = asdict(self) | {"share_of_floor": self.share_of_floor, "reached": self.reached}
        del whole["more"]
        there = {name: value for name, value in whole.items() if value not in (None, "")}
        return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in there.items()}


class Sizes(NamedTuple):
    """How much is measured."""

    blocks: int  # of training batches
    batches: int  # in a block: one evaluation and one drawing of fading among them
    stretch: int  # calls timed together where one is too short
    repeats: int
    channel_rounds: int  # of 20 episodes
    slots: int  # of max sum rate
    grid_rounds: int  # of which one ends with a test
    many_clients: int
    epochs: int
    seeds: int
    cells: int  # along a side of the grid


FULL = Sizes(
    blocks=3,
    batches=20,
    stretch=100,
    repeats=20,
    channel_rounds=50,
    slots=10_000,
    grid_rounds=5,
    many_clients=50,
    epochs=3,
    seeds=5,
    cells=3,
)
SMALL = Sizes(
    blocks=1,
    batches=2,
    stretch=3,
    repeats=1,
    channel_rounds=2,
    slots=30,
    grid_rounds=3,
    many_clients=5,
    epochs=1,
    seeds=2,
    cells=1,
)


@dataclass
class Stage:
    """What all figures are measured on."""

    device: torch.device
    precision: Precision
    folder: Path  # for what a figure has to write down
    full: bool = True
    _trainings: dict[int, Training] = field(default_factory=dict)

    @property
    def sizes(self) -> Sizes:
        """Those of the device."""
        return FULL if self.full else SMALL

    def wanted(self, value: float) -> float | None:
        """Small sizes are not what anything is wanted of."""
        return value if self.full else None

    @cached_property
    def data(self) -> str:
        """CIFAR-10, or where it is missing noise of its shape, which is the same work."""
        if not self.full:
            return "digits"
        if find_cifar10() is not None:
            return "cifar10"
        noise = random_images(60_000)
        path = self.folder / "noise.npz"
        parts = {"images": noise.train_images[:50_000], "labels": noise.train_labels[:50_000]}
        parts |= {"test_images": noise.train_images[50_000:]}
        parts |= {"test_labels": noise.train_labels[50_000:]}
        write_npz(path, {name: part.numpy() for name, part in parts.items()})
        return str(path)

    @cached_property
    def dataset(self) -> Dataset:
        """Of the federated task."""
        return load_data(self.config().learning).to(self.device)

    def config(self, *overrides: str) -> Config:
        """The paper's, or a small one."""
        changes = [] if self.full else list(REDUCED)
        changes += [f"learning.data={json.dumps(self.data)}", f"run.precision={self.precision}"]
        return load_config("paper", [*changes, *overrides])

    def milliseconds(self, work: Callable[[], object], repeats: int = 0, times: int = 1) -> float:
        """Median time of a call."""
        return median_ms(work, repeats or self.sizes.repeats, self.device, times)

    def floor_ms(self, layers: list[Layer]) -> float:
        """Time of bare matrix products."""
        return self.milliseconds(products(layers), times=self.sizes.stretch)

    def training(self, seeds: int) -> Training:
        """Of so many seeds at once; measured once."""
        if seeds not in self._trainings:
            self._trainings[seeds] = _train(self, list(range(seeds)))
        return self._trainings[seeds]


# --- training ---------------------------------------------------------------------------------


class Training(NamedTuple):
    """Times of training; those of the parts are milliseconds a batch of episodes."""

    start_s: float  # compiling, recording, reading data: all that comes before
    batch_ms: float  # 20 episodes with their share of evaluations and of drawing ahead
    task_ms: float  # what starting a new federated task costs on top, every 100 rounds
    slot_ms: float
    update_ms: float
    slot_floor_ms: float
    update_floor_ms: float
    local_ms: float  # local training of a round
    fading_ms: float
    layout_ms: float
    test_ms: float  # a batch's share of testing the model
    batches: int
    tasks: int
    slots: int  # in a batch
    updates: float  # in a batch

    @property
    def whole_s(self) -> float:
        """The paper's training, compiled before."""
        return 1e-3 * (self.batches * self.batch_ms + (self.tasks - 1) * self.task_ms)

    @property
    def floor_ms(self) -> float:
        """Matrix products of a batch of episodes."""
        return self.slots * self.slot_floor_ms + self.updates * self.update_floor_ms

    def share(self, ms: float) -> str:
        """How much of a batch this is."""
        return f"{100 * ms / self.batch_ms:.0f} % of the time"


def _train(stage: Stage, seeds: Sequence[int]) -> Training:
    sizes, config = stage.sizes, stage.config()
    begin = time.perf_counter()
    trainer = Trainer(config, stage.device, seeds=seeds)
    for _ in range(2):
        trainer.play_batch()
    start_s = time.perf_counter() - begin
    blocks = [
        seconds(lambda: [trainer.play_batch() for _ in range(sizes.batches)], stage.device)
        for _ in range(sizes.blocks)
    ]
    batch_s = statistics.median(blocks) / sizes.batches
    batches = EPISODES // config.qmix.parallel_episodes
    task_s = _new_task_s(trainer) - batch_s
    return Training(
        start_s=max(0.0, start_s - 2 * batch_s),
        batch_ms=1e3 * batch_s,
        task_ms=max(0.0, 1e3 * task_s),
        batches=batches,
        tasks=math.ceil(batches / config.run.rounds),
        slots=config.radio.slots,
        updates=_updates_in_a_batch(config),
        slot_floor_ms=stage.floor_ms(slot_layers(trainer)),
        update_floor_ms=stage.floor_ms(update_layers(trainer)),
        **_parts(stage, trainer),
    )


def _updates_in_a_batch(config: Config) -> float:
    """250,000 in the paper's 1,500 batches."""
    return config.radio.slots * config.qmix.parallel_episodes / config.qmix.update_every


def _new_task_s(trainer: Trainer) -> float:
    """A batch of episodes that begins with another partition, other weights and places."""
    _to_new_task(trainer)
    return seconds(trainer.play_batch, trainer.scenario.device)


def _to_new_task(trainer: Trainer) -> None:
    """Jump to the batch with which the next federated task begins."""
    run, qmix = trainer.config.run, trainer.config.qmix
    trainer.batch += -trainer.batch % (
        run.rounds * run.episodes_per_round // qmix.parallel_episodes
    )


def _parts(stage: Stage, trainer: Trainer) -> dict[str, float]:
    """Milliseconds of the parts of a batch of episodes."""
    rounds, qmix = trainer.rounds, trainer.config.qmix
    sizes, gradients = stage.sizes, trainer.rounds.gradients
    _to_new_task(trainer)
    first = trainer.batch + 1

    def prepare() -> None:  # consecutive rounds: their fading is drawn ahead once
        for number in range(first, first + sizes.batches):
            rounds.round(number)

    def train_clients() -> None:
        for number in range(1, 1 + sizes.batches):
            gradients.inner(trainer.seeds, number)

    rounds.round(trainer.batch)
    prepare_ms = 1e3 * seconds(prepare, stage.device) / sizes.batches
    gradients.inner(trainer.seeds, 0)
    local_ms = 1e3 * seconds(train_clients, stage.device) / sizes.batches
    round_ = rounds.round(first + sizes.batches)

    def lay_out() -> None:
        trainer.rollout.begin(round_, 0.1, trainer.batch, trainer.replay)
        trainer.replay.draw_ahead(trainer.updates, trainer._most_updates, qmix.batch_size)

    return {
        "local_ms": local_ms,
        "fading_ms": max(0.0, prepare_ms - local_ms),
        "layout_ms": stage.milliseconds(lay_out),
        "slot_ms": stage.milliseconds(trainer.engine().step, 5, times=trainer.scenario.slots),
        "update_ms": stage.milliseconds(_updates(trainer), 5) / trainer._most_updates,
        "test_ms": stage.milliseconds(gradients.accuracy, 3) / qmix.evaluate_every,
    }


def _updates(trainer: Trainer) -> Callable[[], None]:
    """A batch's updates: for more than those no random numbers are drawn ahead."""
    first = trainer.updates.clone()

    def learn() -> None:
        trainer.updates.copy_(first)
        for _ in range(trainer._most_updates):
            trainer.engine().update()

    return learn


def training(stage: Stage) -> Iterable[Figure]:
    """30,000 episodes and 250,000 updates, projected, and where the time goes."""
    found = stage.training(1)
    floor_s = 1e-3 * found.batches * found.floor_ms
    note = "CIFAR-10" if stage.data == "cifar10" else f"data: {Path(stage.data).stem}"
    yield Figure("training", "s", found.whole_s, stage.wanted(120), floor_s, note=note)
    slots, updates = found.slots * found.slot_ms, found.updates * found.update_ms
    slot_us, update_us = 1e3 * found.slot_ms, 1e3 * found.update_ms
    slot_floor, update_floor = 1e3 * found.slot_floor_ms, 1e3 * found.update_floor_ms
    yield Figure("  slot step", "us", slot_us, floor=slot_floor, note=found.share(slots))
    yield Figure("  update", "us", update_us, floor=update_floor, note=found.share(updates))
    rest = found.batch_ms - slots - updates
    for name, ms in (
        ("local training", found.local_ms),
        ("fading", found.fading_ms),
        ("laying out a round", found.layout_ms),
        ("testing the model", found.test_ms),
    ):
        yield Figure(f"  {name}", "ms", ms, note=found.share(ms))
        rest -= ms
    yield Figure("  rest", "ms", rest, note=found.share(rest))
    yield Figure("  a new federated task", "ms", found.task_ms, note="every 100 rounds")
    yield Figure("  compiling and recording", "s", found.start_s, note="once, not in the sum")


def five_seeds(stage: Stage) -> Iterable[Figure]:
    """Several trainings in one program against one."""
    seeds = stage.sizes.seeds
    one, many = stage.training(1), stage.training(seeds)
    yield Figure(
        f"{seeds} seeds against 1",
        "x",
        many.whole_s / one.whole_s,
        stage.wanted(2),
        many.floor_ms / one.floor_ms,
        note=f"{many.whole_s:.3g} s",
    )
    for part in ("slot", "update", "local", "fading", "layout"):
        ratio = getattr(many, f"{part}_ms") / max(1e-9, getattr(one, f"{part}_ms"))
        yield Figure(f"  {part}", "x", ratio)


# --- federated rounds -------------------------------------------------------------------------


def federated_round(federation: Federation, seeds: Sequence[int]) -> Callable[[], None]:
    """Rounds in which everybody delivers, one a call."""
    state, number = federation.start(seeds), 0
    everybody = torch.ones(
        len(seeds), federation.config.clients, dtype=torch.bool, device=federation.device
    )

    def play() -> None:
        nonlocal state, number
        updates = federation.train(state, seeds, number)
        gram(updates, state.previous)
        state = federation.average(state, updates, everybody)
        number += 1

    return play


def rounds(stage: Stage) -> Iterable[Figure]:
    """Federated rounds of several sizes and precisions."""
    learning = stage.config().learning
    wanted: dict[Precision, float] = {"fp32": 5.0, "tf32": 5.0, "bf16": 3.5}
    for precision, limit in wanted.items():
        yield _round(stage, learning, precision, limit)
    many = learning.model_copy(update={"clients": stage.sizes.many_clients})
    yield _round(stage, many, stage.precision, 20.0)
    epochs = learning.model_copy(update={"local_unit": "epoch", "local_work": stage.sizes.epochs})
    yield _round(stage, epochs, stage.precision, 500.0, repeats=3)


def _round(
    stage: Stage, learning: LearningConfig, precision: Precision, wanted: float, repeats: int = 0
) -> Figure:
    forget(stage.device)
    federation = Federation(learning, stage.dataset, device=stage.device, precision=precision)
    steps = federation.mini_batches([0], 0).shape[2]
    measured = stage.milliseconds(federated_round(federation, [0]), repeats)
    sizes = (stage.dataset.shape, learning.clients, learning.batch_size)
    with matrix_products(precision):
        bare = products(local_layers(*sizes, precision, stage.device))
        floor = steps * median_ms(bare, 5, stage.device, times=3)
    work = f"{learning.local_work} {learning.local_unit}s"
    name = f"round, {learning.clients} x {work}, {precision}"
    return Figure(name, "ms", measured, stage.wanted(wanted), floor)


# --- radio and schedule -----------------------------------------------------------------------


def channel(stage: Stage) -> Iterable[Figure]:
    """Client-rounds of clustered fading a second."""
    config = stage.config()
    clients, numbers, episodes = config.learning.clients, stage.sizes.channel_rounds, 20
    trajectory = Cell(config.cell, config.radio, clients).trajectory(
        [0], numbers, device=stage.device
    )
    fading = Channel(config.radio, config.cell, clients, stage.device)
    count = clients * numbers * episodes

    def draw() -> None:
        fading.small_scale_gains([0], range(numbers), range(episodes), trajectory)

    draw_ms = stage.milliseconds(draw, repeats=5)
    block = min(count, 2000)
    with matrix_products("fp32"):  # fading is in float32 whatever learning asks for
        floor_ms = stage.milliseconds(products(fading_layers(config.radio, block, stage.device)))
    yield Figure(
        "clustered channel",
        "client-rounds/s",
        1e3 * count / draw_ms,
        stage.wanted(200_000),
        1e3 * block / floor_ms,
        more=True,
        note="floor: its matrix product, fp32",
    )


def schedule(stage: Stage) -> Iterable[Figure]:
    """Slots of exact max sum rate a second; a search, so there is no floor."""
    config = stage.config()
    clients, bands, slots = config.learning.clients, config.radio.subbands, stage.sizes.slots
    for snr_db in SNRS_DB:
        received = instances(snr_db, clients, bands, slots, stage.device)

        def solve(received: torch.Tensor = received) -> None:
            max_sum_rate(received, 1.0)

        rate = 1e3 * slots / stage.milliseconds(solve, repeats=3)
        name = f"max sum rate, {snr_db:.0f} dB"
        note = f"N={clients}, C={bands}"
        yield Figure(name, "slots/s", rate, stage.wanted(100_000), more=True, note=note)


# --- the accuracy grid ------------------------------------------------------------------------


def grid(stage: Stage) -> Iterable[Figure]:
    """Nine cells x five policies x 5 seeds x 100 rounds, projected from a few rounds of all."""
    comparisons = _cells(stage)
    start = {place: one.start() for place, one in enumerate(comparisons)}

    def play(together: SideBySide, at: dict[int, Reached], rounds: int) -> dict[int, Reached]:
        for _ in range(rounds):
            played = together.play(at, lambda doing: None)
            at = {place: one.after for place, one in played.items()}
        return at

    together = SideBySide(comparisons)
    together.train(start)  # compiles
    reached: list[dict[int, Reached]] = []
    first_s = seconds(lambda: reached.append(play(together, start, 1)), stage.device)
    count = stage.sizes.grid_rounds
    round_s = seconds(lambda: play(together, reached[0], count), stage.device) / count
    # The first round also plays many rounds ahead under policies that do not look at gradients.
    rounds = comparisons[0].config.run.rounds
    ahead = min(uploads.rounds_ahead for _, uploads in together._uploads)
    whole_s = rounds * round_s + math.ceil(rounds / ahead) * max(0.0, first_s - round_s)
    note = f"{round_s:.3g} s a round, {first_s:.3g} s to play {ahead} ahead"
    yield Figure("accuracy grid", "min", whole_s / 60, stage.wanted(10), note=note)


def _cells(stage: Stage) -> list[Comparison]:
    """The comparisons of the grid, agents among them: untrained ones act as fast as trained."""
    agents = stage.folder / "agents"
    save(Trainer(stage.config("qmix.gradients=synthetic"), stage.device), agents, [])
    common = [
        f"allocation.policies=[{', '.join(POLICIES)}]",
        f"allocation.checkpoint={json.dumps(str(agents))}",
        f"run.seeds={stage.sizes.seeds}",
    ]
    return [
        Comparison(
            stage.config(*common, f"learning.alpha={alpha}", f"radio.clusters={clusters}"),
            stage.device,
            stage.dataset,
        )
        for alpha in ALPHAS[: stage.sizes.cells]
        for clusters in CLUSTERS[: stage.sizes.cells]
    ]


# --- all of it --------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Stage], Iterable[Figure]]] = {
    "training": training,
    "seeds": five_seeds,
    "round": rounds,
    "channel": channel,
    "max-sum-rate": schedule,
    "grid": grid,
}


def chosen(only: str | None) -> list[str]:
    """The figures `--only` names.

    >>> chosen("round, grid")
    ['round', 'grid']
    """
    names = list(FIGURES) if only is None else [part.strip() for part in only.split(",")]
    for name in names:
        if name not in FIGURES:
            raise not_allowed("--only", name, f"some of {', '.join(FIGURES)}")
    return names


def measure(
    device: torch.device,
    precision: Precision = "tf32",
    only: str | None = None,
    tell: Callable[[str, list[Figure], str], None] = lambda name, figures, fault: None,
) -> dict[str, object]:
    """Every figure; one that fails says why and the others go on."""
    found: dict[str, object] = {}
    failed: dict[str, str] = {}
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, matrix_products(precision):
        stage = Stage(device, precision, Path(folder), full=device.type == "cuda")
        for name in chosen(only):
            figures: list[Figure] = []
            fault, begin = "", time.perf_counter()
            try:
                for figure in FIGURES[name](stage):
                    figures.append(figure)
            except Exception as error:  # whatever it is, the other figures are still wanted
                fault = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            took[name] = round(time.perf_counter() - begin, 1)
            found[name] = [figure.plain() for figure in figures]
            if fault:
                failed[name] = fault
            tell(name, figures, fault)
            forget(device)
        data = stage.data
    return {
        "figures": found,
        "failed": failed,
        "took_s": took,
        "device": device.type,
        "full_size": stage.full,
        "precision": precision,
        "data": data if data in ("cifar10", "digits") else "noise in the shape of CIFAR-10",
        "compiled": device.type == "cuda" and os.environ.get("FEDFADE_COMPILE") != "0",
    } | machine()


def forget(device: torch.device) -> None:
    """Leave the device's memory to what comes next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
