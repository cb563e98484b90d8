"""Where the gradients of a round come from: real federated rounds, invented ones, a recording.

The uplink needs to know one thing of the learning side, the Gram matrix of the deviations
d_n = g_{t-1} - g_n; and the learning side one thing of the uplink, who delivered.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.errors import UserError, not_allowed
from fedfade.learning import (
    Federation,
    Models,
    Payload,
    Sent,
    ServerState,
    load_data,
    payload_bits,
    receive,
    send,
)
from fedfade.randomness import fold, normal, streams
from fedfade.storage import read_npz, write_npz

SYNTHETIC_WIDTH = 32  # dimensions the invented updates live in


class GradientSource(Protocol):
    """One federated task a run at a time; rounds are asked for in order.

    A source without a model has only `inner` to define.
    """

    payload_bits: Payload

    def inner(self, seeds: Sequence[int], round: int) -> Tensor:
        """Gram matrices of a round's deviations, one for each task (its seed says which):
        [run, client, client]; round 0 starts new tasks."""

    def deliver(self, delivered: Tensor) -> None:
        """End the round: these clients [run, client], or these shares of theirs, are averaged."""
        return

    def accuracy(self) -> Tensor | None:
        """Test accuracy of the global models now, where there are some: [run]."""
        return None

    def tensors(self) -> dict[str, Tensor]:
        """What an exact continuation needs: [run, ...]."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `tensors`."""
        return


class FederatedGradients(GradientSource):
    """Real FedAvg rounds in two halves, between which the agents play (paper: algorithm 1)."""

    def __init__(self, config: Config, device: torch.device | str = "cpu") -> None:
        self._made_of = config, device
        data, precision = load_data(config.learning), config.run.precision
        self._federation = Federation(config.learning, data, device=device, precision=precision)
        self.payload_bits = self._federation.payload_bits
        self._seeds: Sequence[int] = ()
        self._state: ServerState | None = None
        self._sent: Sent | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Copied and pickled as what it is made of and where it stands; its threads are not."""
        stands = {"_seeds": self._seeds, "_state": self._state, "_sent": self._sent}
        return FederatedGradients, self._made_of, stands

    @property
    def _models(self) -> Models:
        return Models([(self._federation, self._seeds)])

    def inner(self, seeds: Sequence[int], round: int) -> Tensor:
        self._seeds = seeds
        if round == 0 or self._state is None:
            self._state = self._models.start()
        self._sent = send(self._models, self._state, round)
        return self._sent.inner

    def deliver(self, delivered: Tensor) -> None:
        assert self._sent is not None
        self._state, _ = receive(self._models, self._sent, delivered)

    def accuracy(self) -> Tensor | None:
        return None if self._state is None else self._federation.evaluate(self._state)[0]

    def tensors(self) -> dict[str, Tensor]:
        """The server's state; the updates of a round begun are made again."""
        return {} if self._state is None else self._state.tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            state = ServerState.of(tensors)
            self._state = state.each(lambda tensor: tensor.to(self._federation.device))


class SyntheticGradients(GradientSource):
    """Invented updates, so that agents can be trained without a data set.

    A client's deviation is a direction all share, one of its own, and fresh noise; they shrink
    as training goes on. Sizes and angles are those of the paper's CNN on CIFAR-10
    (docs/explanation/environment.md shows both).
    """

    def __init__(
        self, config: Config, device: torch.device | str = "cpu", payload: Payload | None = None
    ) -> None:
        """`payload`: what a federation with these settings was found to send."""
        if payload is None and config.learning.payload_bits == "auto":
            allowed = "a number where there is no model to count"
            raise not_allowed("learning.payload_bits", "auto", allowed)
        self.payload_bits = payload_bits(config.learning) if payload is None else payload
        self._clients = config.learning.clients
        self._device = torch.device(device)

    def inner(self, seeds: Sequence[int], round: int) -> Tensor:
        """A function of (seed, round) alone."""
        task = streams(seeds, "synthetic gradients", device=self._device)  # [run]
        shape = (self._clients, SYNTHETIC_WIDTH)
        shared = normal(fold(task, 0), (1, SYNTHETIC_WIDTH))
        own = normal(fold(task, 1), shape)
        fresh = normal(fold(fold(task, 2), round), shape)
        deviation = 0.5 * shared + 0.7 * own + 0.7 * fresh
        scale = 0.03 / (SYNTHETIC_WIDTH * (1.0 + 0.03 * round))
        return deviation @ deviation.mT * scale


class RecordedGradients(SyntheticGradients):
    """Gram matrices recorded from real rounds: array `inner` [task, round, client, client]."""

    def __init__(self, config: Config, path: Path, device: torch.device | str = "cpu") -> None:
        super().__init__(config, device)
        arrays = read_npz(path, ("inner",))
        if "inner" not in arrays:
            raise UserError(f"{str(path)!r} has no array 'inner'.")
        inner, n = arrays["inner"], self._clients
        fits = inner.ndim == 4 and inner.shape[2:] == (n, n) and inner.size > 0
        if not fits or inner.dtype.kind != "f":
            raise UserError(
                f"array 'inner' in {str(path)!r} is {inner.dtype} {list(inner.shape)}: it must be "
                f"floating-point [task, round, {n}, {n}]."
            )
        self._inner = torch.from_numpy(inner).to(self._device, torch.float32)
        if not bool(self._inner.isfinite().all()):
            raise UserError(f"array 'inner' in {str(path)!r} holds numbers that are not finite.")

    def inner(self, seeds: Sequence[int], round: int) -> Tensor:
        """The task is chosen by the seed; a recording that is too short starts again."""
        tasks, rounds = self._inner.shape[:2]
        return self._inner[[seed % tasks for seed in seeds], round % rounds]


def record_gradients(
    config: Config,
    seeds: Sequence[int],
    path: Path,
    device: torch.device | str = "cpu",
    tell: Callable[[int], None] = lambda rounds: None,
) -> None:
    """Run federated rounds in which everybody delivers, the tasks of all seeds side by side, and
    record their Gram matrices; `tell` is told how many rounds are done."""
    source = FederatedGradients(config, device)
    everybody = torch.ones(len(seeds), config.learning.clients, dtype=torch.bool, device=device)
    found = []
    for round in range(config.run.rounds):
        tell(round)
        found.append(source.inner(seeds, round).cpu())
        source.deliver(everybody)
    write_npz(path, {"inner": torch.stack(found, 1).numpy()})  # [task, round, client, client]


def gradient_source(config: Config, device: torch.device | str = "cpu") -> GradientSource:
    """The source `qmix.gradients` names."""
    kind = config.qmix.gradients
    if kind == "learning":
        return FederatedGradients(config, device)
    if kind == "synthetic":
        return SyntheticGradients(config, device)
    if not kind.endswith(".npz"):
        raise not_allowed("qmix.gradients", kind, "learning, synthetic, or the path of an .npz")
    return RecordedGradients(config, Path(kind), device)
