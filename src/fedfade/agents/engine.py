"""How slot steps and updates are carried out on a device.

A slot step is some sixty small operations and an update some hundred and fifty. On a GPU their
launches cost more than their work, so both are recorded once and replayed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedfade.device import one_thread
from fedfade.graphs import Work, record


class Engine:
    """Plays slots and learns. `changed` are all tensors either function writes to."""

    def __init__(
        self, step: Work, update: Work, changed: Iterable[Tensor], device: torch.device
    ) -> None:
        tensors = list(changed)
        self._cpu = device.type == "cpu"
        self._step = record(step, tensors, device)
        self.update = record(update, tensors, device)

    def step(self) -> None:
        """One slot of all parallel episodes; on one thread, its operations being so small."""
        if self._cpu:
            with one_thread():
                self._step()
        else:
            self._step()
