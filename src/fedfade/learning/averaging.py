"""What clients send, what the server remembers, and the server's step between the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfade.device import one_thread

MAX_NORM = 1e15
"""An update of greater norm counts as not finite."""


@dataclass(frozen=True)
class ServerState:
    """All the server remembers; plain float32 tensors, ready to be stored."""

    parameters: Tensor  # [run, D]
    buffers: Tensor  # [run, B] batch-norm running statistics
    momentum: Tensor  # [run, D]
    previous: Tensor  # [run, D] the last aggregated update g_{t-1}; zero before the first


@dataclass(frozen=True)
class Updates:
    """What the clients would send."""

    parameters: Tensor  # [run, client, D] g_n = w_t - w_n^(E), eq. (6)
    buffers: Tensor  # [run, client, B] the clients' own running statistics
    finite: Tensor  # [run, client] bool; a client that is not finite counts as not delivered
    loss: Tensor  # [run, client] training loss, mean over the local steps
    samples: Tensor  # [run, client] training samples, the weights of `weighting: samples`


def by_run(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of tensors [run, ...] that knows nothing of other runs: the same numbers, sooner.

    On the CPU one run after the other: getting memory from the system for copies of everybody's
    updates would take longer than the arithmetic. And on one thread, because several would share
    a sum and change its last bits. On a GPU all at once.

    >>> by_run(lambda x, y: x @ y, torch.ones(3, 2, 5), torch.ones(3, 5, 4)).shape
    torch.Size([3, 2, 4])
    """
    if tensors[0].device.type != "cpu":
        return function(*tensors)
    runs = zip(*(torch.split(tensor, 1) for tensor in tensors), strict=True)
    with one_thread():
        return torch.cat([function(*run) for run in runs])


def is_finite(parameters: Tensor, buffers: Tensor) -> Tensor:
    """Whether all a client sends is finite: [run, client]."""
    # An update of enormous norm is of no use to anybody, and sums of its squares would overflow in
    # the Gram matrix and in the reward.
    squares = by_run(lambda p, b: p.square().sum(-1) + b.square().sum(-1), parameters, buffers)
    return squares <= MAX_NORM**2


def gram(updates: Updates, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Inner products of d_n = g_{t-1} - g_n and the estimated deviations |d_n|^2.

    Returns [run, client, client] and [run, client]: all the uplink has to know about learning. A
    client whose update is not finite cannot deliver; its entries are zero.

    >>> one = torch.ones(1, 2)
    >>> g = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> inner, deviation = gram(Updates(g, g, one.bool(), one, one), torch.zeros(1, 2))
    >>> inner.tolist(), deviation.tolist()
    ([[[1.0, 0.0], [0.0, 4.0]]], [[1.0, 4.0]])
    """

    def products(previous: Tensor, sent: Tensor, finite: Tensor) -> Tensor:
        difference = previous[:, None] - sent
        difference = torch.where(finite[..., None], difference, 0.0)  # [run, client, D]
        return difference @ difference.mT

    inner = by_run(products, previous, updates.parameters, updates.finite)
    return inner, inner.diagonal(dim1=-2, dim2=-1).clone()


def average(
    state: ServerState, updates: Updates, weight: Tensor, rate: float, momentum: float
) -> ServerState:
    """The server's step, eq. (8), with weight [run, client] >= 0 (zero: not delivered).

    With momentum m the server keeps v <- m v + g and steps by rate * v; m = 0 is FedAvg. In a run
    where every weight is zero nothing changes.
    """
    weight = torch.where(updates.finite, weight, 0.0)
    total = weight.sum(dim=1, keepdim=True)  # [run, 1]
    anyone = total > 0
    share = weight / torch.where(anyone, total, 1.0)
    update = by_run(_weighted, share, updates.parameters, updates.finite)  # [run, D]
    velocity = momentum * state.momentum + update
    return ServerState(
        parameters=torch.where(anyone, state.parameters - rate * velocity, state.parameters),
        buffers=torch.where(
            anyone, by_run(_weighted, share, updates.buffers, updates.finite), state.buffers
        ),
        momentum=torch.where(anyone, velocity, state.momentum),
        previous=torch.where(anyone, update, state.previous),
    )


def _weighted(share: Tensor, values: Tensor, finite: Tensor) -> Tensor:
    """Sum over clients; a client that is not finite must not leak in as 0 * NaN."""
    clean = torch.where(finite[..., None], values, 0.0)
    # Elementwise, not as a matrix product: equal in every run that delivers alike, and equal
    # to a sum over the delivered clients alone because the others add exact zeros.
    return (share[..., None] * clean).sum(dim=1)
