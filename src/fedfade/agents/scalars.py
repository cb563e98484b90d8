"""Scalars for TensorBoard, where it is installed."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedfade.errors import UserError
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

            make_folder(folder)
            with self._refusing():
                self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values that are numbers."""
        # Of a folder that was moved away the next checkpoint tells.
        if self._writer is not None and self._folder.is_dir():
            from torch.utils.tensorboard.summary import scalar

            numbers = {name: value for name, value in values.items() if math.isfinite(value)}
            event, *others = map(scalar, numbers, numbers.values())
            for other in others:
                event.MergeFrom(other)
            with self._refusing():
                self._writer.file_writer.add_summary(event, step)

    def flush(self) -> None:
        """Wait until all is on the disk, where a kill cannot lose it."""
        if self._writer is not None:
            with self._refusing():
                self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise UserError(f"{str(self._folder)!r} cannot be written: {reason}.") from None
