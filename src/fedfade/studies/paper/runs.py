"""Trainings and comparisons behind the figures: made where missing, continued where they stopped.

DIR/PART/training/seed-K/          agents, one folder per training seed
DIR/PART/runs/CELL/GROUP-seed-S/   one comparison per test cell, evaluation seed and policy group

Runs of one seed share channel, data and mini-batches whatever else runs beside them, so a group
may be added or trained anew without touching the others. The agents of one training are a group.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pandas import DataFrame

from fedfade import agents
from fedfade.config import Config, QmixConfig, changed, differences, load_config
from fedfade.device import pick_device
from fedfade.errors import UserError
from fedfade.experiments import RunFolder, compare_many, stored_rows
from fedfade.experiments.run_folder import FREE_FIELDS
from fedfade.studies.frames import StudyRun, labelled
from fedfade.studies.paper.setting import EPISODE, QMIX, QMIX_PLUS, Clock, Hide, Setting, cell_name
from fedfade.wording import counted

Fields = Mapping[str, Any]

_CHECKPOINT_S = 120.0
"""Between checkpoints of comparisons: one of hundreds of models side by side is a gigabyte."""


def agent_folders(setting: Setting, hide: Sequence[Hide] = ()) -> list[Path]:
    """Where the agents of a variant are, one folder per training seed."""
    hidden = f"ablation/training-no-{'-'.join(hide)}"
    folder = setting.out / (hidden if hide else "reward/training")
    return [agents.seed_folder(folder, seed) for seed in setting.training_seeds]


def agents_mark(folder: Path) -> str:
    """The digest of trained agents."""
    return str(agents.load_checkpoint(folder).files["agents"]["sha256"])


def untrained(configs: Sequence[Config], folders: Sequence[Path]) -> list[int]:
    """Which trainings are not finished; those of another kind are refused."""
    waiting = []
    for number, (config, folder) in enumerate(zip(configs, folders, strict=True)):
        stored = agents.load_checkpoint(folder) if agents.has_checkpoint(folder) else None
        if stored is None or stored.episodes < config.qmix.episodes:
            waiting.append(number)
            continue
        # Agents act in whatever precision is asked for; only training on has to keep its own.
        own: dict[str, str] = {"run.precision": stored.config.run.precision}
        if Path(stored.config.qmix.gradients).name == Path(config.qmix.gradients).name:
            own["qmix.gradients"] = stored.config.qmix.gradients  # wherever --out was then
        agents.check_same_training(stored, changed(config, own))
        if stored.episodes >= config.qmix.episodes + config.qmix.parallel_episodes:
            raise UserError(
                f"--out: the agents in {str(folder)!r} were trained for {stored.episodes} "
                f"episodes, more than qmix.episodes = {config.qmix.episodes}: choose another "
                "--out or as many episodes."
            )
    return waiting


def trained(setting: Setting, hide: Sequence[Hide] = ()) -> list[Path]:
    """The folders of a variant's agents, which are trained unless they are there."""
    train_variants(setting, [hide])
    return agent_folders(setting, hide)


def train_variants(setting: Setting, variants: Sequence[Sequence[Hide]]) -> None:
    """Train the agents of all seeds of some variants in one program, unless they are there."""
    folders = [folder for hide in variants for folder in agent_folders(setting, hide)]
    configs = [
        changed(setting.base, {"run.seeds": 1, "run.seed": seed, "allocation.hide": list(hide)})
        for hide in variants
        for seed in setting.training_seeds
    ]
    waiting = untrained(configs, folders)
    if waiting:
        what = f"{counted(len(waiting), 'training')} side by side"
        tell = on_report(setting, what, setting.base.qmix.episodes)
        chosen = [configs[n] for n in waiting], [folders[n] for n in waiting]
        agents.train_together(*chosen, tell)


def on_report(
    setting: Setting, what: str, total: int, left: Callable[[int], str] = lambda episodes: ""
) -> Callable[[agents.Trainer, list[agents.Report]], None]:
    """Lines of progress of a training; `left` says how long it may take from an episode on."""
    clock, before = Clock(setting.chat), 0

    def tell(trainer: agents.Trainer, reports: list[agents.Report]) -> None:
        nonlocal before
        mean, episodes = DataFrame(reports).mean(), reports[0].episodes
        setting.work.add(EPISODE * (episodes - before) * len(reports), "training")
        before = episodes
        clock(
            f"{what}: episode {episodes} of {total}, mean reward {mean['reward']:.3f}, "
            f"{mean['uploads']:.2f} uploads{left(episodes)}"
        )

    return tell


def all_runs(
    setting: Setting, part: str, labels: Fields, fields: Fields, baselines: Sequence[str]
) -> list[StudyRun]:
    """Baselines, trained agents and, where they fit, those that come with the package."""

    def of_all_seeds(group: str, policies: Sequence[str]) -> list[StudyRun]:
        asked = {**fields, "allocation.policies": list(policies)}
        return [_run(setting, part, labels, group, seed, asked) for seed in setting.test_seeds]

    plus = of_all_seeds(f"{QMIX_PLUS}-{setting.plus}", [QMIX_PLUS]) if setting.plus else []
    own = agent_runs(setting, part, labels, fields)
    return [*of_all_seeds("baselines", baselines), *own, *plus]


def agent_runs(
    setting: Setting, part: str, labels: Fields, fields: Fields, hide: Sequence[Hide] = ()
) -> list[StudyRun]:
    """Trained agents in one cell: those of every training seed on every evaluation seed."""
    runs = []
    for training, folder in zip(setting.training_seeds, agent_folders(setting, hide), strict=True):
        asked = {"allocation.policies": [QMIX], "allocation.checkpoint": str(folder)}
        asked |= {"allocation.hide": list(hide), **fields}
        # Agents trained further are others: their runs are new ones.
        group = "-".join([QMIX, *(["no", *hide] if hide else []), agents_mark(folder)[:8]])
        for seed in setting.test_seeds:
            runs.append(_run(setting, part, labels, group, seed, asked, str(training)))
    return runs


def _run(
    setting: Setting,
    part: str,
    labels: Fields,
    group: str,
    seed: int,
    fields: Fields,
    training: str = "",
) -> StudyRun:
    fixed = {
        "run.seed": seed,
        "run.seeds": 1,
        "run.checkpoint_s": max(_CHECKPOINT_S, setting.base.run.checkpoint_s),
        "qmix": QmixConfig().model_dump(),  # how agents were trained is their checkpoint's business
    }
    folder = setting.out / part / "runs" / cell_name(labels) / f"{group}-seed-{seed}"
    labels = {**labels, "training": training}
    return StudyRun(labels, changed(setting.base, {**fields, **fixed}), folder)


def compared(setting: Setting, runs: Sequence[StudyRun], what: str, unit: float = 1.0) -> DataFrame:
    """The rows of all runs; what is finished is read, the rest is run side by side. `unit`: the
    work of a round."""
    waiting = [run for run in runs if not _finished(run)]
    clock, before = Clock(setting.chat), 0
    total = sum(run.config.run.rounds for run in waiting)
    # Work is counted in rounds of one policy, and a round in epochs is a longer one.
    each = sum(len(run.config.allocation.policies) for run in waiting) / max(1, len(waiting))
    each *= unit

    def tell(done: int, doing: str) -> None:
        nonlocal before
        clock(f"{what}: {done} of {counted(total, 'round')}, {doing}")
        setting.work.add(each * (done - before), doing)
        before = done

    if waiting:
        compare_many(
            [run.config for run in waiting],
            [run.folder for run in waiting],
            pick_device(setting.base.run.device),
            tell,
            lambda line: setting.chat(f"{what}: {line}"),
        )
    return labelled(runs, (stored_rows(_folder(run)) for run in runs))


def _folder(run: StudyRun) -> RunFolder:
    return RunFolder(run.folder, run.config, pick_device("cpu"))


def _finished(run: StudyRun) -> bool:
    """Whether a folder holds this very comparison, wherever the agents were when it was made."""
    if not _folder(run).finished:
        return False
    free = (*FREE_FIELDS, "allocation.checkpoint")
    stored = load_config(run.folder / "config.yaml", stored=True)
    differing = differences(stored, run.config, ignore=free)
    if differing:
        raise UserError(
            f"--out: {str(run.folder)!r} holds a run of another configuration, differing in "
            f"{', '.join(differing)}: choose another --out or the same options."
        )
    return True
