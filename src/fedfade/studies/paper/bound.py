"""The second term of Theorem 1 along real runs, and whether it tells who ends up better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from fedfade.allocation import PERFECT
from fedfade.config import Config, QmixConfig, changed
from fedfade.device import pick_device
from fedfade.experiments.run_folder import decisive, mark
from fedfade.studies.paper import accuracy, pictures
from fedfade.studies.paper.setting import (
    HEURISTICS,
    SCHEDULE,
    Setting,
    unseen,
)
from fedfade.studies.paper.tables import (
    Line,
    columns,
    distinct,
    markdown,
    matching,
    read_table,
    write_table,
)

PART = "bound"
MEASURED = (*HEURISTICS, SCHEDULE, PERFECT)
"""Policies under which L and the variances are estimated too; perfect has no second term."""


def compute(setting: Setting) -> None:
    """The nine cells' runs (made by `accuracy`), and all terms along one run a policy."""
    accuracy.compute(setting)
    folder, config = setting.out / PART, _config(setting)
    for policy in MEASURED:
        path = folder / "runs" / f"terms-{policy}-{mark(decisive(config), policy)}.csv"
        if not path.is_file():
            setting.say(f"bound: terms under {policy}")
            write_table(path, _terms(config, policy))
        write_table(folder / f"terms-{policy}.csv", read_table(path))


def _config(setting: Setting) -> Config:
    """A run on the first evaluation seed, in which nobody is trained."""
    fields = {
        "run.seed": unseen(setting.training_seeds[0]),
        "run.seeds": 1,
        "run.rounds": setting.grid.bound_rounds,
        "qmix": QmixConfig().model_dump(),
    }
    return changed(setting.base, fields)


def _terms(config: Config, policy: str) -> list[Line]:
    """Every term of the bound, round by round."""
    from fedfade.experiments.bound import bound_under

    device = pick_device(config.run.device)
    return [
        {name: float(value) for name, value in asdict(row).items()}
        for row in bound_under(config, policy, device)
    ]


def draw(setting: Setting) -> tuple[dict[str, object], str]:
    """Rank correlations, the scatter behind them, and the terms."""
    folder, source = setting.out / PART, setting.out / accuracy.PART
    final, biases = read_table(source / "final.csv"), read_table(source / "bias.csv")
    cells = [_correlation(own, alpha, n_c) for alpha, n_c, own in accuracy.by_cell(final)]
    centre = matching(final, alpha=setting.centre.alpha, clusters=setting.centre.clusters)
    write_table(folder / "correlation.csv", cells)
    pictures.put(folder / "bound.png", pictures.second_term, centre, biases)
    terms = {policy: read_table(folder / f"terms-{policy}.csv") for policy in MEASURED}
    pictures.put(folder / "terms.png", pictures.bound_terms, terms)
    rows = [
        [f"alpha {c['alpha']:g}, n_c {c['clusters']:g}"]
        + [f"{c[name]:.2f}" for name in ("all_runs", "within_seeds", "uploads")]
        for c in cells
    ]
    heads = ["cell", "second term, all runs", "second term, within a seed", "uploads, all runs"]
    text = "Spearman's rank correlation with final accuracy:\n\n" + markdown(heads, rows)
    held = _held(terms)
    text += "\n\nAlong the first evaluation seed, means over rounds:\n\n" + markdown(
        ["policy", "rounds", "held", "C1 term", "C2 term", "C3", "measured change"],
        [[h[name] for name in ("policy", "rounds", "held")] + _terms_text(h) for h in held],
    )
    return {"cells": cells, "terms": held}, text


def _correlation(lines: Sequence[Line], alpha: float, clusters: float) -> Line:
    """Runs that send only: perfect upload has no second term and would flatter the figure."""
    sending = [line for line in lines if line["policy"] != PERFECT]
    bias, reached, uploads = map(np.array, columns(sending, "bias", "accuracy", "uploads"))
    within = [
        spearman(*map(np.array, columns(sending, "bias", "accuracy", seed=seed)))
        for seed in distinct(sending, "seed")
    ]
    return {
        "alpha": alpha,
        "clusters": clusters,
        "runs": float(len(bias)),
        "all_runs": spearman(bias, reached),
        "within_seeds": float(np.mean(within)),
        "uploads": spearman(uploads, reached),
    }


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, 3.0]), np.array([9.0, 7.0, 5.0, 5.0])), 6)
    -1.0
    """
    one, other = _ranks(x), _ranks(y)
    if min(one.std(), other.std()) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: np.ndarray) -> NDArray[np.float64]:
    below = (values[None] < values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return np.asarray(below + (equal - 1) / 2, float)


def _held(terms: dict[str, list[Line]]) -> list[Line]:
    return [
        {
            "policy": policy,
            "rounds": len(rows),
            "held": sum(row["measured"] <= row["bound"] for row in rows),
            **{
                name: float(np.mean([row[name] for row in rows]))
                for name in ("first", "second", "third", "measured", "delivered")
            },
        }
        for policy, rows in terms.items()
    ]


def _terms_text(line: Line) -> list[str]:
    return [f"{line[name]:.3g}" for name in ("first", "second", "third", "measured")]
