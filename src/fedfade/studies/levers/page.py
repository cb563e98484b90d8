"""The study to look at: two pictures, accuracy by combination and against load; tables to paste."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from fedfade.studies.frames import Drawn, Figure, markdown, matching
from fedfade.studies.levers.plan import LeverPart, Levers
from fedfade.studies.levers.runs import ENOUGH, judged, summary
from fedfade.style import blank, headline, panels, shade

_OVER_LOAD = "payload"
"""The part that is drawn against load: the picture that answers the study's question."""
_SHOWN = {
    "perfect float32 mean": ("#444444", ":"),
    "wrap-around int4 mean": (shade(2), "-"),
    "wrap-around int8 mean": (shade(0), "-"),
    "random int8 mean": (shade(0), "--"),
    "wrap-around float32 mean": (shade(1), "-"),
    "random float32 mean": (shade(1), "--"),
}
"""Lines of that part, each with its colour (a codec) and stroke (an allocation)."""


def draw(levers: Levers, tables: Mapping[str, DataFrame]) -> Drawn:
    """Facts, tables to paste and pictures from what `runs.compute` found."""
    table = summary(levers, tables["seeds"], tables["curves"])
    claims, run = judged(levers, tables["seeds"]), levers.parts[0].base.run
    made = {"levers": table, "claims": claims}
    facts: dict[str, Any] = {"setting": {"seeds": run.seeds, "rounds": run.rounds}}
    facts |= {name: own.to_dict("records") for name, own in made.items()}
    return Drawn(facts, page(levers, table, claims), figures(levers, table), made)


def figures(levers: Levers, table: DataFrame) -> Mapping[str, Callable[[], Figure]]:
    """`levers`, and `load` where the part over payloads was played."""
    found = {"levers": partial(levers_figure, levers, table)}
    for part in levers.parts:
        if part.name == _OVER_LOAD:
            found["load"] = partial(load_figure, part, matching(table, part=part.name))
    return found


def page(levers: Levers, table: DataFrame, claims: DataFrame) -> str:
    """Tables, claims first."""
    text = []
    if len(claims):
        heads = ["above", "below", "after", "difference", "needed", "holds"]
        text += [
            "Differences in points of accuracy, paired over seeds, with the standard error:",
            markdown(heads, [_claim(row, levers.early) for row in claims.to_dict("records")]),
        ]
    for part in levers.parts:
        own, run = matching(table, part=part.name), part.base.run
        heads = ["allocation", "codec", "server", "uploads", "final %", "mean of models %"]
        heads += [f"after {levers.early} rounds %"]
        played = f"{run.rounds} rounds, {run.seeds} seeds"
        if any(line.allocation == "perfect" for line in part.lines):
            heads += ["seconds"]
            played += "; seconds of uplink until the mean accuracy is "
            played += f"{ENOUGH:.0%} of what perfect upload ends at"
        text += [f"## {part.name}: {part.says}", f"{played}."]
        for point in part.points:
            here = matching(own, point=point)
            rows = [_row(line)[: len(heads)] for line in here.to_dict("records")]
            title = [f"**{point}**"] if len(part.points) > 1 else []
            text += [*title, markdown(heads, rows)]
    return "\n\n".join(text)


def _claim(row: Any, early: int) -> list[str]:
    when = f"{early} rounds" if row["early"] else "the last round"
    needed = f"{row['least']:+g}{', beyond noise' if row['beyond_noise'] else ''}"
    difference = f"{row['points']:+.2f} ± {row['error']:.2f}"
    return [row["one"], row["other"], when, difference, needed, row["holds"]]


def _row(line: Any) -> list[str]:
    words = [line["allocation"], line["codec"], line["server"], f"{line['uploads']:.2f}"]
    final = f"{100 * line['accuracy']:.1f} ± {100 * line['error']:.1f}"
    rest = [f"{100 * line['averaged']:.1f}", f"{100 * line['early']:.1f}"]
    seconds = line["seconds"]
    return [*words, final, *rest, "never" if seconds != seconds else f"{seconds:g}"]  # noqa: PLR0124


def levers_figure(levers: Levers, table: DataFrame) -> Any:
    """Accuracy as tables of colours, best combination first: by load, or, where there is one load,
    on the way and at the end."""
    tables = [_accuracies(part, matching(table, part=part.name)) for part in levers.parts]
    columns = min(2, len(tables))
    rows = [tables[start : start + columns] for start in range(0, len(tables), columns)]
    heights = [max(len(own) for own in row) for row in rows]  # lines
    figure = blank(6.4 * columns, 0.33 * sum(heights) + 1.1 * len(rows) + 0.4)
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(tables) :]:
        axes.axis("off")
    for axes, part, own in zip(grid.flat, levers.parts, tables, strict=False):
        _colours(axes, own)
        axes.set_title(part.says, loc="left", fontsize=10, wrap=True)
    headline(figure, "Accuracy in % by allocation, codec and server rule")
    return figure


def load_figure(part: LeverPart, table: DataFrame) -> Any:
    figure, ((axes,),) = panels(8.2, 3.8, 1, 1)
    for line, (colour, stroke) in _SHOWN.items():
        own = table[_lines(table) == line].sort_values("load")
        label = line.removesuffix(" mean").replace(" ", ", ")
        axes.plot(own["load"], 100 * own["accuracy"], stroke, color=colour, label=label, marker="o")
    axes.set_xscale("log")
    axes.set_xticks([float(point["load"]) for point in part.points.values()], list(part.points))
    axes.minorticks_off()
    axes.set(xlabel=part.says, ylabel="final accuracy in %")
    figure.legend(loc="outside right center", frameon=False, title="allocation, codec")
    return figure


def _lines(table: DataFrame) -> Series:
    return table["allocation"] + " " + table["codec"] + " " + table["server"]


def _accuracies(part: LeverPart, table: DataFrame) -> DataFrame:
    """In per cent: a line per combination, a column per load or moment."""
    line = _lines(table)
    if len(part.points) > 1:
        axes = {"index": "line", "columns": "point", "values": "accuracy"}
        wide = table.assign(line=line).pivot_table(**axes, sort=False)[list(part.points)]
    else:
        moments = {"early": "on the way", "accuracy": "at the end", "averaged": "mean of models"}
        wide = table[[*moments]].rename(columns=moments).set_axis(line)
    return 100 * wide.iloc[wide.mean(axis=1).argsort()[::-1]]


def _colours(axes: Any, table: DataFrame) -> None:
    values = table.to_numpy()
    axes.imshow(values, cmap="YlGnBu", aspect="auto", vmin=values.min() - 5, vmax=values.max() + 5)
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=9)
    axes.set_xticks(range(len(table.columns)), table.columns)
    axes.set_yticks(range(len(table)), table.index, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
