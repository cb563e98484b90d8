"""Part `bound`: the second term of Theorem 1 along real runs, and whether it tells who ends up
better (paper: eq. 25)."""

from dataclasses import asdict
from functools import partial

import pandas as pd
from pandas import DataFrame
from scipy.stats import spearmanr

from fedfade.allocation import PERFECT
from fedfade.config import QmixConfig, changed
from fedfade.device import pick_device
from fedfade.experiments.bound import bound_under
from fedfade.experiments.run_folder import decisive, mark
from fedfade.studies.frames import kept, markdown, matching
from fedfade.studies.paper import accuracy, plots
from fedfade.studies.paper.setting import HEURISTICS, SCHEDULE, Setting, unseen

MEASURED = (*HEURISTICS, SCHEDULE, PERFECT)
"""Policies under which L and the variances are estimated too; perfect has no second term."""


def compute(setting: Setting) -> dict[str, DataFrame]:
    """The nine cells' runs (made by `accuracy`), and all terms along one run a policy."""
    tables = accuracy.compute(setting)
    fields = {
        "run.seed": unseen(setting.training_seeds[0]),
        "run.seeds": 1,
        "run.rounds": setting.grid.bound_rounds,
        "qmix": QmixConfig().model_dump(),  # nobody is trained
    }
    config = changed(setting.base, fields)

    def terms(policy: str) -> DataFrame:
        setting.say(f"bound: terms under {policy}")
        rows = bound_under(config, policy, pick_device(config.run.device))
        return DataFrame([asdict(row) for row in rows]).astype(float)

    for policy in MEASURED:
        name = f"terms-{policy}-{mark(decisive(config), policy)}.csv"
        path = setting.out / "bound" / "runs" / name
        tables[f"bound/terms-{policy}"] = kept(path, partial(terms, policy))
    return tables


def draw(setting: Setting, final: DataFrame, biases: DataFrame, *terms: DataFrame) -> plots.Drawn:
    """Rank correlations, the scatter behind them, and the terms."""
    correlations = DataFrame(
        [
            {"alpha": alpha, "clusters": clusters, **_correlation(own)}
            for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False)
        ]
    )
    cells = correlations.to_dict("records")
    rows = [
        [f"alpha {cell['alpha']:g}, n_c {cell['clusters']:g}"]
        + [f"{cell[name]:.2f}" for name in ("all_runs", "within_seeds", "uploads")]
        for cell in cells
    ]
    heads = ["cell", "second term, all runs", "second term, within a seed", "uploads, all runs"]
    text = "Spearman's rank correlation with final accuracy:\n\n" + markdown(heads, rows)
    by_policy = dict(zip(MEASURED, terms, strict=True))
    held = [
        {
            "policy": policy,
            "rounds": len(own),
            "held": int((own["measured"] <= own["bound"]).sum()),
            **own[["first", "second", "third", "measured", "delivered"]].mean().to_dict(),
        }
        for policy, own in by_policy.items()
    ]
    text += "\n\nAlong the first evaluation seed, means over rounds:\n\n" + markdown(
        ["policy", "rounds", "held", "C1 term", "C2 term", "C3", "measured change"],
        [
            [line[name] for name in ("policy", "rounds", "held")]
            + [f"{line[name]:.3g}" for name in ("first", "second", "third", "measured")]
            for line in held
        ],
    )
    centre = matching(final, **setting.centre._asdict())
    figures = {
        "bound": partial(plots.second_term, centre, biases),
        "terms": partial(plots.bound_terms, by_policy),
    }
    facts = {"cells": cells, "terms": held}
    return plots.Drawn(facts, text, figures, {"bound/correlation": correlations})


def _correlation(lines: DataFrame) -> dict[str, float]:
    """Runs that send only: perfect upload has no second term and would flatter the figure."""
    sending = lines[lines["policy"] != PERFECT]
    within = [_spearman(own, "bias") for _, own in sending.groupby("seed", sort=False)]
    return {
        "runs": float(len(sending)),
        "all_runs": _spearman(sending, "bias"),
        "within_seeds": float(pd.Series(within).mean(skipna=False)),
        "uploads": _spearman(sending, "uploads"),
    }


def _spearman(lines: DataFrame, field: str) -> float:
    """Of a field and final accuracy; NaN where either is the same in all runs."""
    if lines[field].nunique() < 2 or lines["accuracy"].nunique() < 2:
        return float("nan")
    return float(spearmanr(lines[field], lines["accuracy"]).statistic)
