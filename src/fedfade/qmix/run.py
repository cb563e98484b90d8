"""A training in a folder: continue where it stopped, report, keep checkpoints, draw the curve."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedfade.config import Config, render_config
from fedfade.device import matrix_products, pick_device
from fedfade.interrupts import interrupts_held
from fedfade.qmix.checkpoint import (
    check_same_training,
    check_shapes,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from fedfade.qmix.learner import finite
from fedfade.qmix.scalars import ScalarWriter
from fedfade.qmix.trainer import Diverged, Report, Trainer
from fedfade.storage import folder_lock, write_text

CURVE = "curve"
"""Name of the tensor [batch, figure] that holds every report so far."""


def train(
    config: Config,
    folder: Path,
    on_report: Callable[[Trainer, Report], None] | None = None,
    checkpoint_s: float | None = None,
) -> Trainer:
    """Train to `qmix.episodes`, or continue an interrupted training in `folder`.

    The result does not depend on how often and where it was interrupted. SIGINT and SIGTERM wait
    for the end of the batch, which is saved; a second one does not wait.
    """
    checkpoint_s = config.run.checkpoint_s if checkpoint_s is None else checkpoint_s
    with folder_lock(folder), matrix_products(config.run.precision):
        trainer = Trainer(config, pick_device(config.run.device))
        curve = _resume(trainer, folder)
        write_text(folder / "config.yaml", render_config(config))
        if trainer.batch < trainer.batches:
            first = trainer.batch * trainer.rollout.episodes + 1
            scalars = ScalarWriter(folder / "tensorboard", first)
            try:
                with interrupts_held() as asked:
                    _play(trainer, folder, curve, scalars, on_report, checkpoint_s, asked)
            finally:
                scalars.close()
            if asked():
                raise KeyboardInterrupt
        return trainer


def _play(
    trainer: Trainer,
    folder: Path,
    curve: list[Report],
    scalars: ScalarWriter,
    on_report: Callable[[Trainer, Report], None] | None,
    checkpoint_s: float,
    asked: Callable[[], bool],
) -> None:
    """Play to the end, or to where a stop is asked for; the last batch is saved."""
    saved = then = time.perf_counter()
    updates = int(trainer.updates)
    while trainer.batch < trainer.batches:
        report = trainer.play_batch()
        curve.append(report)
        now, learned = time.perf_counter(), int(trainer.updates)
        slots = trainer.scenario.slots * trainer.rollout.episodes
        speed = {
            "slots per second": slots / (now - then),
            "updates per second": (learned - updates) / (now - then),
        }
        scalars.write(report.episodes, _scalars(report) | speed)
        then, updates = now, learned
        if on_report is not None:
            on_report(trainer, report)
        stop = asked() or trainer.batch == trainer.batches
        if now - saved >= checkpoint_s or stop:
            save(trainer, folder, curve)
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


def save(trainer: Trainer, folder: Path, curve: list[Report]) -> None:
    """Write a checkpoint, unless the last update has broken the networks."""
    if not finite(trainer.learner.tensors().values()):
        raise Diverged(
            f"training stopped at episode {curve[-1].episodes if curve else 0} because parameters "
            "became infinite or not a number; the last checkpoint before it is kept."
        )
    training = trainer.snapshot() | {CURVE: torch.tensor(curve, dtype=torch.float64)}
    episodes = trainer.batch * trainer.rollout.episodes
    agents = trainer.learner.agents.state_dict()
    save_checkpoint(folder, trainer.config, trainer.batch, episodes, agents, training)


def _resume(trainer: Trainer, folder: Path) -> list[Report]:
    """Load the checkpoint of a folder, if there is one, into a trainer."""
    if not has_checkpoint(folder):
        return []
    checkpoint = load_checkpoint(folder)
    check_same_training(checkpoint, trainer.config)
    found = checkpoint.tensors("training")
    check_shapes(folder, found, trainer.tensors())
    trainer.restore(checkpoint.batch, found)
    return read_curve(found)


def saved_curve(folder: Path) -> list[Report]:
    """The reports of a training in its folder."""
    return read_curve(load_checkpoint(folder).tensors("training"))


def read_curve(tensors: dict[str, Tensor]) -> list[Report]:
    """The reports stored in a checkpoint."""
    rows = tensors.get(CURVE, torch.zeros(0)).reshape(-1, len(Report._fields)).tolist()
    return [Report(int(row[0]), *row[1:]) for row in rows]
