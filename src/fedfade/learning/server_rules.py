"""What the server makes of the updates that arrived, and what it remembers.

A rule is made from the learning configuration (`learning.server`). Its memory is plain tensors
[run, ...] by name; they are stored in checkpoints with the rest of the server's state.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, Protocol

import torch
from torch import Tensor

from fedfade.config import LearningConfig
from fedfade.device import one_thread
from fedfade.errors import UserError
from fedfade.learning.averaging import MAX_NORM, Arrived, ServerState, by_run, weighted_sum
from fedfade.seams import SERVER_RULES, ask

Memory = Mapping[str, Tensor]

REMEMBERED = "remembered"
"""Name of a memory [run, client, D] of what the server takes for clients that do not deliver.
Gradient deviations are then measured from it."""


class ServerRule(Protocol):
    """The server's step between two global models.

    Optional: `correction(memory)` [run, client, D] is added to every gradient of local training.
    """

    def init(self, parameters: Tensor) -> Memory:
        """What it remembers before the first round; parameters [run, D]."""

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        """The step [run, D], which is subtracted from the model, and what to remember now."""


class AskedRule:
    """The rule of that name: whatever a user's raises, or answers in another form, becomes one
    sentence. A user's may add up what it likes: on one thread, the same on any machine."""

    def __init__(self, name: str, config: LearningConfig) -> None:
        self._who = f"learning.server = {name!r}"
        self._clients = config.clients
        self._rule: ServerRule = SERVER_RULES.make(name, config)
        self._ours = type(self._rule).__module__ == __name__

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """What it remembers before the first round; parameters [run, D]."""
        return self._memory("init", self._ask("init", parameters), len(parameters))

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, dict[str, Tensor]]:
        """The step [run, D], and what to remember now."""
        answer = self._ask("apply", memory, arrived)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._refused("apply", answer, "a step and what to remember")
        step = self._tensor("apply", answer[0], arrived.mean.shape)
        return step, self._memory("apply", answer[1], len(step))

    def correction(self, state: ServerState) -> Tensor | None:
        """What it adds to every gradient of local training, [run, client, D], if anything."""
        if not hasattr(self._rule, "correction"):
            return None
        runs, size = state.parameters.shape
        answer = self._ask("correction", state.memory)
        return self._tensor("correction", answer, torch.Size([runs, self._clients, size]))

    def _ask(self, question: str, *given: object) -> Any:
        with nullcontext() if self._ours else one_thread():
            return ask(self._who, self._rule, question, *given)

    def _tensor(self, question: str, found: object, shape: torch.Size) -> Tensor:
        if not isinstance(found, Tensor) or found.shape != shape:
            raise self._refused(question, found, f"a tensor {list(shape)}")
        numbers = found.to(torch.float32)
        # Ours are finite where updates are; asking them would make a GPU wait.
        if not self._ours and not bool((numbers.norm(dim=-1) <= MAX_NORM).all()):
            wanted = f"it must be finite, of a norm of at most {MAX_NORM:g}"
            raise UserError(f"{self._who} answered NaN or too much in {question}: {wanted}.")
        return numbers

    def _memory(self, question: str, found: object, runs: int) -> dict[str, Tensor]:
        if not isinstance(found, Mapping):
            raise self._refused(question, found, "a dict of what to remember")
        for name, kept in found.items():
            if name in {field.name for field in fields(ServerState)}:
                raise UserError(f"{self._who} remembers {name!r}: the server has that name itself.")
            if not isinstance(kept, Tensor) or kept.shape[:1] != (runs,):
                raise self._refused(question, kept, f"a tensor [{runs}, ...] as {name!r}")
        return dict(found)

    def _refused(self, question: str, found: object, wanted: str) -> UserError:
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        return UserError(f"{self._who} answered {shape} in {question}: it must be {wanted}.")


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


class _Adaptive(ABC):
    """FedOpt (Reddi et al. 2021, algorithm 2): the mean as a gradient for an adaptive optimiser; a
    round in which nobody delivered changes nothing."""

    def __init__(self, config: LearningConfig) -> None:
        self._rate, self._tau = config.global_rate, config.server_tau
        self._beta1, self._beta2 = config.server_beta1, config.server_beta2

    def init(self, parameters: Tensor) -> Memory:
        square = torch.full_like(parameters, self._tau**2)
        return {"first": torch.zeros_like(parameters), "second": square}

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        first = self._beta1 * memory["first"] + (1 - self._beta1) * arrived.mean
        second = self._second(memory["second"], arrived.mean.square())
        step = self._rate * first / (second.sqrt() + self._tau)
        new = {"first": first, "second": second}
        kept = {name: torch.where(arrived.anyone, new[name], memory[name]) for name in new}
        return torch.where(arrived.anyone, step, 0.0), kept

    @abstractmethod
    def _second(self, before: Tensor, square: Tensor) -> Tensor:
        """The second moment after a round whose mean has this square."""


class Adam(_Adaptive):
    """FedAdam: the second moment is an exponential mean."""

    def _second(self, before: Tensor, square: Tensor) -> Tensor:
        return self._beta2 * before + (1 - self._beta2) * square


class Yogi(_Adaptive):
    """FedYogi: the second moment moves towards the square by a share of the square."""

    def _second(self, before: Tensor, square: Tensor) -> Tensor:
        return before - (1 - self._beta2) * square * torch.sign(before - square)


class _Remembering:
    """Keeps every client's last update that arrived; 0 for who never delivered."""

    def __init__(self, config: LearningConfig) -> None:
        self._rate, self._clients = config.global_rate, config.clients
        self._by_samples = config.weighting == "samples"

    def init(self, parameters: Tensor) -> Memory:
        runs, size = parameters.shape
        return {REMEMBERED: parameters.new_zeros(runs, self._clients, size)}

    def _everybody(self, arrived: Arrived) -> Tensor:
        """Weights of all clients, present or not: [run, client]."""
        weight = arrived.updates.samples if self._by_samples else torch.ones_like(arrived.weight)
        return weight / weight.sum(1, keepdim=True)


class Mifa(_Remembering):
    """MIFA (Gu et al. 2021): the mean over all clients, the absent with their last update."""

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        last = _replaced(memory[REMEMBERED], arrived, arrived.updates.parameters)
        step = self._rate * by_run(weighted_sum, self._everybody(arrived), last)
        return step, {REMEMBERED: last}


class FedVarp(_Remembering):
    """FedVARP (Jhunjhunwala et al. 2022): the mean over all of the last updates, corrected by how
    far those who are present have moved from theirs; without anybody's, the mean alone."""

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        total = arrived.weight.sum(1, keepdim=True)
        present = arrived.weight / torch.where(arrived.anyone, total, 1.0)
        share, last = self._everybody(arrived) - present, memory[REMEMBERED]
        step = self._rate * (arrived.mean + by_run(weighted_sum, share, last))
        return step, {REMEMBERED: _replaced(last, arrived, arrived.updates.parameters)}


class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020, option II): clients add c - c_n to every gradient.

    A client's control c_n is the mean gradient of its last local training that arrived, and c the
    mean of all, which is what the paper's running update of c adds up to. Clients send the
    change of their control beside the update, so payloads double.
    """

    def __init__(self, config: LearningConfig) -> None:
        self._rate, self._clients = config.global_rate, config.clients
        self._moved = config.local_work * config.local_rate  # by a gradient of 1

    def init(self, parameters: Tensor) -> Memory:
        runs, size = parameters.shape
        return {"controls": parameters.new_zeros(runs, self._clients, size)}

    def correction(self, memory: Memory) -> Tensor:
        """c - c_n: [run, client, D]."""
        controls = memory["controls"]
        share = controls.new_full(controls.shape[:2], 1 / self._clients)
        return by_run(weighted_sum, share, controls)[:, None] - controls

    def apply(self, memory: Memory, arrived: Arrived) -> tuple[Tensor, Memory]:
        # What was trained with g + c - c_n has moved by its mean: g is c_n - c more.
        new = arrived.updates.parameters / self._moved - self.correction(memory)
        return self._rate * arrived.mean, {"controls": _replaced(memory["controls"], arrived, new)}


def _replaced(old: Tensor, arrived: Arrived, new: Tensor) -> Tensor:
    """`new` of those who delivered, `old` of the others: [run, client, D]."""
    return torch.where(arrived.weight[..., None] > 0, new, old)
