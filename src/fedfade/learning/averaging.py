"""What clients send, what the server remembers, and the average of what arrived."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.device import one_thread

MAX_NORM = 1e15  # an update of greater norm counts as not finite


@dataclass(frozen=True)
class ServerState:
    """All the server remembers; plain float32 tensors, ready to be stored."""

    parameters: Tensor  # [run, D]
    buffers: Tensor  # [run, B] batch-norm running statistics
    previous: Tensor  # [run, D] the last aggregated update g_{t-1}; zero before the first
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # [run, ...] of the server rule

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, the rule's memory among it."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "memory"}
        return own | dict(self.memory)

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "ServerState":
        """The state of such tensors; what is none of its fields is the rule's memory."""
        own = {f.name: tensors[f.name] for f in fields(ServerState) if f.name != "memory"}
        return ServerState(**own, memory={n: t for n, t in tensors.items() if n not in own})

    def each(self, change: Callable[[Tensor], Tensor]) -> "ServerState":
        """The same change to every tensor, e.g. a choice of runs."""
        return ServerState.of({name: change(value) for name, value in self.tensors().items()})


@dataclass(frozen=True)
class Updates:
    """What the clients would send."""

    parameters: Tensor  # [run, client, D] g_n = w_t - w_n^(E) (paper: eq. 6)
    buffers: Tensor  # [run, client, B] the clients' own running statistics
    finite: Tensor  # [run, client] bool; a client that is not finite counts as not delivered
    loss: Tensor  # [run, client] training loss, mean over the local steps
    samples: Tensor  # [run, client] training samples, the weights of `weighting: samples`


class Arrived(NamedTuple):
    """What the server has received in a round."""

    updates: Updates
    weight: Tensor  # [run, client] 0 for whoever did not deliver
    anyone: Tensor  # [run, 1] bool
    mean: Tensor  # [run, D] weighted mean of the updates; 0 where nobody delivered
    buffers: Tensor  # [run, B] likewise of the running statistics


def by_run(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of tensors [run, ...] that knows nothing of other runs: the same numbers, sooner.

    On the CPU one run after the other: getting memory from the system for copies of everybody's
    updates would take longer than the arithmetic. And on one thread, because several would share
    a sum and change its last bits. On a GPU all at once.
    """
    if tensors[0].device.type != "cpu":
        return function(*tensors)
    runs = zip(*(torch.split(tensor, 1) for tensor in tensors), strict=True)
    with one_thread():
        return torch.cat([function(*run) for run in runs])


def is_finite(parameters: Tensor, buffers: Tensor) -> Tensor:
    """Whether all a client sends is finite, and not so large that its squares overflow later on
    in the Gram matrix and the reward: [run, client]."""
    squares = by_run(lambda p, b: p.square().sum(-1) + b.square().sum(-1), parameters, buffers)
    return squares <= MAX_NORM**2


def gram(updates: Updates, previous: Tensor) -> Tensor:
    """Inner products of d_n = g_{t-1} - g_n: [run, client, client].

    It is all the uplink has to know about learning; its diagonal holds the estimated deviations
    |d_n|^2 (paper: section IV-B). A client that is not finite cannot deliver; its entries are 0.
    `previous` is g_{t-1} [run, D], or what the server takes for each client that does not deliver,
    [run, client, D]; then |d_n|^2 is how much the client has to say that is new.
    """

    def products(previous: Tensor, sent: Tensor, finite: Tensor) -> Tensor:
        difference = torch.where(finite[..., None], previous - sent, 0.0)
        return difference @ difference.mT

    previous = previous[:, None] if previous.ndim == 2 else previous
    return by_run(products, previous, updates.parameters, updates.finite)


def mean_of_arrived(updates: Updates, weight: Tensor) -> Arrived:
    """The mean over those who delivered (paper: eq. 16), with weight [run, client] >= 0."""
    weight = torch.where(updates.finite, weight, 0.0)
    total = weight.sum(dim=1, keepdim=True)  # [run, 1]
    anyone = total > 0
    share = weight / torch.where(anyone, total, 1.0)
    mean = by_run(_weighted, share, updates.parameters, updates.finite)
    buffers = by_run(_weighted, share, updates.buffers, updates.finite)
    return Arrived(updates, weight, anyone, mean, buffers)


def _weighted(share: Tensor, values: Tensor, finite: Tensor) -> Tensor:
    """Sum over clients; a client that is not finite must not leak in as 0 * NaN."""
    return weighted_sum(share, torch.where(finite[..., None], values, 0.0))


def weighted_sum(share: Tensor, values: Tensor) -> Tensor:
    """Sum of values [run, client, value] with share [run, client]."""
    # Elementwise, not as a matrix product: equal in every run that delivers alike, and equal
    # to a sum over the delivered clients alone because the others add exact zeros.
    return (share[..., None] * values).sum(dim=1)


def gradient_bias(updates: Updates, delivered: Tensor) -> Tensor:
    """|mean of all g_n - mean of the delivered g_n|^2, the bound's second term (paper: eq. 25).

    The mean of all is the ideally uploaded gradient (paper: eq. 17); that of nobody's is 0. [run]
    """
    count = delivered.sum(-1, keepdim=True).clamp(min=1)
    finite = updates.finite
    share = finite / finite.sum(-1, keepdim=True).clamp(min=1) - delivered / count

    def square(share: Tensor, sent: Tensor, finite: Tensor) -> Tensor:
        sent = torch.where(finite[..., None], sent, 0.0)
        return torch.einsum("rn,rnd->rd", share, sent).square().sum(-1)

    return by_run(square, share, updates.parameters, finite)
