"""Who delivers how many? Uploads of policies and shipped agents on channels nobody trained on.

Two cells at three speeds and numbers of clusters, other sizes, and gains announced with an error,
without learning. Agents that come with the package play where they fit.

OUT/runs/SETTING-DIGEST.csv        uploads of every policy and seed; what is there is not redone
OUT/seeds.csv                      all of them
OUT/policies.csv                   means over seeds, and ratios to `RIVAL`
OUT/policies.png, OUT/policies.md  the same to look at
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from pandas import DataFrame
from torch import Tensor

from fedfade.agents import (
    agents_folder,
    load_checkpoint,
    load_shipped_policy,
    shipped_policies_for,
)
from fedfade.allocation import Policy, load_policy, play_round
from fedfade.config import Config, changed, load_config
from fedfade.device import one_thread, pick_device
from fedfade.errors import not_allowed
from fedfade.experiments.run_folder import decisive, mark
from fedfade.experiments.uploads import Uplink, joined
from fedfade.learning import payload_bits, plain_payload
from fedfade.studies.frames import Bar, Drawn, Figure, kept, markdown, matching, means
from fedfade.studies.paper.setting import FIRST_UNSEEN, PLAYED_ROUND
from fedfade.style import headline, label, panels, shade
from fedfade.uplink import Round, Scenario, gradient_source
from fedfade.wording import counted

POLICIES = (
    *("random", "block-fading-schedule", "wrap-around-schedule", "wrap-around-choice"),
    *("deadline-progress", "max-sum-rate", "deadline-matching"),
)
RIVAL = "wrap-around-choice"
CELLS = ("paper", "ring")  # presets
CLUSTERS, SPEEDS_MPS = (14, 21, 28), (18.12, 7.67, 0.83)
SIZES = ((7, 3), (16, 5), (30, 8))  # clients and sub-bands; no agents were trained for these
ERRORS_DB = (1.0, 2.0, 3.0)  # of announced gains
CENTRE: Mapping[str, Any] = {"cell": "paper", "clusters": 21, "speed": 18.12}
"""Where sizes and errors are varied."""
_FIELDS = {
    "clients": "learning.clients",
    "subbands": "radio.subbands",
    "clusters": "radio.clusters",
    "speed": "radio.speed_mps",
    "error_db": "cell.announced_error_db",
}
WHERE, SIZE = ["cell", *_FIELDS], ["clients", "subbands"]


class WholeBatch(NamedTuple):
    """All rounds of all seeds of a configuration, to be played at once."""

    scenario: Scenario
    rounds: Round  # [(round, seed)]
    keys: Tensor  # of policies' own random numbers: [(round, seed)]


def whole_batch(config: Config, device: torch.device) -> WholeBatch:
    """With gradients, which some agents look at."""
    uplink = Uplink(config, payload_bits(config.learning), device)
    gradients = gradient_source(config, device)
    rounds = joined(
        [uplink.round(n, gradients.inner(uplink.seeds, n)) for n in range(config.run.rounds)]
    )
    return WholeBatch(uplink.scenario, rounds, torch.arange(len(rounds.alpha), device=device))


def uploads_by_seed(policy: Policy, batch: WholeBatch, seeds: int) -> Tensor:
    """Clients that deliver, the mean over the rounds of every seed: [seed]."""
    return play_round(policy, *batch).delivered.sum(-1).float().view(-1, seeds).mean(0)


class Compared(NamedTuple):
    """Uploads of a policy beside a rival's on the same rounds."""

    uploads: float
    error: float  # standard error over seeds
    ratio: float
    ratio_error: float  # by how the difference at this ratio varies from seed to seed


def compared(own: Tensor, rival: Tensor) -> Compared:
    """Two policies by their uploads: [seed].

    >>> compared(torch.tensor([3.0, 5.0]), torch.tensor([6.0, 10.0]))
    Compared(uploads=4.0, error=1.0, ratio=0.5, ratio_error=0.0)
    """
    ratio, root = own.mean() / rival.mean(), len(own) ** 0.5
    errors = own.std() / root, (own - ratio * rival).std() / root / rival.mean()
    return Compared(*map(float, (own.mean(), errors[0], ratio, errors[1])))


class PolicyCell(NamedTuple):
    """One setting, and the shipped agents that fit."""

    labels: Mapping[str, Any]  # by `WHERE`
    config: Config
    agents: Sequence[str]

    @property
    def policies(self) -> list[str]:
        return [*POLICIES, *self.agents]

    def players(self) -> dict[str, Policy]:
        """All of them, by name."""
        learned = {name: load_shipped_policy(name, self.config) for name in self.agents}
        return {name: load_policy(name) for name in POLICIES} | learned

    @property
    def name(self) -> str:
        text = "{cell}-{clients}-clients-{subbands}-bands-{clusters}-clusters-{speed:g}-mps"
        return f"{text}-{{error_db:g}}-dB".format(**self.labels)


def plan_cells(overrides: Sequence[str], seeds: int, rounds: int) -> list[PolicyCell]:
    """All settings, those of the presets' own size first, checked before anything runs; the first
    `rounds` of a run, no more than it has."""
    bases = {name: load_config(name, overrides) for name in CELLS}
    learning, radio, run = bases["paper"].learning, bases["paper"].radio, bases["paper"].run
    if learning.payload_bits == "auto":
        raise not_allowed("learning.payload_bits", "auto", "a number, as nothing is learned")
    own = {"clients": learning.clients, "subbands": radio.subbands, "error_db": 0.0}
    cells = product(CELLS, SPEEDS_MPS, CLUSTERS)
    asked = [
        *({**own, "cell": name, "speed": speed, "clusters": count} for name, speed, count in cells),
        *({**own, **CENTRE, **dict(zip(SIZE, size, strict=True))} for size in SIZES),
        *({**own, **CENTRE, "error_db": error} for error in ERRORS_DB),
    ]
    fixed = {"run.seed": FIRST_UNSEEN, "run.seeds": seeds, "run.rounds": min(rounds, run.rounds)}
    planned = {}
    for labels in asked:
        varied = {path: labels[name] for name, path in _FIELDS.items()}
        fields = {**varied, **fixed, "qmix.gradients": "synthetic"}
        config = changed(bases[labels["cell"]], fields)
        cell = PolicyCell(labels, config, shipped_policies_for(config))
        planned[cell.name] = cell  # once, where a size is the presets' own
    return [*planned.values()]


def amounts(cells: Sequence[PolicyCell]) -> dict[str, float]:
    """The work of `compute` by its bar, in federated rounds of one run."""
    run, played = cells[0].config.run, sum(len(cell.policies) for cell in cells)
    return {"settings": PLAYED_ROUND * played * run.seeds * run.rounds}


def compute(cells: Sequence[PolicyCell], out: Path, bar: Bar) -> dict[str, DataFrame]:
    """Uploads of every setting, policy and seed; what is on disk is read."""
    tables = []
    with bar("settings", len(cells)) as tell:
        for number, cell in enumerate(cells):
            tell(number, cell.name)
            path = out / "runs" / f"{cell.name}-{_digest(cell)}.csv"
            with one_thread():
                tables.append(kept(path, partial(_played, cell)).assign(**cell.labels))
        tell(len(cells), "done")
    return {"seeds": pd.concat(tables, ignore_index=True)[[*WHERE, "policy", "seed", "uploads"]]}


def _digest(cell: PolicyCell) -> str:
    """Of all that decides the numbers."""
    tree, learning = decisive(cell.config), cell.config.learning
    for branch in ("learning", "qmix"):
        del tree[branch]  # nothing is learned
    agents = [load_checkpoint(agents_folder(Path(name))).files["agents"] for name in cell.agents]
    payload = plain_payload(payload_bits(learning))
    return mark(tree, learning.clients, payload, cell.policies, agents)


def _played(cell: PolicyCell) -> DataFrame:
    run = cell.config.run
    batch = whole_batch(cell.config, pick_device(run.device))
    found = {
        name: uploads_by_seed(policy, batch, run.seeds).tolist()
        for name, policy in cell.players().items()
    }
    table = DataFrame({"seed": range(run.seed, run.seed + run.seeds), **found})
    return table.melt("seed", None, "policy", "uploads")


def draw(cells: Sequence[PolicyCell], tables: Mapping[str, DataFrame]) -> Drawn:
    """Means and ratios of every setting, tables to paste, a picture."""
    table, run = compared_by(tables["seeds"], WHERE), cells[0].config.run
    made = {"seeds": run.seeds, "rounds": run.rounds}
    facts = {"setting": made, "policies": table.to_dict("records")}
    shown = arranged(tables["seeds"])
    pictures = {"policies": partial(figure, shown)}
    return Drawn(facts, _text(shown, made), pictures, {"policies": table})


def compared_by(seeds: DataFrame, by: list[str]) -> DataFrame:
    """Every policy beside `RIVAL`, of settings that are alike in these columns the mean."""
    lines = []
    for labels, own in seeds.groupby(by, sort=False):
        scores = own.pivot_table("uploads", "seed", "policy")
        uploads = {name: torch.tensor(scores[name].to_numpy()) for name in own["policy"].unique()}
        for name, values in uploads.items():
            which = {**dict(zip(by, labels, strict=True)), "policy": name}
            lines.append({**which, **compared(values, uploads[RIVAL])._asdict()})
    return DataFrame(lines).replace([math.inf, -math.inf], math.nan)  # of no uploads


class Panel(NamedTuple):
    """Settings that are looked at together: what tells them apart, and how one is called."""

    title: str
    lines: DataFrame
    by: list[str]
    called: str

    def columns(self) -> dict[str, DataFrame]:
        """What every policy delivers, by setting."""
        each = compared_by(self.lines, self.by).groupby(self.by, sort=False)
        names = {labels: dict(zip(self.by, labels, strict=True)) for labels, _ in each}
        return {self.called.format(**names[n]): own.set_index("policy") for n, own in each}


def arranged(seeds: DataFrame) -> list[Panel]:
    """What is drawn side by side."""
    own = seeds.iloc[0][SIZE].to_dict()
    cells, centre = matching(seeds, **own, error_db=0.0), matching(seeds, **CENTRE)
    sizes, gains = matching(centre, error_db=0.0), matching(centre, **own)
    return [
        *(Panel(f"Cell {c}", matching(cells, cell=c), ["speed"], "{speed:g} m/s") for c in CELLS),
        Panel("Clients / sub-bands", sizes, SIZE, "{clients:g} / {subbands:g}"),
        Panel("Error of announced gains", gains, ["error_db"], "{error_db:g} dB"),
    ]


def _text(shown: Sequence[Panel], made: Mapping[str, int]) -> str:
    cell, clusters, speed = CENTRE.values()
    text = [
        f"Uploads per round, {counted(made['seeds'], 'seed')} from {FIRST_UNSEEN} on, the first "
        f"{counted(made['rounds'], 'round')} of each, without learning. In brackets the ratio to "
        f"{RIVAL} ± its standard error over seeds, paired. Of cells the mean over n_c "
        f"{', '.join(map(str, CLUSTERS))}; sizes and errors in cell {cell} at n_c {clusters}, "
        f"{speed:g} m/s.",
        _agents(shown),
    ]
    for panel in shown:
        columns, names = panel.columns(), panel.lines["policy"].unique()
        rows = [[name, *(_in_words(own, name) for own in columns.values())] for name in names]
        text += [f"{panel.title}:", markdown(["", *columns], rows)]
    return "\n\n".join(text)


def _in_words(table: DataFrame, policy: str) -> str:
    if policy not in table.index:
        return ""
    uploads, _, ratio, error = table.loc[policy, [*Compared._fields]]
    return f"{uploads:.2f}" + ("" if math.isnan(ratio) else f" ({ratio:.3f} ± {error:.3f})")


def _agents(shown: Sequence[Panel]) -> str:
    """What shipped agents deliver in each cell."""
    shares = []
    for panel in shown[: len(CELLS)]:
        table = compared_by(panel.lines, ["cell"]).set_index("policy").drop([*POLICIES])
        each = zip(table.index, table["ratio"], table["ratio_error"], strict=True)
        if len(table):
            found = ", ".join(f"{name} {ratio:.3f} ± {error:.3f}" for name, ratio, error in each)
            shares.append(f"in {panel.title.lower()} {found}")
    if not shares:
        return "No agents that come with the package fit the size of the cells."
    return f"Agents that come with the package, of {RIVAL}: {'; '.join(shares)}."


def figure(shown: Sequence[Panel]) -> Figure:
    """A row for every policy, a dot for every setting; of sizes the ratio, as uploads grow."""
    ranked = means(shown[0].lines, "policy", "uploads").sort_values().index
    order = [*dict.fromkeys([*ranked, *(name for p in shown for name in p.lines["policy"])])]
    drawing, (row,) = panels(13, 1.6 + 0.42 * len(order), 1, len(shown), sharey=True)
    for axes, panel in zip(row, shown, strict=True):
        sizes, columns = panel.by == SIZE, panel.columns()
        value, error = ("ratio", "ratio_error") if sizes else ("uploads", "error")
        for place, (called, own) in enumerate(columns.items()):
            lift = 0.16 * ((len(columns) - 1) / 2 - place)
            rows = [order.index(name) + lift for name in own.index]
            style = {"color": shade(place), "fmt": "o", "ms": 5, "elinewidth": 1, "clip_on": False}
            axes.errorbar(own[value], rows, xerr=own[error], label=called, **style)
        label(axes, panel.title, x=f"of {RIVAL}" if sizes else "uploads per round")
        axes.set_xlim(left=0)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 2}
        axes.legend(**below, frameon=False, fontsize=9)
    row[0].set_yticks(range(len(order)), order)
    headline(drawing, "Uploads of every policy (bars: standard error over seeds)")
    return drawing
