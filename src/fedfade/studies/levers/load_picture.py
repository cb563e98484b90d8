"""Accuracy against load: the picture that answers the study's question."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from pandas import DataFrame

from fedfade.storage import save_figure
from fedfade.studies.frames import matching
from fedfade.studies.levers.plan import LeverPart, Levers

_PART = "payload"
_SHOWN = {
    "perfect float32 mean": ("#444444", ":"),
    "wrap-around int4 mean": ("#1e8449", "-"),
    "wrap-around int8 mean": ("#2471a3", "-"),
    "random int8 mean": ("#2471a3", "--"),
    "wrap-around float32 mean": ("#c0392b", "-"),
    "random float32 mean": ("#c0392b", "--"),
}
"""Lines of the part, each with its colour (a codec) and stroke (an allocation)."""


def write_load_picture(levers: Levers, out: Path, table: DataFrame) -> None:
    """`load.png`, where Matplotlib is installed and the part over payloads was played."""
    for part in levers.parts:
        if part.name == _PART:
            with suppress(ImportError):
                save_figure(_figure(part, matching(table, part=_PART)), out / "load.png")


def _figure(part: LeverPart, table: DataFrame) -> Any:
    from fedfade.experiments.figures import blank, tidy

    figure = blank(8.2, 3.8)
    axes: Any = figure.subplots()
    tidy(axes)
    names = table["allocation"] + " " + table["codec"] + " " + table["server"]
    for line, (colour, stroke) in _SHOWN.items():
        own = table[names == line].sort_values("load")
        label = line.removesuffix(" mean").replace(" ", ", ")
        axes.plot(own["load"], 100 * own["accuracy"], stroke, color=colour, label=label, marker="o")
    axes.set_xscale("log")
    axes.set_xticks([float(point["load"]) for point in part.points.values()], list(part.points))
    axes.minorticks_off()
    axes.set_xlabel(part.says)
    axes.set_ylabel("final accuracy in %")
    figure.legend(loc="outside right center", frameon=False, title="allocation, codec")
    return figure
