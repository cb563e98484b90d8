"""The figures of a reproduction, all drawn from its tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame

from fedfade.agents.curve import smoothed
from fedfade.allocation import PERFECT
from fedfade.errors import UserError
from fedfade.experiments.figures import colour, of_seeds, share_map
from fedfade.learning.plots import TERMS
from fedfade.shown import drawn
from fedfade.studies.frames import Figure, matching
from fedfade.studies.noise import TIE
from fedfade.style import blank, headline, label, legend_below, panels, shade

_VARIANTS = {
    "nothing": (colour("qmix", []), "full observation"),
    "gradient": (shade(5), "gradient deviation hidden"),
    "fading": (shade(0), "fading hidden"),
}
"""Colour and name by what is hidden."""


def _curve(axes: Any, lines: DataFrame, ink: str, name: str, factor: float = 1.0) -> None:
    """Median and band against rounds."""
    x, low, middle, high = (lines[name].to_numpy() for name in ("round", "low", "median", "high"))
    style = "--" if name == PERFECT else "-"
    axes.plot(x, factor * middle, style, color=ink, lw=1.6, label=drawn(name))
    axes.fill_between(x, factor * low, factor * high, color=ink, alpha=0.13, lw=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def accuracy_grid(curves: DataFrame, seeds: int) -> Figure:
    """Test accuracy against rounds: a row per number of clusters, a column per alpha."""
    alphas, clusters = curves["alpha"].unique(), curves["clusters"].unique()
    order = [*curves["policy"].unique()]
    width, height = max(7.5, 1.5 + 3.4 * len(alphas)), max(4.8, 1.3 + 2.6 * len(clusters))
    figure, grid = panels(width, height, len(clusters), len(alphas), sharex=True, sharey=True)
    for row, count in enumerate(clusters):
        for column, alpha in enumerate(alphas):
            axes = grid[row, column]
            for policy in order:
                own = matching(curves, alpha=alpha, clusters=count, policy=policy)
                _curve(axes, own, colour(policy, order), policy, 100.0)
            y = "test accuracy in %" if column == 0 else ""
            x = "federated round" if row == len(clusters) - 1 else ""
            label(axes, rf"$\alpha$ = {alpha:g}, $n_c$ = {count:g}", x, y)
    legend_below(figure, grid[0, 0], 4)
    headline(figure, f"Test accuracy, {of_seeds(seeds)}")
    return figure


def served(final: DataFrame) -> Figure:
    """Who is served: share of rounds in which each client delivered, clients by rank."""
    shares = final.filter(regex=r"^client_\d+$").to_numpy()
    ranked = DataFrame(np.sort(shares)[:, ::-1]).groupby(final["policy"].to_numpy(), sort=False)
    return share_map({str(policy): own.to_numpy().mean(0) for policy, own in ranked})


def reward(lines: DataFrame, clients: int, title: str) -> Figure:
    """Reward of an episode and uploads against training episodes."""
    figure, grid = panels(7.5, 5.6, 2, 1, sharex=True)
    upper, lower = grid.flat
    seeds = lines["seed"].nunique()
    name = "median over seeds, thin: each" if seeds > 1 else "one seed"
    for axes, field in ((upper, "reward"), (lower, "uploads")):
        _training(axes, lines, field, _VARIANTS["nothing"][0], name)
    upper.set_ylabel("reward of an episode")
    lower.set(xlabel="training episodes", ylabel=f"uploads a round, of {clients}")
    lower.set_ylim(bottom=0)
    upper.set_title(f"{drawn(title)}: {of_seeds(seeds, 'training seed')}", loc="left")
    upper.legend(frameon=False, fontsize=9)
    return figure


def _training(
    axes: Any, lines: DataFrame, field: str, ink: str, name: str, each: bool = True
) -> None:
    """Median and band over training seeds, and each seed thin."""
    seeds = [own for _, own in lines.groupby("seed", sort=False)]
    if len({len(own) for own in seeds}) > 1:
        raise UserError("curve.csv holds trainings of unequal length: run this part again.")
    x = seeds[0]["episodes"].to_numpy()
    values = np.array([smoothed(own[field].to_numpy()) for own in seeds])
    low, middle, high = np.percentile(values, [10, 50, 90], axis=0)
    for run in values if each else []:
        axes.plot(x, run, color=ink, lw=0.6, alpha=0.6)
    axes.fill_between(x, low, high, color=ink, alpha=0.15, lw=0)
    axes.plot(x, middle, color=ink, lw=1.8, label=name)


def ablation(training: DataFrame, final: DataFrame) -> Figure:
    """Reward while training, and final accuracy, with parts of the observation hidden."""
    figure, ((left, right),) = panels(11, 4.2, 1, 2, width_ratios=(3, 2))
    names = []
    for place, (hidden, own) in enumerate(training.groupby("hidden", sort=False)):
        ink, name = _VARIANTS[str(hidden)]
        _training(left, own, "reward", ink, name, each=False)
        ends = 100 * matching(final, hidden=hidden)["accuracy"]
        right.scatter([place] * len(ends), ends, color=ink, s=34, alpha=0.7, zorder=3)
        right.hlines(ends.median(), place - 0.25, place + 0.25, color=ink, lw=2)
        names.append(name.replace(" ", "\n", 1))
    right.set_xticks(range(len(names)), names)
    right.set_xlim(-0.6, len(names) - 0.4)
    seeds = training["seed"].nunique()
    label(left, f"Training: {of_seeds(seeds)}", "training episodes", "reward of an episode")
    several = "Test at the centre: a dot per run, line: median"
    title = several if len(final) > final["hidden"].nunique() else "Test at the centre: one run"
    label(right, title, "", "final test accuracy in %")
    legend_below(figure, left, 3)
    return figure


def second_term(final: DataFrame) -> Figure:
    """The second term of the bound (paper: eq. 25) against final accuracy."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure, ((axes,),) = panels(8, 4.6, 1, 1)
    order = [policy for policy in final["policy"].unique() if policy != PERFECT]
    for policy in order:
        own = matching(final, policy=policy)
        style = {"color": colour(policy, order), "s": 34, "label": drawn(policy), "zorder": 3}
        axes.scatter(own["bias"], 100 * own["accuracy"], **style)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    x = rf"second term without $C_2$: {_TERM}, mean over rounds"
    axes.set(xlabel=x, ylabel="final test accuracy in %")
    axes.set_title("Second term of the bound and final accuracy, a dot per run", loc="left")
    legend_below(figure, axes, 3)
    return figure


def second_term_by_round(biases: DataFrame, seeds: int) -> Figure:
    """The second term of the bound along the rounds."""
    figure, ((axes,),) = panels(8, 4.6, 1, 1)
    order = [policy for policy in biases["policy"].unique() if policy != PERFECT]
    for policy in order:
        _curve(axes, matching(biases, policy=policy), colour(policy, order), policy)
    axes.set(xlabel="federated round", ylabel=rf"{_TERM}", yscale="log")
    axes.set_title(f"Second term of the bound, without $C_2$: {of_seeds(seeds)}", loc="left")
    legend_below(figure, axes, 3)
    return figure


_TERM = r"$|\bar g - g|^2$"


def bound_terms(terms: Mapping[str, DataFrame]) -> Figure:
    """The three terms and the measured change under each policy."""
    figure, (row,) = panels(2.6 * len(terms) + 1.2, 3.9, 1, len(terms), sharey=True)
    styles = {field: (*style, "-") for field, style in TERMS.items()}
    styles["measured"] = ("|measured change|", "#888888", ":")
    for axes, (policy, rows) in zip(row, terms.items(), strict=True):
        for field, (name, ink, line) in styles.items():
            values = rows[field].abs() if field == "measured" else rows[field]
            shown = values.where(values > 0)  # nobody delivered, nothing changed
            axes.plot(rows["round"], shown, color=ink, ls=line, lw=1.5, label=name)
        label(axes, drawn(policy), "federated round")
        axes.set_yscale("log")
    row[0].set_ylabel("terms of the bound")
    legend_below(figure, row[0], 5)
    return figure


def regimes(maps: Mapping[tuple[str, str], DataFrame]) -> Figure:
    """The best policy (colour), what it reaches (large) and its margin over the next (small), by
    mean SNR and spread of gains."""
    from matplotlib.patches import Patch

    figure = blank(11, 4.5 * (len(maps) // 2))
    grid = figure.subplots(len(maps) // 2, 2)
    titles = {
        "all": "all policies",
        "local": "decentralised policies only",
        "uploads": "Uploads a round",
        "accuracy": "Final accuracy in %",
    }
    alone = [cells[cells["margin"].abs() >= TIE]["winner"] for cells in maps.values()]
    order = list(dict.fromkeys(name for names in alone for name in names))
    for axes, ((field, who), cells) in zip(grid.flat, maps.items(), strict=True):
        _map(axes, cells, field, order)
        title = f"{titles[field]}: {titles[who]}"
        label(axes, title, "mean SNR in dB", "spread of large-scale gain in dB")
    handles = [Patch(color=colour(policy, order), label=drawn(policy)) for policy in order]
    handles.append(Patch(color=_NOBODY, label="several tie"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    title = "Who wins where, and by how much over the next (~ and pale: within the noise)"
    headline(figure, title)
    return figure


_NOBODY = "#e4e4e4"
"""Shade of a cell where several policies do the same."""


def _map(axes: Any, cells: DataFrame, field: str, order: Sequence[str]) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    snrs, spreads = [*cells["snr"].unique()], [*cells["spread"].unique()]
    for cell in cells.to_dict("records"):
        x, y = snrs.index(cell["snr"]), spreads.index(cell["spread"])
        tie, level = abs(cell["margin"]) < TIE, bool(cell["level"])
        shade = to_rgb(_NOBODY if tie else colour(cell["winner"], order))
        face = (*shade, 0.35 if level and not tie else 0.9)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=face, ec="white", lw=2))
        value = 100 * cell["value"] if field == "accuracy" else cell["value"]
        ink = {"color": "white" if not level and sum(shade) < 1.5 else "black"}
        axes.text(x, y + 0.1, f"{value:.1f}", ha="center", va="center", fontsize=13, **ink)
        margin = margin_text(cell["margin"], level, field)
        axes.text(x, y - 0.25, margin, ha="center", va="center", fontsize=9, **ink)
    axes.set(xlim=(-0.5, len(snrs) - 0.5), ylim=(-0.5, len(spreads) - 0.5))
    axes.set_xticks(range(len(snrs)), [f"{snr:g}" for snr in snrs])
    axes.set_yticks(range(len(spreads)), [f"{spread:g}" for spread in spreads])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def readings(summary: DataFrame, clients: int) -> Figure:
    """Uploads of QMIX in every reading, beside two policies that do not learn, sorted."""
    ranked = summary.sort_values("uploads qmix", kind="stable", na_position="first")
    figure, ((axes,),) = panels(8.5, 1.6 + 0.24 * len(ranked), 1, 1)
    places = np.arange(len(ranked))
    shown = ("max-sum-rate", "block-fading-schedule", "qmix")
    axes.hlines(places, ranked["least"], ranked["most"], color=colour("qmix", shown), lw=2)
    for policy in shown:
        sizes = {"s": 46 if policy == "qmix" else 26, "zorder": 3}
        x = ranked[f"uploads {policy}"]
        axes.scatter(x, places, color=colour(policy, shown), label=policy, **sizes)
    stars = ["* " if learned == "yes" else "" for learned in ranked["learned"]]
    ends = [" (diverged)" if lost else "" for lost in ranked["uploads qmix"].isna()]
    each = zip(stars, ranked["reading"], ends, strict=True)
    names = [star + drawn(name) + end for star, name, end in each]
    axes.set_yticks(places, names, fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlim(left=0)
    title = "Uploads of each reading; line: least to most of its trainings, *: agents learned"
    label(axes, title, f"uploads a round, of {clients}", "")
    legend_below(figure, axes, 3)
    return figure


def margin_text(margin: float, level: bool, field: str) -> str:
    """The margin as it stands in the map; a tilde where it is within the noise.

    >>> margin_text(0.5, True, "uploads")
    '~0.50'
    """
    if abs(margin) < TIE:
        return "tie"
    size = f"{100 * margin:.1f}" if field == "accuracy" else f"{margin:.2f}"
    return f"{'~' if level else '+'}{size}"
