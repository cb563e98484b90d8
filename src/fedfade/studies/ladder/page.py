"""The ladder to look at: one picture of all cells, and tables to paste."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfade.radio import LIGHT_MPS
from fedfade.storage import save_figure, write_text
from fedfade.studies.ladder.federated import accuracy_places
from fedfade.studies.ladder.rungs import OWN, Ladder
from fedfade.studies.ladder.tables import mean_error
from fedfade.studies.ladder.uploads import fading_memory
from fedfade.studies.paper.tables import Line, markdown, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES = ("#1f618d", "#28a745", "#cb4335", "#7d3c98", "#b7950b")  # a speed each, slowest first
_MARKS = ("*", "D", "P", "X", "^", "v")  # a training each
_KNOWN = {"block-fading-schedule": "x", "shortest-remaining-first": "+"}  # from earlier work
_COLUMNS = 4
_MATCHING = "deadline-matching"


def write_page(
    ladder: Ladder, out: Path, table: list[Line], policies: list[Line], accuracies: list[Line]
) -> Path:
    """`ladder.png`, `ladder.md` and, where there are federated runs, `accuracy.png`."""
    shown = [p for p in policies if p["learned"] == "yes" or p["policy"] in _KNOWN]
    save_figure(ladder_figure(ladder, ladder.cells, table, shown, "uploads"), out / "ladder.png")
    if accuracies:
        cells = list(dict.fromkeys(place.cell for place in accuracy_places(ladder)))
        lines = matching(accuracies, learned="no")
        agents = matching(accuracies, learned="yes")
        save_figure(ladder_figure(ladder, cells, lines, agents, "accuracy"), out / "accuracy.png")
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
    ladder: Ladder, cells: Sequence[str], table: list[Line], points: list[Line], field: str
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
        _draw_best(ladder, panel, matching(table, cell=cell), field)
        _draw_points(ladder, panel, matching(points, cell=cell), field)
        panel.grid(axis="y", alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_title(title_of(ladder, cell), loc="left", fontsize=10)
        panel.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
        below = place + columns
        panel.tick_params(labelbottom=below >= len(order) or order[below] is None)
        if place % columns == 0:
            unit = "uploads per round" if field == "uploads" else "final accuracy in %"
            panel.set_ylabel(unit)
    own = ladder.places[0].config.run.seeds  # of rounds played without learning
    seeds = table[0]["seeds"] if field == "accuracy" else own
    handles, labels = panels.flat[0].get_legend_handles_labels()
    speeds = [label.endswith(" m/s") for label in labels]  # these first, then the marks
    first = sorted(range(len(labels)), key=lambda place: not speeds[place])
    empty = [panels.flat[place] for place, cell in enumerate(order) if cell is None]
    empty[0].legend(
        [handles[place] for place in first],
        [labels[place] for place in first],
        title=f"best policy without learning, by speed\nbars: standard error, seeds: {seeds:.0f}",
        loc="center left",
        alignment="left",
        frameon=False,
        fontsize=9,
        title_fontsize=9,
    )
    figure.suptitle("What a bit of channel knowledge buys", x=0.01, ha="left", fontsize=13)
    return figure


def _panel_order(ladder: Ladder, cells: Sequence[str], rows: int, columns: int) -> list[str | None]:
    """Cells of the ring as a map, a row an SNR; at the right the legend and the preset's own."""
    on_the_ring = [cell for cell in cells if cell != OWN]
    width = columns - 1
    if len(on_the_ring) == rows * width and OWN in cells:
        order: list[str | None] = []
        for row in range(rows):
            order += on_the_ring[row * width : (row + 1) * width]
            order.append(OWN if row == rows - 1 else None)
        if None in order:
            return order
    order = [*cells]
    return order + [None] * (rows * columns - len(order))


def _shade(ladder: Ladder, speed: float) -> str:
    return _SHADES[ladder.speeds_mps.index(speed) % len(_SHADES)]


def _draw_best(ladder: Ladder, panel: Any, table: list[Line], field: str) -> None:
    """A line a speed over the rungs; the last is a bound, which nobody is known to reach."""
    names = [rung.name for rung in ladder.rungs]
    scale = 100.0 if field == "accuracy" else 1.0
    for speed in ladder.speeds_mps:
        shade = _shade(ladder, speed)
        own = sorted(matching(table, speed=speed), key=lambda line: names.index(line["rung"]))
        x = [names.index(line["rung"]) for line in own]
        y = [scale * line[field] for line in own]
        error = [scale * line["error"] for line in own]
        style = {"color": shade, "marker": "o", "ms": 4, "lw": 1.6, "elinewidth": 1.0}
        panel.errorbar(x[:-1], y[:-1], error[:-1], label=f"{speed:g} m/s", **style)
        panel.plot(x[-2:], y[-2:], color=shade, lw=1.0, ls=":")
        panel.plot(x[-1:], y[-1:], color=shade, marker="o", ms=5, mfc="white", ls="")


def _draw_points(ladder: Ladder, panel: Any, points: list[Line], field: str) -> None:
    """Marks of trainings, and of policies of earlier work."""
    names = [rung.name for rung in ladder.rungs]
    scale = 100.0 if field == "accuracy" else 1.0
    trainings = [agents.name for agents in ladder.agents]
    for name in dict.fromkeys(line["policy"] for line in points):
        mark = _KNOWN.get(name) or _MARKS[trainings.index(name) % len(_MARKS)]
        edge = {} if name in _KNOWN else {"mec": "black", "mew": 0.5}
        size = 10 if mark == "*" else 6
        label = name if name in _KNOWN else f"{name} (learned)"
        panel.plot([], [], color="black", marker=mark, ms=size, ls="", label=label)
        for line in matching(points, policy=name):
            at = ladder.speeds_mps.index(line["speed"]) - (len(ladder.speeds_mps) - 1) / 2
            x = names.index(line["rung"]) + 0.12 * at
            shade = _shade(ladder, line["speed"])
            panel.plot(
                x, scale * line[field], color=shade, marker=mark, ms=size, ls="", zorder=3, **edge
            )


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
    text += [
        "## How channel knowledge ages",
        "Deadline matching, mean over cells: what it gains over knowing no fading at all, as a "
        "share of what it gains when the fading is fresh; beside it the way clients have gone "
        "since, and the autocorrelation of the fading's power.",
        _ageing(ladder, policies),
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


def ageing(ladder: Ladder, policies: list[Line]) -> list[Line]:
    """What old fading is worth, nearest first, and how much like the fresh it still is."""
    radio = ladder.base.radio
    alike = fading_memory(ladder)

    def mean(speed: float, name: str) -> float:
        found = matching(policies, speed=speed, policy=name)
        return mean_error([line["uploads"] for line in found])[0]

    lines: list[Line] = []
    for speed in ladder.speeds_mps:
        none = mean(speed, f"{_MATCHING}@{radio.slots}")
        fresh = mean(speed, _MATCHING)
        for age in ladder.ages:
            way = speed * age * radio.slot_s * radio.carrier_hz / LIGHT_MPS
            gain = mean(speed, f"{_MATCHING}@{age}") - none
            share = gain / (fresh - none) if fresh > none else math.nan
            line = {"speed": speed, "age": age, "way": way, "gain": gain, "share": share}
            lines.append(line | {"alike": alike.get((speed, age), math.nan)})
    return sorted(lines, key=lambda line: float(line["way"]))


def _ageing(ladder: Ladder, policies: list[Line]) -> str:
    rows = [
        [
            f"{line['way']:.2f}",
            f"{line['speed']:g}",
            line["age"],
            f"{line['gain']:+.2f}",
            *(
                "-" if math.isnan(line[name]) else f"{line[name]:.2f}"
                for name in ("share", "alike")
            ),
        ]
        for line in ageing(ladder, policies)
    ]
    return markdown(
        ["wavelengths", "m/s", "slots old", "uploads gained", "share kept", "autocorrelation"], rows
    )


def _long(lines: list[Line], field: str) -> str:
    """A row a place and policy."""
    rows = [
        [line["cell"], f"{line['speed']:g}", line["rung"], line["policy"], _cell(line, field)]
        for line in lines
    ]
    return markdown(["cell", "m/s", "rung", "policy", field], rows)
