"""The pictures of a sweep: a metric against a field it varies, a line per policy.

Where several fields vary, the others' values are panels of their own, or, if they are many, means
over them are shown.
"""

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedfade.allocation import PERFECT
from fedfade.errors import UserError
from fedfade.experiments.figures import colour
from fedfade.experiments.metrics import Numbers, column
from fedfade.pages import PagePart
from fedfade.shown import drawn, from_cell
from fedfade.storage import read_bytes, save_figure
from fedfade.style import blank, headline, label, tidy
from fedfade.wording import counted

_MAX_BYTES = 2**28
_MOST_PANELS, _COLUMNS = 6, 3
_DRAWN = ("accuracy", "uploads", "reward")  # of these the first two that were measured
_NOT_METRICS = ("point", "status", "error", "seed", "policy", "episodes")


class SweptPanel(NamedTuple):
    """One field against which lines are drawn, the other fields fixed."""

    field: str
    others: str  # "radio.clusters = 14", or what is averaged; empty where nothing else varies
    x: list[str]  # the field's values, in order
    metrics: Mapping[str, Mapping[str, Numbers]]  # metric -> policy -> [seed, value]

    @property
    def labels(self) -> list[str]:
        """The values as an axis shows them."""
        return [_short(value) for value in self.x]

    @property
    def places(self) -> list[float] | None:
        """Where values stand on an axis; None where they are names, or orders of magnitude apart
        and better spaced evenly."""
        try:
            numbers = [float(value) for value in self.x]
        except ValueError:
            return None
        low, high = min(map(abs, numbers)), max(map(abs, numbers))
        even = math.isfinite(high) and (low == 0 or high <= 20 * low)
        return numbers if even else None


def _short(value: str) -> str:
    """A number in few letters, a name as it is.

    >>> _short("2500000.0"), _short("0.5"), _short("ring")
    ('2.5e6', '0.5', 'ring')
    """
    try:
        return f"{float(value):g}".replace("e+0", "e").replace("e-0", "e-")
    except ValueError:
        return value


def read_sweep(folder: Path) -> tuple[list[str], pd.DataFrame]:
    """The fields that vary in a sweep's folder, and the finished lines of its table, as text."""
    path = folder / "sweep.csv"
    if not path.is_file():
        raise UserError(f"{str(folder)!r} is no folder of fedfade sweep: it has no sweep.csv.")
    try:
        text = read_bytes(path, _MAX_BYTES).decode("utf-8")
        table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        names = list(table.columns)
        fields = names[names.index("point") + 1 : names.index("seed")]
        done = table[table["status"] == "done"].map(from_cell)
    except (ValueError, KeyError):
        raise UserError(f"{str(path)!r} is not a table of fedfade sweep.") from None
    if not done.empty and "policy" not in done:
        raise UserError(f"{str(path)!r} is not a table of fedfade sweep: it has no policies.")
    return [field for field in fields if done[field].nunique() > 1], done


def swept_panels(fields: Sequence[str], done: pd.DataFrame) -> list[SweptPanel]:
    """All panels of a sweep, field by field."""
    found = []
    for field in fields:
        others = [other for other in fields if other != field]
        groups = list(done.groupby(others, sort=False)) if others else [((), done)]
        if len(groups) > _MOST_PANELS:
            found.append(_panel(field, f"mean over {', '.join(others)}", done))
            continue
        for values, own in groups:
            pairs = zip(others, values, strict=True)
            fixed = ", ".join(f"{name} = {_short(value) or 'as it was'}" for name, value in pairs)
            found.append(_panel(field, fixed, own))
    return found


def _panel(field: str, others: str, lines: pd.DataFrame) -> SweptPanel:
    values = list(dict.fromkeys(lines[field]))
    with contextlib.suppress(ValueError):  # names stay in the order they were asked for in
        values.sort(key=float)
    seeds, metrics = sorted(set(lines["seed"]), key=int), {}
    for name in lines.columns.difference([field, *_NOT_METRICS], sort=False):
        numbers = pd.to_numeric(lines[name], errors="coerce")
        if "." in name or numbers.isna().all():  # a field, or nothing measured
            continue
        by = [lines["policy"], lines["seed"], lines[field]]
        means = numbers.groupby(by, sort=False).mean()
        metrics[name] = {
            policy: means[policy].unstack().reindex(index=seeds, columns=values).to_numpy()
            for policy in dict.fromkeys(lines["policy"])
        }
    return SweptPanel(field, others, values, metrics)


def save_sweep_figures(folder: Path) -> list[Path]:
    """Draw what a sweep has found so far into `figures/`; returns the files."""
    fields, done = read_sweep(folder)
    panels, files = swept_panels(fields, done), []
    for field in fields:
        own = [panel for panel in panels if panel.field == field]
        there = [name for name in _DRAWN if any(name in panel.metrics for panel in own)]
        for metric in there[:2]:
            path = folder / "figures" / f"{field.rpartition('.')[2]}-{metric}.png"
            save_figure(sweep_figure(own, metric), path)
            files.append(path)
    return files


def sweep_figure(panels: Sequence[SweptPanel], metric: str) -> Any:
    """One metric against one field: mean over seeds, bars of a standard error."""
    columns, shown = min(len(panels), _COLUMNS), column(metric)
    rows = -(-len(panels) // columns)
    figure = blank(2.2 + 3.6 * columns, 1.2 + 3.0 * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    order = list(dict.fromkeys(policy for panel in panels for policy in panel.metrics[metric]))
    seeds = max(len(values) for panel in panels for values in panel.metrics[metric].values())
    for axes, panel in zip(grid, panels, strict=False):
        places = panel.places or list(range(len(panel.x)))
        for policy, values in panel.metrics[metric].items():
            if np.isnan(values).all():
                continue
            line = shown.scale * np.nanmean(values, axis=0)
            spread = shown.scale * np.nanstd(values, axis=0, ddof=1) if seeds > 1 else 0.0
            bars = np.nan_to_num(spread / np.sqrt(len(values))) if seeds > 1 else None
            style = {"ls": "--" if policy == PERFECT else "-", "marker": "o", "ms": 4, "lw": 1.8}
            shade = colour(policy, order)
            axes.errorbar(places, line, bars, label=drawn(policy), color=shade, capsize=2, **style)
        if panel.places is None or len(places) <= 8:
            axes.set_xticks(places, [drawn(value) for value in panel.labels])
        label(axes, drawn(panel.others), drawn(panel.field))
        tidy(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::columns]:
        axes.set_ylabel(shown.label.lower() + (" in %" if shown.unit == "%" else ""))
    noise = f"mean over {counted(seeds, 'seed')}, bars: standard error" if seeds > 1 else "one seed"
    title = f"{shown.label} against {drawn(panels[0].field)}, {noise}"
    headline(figure, title)
    named = grid[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside right center", frameon=False, fontsize=10)
    return figure


def sweep_parts(folder: Path) -> list[PagePart]:
    """What a page shows of a sweep: a chart for each panel, every metric in it."""
    fields, done = read_sweep(folder)
    if not fields:
        why = "give those of its runs in points/ instead"
        raise UserError(f"{str(folder)!r} is a sweep in which no field varies: {why}.")
    parts = []
    for panel in swept_panels(fields, done):
        order = list(dict.fromkeys(policy for own in panel.metrics.values() for policy in own))
        lines = [
            {"name": p, "colour": colour(p, order), "bound": p == PERFECT, "about": ""}
            for p in order
        ]
        x: dict[str, Any] = {"name": panel.field, "label": panel.field, "values": panel.places}
        if panel.places is None:
            x |= {"values": list(range(len(panel.x))), "categories": panel.labels}
        y = [
            {
                "name": metric,
                "label": (shown := column(metric)).heading,
                "digits": shown.digits,
                "values": [(shown.scale * own[policy]).tolist() for policy in order],
            }
            for metric, own in panel.metrics.items()
        ]
        title = f"{folder.name}: {panel.field}" + (panel.others and f", {panel.others}")
        file = f"{folder.name}-{panel.field}"
        data = {"file": file, "kind": "seed", "lines": lines, "x": [x], "y": y}
        intro = f"What the sweep in {folder.name} found against {panel.field}."
        parts.append(PagePart("chart", title, {"intro": intro, "picture": None}, data))
    return parts
