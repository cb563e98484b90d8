"""The pictures of a comparison. Every function returns a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedfade.allocation import GENIE, PERFECT, History
from fedfade.experiments.metrics import Row, as_text, policies_of, series, served, summarise
from fedfade.shown import drawn
from fedfade.uplink import Scenario
from fedfade.wording import counted

# One colour per policy everywhere; the rest take what is left of the palette.
_COLOURS = {
    PERFECT: "#444444",
    GENIE: "#999999",
    "random": "#c0392b",
    "max-individual-rate": "#e67e22",
    "max-sum-rate": "#2471a3",
    "block-fading-schedule": "#1e8449",
    "block-fading-schedule-feedback": "#7dcea0",
    "wrap-around-schedule": "#9ccc65",
    "wrap-around-choice": "#ec407a",
    "shortest-remaining-first": "#8e44ad",
    "deadline-feedback": "#a1887f",
    "deadline-matching": "#311b92",
    "qmix": "#d4ac0d",
    "qmix-plus": "#00acc1",
}
_SPARE = ["#16a085", "#d35400", "#2c3e50", "#f06292", "#5d4037"]


_WIDEST = 9.6
"""Inches: the report shows pictures no wider, and their letters would shrink."""


def colour(policy: str, order: Sequence[str]) -> str:
    """A policy's colour, stable across figures."""
    if policy in _COLOURS:
        return _COLOURS[policy]
    others = [name for name in order if name not in _COLOURS]
    return _SPARE[others.index(policy) % len(_SPARE)]


def blank(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any) -> None:
    """Two spines and a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)


def of_seeds(count: int, kind: str = "seed") -> str:
    """What is shown of so many.

    >>> of_seeds(5), of_seeds(1)
    ('median and 10-90 % band over 5 seeds', 'one seed')
    """
    return f"median and 10-90 % band over {counted(count, kind)}" if count > 1 else f"one {kind}"


_AGAINST = {"seconds": "seconds since the start", "joules": "joules drawn by all clients"}


def accuracy_figure(rows: Sequence[Row], against: str = "round") -> Figure:
    """Test accuracy: median over seeds, 10-90 % band if there are several.

    Against rounds, or against what they have cost up to each, the mean over seeds.
    """
    figure = blank(8, 4.6)
    axes = figure.subplots()
    order = [p for p in policies_of(rows) if p != GENIE]
    for policy in order:
        accuracy = 100 * series(rows, policy, "accuracy")
        measured = ~np.isnan(accuracy).all(0)
        place = np.flatnonzero(measured).astype(float)
        if against in _AGAINST:
            place = series(rows, policy, against).cumsum(1).mean(0)[measured]
        if np.isnan(place).any():  # where every upload succeeds none is paid for
            continue
        low, middle, high = np.percentile(accuracy[:, measured], [10, 50, 90], axis=0)
        style, shade = "--" if policy == PERFECT else "-", colour(policy, order)
        dot = "o" if len(place) <= 12 else ""  # a single point is no line
        axes.plot(
            place, middle, style, color=shade, label=drawn(policy), lw=1.8, marker=dot, ms=3.5
        )
        if len(accuracy) > 1:
            axes.fill_between(place, low, high, color=shade, alpha=0.13, lw=0)
    axes.set(xlabel=_AGAINST.get(against, "federated round"), ylabel="test accuracy in %")
    axes.set_xlim(left=0 if against in _AGAINST else None)
    axes.set_title(f"Test accuracy, {of_seeds(len({row.seed for row in rows}))}", loc="left")
    if axes.lines:
        axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    return figure


def _lanes(order: Sequence[str], height: float, title: str) -> tuple[Figure, Any]:
    """A figure with a horizontal lane per policy, `height` inches each."""
    figure = blank(8, height * max(1, len(order)) + 1.4)
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
    figure = blank(min(max(6.0, 0.45 * clients + 3.2), _WIDEST), 0.5 * len(order) + 1.7)
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
        text = summarise(rows, policy).text("wasted")
        axes.text(
            sent, lane, f"  {text} % wasted" if sent > 0 else "  none", va="center", fontsize=9
        )
    axes.margins(x=0.16)
    axes.set_xlabel("Mbit received in a round")
    return figure


def round_figure(
    history: History, episode: int, scenario: Scenario, title: str, snr_db: Sequence[float]
) -> Figure:
    """One round, slot by slot: who is on which sub-band at which power, and what is left.

    Top: a lane per sub-band, one colour per client, height = power level; collisions in grey
    hatching. Bottom: each client's remaining bits.
    """
    from matplotlib import colormaps

    clients, bands = scenario.clients, scenario.bands
    band = history.band[:, episode].cpu().numpy()  # [slot, client]
    power = scenario.power_w[history.level[:, episode]].cpu().numpy()
    left = (history.remaining_bits[:, episode] / scenario.payload_bits).cpu().numpy()
    palette = colormaps["tab10" if clients <= 10 else "gist_ncar"]
    shade = [palette(c if clients <= 10 else c / clients) for c in range(clients)]
    figure = blank(11, 2.2 + 0.55 * bands + 2.6)
    ratios = [max(1.2, 0.5 * bands), 2.2]
    lanes, progress = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
    _draw_lanes(lanes, band, power, np.unique(scenario.power_w.cpu().numpy()), shade, bands)
    lanes.set_title(drawn(title), loc="left")
    _draw_progress(progress, left, shade, snr_db)
    return figure


def _draw_lanes(
    axes: Any, band: np.ndarray, power: np.ndarray, levels: np.ndarray, shade: list[Any], bands: int
) -> None:
    """A bar per sub-band and slot: `band` and `power` are [slot, client]."""
    for lane in range(bands):
        sending = (band == lane) & (power > 0)  # [slot, client]
        crowd = sending.sum(1)
        rank = np.searchsorted(levels, power) / max(1, len(levels) - 1)
        bars = [
            (sending[:, client] & (crowd == 1), 0.25 + 0.6 * rank[:, client], {"color": colour_})
            for client, colour_ in enumerate(shade)
        ]
        grey = {"fc": "#bbbbbb", "ec": "#777777", "hatch": "xxxx"}
        bars.append((crowd > 1, np.full(len(crowd), 0.85), grey))
        floor = lane + 0.9
        for mask, height, style in bars:
            if mask.any():
                top = np.where(mask, floor - height, np.nan)
                axes.stairs(top, baseline=floor, fill=True, lw=0, **style)
    axes.set_yticks(np.arange(bands) + 0.45, [f"sub-band {b}" for b in range(bands)])
    axes.set_ylim(bands, -0.1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_progress(axes: Any, left: np.ndarray, shade: list[Any], snr_db: Sequence[float]) -> None:
    """What each client has left to send: `left` is [slot, client], 1 = everything."""
    slots, clients = left.shape
    delivered = left[-1] <= 0
    for client in range(clients):
        style = "-" if delivered[client] else ":"
        curve, label = 100 * np.append(1.0, left[:, client]), f"{client} ({snr_db[client]:.0f} dB)"
        axes.plot(range(slots + 1), curve, style, color=shade[client], label=label)
        if delivered[client]:
            end = int(np.argmax(left[:, client] <= 0)) + 1
            axes.plot(end, 0, "o", color=shade[client], clip_on=False, zorder=4)
    axes.set(xlabel="slot", ylabel="left to send in %", xlim=(0, slots), ylim=(0, 102))
    text = "(top: bar height = power, hatched = collision; dotted = did not finish)"
    count = f"{int(delivered.sum())} of {counted(clients, 'client')} delivered"
    axes.set_title(f"{count} {text}", loc="left", fontsize=10)
    columns, corner = 1 + (clients - 1) // 14, {"loc": "upper left", "bbox_to_anchor": (1.0, 1.05)}
    axes.legend(title="client (mean SNR)", frameon=False, fontsize=8, ncols=columns, **corner)
    tidy(axes)
