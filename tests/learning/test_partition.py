"""Partitions: equal counts, no sample twice, the right statistics, and an independent procedure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.config import LearningConfig
from fedfade.errors import UserError
from fedfade.learning import balanced_dirichlet, class_counts, deal, iid, shards

CIFAR_LABELS = np.repeat(np.arange(10), 5000)  # what the partition sees of CIFAR-10


def share_std(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> float:
    counts = class_counts(labels, parts, classes)
    return float((counts / counts.sum(1, keepdims=True)).std(1).mean())


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 300),
    classes=st.integers(1, 12),
    clients=st.integers(1, 20),
    alpha=st.sampled_from([0.001, 0.01, 0.5, 5.0, 1e6]),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_partition_is_equal_and_disjoint(
    samples: int, classes: int, clients: int, alpha: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    if samples < clients:
        with pytest.raises(UserError, match=r"learning\.clients"):
            balanced_dirichlet(labels, clients, alpha, seed)
        return
    for parts in (balanced_dirichlet(labels, clients, alpha, seed), iid(labels, clients, seed)):
        assert [len(part) for part in parts] == [samples // clients] * clients
        everything = np.concatenate(parts)
        assert len(np.unique(everything)) == len(everything)
        assert everything.min() >= 0
        assert everything.max() < samples


@pytest.mark.parametrize(("alpha", "expected"), [(0.5, 0.100), (5.0, 0.038), (50.0, 0.013)])
def test_class_shares_spread_as_in_the_literature(alpha: float, expected: float) -> None:
    stds = [
        share_std(CIFAR_LABELS, balanced_dirichlet(CIFAR_LABELS, 10, alpha, s), 10)
        for s in range(20)
    ]
    # Between seeds the statistic scatters by 10 % of its value; 4 standard errors of 20 seeds.
    assert np.mean(stds) == pytest.approx(expected, rel=4 * 0.10 / 20**0.5)


def sample_by_sample(
    labels: np.ndarray, clients: int, alpha: float, generator: np.random.Generator
) -> list[list[int]]:
    """The procedure as it is told, one sample at a time."""
    classes = int(labels.max()) + 1
    prior = generator.dirichlet(np.full(classes, alpha), clients)
    stock = [list(generator.permutation(np.flatnonzero(labels == k))) for k in range(classes)]
    quota = len(labels) // clients
    parts: list[list[int]] = [[] for _ in range(clients)]
    while True:
        waiting = [n for n in range(clients) if len(parts[n]) < quota]
        if not waiting:
            return parts
        client = waiting[generator.integers(len(waiting))]
        chance = np.array([prior[client, k] if stock[k] else 0.0 for k in range(classes)])
        kind = generator.choice(classes, p=chance / chance.sum())
        parts[client].append(stock[kind].pop())


@pytest.mark.parametrize("alpha", [0.3, 3.0])
def test_agrees_with_the_sample_by_sample_procedure(alpha: float) -> None:
    labels = np.repeat(np.arange(5), [60, 30, 20, 50, 40])  # unequal, so that classes run out
    generator = np.random.default_rng(1)
    ours, theirs = [], []
    for seed in range(300):
        ours.append(class_counts(labels, balanced_dirichlet(labels, 4, alpha, seed), 5))
        parts = sample_by_sample(labels, 4, alpha, generator)
        theirs.append(class_counts(labels, [np.array(p) for p in parts], 5))
    a, b = np.array(ours, float), np.array(theirs, float)
    for moment in (lambda x: x.mean((0, 1)), lambda x: np.sort(x, 2).mean((0, 1))):
        # 1,200 client rows; a count scatters by at most 16, so 4.5 standard errors of a difference.
        np.testing.assert_allclose(moment(a), moment(b), atol=4.5 * 16 * (2 / 1200) ** 0.5)


def test_a_tiny_alpha_gives_few_classes_and_starves_nobody() -> None:
    parts = balanced_dirichlet(CIFAR_LABELS, 10, 0.001, seed=3)
    counts = class_counts(CIFAR_LABELS, parts, 10)
    # Each client takes its first class until it runs out, then its second, ...
    assert (counts > 0).sum(1).mean() < 6
    assert counts.sum(1).tolist() == [5000] * 10


def test_depends_on_the_seed_and_on_nothing_else() -> None:
    first = balanced_dirichlet(CIFAR_LABELS, 10, 0.5, seed=4)
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    again = balanced_dirichlet(list(CIFAR_LABELS), 10, 0.5, seed=4)
    other = balanced_dirichlet(CIFAR_LABELS, 10, 0.5, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_shards_give_few_classes() -> None:
    parts = shards(CIFAR_LABELS, clients=10, shards_per_client=2, seed=0)
    assert (class_counts(CIFAR_LABELS, parts, 10) > 0).sum(1).max() <= 2
    assert len(np.unique(np.concatenate(parts))) == 50_000
    with pytest.raises(UserError, match="shards_per_client"):
        shards(np.zeros(30), clients=10, shards_per_client=4, seed=0)


def test_deal_follows_the_config() -> None:
    labels = CIFAR_LABELS[::50]
    for kind in ("dirichlet", "iid", "shards"):
        parts = deal(LearningConfig(partition=kind, clients=5), labels, seed=0)
        assert [len(part) for part in parts] == [200] * 5
