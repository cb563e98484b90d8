"""A whole FedAvg run without a radio: every upload delivered, or a random few each round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfade.errors import not_allowed
from fedfade.learning.averaging import ServerState, Updates
from fedfade.learning.federation import Federation
from fedfade.randomness import fold, streams, uniform


@dataclass(frozen=True)
class Point:
    """The models of all runs after `rounds` rounds."""

    rounds: int
    accuracy: list[float]  # one per run
    loss: list[float]


@dataclass(frozen=True)
class Step:
    """One round of all runs."""

    round: int
    before: ServerState
    updates: Updates
    delivered: Tensor  # [run, client] bool
    after: ServerState


Delivery = Callable[[int, ServerState, Updates], Tensor]
"""Who delivers in a round, given the model it began with and the updates: [run, client] bool."""


def random_delivery(
    seeds: Sequence[int], round: int, clients: int, count: int | None, device: torch.device
) -> Tensor:
    """Who delivers: everybody (None), or `count` clients drawn by (seed, round): [run, client].

    >>> random_delivery([0, 1], 0, 10, 4, torch.device("cpu")).sum(1).tolist()
    [4, 4]
    """
    if count is None:
        return torch.ones(len(seeds), clients, dtype=torch.bool, device=device)
    if not 0 <= count <= clients:
        raise not_allowed("--delivered", count, f"between 0 and the number of clients, {clients}")
    draw = uniform(fold(streams(seeds, "delivery", device=device), round), (clients,))
    return draw.argsort(dim=1).argsort(dim=1) < count


def steps(
    federation: Federation,
    seeds: Sequence[int],
    rounds: int,
    delivered: int | Delivery | None = None,
) -> Iterator[Step]:
    """FedAvg round after round, all seeds at once: all, a random few, or who `delivered` says."""
    state = federation.start(seeds)
    for round in range(rounds):
        updates = federation.train(state, seeds, round)
        if callable(delivered):
            arrived = delivered(round, state, updates)
        else:
            clients = federation.config.clients
            arrived = random_delivery(seeds, round, clients, delivered, federation.device)
        after = federation.average(state, updates, arrived)
        yield Step(round, state, updates, arrived, after)
        state = after


def learning_curve(
    federation: Federation,
    seeds: Sequence[int],
    rounds: int,
    evaluate_every: int = 1,
    delivered: int | None = None,
    tell: Callable[[int, str], None] = lambda done, doing: None,
) -> list[Point]:
    """Test accuracy after every `evaluate_every` rounds and after the last."""
    points: list[Point] = []
    for step in steps(federation, seeds, rounds, delivered):
        done = step.round + 1
        if done % evaluate_every == 0 or done == rounds:
            accuracy, loss = federation.evaluate(step.after)
            points.append(Point(done, accuracy.tolist(), loss.tolist()))
            tell(done, f"accuracy {100 * sum(points[-1].accuracy) / len(seeds):.1f} %")
        else:
            tell(done, "training")
    return points
