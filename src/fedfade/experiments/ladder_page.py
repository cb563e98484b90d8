"""The ladder to look at: one picture of all cells, and tables to paste."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfade.experiments.figures import save
from fedfade.experiments.ladder import OWN, Ladder, accuracy_places, mean_error
from fedfade.experiments.reproduce.tables import Line, markdown, matching
from fedfade.storage import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES = ("#1f618d", "#28a745", "#cb4335", "#7d3c98", "#b7950b")  # a speed each, slowest first
_MARKS = ("*", "D", "P", "X", "^", "v")  # a training each
_COLUMNS = 4


def write_page(
    ladder: Ladder, out: Path, table: list[Line], policies: list[Line], accuracies: list[Line]
) -> Path:
    """`ladder.png`, `ladder.md` and, where there are federated runs, `accuracy.png`."""
    learned = matching(policies, learned="yes")
    figure = ladder_figure(ladder, ladder.cells, table, learned, "uploads")
    save(figure, out / "ladder.png")
    if accuracies:
        cells = list(dict.fromkeys(place.cell for place in accuracy_places(ladder)))
        lines = matching(accuracies, learned="no")
        agents = matching(accuracies, learned="yes")
        save(ladder_figure(ladder, cells, lines, agents, "accuracy"), out / "accuracy.png")
    path = out / "ladder.md"
    write_text(path, page(ladder, table, policies, accuracies))
    return path


# --- the picture -------------------------------------------------------------------------------


def title_of(ladder: Ladder, cell: str) -> str:
    """A cell in words."""
    if cell != OWN:
        return f"ring, {cell}"
    return {"waypoint": "clients walking in the cell"}.get(
        ladder.base.cell.placement, f"the preset's cell ({ladder.base.cell.placement})"
    )


def ladder_figure(
    ladder: Ladder, cells: Sequence[str], table: list[Line], learned: list[Line], field: str
) -> Figure:
    """A panel a cell: rungs along, a line a speed, a mark a training."""
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(cells) + 1)
    rows = -(-(len(cells) + 1) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.6, 2.9 * rows + 1.3), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    order = _panel_order(ladder, cells, rows, columns)
    names = [rung.name for rung in ladder.rungs]
    for place, panel in enumerate(panels.flat):
        cell = order[place]
        if cell is None:
            panel.axis("off")
            continue
        _draw_cell(ladder, panel, cell, table, learned, field)
        panel.set_title(title_of(ladder, cell), loc="left", fontsize=10)
        panel.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
        below = place + columns
        panel.tick_params(labelbottom=below >= len(order) or order[below] is None)
        if place % columns == 0:
            unit = "uploads per round" if field == "uploads" else "final accuracy in %"
            panel.set_ylabel(unit)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    empty = [panels.flat[place] for place, cell in enumerate(order) if cell is None]
    empty[0].legend(handles, labels, loc="center left", frameon=False, fontsize=9)
    figure.suptitle("What a bit of channel knowledge buys", x=0.01, ha="left", fontsize=13)
    return figure


def _panel_order(ladder: Ladder, cells: Sequence[str], rows: int, columns: int) -> list[str | None]:
    """Cells of the ring as a map, a row an SNR; the preset's own at the right, then the legend."""
    on_the_ring = [cell for cell in cells if cell != OWN]
    width = columns - 1
    if len(on_the_ring) == rows * width and OWN in cells:
        order: list[str | None] = []
        for row in range(rows):
            order += on_the_ring[row * width : (row + 1) * width]
            order.append(OWN if row == 0 else None)
        if None in order:
            return order
    order = [*cells]
    return order + [None] * (rows * columns - len(order))


def _draw_cell(
    ladder: Ladder, panel: Any, cell: str, table: list[Line], learned: list[Line], field: str
) -> None:
    names = [rung.name for rung in ladder.rungs]
    scale = 100.0 if field == "accuracy" else 1.0
    trainings = list(dict.fromkeys(line["policy"] for line in learned))
    for number, speed in enumerate(ladder.speeds_mps):
        shade = _SHADES[number % len(_SHADES)]
        own = {line["rung"]: line for line in matching(table, cell=cell, speed=speed)}
        known = [name for name in names if name in own]
        x = [names.index(name) for name in known]
        y = [scale * own[name][field] for name in known]
        error = [scale * own[name]["error"] for name in known]
        panel.errorbar(
            x[:-1], y[:-1], error[:-1], color=shade, marker="o", ms=4, lw=1.6, elinewidth=1.0,
            label=f"{speed:g} m/s",
        )  # fmt: skip
        # The last is a bound: nobody is known to reach it.
        panel.plot(x[-2:], y[-2:], color=shade, lw=1.0, ls=":")
        panel.plot(x[-1:], y[-1:], color=shade, marker="o", ms=5, mfc="white", ls="")
        for line in matching(learned, cell=cell, speed=speed):
            mark = _MARKS[trainings.index(line["policy"]) % len(_MARKS)]
            label = f"{line['policy']} (learned)" if number == 0 else None
            panel.errorbar(
                names.index(line["rung"]) + 0.12 * (number - 1), scale * line[field],
                scale * line["error"], color=shade, marker=mark, ms=9, mec="black", mew=0.5,
                elinewidth=1.0, ls="", label=label,
            )  # fmt: skip
    panel.grid(axis="y", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


# --- the tables --------------------------------------------------------------------------------


def page(ladder: Ladder, table: list[Line], policies: list[Line], accuracies: list[Line]) -> str:
    """Tables of the ladder in Markdown."""
    config = ladder.places[0].config
    first, last = config.run.seed, config.run.seed + config.run.seeds - 1
    rounds = ", ".join(map(str, ladder.places[0].rounds))
    text = [
        "# What a bit of channel knowledge buys",
        f"Uploads per round of {config.learning.clients} clients, seeds {first} to {last}, rounds "
        f"{rounds} of each; in brackets the standard error over seeds.",
        markdown(["rung", "knows, besides all above"], [[r.name, r.knows] for r in ladder.rungs]),
        "## Uploads: the best policy without learning on each rung",
        _wide(ladder, ladder.cells, table, "uploads"),
        "## What each rung adds to the one below",
        "Mean over cells of the difference on the same rounds; its standard error over cells.",
        _gains(ladder, table),
    ]
    learned = matching(policies, learned="yes")
    if learned:
        text += ["## Trained agents", _long(learned, "uploads")]
    if accuracies:
        text += ["## Final accuracy", _long(accuracies, "accuracy")]
    text += ["## All policies", _long(matching(policies, learned="no"), "uploads")]
    return "\n\n".join(text) + "\n"


def _cell(line: Line, field: str) -> str:
    value, error = line[field], line["error"]
    digits = 2
    if field == "accuracy":
        value, error, digits = 100 * value, 100 * error, 1
    return f"{value:.{digits}f}" + ("" if math.isnan(error) else f" ({error:.{digits}f})")


def _wide(ladder: Ladder, cells: Sequence[str], table: list[Line], field: str) -> str:
    """A row a cell and speed, a column a rung."""
    rows = []
    for cell in cells:
        for speed in ladder.speeds_mps:
            own = {line["rung"]: line for line in matching(table, cell=cell, speed=speed)}
            shown = [_cell(own[rung.name], field) for rung in ladder.rungs]
            rows.append([title_of(ladder, cell), f"{speed:g}", *shown])
    return markdown(["cell", "m/s", *(rung.name for rung in ladder.rungs)], rows)


def _gains(ladder: Ladder, table: list[Line]) -> str:
    """A row a speed, a column a rung."""
    rows = []
    for speed in ladder.speeds_mps:
        cells = []
        for rung in ladder.rungs[1:]:
            found = [line["gain"] for line in matching(table, speed=speed, rung=rung.name)]
            gain, error = mean_error(found)
            cells.append(f"{gain:+.2f}" + ("" if math.isnan(error) else f" ({error:.2f})"))
        rows.append([f"{speed:g}", *cells])
    return markdown(["m/s", *(f"+ {rung.name}" for rung in ladder.rungs[1:])], rows)


def _long(lines: list[Line], field: str) -> str:
    """A row a place and policy."""
    rows = [
        [line["cell"], f"{line['speed']:g}", line["rung"], line["policy"], _cell(line, field)]
        for line in lines
    ]
    return markdown(["cell", "m/s", "rung", "policy", field], rows)
