"""The study to look at: one picture, accuracy against load, and tables to paste."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from pandas import DataFrame

from fedfade.storage import save_figure, write_text
from fedfade.studies.frames import markdown, matching
from fedfade.studies.levers.plan import LeverPart, Levers, Line
from fedfade.studies.levers.runs import ENOUGH

_SHADES = {
    "perfect": "#444444",
    "random": "#c0392b",
    "max-individual": "#e67e22",
    "block": "#1e8449",
    "wrap-around": "#ec407a",
    "max-sum-rate": "#2471a3",
    "deadline": "#311b92",
    "learned": "#d4ac0d",
    "by-age": "#00897b",
    "by-innovation": "#6d4c41",
}
_MARKS = {"float32": "o", "int8": "s", "int4": "D", "topk": "^"}
_STROKES = {"mean": "-", "mifa": "--", "fedvarp": ":"}


def write_page(
    levers: Levers, out: Path, table: DataFrame, curve: DataFrame, claims: DataFrame
) -> None:
    """`levers.png`, where Matplotlib is installed, and `levers.md`."""
    with suppress(ImportError):  # a machine that only computes need not have it
        save_figure(_figure(levers, table, curve), out / "levers.png")
    write_text(out / "levers.md", page(levers, table, claims))


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
    return "\n\n".join(text) + "\n"


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


def _figure(levers: Levers, table: DataFrame, curve: DataFrame) -> Any:
    """A panel for each part: against load, or against seconds where there is one load."""
    from fedfade.experiments.figures import blank, tidy

    columns = min(3, len(levers.parts))
    rows = -(-len(levers.parts) // columns)
    figure = blank(5.2 * columns, 4.4 * rows)
    panels: Any = figure.subplots(rows, columns, squeeze=False)
    for axes, part in zip(panels.flat, levers.parts, strict=False):
        tidy(axes)
        several = len(part.points) > 1
        _lines(axes, part, table if several else curve, "load" if several else "seconds")
        axes.set_title(part.says, loc="left", fontsize=9, wrap=True)
        axes.set_ylabel("final accuracy in %" if several else "accuracy in %")
        axes.legend(frameon=False, fontsize=6.5, ncols=2)
    for axes in panels.flat[len(levers.parts) :]:
        axes.axis("off")
    return figure


def _lines(axes: Any, part: LeverPart, table: DataFrame, x: str) -> None:
    """One line per combination."""
    own = matching(table, part=part.name)
    for line in part.lines:
        which = dict(zip(Line._fields, line, strict=True))
        points = matching(own, **which)
        if not len(points):
            continue
        style: dict[str, Any] = {"color": _SHADES[line.allocation]}
        style |= {"linestyle": _STROKES[line.server]}
        style |= {"marker": _MARKS[line.codec], "markersize": 3, "lw": 1.2}
        axes.plot(points[x], 100 * points["accuracy"], label=line.name, **style)
    if x == "load":
        loads = [float(point["load"]) for point in part.points.values()]
        axes.set_xscale("log")
        axes.set_xticks(loads, list(part.points), fontsize=8)
        axes.minorticks_off()
    else:
        axes.set_xlabel("seconds of uplink")
