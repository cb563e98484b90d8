"""How cost grows with clients, sub-bands, slots and trainings at once: one size at a time is
changed from the paper's; what a size does not enter is not measured."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedfade.agents import Trainer
from fedfade.allocation import max_sum_rate
from fedfade.bench.federated_round import one_after_another, random_images
from fedfade.bench.slot_speed import instances
from fedfade.bench.stage import Stage, forget, sentence, updates
from fedfade.bench.timing import Figures, without_compiling
from fedfade.config import Config, Precision, load_config
from fedfade.learning import Federation
from fedfade.radio import Cell, Channel
from fedfade.storage import make_folder, save_figure, write_text
from fedfade.style import headline, legend_below, panels, shade

Axes = Mapping[str, tuple[int, ...]]

AXES: Axes = {
    "clients": (5, 10, 20, 50),
    "sub-bands": (2, 4, 8),
    "slots": (100, 250, 500),
    "seeds": (1, 2, 5, 10),
}
PAPER = {"clients": 10, "sub-bands": 4, "slots": 250, "seeds": 1}
REDUCED = """
    learning.batch_size=5 learning.local_work=1 radio.clusters=4 radio.subcarriers=4
    qmix.hidden=[32,16] qmix.batch_size=64 qmix.replay_size=2000 qmix.parallel_episodes=4
    run.episodes_per_round=4
"""


def _ms(stage: Stage, call: Callable[[], object], calls: int = 1) -> float:
    return stage.milliseconds(call, stage.size(5, 3), calls)


@without_compiling()
def training(stage: Stage, config: Config, seeds: int) -> dict[str, float]:
    """A slot of the parallel episodes, and an update."""
    trainer = Trainer(config, stage.device, seeds=list(range(seeds)))
    trainer.play_batch()
    some = min(20, trainer._most_updates)
    return {
        "slot step": _ms(stage, trainer.step, some),
        "update": _ms(stage, updates(trainer, some)) / some,
    }


def fading(stage: Stage, config: Config, seeds: int) -> dict[str, float]:
    """A round's fading for the parallel episodes of every seed."""
    clients, runs = config.learning.clients, list(range(seeds))
    walk = Cell(config.cell, config.radio, clients).trajectory(runs, 1, device=stage.device)
    channel = Channel(config.radio, config.cell, clients, stage.device)
    episodes = range(config.qmix.parallel_episodes)
    draw = partial(channel.small_scale_gain, runs, 0, episodes, walk)
    return {"fading of a round": _ms(stage, draw)}


def schedule(stage: Stage, config: Config, seeds: int) -> dict[str, float]:
    """Max sum rate in all slots of a round of every seed, at 0 dB."""
    sizes = (config.learning.clients, config.radio.subbands, seeds * config.radio.slots)
    received = instances(0.0, *sizes, stage.device)
    return {"max sum rate, a round": _ms(stage, lambda: max_sum_rate(received, 1.0))}


@without_compiling()
def federated(stage: Stage, config: Config, seeds: int) -> dict[str, float]:
    """A federated round of every seed."""
    learning = config.learning.model_copy(update={"partition": "iid"})
    images = random_images(50 * learning.clients, rows=stage.size(32, 8))
    federation = Federation(learning, images, device=stage.device, precision=stage.precision)
    return {"federated round": _ms(stage, one_after_another(federation, list(range(seeds))))}


Cost = Callable[[Stage, Config, int], dict[str, float]]
ENTERS: dict[Cost, tuple[str, ...]] = {
    fading: tuple(AXES),
    training: tuple(AXES),
    schedule: tuple(AXES),
    federated: ("clients", "seeds"),
}
"""What is measured, and the sizes that enter it."""


def costs(stage: Stage, axes: Axes) -> tuple[pd.DataFrame, list[str]]:
    """Every cost at every size; where one cannot be had, a sentence that says why."""
    rows, faults = [], []
    for cost, entering in ENTERS.items():
        with suppress(Exception):  # the first of a kind is slow; a fault comes again below
            _costs_at.__wrapped__(stage, cost, **PAPER)
        for axis in entering:
            for size in axes[axis]:
                try:
                    found = _costs_at(stage, cost, **PAPER | {axis: size})
                    rows += [(name, axis, size, ms) for name, ms in found]
                except Exception as error:  # the other sizes are still wanted
                    faults.append(f"{cost.__name__}, {axis} = {size}, failed: {sentence(error)}")
    return pd.DataFrame(rows, columns=["work", "axis", "size", "ms"]), faults


@cache
def _costs_at(stage: Stage, cost: Cost, **sizes: int) -> list[tuple[str, float]]:
    """Names and milliseconds by the sizes of PAPER; measured once."""
    forget()
    changes = [*stage.size("", REDUCED).split(), "qmix.gradients=synthetic"]
    changes += [f"run.precision={stage.precision}", f"learning.clients={sizes['clients']}"]
    changes += [f"radio.subbands={sizes['sub-bands']}", f"radio.slots={sizes['slots']}"]
    return list(cost(stage, load_config("paper", changes), sizes["seeds"]).items())


def measure(
    device: torch.device, precision: Precision = "tf32", out: Path | None = None, axes: Axes = AXES
) -> Figures:
    """All curves, of work recorded but not compiled; with `out` also growth.csv and growth.png."""
    if out is not None:
        make_folder(out)
    with Stage.open(device, precision) as stage:
        found, faults = costs(stage, axes)
    if out is not None:
        write_text(out / "growth.csv", found.to_csv(index=False, float_format="%.6g"))
        how = stage.size("recorded on CUDA", "small sizes, CPU time")
        save_figure(draw(found, f"{how}, {precision}"), out / "growth.png")
    points = [[*where, float(f"{ms:.4g}")] for *where, ms in found.itertuples(index=False)]
    return {"points": points, "failed": faults} | stage.about()


def draw(costs: pd.DataFrame, title: str) -> Any:
    """A panel for each axis: cost against size, both relative to the paper's."""
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    at_paper = costs[costs["size"] == costs["axis"].map(PAPER)]
    ms = at_paper.groupby("work", sort=False)["ms"].last()
    costs = costs[costs["work"].isin(ms.index)]
    axes = list(costs["axis"].unique()) or ["clients"]
    figure, (row,) = panels(3.0 * len(axes), 4.2, 1, len(axes), sharey=True)
    for panel, axis in zip(row, axes, strict=True):
        lines = costs[costs["axis"] == axis].pivot(index="size", columns="work", values="ms")
        for place, work in enumerate(ms.index):  # empty where the size does not enter the work
            share = lines[work] / ms[work] if work in lines else pd.Series(dtype=float)
            label = f"{work}: {ms[work]:.3g} ms"
            panel.plot(share.index, share, "o-", color=shade(place), ms=4, label=label)
        sizes = sorted({*lines.index, PAPER[axis]})
        straight = [size / PAPER[axis] for size in sizes]
        panel.plot(sizes, straight, ":", color="grey", lw=1.2, label="in proportion")
        name = "seeds at once" if axis == "seeds" else f"{axis} (paper: {PAPER[axis]})"
        panel.set(xscale="log", yscale="log", xticks=sizes, xlabel=name)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    row[0].set_ylabel("time / time at the paper's size")
    legend_below(figure, row[0], 3)
    headline(figure, f"Time against size; dotted: growth in proportion ({title})")
    return figure
