"""Draw the pictures of the docs again, from the tables in docs/data: `make pictures`.

The tables are copied from what commands left, each named on the page that shows the picture; the
pictures are drawn by the functions with which these commands draw theirs.
"""

import io
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas import DataFrame
from PIL import Image
from torch import Tensor

from fedfade.agents import load_shipped_policy, shipped_policies
from fedfade.agents.curve import curve_figure
from fedfade.agents.trainer import Report
from fedfade.allocation import PERFECT, load_policy, play_round
from fedfade.bench import growth
from fedfade.config import load_config
from fedfade.experiments import Row, Uplink
from fedfade.experiments.figures import accuracy_figure
from fedfade.experiments.metrics import bound_row
from fedfade.experiments.sweep_figures import read_sweep, sweep_figure, swept_panels
from fedfade.learning import payload_bits
from fedfade.learning.estimation import BoundRow
from fedfade.learning.plots import bound_terms, class_distribution, learning_curves
from fedfade.storage import writing
from fedfade.studies import policies
from fedfade.studies.frames import matching, means, read_frame
from fedfade.studies.ladder import page as ladder_page
from fedfade.studies.ladder.rungs import Agents, make_ladder
from fedfade.studies.levers import page as levers_page
from fedfade.studies.levers.plan import load_levers
from fedfade.studies.paper import charts, regimes
from fedfade.style import label, legend_below, panels, shade
from fedfade.uplink.figures import link_figure, scenarios

DOCS = Path(__file__).parent
UPLOADS = "uploads per round, of 10"


def read(name: str) -> DataFrame:
    return read_frame(DOCS / "data" / f"{name}.csv")


def ladder(field: str) -> Figure:
    """Rungs of knowledge; of the agents that come with the package those that are not the plan."""
    named = [Agents(name, [], [], []) for name in shipped_policies() if name != "qmix-plus"]
    asked = make_ladder("paper")._replace(agents=named)
    if field == "uploads":
        played = pd.concat([read("ladder-policies"), read("ladder-agents")])
        shown = {*ladder_page.KNOWN, *(agents.name for agents in named)}
        marked = played[played["policy"].isin(shown)]
        return ladder_page.ladder_figure(asked, asked.names, read("ladder"), marked, field)
    ends = read("ladder-accuracy")
    best, learned = (matching(ends, learned=answer) for answer in ("no", "yes"))
    return ladder_page.ladder_figure(asked, [*best["cell"].unique()], best, learned, field)


def levers(scale: str, *only: str) -> Figure:
    """Parts whose tables are kept."""
    return levers_page.levers_figure(load_levers(scale, only), read(f"levers-{scale}"))


def levers_by_load() -> Figure:
    """Six combinations against the bits of a model."""
    (part,) = load_levers("paper", ["payload"]).parts
    return levers_page.load_figure(part, matching(read("levers-paper"), part="payload"))


def maps() -> Figure:
    """Who wins where."""
    tables = {"uploads": read("uniform-regimes"), "accuracy": read("uniform-regimes-accuracy")}
    everybody = [name for name in tables["uploads"]["policy"].unique() if name != PERFECT]
    allowed = {"all": everybody, "local": regimes.LOCAL}
    return charts.regimes(
        {
            (field, who): regimes.winners(table, field, names)
            for field, table in tables.items()
            for who, names in allowed.items()
        }
    )


def turns(preset: str, seed: int, *names: str) -> Any:
    """The first round of a seed under policies, a client's number in its turns. Where a policy hops
    over all sub-bands in step, they are logical."""
    config = load_config(preset, [f"run.seed={seed}", "run.seeds=1", "run.rounds=100"])
    uplink = Uplink(config, payload_bits(config.learning), torch.device("cpu"))
    scenario, problem = uplink.scenario, uplink.rounds([0])
    figure, grid = panels(10, 2.7 * len(names), len(names), 1, sharex=True)
    for axes, name in zip(grid.flat, names, strict=True):
        learned = name in shipped_policies()
        policy = load_shipped_policy(name, config) if learned else load_policy(name)
        keys = uplink.keys(policy.name, 0)
        outcome = play_round(policy, scenario, problem, keys, record=True)
        history, hops = outcome.history, name != "block-fading-schedule"
        assert history is not None
        sends = history.level[:, 0] != scenario.silent_level  # [slot, client]
        shift = torch.arange(scenario.slots)[:, None] * hops
        lanes = (history.band[:, 0] - shift) % scenario.bands
        for client, lane in product(range(scenario.clients), range(scenario.bands)):
            _stretches(axes, (sends & (lanes == lane))[:, client], client, lane)
        kind = " (learned, sees no plan)" if name == "mappo-hold" else ""
        count = f"{int(outcome.delivered.sum())} of {scenario.clients} delivered"
        axes.set_title(f"{name}{kind}: {count}", loc="left")
        axes.set(yticks=range(scenario.bands), xlim=(0, scenario.slots))
        axes.set_ylabel("logical sub-band" if hops else "sub-band")
        axes.invert_yaxis()
        axes.grid(visible=False)
    grid[-1, 0].set_xlabel("slot")
    return figure


def _stretches(axes: Any, sends: Tensor, client: int, lane: int) -> None:
    """A bar for each stretch of slots in which a client sends."""
    edges = torch.diff(sends.int(), prepend=torch.zeros(1), append=torch.zeros(1))
    starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        axes.barh(lane, end - start, left=start, height=0.8, color=shade(client), ec="white")
        if end - start > 6:
            place = ((start + end) / 2, lane)
            axes.annotate(str(client), place, ha="center", va="center", color="white", size=13)


def who_packs() -> Figure:
    """Uploads where clients are uniform, 18.12 m/s; who learned is in colour."""
    tried = means(matching(read("uniform-accuracy"), alpha=0.5, clusters=21), "policy", "uploads")
    nine = matching(read("size-free-nine"), cell="paper", speed_mps=18.12)
    found = means(nine, "policy", "uploads").to_dict()
    found |= tried[["random", "qmix"]].to_dict()
    names = sorted(found, key=lambda name: found[name])
    about = {
        "qmix": "as in the paper",
        "qmix-hold": "from scratch",
        "mappo-hold": "taught at first",
    }
    about |= {"size-free": "pupils of the plan", "wrap-around-choice": "the plan"}
    figure, grid = panels(9, 3.2, 1, 1)
    axes = grid.flat[0]
    colours = ["C0" if name in {"qmix", *shipped_policies()} else "0.6" for name in names]
    shown = [f"{name} ({about[name]})" if name in about else name for name in names]
    bars = axes.barh(shown, [found[name] for name in names], color=colours)
    axes.bar_label(bars, fmt="%.2f", padding=4)
    axes.set_xlabel(f"{UPLOADS} (blue: learned)")
    axes.grid(visible=False)
    return figure


def announced() -> Figure:
    """Uploads against the error of announced gains, by what else is announced."""
    told = {
        "block-fading-schedule": "schedule: gains",
        "wrap-around-choice": "plan: gains",
        "wrap-around-feedback": "plan: and who has finished",
        "deadline-progress": "turns: and what all have left",
        "deadline-matching": "matching: that, and all fading",
        "qmix-hold": "agents from scratch: gains",
    }
    table, field = read("announced-error"), "cell.announced_error_db"
    figure, grid = panels(10, 4.2, 1, 2, sharey=True)
    for axes, (cell, title) in zip(
        grid.flat,
        {"paper": "Clients uniform in the cell", "ring": "All at 20 dB"}.items(),
        strict=True,
    ):
        own = matching(table, cell=cell).set_index(field)
        for place, (policy, known) in enumerate(told.items()):
            line = own[own["policy"] == policy]["uploads"]
            axes.plot(line, color=shade(place), marker="o", markersize=4, label=known)
        axes.set(ylim=(3, 7.2), xticks=range(5))
        label(axes, title, "error of announced gains in dB", "" if axes is grid[0, 1] else UPLOADS)
    legend_below(figure, grid[0, 0], 3)
    return figure


def at_the_centre(table: DataFrame) -> DataFrame:
    return matching(table, alpha=0.5, clusters=21)


def terms() -> Figure:
    table = read("uniform-bound-terms")
    return charts.bound_terms(dict([*table.groupby("policy", sort=False)]))


def bound() -> Figure:
    rows = [BoundRow(**row) for row in read("bound").to_dict("records")]
    return bound_terms(rows, "digits: 5 random of 10 clients deliver")


def classes() -> Figure:
    """Class counts of ten clients for three values of alpha."""
    table = read("classes")
    names = [*table.columns.drop(["alpha", "client"])]
    counts = {alpha: own[names].to_numpy(int) for alpha, own in table.groupby("alpha", sort=False)}
    return class_distribution(counts, names, "cifar10, 10 clients, dirichlet, seed 0")


def perfect() -> Figure:
    wide = read("perfect").pivot(index="round", columns="seed", values="accuracy")
    return learning_curves([*wide.index + 1], wide.to_numpy(), "cifar10, FedAvg, paper")


def training(name: str, clients: int, title: str) -> Figure:
    """The seeds of a training, each a list of what its batches came to."""
    table = read(name).assign(q=np.nan, accuracy=np.nan)
    seeds = table[[*Report._fields]].groupby(table["seed"])
    return curve_figure(
        [[Report(*row) for row in own.to_numpy()] for _, own in seeds], clients, title
    )


def rows(name: str) -> list[Row]:
    """The rounds of a comparison, of which only what is drawn was kept."""
    known, drawn = ["seed", "policy", "round", "delivered"], ["accuracy", "seconds"]
    table = read(name).astype({"seed": int, "round": int})
    return [bound_row(*row[known])._replace(**row[drawn]) for _, row in table.iterrows()]


def sweep() -> Figure:
    fields, done = read_sweep(DOCS / "data")
    field = "learning.payload_bits"
    return sweep_figure([p for p in swept_panels(fields, done) if p.field == field], "uploads")


PICTURES: dict[str, Callable[[], Figure]] = {
    "ladder": partial(ladder, "uploads"),
    "ladder-accuracy": partial(ladder, "accuracy"),
    "levers": partial(levers, "paper", "payload", "clients", "order"),
    "levers-load": levers_by_load,
    "levers-paper": partial(levers, "paper", "paper"),
    "announced": announced,
    "who-packs": who_packs,
    "policies": lambda: policies.figure(policies.arranged(read("policies-seeds"))),
    "round-learned": partial(turns, "paper", 2010, "wrap-around-schedule", "mappo-hold"),
    "round-packed": partial(turns, "ring", 1000, "block-fading-schedule", "qmix-plus"),
    "uniform-regimes": maps,
    "uniform-accuracy": lambda: charts.accuracy_grid(read("uniform-curves"), 5),
    "ring-20-3-accuracy": lambda: charts.accuracy_grid(read("ring-20-3-curves"), 5),
    "uniform-epochs": lambda: charts.accuracy_grid(read("uniform-epochs-curves"), 5),
    "uniform-served": lambda: charts.served(at_the_centre(read("uniform-accuracy"))),
    "uniform-reward": lambda: charts.reward(
        read("uniform-reward"), 10, "QMIX, alpha 0.5, 21 clusters"
    ),
    "results-readings": lambda: charts.readings(read("results-readings"), 10),
    "uniform-bound": lambda: charts.second_term(at_the_centre(read("uniform-accuracy"))),
    "uniform-bound-terms": terms,
    "growth": lambda: growth.draw(read("growth"), "one H200, recorded, not compiled, tf32"),
    "bound": bound,
    "classes": classes,
    "link": lambda: link_figure(scenarios(load_config("paper-nr"))),
    "perfect": perfect,
    "small-cell": partial(training, "small-cell-curves", 4, "QMIX on small-cell"),
    "mappo-hold-curve": partial(training, "mappo-hold-curves", 10, "MAPPO on mappo-hold"),
    "qmix-hold-curve": partial(training, "qmix-hold-curves", 10, "QMIX on qmix-hold"),
    "sweep": sweep,
    "accuracy-seconds": lambda: accuracy_figure(rows("accuracy-seconds"), "seconds"),
}

COMMANDS = {
    "demo-accuracy.png": "fedfade compare quickstart --out runs/first",
    "urban-5g.png": "fedfade compare urban-5g --seeds 5 --rounds 15",
    "demo-round.png": "fedfade replay runs/readme --policy wrap-around-choice --round 7",
    "round.gif": "fedfade replay runs/readme --policy random --policy wrap-around-choice --round 7",
    "report.png": "fedfade compare quickstart --out runs/demo",
    "player.png": "fedfade compare quickstart --out runs/demo",
}
"""Pictures that come from a command itself, or show what it opens in a browser."""


def save(figure: Figure, path: Path) -> None:
    """In its 256 most common colours, which take a third of the space: lines keep their own, and
    the blends at their edges take the nearest."""
    figure.savefig(drawn := io.BytesIO(), dpi=150)
    pixels = np.asarray(Image.open(drawn).convert("RGB")).astype(int)
    codes = pixels @ (1 << 16, 1 << 8, 1)  # [row, column]
    found, which, counts = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    common = colours[counts.argsort()[::-1][:256]]
    nearest = np.array([((common - colour) ** 2).sum(1).argmin() for colour in colours])
    few = Image.fromarray(nearest[which].reshape(codes.shape).astype(np.uint8))
    few.putpalette(common.astype(np.uint8).tobytes())
    with writing(path) as temporary:
        few.save(temporary, format="png", optimize=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        save(PICTURES[name](), DOCS / "images" / f"{name}.png")
