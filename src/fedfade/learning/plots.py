"""Pictures of the learning side: class shares of clients, learning curves, the bound."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedfade.learning.estimation import BoundRow
from fedfade.shown import drawn
from fedfade.wording import counted


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=rows > 1, sharey=columns > 1, squeeze=False)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(panels.flat)


def class_distribution(
    counts: Mapping[float, NDArray[np.int64]], classes: Sequence[str], title: str
) -> Figure:
    """The paper's stacked bars: a column per client, a colour per class, a panel per alpha."""
    figure, panels = _panels(1, len(counts), (1.6 + 3.1 * len(counts), 3.4))
    many = len(classes) > 10
    colours = colormaps["viridis"].resampled(len(classes)) if many else colormaps["tab10"]
    for panel, (alpha, table) in zip(panels, counts.items(), strict=True):
        places = np.arange(len(table))
        bottoms = np.cumsum(table, axis=1) - table  # [client, class]
        for k, name in enumerate(classes):
            bars = panel.bar(places, table[:, k], 0.85, bottom=bottoms[:, k], color=colours(k))
            bars.set_label(drawn(name))
        panel.set_title(rf"$\alpha$ = {alpha:g}", fontsize=11)
        panel.set(xlabel="client", xlim=(-0.7, len(table) - 0.3))
        if len(table) <= 20:
            panel.set_xticks(places)
    panels[0].set_ylabel("training samples")
    if not many:
        handles, names = panels[0].get_legend_handles_labels()
        plain = {"frameon": False, "fontsize": 8}
        figure.legend(handles[::-1], names[::-1], loc="outside right center", **plain)
    figure.suptitle(drawn(title), fontsize=11)
    return figure


def learning_curves(rounds: Sequence[int], accuracy: ArrayLike, title: str) -> Figure:
    """Test accuracy [evaluation, run] against rounds: the mean over seeds and every seed."""
    figure, (panel,) = _panels(1, 1, (5.4, 3.4))
    values = 100 * np.asarray(accuracy)
    single, *_ = panel.plot(rounds, values, color="tab:blue", alpha=0.35, lw=0.9)
    single.set_label("single seeds")
    mean = f"mean of {counted(values.shape[1], 'seed')}"
    panel.plot(rounds, values.mean(1), color="tab:blue", lw=2, label=mean)
    panel.set(xlabel="rounds done", ylabel="test accuracy (%)")
    panel.set_title(drawn(title), fontsize=11)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, loc="lower right")
    return figure


def bound_terms(rows: Sequence[BoundRow], title: str) -> Figure:
    """The three terms and the measured change, round by round."""
    figure, (above, below) = _panels(2, 1, (6.4, 5.6))
    rounds = [row.round for row in rows]
    terms = np.array([(row.first, row.second, row.third) for row in rows])  # [round, term]
    names = r"$C_1\,|\nabla F|^2$", r"$C_2\,|\bar g-g|^2$ (set by who delivers)", "$C_3$"
    above.plot(rounds, terms, label=names)
    above.plot(rounds, [row.bound for row in rows], "k", lw=1.8, label="bound (sum)")
    # The symmetric logarithm turns linear just below the smallest term drawn.
    smallest = np.abs(terms[terms != 0]).min(initial=np.inf)
    above.set_yscale("symlog", linthresh=smallest if np.isfinite(smallest) else 1.0)
    above.set_ylabel("terms of the bound")
    above.set_title(drawn(title), fontsize=11)
    above.legend(frameon=False, fontsize=8)
    below.plot(rounds, [row.measured for row in rows], "k", lw=1.2)
    below.axhline(0, color="grey", lw=0.7)
    below.set(xlabel="round", ylabel=r"measured $F(w_{t+1})-F(w_t)$")
    for panel in (above, below):
        panel.grid(alpha=0.3)
    return figure
