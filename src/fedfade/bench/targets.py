"""The figures wanted of one GPU, each beside what is wanted and the floor it stands on. On a CPU
the same code runs at sizes so small that the figures mean nothing, for the tests' sake."""

import json
import math
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import count
from pathlib import Path
from timeit import timeit
from typing import Any, NamedTuple

import torch

from fedfade.agents import Trainer
from fedfade.agents.run import save
from fedfade.allocation import max_sum_rate
from fedfade.bench.federated_round import one_after_another
from fedfade.bench.floors import fading_layers, local_layers, products, slot_layers, update_layers
from fedfade.bench.qmix_speed import EPISODES
from fedfade.bench.slot_speed import SNRS_DB, instances
from fedfade.bench.stage import Measurement, Stage, forget, sentence, updates
from fedfade.bench.timing import Figures, median_ms, seconds, wall_clock
from fedfade.config import Config, LearningConfig, Precision
from fedfade.device import matrix_products
from fedfade.errors import not_allowed
from fedfade.experiments import Comparison, SideBySide
from fedfade.graphs import compiled_on
from fedfade.learning import Federation, send
from fedfade.radio import Cell, Channel

ALPHAS, CLUSTERS = (0.5, 5, 50), (14, 21, 28)
POLICIES = ["random", "max-individual-rate", "max-sum-rate", "perfect"]
"""What the accuracy figure shows beside trained agents."""
PARTS = {
    "slot": "slot step",
    "local": "local training",
    "layout": "laying out a round",
    "test": "testing the model",
}
"""Parts of a batch of episodes whose names in the table are longer."""


class Training(NamedTuple):
    """Milliseconds of training."""

    start: float  # compiling, recording, reading data: all that comes before
    batch: float  # 20 episodes with their share of evaluations and of drawing ahead
    task: float  # what starting a new federated task costs on top, every 100 rounds
    parts: dict[str, float]  # one call of each
    floors: dict[str, float]  # the bare matrix products of a call
    calls: dict[str, float]  # in a batch, where not one
    batches: int
    tasks: int

    @property
    def whole_s(self) -> float:
        """The paper's training, compiled before."""
        return 1e-3 * (self.batches * self.batch + (self.tasks - 1) * self.task)

    @property
    def floor(self) -> float:
        """Matrix products of a batch of episodes."""
        return sum(self.calls[part] * floor for part, floor in self.floors.items())


def training(stage: Stage) -> Iterable[Measurement]:
    """30,000 episodes and 250,000 updates, projected, and where the time goes."""
    found = measured(stage, 1)
    floor_s = 1e-3 * found.batches * found.floor
    note = "CIFAR-10" if stage.data == "cifar10" else f"data: {Path(stage.data).stem}"
    yield Measurement("training", "s", found.whole_s, stage.size(80, None), floor_s, note=note)
    in_batch = {part: found.calls.get(part, 1) * ms for part, ms in found.parts.items()}
    in_batch["rest"] = found.batch - sum(in_batch.values())
    for part, ms in in_batch.items():
        name, share = f"  {PARTS.get(part, part)}", f"{100 * ms / found.batch:.0f} % of the time"
        if part in found.floors:
            call_us, floor_us = 1e3 * found.parts[part], 1e3 * found.floors[part]
            yield Measurement(name, "us", call_us, floor=floor_us, note=share)
        else:
            yield Measurement(name, "ms", ms, note=share)
    yield Measurement("  a new federated task", "ms", found.task, note="every 100 rounds")
    start_s = 1e-3 * found.start
    yield Measurement("  compiling and recording", "s", start_s, note="once, not in the sum")


def five_seeds(stage: Stage) -> Iterable[Measurement]:
    """Several trainings in one program against one."""
    seeds = stage.size(5, 2)
    one, many = measured(stage, 1), measured(stage, seeds)
    ratio, floor, note = many.whole_s / one.whole_s, many.floor / one.floor, f"{many.whole_s:.3g} s"
    yield Measurement(
        f"{seeds} seeds against 1", "x", ratio, stage.size(1.9, None), floor, note=note
    )
    for part in ("slot", "update", "local", "fading", "layout"):
        yield Measurement(f"  {part}", "x", many.parts[part] / max(1e-9, one.parts[part]))


@cache
def measured(stage: Stage, seeds: int) -> Training:
    """Of so many seeds at once."""
    config, begin = stage.config(), wall_clock()
    trainer = Trainer(config, stage.device, seeds=list(range(seeds)))
    trainer.play_batch()
    trainer.play_batch()
    start = 1e3 * (wall_clock() - begin)
    batch = median_ms(trainer.play_batch, stage.size(3, 1), calls=stage.size(20, 2))
    _to_new_task(trainer)  # other partitions, weights and places
    task = 1e3 * seconds(trainer.play_batch) - batch
    batches = EPISODES // config.qmix.parallel_episodes
    layers = {"slot": slot_layers(trainer), "update": update_layers(trainer)}
    bare = {part: products(some, stage.device) for part, some in layers.items()}
    stretch = stage.size(100, 3)  # one call is too short
    return Training(
        start=max(0.0, start - 2 * batch),
        batch=batch,
        task=max(0.0, task),
        parts=_parts(stage, trainer),
        floors={part: stage.milliseconds(call, calls=stretch) for part, call in bare.items()},
        calls={"slot": config.radio.slots, "update": updates_in_a_batch(config)},
        batches=batches,
        tasks=math.ceil(batches / config.run.rounds),
    )


def updates_in_a_batch(config: Config) -> float:
    """250,000 in the paper's 1,500 batches."""
    return config.radio.slots * config.qmix.parallel_episodes / config.qmix.update_every


def _to_new_task(trainer: Trainer) -> None:
    """Jump to the batch with which the next federated task begins."""
    run, qmix = trainer.config.run, trainer.config.qmix
    every = run.rounds * run.episodes_per_round // qmix.parallel_episodes
    trainer.batch += -trainer.batch % every
    trainer._next = None  # made for the batch that would have come


def _parts(stage: Stage, trainer: Trainer) -> dict[str, float]:
    """Milliseconds of the parts of a batch of episodes."""
    rounds, qmix = trainer.rounds, trainer.config.qmix
    gradients = rounds.groups[0].gradients
    most, batches = trainer._most_updates, stage.size(20, 2)
    _to_new_task(trainer)
    numbers, local_numbers = count(trainer.batch), count()
    # Consecutive rounds: their fading is drawn ahead once.
    prepare = stage.milliseconds(lambda: rounds.round(next(numbers)), 1, calls=batches)
    train = partial(gradients.inner, trainer.seeds)
    local = stage.milliseconds(lambda: train(next(local_numbers)), 1, calls=batches)
    coming = rounds.round(next(numbers))

    def lay_out() -> None:
        trainer.rollout.begin(coming, 0.1, trainer.batch, trainer.replay)
        trainer.replay.draw_ahead(trainer.learner.updates, most, qmix.batch_size)

    layout = stage.milliseconds(lay_out)
    return {
        "slot": stage.milliseconds(trainer.step, 5, calls=trainer.scenario.slots),
        "update": stage.milliseconds(updates(trainer, most), 5) / most,
        "local": local,
        "fading": max(0.0, prepare - local),
        "layout": layout,
        "test": stage.milliseconds(gradients.accuracy, 3) / qmix.evaluate_every,
    }


def rounds(stage: Stage) -> Iterable[Measurement]:
    """Federated rounds of several sizes and precisions."""
    learning, usual = stage.config().learning, stage.precision
    wanted: dict[Precision, float] = {"fp32": 5.0, "tf32": 4.0, "bf16": 3.5}
    for precision, limit in wanted.items():
        yield _round(stage, learning, precision, limit)
    many = learning.model_copy(update={"clients": stage.size(50, 5)})
    yield _round(stage, many, usual, 20.0)
    epochs = {"local_unit": "epoch", "local_work": stage.size(3, 1)}
    yield _round(stage, learning.model_copy(update=epochs), usual, 500.0, repeats=3)


def _round(
    stage: Stage, learning: LearningConfig, precision: Precision, wanted: float, repeats: int = 0
) -> Measurement:
    forget()
    federation = Federation(learning, stage.dataset, device=stage.device, precision=precision)
    steps = federation.mini_batches([0], 0).shape[2]
    spent = stage.milliseconds(one_after_another(federation, [0]), repeats)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = local_layers(stage.dataset.shape, learning.clients, learning.batch_size, dtype)
    with matrix_products(precision):
        floor = steps * stage.milliseconds(products(layers, stage.device, dtype), 5, calls=3)
    work = f"{learning.local_work} {learning.local_unit}s"
    name = f"round, {learning.clients} x {work}, {precision}"
    return Measurement(name, "ms", spent, stage.size(wanted, None), floor)


def channel(stage: Stage) -> Iterable[Measurement]:
    """Client-rounds of clustered fading a second."""
    config, device = stage.config(), stage.device
    clients, numbers, episodes = config.learning.clients, range(stage.size(50, 2)), range(20)
    cell = Cell(config.cell, config.radio, clients)
    walk = cell.trajectory([0], len(numbers), device=device)
    fading = Channel(config.radio, config.cell, clients, device)
    draw = partial(fading.small_scale_gains, [0], numbers, episodes, walk)
    client_rounds = clients * len(numbers) * len(episodes)
    rate = 1e3 * client_rounds / stage.milliseconds(draw, repeats=5)
    block = min(client_rounds, 2000)
    with matrix_products("fp32"):  # fading is in float32 whatever learning asks for
        bare = products(fading_layers(config.radio, block), device)
        floor = 1e3 * block / stage.milliseconds(bare)
    wanted, note = stage.size(200_000, None), "floor: its matrix product, fp32"
    yield Measurement(
        "clustered channel", "client-rounds/s", rate, wanted, floor, more=True, note=note
    )


def schedule(stage: Stage) -> Iterable[Measurement]:
    """Slots of exact max sum rate a second; a search, so there is no floor."""
    config, slots = stage.config(), stage.size(10_000, 30)
    clients, bands = config.learning.clients, config.radio.subbands
    for snr_db in SNRS_DB:
        received = instances(snr_db, clients, bands, slots, stage.device)
        rate = 1e3 * slots / stage.milliseconds(partial(max_sum_rate, received, 1.0), repeats=3)
        name, note = f"max sum rate, {snr_db:.0f} dB", f"N={clients}, C={bands}"
        yield Measurement(name, "slots/s", rate, stage.size(100_000, None), more=True, note=note)


def grid(stage: Stage) -> Iterable[Measurement]:
    """Nine cells x five policies x 5 seeds x 100 rounds, projected from a few rounds of all."""
    comparisons = _cells(stage)
    together, rounds = SideBySide(comparisons), comparisons[0].config.run.rounds
    models = together.table(tuple(comparisons)).models
    send(models, models.start(), 0)  # compiles

    def play() -> None:
        together.play(comparisons, lambda doing: None)

    first_s, some = seconds(play), stage.size(5, 3)  # of which one ends with a test
    round_s = timeit(play, timer=wall_clock, number=some) / some
    # The first round also plays many rounds ahead under policies that do not look at gradients.
    ahead = min(group.rounds_ahead for _, group in together.groups)
    whole_s = rounds * round_s + math.ceil(rounds / ahead) * max(0.0, first_s - round_s)
    note = f"{round_s:.3g} s a round, {first_s:.3g} s to play {ahead} ahead"
    yield Measurement("accuracy grid", "min", whole_s / 60, stage.size(10, None), note=note)


def _cells(stage: Stage) -> list[Comparison]:
    """The comparisons of the grid, agents among them: untrained ones act as fast as trained."""
    agents, side = stage.folder / "agents", stage.size(3, 1)
    save(Trainer(stage.config("qmix.gradients=synthetic"), stage.device), agents, [])
    common = [
        f"allocation.policies=[{', '.join(POLICIES)}]",
        f"allocation.checkpoint={json.dumps(str(agents))}",
        f"run.seeds={stage.size(5, 2)}",
    ]
    configs = [
        stage.config(*common, f"learning.alpha={alpha}", f"radio.clusters={clusters}")
        for alpha in ALPHAS[:side]
        for clusters in CLUSTERS[:side]
    ]
    cells = []
    for config in configs:
        device, precision = stage.device, config.run.precision
        federation = Federation(config.learning, stage.dataset, device=device, precision=precision)
        cells.append(Comparison(config, device, federation))
    return cells


FIGURES: dict[str, Callable[[Stage], Iterable[Measurement]]] = {
    "training": training,
    "seeds": five_seeds,
    "round": rounds,
    "channel": channel,
    "max-sum-rate": schedule,
    "grid": grid,
}


def measure(
    device: torch.device, precision: Precision, only: str | None, tell: Callable[[Any], None]
) -> Figures:
    """Every figure, told as it comes; where one fails, the reason is told and the others go on."""
    names = list(FIGURES) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in FIGURES:
            raise not_allowed("--only", name, f"some of {', '.join(FIGURES)}")
    found: dict[str, list[object]] = {name: [] for name in names}
    failed, took = {}, {}
    with Stage.open(device, precision) as stage:
        for name, figures in found.items():
            begin = time.perf_counter()
            try:
                for figure in FIGURES[name](stage):
                    figures.append(figure.plain())
                    tell(figure)
            except Exception as error:  # whatever it is, the other figures are still wanted
                failed[name] = sentence(error)
                tell(f"{name} failed: {failed[name]}")
            took[name] = round(time.perf_counter() - begin, 1)
            forget()
        known = stage.data in ("cifar10", "digits")
        return {
            "figures": found,
            "failed": failed,
            "took_s": took,
            "data": stage.data if known else "noise in the shape of CIFAR-10",
            "compiled": compiled_on(device),
            **stage.about(),
        }
