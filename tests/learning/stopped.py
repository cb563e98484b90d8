"""Comparisons that are interrupted and continued."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedfade.config import Config, load_config
from fedfade.experiments import Row, compare_many
from tests.conftest import TINY

CPU = torch.device("cpu")


def two_configs(*changes: str) -> list[Config]:
    """Tiny ones that differ in how data are dealt, under two policies."""
    own = [*TINY, *changes, "allocation.policies=[random, perfect]"]
    return [load_config("paper", [*own, f"learning.alpha={alpha}"]) for alpha in (1, 2)]


def stopped_and_continued(configs: Sequence[Config], folder: Path) -> list[list[Row]]:
    """Side by side, interrupted after two rounds and continued: what `compare_many` answers."""
    folders = [folder / str(n) for n in range(len(configs))]

    def stop(done: int, doing: str) -> None:
        if done == 2 and doing == "uploads":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_many(configs, folders, CPU, stop)
    return compare_many(configs, folders, CPU)
