"""Pictures of the learning side: class shares of clients, learning curves, the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfade.storage import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedfade.learning.estimation import BoundRow
    from fedfade.learning.round import CurvePoint


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def class_distribution(
    counts: Mapping[float, NDArray[np.int64]], classes: Sequence[str], title: str
) -> Figure:
    """The paper's stacked bars: a column per client, a colour per class, a panel per alpha."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 3.1 * len(counts), 3.4), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    colours = colormaps["tab10" if len(classes) <= 10 else "viridis"]
    many = len(classes) > 10
    for panel, (alpha, table) in zip(panels, counts.items(), strict=True):
        places = np.arange(len(table))
        bottom = np.zeros(len(table))
        for k, name in enumerate(classes):
            colour = colours(k / (len(classes) - 1)) if many else colours(k)
            panel.bar(places, table[:, k], 0.85, bottom=bottom, color=colour, label=name)
            bottom += table[:, k]
        panel.set_title(rf"$\alpha$ = {alpha:g}", fontsize=11)
        panel.set_xlabel("client")
        panel.set_xlim(-0.7, len(table) - 0.3)
        if len(table) <= 20:
            panel.set_xticks(places)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("training samples")
    handles, names = panels[0].get_legend_handles_labels()
    if not many:
        figure.legend(
            handles[::-1], names[::-1], loc="outside right center", frameon=False, fontsize=8
        )
    figure.suptitle(title, fontsize=11)
    return figure


def learning_curves(points: Sequence[CurvePoint], seeds: Sequence[int], title: str) -> Figure:
    """Test accuracy against rounds: the mean over seeds and every seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    panel = figure.subplots()
    rounds = [point.rounds for point in points]
    values = 100 * np.array([point.accuracy for point in points])  # [point, run]
    for run in range(len(seeds)):
        label = "single seeds" if run == 0 else None
        panel.plot(rounds, values[:, run], color="tab:blue", alpha=0.35, lw=0.9, label=label)
    panel.plot(rounds, values.mean(1), color="tab:blue", lw=2, label=f"mean of {len(seeds)} seeds")
    panel.set_xlabel("round")
    panel.set_ylabel("test accuracy (%)")
    panel.set_title(title, fontsize=11)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, loc="lower right")
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def bound_terms(rows: Sequence[BoundRow], title: str) -> Figure:
    """The three terms and the measured change, round by round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    rounds = [row.round for row in rows]
    above.plot(rounds, [row.first for row in rows], label=r"$C_1\,|\nabla F|^2$")
    above.plot(
        rounds, [row.second for row in rows], label=r"$C_2\,|\bar g-g|^2$ (set by who delivers)"
    )
    above.plot(rounds, [row.third for row in rows], label=r"$C_3$")
    above.plot(rounds, [row.bound for row in rows], "k", lw=1.8, label="bound (sum)")
    above.set_yscale("symlog", linthresh=_smallest(rows))
    above.set_ylabel("terms of the bound")
    above.set_title(title, fontsize=11)
    below.plot(rounds, [row.measured for row in rows], "k", lw=1.2)
    below.axhline(0, color="grey", lw=0.7)
    below.set_ylabel(r"measured $F(w_{t+1})-F(w_t)$")
    below.set_xlabel("round")
    above.legend(frameon=False, fontsize=8)
    for panel in (above, below):
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _smallest(rows: Sequence[BoundRow]) -> float:
    """Where the symmetric logarithm turns linear: just below the smallest term drawn."""
    sizes = [abs(v) for row in rows for v in (row.first, row.second, row.third) if v != 0]
    return min(sizes, default=1.0)
