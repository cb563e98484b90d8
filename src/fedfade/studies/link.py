"""Does it survive a real link? Uploads with NR, antennas, neighbours and 8-bit updates.

The preset's cell under each policy, on channels that no policy was tuned on, without learning.

OUT/runs/WAY-DIGEST.csv   uploads of every policy and seed; what is there is not redone
OUT/seeds.csv             all of them
OUT/link.csv              means over seeds, and two differences on the same rounds
OUT/link.png, OUT/link.md the same to look at
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from pandas import DataFrame

from fedfade.allocation import GENIE, genie_bound, load_policy, play_round
from fedfade.config import Config, changed, load_config
from fedfade.device import one_thread, pick_device
from fedfade.errors import not_allowed
from fedfade.experiments.run_folder import decisive, mark
from fedfade.experiments.uploads import Uplink
from fedfade.studies.frames import Bar, Drawn, Figure, kept, markdown, matching
from fedfade.studies.noise import mean_error
from fedfade.studies.paper.setting import PLAYED_ROUND, spread_out
from fedfade.style import headline, label, panels, shade

FIRST_SEED = 3000
"""No policy was tuned on these, but for how many clients `wrap-around-pairs` puts together."""

POLICIES = (
    *("random", "max-individual-rate", "block-fading-schedule", "wrap-around-schedule"),
    *("wrap-around-pairs", "wrap-around-choice", "shortest-remaining-first", "max-sum-rate"),
    "deadline-matching",
)
APART = {
    "packing - knowing": ("wrap-around-schedule", "max-sum-rate"),
    "own fading": ("wrap-around-choice", "wrap-around-schedule"),
}
"""Differences: what packing gains over knowing everybody's fading, and what a client's own fading
is worth to the wrap-around plan."""
SHARES = {"float32": (1, 1), "int8": (2_513_567, 9_932_960)}
"""Of the payload that updates take: the paper's model (docs/explanation/learning.md)."""
WAY = ["updates", "link", "antennas", "neighbours"]
_DRAWN = ("random", "wrap-around-schedule", "max-sum-rate", "deadline-matching", GENIE)
_FIRST = ["cell.interference_activity=0.5", "radio.link_overhead=0.08"]  # a user may say otherwise


class Way(NamedTuple):
    """One link with one kind of updates."""

    labels: Mapping[str, Any]  # by `WAY`
    config: Config
    payload: float  # bits

    @property
    def name(self) -> str:
        return "{updates}-{link}-{antennas}-{neighbours}".format(**self.labels)


class Links(NamedTuple):
    """What is played."""

    base: Config
    ways: Sequence[Way]
    rounds: tuple[int, ...]  # of the run


def plan_links(preset: str, overrides: Sequence[str], seeds: int, rounds: int) -> Links:
    """All 16 ways, checked before anything runs; `rounds` of each, no more than the run has."""
    base = load_config(preset, [*_FIRST, *overrides])
    if base.learning.payload_bits == "auto":
        raise not_allowed("learning.payload_bits", "auto", "a number, as nothing is learned")
    base, ways = changed(base, {"run.seed": FIRST_SEED, "run.seeds": seeds}), []
    for updates, link, antennas, neighbours in product(SHARES, ("shannon", "nr"), (1, 4), (0, 6)):
        fields = {"radio.link": link, "radio.receive_antennas": antennas}
        config = changed(base, {**fields, "cell.interference_cells": neighbours})
        part, whole = SHARES[updates]
        payload = float(config.learning.payload_bits) * part / whole
        labels = dict(zip(WAY, (updates, link, antennas, neighbours), strict=True))
        ways.append(Way(labels, config, payload))
    return Links(base, ways, spread_out(min(rounds, base.run.rounds), base.run.rounds))


def amounts(links: Links) -> dict[str, float]:
    """The work of `compute` by its bar, in federated rounds of one run."""
    rounds = len(links.ways) * len(links.rounds) * links.base.run.seeds * (len(POLICIES) + 1)
    return {"links": PLAYED_ROUND * rounds}


def compute(links: Links, out: Path, bar: Bar) -> dict[str, DataFrame]:
    """Uploads of every way, policy and seed; what is on disk is read."""
    tables = []
    with bar("links", len(links.ways)) as tell:
        for number, way in enumerate(links.ways):
            tell(number, way.name)
            tree, clients = decisive(way.config), way.config.learning.clients
            for branch in ("learning", "qmix"):
                del tree[branch]  # nothing is learned
            digest = mark(tree, links.rounds, clients, way.payload, POLICIES)
            with one_thread():
                path = out / "runs" / f"{way.name}-{digest}.csv"
                table = kept(path, partial(_played, way, links.rounds))
            tables.append(table.assign(**way.labels))
        tell(len(links.ways), "done")
    return {"seeds": pd.concat(tables, ignore_index=True)[[*WAY, "policy", "seed", "uploads"]]}


def _played(way: Way, rounds: Sequence[int]) -> DataFrame:
    """Clients that deliver, the mean over rounds, by policy and seed."""
    uplink = Uplink(way.config, way.payload, pick_device(way.config.run.device))
    batch, scenario = uplink.rounds(rounds), uplink.scenario  # [(seed, round)]
    found = {}
    for name in POLICIES:
        outcome = play_round(load_policy(name), scenario, batch, uplink.keys(name, *rounds))
        found[name] = outcome.delivered.sum(-1)
    found[GENIE] = genie_bound(scenario, batch)
    each = torch.stack([*found.values()]).float()  # [policy, (seed, round)]
    uploads = each.view(len(found), len(uplink.seeds), -1).mean(-1)
    table = DataFrame(uploads.T.tolist(), index=uplink.seeds, columns=[*found])  # [seed, policy]
    return table.rename_axis("seed").reset_index().melt("seed", None, "policy", "uploads")


def draw(links: Links, tables: Mapping[str, DataFrame]) -> Drawn:
    """Means, a table to paste for each kind of updates, a picture."""
    lines = []
    for labels, own in tables["seeds"].groupby(WAY, sort=False):
        scores = own.pivot_table(index="seed", columns="policy", values="uploads")
        found = {name: scores[name] for name in (*POLICIES, GENIE)}
        found |= {name: scores[one] - scores[other] for name, (one, other) in APART.items()}
        for name, values in found.items():
            uploads, error = mean_error(values)
            which = dict(zip(WAY, labels, strict=True))
            lines.append({**which, "policy": name, "uploads": uploads, "error": error})
    table, run = DataFrame(lines), links.base.run
    made: dict[str, Any] = {"mobility": links.base.cell.mobility, "rounds": list(links.rounds)}
    facts = {"setting": {**made, "seeds": run.seeds}, "link": table.to_dict("records")}
    return Drawn(facts, _text(links, table), {"link": partial(figure, table)}, {"link": table})


def _text(links: Links, table: DataFrame) -> str:
    last, rounds = FIRST_SEED + links.base.run.seeds - 1, ", ".join(map(str, links.rounds))
    text = [
        f"Uploads of {links.base.learning.clients} clients per round, seeds {FIRST_SEED} to "
        f"{last}, rounds {rounds}, without learning; mean ± standard error over seeds. The last "
        "two columns are differences on the same rounds: "
        + "; ".join(f"*{name}* is {one} less {other}" for name, (one, other) in APART.items())
        + "."
    ]
    for updates in SHARES:
        rows = []
        for labels, own in matching(table, updates=updates).groupby(WAY[1:], sort=False):
            signs = ("+" if name in APART else "" for name in own["policy"])
            each = zip(signs, own["uploads"], own["error"], strict=True)
            rows.append(
                [*labels, *(f"{mean:{sign}.2f} ± {error:.2f}" for sign, mean, error in each)]
            )
        heads = [*WAY[1:], *POLICIES, GENIE, *APART]
        text += [f"With {updates} updates:", markdown(heads, rows)]
    return "\n\n".join(text)


def figure(table: DataFrame) -> Figure:
    """Uploads of a few policies on every link, a panel for each kind of updates."""
    drawing, (row,) = panels(12.5, 4.6, 1, len(SHARES), sharey=True)
    for axes, updates in zip(row, SHARES, strict=True):
        own = matching(table, updates=updates)
        for place, policy in enumerate(_DRAWN):
            line = matching(own, policy=policy)
            style = {"color": shade(place), "marker": "o", "ms": 5, "lw": 0.8, "ls": ":"}
            axes.errorbar(range(len(line)), line["uploads"], line["error"], label=policy, **style)
        label(axes, f"{updates} updates")
        names = [
            f"{link}, {antennas:g} antenna{'s' if antennas > 1 else ''}"
            f"{', neighbours' if neighbours else ''}"
            for link, antennas, neighbours in line[WAY[1:]].itertuples(index=False)
        ]
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
    row[0].set_ylabel("uploads per round")
    drawing.legend(*row[-1].get_legend_handles_labels(), loc="outside right center", frameon=False)
    headline(drawing, "Uploads as the link becomes a real one (bars: standard error over seeds)")
    return drawing
