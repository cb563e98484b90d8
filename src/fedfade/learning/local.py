"""Local training, client after client on CPU threads; `batched` does it all at once on CUDA.

Both take the broadcast state and a list of mini-batches and return every client's update; they
agree up to rounding. Neither draws random numbers, except for a user's dropout.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from queue import SimpleQueue
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.config import Precision
from fedfade.device import matrix_products, on_threads
from fedfade.learning.averaging import ServerState
from fedfade.learning.data import Dataset
from fedfade.learning.fused import fuse_norms
from fedfade.learning.model import (
    InitialState,
    buffer_layout,
    has_dropout,
    parameter_layout,
    pass_changes,
)
from fedfade.randomness import stream

_EVALUATION_IMAGES = 50  # in a block, which then stays in the cache


@dataclass(frozen=True)
class LocalWork:
    """Local training spelled out: which samples in which step, at what rate."""

    samples: Tensor  # [run, client, step, sample] indices into the training images
    rate: float
    proximal: float
    seeds: Sequence[int]
    round: int
    clients: Sequence[int] = ()  # their numbers, for a user's dropout; 0 ... N-1 if empty
    correction: Tensor | None = None  # [run, client, D] added to every gradient
    who: Tensor | None = None  # [run, client] bool: who is trained, others' updates are 0; or all


@dataclass(frozen=True)
class Trained:
    """What local training leaves behind."""

    parameters: Tensor  # [run, client, D] g_n = w_t - w_n^(E) (paper: eq. 6)
    buffers: Tensor  # [run, client, B]
    loss: Tensor  # [run, client] mean over the steps; NaN for who is not trained


class LocalEngine(Protocol):
    """Carries out local training and evaluation."""

    def train(self, state: ServerState, work: LocalWork) -> Trained:
        """Every client's update."""

    def evaluate(self, state: ServerState, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Number of correct images and summed loss of each run: [run], [run]."""


@contextmanager
def arithmetic(device: torch.device, precision: Precision) -> Iterator[None]:
    """float32 as on any CPU unless asked otherwise: TensorFloat-32 would lose 13 bits unseen."""
    with ExitStack() as settings:
        if device.type == "cuda":
            settings.enter_context(matrix_products(precision))
            chosen = {"benchmark": False, "deterministic": True, "allow_tf32": precision != "fp32"}
            settings.enter_context(torch.backends.cudnn.flags(enabled=True, **chosen))
        if precision == "bf16":
            settings.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield


@contextmanager
def dropout_of(work: LocalWork, run: int, client: int) -> Iterator[None]:
    """Random numbers of one client's dropout: a function of its seed, the round and its number."""
    number = work.clients[client] if work.clients else client
    key = stream(work.seeds[run], "dropout", work.round, number)
    device = work.samples.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(key & (2**63 - 1))
        yield


class ModelReplica:
    """A copy of the model, into which clients are loaded one after the other."""

    def __init__(self, model: nn.Module, dataset: Dataset, precision: Precision) -> None:
        self.model = fuse_norms(model).to(dataset.mean.device)
        # Weights in the images' memory order spare the convolutions a reordering each.
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dataset, self.precision = dataset, precision
        self.parameter_layout = parameter_layout(model)
        self.buffer_layout = buffer_layout(model)
        parameters = dict(self.model.named_parameters())
        self.parameters: list[Tensor] = [parameters[name] for name in self.parameter_layout.shapes]
        self._initial = InitialState(self.model)

    def load(self, parameters: Tensor, buffers: Tensor) -> None:
        """Become the model of flat vectors [D] and [B] (paper: eq. 3)."""
        self._initial.restore()  # nothing of the last client stays
        with torch.no_grad():
            copy_all(self.parameters, self.parameter_layout.views(parameters).values())
            copy_all(self._averaged_buffers(), self.buffer_layout.views(buffers).values())

    def store(self, parameters: Tensor, buffers: Tensor) -> None:
        """Write what is there now into flat vectors [D] and [B]."""
        with torch.no_grad():
            copy_all(self.parameter_layout.views(parameters).values(), self.parameters)
            copy_all(self.buffer_layout.views(buffers).values(), self._averaged_buffers())

    def _averaged_buffers(self) -> list[Tensor]:
        buffers = dict(self.model.named_buffers())  # a forward pass may have replaced some
        return [buffers[name] for name in self.buffer_layout.shapes]

    def train(
        self,
        samples: Tensor,
        rate: float,
        proximal: float,
        start: list[Tensor],
        correction: list[Tensor] | None = None,
    ) -> Tensor:
        """SGD over samples [step, sample] (paper: eq. 4 and 5); returns the mean loss."""
        self.model.train()
        total = torch.zeros((), device=samples.device)
        for batch in samples:
            images = self.dataset.normalised(self.dataset.train_images[batch])
            with arithmetic(samples.device, self.precision):
                loss = F.cross_entropy(self.model(images), self.dataset.train_labels[batch])
                gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            with torch.no_grad():
                if proximal:  # FedProx: the gradient of proximal / 2 |w - w_t|^2
                    pull = [p - s for p, s in zip(self.parameters, start, strict=True)]
                    torch._foreach_add_(self.parameters, pull, alpha=-rate * proximal)
                if correction is not None:
                    torch._foreach_add_(self.parameters, correction, alpha=-rate)
                torch._foreach_add_(self.parameters, gradients, alpha=-rate)
            total += loss.detach()
        return total / len(samples)

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Number of correct images and summed loss of one block."""
        self.model.eval()
        with arithmetic(labels.device, self.precision):
            logits = self.model(self.dataset.normalised(images)).float()
        return (logits.argmax(1) == labels).sum(), F.cross_entropy(logits, labels, reduction="sum")


def first_alike(state: ServerState, work: LocalWork) -> list[int]:
    """For every run the first of its seed if the two train alike, else itself. In the first round
    all policies have the same model, and it is trained once."""
    first: dict[int, int] = {}
    given = (state.parameters, state.buffers, work.samples, work.correction, work.who)
    parts = [part for part in given if part is not None]

    def alike(run: int, other: int) -> bool:
        return all(torch.equal(part[run], part[other]) for part in parts)

    firsts = [first.setdefault(seed, run) for run, seed in enumerate(work.seeds)]
    return [other if alike(run, other) else run for run, other in enumerate(firsts)]


def copy_all(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy each source into its target, all by one call."""
    if into := list(targets):
        torch._foreach_copy_(into, list(sources))


class ClientLoop:
    """One client at a time on each thread, every thread computing on a single core.

    Clients are independent, so this splits the work without the cost of splitting every small
    operation, and the result does not depend on the number of threads.
    """

    def __init__(
        self, model: nn.Module, dataset: Dataset, precision: Precision, threads: int | None
    ) -> None:
        self.dropout = has_dropout(model, dataset.shape)
        self._tests_change_it = pass_changes(model, dataset.shape, training=False)
        # With dropout one thread: all share the process's generator.
        self._threads = 1 if self.dropout else threads or torch.get_num_threads()
        self._idle: SimpleQueue[ModelReplica] = SimpleQueue()
        for _ in range(self._threads):
            self._idle.put(ModelReplica(model, dataset, precision))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="client")

    def train(self, state: ServerState, work: LocalWork) -> Trained:
        runs, clients = work.samples.shape[:2]
        parameters = state.parameters.new_zeros(runs, clients, state.parameters.shape[1])
        buffers = state.buffers.new_zeros(runs, clients, state.buffers.shape[1])
        loss = state.parameters.new_full((runs, clients), torch.nan)
        idle = None if work.who is None else (~work.who).tolist()

        def train_client(replica: ModelReplica, run: int, n: int) -> None:
            if idle is not None and idle[run][n]:
                return
            replica.load(state.parameters[run], state.buffers[run])
            start = list(replica.parameter_layout.views(state.parameters[run]).values())
            given, added = (work.samples[run, n], work.rate, work.proximal, start), None
            if work.correction is not None:
                added = list(replica.parameter_layout.views(work.correction[run, n]).values())
            with dropout_of(work, run, n) if self.dropout else nullcontext():
                loss[run, n] = replica.train(*given, added)
            replica.store(parameters[run, n], buffers[run, n])
            torch.sub(state.parameters[run], parameters[run, n], out=parameters[run, n])

        first = first_alike(state, work)
        self._spread(train_client, sorted(set(first)), clients)
        for run, other in enumerate(first):
            if run != other:
                for part in (parameters, buffers, loss):
                    part[run] = part[other]
        return Trained(parameters, buffers, loss)

    def evaluate(
        self, state: ServerState, images: Tensor, labels: Tensor, size: int = _EVALUATION_IMAGES
    ) -> tuple[Tensor, Tensor]:
        runs = len(state.parameters)
        blocks = list(zip(torch.split(images, size), torch.split(labels, size), strict=True))
        correct = labels.new_zeros(runs, len(blocks))
        loss = state.parameters.new_zeros(runs, len(blocks))

        def evaluate_part(replica: ModelReplica, run: int, part: int) -> None:
            for index in range(part, len(blocks), self._threads):
                if index == part or self._tests_change_it:
                    replica.load(state.parameters[run], state.buffers[run])
                correct[run, index], loss[run, index] = replica.evaluate(*blocks[index])

        self._spread(evaluate_part, range(runs), self._threads)
        return correct.sum(1), loss.sum(1)

    def _spread(
        self, task: Callable[[ModelReplica, int, int], None], runs: Iterable[int], each: int
    ) -> None:
        """`task(replica, run, k)` for k = 0 ... each - 1 of some runs, on all threads."""

        def work(pair: tuple[int, int]) -> None:
            torch.set_num_threads(1)  # for this thread; the caller's own number is put back below
            replica = self._idle.get()
            try:
                task(replica, *pair)
            finally:
                self._idle.put(replica)

        with on_threads(torch.get_num_threads()):
            list(self._pool.map(work, product(runs, range(each))))
