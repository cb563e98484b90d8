"""Dealing samples to clients: balanced Dirichlet (the paper's), IID, shards.

Every function returns one sorted index array per client; a sample is used at most once, and
what does not divide evenly stays unused.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedfade.config import LearningConfig
from fedfade.errors import UserError, not_allowed
from fedfade.randomness import numpy_generator

Indices = NDArray[np.int64]

_BLOCK = 8192  # draws tried at once; bounds memory at block x classes


def deal(config: LearningConfig, labels: ArrayLike, seed: int) -> list[Indices]:
    """The partition a configuration asks for."""
    if config.partition == "iid":
        return iid(labels, config.clients, seed)
    if config.partition == "shards":
        return shards(labels, config.clients, config.shards_per_client, seed)
    return balanced_dirichlet(labels, config.clients, config.alpha, seed)


def balanced_dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int) -> list[Indices]:
    """Equal sample counts, class shares drawn from Dir(alpha) (Acar et al. 2021).

    Each client draws a prior p ~ Dir(alpha) over classes. Then, sample by sample: a client that
    is not yet full is picked uniformly, a class is drawn from its p renormalised over the classes
    that still have samples, and one sample of that class is taken.
    """
    values = _checked(labels, clients)
    if not alpha > 0 or not np.isfinite(alpha):
        raise not_allowed("learning.alpha", alpha, "a finite number above 0")
    generator = numpy_generator(seed, "partition", clients)
    _, kind, stock = np.unique(values, return_inverse=True, return_counts=True)
    piles = [generator.permutation(np.flatnonzero(kind == k)) for k in range(len(stock))]
    # log p up to a constant, with log Gamma(alpha) variates as log Gamma(alpha + 1) + log(U) /
    # alpha: for small alpha p itself underflows to zero, its logarithm does not, so it can always
    # be renormalised.
    shape = (clients, len(stock))
    power = np.log(1.0 - generator.random(shape)) / alpha
    log_prior = np.log(generator.standard_gamma(alpha + 1.0, shape)) + power
    client, taken = _draw_all(generator, log_prior, stock, len(values) // clients)
    # The k-th draw of a class takes the k-th sample of its shuffled pile.
    counts = np.bincount(taken, minlength=len(stock))
    used = [pile[:count] for pile, count in zip(piles, counts, strict=True)]
    samples = np.empty_like(taken)
    samples[np.argsort(taken, kind="stable")] = np.concatenate(used)
    return [np.sort(samples[client == n]) for n in range(clients)]


def _draw_all(
    generator: np.random.Generator, log_prior: NDArray[np.float64], stock: Indices, quota: int
) -> Indices:
    """Client and class of every draw: [2, draw]; `stock` [class] is how many samples there are.

    Until a client is full or a class is used up the draws are independent and identically
    distributed, so they are made in blocks; a block is cut at the first such event.
    """
    clients, classes = log_prior.shape
    room = np.full(clients, quota)
    drawn = []
    while room.any():
        open_clients = np.flatnonzero(room)
        # Distribution functions over the classes that have samples left, ending at exactly 1.
        masked = np.where(stock > 0, log_prior[open_clients], -np.inf)  # [open, class]
        cumulative = np.cumsum(np.exp(masked - masked.max(axis=1, keepdims=True)), axis=1)
        cumulative /= cumulative[:, -1:]
        count = min(_BLOCK, int(room.sum()))
        row = generator.integers(len(open_clients), size=count)
        kind = (cumulative[row] <= generator.random((count, 1))).sum(axis=1)
        client = open_clients[row]
        end = min(_first_full(client, room), _first_full(kind, stock))
        client, kind = client[:end], kind[:end]
        room = room - np.bincount(client, minlength=clients)
        stock = stock - np.bincount(kind, minlength=classes)
        drawn.append(np.stack([client, kind]))
    return np.concatenate(drawn, axis=1)


def _first_full(values: Indices, room: Indices) -> int:
    """How many leading draws fit until some entry of `room` is used up (that draw included)."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values, minlength=len(room))
    first = np.cumsum(counts) - counts
    reached = np.flatnonzero((counts >= room) & (room > 0))
    if not len(reached):
        return len(values)
    return int(order[first[reached] + room[reached] - 1].min()) + 1


def iid(labels: ArrayLike, clients: int, seed: int) -> list[Indices]:
    """Equal random parts."""
    values = _checked(labels, clients)
    order = numpy_generator(seed, "iid", clients).permutation(len(values))
    quota = len(values) // clients
    return list(np.sort(order[: clients * quota].reshape(clients, quota)))


def shards(labels: ArrayLike, clients: int, shards_per_client: int, seed: int) -> list[Indices]:
    """Samples sorted by class, cut into equal shards, dealt at random (McMahan et al. 2017)."""
    values = _checked(labels, clients)
    count = clients * shards_per_client
    size = len(values) // count
    if size == 0:
        most = f"{len(values) // clients} for {len(values)} samples and {clients} clients"
        raise not_allowed("learning.shards_per_client", shards_per_client, f"at most {most}")
    generator = numpy_generator(seed, "shards", clients, shards_per_client)
    shuffled = generator.permutation(len(values))
    ordered = shuffled[np.argsort(values[shuffled], kind="stable")]
    pieces = ordered[: count * size].reshape(count, size)[generator.permutation(count)]
    return list(np.sort(pieces.reshape(clients, -1)))


def class_counts(labels: ArrayLike, parts: Sequence[Indices], classes: int) -> Indices:
    """Samples per client and class: [client, class].

    >>> class_counts([0, 1, 1, 2], [np.array([0, 1]), np.array([2, 3])], classes=3).tolist()
    [[1, 1, 0], [0, 1, 1]]
    """
    values = np.asarray(labels)
    return np.stack([np.bincount(values[part], minlength=classes) for part in parts])


def _checked(labels: ArrayLike, clients: int) -> Indices:
    values = np.asarray(labels)
    if values.ndim != 1:
        raise UserError(f"labels must be one-dimensional, and these have shape {values.shape}.")
    if clients < 1:
        raise not_allowed("learning.clients", clients, "at least 1")
    if len(values) < clients:
        most = f"the number of training samples, {len(values)}"
        raise not_allowed("learning.clients", clients, f"at most {most}")
    return values
