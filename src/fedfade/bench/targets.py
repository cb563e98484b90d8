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

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedfade.agents.run import save
from fedfade.agents.trainer import Trainer
from fedfade.allocation import max_sum_rate
from fedfade.bench import machine, median_ms, seconds
from fedfade.bench.floors import fading_layers, local_layers, products
from fedfade.bench.schedule import SNRS_DB, instances
from fedfade.bench.stage import Figure, Stage, forget
from fedfade.bench.whole_training import five_seeds, training
from fedfade.config import LearningConfig, Precision
from fedfade.device import matrix_products
from fedfade.errors import not_allowed
from fedfade.experiments import Comparison, SideBySide
from fedfade.learning import Federation, Models, Sent, send
from fedfade.learning import federated_round as one_round
from fedfade.radio import Cell, Channel

ALPHAS, CLUSTERS = (0.5, 5, 50), (14, 21, 28)
POLICIES = ["random", "max-individual-rate", "max-sum-rate", "perfect"]
"""What the accuracy figure shows beside trained agents."""

# --- federated rounds -------------------------------------------------------------------------


def federated_round(federation: Federation, seeds: Sequence[int]) -> Callable[[], None]:
    """Rounds in which everybody delivers, one a call."""
    models = Models([(federation, seeds)])
    state, number = models.start(), 0

    def everybody(sent: Sent) -> Tensor:
        return torch.ones(sent.inner.shape[:2], dtype=torch.bool, device=federation.device)

    def play() -> None:
        nonlocal state, number
        state = one_round(models, state, number, everybody, test=False).after
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
    together = SideBySide(comparisons)
    models = together.table(comparisons).models
    send(models, models.start(), 0)  # compiles
    count = stage.sizes.grid_rounds

    def play(rounds: int) -> None:
        for _ in range(rounds):
            together.play(comparisons, lambda doing: None)

    first_s = seconds(lambda: play(1), stage.device)
    round_s = seconds(lambda: play(count), stage.device) / count
    # The first round also plays many rounds ahead under policies that do not look at gradients.
    rounds = comparisons[0].config.run.rounds
    ahead = min(group.rounds_ahead for _, group in together.groups)
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
