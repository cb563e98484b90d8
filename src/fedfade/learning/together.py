"""Runs of several federations in one batch, where what they do differs in the samples alone.

Two federations of the same model may deal their data differently; a step of local training does
not care whose run a client belongs to. So their runs are put one after the other, trained and
evaluated by the first one's engine, and taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfade.learning.averaging import ServerState, Updates
from fedfade.learning.federation import Federation
from fedfade.learning.local import LocalWork, Trained

_DEALING = {"partition", "alpha", "shards_per_client"}
_SERVER = {"global_rate", "server_momentum", "weighting", "payload_bits"}


def batch_key(federation: Federation, seeds: Sequence[int]) -> tuple[object, ...]:
    """Federations with equal keys can be trained together.

    They must agree in all but how data are dealt and what the server does, and their mini-batches
    must have one shape.
    """
    same = federation.config.model_dump(exclude=_DEALING | _SERVER)
    steps = federation.mini_batches(seeds, 0).shape[1:]
    return (*same.items(), federation.precision, steps)


def train_together(
    federations: Sequence[Federation],
    states: Sequence[ServerState],
    seeds: Sequence[Sequence[int]],
    round: int,
) -> list[Updates]:
    """`Federation.train` of each, as one batch of clients."""
    if len(federations) == 1:
        return [federations[0].train(states[0], seeds[0], round)]
    works = [f.local_work(s, round) for f, s in zip(federations, seeds, strict=True)]
    trained = federations[0].engine.train(_joined(states), _one_work(works))
    parts = _split(trained, [len(work.samples) for work in works])
    every = zip(federations, parts, works, strict=True)
    return [federation.updates(part, work) for federation, part, work in every]


def evaluate_together(
    federations: Sequence[Federation], states: Sequence[ServerState]
) -> list[tuple[Tensor, Tensor]]:
    """`Federation.evaluate` of each, as one batch of models."""
    if not states:
        return []
    accuracy, loss = federations[0].evaluate(_joined(states))
    sizes = [len(state.parameters) for state in states]
    return list(zip(torch.split(accuracy, sizes), torch.split(loss, sizes), strict=True))


def _joined(states: Sequence[ServerState]) -> ServerState:
    if len(states) == 1:
        return states[0]
    names = ("parameters", "buffers", "momentum", "previous")
    return ServerState(**{name: torch.cat([getattr(s, name) for s in states]) for name in names})


def _one_work(works: Sequence[LocalWork]) -> LocalWork:
    samples = torch.cat([work.samples for work in works])
    return replace(works[0], samples=samples, seeds=[s for work in works for s in work.seeds])


def _split(trained: Trained, sizes: list[int]) -> list[Trained]:
    parts = (torch.split(t, sizes) for t in (trained.parameters, trained.buffers, trained.loss))
    return [Trained(*part) for part in zip(*parts, strict=True)]
