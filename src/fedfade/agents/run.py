"""A training in a folder: continue where it stopped, report, keep checkpoints, draw the curve."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from fedfade.agents.checkpoint import (
    check_same_training,
    check_shapes,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from fedfade.agents.learner import finite
from fedfade.agents.scalars import ScalarWriter
from fedfade.agents.trainer import Diverged, Report, Trainer
from fedfade.config import Config, render_config
from fedfade.device import matrix_products, pick_device
from fedfade.errors import UserError
from fedfade.interrupts import interrupts_held
from fedfade.storage import folder_lock, write_text

CURVE = "curve"
"""Name of the tensor [batch, figure] that holds every report so far."""

OnReport = Callable[[Trainer, list[Report]], None]


def train(
    config: Config,
    folder: Path,
    on_report: OnReport | None = None,
    checkpoint_s: float | None = None,
    seeds: Sequence[int] | None = None,
) -> Trainer:
    """Train to `qmix.episodes`, or continue an interrupted training in `folder`.

    Several `seeds` are trained in one program, each into its own folder `seed-K` in `folder`, which
    looks as if it had been trained alone. The result does not depend on how often and where the
    training was interrupted. SIGINT and SIGTERM wait for the end of the batch, which is saved; a
    second one does not wait.
    """
    checkpoint_s = config.run.checkpoint_s if checkpoint_s is None else checkpoint_s
    seeds = [config.run.seed] if seeds is None else seeds
    folders = [folder] if len(seeds) == 1 else [seed_folder(folder, seed) for seed in seeds]
    for place in (folder, *folders):
        if (place / "run.json").exists():  # its config.yaml would be overwritten
            raise UserError(
                f"--out {str(place)!r} holds a run of fedfade compare: choose another folder."
            )
    everyone = [_Run(with_seed(config, s), f) for s, f in zip(seeds, folders, strict=True)]
    with ExitStack() as stack:
        stack.enter_context(matrix_products(config.run.precision))
        for run in everyone:
            stack.enter_context(folder_lock(run.folder))
        while True:
            group, until = _next_group(everyone)
            trainer = Trainer(
                config, pick_device(config.run.device), [run.config.run.seed for run in group]
            )
            for run in group:
                write_text(run.folder / "config.yaml", render_config(run.config))
            _resume(trainer, group)
            # Who was once trained for longer than is asked now stays ahead of the others.
            last = trainer.batches if until is None else min(until, trainer.batches)
            _play_to(trainer, group, last, on_report, checkpoint_s)
            if until is None or until > last:
                return trainer


def seed_folder(folder: Path, seed: int) -> Path:
    """Where a training of several seeds keeps one of them."""
    return folder / f"seed-{seed}"


def with_seed(config: Config, seed: int) -> Config:
    """The config of one of several seeds."""
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


class _Run:
    """One seed and its folder."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.curve: list[Report] = []

    def batch(self) -> int:
        """Batches in its checkpoint."""
        return load_checkpoint(self.folder).batch if has_checkpoint(self.folder) else 0


def _next_group(everyone: list[_Run]) -> tuple[list[_Run], int | None]:
    """Who is trained next and up to which batch (None: to the end, and everybody).

    A program killed between two saves leaves some seeds a checkpoint behind; they draw level
    before all go on together (the same numbers but for the rounding of sums).
    """
    batches = [run.batch() for run in everyone]
    first = min(batches)
    group = [run for run, batch in zip(everyone, batches, strict=True) if batch == first]
    if len(group) == len(everyone):
        return group, None
    return group, min(batch for batch in batches if batch > first)


def _play_to(
    trainer: Trainer,
    group: list[_Run],
    until: int,
    on_report: OnReport | None,
    checkpoint_s: float,
) -> None:
    """Play up to a batch, or to where a stop is asked for; the last batch is saved."""
    if trainer.batch >= until:
        return
    first = trainer.batch * trainer.rollout.episodes + 1
    with ExitStack() as stack:
        writers = [ScalarWriter(run.folder / "tensorboard", first) for run in group]
        for writer in writers:
            stack.callback(writer.close)
        asked = stack.enter_context(interrupts_held())
        try:
            _play(trainer, group, writers, until, on_report, checkpoint_s, asked)
        except Diverged as error:
            raise _with_what_is_kept(error, group) from None
    if asked():
        raise KeyboardInterrupt


def _with_what_is_kept(error: Diverged, group: list[_Run]) -> Diverged:
    """The sentence, and whether there is something to go back to."""
    kept = any(has_checkpoint(run.folder) for run in group)
    end = "the last checkpoint before it is kept" if kept else "no checkpoint had been written yet"
    return Diverged(f"{str(error).removesuffix('.')}; {end}.")


def _play(
    trainer: Trainer,
    group: list[_Run],
    writers: list[ScalarWriter],
    until: int,
    on_report: OnReport | None,
    checkpoint_s: float,
    asked: Callable[[], bool],
) -> None:
    saved = then = time.perf_counter()
    updates = trainer.learned
    while trainer.batch < until:
        reports = trainer.play_batch()
        now, learned = time.perf_counter(), trainer.learned
        slots = trainer.scenario.slots * trainer.rollout.episodes
        speed = {
            "slots per second": slots / (now - then),
            "updates per second": (learned - updates) / (now - then),
        }
        for run, writer, report in zip(group, writers, reports, strict=True):
            run.curve.append(report)
            writer.write(report.episodes, _scalars(report) | speed)
        then, updates = now, learned
        if on_report is not None:
            on_report(trainer, reports)
        stop = asked() or trainer.batch == until
        if now - saved >= checkpoint_s or stop:
            for place, run in enumerate(group):
                save(trainer, run.folder, run.curve, place)
            saved = now
        if stop:
            break


def _scalars(report: Report) -> dict[str, float]:
    return {
        "return": report.reward,
        "uploads per round": report.uploads,
        "TD loss": report.loss,
        "Q": report.q,
        "epsilon": report.epsilon,
        "FL accuracy": report.accuracy,
    }


def save(trainer: Trainer, folder: Path, curve: list[Report], run: int = 0) -> None:
    """Write a checkpoint of one run, unless the last update has broken the networks."""
    if not finite(trainer.learner.tensors().values()):
        raise Diverged(
            f"training stopped at episode {curve[-1].episodes if curve else 0} because parameters "
            "became infinite or not a number."
        )
    training = trainer.snapshot(run) | {CURVE: torch.tensor(curve, dtype=torch.float64)}
    episodes = trainer.batch * trainer.rollout.episodes
    agents = trainer.learner.agents_of(run)
    config = with_seed(trainer.config, trainer.seeds[run])
    save_checkpoint(folder, config, trainer.batch, episodes, agents, training)


def _resume(trainer: Trainer, group: list[_Run]) -> None:
    """Load the checkpoints of a group, which are all of one batch, into a trainer."""
    snapshots, batch = [], 0
    for place, run in enumerate(group):
        if has_checkpoint(run.folder):
            checkpoint = load_checkpoint(run.folder)
            check_same_training(checkpoint, run.config)
            found = checkpoint.tensors("training")
            check_shapes(run.folder, found, trainer.snapshot(place))
            snapshots.append(found)
            run.curve, batch = read_curve(found), checkpoint.batch
    if snapshots:
        trainer.restore(batch, snapshots)


def saved_curve(folder: Path) -> list[Report]:
    """The reports of a training in its folder."""
    return read_curve(load_checkpoint(folder).tensors("training"))


def read_curve(tensors: dict[str, Tensor]) -> list[Report]:
    """The reports stored in a checkpoint."""
    rows = tensors.get(CURVE, torch.zeros(0)).reshape(-1, len(Report._fields)).tolist()
    return [Report(int(row[0]), *row[1:]) for row in rows]
