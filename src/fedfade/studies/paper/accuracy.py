"""Parts `accuracy` and `epochs`: test accuracy against rounds in all nine cells, and at the
centre with local epochs."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pandas import DataFrame

from fedfade.experiments.figures import of_seeds
from fedfade.studies.federated import curve_table, final_table
from fedfade.studies.frames import markdown, matching, paired
from fedfade.studies.paper import plots
from fedfade.studies.paper.runs import all_runs, compared, trained
from fedfade.studies.paper.setting import QMIX, QMIX_PLUS, PaperCell, Setting


def compute(setting: Setting) -> dict[str, DataFrame]:
    """Train where needed, compare in every cell."""
    return _compared_in(setting, setting.cells, "accuracy", {})


def compute_epochs(setting: Setting) -> dict[str, DataFrame]:
    """The centre cell with E counted in epochs.

    Agents observe the round as t/T, T being the length of this run and not of their training.
    """
    fields = {
        "learning.local_unit": "epoch",
        "run.rounds": setting.grid.epoch_rounds,
        "run.evaluate_every": 1,
    }
    return _compared_in(setting, [setting.centre], "epochs", fields)


def _compared_in(
    setting: Setting, cells: Sequence[PaperCell], part: str, fields: Mapping[str, Any]
) -> dict[str, DataFrame]:
    """All policies in some cells: how they ended, curves, and the bias at the centre."""
    trained(setting)
    runs = [
        run
        for cell in cells
        for run in all_runs(setting, part, cell._asdict(), {**cell.fields, **fields})
    ]
    rows = compared(setting, runs, part)
    rows = rows.iloc[rows["policy"].map(setting.policies.index).argsort(kind="stable")]
    by, centre = ["alpha", "clusters"], matching(rows, **setting.centre._asdict())
    return {
        f"{part}/final": final_table(rows, by, setting.base.learning.clients),
        f"{part}/curves": curve_table(rows, by, "accuracy"),
        f"{part}/bias": curve_table(centre, by, "gradient_bias"),
    }


def draw(setting: Setting, final: DataFrame, curves: DataFrame, part: str) -> plots.Drawn:
    """Curves, who is served at the centre, and what the claims are judged by."""
    centre = matching(final, **setting.centre._asdict())
    figures = {
        part: partial(plots.accuracy_grid, curves, final["seed"].nunique()),
        "served": partial(plots.served, centre),
    }
    return plots.Drawn(facts_of(final), _text(final), figures)


def facts_of(final: DataFrame) -> dict[str, Any]:
    """What the claims are judged by; a pair is a mean difference over seeds and its error."""
    measured = ["accuracy", "uploads", "fairness", "bias"]
    cells = []
    for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False):
        medians = own.groupby("policy", sort=False)[measured].agg(lambda v: v.median(skipna=False))
        cells.append(
            {
                "alpha": alpha,
                "clusters": clusters,
                "policies": medians.to_dict("index"),
                "qmix_minus": _above(own, QMIX),
                "plus_minus": _above(own, QMIX_PLUS),
            }
        )
    return {
        "seeds": [int(seed) for seed in final["seed"].unique()],
        "cells": cells,
        "with_clusters": _steps(final, "clusters", "alpha", "accuracy"),
        "uploads_with_clusters": _steps(final, "clusters", "alpha", "uploads"),
        "with_alpha": _steps(final, "alpha", "clusters", "accuracy"),
    }


def _above(own: DataFrame, agents: str) -> dict[str, tuple[float, float]]:
    """How far agents end above every other policy; empty if they are not there."""
    policies = [*own["policy"].unique()]
    if agents not in policies:
        return {}
    policies.remove(agents)
    return {policy: paired(own, {"policy": agents}, {"policy": policy}) for policy in policies}


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
    policies = final["policy"].unique()
    accuracy, uplink = (
        markdown(
            ["policy", *tables],
            [[p, *(shown(matching(own, policy=p)) for own in tables.values())] for p in policies],
        )
        for tables, shown in ((cells, _accuracy), (counts, _uplink))
    )
    shown = of_seeds(final["seed"].nunique(), "unseen seed")
    uplink_title = "Uploads per round, Jain's index of who was served, share of bits wasted:"
    return "\n\n".join([f"Final test accuracy in %, {shown}:", accuracy, uplink_title, uplink])


def _accuracy(lines: DataFrame) -> str:
    low, middle, high = 100 * np.percentile(lines["accuracy"], [10, 50, 90])
    return f"{middle:.1f}" + (f" ({low:.1f}-{high:.1f})" if len(lines) > 1 else "")


def _uplink(lines: DataFrame) -> str:
    uploads, fairness, wasted = lines[["uploads", "fairness", "wasted"]].mean()
    return f"{uploads:.2f}, {fairness:.2f}, {100 * wasted:.0f} %".replace("nan", "-")
