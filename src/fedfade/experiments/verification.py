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
from fedfade.device import matrix_products
from fedfade.errors import UserError
from fedfade.experiments.comparison import Comparison
from fedfade.experiments.course import stored_grams
from fedfade.experiments.metrics import Row, check_complete, read_rows
from fedfade.experiments.run_folder import check_agents, open_finished
from fedfade.qmix.checkpoint import has_checkpoint, load_checkpoint
from fedfade.qmix.run import saved_curve
from fedfade.qmix.trainer import Report, Trainer

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


def verify(folder: Path, steps: int, device: torch.device, tell: Tell) -> Verification:
    """Run the first `steps` rounds (or batches of episodes) of a run folder again."""
    if has_checkpoint(folder):
        return _verify_training(folder, steps, device, tell)
    return _verify_comparison(folder, steps, device, tell)


def _verify_comparison(folder: Path, steps: int, device: torch.device, tell: Tell) -> Verification:
    config, record = open_finished(folder)
    if record.get("finished") is None:
        raise UserError(f"{str(folder)!r} is not finished: run the same fedfade compare again.")
    check_agents(folder, config, record)
    path, total = folder / "metrics.csv", config.run.rounds
    rows = read_rows(path)
    answer = Verification("rounds", min(steps, total), total, notes=_changed(record, device))
    comparison = Comparison(config, device)
    check_complete(rows, path, comparison.all_policies, config, total)
    stored = {(row.seed, row.policy, row.round): row for row in rows}
    inner = stored_grams(folder, config, len(comparison.runs.policies)).inner
    at = comparison.start()
    with _threads(record.get("threads")), matrix_products(config.run.precision):
        for number in range(answer.again):
            at, again, gram = comparison.play(at, tell)
            for row in again:
                _compare_rows(answer, stored[row.seed, row.policy, row.round], row)
            same = np.array_equal(inner[:, number], gram.numpy())
            answer.compare(f"round {number}", "Gram matrices equal", True, same)
    return answer


def _compare_rows(answer: Verification, then: Row, now: Row) -> None:
    place = f"{now.policy}, seed {now.seed}, round {now.round}"
    for name in Row._fields[3:]:  # the first three say which row it is
        answer.compare(place, name, getattr(then, name), getattr(now, name))


def _verify_training(folder: Path, steps: int, device: torch.device, tell: Tell) -> Verification:
    stored = load_checkpoint(folder)
    curve = saved_curve(folder)
    answer = Verification("batches of episodes", min(steps, len(curve)), len(curve))
    with matrix_products(stored.config.run.precision):
        trainer = Trainer(stored.config, device)
        for number, then in zip(range(answer.again), curve, strict=False):
            tell(number, "training")
            now = trainer.play_batch()[0]
            for name in Report._fields:
                place = f"episode {now.episodes}"
                answer.compare(place, name, getattr(then, name), getattr(now, name))
        if trainer.batch == stored.batch:
            agents = trainer.learner.agents.state_dict()
            same = all(torch.equal(agents[n].cpu(), t) for n, t in stored.tensors("agents").items())
            answer.compare("the end", "agents equal", True, same)
    return answer


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
