"""Scalars for TensorBoard, where it is installed."""

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedfade.storage import make_folder


def tensorboard_installed() -> bool:
    """Whether trainings write event files."""
    return find_spec("tensorboard") is not None


class ScalarWriter:
    """Appends scalars to a new event file in a folder; `first_step` hides older ones after it.

    Only where TensorBoard is installed: elsewhere it writes nothing.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        self._folder = folder
        self._writer: Any = None
        if tensorboard_installed():
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(
                str(make_folder(folder)), purge_step=first_step, flush_secs=10
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values that are numbers."""
        # If the folder was moved away, the next checkpoint will say so.
        if self._writer is not None and self._folder.is_dir():
            from torch.utils.tensorboard.summary import scalar

            numbers = {name: value for name, value in values.items() if math.isfinite(value)}
            event, *others = map(scalar, numbers, numbers.values())
            for other in others:
                event.MergeFrom(other)
            self._writer.file_writer.add_summary(event, step)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
