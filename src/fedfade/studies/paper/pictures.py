"""The pictures of a reproduction, all drawn from its CSV files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfade.agents.curve import smoothed
from fedfade.allocation import PERFECT
from fedfade.errors import UserError
from fedfade.experiments.figures import blank, colour, of_seeds, share_map, tidy
from fedfade.storage import save_figure
from fedfade.studies.paper.tables import Line, columns, distinct, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "ablation",
    "accuracy_grid",
    "bound_terms",
    "put",
    "regimes",
    "reward",
    "second_term",
    "served",
]


def put(path: Path, make: Callable[..., Figure], *given: Any) -> None:
    """Draw a figure and write it, where Matplotlib is installed; elsewhere tables must do."""
    try:
        figure = make(*given)
    except ImportError:
        return
    save_figure(figure, path)


_VARIANTS = {"nothing": "#d4ac0d", "gradient": "#7d3c98", "fading": "#c0392b"}
_NAMES = {
    "nothing": "full observation",
    "gradient": "gradient deviation hidden",
    "fading": "fading hidden",
}


def _curve(axes: Any, lines: Sequence[Line], shade: str, label: str, factor: float = 1.0) -> None:
    """Median and band against rounds."""
    x, *parts = columns(lines, "round", "low", "median", "high")
    low, middle, high = (factor * np.array(part) for part in parts)
    axes.plot(x, middle, "--" if label == PERFECT else "-", color=shade, lw=1.6, label=label)
    axes.fill_between(x, low, high, color=shade, alpha=0.13, lw=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def accuracy_grid(curves: Sequence[Line], seeds: int) -> Figure:
    """Test accuracy against rounds: a row per number of clusters, a column per alpha."""
    alphas, clusters = distinct(curves, "alpha"), distinct(curves, "clusters")
    order = distinct(curves, "policy")
    figure = blank(max(7.5, 1.5 + 3.4 * len(alphas)), max(4.8, 1.3 + 2.6 * len(clusters)))
    panels = figure.subplots(len(clusters), len(alphas), sharex=True, sharey=True, squeeze=False)
    for row, count in enumerate(clusters):
        for column, alpha in enumerate(alphas):
            axes = panels[row, column]
            for policy in order:
                own = matching(curves, alpha=alpha, clusters=count, policy=policy)
                _curve(axes, own, colour(policy, order), policy, 100.0)
            axes.set_title(rf"$\alpha$ = {alpha:g}, $n_c$ = {count:g}", fontsize=10, loc="left")
            tidy(axes)
    for axes in panels[:, 0]:
        axes.set_ylabel("test accuracy in %")
    for axes in panels[-1]:
        axes.set_xlabel("federated round")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(f"Test accuracy, {of_seeds(seeds)}", fontsize=11)
    return figure


def served(final: Sequence[Line], clients: int) -> Figure:
    """Who is served: share of rounds in which each client delivered, clients by rank."""
    order = distinct(final, "policy")
    ranked = {
        policy: np.mean(
            [
                np.sort([line[f"client_{n}"] for n in range(clients)])[::-1]
                for line in matching(final, policy=policy)
            ],
            axis=0,
        )
        for policy in order
    }
    return share_map(ranked)


def reward(lines: Sequence[Line], clients: int, title: str) -> Figure:
    """Reward of an episode and uploads against training episodes."""
    figure = blank(7.5, 5.6)
    panels = figure.subplots(2, 1, sharex=True)
    seeds = len(distinct(lines, "seed"))
    label = "median over seeds, thin: each" if seeds > 1 else "one seed"
    for axes, field in zip(panels, ("reward", "uploads"), strict=True):
        _training(axes, lines, field, _VARIANTS["nothing"], label)
        tidy(axes)
    panels[0].set_ylabel("reward of an episode")
    panels[1].set_ylabel(f"uploads a round, of {clients}")
    panels[1].set_ylim(bottom=0)
    panels[1].set_xlabel("training episodes")
    panels[0].set_title(f"{title}: {of_seeds(seeds, 'training seed')}", loc="left")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def _training(
    axes: Any, lines: Sequence[Line], field: str, shade: str, label: str, each: bool = True
) -> None:
    """Median and band over training seeds, and each seed thin."""
    x = np.array(columns(lines, "episodes", seed=lines[0]["seed"])[0])
    runs = [smoothed(np.array(columns(lines, field, seed=s)[0])) for s in distinct(lines, "seed")]
    if len({len(run) for run in runs}) > 1:
        raise UserError("curve.csv holds trainings of unequal length: run this part again.")
    values = np.array(runs)
    low, middle, high = np.percentile(values, [10, 50, 90], axis=0)
    for run in values if each else []:
        axes.plot(x, run, color=shade, lw=0.6, alpha=0.6)
    axes.fill_between(x, low, high, color=shade, alpha=0.15, lw=0)
    axes.plot(x, middle, color=shade, lw=1.8, label=label)


def ablation(training: Sequence[Line], curves: Sequence[Line]) -> Figure:
    """Reward while training, and test accuracy, with parts of the observation hidden."""
    figure = blank(11, 4.2)
    left, right = figure.subplots(1, 2)
    for hidden in distinct(training, "hidden"):
        own = matching(training, hidden=hidden)
        _training(left, own, "reward", _VARIANTS[hidden], _NAMES[hidden], each=False)
        _curve(right, matching(curves, hidden=hidden), _VARIANTS[hidden], _NAMES[hidden], 100.0)
    left.set(xlabel="training episodes", ylabel="reward of an episode")
    seeds = len(distinct(training, "seed"))
    left.set_title(f"Training: {of_seeds(seeds)}", loc="left", fontsize=10)
    right.set(xlabel="federated round", ylabel="test accuracy in %")
    shown = of_seeds(seeds, "unseen seed")  # one for each training
    right.set_title(f"Test at the centre: {shown}", loc="left", fontsize=10)
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    tidy(left)
    tidy(right)
    return figure


def second_term(final: Sequence[Line], biases: Sequence[Line]) -> Figure:
    """|mean of all updates - mean of those delivered|^2 by round, and against final accuracy."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = blank(11, 4.6)
    left, right = figure.subplots(1, 2)
    order = [policy for policy in distinct(final, "policy") if policy != PERFECT]
    for policy in order:
        shade = colour(policy, order)
        _curve(left, matching(biases, policy=policy), shade, policy)
        x, y = columns(final, "bias", "accuracy", policy=policy)
        right.scatter(x, 100 * np.array(y), color=shade, s=34, label=policy, zorder=3)
    for axes in (left, right):
        tidy(axes)
    left.set_yscale("log")
    right.set_xscale("log")
    right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.xaxis.set_minor_formatter(NullFormatter())
    left.set(xlabel="federated round", ylabel=r"$|\bar g - g|^2$")
    left.set_title("Second term of the bound (without $C_2$) by round", loc="left", fontsize=10)
    right.set(xlabel=r"$|\bar g - g|^2$, mean over rounds", ylabel="final test accuracy in %")
    right.set_title("Against final accuracy, a dot per run", loc="left", fontsize=10)
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def bound_terms(terms: Mapping[str, Sequence[Line]]) -> Figure:
    """The three terms and the measured change under each policy."""
    figure = blank(2.6 * len(terms) + 1.2, 3.9)
    panels = figure.subplots(1, len(terms), sharey=True, squeeze=False)[0]
    names = {
        "first": r"$C_1|\nabla F|^2$",
        "second": r"$C_2|\bar g-g|^2$",
        "third": "$C_3$",
        "bound": "bound (sum)",
    }
    for axes, (policy, rows) in zip(panels, terms.items(), strict=True):
        x = np.array(columns(rows, "round")[0])
        for place, (field, label) in enumerate(names.items()):
            values = np.array(columns(rows, field)[0])
            shade = "black" if field == "bound" else f"C{place}"
            axes.plot(x, np.where(values > 0, values, np.nan), color=shade, lw=1.5, label=label)
        change = np.abs(columns(rows, "measured")[0])
        change = np.where(change > 0, change, np.nan)  # nobody delivered, nothing changed
        axes.plot(x, change, color="#888888", ls=":", lw=1.5, label="|measured change|")
        axes.set_title(policy, fontsize=10, loc="left")
        axes.set_xlabel("federated round")
        axes.set_yscale("log")
        tidy(axes)
    panels[0].set_ylabel("terms of the bound")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


# --- the map -----------------------------------------------------------------------------------


def regimes(maps: Mapping[tuple[str, str], Sequence[Line]]) -> Figure:
    """Winner (colour) and margin over the next (text) by mean SNR and spread of gains."""
    from matplotlib.patches import Patch

    rows = len(maps) // 2
    figure = blank(10.5, 4.3 * rows)
    panels = figure.subplots(rows, 2)
    titles = {
        "all": "all policies",
        "local": "decentralised policies only",
        "uploads": "Uploads a round",
        "accuracy": "Final accuracy (points)",
    }
    order = list(dict.fromkeys(cell["winner"] for cells in maps.values() for cell in cells))
    for axes, ((field, who), cells) in zip(panels.flat, maps.items(), strict=True):
        _map(axes, cells, field, order)
        axes.set_title(f"{titles[field]}: {titles[who]}", loc="left", fontsize=10)
    handles = [Patch(color=colour(policy, order), label=policy) for policy in order]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        "Who wins where: margin over the next; ~ and pale: within the noise", fontsize=11
    )
    return figure


def _map(axes: Any, cells: Sequence[Line], field: str, order: Sequence[str]) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    snrs, spreads = distinct(cells, "snr"), distinct(cells, "spread")
    for cell in cells:
        x, y = snrs.index(cell["snr"]), spreads.index(cell["spread"])
        level = within_noise(cell)
        shade = to_rgb(colour(cell["winner"], order))
        pale = 0.35 if level else 0.85
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=(*shade, pale), ec="white", lw=1.5))
        dark = not level and sum(shade) < 1.5
        text = f"{margin_text(cell, field)}\n({_value(cell, field)})"
        ink = "white" if dark else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)
    axes.set(xlim=(-0.5, len(snrs) - 0.5), ylim=(-0.5, len(spreads) - 0.5))
    axes.set_xticks(range(len(snrs)), [f"{snr:g}" for snr in snrs])
    axes.set_yticks(range(len(spreads)), [f"{spread:g}" for spread in spreads])
    axes.set(xlabel="mean SNR in dB", ylabel="spread of large-scale gain in dB")
    axes.tick_params(length=0)


_TIE = 1e-5  # what is left of equal means when tables keep six digits


def within_noise(cell: Line) -> bool:
    """Whether a margin is no more than twice its standard error."""
    error = 0.0 if math.isnan(cell["error"]) else cell["error"]
    return bool(cell["margin"] <= max(2 * error, _TIE))


def margin_text(cell: Line, field: str) -> str:
    """The margin as it stands in the map; a tilde where it is within the noise.

    >>> margin_text({"margin": 0.5, "error": 0.4}, "uploads")
    '~0.50'
    """
    if abs(cell["margin"]) < _TIE:
        return "tie"
    size = 100 * cell["margin"] if field == "accuracy" else cell["margin"]
    return f"{'~' if within_noise(cell) else '+'}{size:.{1 if field == 'accuracy' else 2}f}"


def _value(cell: Line, field: str) -> str:
    return f"{100 * cell['value']:.1f}" if field == "accuracy" else f"{cell['value']:.1f}"
