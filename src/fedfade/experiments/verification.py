"""Run the beginning of a stored run again and compare number by number."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fedfade import agents
from fedfade.config import changed
from fedfade.device import matrix_products, on_threads
from fedfade.errors import UserError
from fedfade.experiments.comparison import Comparison, stored_grams
from fedfade.experiments.metrics import check_complete, columns, read_rows
from fedfade.experiments.run_folder import (
    RESULTS,
    changed_files,
    changes_since,
    check_inputs,
    open_finished,
)
from fedfade.experiments.side_by_side import SideBySide, Tell


@dataclass
class Verification:
    """What was run again, and where it differed."""

    what: str  # rounds or batches of episodes
    again: int
    stored: int
    numbers: int = 0  # compared
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is not as it was: versions, machine

    def compare(
        self, place: str, names: Sequence[str], then: Sequence[object], now: Sequence[object]
    ) -> None:
        """Compare values name by name: NaN equals NaN, all else must be equal to the last bit."""
        self.numbers += len(names)
        for name, before, after in zip(names, then, now, strict=True):
            both_missing = before != before and after != after  # noqa: PLR0124 - NaN
            if before != after and not both_missing:
                self.differences.append(f"{place}: {name} was {before}, is {after}.")


def stored_steps(folder: Path) -> int:
    """Rounds, or batches of episodes, there are to run again."""
    if _is_training(folder):
        return min(agents.load_checkpoint(place).batch for place in agents.trained_folders(folder))
    return open_finished(folder)[0].run.rounds


def verify(
    folder: Path,
    steps: int,
    device: torch.device,
    tell: Tell,
    data_dir: str | None = None,
    threads: int | None = None,
) -> Verification:
    """Run the first `steps` rounds (or batches of episodes) of a run folder again.

    Seeds that were trained side by side are run again side by side: alone, their sums would be of
    other lengths and round differently. The data may lie elsewhere now, in `data_dir`: where they
    lie changes no number.
    """
    moved = {} if data_dir is None else {"learning.data_dir": data_dir}
    training = _is_training(folder)
    run_again = _verify_training if training else _verify_comparison
    wanted = threads or (None if training else open_finished(folder)[1].get("threads"))
    if not isinstance(wanted, int) or not 1 <= wanted <= 1024:  # the folder does not say
        wanted = torch.get_num_threads()
    with on_threads(wanted):
        answer = run_again(folder, steps, device, tell, moved)
    tell(answer.again, "done")
    return answer


def _is_training(folder: Path) -> bool:
    return all(map(agents.has_checkpoint, agents.trained_folders(folder)))


def _verify_comparison(
    folder: Path, steps: int, device: torch.device, tell: Tell, moved: dict[str, str]
) -> Verification:
    config, record = open_finished(folder)
    config = changed(config, moved)
    check_inputs(folder, config, record)
    path, total = folder / "metrics.csv", config.run.rounds
    rows = read_rows(path)
    answer = Verification("rounds", min(steps, total), total, notes=changes_since(record, device))
    if "left" not in record and answer.again < total:
        answer.notes.append("an older version made this run: rounds not run again are not checked")
    if record.get("grown") and device.type == "cuda":
        later = "runs were added to this run later"
        answer.notes.append(f"{later}: on a GPU their last bits may differ")
    for name, then, now in changed_files(folder, record, *RESULTS):
        answer.compare(name, ["SHA-256"], [then], [now])
    comparison = Comparison(config, device)
    check_complete(rows, path, comparison.names, config, total)
    stored = {(row.seed, row.policy, row.round): row for row in rows}
    names = columns(rows)[3:]  # the key is equal
    inner, _ = stored_grams(folder, config, len(comparison.learned))
    alone = SideBySide([comparison])
    for number in range(answer.again):
        alone.play([comparison], lambda doing, number=number: tell(number, doing))  # type: ignore[misc]
        for row in (row for row in comparison.rows if row.round == number):
            place = f"{row.policy}, seed {row.seed}, round {row.round}"
            both = stored[row.seed, row.policy, row.round], row
            values = [[getattr(one, name) for name in names] for one in both]
            answer.compare(place, names, *values)
        same = np.array_equal(inner[:, number], comparison.grams[number].numpy(), equal_nan=True)
        answer.compare(f"round {number}", ["Gram matrices equal"], [True], [same])
    if answer.again == total:
        models, then = comparison.model_digests(), record.get("models")
        then = then if isinstance(then, dict) else {}
        answer.compare("the end", list(models), [*map(then.get, models)], list(models.values()))
    return answer


def _verify_training(
    folder: Path, steps: int, device: torch.device, tell: Tell, moved: dict[str, str]
) -> Verification:
    stored = [agents.load_checkpoint(place) for place in agents.trained_folders(folder)]
    for other in stored:
        own = changed(stored[0].config, {"run.seed": other.config.run.seed})
        agents.check_same_training(other, own)
    curves = [agents.saved_curve(checkpoint.folder) for checkpoint in stored]
    for checkpoint, curve in zip(stored, curves, strict=True):
        if not 0 < len(curve) == checkpoint.batch:
            said = f"{len(curve)} reports of {checkpoint.batch} batches"
            raise UserError(f"the checkpoint in {str(checkpoint.folder)!r} holds {said}.")
    total = min(map(len, curves))
    answer = Verification("batches of episodes", min(steps, total), total)
    config = changed(stored[0].config, moved)
    seeds = [checkpoint.config.run.seed for checkpoint in stored]
    names = [f"seed {seed}, " if len(seeds) > 1 else "" for seed in seeds]
    with matrix_products(config.run.precision):
        trainer = agents.Trainer(config, device, seeds)
        for number in range(answer.again):
            tell(number, "training")
            for name, curve, report in zip(names, curves, trainer.play_batch(), strict=True):
                place = f"{name}episode {report.episodes}"
                answer.compare(place, agents.Report._fields, curve[number], report)
        for run, checkpoint in enumerate(stored):
            if trainer.batch == checkpoint.batch:
                now = trainer.learner.kept.of(run)
                then = checkpoint.tensors("agents").items()
                same = all(torch.equal(now[name].cpu(), tensor) for name, tensor in then)
                answer.compare(f"{names[run]}the end", ["agents equal"], [True], [same])
    if answer.differences and len(stored) == 1 and len(agents.trained_folders(folder.parent)) > 1:
        answer.notes.append(
            "seeds trained side by side come out to the last bit side by side only: fedfade "
            f"verify {folder.parent}"
        )
    return answer
