"""One point of a sweep: a configuration, a folder, and the lines it adds to the table."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fedfade.config import Config
from fedfade.device import pick_device
from fedfade.errors import UserError
from fedfade.experiments.comparison import stored_rows
from fedfade.experiments.inputs import check_inputs
from fedfade.experiments.report import summaries
from fedfade.experiments.run_folder import RunFolder
from fedfade.experiments.side_by_side import compare_many

Tell = Callable[[int, int], None]
"""Told how many steps of how many are done."""

Line = dict[str, object]


class Kind(Protocol):
    """A command a sweep can run."""

    def run(self, config: Config, folder: Path, tell: Tell) -> None:
        """Run to the end, or continue what stopped."""

    def finished(self, config: Config, folder: Path) -> bool:
        """Whether the folder holds the whole result."""

    def lines(self, config: Config, folder: Path) -> list[Line]:
        """What a finished folder adds to the table."""


class ComparePoint:
    """`fedfade compare`: one line a policy."""

    def run(self, config: Config, folder: Path, tell: Tell) -> None:
        """All rounds of all policies."""
        device, rounds = pick_device(config.run.device), config.run.rounds
        compare_many([config], [folder], device, lambda done, doing: tell(done, rounds))

    def finished(self, config: Config, folder: Path) -> bool:
        """As the run's record says, if it was made from what is there now."""
        place = RunFolder(folder, config, pick_device("cpu"))
        if not place.finished:
            return False
        check_inputs(folder, config, place.record)
        return True

    def lines(self, config: Config, folder: Path) -> list[Line]:
        """Final accuracy and what the uplink did."""
        rows = stored_rows(RunFolder(folder, config, pick_device("cpu")))
        return [
            {
                "policy": line.policy,
                "accuracy": line.accuracy,
                "uploads": line.uploads,
                "empty_rounds": line.empty_rounds,
                "wasted": line.wasted,
                "fairness": line.fairness,
                "sum_rate_bps": line.sum_rate_bps,
            }
            for line in summaries(rows)
        ]


class TrainPoint:
    """`fedfade train`: one line a training."""

    def run(self, config: Config, folder: Path, tell: Tell) -> None:
        """To the last episode."""
        from fedfade.agents import train

        total = config.qmix.episodes
        train(config, folder, lambda trainer, runs: tell(min(runs[0].episodes, total), total))

    def finished(self, config: Config, folder: Path) -> bool:
        """Whether the checkpoint has all episodes."""
        from fedfade.agents.checkpoint import has_checkpoint, load_checkpoint

        if not has_checkpoint(folder):
            return False
        return load_checkpoint(folder).episodes >= config.qmix.episodes

    def lines(self, config: Config, folder: Path) -> list[Line]:
        """Means over the last twentieth of the training."""
        from fedfade.agents.run import saved_curve

        curve = saved_curve(folder)
        last = curve[-max(1, len(curve) // 20) :]
        tested = [report.accuracy for report in curve if not math.isnan(report.accuracy)]
        return [
            {
                "policy": "qmix",
                "accuracy": tested[-1] if tested else math.nan,
                "uploads": sum(report.uploads for report in last) / len(last),
                "reward": sum(report.reward for report in last) / len(last),
                "episodes": curve[-1].episodes,
            }
        ]


class ReproducePoint:
    """`fedfade reproduce all` on the paper's grids: one line a policy, in the training cell."""

    def run(self, config: Config, folder: Path, tell: Tell) -> None:
        """All parts in order."""
        from fedfade.studies.paper import PARTS, checked_setting, reproduce

        setting = checked_setting(folder, config, "paper")
        reproduce(setting, list(PARTS), done=lambda parts: tell(parts, len(PARTS)))

    def finished(self, config: Config, folder: Path) -> bool:
        """The page of claims is written last."""
        return (folder / "claims.md").is_file()

    def lines(self, config: Config, folder: Path) -> list[Line]:
        """Final accuracy and what the uplink did where the agents were trained."""
        from fedfade.studies.paper import centre_lines

        return centre_lines(config, folder)


KINDS: dict[str, Kind] = {
    "compare": ComparePoint(),
    "train": TrainPoint(),
    "reproduce": ReproducePoint(),
}


def finished_lines(command: str, config: Config, folder: Path) -> list[Line] | None:
    """What a point adds to the table; None if it needs work, and a damaged folder does."""
    kind = KINDS[command]
    try:
        return kind.lines(config, folder) if kind.finished(config, folder) else None
    except UserError:
        return None
