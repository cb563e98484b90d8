"""Cumulative reward of an episode against training episodes, over all training seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedfade.studies.paper import pictures
from fedfade.studies.paper.runs import trained, training_folder
from fedfade.studies.paper.setting import Hide, Setting
from fedfade.studies.paper.tables import (
    Line,
    columns,
    distinct,
    markdown,
    read_table,
    write_table,
)

PART = "reward"
_POINTS = 300  # of a curve in the table; each is a mean over its episodes


def compute(setting: Setting) -> None:
    """Train the agents; `curve.csv`."""
    trained(setting)
    write_table(setting.out / PART / "curve.csv", curve_table(setting))


def curve_table(setting: Setting, hide: Sequence[Hide] = ()) -> list[Line]:
    """Reward and uploads of every training seed, in at most 300 bins."""
    from fedfade.agents.run import seed_folder

    folder = training_folder(setting, hide)
    return [
        line | {"hidden": hide[0] if hide else "nothing"}
        for seed in setting.training_seeds
        for line in _binned(seed_folder(folder, seed), seed)
    ]


def _binned(folder: Path, seed: int) -> list[Line]:
    from fedfade.agents.run import saved_curve

    curve = np.array(saved_curve(folder), float)  # [batch, figure]: episodes, reward, uploads, ...
    bins = np.array_split(curve, min(_POINTS, len(curve)))
    return [
        {
            "seed": float(seed),
            "episodes": float(part[-1, 0]),
            "reward": float(part[:, 1].mean()),
            "uploads": float(part[:, 2].mean()),
        }
        for part in bins
    ]


def draw(setting: Setting) -> tuple[dict[str, object], str]:
    """Figure and facts from `curve.csv`."""
    folder = setting.out / PART
    lines = read_table(folder / "curve.csv")
    title = f"QMIX, alpha {setting.centre.alpha:g}, n_c {setting.centre.clusters}"
    clients = setting.base.learning.clients
    pictures.put(folder / "reward.png", pictures.reward, lines, clients, title)
    facts = convergence(lines)
    rows = [
        [f"{fact['seed']:.0f}"]
        + [f"{fact[name]:.3f}" for name in ("start", "best", "before_last", "last")]
        + [f"{fact['uploads']:.2f}"]
        for fact in facts
    ]
    heads = ["training seed", "first tenth", "best tenth", "last but one", "last", "uploads, last"]
    episodes = int(lines[-1]["episodes"])
    text = f"Mean reward of an episode by tenths of {episodes} episodes:\n\n" + markdown(
        heads, rows
    )
    return {"episodes": episodes, "seeds": facts}, text


def convergence(lines: Sequence[Line]) -> list[dict[str, float]]:
    """For every training seed: the reward by tenths of the training.

    `best` is the best tenth; `last` and `before_last` are where it ended and came from.
    """
    facts = []
    for seed in distinct(lines, "seed"):
        reward, uploads = map(np.array, columns(lines, "reward", "uploads", seed=seed))
        tenths = [float(part.mean()) for part in np.array_split(reward, min(10, len(reward)))]
        last = np.array_split(uploads, min(10, len(uploads)))[-1]
        facts.append(
            {
                "seed": seed,
                "start": tenths[0],
                "best": max(tenths),
                "before_last": tenths[-2] if len(tenths) > 1 else tenths[-1],
                "last": tenths[-1],
                "uploads": float(last.mean()),
            }
        )
    return facts
