"""Keyed randomness: independent of batching, uniform, normal, uncorrelated between streams."""

from __future__ import annotations

import math

import torch

from fedfade.randomness import fold, integers, normal, stream, uniform


def test_numbers_do_not_depend_on_the_batch() -> None:
    keys = fold(stream(3, "drops"), torch.arange(100))
    together = normal(keys, (7, 5))
    alone = normal(keys[41], (7, 5))
    assert torch.equal(together[41], alone)


def test_splitmix64_matches_an_independent_implementation() -> None:
    """Plain Python integers modulo 2^64, from the published algorithm."""
    word, state = (1 << 64) - 1, stream(0, "check") & ((1 << 64) - 1)
    expected = []
    for _ in range(5):
        state = (state + 0x9E3779B97F4A7C15) & word
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        z ^= z >> 31
        expected.append(((z >> 41) + 0.5) * 2.0**-23)
    drawn = uniform(torch.tensor(stream(0, "check")), (5,))
    assert drawn.tolist() == torch.tensor(expected).tolist()


def test_uniform_and_normal_have_the_right_moments() -> None:
    count = 400_000
    keys = fold(stream(1, "moments"), torch.arange(1000))
    u, z = uniform(keys, (400,)).double(), normal(keys, (400,)).double()
    assert u.min() > 0
    assert u.max() < 1
    # Five standard errors of each sample moment.
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * count)
    assert abs(u.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / count)
    assert abs(z.mean()) < 5 / math.sqrt(count)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / count)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / count)


def test_neighbouring_streams_are_uncorrelated() -> None:
    keys = fold(stream(1, "a"), torch.arange(2000))
    z = normal(keys, (100,)).double()
    for shift in (1, 2, 10):
        correlation = (z[:-shift] * z[shift:]).mean()
        assert abs(correlation) < 5 / math.sqrt(100 * 2000)
    assert abs((z[:, :-1] * z[:, 1:]).mean()) < 5 / math.sqrt(100 * 2000)


def test_integers_cover_their_range_evenly() -> None:
    drawn = integers(fold(stream(2, "n"), torch.arange(100)), 7, (700,))
    counts = torch.bincount(drawn.flatten(), minlength=7).double()
    expected = 10_000.0
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 22.5  # 99.9 % quantile for 6 degrees of freedom


def test_a_plain_key_is_folded_where_the_index_is() -> None:
    assert fold(stream(0, "n"), torch.arange(3, device="meta")).device.type == "meta"
    assert fold(torch.zeros(3, dtype=torch.int64, device="meta"), 1).device.type == "meta"
    assert torch.equal(fold(5, 7), fold(torch.tensor(5), torch.tensor(7)))
