"""One federated round, written once: what happens between two global models.

Comparison, the bound, `fedfade learn` and the benchmarks play rounds by `federated_round`. The
training of agents plays its two halves, because episodes come between; Flower's clients train and
its strategy averages, so that of the round it takes the Gram matrix alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedfade.errors import not_allowed
from fedfade.learning.averaging import ServerState, Updates, gradient_bias, gram
from fedfade.learning.federation import Federation, Models
from fedfade.learning.server_rules import REMEMBERED
from fedfade.learning.wire import ERROR_FEEDBACK, Encoded, left_over
from fedfade.randomness import fold, streams, uniform


@dataclass(frozen=True)
class Sent:
    """A round up to the uplink: what the clients have trained and encoded."""

    number: int
    before: ServerState
    updates: Updates
    encoded: Encoded  # what is on the air

    @cached_property
    def inner(self) -> Tensor:
        """The Gram matrix, all the uplink needs to know; worked out if it asks."""
        return gram(self.updates, self.before.memory.get(REMEMBERED, self.before.previous))


@dataclass(frozen=True)
class RoundResult:
    """A whole round."""

    sent: Sent
    arrived: Tensor  # [run, client] bool: delivered in time, and finite
    received: Updates  # what the server decoded
    after: ServerState
    accuracy: Tensor  # [run] on the test set; NaN if it was not asked for
    loss: Tensor  # [run] likewise
    accuracy_averaged: Tensor  # [run] likewise, of the mean of the models; NaN if none is kept

    @cached_property
    def bias(self) -> Tensor:
        """The bound's second term: [run]."""
        return gradient_bias(self.sent.updates, self.arrived)


Deliver = Callable[[Sent], Tensor]
"""Plays a round's slots: who delivered, [run, client] bool; or, for `learning.count_partial`, the
share of its bits that each client delivered, float, 1 for all."""


def send(models: Models, state: ServerState, number: int, who: Tensor | None = None) -> Sent:
    """The first half: local training, of all or of `who`, and encoding (paper: eq. 4 to 6)."""
    updates = models.train(state, number, who=who)
    wire, residual = models.lead.wire, state.memory.get(ERROR_FEEDBACK)
    keys = None if wire.lossless else models.codec_keys(number)
    return Sent(number, state, updates, wire.encode(updates, residual, keys))


def receive(models: Models, sent: Sent, delivered: Tensor) -> tuple[ServerState, Updates]:
    """The second half: decode what arrived and average it (paper: eq. 7 and 8)."""
    wire, memory = models.lead.wire, dict(sent.before.memory)
    delivered = delivered.to(sent.updates.finite.device)
    received, counted = wire.decode(sent.updates, sent.encoded, delivered), wire.counted(delivered)
    residual = memory.pop(ERROR_FEEDBACK, None)
    after = models.lead.average(replace(sent.before, memory=memory), received, counted)
    if residual is not None:
        left = left_over(residual, sent.updates, received, counted & received.finite)
        after = replace(after, memory={**after.memory, ERROR_FEEDBACK: left})
    return after, received


def federated_round(
    models: Models,
    state: ServerState,
    number: int,
    deliver: Deliver,
    test: bool = True,
    tell: Callable[[str], None] = lambda doing: None,
    ahead: Tensor | None = None,
) -> RoundResult:
    """Train, encode, play the slots, decode, average, measure (paper: algorithm 1).

    `ahead`: what `deliver` would say, where that is known before; then nobody else is trained.
    """
    tell("local training")
    sent = send(models, state, number, None if ahead is None else ahead > 0)
    tell("uploads")
    delivered = deliver(sent) if ahead is None else ahead
    after, received = receive(models, sent, delivered)
    tell("evaluation")
    accuracy = loss = of_mean = torch.full_like(sent.updates.loss[:, 0], torch.nan)
    if test:
        accuracy, loss = models.lead.evaluate(after)
        if (mean := models.lead.averaged(after)) is not None:
            of_mean, _ = models.lead.evaluate(mean)
    arrived = models.lead.wire.counted(delivered) & received.finite
    return RoundResult(sent, arrived, received, after, accuracy, loss, of_mean)


def random_delivery(seeds: Sequence[int], clients: int, count: int | None) -> Deliver:
    """Without a radio: everybody delivers (None), or `count` clients drawn by (seed, round)."""
    if count is not None and not 0 <= count <= clients:
        raise not_allowed("--delivered", count, f"between 0 and the number of clients, {clients}")

    def deliver(sent: Sent) -> Tensor:
        everybody = torch.ones_like(sent.updates.finite)
        if count is None:
            return everybody
        keys = fold(streams(seeds, "delivery", device=everybody.device), sent.number)
        return uniform(keys, (clients,)).argsort(dim=1).argsort(dim=1) < count

    return deliver


def play_rounds(
    federation: Federation,
    seeds: Sequence[int],
    rounds: int,
    deliver: Deliver | int | None = None,
    test: Callable[[int], bool] = lambda number: False,
) -> Iterator[RoundResult]:
    """Round after round of all seeds; `deliver` may be a number of clients drawn at random."""
    models = Models([(federation, seeds)])
    if not callable(deliver):
        deliver = random_delivery(seeds, federation.config.clients, deliver)
    state = models.start()
    for number in range(rounds):
        done = federated_round(models, state, number, deliver, test(number))
        yield done
        state = done.after


@dataclass(frozen=True)
class CurvePoint:
    """The models of all runs after `rounds` rounds."""

    rounds: int
    accuracy: list[float]  # one per run
    loss: list[float]


def learning_curve(
    federation: Federation,
    seeds: Sequence[int],
    rounds: int,
    evaluate_every: int = 1,
    delivered: int | None = None,
    tell: Callable[[int, str], None] = lambda done, doing: None,
) -> list[CurvePoint]:
    """Test accuracy after every `evaluate_every` rounds and after the last."""
    points: list[CurvePoint] = []

    def due(number: int) -> bool:
        return (number + 1) % evaluate_every == 0 or number + 1 == rounds

    for done in play_rounds(federation, seeds, rounds, delivered, due):
        number = done.sent.number + 1
        if due(done.sent.number):
            accuracy = done.accuracy.tolist()
            points.append(CurvePoint(number, accuracy, done.loss.tolist()))
            tell(number, f"accuracy {100 * sum(accuracy) / len(seeds):.1f} %")
        else:
            tell(number, "training")
    return points
