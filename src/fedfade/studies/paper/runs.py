"""Trainings and comparisons behind the figures: made where missing, continued where they stopped.

DIR/PART/training/seed-K/          agents, one folder a training seed
DIR/PART/runs/CELL/GROUP-seed-S/   one comparison a test cell, evaluation seed and group of policies

Runs of one seed share channel, data and mini-batches whatever else runs beside them, so a group
may be added or trained anew without touching the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfade.config import Config, QmixConfig, changed, differences, load_config
from fedfade.device import pick_device
from fedfade.errors import UserError
from fedfade.experiments import compare_many
from fedfade.experiments.metrics import Row, check_complete, read_rows
from fedfade.experiments.run_folder import FREE_FIELDS, RunFolder
from fedfade.studies.paper.setting import (
    BASELINES,
    QMIX,
    QMIX_PLUS,
    Clock,
    Hide,
    Setting,
    unseen,
)

if TYPE_CHECKING:
    from fedfade.agents import Report, Trainer

_CHECKPOINT_S = 120.0
"""Between checkpoints of comparisons: of hundreds of models side by side one is a gigabyte."""


# --- trainings ---------------------------------------------------------------------------------


def training_config(setting: Setting, seed: int, hide: Sequence[Hide] = ()) -> Config:
    """What the agents of one seed are trained on."""
    return changed(setting.base, {"run.seed": seed, "run.seeds": 1, "allocation.hide": list(hide)})


def training_folder(setting: Setting, hide: Sequence[Hide] = ()) -> Path:
    """Where the trainings of a variant are, a folder `seed-K` each."""
    if not hide:
        return setting.out / "reward" / "training"
    return setting.out / "ablation" / f"training-no-{'-'.join(hide)}"


def trained(setting: Setting, hide: Sequence[Hide] = ()) -> Path:
    """Train the agents of all seeds in one program, unless they are there; returns their folder."""
    from fedfade.agents import train
    from fedfade.agents.checkpoint import check_same_training, has_checkpoint, load_checkpoint
    from fedfade.agents.run import seed_folder

    folder, waiting = training_folder(setting, hide), []
    for seed in setting.training_seeds:
        config, place = training_config(setting, seed, hide), seed_folder(folder, seed)
        stored = load_checkpoint(place) if has_checkpoint(place) else None
        if stored is None or stored.episodes < config.qmix.episodes:
            waiting.append(seed)
            continue
        # Agents act in whatever precision is asked for; only training on has to keep its own.
        own = {"run.precision": stored.config.run.precision}
        check_same_training(stored, changed(config, own))
        if stored.episodes >= config.qmix.episodes + config.qmix.parallel_episodes:
            raise UserError(
                f"--out: the agents in {str(place)!r} were trained for {stored.episodes} episodes, "
                f"more than qmix.episodes = {config.qmix.episodes}: choose another --out or as "
                "many episodes."
            )
    if not waiting:
        return folder
    what = f"training without {hide[0]}" if hide else "training"
    clock, total = Clock(setting.say), setting.base.qmix.episodes

    def tell(trainer: Trainer, reports: list[Report]) -> None:
        reward, uploads = (
            sum(getattr(report, name) for report in reports) / len(reports)
            for name in ("reward", "uploads")
        )
        clock(
            f"{what}, {len(waiting)} seeds: episode {reports[0].episodes} of {total}, "
            f"mean reward {reward:.3f}, {uploads:.2f} uploads"
        )

    config = training_config(setting, waiting[0], hide)
    # A single seed would be trained into the folder itself.
    place = folder if len(waiting) > 1 else seed_folder(folder, waiting[0])
    train(config, place, tell, seeds=waiting)
    return folder


# --- comparisons -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One comparison: a configuration of one seed, and its folder."""

    config: Config
    folder: Path


def baseline_jobs(
    setting: Setting,
    part: str,
    cell: str,
    fields: Mapping[str, Any],
    policies: Sequence[str] = BASELINES,
) -> list[Job]:
    """Policies without agents in one cell, a job for each evaluation seed."""
    asked = {"allocation.policies": list(policies)}
    return [
        _job(setting, part, cell, "baselines", seed, {**fields, **asked})
        for seed in setting.training_seeds
    ]


def agent_jobs(
    setting: Setting, part: str, cell: str, fields: Mapping[str, Any], hide: Sequence[Hide] = ()
) -> list[Job]:
    """Trained agents in one cell: evaluation seed i with the agents of training seed i."""
    from fedfade.agents.checkpoint import load_checkpoint
    from fedfade.agents.run import seed_folder

    group = f"qmix-no-{'-'.join(hide)}" if hide else QMIX
    jobs = []
    for seed in setting.training_seeds:
        place = seed_folder(training_folder(setting, hide), seed)
        asked = {
            "allocation.policies": [QMIX],
            "allocation.checkpoint": str(place),
            "allocation.hide": list(hide),
        }
        # Agents trained further are others: their runs are new ones.
        mark = load_checkpoint(place).files["agents"]["sha256"][:8]
        jobs.append(_job(setting, part, cell, f"{group}-{mark}", seed, {**fields, **asked}))
    return jobs


def plus_jobs(setting: Setting, part: str, cell: str, fields: Mapping[str, Any]) -> list[Job]:
    """The agents that come with the package, where they fit."""
    if not setting.plus:
        return []
    asked = {"allocation.policies": [QMIX_PLUS]}
    return [
        _job(setting, part, cell, f"{QMIX_PLUS}-{setting.plus}", seed, {**fields, **asked})
        for seed in setting.training_seeds
    ]


def _job(
    setting: Setting, part: str, cell: str, group: str, seed: int, fields: Mapping[str, Any]
) -> Job:
    fixed = {
        "run.seed": unseen(seed),
        "run.seeds": 1,
        "run.checkpoint_s": max(_CHECKPOINT_S, setting.base.run.checkpoint_s),
        "qmix": QmixConfig().model_dump(),  # how agents were trained is their checkpoint's business
    }
    folder = setting.out / part / "runs" / cell / f"{group}-seed-{unseen(seed)}"
    return Job(changed(setting.base, {**fields, **fixed}), folder)


def compared(setting: Setting, jobs: Sequence[Job], what: str) -> list[list[Row]]:
    """The rows of every job, in order; what is finished is read, the rest is run side by side."""
    waiting = [job for job in jobs if not _finished(job)]
    clock = Clock(setting.say)
    total = sum(job.config.run.rounds for job in waiting)
    if waiting:
        compare_many(
            [job.config for job in waiting],
            [job.folder for job in waiting],
            pick_device(setting.base.run.device),
            lambda done, doing: clock(f"{what}: {done} of {total} rounds, {doing}"),
            lambda line: setting.say(f"{what}: {line}"),
        )
    return [_rows(job) for job in jobs]


def _finished(job: Job) -> bool:
    """Whether a folder holds this very comparison, wherever the agents were when it was made."""
    if not RunFolder(job.folder, job.config, pick_device("cpu")).finished:
        return False
    free = (*FREE_FIELDS, "allocation.checkpoint")
    differing = differences(
        load_config(job.folder / "config.yaml", stored=True), job.config, ignore=free
    )
    if differing:
        raise UserError(
            f"--out: {str(job.folder)!r} holds a run of another configuration, differing in "
            f"{', '.join(differing)}: choose another --out or the same options."
        )
    return True


def _rows(job: Job) -> list[Row]:
    path = job.folder / "metrics.csv"
    rows = read_rows(path)
    check_complete(rows, path, job.config.allocation.policies, job.config, job.config.run.rounds)
    return rows
