"""A training in a folder: continue where it stopped, report, keep checkpoints."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fedfade.agents.checkpoint import (
    INDEX,
    check_same_training,
    check_shapes,
    forget,
    has_checkpoint,
    load_checkpoint,
    prepare_checkpoint,
    settle,
    take_prepared,
    trained_folders,
)
from fedfade.agents.events import SCALARS, ScalarWriter
from fedfade.agents.live import LivePage
from fedfade.agents.trainer import Diverged, Report, Trainer, diverged
from fedfade.config import Config, changed, content_digest, inputs_of, render_config
from fedfade.device import matrix_products, pick_device
from fedfade.errors import UserError
from fedfade.interrupts import interrupts_held
from fedfade.storage import folder_lock, make_folder, refuse_links, rename, write_text

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
    return train_together(*each_seed(config, folder, seeds), on_report, checkpoint_s)


def each_seed(
    config: Config, folder: Path, seeds: Sequence[int] | None = None
) -> tuple[list[Config], list[Path]]:
    """Configurations and folders of the seeds of one training; one alone has `folder` itself. Seeds
    may join others: one that was alone is given a folder `seed-K` then."""
    seeds = [config.run.seed] if seeds is None else seeds
    _refuse_comparisons([folder])
    refuse_links(folder)  # where there are several, a seed's folder may be one
    if len(seeds) > 1 and has_checkpoint(folder):
        _give_own_folder(folder, config)
    alone = len(seeds) == 1 and trained_folders(folder) == [folder]
    folders = [folder] if alone else [seed_folder(folder, seed) for seed in seeds]
    return [changed(config, {"run.seed": seed}) for seed in seeds], folders


def _give_own_folder(folder: Path, config: Config) -> None:
    """Let a training that has a folder to itself be one of several seeds in it."""
    checkpoint = load_checkpoint(folder)
    seed = checkpoint.config.run.seed
    check_same_training(checkpoint, changed(config, {"run.seed": seed}))
    with folder_lock(folder):
        tensors = [file["name"] for file in checkpoint.files.values()]
        kept = (INDEX, "config.yaml", "tensorboard", *tensors)
        place = seed_folder(folder, seed)
        if not place.exists():
            copy = folder / f".joining-{seed}"
            shutil.rmtree(copy, ignore_errors=True)  # half of one, after a kill
            make_folder(copy)
            for path in (folder / name for name in kept if (folder / name).exists()):
                into = copy / path.name
                shutil.copytree(path, into) if path.is_dir() else shutil.copy2(path, into)
            rename(copy, place)
        forget([folder])
        for path in (folder / name for name in kept):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def train_together(
    configs: Sequence[Config],
    folders: Sequence[Path],
    on_report: OnReport | None = None,
    checkpoint_s: float | None = None,
    overwrite: bool = False,
    on_begin: Callable[[], None] = lambda: None,
) -> Trainer:
    """Several trainings in one program (see `programs`), each into a folder that looks as if it had
    been trained alone. Those that diverge are reported when the others are at their end.

    `overwrite`: begin anew, whatever trainings the folders hold. `on_begin` is called when there is
    something to train and nothing was refused.
    """
    _refuse_comparisons(folders)
    digest = cache(content_digest)  # most runs have the same
    inputs = [inputs_of(config, training=True, digest=digest) for config in configs]
    everyone = [_Run(*run) for run in zip(configs, folders, inputs, strict=True)]
    settings = configs[0].run
    checkpoint_s = settings.checkpoint_s if checkpoint_s is None else checkpoint_s
    with ExitStack() as stack:
        stack.enter_context(matrix_products(settings.precision))
        for run in everyone:
            stack.enter_context(folder_lock(run.folder))
        if not overwrite:
            settle(folders)
        lost: list[Diverged] = []
        while everyone:
            group, until = (everyone, None) if overwrite else _next_group(everyone)
            trainer = Trainer([run.config for run in group], pick_device(settings.device))
            if overwrite:  # what could be refused has been
                forget(folders)
            for run in group:
                write_text(run.folder / "config.yaml", render_config(run.config))
            _resume(trainer, group)
            # A run once trained for longer than is asked now stays ahead of the others.
            last = trainer.batches if until is None else min(until, trainer.batches)
            if trainer.batch < last:
                on_begin()
                try:
                    _play_to(trainer, group, last, on_report, checkpoint_s)
                except Diverged as error:
                    lost.append(error)
                    everyone = [run for run in everyone if run.folder not in error.folders]
            if until is None or until > last:
                break
    if lost:
        raise Diverged(str(lost[0]), [folder for error in lost for folder in error.folders])
    return trainer


def _refuse_comparisons(folders: Sequence[Path]) -> None:
    for place in folders:
        if (place / "run.json").exists():  # its config.yaml would be overwritten
            why = "holds a run of fedfade compare: choose another folder"
            raise UserError(f"--out {str(place)!r} {why}.")


def seed_folder(folder: Path, seed: int) -> Path:
    """Where a training of several seeds keeps one of them."""
    return folder / f"seed-{seed}"


@dataclass
class _Run:
    """One training and its folder."""

    config: Config
    folder: Path
    inputs: dict[str, str]  # sha256 of a user's code and data
    curve: list[Report] = field(default_factory=list)


def _next_group(everyone: list[_Run]) -> tuple[list[_Run], int | None]:
    """Who is trained next and up to which batch (None: to the end, and everybody).

    Runs that were added to others, or trained without them, draw level before all go on together
    (the same numbers but for the rounding of sums).
    """
    folders = [run.folder for run in everyone]
    batches = [load_checkpoint(f).batch if has_checkpoint(f) else 0 for f in folders]
    first, *later = sorted(set(batches))
    group = [run for run, batch in zip(everyone, batches, strict=True) if batch == first]
    return group, next(iter(later), None)


def _play_to(
    trainer: Trainer, group: list[_Run], until: int, on_report: OnReport | None, checkpoint_s: float
) -> None:
    """Play up to a batch, or to where a stop is asked for; the last batch is saved."""
    first = trainer.batch * trainer.rollout.episodes + 1
    with ExitStack() as stack:
        writers = [ScalarWriter(run.folder / "tensorboard", first) for run in group]
        for writer in writers:
            stack.callback(writer.close)
        pages = _pages(group)
        asked = stack.enter_context(interrupts_held())
        saved, stop = time.perf_counter(), False
        with suppress(Diverged):  # all of them: said below
            while not stop:
                start, learned = time.perf_counter(), trainer.learned
                reports = trainer.play_batch()
                _note(trainer, group, writers, reports, time.perf_counter() - start, learned)
                if on_report is not None:
                    on_report(trainer, reports)
                stop = asked() or trainer.batch >= until
                if stop or time.perf_counter() - saved >= checkpoint_s:
                    _save_all(trainer, group)
                    saved = time.perf_counter()
                for page, runs in pages:
                    page.write([run.curve for run in runs], ended=stop)
    if asked():
        raise KeyboardInterrupt
    if trainer.lost:
        raise _about(trainer.lost, group)


def _pages(group: list[_Run]) -> list[tuple[LivePage, list[_Run]]]:
    """A page for each training, or one for all seeds of it that are trained together."""
    found: dict[Path, list[_Run]] = {}
    for run in group:
        seeds = [o for o in group if o.folder == seed_folder(run.folder.parent, o.config.run.seed)]
        together = run in seeds and len(seeds) > 1
        found.setdefault(run.folder.parent if together else run.folder, []).append(run)
    each = found.items()
    return [(LivePage(at, runs[0].config, f"Training {at.name}"), runs) for at, runs in each]


def _save_all(trainer: Trainer, group: list[_Run]) -> None:
    """Checkpoints of all runs that have not diverged, in one step."""
    prepared = []
    for place, run in enumerate(group):
        try:
            if place not in trainer.lost:
                _prepare(trainer, run, place)
                prepared.append(run.folder)
        except Diverged as error:
            trainer.lost[place] = error
    take_prepared(prepared)
    if len(trainer.lost) == len(group):
        raise trainer.lost[0]


def _about(lost: Mapping[int, Diverged], group: list[_Run]) -> Diverged:
    """What became of the first run that diverged, and where all of them are."""
    folders = [group[place].folder for place in lost]
    end = "no checkpoint had been written yet"
    if has_checkpoint(folders[0]):
        end = "the last checkpoint before it is kept"
    sentence = str(next(iter(lost.values()))).removesuffix(".")
    return Diverged(f"{sentence}; {end}.", folders)


def _note(
    trainer: Trainer,
    group: list[_Run],
    writers: list[ScalarWriter],
    reports: list[Report],
    seconds: float,
    learned: int,
) -> None:
    """The figures of a batch into the curves and event files; `learned` updates came before it."""
    slots, updates = trainer.scenario.slots * trainer.rollout.episodes, trainer.learned - learned
    speed = {"slots per second": slots / seconds, "updates per second": updates / seconds}
    for place, (run, writer, report) in enumerate(zip(group, writers, reports, strict=True)):
        if place in trainer.lost:
            continue
        run.curve.append(report)
        writer.write(report.episodes, dict(zip(SCALARS, report[1:], strict=True)) | speed)


def save(trainer: Trainer, folder: Path, curve: list[Report]) -> None:
    """Write a checkpoint of a training alone, unless the last update has broken the networks."""
    _prepare(trainer, _Run(trainer.configs[0], folder, {}, curve), 0)
    take_prepared([folder])


def _prepare(trainer: Trainer, run: _Run, place: int) -> None:
    """Prepare the checkpoint of one run, unless the last update has broken the networks."""
    own = trainer.learner.take(place).values()
    if not all(bool(tensor.isfinite().all()) for tensor in own):
        raise diverged("parameters", run.curve[-1].episodes if run.curve else 0)
    training = trainer.snapshot(place) | {CURVE: torch.tensor(run.curve, dtype=torch.float64)}
    parts = {"agents": trainer.learner.kept.of(place), "training": training}
    episodes = trainer.batch * trainer.rollout.episodes
    prepare_checkpoint(run.folder, run.config, trainer.batch, episodes, parts, run.inputs)


def _resume(trainer: Trainer, group: list[_Run]) -> None:
    """Load the checkpoints of a group, which are all of one batch, into a trainer."""
    snapshots, batch = [], 0
    for place, run in enumerate(group):
        if has_checkpoint(run.folder):
            checkpoint = load_checkpoint(run.folder)
            check_same_training(checkpoint, run.config, run.inputs)
            found = checkpoint.tensors("training")
            check_shapes(run.folder, found, trainer.snapshot(place))
            snapshots.append(found)
            run.curve, batch = _read_curve(found), checkpoint.batch
    if snapshots:
        trainer.restore(batch, snapshots)


def is_trained(config: Config, folder: Path) -> bool:
    """Whether a folder holds all episodes of a training."""
    return has_checkpoint(folder) and load_checkpoint(folder).episodes >= config.qmix.episodes


def saved_curve(folder: Path) -> list[Report]:
    """The reports of a training in its folder."""
    return _read_curve(load_checkpoint(folder).tensors("training"))


def _read_curve(tensors: dict[str, Tensor]) -> list[Report]:
    curve, width = tensors.get(CURVE, torch.zeros(0)), len(Report._fields)
    whole = curve.is_floating_point() and curve.numel() % width == 0
    if not (whole and curve.reshape(-1, width)[:, 0].isfinite().all()):
        raise UserError(f"tensor {CURVE!r} of the checkpoint does not hold the figures of batches.")
    return [Report(int(row[0]), *row[1:]) for row in curve.reshape(-1, width).tolist()]
