"""The figures of a reproduction, all drawn from its tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame

from fedfade.agents.curve import smoothed
from fedfade.allocation import PERFECT
from fedfade.errors import UserError
from fedfade.experiments.figures import blank, colour, of_seeds, share_map, tidy
from fedfade.shown import drawn
from fedfade.studies.frames import matching
from fedfade.studies.noise import TIE

Figure = Any
"""Matplotlib's, which need not be installed: without it tables must do."""


class Drawn(NamedTuple):
    """What a part makes of its tables."""

    facts: dict[str, Any]  # what claims are judged by
    text: str  # Markdown
    figures: Mapping[str, Callable[[], Figure]]  # by file name
    tables: Mapping[str, DataFrame] = {}  # those made from other tables, by PART/NAME


_VARIANTS = {
    "nothing": ("#d4ac0d", "full observation"),
    "gradient": ("#7d3c98", "gradient deviation hidden"),
    "fading": ("#c0392b", "fading hidden"),
}
"""Colour and name by what is hidden."""


def panels(width: float, height: float, rows: int, columns: int, **shared: Any) -> Any:
    """A figure in inches and its panels: [row, column]."""
    figure = blank(width, height)
    grid: Any = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in grid.flat:
        tidy(axes)
    return figure, grid


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel=x, ylabel=y)


def _legend_below(figure: Figure, axes: Any, columns: int) -> None:
    """One legend for all panels."""
    handles, names = axes.get_legend_handles_labels()
    style = {"ncols": columns, "frameon": False, "fontsize": 11}
    figure.legend(handles, names, loc="outside lower center", **style)


def _curve(axes: Any, lines: DataFrame, shade: str, label: str, factor: float = 1.0) -> None:
    """Median and band against rounds."""
    x, low, middle, high = (lines[name].to_numpy() for name in ("round", "low", "median", "high"))
    style = "--" if label == PERFECT else "-"
    axes.plot(x, factor * middle, style, color=shade, lw=1.6, label=drawn(label))
    axes.fill_between(x, factor * low, factor * high, color=shade, alpha=0.13, lw=0)
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
            _label(axes, rf"$\alpha$ = {alpha:g}, $n_c$ = {count:g}", x, y)
    _legend_below(figure, grid[0, 0], 4)
    figure.suptitle(f"Test accuracy, {of_seeds(seeds)}", fontsize=11)
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
    label = "median over seeds, thin: each" if seeds > 1 else "one seed"
    for axes, field in ((upper, "reward"), (lower, "uploads")):
        _training(axes, lines, field, _VARIANTS["nothing"][0], label)
    upper.set_ylabel("reward of an episode")
    lower.set(xlabel="training episodes", ylabel=f"uploads a round, of {clients}")
    lower.set_ylim(bottom=0)
    upper.set_title(f"{drawn(title)}: {of_seeds(seeds, 'training seed')}", loc="left")
    upper.legend(frameon=False, fontsize=9)
    return figure


def _training(
    axes: Any, lines: DataFrame, field: str, shade: str, label: str, each: bool = True
) -> None:
    """Median and band over training seeds, and each seed thin."""
    seeds = [own for _, own in lines.groupby("seed", sort=False)]
    if len({len(own) for own in seeds}) > 1:
        raise UserError("curve.csv holds trainings of unequal length: run this part again.")
    x = seeds[0]["episodes"].to_numpy()
    values = np.array([smoothed(own[field].to_numpy()) for own in seeds])
    low, middle, high = np.percentile(values, [10, 50, 90], axis=0)
    for run in values if each else []:
        axes.plot(x, run, color=shade, lw=0.6, alpha=0.6)
    axes.fill_between(x, low, high, color=shade, alpha=0.15, lw=0)
    axes.plot(x, middle, color=shade, lw=1.8, label=label)


def ablation(training: DataFrame, curves: DataFrame) -> Figure:
    """Reward while training, and test accuracy, with parts of the observation hidden."""
    figure, ((left, right),) = panels(11, 4.2, 1, 2)
    for hidden, own in training.groupby("hidden", sort=False):
        shade, name = _VARIANTS[str(hidden)]
        _training(left, own, "reward", shade, name, each=False)
        _curve(right, matching(curves, hidden=hidden), shade, name, 100.0)
    seeds = training["seed"].nunique()
    _label(left, f"Training: {of_seeds(seeds)}", "training episodes", "reward of an episode")
    shown = of_seeds(seeds, "unseen seed")  # as many as trainings, each on all
    _label(right, f"Test at the centre: {shown}", "federated round", "test accuracy in %")
    _legend_below(figure, right, 3)
    return figure


def second_term(final: DataFrame, biases: DataFrame) -> Figure:
    """The second term of the bound (paper: eq. 25) by round, and against final accuracy."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure, ((left, right),) = panels(11, 4.6, 1, 2)
    order = [policy for policy in final["policy"].unique() if policy != PERFECT]
    for policy in order:
        shade, own = colour(policy, order), matching(final, policy=policy)
        _curve(left, matching(biases, policy=policy), shade, policy)
        style = {"color": shade, "s": 34, "label": drawn(policy), "zorder": 3}
        right.scatter(own["bias"], 100 * own["accuracy"], **style)
    left.set_yscale("log")
    right.set_xscale("log")
    right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.xaxis.set_minor_formatter(NullFormatter())
    term = r"$|\bar g - g|^2$"
    title = "Second term of the bound (without $C_2$) by round"
    _label(left, title, "federated round", term)
    title = "Against final accuracy, a dot per run"
    _label(right, title, f"{term}, mean over rounds", "final test accuracy in %")
    _legend_below(figure, right, 4)
    return figure


def bound_terms(terms: Mapping[str, DataFrame]) -> Figure:
    """The three terms and the measured change under each policy."""
    figure, (row,) = panels(2.6 * len(terms) + 1.2, 3.9, 1, len(terms), sharey=True)
    styles = {
        "first": (r"$C_1|\nabla F|^2$", "C0", "-"),
        "second": (r"$C_2|\bar g-g|^2$", "C1", "-"),
        "third": ("$C_3$", "C2", "-"),
        "bound": ("bound (sum)", "black", "-"),
        "measured": ("|measured change|", "#888888", ":"),
    }
    for axes, (policy, rows) in zip(row, terms.items(), strict=True):
        for field, (label, shade, line) in styles.items():
            values = rows[field].abs() if field == "measured" else rows[field]
            shown = values.where(values > 0)  # nobody delivered, nothing changed
            axes.plot(rows["round"], shown, color=shade, ls=line, lw=1.5, label=label)
        _label(axes, drawn(policy), "federated round", "")
        axes.set_yscale("log")
    row[0].set_ylabel("terms of the bound")
    _legend_below(figure, row[0], 5)
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
        _label(axes, title, "mean SNR in dB", "spread of large-scale gain in dB")
    handles = [Patch(color=colour(policy, order), label=drawn(policy)) for policy in order]
    handles.append(Patch(color=_NOBODY, label="several tie"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    title = "Who wins where, and by how much over the next (~ and pale: within the noise)"
    figure.suptitle(title, fontsize=12)
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
    ranked = summary.sort_values("uploads qmix", kind="stable")
    figure, ((axes,),) = panels(8.5, 1.6 + 0.24 * len(ranked), 1, 1)
    places = np.arange(len(ranked))
    shown = ("max-sum-rate", "block-fading-schedule", "qmix")
    axes.hlines(places, ranked["least"], ranked["most"], color=colour("qmix", shown), lw=2)
    for policy in shown:
        sizes = {"s": 46 if policy == "qmix" else 26, "zorder": 3}
        x = ranked[f"uploads {policy}"]
        axes.scatter(x, places, color=colour(policy, shown), label=policy, **sizes)
    stars = ["* " if learned == "yes" else "" for learned in ranked["learned"]]
    names = [star + drawn(name) for star, name in zip(stars, ranked["reading"], strict=True)]
    axes.set_yticks(places, names, fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlim(left=0)
    title = "Uploads of each reading; line: least to most of its trainings, *: agents learned"
    _label(axes, title, f"uploads a round, of {clients}", "")
    _legend_below(figure, axes, 3)
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
