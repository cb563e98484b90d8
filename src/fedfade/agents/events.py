"""Event files of a training, for TensorBoard."""

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedfade.storage import make_folder

SCALARS = ("return", "uploads per round", "TD loss", "Q", "epsilon", "FL accuracy")
"""TensorBoard's names of the fields of a report after the first."""


def tensorboard_installed() -> bool:
    """Whether trainings write event files."""
    return find_spec("tensorboard") is not None


class ScalarWriter:
    """Appends scalars to a new event file in a folder, where TensorBoard is installed.

    Events of older files from `first_step` on are hidden.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self._folder = folder
        self._writer: Any = None
        if tensorboard_installed():
            from torch.utils.tensorboard import SummaryWriter

            place = str(make_folder(folder))
            self._writer = SummaryWriter(place, purge_step=first_step, flush_secs=10)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One event for each value that is a number."""
        # If the folder was moved away, the next checkpoint will say so.
        if self._writer is not None and self._folder.is_dir():
            for name, value in values.items():
                if math.isfinite(value):
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        with suppress(OSError):
            if self._writer is not None:
                self._writer.close()
