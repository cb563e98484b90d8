"""The pictures of a comparison. Every function returns a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedfade.allocation import GENIE, PERFECT
from fedfade.experiments.metrics import SPENT, Row, as_text, policies_of, series, served, summarise
from fedfade.shown import drawn
from fedfade.style import blank, tidy
from fedfade.wording import counted

# One colour per policy everywhere, after Paul Tol's schemes, which most colour-blind people can
# tell apart; the rest take what is left.
_COLOURS = {
    PERFECT: "#444444",
    GENIE: "#999999",
    "random": "#cc3311",
    "max-individual-rate": "#ee7733",
    "max-sum-rate": "#0077bb",
    "block-fading-schedule": "#117733",
    "block-fading-schedule-feedback": "#6fae83",
    "wrap-around-schedule": "#8a9a1b",
    "wrap-around-choice": "#ee3377",
    "shortest-remaining-first": "#aa4499",
    "deadline-feedback": "#997755",
    "deadline-matching": "#332288",
    "deadline-progress": "#44aa99",
    "qmix": "#b8860b",
    "qmix-plus": "#009988",
    "qmix-hold": "#1e90c8",
    "mappo-hold": "#882255",
}
_SPARE = ["#5566bb", "#aa5500", "#557788", "#cc6677", "#664433"]


_WIDEST = 9.6
"""Inches: the report shows pictures no wider, and their letters would shrink."""


def colour(policy: str, order: Sequence[str]) -> str:
    """A policy's colour, stable across figures."""
    if policy in _COLOURS:
        return _COLOURS[policy]
    others = [name for name in order if name not in _COLOURS]
    return _SPARE[others.index(policy) % len(_SPARE)]


def of_seeds(count: int, kind: str = "seed") -> str:
    """What is shown of so many.

    >>> of_seeds(5), of_seeds(1)
    ('median and 10-90 % band over 5 seeds', 'one seed')
    """
    return f"median and 10-90 % band over {counted(count, kind)}" if count > 1 else f"one {kind}"


def accuracy_figure(rows: Sequence[Row], against: str = "round") -> Figure:
    """Test accuracy: median over seeds, 10-90 % band if there are several.

    Against rounds, or against what they have cost up to each, the mean over seeds.
    """
    figure: Figure = blank(8, 4.6)
    axes = figure.subplots()
    order = [p for p in policies_of(rows) if p != GENIE]
    for policy in order:
        accuracy = 100 * series(rows, policy, "accuracy")
        measured = ~np.isnan(accuracy).all(0)
        place = np.flatnonzero(measured).astype(float)
        if against in SPENT:
            place = series(rows, policy, against).cumsum(1).mean(0)[measured]
        if np.isnan(place).any():  # where every upload succeeds none is paid for
            continue
        low, middle, high = np.percentile(accuracy[:, measured], [10, 50, 90], axis=0)
        style, shade = "--" if policy == PERFECT else "-", colour(policy, order)
        dot = "o" if len(place) <= 12 else ""  # a single point is no line
        (line,) = axes.plot(place, middle, style, color=shade, lw=1.8, marker=dot, ms=3.5)
        line.set_label(drawn(policy))
        if len(accuracy) > 1:
            axes.fill_between(place, low, high, color=shade, alpha=0.13, lw=0)
    label = SPENT[against].label if against in SPENT else "federated round"
    axes.set(xlabel=label, ylabel="test accuracy in %")
    axes.set_xlim(left=0 if against in SPENT else None)
    axes.set_title(f"Test accuracy, {of_seeds(len({row.seed for row in rows}))}", loc="left")
    if axes.lines:
        axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    return figure


def _lanes(order: Sequence[str], height: float, title: str) -> tuple[Figure, Any]:
    """A figure with a horizontal lane per policy, `height` inches each."""
    figure: Figure = blank(8, height * max(1, len(order)) + 1.4)
    axes = figure.subplots()
    axes.set_yticks(range(len(order)), [f"{p} (bound)" if p == GENIE else drawn(p) for p in order])
    axes.invert_yaxis()
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def uploads_figure(rows: Sequence[Row], clients: int) -> Figure:
    """Delivered clients a round: mean, and how often how many."""
    order = policies_of(rows)
    figure, axes = _lanes(order, 0.55, "Uploads per round: bar = mean, dot = how often")
    for lane, policy in enumerate(order):
        delivered = series(rows, policy, "delivered").ravel()
        shade = colour(policy, order)
        axes.barh(lane, delivered.mean(), color=shade, alpha=0.35, height=0.7)
        values, counts = np.unique(delivered, return_counts=True)
        size, lanes = 220 * counts / len(delivered), np.full(len(values), lane)
        axes.scatter(values, lanes, s=size, color=shade, zorder=3, clip_on=False)
        text = as_text("uploads", float(delivered.mean()))
        axes.text(clients * 1.03, lane, text, va="center", fontsize=10)
    axes.set(xlim=(0, clients), xlabel=f"clients that delivered, of {clients}")
    return figure


def served_figure(rows: Sequence[Row], clients: int) -> Figure:
    """Who is served: share of rounds in which each client delivered, clients by rank."""
    by_seed = [[r for r in rows if r.seed == seed] for seed in sorted({r.seed for r in rows})]
    shares = {}
    for policy in (policy for policy in policies_of(rows) if policy != GENIE):
        ranked = [np.sort(served(own, policy, clients))[::-1] for own in by_seed]
        shares[policy] = np.mean(ranked, axis=0)
    return share_map(shares)


def share_map(shares: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Shares of rounds served, a row per policy, clients by rank."""
    order, percent = list(shares), 100 * np.array(list(shares.values()))
    clients = percent.shape[1]
    width, height = min(max(6.0, 0.45 * clients + 3.2), _WIDEST), 0.5 * len(order) + 1.7
    figure: Figure = blank(width, height)
    axes = figure.subplots()
    image = axes.imshow(percent, cmap="YlGnBu", vmin=0, vmax=100, aspect="auto")
    few = clients <= 15  # room for a number in every cell
    for (row, column), value in np.ndenumerate(percent) if few else ():
        shade = "white" if value > 55 else "black"
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", size=8, color=shade)
    step = next(n for n in (5, 10, 20, 50, 100, 1000) if clients <= 20 * n)
    ranks = range(1, clients + 1) if few else [1, *range(step, clients + 1, step)]
    axes.set_xticks([rank - 1 for rank in ranks], [str(rank) for rank in ranks])
    axes.set_yticks(range(len(order)), [*map(drawn, order)])
    axes.set_xlabel("rank of the client, 1 = most served (mean over seeds)")
    axes.set_title("Who is served: % of rounds in which the client delivered", loc="left")
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01, label="% of rounds")
    return figure


def waste_figure(rows: Sequence[Row]) -> Figure:
    """Bits received a round: from finished uploads, and for nothing."""
    order = [p for p in policies_of(rows) if p not in (GENIE, PERFECT)]
    title = "Where the bits go: solid = delivered, hatched = unfinished uploads"
    figure, axes = _lanes(order, 0.5, title)
    for lane, policy in enumerate(order):
        sent = series(rows, policy, "bits_sent").mean() / 1e6
        wasted = series(rows, policy, "bits_wasted").mean() / 1e6
        kept, shade = sent - wasted, colour(policy, order)
        axes.barh(lane, kept, color=shade, height=0.7)
        axes.barh(lane, wasted, left=kept, color=shade, alpha=0.25, hatch="///", height=0.7)
        text = f"  {summarise(rows, policy).text('wasted')} % wasted" if sent > 0 else "  none"
        axes.text(sent, lane, text, va="center", fontsize=9)
    axes.margins(x=0.16)
    axes.set_xlabel("Mbit received in a round")
    return figure
