"""The pictures of a comparison. Every function returns a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfade.allocation import GENIE, PERFECT, History
from fedfade.experiments.metrics import Row, policies_of, series, served
from fedfade.uplink import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def colour(policy: str, order: Sequence[str]) -> str:
    """A policy's colour, stable across figures."""
    if policy in _COLOURS:
        return _COLOURS[policy]
    others = [name for name in order if name not in _COLOURS]
    return _SPARE[others.index(policy) % len(_SPARE)]


def blank(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches."""
    from matplotlib.figure import Figure

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
    return f"median and 10-90 % band over {count} {kind}s" if count > 1 else f"one {kind}"


def accuracy_figure(rows: Sequence[Row]) -> Figure:
    """Test accuracy against rounds: median over seeds, 10-90 % band."""
    figure = blank(8, 4.6)
    axes = figure.subplots()
    order = [p for p in policies_of(rows) if p != GENIE]
    seeds = 1
    for policy in order:
        accuracy = 100 * series(rows, policy, "accuracy")
        seeds = len(accuracy)
        measured = ~np.isnan(accuracy).all(0)
        rounds = np.flatnonzero(measured) + 1
        low, middle, high = np.percentile(accuracy[:, measured], [10, 50, 90], axis=0)
        style = "--" if policy == PERFECT else "-"
        axes.plot(rounds, middle, style, color=colour(policy, order), label=policy, lw=1.8)
        axes.fill_between(rounds, low, high, color=colour(policy, order), alpha=0.13, lw=0)
    axes.set(xlabel="federated round", ylabel="test accuracy in %")
    axes.set_title(f"Test accuracy, {of_seeds(seeds)}", loc="left")
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    return figure


def uploads_figure(rows: Sequence[Row], clients: int) -> Figure:
    """Delivered clients a round: mean, and how often how many."""
    figure = blank(8, 0.55 * len(policies_of(rows)) + 1.4)
    axes = figure.subplots()
    order = policies_of(rows)
    for place, policy in enumerate(order):
        delivered = series(rows, policy, "delivered").ravel()
        shade = colour(policy, order)
        axes.barh(place, delivered.mean(), color=shade, alpha=0.35, height=0.7)
        values, counts = np.unique(delivered, return_counts=True)
        axes.scatter(
            values,
            np.full(len(values), place),
            s=220 * counts / len(delivered),
            color=shade,
            zorder=3,
            clip_on=False,
        )
        axes.text(clients * 1.03, place, f"{delivered.mean():.2f}", va="center", fontsize=10)
    axes.set_yticks(range(len(order)), [f"{p} (bound)" if p == GENIE else p for p in order])
    axes.invert_yaxis()
    axes.set(xlim=(0, clients), xlabel=f"clients that delivered, of {clients}")
    axes.set_title("Uploads per round: bar = mean, dot = how often", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def served_figure(rows: Sequence[Row], clients: int) -> Figure:
    """Who is served: share of rounds in which each client delivered, clients by rank."""
    seeds = sorted({row.seed for row in rows})
    shares = {
        policy: np.mean(
            [
                np.sort(served([r for r in rows if r.seed == seed], policy, clients))[::-1]
                for seed in seeds
            ],
            axis=0,
        )
        for policy in policies_of(rows)
        if policy != GENIE
    }
    return share_map(shares)


def share_map(shares: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Shares of rounds served, a row per policy, clients by rank."""
    order, percent = list(shares), 100 * np.array(list(shares.values()))
    clients = percent.shape[1]
    figure = blank(max(6.0, 0.45 * clients + 3.2), 0.5 * len(order) + 1.7)
    axes = figure.subplots()
    image = axes.imshow(percent, cmap="YlGnBu", vmin=0, vmax=100, aspect="auto")
    if clients <= 20:
        for (row, column), value in np.ndenumerate(percent):
            axes.text(
                column,
                row,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if value > 55 else "black",
            )
        axes.set_xticks(range(clients), [str(c + 1) for c in range(clients)])
    axes.set_yticks(range(len(order)), order)
    axes.set_xlabel("client, most served first (mean over seeds)")
    axes.set_title("Who is served: % of rounds in which the client delivered", loc="left")
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01, label="% of rounds")
    return figure


def waste_figure(rows: Sequence[Row]) -> Figure:
    """Bits received a round: from finished uploads, and for nothing."""
    order = [p for p in policies_of(rows) if p not in (GENIE, PERFECT)]
    figure = blank(8, 0.5 * max(1, len(order)) + 1.4)
    axes = figure.subplots()
    for place, policy in enumerate(order):
        sent = series(rows, policy, "bits_sent").mean() / 1e6
        wasted = series(rows, policy, "bits_wasted").mean() / 1e6
        shade = colour(policy, order)
        axes.barh(place, sent - wasted, color=shade, height=0.7)
        axes.barh(
            place, wasted, left=sent - wasted, color=shade, alpha=0.25, hatch="///", height=0.7
        )
        share = wasted / sent if sent > 0 else math.nan
        axes.text(sent, place, f"  {share:.0%} wasted", va="center", fontsize=9)
    axes.set_yticks(range(len(order)), order)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel("Mbit received in a round")
    axes.set_title("Where the bits go: solid = delivered, hatched = unfinished uploads", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def round_figure(
    history: History, episode: int, scenario: Scenario, title: str, snr_db: Sequence[float]
) -> Figure:
    """One round, slot by slot: who is on which sub-band at which power, and what is left.

    Top: a lane per sub-band, one colour per client, height = power level; collisions in grey
    hatching. Bottom: each client's remaining bits.
    """
    from matplotlib import colormaps

    clients, bands, slots = scenario.clients, scenario.bands, scenario.slots
    band = history.band[:, episode].cpu().numpy()  # [slot, client]
    power = scenario.power_w[history.level[:, episode]].cpu().numpy()
    left = history.remaining_bits[:, episode].cpu().numpy() / scenario.payload_bits
    palette = colormaps["tab10" if clients <= 10 else "gist_ncar"]
    shade = [palette(c if clients <= 10 else c / clients) for c in range(clients)]
    figure = blank(11, 2.2 + 0.55 * bands + 2.6)
    lanes, progress = figure.subplots(2, 1, sharex=True, height_ratios=[max(1.2, 0.5 * bands), 2.2])
    positive = np.sort(np.unique(scenario.power_w.cpu().numpy()))
    for lane in range(bands):
        sending = (band == lane) & (power > 0)  # [slot, client]
        crowd = sending.sum(1)
        for client in range(clients):
            alone = sending[:, client] & (crowd == 1)
            rank = np.searchsorted(positive, power[:, client]) / max(1, len(positive) - 1)
            _lane_bars(lanes, lane, alone, 0.25 + 0.6 * rank, shade[client])
        _lane_bars(lanes, lane, crowd > 1, np.full(slots, 0.85), "#bbbbbb", hatch="xxxx")
    lanes.set_yticks(np.arange(bands) + 0.45, [f"sub-band {b}" for b in range(bands)])
    lanes.set_ylim(bands, -0.1)
    lanes.set_title(title, loc="left")
    lanes.spines[["top", "right", "left"]].set_visible(False)
    lanes.tick_params(axis="y", length=0)
    delivered = left[-1] <= 0
    for client in range(clients):
        label = f"{client} ({snr_db[client]:.0f} dB)"
        style = "-" if delivered[client] else ":"
        curve = np.concatenate([[1.0], left[:, client]])
        progress.plot(range(slots + 1), 100 * curve, style, color=shade[client], label=label)
        if delivered[client]:
            end = int(np.argmax(left[:, client] <= 0)) + 1
            progress.plot(end, 0, "o", color=shade[client], clip_on=False, zorder=4)
    progress.set(xlabel="slot", ylabel="left to send in %", xlim=(0, slots), ylim=(0, 102))
    progress.set_title(
        f"{int(delivered.sum())} of {clients} clients delivered "
        "(top: bar height = power, hatched = collision; dotted = did not finish)",
        loc="left",
        fontsize=10,
    )
    progress.legend(
        title="client (mean SNR)",
        frameon=False,
        fontsize=8,
        ncols=1 + (clients - 1) // 14,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.05),
    )
    tidy(progress)
    return figure


def _lane_bars(
    axes: Any, lane: int, mask: np.ndarray, height: np.ndarray, colour_: Any, hatch: str = ""
) -> None:
    """Bars over runs of slots where the mask holds and the height stays the same."""
    if not mask.any():
        return
    key = np.where(mask, height, -1.0)
    edges = np.flatnonzero(np.diff(key)) + 1
    starts = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [len(key)]])
    for start, end in zip(starts, ends, strict=True):
        if key[start] > 0:
            axes.bar(
                start,
                -key[start],
                width=end - start,
                bottom=lane + 0.9,
                align="edge",
                color=colour_,
                hatch=hatch,
                edgecolor="#777777" if hatch else colour_,
                linewidth=0,
            )
