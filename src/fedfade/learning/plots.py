"""Pictures of the learning side: class shares of clients, learning curves, the bound."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedfade.learning.estimation import BoundRow
from fedfade.shown import drawn
from fedfade.style import headline, label, legend_below, panels, shade
from fedfade.wording import counted

TERMS = {
    "first": (r"$C_1|\nabla F|^2$", shade(0)),
    "second": (r"$C_2|\bar g-g|^2$ (set by who delivers)", shade(7)),
    "third": ("$C_3$", shade(2)),
    "bound": ("bound (sum)", "black"),
}
"""Name and colour of what a BoundRow holds of the bound (paper: eq. 25)."""


def class_distribution(
    counts: Mapping[float, NDArray[np.int64]], classes: Sequence[str], title: str
) -> Figure:
    """The paper's stacked bars: a column per client, a colour per class, a panel per alpha."""
    figure: Figure
    figure, (row,) = panels(1.6 + 3.1 * len(counts), 3.6, 1, len(counts), sharey=True)
    many = len(classes) > 10
    ten = ListedColormap([shade(k) for k in range(10)])
    colours = colormaps["viridis"].resampled(len(classes)) if many else ten
    for panel, (alpha, table) in zip(row, counts.items(), strict=True):
        places = np.arange(len(table))
        bottoms = np.cumsum(table, axis=1) - table  # [client, class]
        for k, name in enumerate(classes):
            bars = panel.bar(places, table[:, k], 0.85, bottom=bottoms[:, k], color=colours(k))
            bars.set_label(drawn(name))
        label(panel, rf"$\alpha$ = {alpha:g}", "client")
        panel.set_xlim(-0.7, len(table) - 0.3)
        panel.set_axisbelow(True)
        if len(table) <= 20:
            panel.set_xticks(places)
    row[0].set_ylabel("training samples")
    if not many:
        handles, names = row[0].get_legend_handles_labels()
        plain = {"frameon": False, "fontsize": 10}
        figure.legend(handles[::-1], names[::-1], loc="outside right center", **plain)
    headline(figure, drawn(title))
    return figure


def learning_curves(rounds: Sequence[int], accuracy: ArrayLike, title: str) -> Figure:
    """Test accuracy [evaluation, run] against rounds: the mean over seeds and every seed."""
    figure: Figure
    figure, ((panel,),) = panels(8, 4.6, 1, 1)
    values = 100 * np.asarray(accuracy)
    single, *_ = panel.plot(rounds, values, color=shade(0), alpha=0.45, lw=0.9)
    single.set_label("single seeds")
    mean = f"mean of {counted(values.shape[1], 'seed')}"
    panel.plot(rounds, values.mean(1), color=shade(0), lw=1.8, label=mean)
    panel.set(xlabel="federated rounds done", ylabel="test accuracy in %")
    panel.set_title(drawn(title), loc="left")
    panel.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def bound_terms(rows: Sequence[BoundRow], title: str) -> Figure:
    """The three terms and the measured change, round by round."""
    figure: Figure
    figure, grid = panels(8, 6, 2, 1, sharex=True)
    above, below = grid.flat
    rounds = [row.round for row in rows]
    terms = np.array([(row.first, row.second, row.third) for row in rows])  # [round, term]
    for field, (name, colour) in TERMS.items():
        above.plot(rounds, [getattr(row, field) for row in rows], color=colour, lw=1.6, label=name)
    # The symmetric logarithm turns linear just below the smallest term drawn.
    smallest = np.abs(terms[terms != 0]).min(initial=np.inf)
    above.set_yscale("symlog", linthresh=smallest if np.isfinite(smallest) else 1.0)
    above.set_title(drawn(title), loc="left")
    above.set_ylabel("terms of the bound")
    below.plot(rounds, [row.measured for row in rows], color="black", lw=1.6)
    below.axhline(0, color="grey", lw=0.7)
    below.set(xlabel="federated round", ylabel=r"measured $F(w_{t+1})-F(w_t)$")
    below.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, above, 4)
    return figure
