"""Run the beginning of a stored run again and compare number by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfade import __version__
from fedfade.agents.checkpoint import (
    check_same_training,
    has_checkpoint,
    load_checkpoint,
    trained_folders,
)
from fedfade.agents.run import saved_curve, with_seed
from fedfade.agents.trainer import Report, Trainer
from fedfade.config import Config, changed
from fedfade.device import matrix_products
from fedfade.errors import UserError
from fedfade.experiments.comparison import Comparison, stored_grams
from fedfade.experiments.inputs import check_inputs
from fedfade.experiments.metrics import Row, check_complete, read_rows
from fedfade.experiments.run_folder import open_finished
from fedfade.experiments.side_by_side import SideBySide

Tell = Callable[[int, str], None]


@dataclass
class Verification:
    """What was run again, and where it differed."""

    what: str  # rounds or batches of episodes
    again: int
    stored: int
    numbers: int = 0  # compared
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is not as it was: versions, machine

    def compare(self, place: str, name: str, then: object, now: object) -> None:
        """Count one number; NaN is equal to NaN, all else must be equal to the last bit."""
        self.numbers += 1
        both_missing = then != then and now != now  # noqa: PLR0124 - NaN
        if then != now and not both_missing:
            self.differences.append(f"{place}: {name} was {then}, is {now}.")


def stored_steps(folder: Path) -> int:
    """Rounds, or batches of episodes, there are to run again."""
    if _is_training(folder):
        return min(load_checkpoint(place).batch for place in trained_folders(folder))
    return _finished_comparison(folder)[0].run.rounds


def verify(
    folder: Path, steps: int, device: torch.device, tell: Tell, data_dir: str | None = None
) -> Verification:
    """Run the first `steps` rounds (or batches of episodes) of a run folder again.

    Seeds that were trained side by side are run again side by side: alone, their sums would be of
    other lengths and round differently. The data may lie elsewhere now, in `data_dir`.
    """
    if _is_training(folder):
        return _verify_training(folder, steps, device, tell, data_dir)
    return _verify_comparison(folder, steps, device, tell, data_dir)


def _is_training(folder: Path) -> bool:
    return all(map(has_checkpoint, trained_folders(folder)))


def _finished_comparison(folder: Path) -> tuple[Config, dict[str, Any]]:
    config, record = open_finished(folder)
    if record.get("finished") is None:
        raise UserError(f"{str(folder)!r} is not finished: run the same fedfade compare again.")
    return config, record


def _with_data(config: Config, data_dir: str | None) -> Config:
    """Where the data lie changes no number."""
    return config if data_dir is None else changed(config, {"learning.data_dir": data_dir})


def _verify_comparison(
    folder: Path, steps: int, device: torch.device, tell: Tell, data_dir: str | None
) -> Verification:
    config, record = _finished_comparison(folder)
    config = _with_data(config, data_dir)
    check_inputs(folder, config, record)
    path, total = folder / "metrics.csv", config.run.rounds
    rows = read_rows(path)
    answer = Verification("rounds", min(steps, total), total, notes=_changed(record, device))
    comparison = Comparison(config, device)
    check_complete(rows, path, comparison.all_policies, config, total)
    stored = {(row.seed, row.policy, row.round): row for row in rows}
    inner = stored_grams(folder, config, len(comparison.learned)).inner
    alone = SideBySide([comparison])
    with _threads(record.get("threads")):
        for number in range(answer.again):
            alone.play([comparison], lambda doing, number=number: tell(number, doing))  # type: ignore[misc]
            for row in comparison.rows:
                if row.round == number:
                    _compare_rows(answer, stored[row.seed, row.policy, row.round], row)
            same = np.array_equal(inner[:, number], comparison.grams[number].numpy())
            answer.compare(f"round {number}", "Gram matrices equal", True, same)
    tell(answer.again, "done")
    return answer


def _compare_rows(answer: Verification, then: Row, now: Row) -> None:
    place = f"{now.policy}, seed {now.seed}, round {now.round}"
    for name in Row._fields[3:]:  # the first three say which row it is
        answer.compare(place, name, getattr(then, name), getattr(now, name))


def _verify_training(
    folder: Path, steps: int, device: torch.device, tell: Tell, data_dir: str | None
) -> Verification:
    stored = [load_checkpoint(place) for place in trained_folders(folder)]
    for other in stored[1:]:
        seed = other.config.run.seed
        check_same_training(other, with_seed(stored[0].config, seed))
    curves = [saved_curve(checkpoint.folder) for checkpoint in stored]
    total = min(map(len, curves))
    answer = Verification("batches of episodes", min(steps, total), total)
    config = _with_data(stored[0].config, data_dir)
    with matrix_products(config.run.precision):
        trainer = Trainer(config, device, [checkpoint.config.run.seed for checkpoint in stored])
        for number in range(answer.again):
            tell(number, "training")
            for run, report in enumerate(trainer.play_batch()):
                place = f"{_which(trainer, run)}episode {report.episodes}"
                for name in Report._fields:
                    before = getattr(curves[run][number], name)
                    answer.compare(place, name, before, getattr(report, name))
        for run, checkpoint in enumerate(stored):
            if trainer.batch == checkpoint.batch:
                now, then = trainer.learner.agents_of(run), checkpoint.tensors("agents")
                same = all(torch.equal(now[name].cpu(), t) for name, t in then.items())
                answer.compare(f"{_which(trainer, run)}the end", "agents equal", True, same)
    tell(answer.again, "done")
    if answer.differences and len(stored) == 1 and len(trained_folders(folder.parent)) > 1:
        answer.notes.append(
            "seeds trained side by side come out to the last bit side by side only: fedfade "
            f"verify {folder.parent}"
        )
    return answer


def _which(trainer: Trainer, run: int) -> str:
    return f"seed {trainer.seeds[run]}, " if len(trainer.seeds) > 1 else ""


def _changed(record: dict[str, Any], device: torch.device) -> list[str]:
    """What differs between then and now and may move the last bits."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    now = {"fedfade": __version__, "torch": torch.__version__, "device": name}
    return [
        f"{what} was {record.get(what)}, is {value}"
        for what, value in now.items()
        if record.get(what) != value
    ]


@contextmanager
def _threads(wanted: object) -> Iterator[None]:
    """As many threads as the run had: sums may be split differently on others."""
    before = torch.get_num_threads()
    if isinstance(wanted, int) and 1 <= wanted <= 1024:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
