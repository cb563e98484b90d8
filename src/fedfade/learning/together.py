"""Runs of several federations in one batch, where what they do differs in the samples alone.

Two federations of the same model may deal their data differently; a step of local training does
not care whose run a client belongs to. So their runs are put one after the other, trained and
averaged by the first one, and taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from fedfade.learning.averaging import ServerState, Updates
from fedfade.learning.federation import Federation

_FREE = {"partition", "alpha", "shards_per_client", "payload_bits"}


def batch_key(federation: Federation, seeds: Sequence[int]) -> tuple[object, ...]:
    """Federations with equal keys can be trained together.

    They must agree in all but how data are dealt, and their mini-batches must have one shape.
    """
    same = federation.config.model_dump(exclude=_FREE)
    steps = federation.mini_batches(seeds, 0).shape[1:]
    return (*same.items(), federation.precision, steps)


def join(states: Sequence[ServerState]) -> ServerState:
    """The runs of all, one after the other."""
    if len(states) == 1:
        return states[0]
    names = [field.name for field in fields(ServerState)]
    return ServerState(**{name: torch.cat([getattr(s, name) for s in states]) for name in names})


def part(state: ServerState, runs: slice | Tensor) -> ServerState:
    """Some runs of a state."""
    names = [field.name for field in fields(ServerState)]
    return ServerState(**{name: getattr(state, name)[runs] for name in names})


def train_together(
    federations: Sequence[Federation],
    states: Sequence[ServerState],
    seeds: Sequence[Sequence[int]],
    round: int,
) -> Updates:
    """`Federation.train` of each, as one batch: the updates of all runs, one after the other.

    `states` may be joined already.
    """
    if len(federations) == 1:
        return federations[0].train(join(states), seeds[0], round)
    works = [f.local_work(s, round) for f, s in zip(federations, seeds, strict=True)]
    samples = torch.cat([work.samples for work in works])
    everybody = [seed for each in seeds for seed in each]
    trained = federations[0].engine.train(
        join(states), replace(works[0], samples=samples, seeds=everybody)
    )
    for federation, its in zip(federations, seeds, strict=True):
        federation.draw_ahead(its, round + 1)
    counts = [f.sample_counts(s) for f, s in zip(federations, seeds, strict=True)]
    return federations[0].updates(trained, torch.cat(counts))
