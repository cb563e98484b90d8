"""How slot steps and updates are carried out: one after another, or as captured CUDA graphs.

A slot step is some sixty small operations and an update some hundred and fifty. On a GPU their
launches cost more than their work; a captured graph launches them all at once and gives the same
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor


class Engine(Protocol):
    """Plays slots and learns."""

    def step(self) -> None:
        """One slot of all parallel episodes."""

    def update(self) -> None:
        """One learning step."""


class EagerEngine:
    """Call the functions; slots on one thread, because their operations are too small to share."""

    def __init__(self, step: Callable[[], None], update: Callable[[], None]) -> None:
        self._step = step
        self.update = update

    def step(self) -> None:
        """Play a slot."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._step()
        torch.set_num_threads(threads)


class GraphEngine:
    """Capture each function once, then replay it. `changed` are all tensors they write to."""

    def __init__(
        self, step: Callable[[], None], update: Callable[[], None], changed: Iterable[Tensor]
    ) -> None:
        tensors = list(changed)
        before = [tensor.clone() for tensor in tensors]
        self._step = _capture(step)
        self._update = _capture(update)
        for tensor, value in zip(tensors, before, strict=True):  # undo the warm-up
            tensor.copy_(value)

    def step(self) -> None:
        """Replay the slot step."""
        self._step.replay()

    def update(self) -> None:
        """Replay the update."""
        self._update.replay()


def _capture(function: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # libraries allocate their workspaces on the first calls
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph
