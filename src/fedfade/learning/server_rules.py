"""What the server makes of the updates that arrived, and what it remembers.

A rule is made from the learning configuration (`learning.server`). Its memory is plain tensors
[run, ...] by name; they are stored in checkpoints with the rest of the server's state.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedfade.config import LearningConfig
from fedfade.learning.averaging import Arrived

Memory = Mapping[str, Tensor]


class ServerRule(Protocol):
    """The server's step between two global models."""

    def init(self, parameters: Tensor) -> Memory:
        """What it remembers before the first round; parameters [run, D]."""

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        """The step [run, D], which is subtracted from the model, and what to remember now."""


class Mean:
    """FedAvg: a step along the mean of the updates that arrived (paper: eq. 8)."""

    def __init__(self, config: LearningConfig) -> None:
        self._rate = config.global_rate

    def init(self, parameters: Tensor) -> Memory:
        return {}  # nothing to remember

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        return self._rate * arrived.mean, memory  # the mean is 0 where nobody delivered


class Momentum:
    """v <- m v + mean, and a step along v; a round in which nobody delivered changes nothing."""

    def __init__(self, config: LearningConfig) -> None:
        self._rate, self._momentum = config.global_rate, config.server_momentum

    def init(self, parameters: Tensor) -> Memory:
        return {"momentum": torch.zeros_like(parameters)}

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        velocity = self._momentum * memory["momentum"] + arrived.mean
        step = torch.where(arrived.anyone, self._rate * velocity, 0.0)
        return step, {"momentum": torch.where(arrived.anyone, velocity, memory["momentum"])}
