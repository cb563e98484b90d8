"""Parts `reward` and `ablation`: trainings, with all of the observation and with some hidden."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from fedfade.agents.run import saved_curve, seed_folder
from fedfade.studies.federated import curve_table, final_table
from fedfade.studies.frames import markdown, matching, paired
from fedfade.studies.paper import plots
from fedfade.studies.paper.runs import agent_runs, compared, trained
from fedfade.studies.paper.setting import QMIX, Hide, Setting

HIDDEN: tuple[Hide, ...] = ("gradient", "fading")
_POINTS = 300  # of a curve in the table; each is a mean over its episodes


def _training_curve(setting: Setting, hide: Sequence[Hide] = ()) -> DataFrame:
    """Reward and uploads of every training seed, trained where needed, in at most 300 bins."""
    folder, tables = trained(setting, hide), []
    for seed in setting.training_seeds:
        curve = DataFrame(saved_curve(seed_folder(folder, seed)))
        bins = np.array_split(np.arange(len(curve)), min(_POINTS, len(curve)))
        own = curve.groupby(np.repeat(np.arange(len(bins)), [len(part) for part in bins]))
        binned = own.agg({"episodes": "last", "reward": "mean", "uploads": "mean"})
        binned.insert(0, "seed", seed)
        tables.append(binned)
    return pd.concat(tables).assign(hidden=hide[0] if hide else "nothing")


def compute_reward(setting: Setting) -> dict[str, DataFrame]:
    """Train the agents."""
    return {"reward/curve": _training_curve(setting)}


def draw_reward(setting: Setting, lines: DataFrame) -> plots.Drawn:
    """The reward of an episode against training episodes, over all training seeds."""
    title = f"QMIX, alpha {setting.centre.alpha:g}, n_c {setting.centre.clusters}"
    figure = partial(plots.reward, lines, setting.base.learning.clients, title)
    facts = _convergence(lines)
    rows = [
        [f"{fact['seed']:.0f}"]
        + [f"{fact[name]:.3f}" for name in ("start", "best", "before_last", "last")]
        + [f"{fact['uploads']:.2f}"]
        for fact in facts
    ]
    heads = ["training seed", "first tenth", "best tenth", "last but one", "last", "uploads, last"]
    episodes = int(lines["episodes"].iloc[-1])
    text = f"Mean reward of an episode by tenths of {episodes} episodes:\n\n"
    found = {"episodes": episodes, "seeds": facts}
    return plots.Drawn(found, text + markdown(heads, rows), {"reward": figure})


def _convergence(lines: DataFrame) -> list[dict[str, float]]:
    """For every training seed: the reward by tenths of the training.

    `best` is the best tenth; `last` and `before_last` are where it ended and came from.
    """
    facts = []
    for seed, own in lines.groupby("seed", sort=False):
        count = min(10, len(own))
        tenths = [float(part.mean()) for part in np.array_split(own["reward"].to_numpy(), count)]
        facts.append(
            {
                "seed": seed,
                "start": tenths[0],
                "best": max(tenths),
                "before_last": tenths[-2:][0],
                "last": tenths[-1],
                "uploads": float(np.array_split(own["uploads"].to_numpy(), count)[-1].mean()),
            }
        )
    return facts


def compute_ablation(setting: Setting) -> dict[str, DataFrame]:
    """Train each variant and test it at the centre."""
    variants: dict[str, Sequence[Hide]] = {"nothing": (), **{hide: (hide,) for hide in HIDDEN}}
    curve = pd.concat([_training_curve(setting, hide) for hide in variants.values()])
    runs = []
    for name, hide in variants.items():
        # With nothing hidden these are the runs of the accuracy part, made there or here.
        part, centre = "ablation" if hide else "accuracy", setting.centre
        own = agent_runs(setting, part, centre._asdict(), centre.fields, hide)
        runs += [run._replace(labels={"hidden": name}) for run in own]
    rows = compared(setting, runs, "ablation")
    return {
        "ablation/curve": curve,
        "ablation/final": final_table(rows, ["hidden"], setting.base.learning.clients),
        "ablation/curves": curve_table(rows, ["hidden"], "accuracy"),
    }


def draw_ablation(
    setting: Setting, training: DataFrame, final: DataFrame, curves: DataFrame
) -> plots.Drawn:
    """What agents lose without the gradient deviation, or without the small-scale fading."""
    rows: list[list[str]] = []
    facts: list[dict[str, Any]] = []
    for hidden, own in final.groupby("hidden", sort=False):
        low, middle, high = np.percentile(own["accuracy"], [10, 50, 90])
        last = [end["last"] for end in _convergence(matching(training, hidden=hidden))]
        uploads, reward = float(own["uploads"].mean()), float(np.median(last))
        fact = {"hidden": hidden, "accuracy": float(middle), "band": float(high - low)}
        facts.append({**fact, "uploads": uploads, "reward": reward})
        rows.append(
            [
                str(hidden),
                f"{100 * middle:.1f} ({100 * low:.1f}-{100 * high:.1f})",
                f"{uploads:.2f}",
                f"{reward:.3f} ({min(last):.3f}-{max(last):.3f})",
            ]
        )
    heads = ["hidden", "final accuracy in %", "uploads per round", "reward, last tenth"]
    text = f"{QMIX} retrained and tested at the centre, {final['seed'].nunique()} seeds:\n\n"
    found = {
        "variants": facts,
        "hurt": {hide: paired(final, {"hidden": "nothing"}, {"hidden": hide}) for hide in HIDDEN},
        "fading_more": paired(final, {"hidden": "gradient"}, {"hidden": "fading"}),
    }
    figure = partial(plots.ablation, training, curves)
    return plots.Drawn(found, text + markdown(heads, rows), {"ablation": figure})
