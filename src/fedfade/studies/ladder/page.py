"""The ladder to look at: one picture of all cells, and tables to paste."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from pandas import DataFrame

from fedfade.radio import LIGHT_MPS
from fedfade.shown import drawn
from fedfade.studies.frames import Drawn, Figure, markdown, matching
from fedfade.studies.ladder.played import fading_memory
from fedfade.studies.ladder.rungs import OWN, Ladder
from fedfade.style import headline, label, panels, shade
from fedfade.wording import counted

_SHADES = tuple(shade(place) for place in (0, 2, 1, 5, 3))  # one per speed, slowest first
_MARKS = ("*", "D", "P", "X", "^", "v")  # one per training
KNOWN = {"block-fading-schedule": "x", "shortest-remaining-first": "+"}  # from earlier work
_MATCHING = "deadline-matching"


def draw(ladder: Ladder, tables: Mapping[str, DataFrame]) -> Drawn:
    """Facts, tables to paste and pictures from what `played.compute` found."""
    cell = ladder.cells[0]
    played = {"seeds": cell.config.run.seeds, "rounds": list(cell.rounds)}
    facts: dict[str, Any] = {"setting": {"data": ladder.base.learning.data, **played}}
    facts |= {name: table.to_dict("records") for name, table in tables.items()}
    accuracies = tables.get("accuracy", DataFrame())  # federated runs have to be asked for
    text = _text(ladder, tables["ladder"], tables["policies"], accuracies)
    return Drawn(facts, text, _figures(ladder, tables["ladder"], tables["policies"], accuracies))


def _figures(
    ladder: Ladder, table: DataFrame, policies: DataFrame, accuracies: DataFrame
) -> Mapping[str, Callable[[], Figure]]:
    """`ladder` and, where there are federated runs, `accuracy`."""
    shown = policies[(policies["learned"] == "yes") | policies["policy"].isin([*KNOWN])]
    figures = {"ladder": partial(ladder_figure, ladder, ladder.names, table, shown, "uploads")}
    if len(accuracies):
        names = list(dict.fromkeys(cell.name for cell in ladder.accuracy_cells))
        best, agents = (matching(accuracies, learned=answer) for answer in ("no", "yes"))
        figures["accuracy"] = partial(ladder_figure, ladder, names, best, agents, "accuracy")
    return figures


def _text(ladder: Ladder, table: DataFrame, policies: DataFrame, accuracies: DataFrame) -> str:
    """Tables, the best of every rung first."""
    config = ladder.cells[0].config
    first, last = config.run.seed, config.run.seed + config.run.seeds - 1
    rounds = ", ".join(map(str, ladder.cells[0].rounds))
    text = [
        f"Uploads per round of {counted(config.learning.clients, 'client')}, seeds {first} to "
        f"{last}, rounds {rounds} of each; in brackets the standard error over seeds.",
        markdown(["rung", "knows, besides all above"], [[r.name, r.knows] for r in ladder.rungs]),
        "## Uploads: the best policy without learning on each rung",
        _wide(ladder, table),
        "## What each rung adds to the one below",
        "Mean over cells of the difference on the same rounds; its standard error over cells.",
        _gains(ladder, table),
        "## How channel knowledge ages",
        "Deadline matching, mean over cells: what it gains over knowing no fading at all, as a "
        "share of what it gains when the fading is fresh; beside it the way clients have gone "
        "since, and the autocorrelation of the fading's power.",
        _ageing(ladder, policies),
    ]
    learned = matching(policies, learned="yes")
    if len(learned):
        text += ["## Trained agents", _long(learned, "uploads")]
    if len(accuracies):
        text += ["## Final accuracy", _long(accuracies, "accuracy")]
    text += ["## All policies", _long(matching(policies, learned="no"), "uploads")]
    return "\n\n".join(text)


def _title(ladder: Ladder, name: str) -> str:
    if name != OWN:
        return f"ring, {name}"
    mobility = ladder.base.cell.mobility
    ways = {"reflect": "clients walking in the cell", "waypoint": "clients drifting to the middle"}
    return ways.get(mobility, f"the preset's cell ({mobility})")


def ladder_figure(
    ladder: Ladder, names: Sequence[str], table: DataFrame, points: DataFrame, field: str
) -> Any:
    """Rungs along the axis, a line per speed, a mark per training: the rings, as a mean over all
    of them, and the preset's own cell."""
    rings = [name for name in names if name != OWN]
    title = f"mean of {len(rings)} rings" if len(rings) > 1 else _title(ladder, rings[0])
    groups = {title: rings, _title(ladder, OWN): [OWN]}
    figure, (row,) = panels(12.5, 5.0, 1, len(groups), sharey=True)
    for axes, (title, cells) in zip(row, groups.items(), strict=True):
        lines = _mean(table[table["cell"].isin(cells)], field, "speed", "rung")
        marks = _mean(points[points["cell"].isin(cells)], field, "policy", "speed", "rung")
        _draw(ladder, axes, lines, marks, field)
        label(axes, drawn(title))
        rungs = [rung.name for rung in ladder.rungs]
        axes.set_xticks(range(len(rungs)), rungs, rotation=35, ha="right")
    row[0].set_ylabel("uploads per round" if field == "uploads" else "final accuracy in %")
    entries = list(zip(*row[-1].get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: not entry[1].endswith(" m/s"))  # speeds first, then marks
    style = {"loc": "outside right center", "alignment": "left", "frameon": False}
    title = "best policy without\nlearning, by speed"
    figure.legend(*zip(*entries, strict=True), title=title, **style)
    played = ladder.cells[0].config.run.seeds  # without learning
    seeds = table["seeds"].iloc[0] if field == "accuracy" else played
    title = f"What a bit of channel knowledge buys (bars: standard error over {seeds:.0f} seeds)"
    headline(figure, title)
    return figure


def _mean(lines: DataFrame, field: str, *keys: str) -> DataFrame:
    """Over cells, with its standard error."""
    cells = lines.groupby([*keys], sort=False)
    error = cells["error"].agg(lambda own: math.sqrt((own**2).sum()) / len(own))
    return cells[[field]].mean().assign(error=error).reset_index()


def _draw(ladder: Ladder, axes: Any, table: DataFrame, points: DataFrame, field: str) -> None:
    """One line per speed over the rungs; marks of trainings, and of policies of earlier work."""
    rungs, speeds = [rung.name for rung in ladder.rungs], ladder.speeds_mps
    shades = dict(zip(speeds, cycle(_SHADES), strict=False))
    scale = 100.0 if field == "accuracy" else 1.0
    for speed, ink in shades.items():
        own = matching(table, speed=speed)
        own = own.assign(place=own["rung"].map(rungs.index)).sort_values("place", kind="stable")
        x, (y, error) = own["place"].to_numpy(), scale * own[[field, "error"]].to_numpy().T
        style = {"color": ink, "marker": "o", "ms": 4, "lw": 1.6, "elinewidth": 1.0}
        axes.errorbar(x[:-1], y[:-1], error[:-1], label=f"{speed:g} m/s", **style)
        # The last rung is a bound, which nobody is known to reach.
        axes.plot(x[-2:], y[-2:], color=ink, lw=1.0, ls=":")
        axes.plot(x[-1:], y[-1:], color=ink, marker="o", ms=5, mfc="white", ls="")
    trainings = dict(zip((agents.name for agents in ladder.agents), cycle(_MARKS), strict=False))
    for name, own in points.groupby("policy", sort=False):
        known = name in KNOWN
        mark = KNOWN[name] if known else trainings[name]
        style = {"marker": mark, "ms": 10 if mark == "*" else 6, "ls": ""}
        label = name if known else drawn(f"{name} (learned)")
        axes.plot([], [], color="black", label=label, **style)
        edge = {} if known else {"mec": "black", "mew": 0.5}
        for speed, rung, value in own[["speed", "rung", field]].itertuples(index=False):
            x = rungs.index(rung) + 0.12 * (speeds.index(speed) - (len(speeds) - 1) / 2)
            axes.plot(x, scale * value, color=shades[speed], zorder=3, **style, **edge)


def _with_error(form: str, value: float, error: float) -> str:
    return f"{value:{form}}" + ("" if math.isnan(error) else f" ({error:{form.lstrip('+')}})")


def _wide(ladder: Ladder, table: DataFrame) -> str:
    """One row per cell and speed, one column per rung."""
    rows = []
    for (name, speed), own in table.groupby(["cell", "speed"], sort=False):
        shown = (_with_error(".2f", *pair) for pair in own[["uploads", "error"]].to_numpy())
        rows.append([_title(ladder, name), f"{speed:g}", *shown])
    return markdown(["cell", "m/s", *(rung.name for rung in ladder.rungs)], rows)


def _gains(ladder: Ladder, table: DataFrame) -> str:
    """One row per speed, one column per rung."""
    gain = table.groupby(["speed", "rung"], sort=False)["gain"].agg(["mean", "sem"])
    names = [rung.name for rung in ladder.rungs[1:]]
    rows = [
        [f"{speed:g}", *(_with_error("+.2f", *gain.loc[(speed, name)]) for name in names)]
        for speed in ladder.speeds_mps
    ]
    return markdown(["m/s", *(f"+ {name}" for name in names)], rows)


def _ageing(ladder: Ladder, policies: DataFrame) -> str:
    """What old fading is worth, the freshest first, and how much it still resembles the fresh."""
    radio, alike = ladder.base.radio, fading_memory(ladder)
    uploads = policies.pivot_table(index="speed", columns="policy", values="uploads")
    lines = []
    for speed in ladder.speeds_mps:
        mean = uploads.loc[speed]  # over cells
        none, fresh = mean[f"{_MATCHING}@{radio.slots}"], mean[_MATCHING]
        for age in ladder.ages:
            way = speed * age * radio.slot_s * radio.carrier_hz / LIGHT_MPS
            gain = mean[f"{_MATCHING}@{age}"] - none
            share = gain / (fresh - none) if fresh > none else math.nan
            shares = (f"{v:.2f}" for v in (share, alike.get((speed, age), math.nan)))
            shown = ("-" if text == "nan" else text for text in shares)
            lines.append((way, [f"{way:.2f}", f"{speed:g}", age, f"{gain:+.2f}", *shown]))
    heads = ["wavelengths", "m/s", "slots old", "uploads gained", "share kept", "autocorrelation"]
    return markdown(heads, [row for _, row in sorted(lines, key=lambda line: line[0])])


def _long(lines: DataFrame, field: str) -> str:
    """One row per cell and policy."""
    scale, form = (100, ".1f") if field == "accuracy" else (1, ".2f")
    shown = lines[["cell", "speed", "rung", "policy", field, "error"]].itertuples(index=False)
    rows = [
        [name, f"{speed:g}", rung, policy, _with_error(form, scale * value, scale * error)]
        for name, speed, rung, policy, value, error in shown
    ]
    return markdown(["cell", "m/s", "rung", "policy", field], rows)
