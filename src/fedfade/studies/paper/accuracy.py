"""Test accuracy against rounds in all nine cells, and at the centre with local epochs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedfade.experiments.figures import of_seeds
from fedfade.studies.paper import pictures
from fedfade.studies.paper.runs import (
    Job,
    agent_jobs,
    baseline_jobs,
    compared,
    plus_jobs,
    trained,
)
from fedfade.studies.paper.setting import QMIX, QMIX_PLUS, Cell, Setting
from fedfade.studies.paper.summaries import curve_lines, final_lines, paired
from fedfade.studies.paper.tables import (
    Line,
    columns,
    distinct,
    markdown,
    matching,
    read_table,
    write_table,
)

PART = "accuracy"


def compute(setting: Setting) -> None:
    """Train where needed, compare in every cell; `final.csv` and `curves.csv`."""
    trained(setting)
    jobs = {cell: cell_jobs(setting, PART, cell, {}) for cell in setting.cells}
    _summarise(setting, setting.out / PART, jobs, PART)


def compute_epochs(setting: Setting) -> None:
    """The centre cell with E counted in epochs.

    Agents observe the round as t/T, T being the length of this run and not of their training.
    """
    trained(setting)
    fields = {
        "learning.local_unit": "epoch",
        "run.rounds": setting.grid.epoch_rounds,
        "run.evaluate_every": 1,
    }
    jobs = {setting.centre: cell_jobs(setting, "epochs", setting.centre, fields)}
    _summarise(setting, setting.out / "epochs", jobs, "epochs")


def cell_jobs(setting: Setting, part: str, cell: Cell, fields: dict[str, object]) -> list[Job]:
    """Everybody in one cell."""
    asked = {**cell.fields, **fields}
    return [
        *baseline_jobs(setting, part, cell.name, asked),
        *agent_jobs(setting, part, cell.name, asked),
        *plus_jobs(setting, part, cell.name, asked),
    ]


def _summarise(setting: Setting, folder: Path, jobs: dict[Cell, list[Job]], what: str) -> None:
    """Run all jobs as one and write what figures are drawn from."""
    rows = iter(compared(setting, [job for some in jobs.values() for job in some], what))
    final: list[Line] = []
    curves: list[Line] = []
    biases: list[Line] = []
    for cell, some in jobs.items():
        own = [row for _ in some for row in next(rows)]
        order = setting.policies
        own.sort(key=lambda row: (order.index(row.policy), row.seed, row.round))
        head: Line = {"alpha": cell.alpha, "clusters": float(cell.clusters)}
        final += final_lines(own, setting.base.learning.clients, head)
        curves += curve_lines(own, "accuracy", head)
        if cell == setting.centre:
            biases = curve_lines(own, "gradient_bias", head)
    write_table(folder / "final.csv", final)
    write_table(folder / "curves.csv", curves)
    write_table(folder / "bias.csv", biases)


def draw(setting: Setting, part: str = PART) -> tuple[dict[str, object], str]:
    """Figures, facts and the table to paste, from the CSV files."""
    folder = setting.out / part
    final, curves = read_table(folder / "final.csv"), read_table(folder / "curves.csv")
    seeds = len(distinct(final, "seed"))
    pictures.put(folder / f"{part}.png", pictures.accuracy_grid, curves, seeds)
    centre = matching(final, alpha=setting.centre.alpha, clusters=setting.centre.clusters)
    clients = setting.base.learning.clients
    pictures.put(folder / "served.png", pictures.served, centre, clients)
    return _facts(final), _text(final)


def draw_epochs(setting: Setting) -> tuple[dict[str, object], str]:
    """The same for epochs."""
    return draw(setting, "epochs")


def _facts(final: Sequence[Line]) -> dict[str, object]:
    """What the claims are judged by; a pair is a mean difference over seeds and its error."""
    return {
        "seeds": [int(seed) for seed in distinct(final, "seed")],
        "cells": [
            {
                "alpha": alpha,
                "clusters": clusters,
                "policies": {
                    policy: _medians(matching(own, policy=policy))
                    for policy in distinct(own, "policy")
                },
                "qmix_minus": _above(own, QMIX),
                "plus_minus": _above(own, QMIX_PLUS),
            }
            for alpha, clusters, own in by_cell(final)
        ],
        "with_clusters": _steps(final, "clusters", "alpha", "accuracy"),
        "uploads_with_clusters": _steps(final, "clusters", "alpha", "uploads"),
        "with_alpha": _steps(final, "alpha", "clusters", "accuracy"),
    }


def _above(own: Sequence[Line], agents: str) -> dict[str, tuple[float, float]]:
    """How far agents end above every other policy; empty if they are not there."""
    others = [policy for policy in distinct(own, "policy") if policy != agents]
    if len(others) == len(distinct(own, "policy")):
        return {}
    return {policy: paired(own, {"policy": agents}, {"policy": policy}) for policy in others}


def _medians(lines: Sequence[Line]) -> dict[str, float]:
    names = ("accuracy", "uploads", "fairness", "bias")
    return {name: float(np.median(columns(lines, name)[0])) for name in names}


def _steps(final: Sequence[Line], along: str, other: str, field: str) -> list[Line]:
    """For each policy: changes of a field from one value of `along` to the next, and overall."""
    values = distinct(final, along)
    pairs = [*itertools.pairwise(values), (values[0], values[-1])]
    found = []
    for fixed in distinct(final, other):
        for policy in distinct(final, "policy"):
            own = matching(final, policy=policy, **{other: fixed})
            changes = [paired(own, {along: to}, {along: start}, field) for start, to in pairs]
            found.append(
                {other: fixed, "policy": policy, "steps": changes[:-1], "overall": changes[-1]}
            )
    return found


def by_cell(final: Sequence[Line]) -> list[tuple[float, float, list[Line]]]:
    """The lines of every cell."""
    return [
        (alpha, clusters, own)
        for clusters in distinct(final, "clusters")
        for alpha in distinct(final, "alpha")
        if (own := matching(final, alpha=alpha, clusters=clusters))
    ]


def _text(final: Sequence[Line]) -> str:
    """Final accuracy in every cell, then what the uplink did at each number of clusters."""
    cells = by_cell(final)
    policies = distinct(final, "policy")
    heads = [f"alpha {alpha:g}, n_c {clusters:g}" for alpha, clusters, _ in cells]
    accuracy = [
        [policy, *(_accuracy(columns(own, "accuracy", policy=policy)[0]) for *_, own in cells)]
        for policy in policies
    ]
    uplink = [
        [
            policy,
            *(_uplink(matching(final, policy=policy, clusters=clusters)) for clusters in counts),
        ]
        for counts in [distinct(final, "clusters")]
        for policy in policies
    ]
    counts = [f"n_c {clusters:g}" for clusters in distinct(final, "clusters")]
    shown = of_seeds(len(distinct(final, "seed")), "unseen seed")
    return "\n\n".join(
        [
            f"Final test accuracy in %, {shown}:",
            markdown(["policy", *heads], accuracy),
            "Uploads per round, Jain's index of who was served, share of bits wasted:",
            markdown(["policy", *counts], uplink),
        ]
    )


def _accuracy(values: Sequence[float]) -> str:
    low, middle, high = 100 * np.percentile(values, [10, 50, 90])
    return f"{middle:.1f}" + (f" ({low:.1f}-{high:.1f})" if len(values) > 1 else "")


def _uplink(lines: Sequence[Line]) -> str:
    uploads, fairness, wasted = (
        float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")
        for values in map(np.array, columns(lines, "uploads", "fairness", "wasted"))
    )
    return f"{uploads:.2f}, {fairness:.2f}, {100 * wasted:.0f} %".replace("nan", "-")
