"""Parts `accuracy` and `epochs`: how the policies end in the nine cells, and at the centre where
local work is counted in epochs; whether agents use what they observe."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pandas import DataFrame

from fedfade.config import changed
from fedfade.device import pick_device
from fedfade.experiments.figures import of_seeds
from fedfade.experiments.run_folder import decisive, mark
from fedfade.learning import payload_bits
from fedfade.studies.frames import Drawn, curve_table, final_table, kept, markdown, matching
from fedfade.studies.noise import Difference, paired
from fedfade.studies.paper import charts, trial
from fedfade.studies.paper.runs import agents_mark, all_runs, compared, trained
from fedfade.studies.paper.setting import (
    BASELINES,
    QMIX,
    QMIX_PLUS,
    Hide,
    PaperCell,
    Setting,
    spread_out,
)
from fedfade.uplink.gradients import SyntheticGradients


def compute_accuracy(setting: Setting) -> dict[str, DataFrame]:
    """Train where needed, compare in every cell."""
    return _compared_in(setting, setting.cells, "accuracy", {})


def compute_epochs(setting: Setting) -> dict[str, DataFrame]:
    """The centre cell with E counted in epochs. Agents observe the round as t/T, T being the length
    of this run and not of their training."""
    fields = {"learning.local_unit": "epoch", "run.rounds": setting.grid.epoch_rounds}
    return _compared_in(setting, [setting.centre], "epochs", {**fields, "run.evaluate_every": 1})


def _compared_in(
    setting: Setting, cells: Sequence[PaperCell], part: str, fields: Mapping[str, Any]
) -> dict[str, DataFrame]:
    """All policies in some cells: how they ended, curves, and the bias at the centre."""
    trained(setting)
    runs = []
    for cell in cells:
        runs += all_runs(setting, part, cell._asdict(), {**cell.fields, **fields}, BASELINES)
    rows = compared(setting, runs, part, unit=setting.epoch if part == "epochs" else 1.0)
    rows = rows.iloc[rows["policy"].map(setting.policies.index).argsort(kind="stable")]
    by, centre = ["alpha", "clusters"], matching(rows, **setting.centre._asdict())
    return {
        f"{part}/final": final_table(rows, by, setting.base.learning.clients),
        f"{part}/curves": curve_table(rows, by, "accuracy"),
        f"{part}/bias": curve_table(centre, by, "gradient_bias"),
        f"{part}/inputs": inputs_table(setting),
    }


def inputs_table(setting: Setting, hide: Sequence[Hide] = ()) -> DataFrame:
    """Uploads at the centre of agents and of the local heuristics, without learning (gradients are
    invented), and with swapped observations."""
    folders, seeds = trained(setting, hide), setting.test_seeds
    rounds = setting.base.run.rounds
    numbers = spread_out(min(setting.grid.regime_rounds, rounds), rounds)
    bits = payload_bits(setting.base.learning)
    config = changed(setting.base, {"allocation.hide": list(hide)})

    def play() -> DataFrame:
        device = pick_device(config.run.device)
        source = SyntheticGradients(config, device, bits)
        agents = dict(zip(setting.training_seeds, folders, strict=True))
        return trial.tried(config, seeds, numbers, source, trial.LOCAL_HEURISTICS, agents, device)

    name = mark(decisive(config), seeds, numbers, [*map(agents_mark, folders)])
    return kept(setting.out / "reward" / "runs" / f"inputs-{name}.csv", play)


def draw_accuracy(setting: Setting, part: str = "accuracy") -> Drawn:
    """Curves, who is served at the centre, and what the claims are judged by."""
    final, curves = setting.table(f"{part}/final"), setting.table(f"{part}/curves")
    grid = partial(charts.accuracy_grid, curves, final["seed"].nunique())
    served = partial(charts.served, matching(final, **setting.centre._asdict()))
    learned = trial.learned_facts(setting.table(f"{part}/inputs"))
    text = f"{_text(final)}\n\n{inputs_text({'nothing': learned})}"
    facts = {**facts_of(final), "learned": learned}
    return Drawn(facts, text, {part: grid, "served": served})


def inputs_text(variants: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether agents use what they observe, a row for each variant of them."""
    parts = list(next(iter(variants.values()))["kept"])
    rows = []
    for hidden, found in variants.items():
        kept_share = (f"{100 * found['kept'][part]:.0f}" for part in parts)
        rows.append([hidden, *kept_share, "yes" if found["learned"] else "no"])
    heads = ["hidden", *parts, "learned"]
    title = "Uploads kept in % when agents see another episode's part of the observation"
    return f"{title}. {trial.LEARNED}\n\n{markdown(heads, rows)}"


def facts_of(final: DataFrame) -> dict[str, Any]:
    """What the claims are judged by."""
    measured = ["accuracy", "uploads", "fairness", "bias"]
    cells = []
    for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False):
        medians = own.groupby("policy", sort=False)[measured].agg(lambda v: v.median(skipna=False))
        cell = {"alpha": alpha, "clusters": clusters, "policies": medians.to_dict("index")}
        above = {"qmix_minus": _above(own, QMIX), "plus_minus": _above(own, QMIX_PLUS)}
        cells.append({**cell, **above})
    return {
        "seeds": [int(seed) for seed in final["seed"].unique()],
        "cells": cells,
        "with_clusters": _steps(final, "clusters", "alpha", "accuracy"),
        "uploads_with_clusters": _steps(final, "clusters", "alpha", "uploads"),
        "with_alpha": _steps(final, "alpha", "clusters", "accuracy"),
    }


def _above(own: DataFrame, agents: str) -> dict[str, Difference]:
    """How far agents end above every other policy; empty if they are not there."""
    names = own["policy"].unique()
    others = [name for name in names if name != agents] if agents in names else []
    return {name: paired(own, {"policy": agents}, {"policy": name}) for name in others}


def _steps(final: DataFrame, along: str, other: str, field: str) -> list[dict[str, Any]]:
    """For each policy: changes of a field from one value of `along` to the next, and overall."""
    values = final[along].unique()
    pairs = [*itertools.pairwise(values), (values[0], values[-1])]
    found = []
    for (fixed, policy), own in final.groupby([other, "policy"], sort=False):
        *steps, overall = (paired(own, {along: to}, {along: start}, field) for start, to in pairs)
        found.append({other: fixed, "policy": policy, "steps": steps, "overall": overall})
    return found


def _text(final: DataFrame) -> str:
    """Final accuracy in every cell, then what the uplink did at each number of clusters."""
    cells = {
        f"alpha {alpha:g}, n_c {clusters:g}": own
        for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False)
    }
    counts = {f"n_c {count:g}": own for count, own in final.groupby("clusters", sort=False)}
    title = f"Final test accuracy in %, {of_seeds(final['seed'].nunique(), 'unseen seed')}:"
    uplink = "Uploads per round, Jain's index of who was served, share of bits wasted:"
    sections = []
    for head, tables, shown in ((title, cells, _accuracy), (uplink, counts, _uplink)):
        rows = [
            [policy, *(shown(matching(own, policy=policy)) for own in tables.values())]
            for policy in final["policy"].unique()
        ]
        sections += [head, markdown(["policy", *tables], rows)]
    return "\n\n".join(sections)


def _accuracy(lines: DataFrame) -> str:
    low, middle, high = 100 * np.percentile(lines["accuracy"], [10, 50, 90])
    return f"{middle:.1f}" + (f" ({low:.1f}-{high:.1f})" if len(lines) > 1 else "")


def _uplink(lines: DataFrame) -> str:
    uploads, fairness, wasted = lines[["uploads", "fairness", "wasted"]].mean()
    return f"{uploads:.2f}, {fairness:.2f}, {100 * wasted:.0f} %".replace("nan", "-")
