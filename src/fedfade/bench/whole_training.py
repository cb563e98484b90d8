"""QMIX at the paper's sizes with federated rounds in the loop: the whole and its parts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedfade.agents.trainer import Trainer
from fedfade.bench import seconds
from fedfade.bench.floors import slot_layers, update_layers
from fedfade.bench.stage import Figure, Stage
from fedfade.bench.train import EPISODES
from fedfade.config import Config


def training(stage: Stage) -> Iterable[Figure]:
    """30,000 episodes and 250,000 updates, projected, and where the time goes."""
    found = measured(stage, 1)
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
    one, many = measured(stage, 1), measured(stage, seeds)
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


def measured(stage: Stage, seeds: int) -> Training:
    """Of so many seeds at once; measured once."""
    if seeds not in stage.trainings:
        stage.trainings[seeds] = _train(stage, list(range(seeds)))
    return stage.trainings[seeds]


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
    trainer._next = None  # made for the batch that would have come


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
        "slot_ms": stage.milliseconds(trainer.step, 5, times=trainer.scenario.slots),
        "update_ms": stage.milliseconds(_updates(trainer), 5) / trainer._most_updates,
        "test_ms": stage.milliseconds(gradients.accuracy, 3) / qmix.evaluate_every,
    }


def _updates(trainer: Trainer) -> Callable[[], None]:
    """A batch's updates: for more than those no random numbers are drawn ahead."""
    first = trainer.updates.clone()

    def learn() -> None:
        trainer.updates.copy_(first)
        for _ in range(trainer._most_updates):
            trainer.update()

    return learn
