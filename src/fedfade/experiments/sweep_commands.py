"""What a point of a sweep can run, and the lines it adds to the table.

The table of them all is `fedfade.seams.SWEEP_COMMANDS`; studies add theirs there.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fedfade.agents import check_same_training, is_trained, load_checkpoint, saved_curve, train
from fedfade.config import Config
from fedfade.device import pick_device
from fedfade.experiments.comparison import stored_rows
from fedfade.experiments.findings import summaries
from fedfade.experiments.run_folder import RunFolder, check_inputs
from fedfade.experiments.side_by_side import compare_many

OnSteps = Callable[[int, int], None]
"""Told how many steps of how many are done."""

TableLine = dict[str, object]


class SweepCommand(Protocol):
    """A command a sweep can run."""

    marker: str  # the file that says that a folder is whole

    def run(self, config: Config, folder: Path, tell: OnSteps) -> None:
        """Run to the end, or continue what stopped."""

    def lines(self, config: Config, folder: Path) -> list[TableLine] | None:
        """What a folder adds to the table; None if it is not finished."""


class Compare:
    """`fedfade compare`: one line a policy."""

    marker = "run.json"

    def run(self, config: Config, folder: Path, tell: OnSteps) -> None:
        total, device = config.run.rounds, pick_device(config.run.device)
        compare_many([config], [folder], device, lambda done, doing: tell(done, total))

    def lines(self, config: Config, folder: Path) -> list[TableLine] | None:
        """Final accuracy and what the uplink did, if the run was made from what is there now."""
        place = RunFolder(folder, config, pick_device("cpu"))
        if not place.finished:
            return None
        check_inputs(folder, config, place.record)
        table = [vars(line) for line in summaries(stored_rows(place))]
        return [{name: line[name] for name in line if name != "band"} for line in table]


class Train:
    """`fedfade train`: one line a training."""

    marker = "checkpoint.json"

    def run(self, config: Config, folder: Path, tell: OnSteps) -> None:
        total = config.qmix.episodes
        train(config, folder, lambda trainer, runs: tell(min(runs[0].episodes, total), total))

    def lines(self, config: Config, folder: Path) -> list[TableLine] | None:
        """Means over the last twentieth of the training, if the checkpoint has all episodes."""
        if not is_trained(config, folder):
            return None
        check_same_training(load_checkpoint(folder), config)
        curve = saved_curve(folder)
        last = curve[-max(1, len(curve) // 20) :]
        tested = [report.accuracy for report in curve if not math.isnan(report.accuracy)]
        line: TableLine = {
            "policy": "qmix",
            "accuracy": tested[-1] if tested else math.nan,
            "uploads": sum(report.uploads for report in last) / len(last),
            "reward": sum(report.reward for report in last) / len(last),
            "episodes": curve[-1].episodes,
        }
        return [line]
