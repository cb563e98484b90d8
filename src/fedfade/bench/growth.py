"""How cost grows with clients, sub-bands, slots and trainings at once: measured, not argued.

One size at a time is changed from the paper's; what a size does not enter is not measured.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from fedfade.agents.trainer import Trainer
from fedfade.allocation import max_sum_rate
from fedfade.bench import machine, median_cpu_ms, median_ms, without_compiling
from fedfade.bench.learning import random_images
from fedfade.bench.schedule import instances
from fedfade.bench.stage import forget
from fedfade.bench.targets import federated_round
from fedfade.config import Config, Precision, load_config
from fedfade.device import matrix_products
from fedfade.learning import Federation
from fedfade.radio import Cell, Channel
from fedfade.storage import make_folder, write_text, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES: dict[str, tuple[int, ...]] = {
    "clients": (5, 10, 20, 50),
    "sub-bands": (2, 4, 8),
    "slots": (100, 250, 500),
    "seeds": (1, 2, 5, 10),
}
PAPER = {"clients": 10, "sub-bands": 4, "slots": 250, "seeds": 1}

REDUCED = [
    "learning.batch_size=5",
    "learning.local_work=1",
    "radio.clusters=4",
    "radio.subcarriers=4",
    "qmix.hidden=[32, 16]",
    "qmix.batch_size=64",
    "qmix.replay_size=2000",
    "qmix.parallel_episodes=4",
    "run.episodes_per_round=4",
]


class Point(NamedTuple):
    """What one thing costs at one size."""

    work: str
    axis: str
    size: int
    ms: float


class Place(NamedTuple):
    """Where the work is measured, and how often."""

    device: torch.device
    precision: Precision
    overrides: list[str]
    image: int  # rows of an image
    repeats: int

    def ms(self, work: Callable[[], object]) -> float:
        """Median time of a call; on the CPU its own time, whatever else the machine does."""
        if self.device.type == "cpu":
            return median_cpu_ms(work, self.repeats)
        return median_ms(work, self.repeats, self.device)


Sizes = dict[str, int]
Work = Callable[[Place, Config, int], dict[str, float]]


def _config(place: Place, sizes: Sizes) -> Config:
    return load_config(
        "paper",
        [
            *place.overrides,
            "qmix.gradients=synthetic",
            f"run.precision={place.precision}",
            f"learning.clients={sizes['clients']}",
            f"radio.subbands={sizes['sub-bands']}",
            f"radio.slots={sizes['slots']}",
        ],
    )


@without_compiling()
def _training(place: Place, config: Config, seeds: int) -> dict[str, float]:
    """A slot of the parallel episodes, and an update."""
    trainer = Trainer(config, place.device, seeds=list(range(seeds)))
    trainer.play_batch()
    first = trainer.updates.clone()
    some = min(20, trainer._most_updates)

    def play() -> None:
        for _ in range(some):
            trainer.step()

    def learn() -> None:
        trainer.updates.copy_(first)
        for _ in range(some):
            trainer.update()

    trainer.replay.draw_ahead(first, trainer._most_updates, config.qmix.batch_size)
    return {
        "slot step": place.ms(play) / some,
        "update": place.ms(learn) / some,
    }


def _fading(place: Place, config: Config, seeds: int) -> dict[str, float]:
    """A round's fading for the parallel episodes of every seed."""
    clients, runs = config.learning.clients, list(range(seeds))
    walk = Cell(config.cell, config.radio, clients).trajectory(runs, 1, device=place.device)
    channel = Channel(config.radio, config.cell, clients, place.device)
    episodes = range(config.qmix.parallel_episodes)

    def draw() -> None:
        channel.small_scale_gain(runs, 0, episodes, walk)

    return {"fading of a round": place.ms(draw)}


def _schedule(place: Place, config: Config, seeds: int) -> dict[str, float]:
    """Max sum rate in all slots of a round of every seed, at 0 dB."""
    sizes = (config.learning.clients, config.radio.subbands, seeds * config.radio.slots)
    received = instances(0.0, *sizes, place.device)
    return {"max sum rate, a round": place.ms(lambda: max_sum_rate(received, 1.0))}


@without_compiling()
def _federated(place: Place, config: Config, seeds: int) -> dict[str, float]:
    """A federated round of every seed."""
    learning = config.learning.model_copy(update={"partition": "iid"})
    images = random_images(50 * learning.clients, rows=place.image)
    federation = Federation(learning, images, device=place.device, precision=place.precision)
    play = federated_round(federation, list(range(seeds)))
    return {"federated round": place.ms(play)}


ENTERS: dict[Work, tuple[str, ...]] = {
    _fading: tuple(AXES),
    _training: tuple(AXES),
    _schedule: tuple(AXES),
    _federated: ("clients", "seeds"),
}


def points(place: Place, axes: dict[str, tuple[int, ...]] = AXES) -> Iterator[Point | str]:
    """Every cost at every size; where one cannot be had, a sentence that says why."""
    for work, entering in ENTERS.items():
        with suppress(Exception):  # the first of a kind is slow; a fault comes again below
            work(place, _config(place, PAPER), PAPER["seeds"])
        known: dict[tuple[int, ...], dict[str, float]] = {}
        for axis in entering:
            for size in axes[axis]:
                sizes = PAPER | {axis: size}
                key = tuple(sizes.values())
                try:
                    if key not in known:
                        forget(place.device)
                        known[key] = work(place, _config(place, sizes), sizes["seeds"])
                except Exception as error:  # the other sizes are still wanted
                    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                    yield f"{work.__name__[1:]}, {axis} = {size}, failed: {reason}"
                    continue
                for name, ms in known[key].items():
                    yield Point(name, axis, size, ms)


def measure(
    device: torch.device,
    precision: Precision = "tf32",
    out: Path | None = None,
    axes: dict[str, tuple[int, ...]] = AXES,
) -> dict[str, object]:
    """All curves; with `out` also growth.csv and growth.png.

    Training and local training are recorded but not compiled, which would take half a minute for
    each size.
    """
    full = device.type == "cuda"
    place = Place(device, precision, [] if full else REDUCED, 32 if full else 8, 5 if full else 3)
    if out is not None:
        make_folder(out)
    with matrix_products(precision):
        found = list(points(place, axes))
    curve = [point for point in found if isinstance(point, Point)]
    if out is not None:
        _write(
            out, curve, f"{'recorded on CUDA' if full else 'small sizes, CPU time'}, {precision}"
        )
    return {
        "points": [[*point[:3], float(f"{point.ms:.4g}")] for point in curve],
        "failed": [fault for fault in found if isinstance(fault, str)],
        "device": device.type,
        "full_size": full,
        "precision": precision,
    } | machine()


def _write(out: Path, curve: list[Point], title: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Point._fields)
    writer.writerows([*point[:3], f"{point.ms:.6g}"] for point in curve)
    write_text(out / "growth.csv", text.getvalue())
    with writing(out / "growth.png") as temporary:
        draw(curve, title).savefig(temporary, dpi=150, format="png")


def draw(curve: list[Point], title: str) -> Figure:
    """A panel for each axis: cost against size, both relative to the paper's."""
    from matplotlib.figure import Figure

    at_paper = {p.work: p.ms for p in curve if p.size == PAPER[p.axis]}
    curve = [point for point in curve if point.work in at_paper]
    axes = list(dict.fromkeys(point.axis for point in curve)) or ["clients"]
    works = list(dict.fromkeys(point.work for point in curve))
    figure = Figure(figsize=(3.0 * len(axes), 3.9), layout="constrained")
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        mine = [point for point in curve if point.axis == axis]
        for place, work in enumerate(works):
            line = [(p.size, p.ms / at_paper[work]) for p in mine if p.work == work]
            label = f"{work}: {at_paper[work]:.3g} ms"
            if line:
                panel.plot(*zip(*line, strict=True), "o-", color=f"C{place}", ms=4, label=label)
        _finish(panel, axis, sorted({point.size for point in mine} | {PAPER[axis]}))
    panels[0].set_ylabel("time / time at the paper's size")
    named = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def _finish(panel: Axes, axis: str, sizes: list[int]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    ends = (sizes[0], sizes[-1])
    straight = [size / PAPER[axis] for size in ends]
    panel.plot(ends, straight, ":", color="grey", lw=1.2, label="in proportion")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(FixedLocator(sizes))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.set_xlabel(f"{axis} (paper: {PAPER[axis]})" if axis != "seeds" else "seeds at once")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
