"""Theorem 1 on random quadratics, where every expectation is exact.

F_n(w) = (w - c_n)' H_n (w - c_n) / 2 with |H_n| <= L, and gradient noise that does not depend on
w. Then the SGD path is linear in the noise: means follow gradient descent, covariances a matrix
recursion. Nothing is sampled.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.learning.bound import (
    Constants,
    Problem,
    drift_bound,
    mean_gradient_bound,
    paper_constants,
    rate_limit,
    rescaled_constants,
)

DIMENSION = 3


class Quadratics:
    """N clients, exactly."""

    def __init__(
        self,
        generator: np.random.Generator,
        clients: int,
        smoothness: float,
        noise: float,
        convex: bool,
        offset: float = 1.0,
    ) -> None:
        self.smoothness, self.clients = smoothness, clients
        self.hessian = np.stack([self._hessian(generator, convex) for _ in range(clients)])
        self.centre = offset * generator.normal(size=(clients, DIMENSION))
        factor = generator.normal(size=(clients, DIMENSION, DIMENSION))
        covariance = factor @ factor.transpose(0, 2, 1)
        # Unequal noise, the loudest client at exactly the bound sigma_l^2 = noise.
        trace = np.trace(covariance, axis1=1, axis2=2)
        loud = generator.random(clients) * (generator.random(clients) < 0.7)
        loud[0] = 1.0
        self.noise = noise
        self.covariance = covariance * (noise * loud / trace)[:, None, None]
        self.start = generator.normal(size=DIMENSION)

    def _hessian(self, generator: np.random.Generator, convex: bool) -> np.ndarray:
        basis, _ = np.linalg.qr(generator.normal(size=(DIMENSION, DIMENSION)))
        values = generator.uniform(0 if convex else -1, 1, DIMENSION)
        values[0] = 1.0
        return self.smoothness * (basis * values) @ basis.T

    def gradient(self, n: int, w: np.ndarray) -> np.ndarray:
        return self.hessian[n] @ (w - self.centre[n])

    def gradients(self) -> np.ndarray:
        return np.stack([self.gradient(n, self.start) for n in range(self.clients)])

    @property
    def full_gradient(self) -> np.ndarray:
        return self.gradients().mean(0)

    @property
    def global_variance(self) -> float:
        return float(((self.gradients() - self.full_gradient) ** 2).sum(1).mean())

    def update(self, n: int, rate: float, steps: int) -> tuple[np.ndarray, np.ndarray, list[float]]:
        """Mean and covariance of g_n, and E|w^(i) - w_t|^2 for i = 0 ... E."""
        w, spread = self.start.copy(), np.zeros((DIMENSION, DIMENSION))
        turn = np.eye(DIMENSION) - rate * self.hessian[n]
        drift = [0.0]
        for _ in range(steps):
            w = w - rate * self.gradient(n, w)
            spread = turn @ spread @ turn.T + rate**2 * self.covariance[n]
            drift.append(float(((w - self.start) ** 2).sum() + np.trace(spread)))
        return self.start - w, spread, drift

    def problem(self, rate: float, server: float, steps: int) -> Problem:
        return Problem(
            rate, server, steps, self.clients, self.smoothness, self.noise, self.global_variance
        )

    def change(self, updates: list[tuple[np.ndarray, np.ndarray]], server: float) -> float:
        """E[F(w_{t+1})] - F(w_t) when these (mean, covariance) updates are delivered."""
        if not updates:
            return 0.0
        mean = np.mean([m for m, _ in updates], axis=0)
        spread = np.sum([c for _, c in updates], axis=0) / len(updates) ** 2
        hessian = self.hessian.mean(0)
        second = mean @ hessian @ mean + np.trace(hessian @ spread)
        return float(-server * self.full_gradient @ mean + server**2 / 2 * second)

    def deviation(
        self, updates: list[tuple[np.ndarray, np.ndarray]], chosen: tuple[int, ...]
    ) -> float:
        """E|gbar - g|^2; with nobody delivered g = 0."""
        weight = np.full(self.clients, 1 / self.clients)
        for n in chosen:
            weight[n] -= 1 / len(chosen)
        mean = sum(weight[n] * updates[n][0] for n in range(self.clients))
        noise = sum(weight[n] ** 2 * np.trace(updates[n][1]) for n in range(self.clients))
        return float(mean @ mean + noise)


def subsets(clients: int) -> list[tuple[int, ...]]:
    return [c for size in range(clients + 1) for c in combinations(range(clients), size)]


scenarios = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "clients": st.integers(1, 5),
        "smoothness": st.sampled_from([1e-3, 0.02, 0.05, 0.3, 1.0, 30.0]),
        "noise": st.sampled_from([0.0, 0.01, 1.0, 100.0]),
        "offset": st.sampled_from([0.0, 0.1, 1.0, 100.0]),
        "convex": st.booleans(),
        "steps": st.integers(1, 6),
        "share": st.sampled_from([0.01, 0.3, 0.8, 1.0]),  # of the largest allowed local rate
        "server": st.sampled_from([0.1, 1.0, 3.0]),
    }
)


@settings(max_examples=300, deadline=None)
@given(scenarios)
def test_the_bound_holds_for_every_delivered_subset(case: dict[str, float]) -> None:
    quadratics = Quadratics(
        np.random.default_rng(int(case["seed"])), int(case["clients"]), case["smoothness"],
        case["noise"], bool(case["convex"]), case["offset"],
    )  # fmt: skip
    steps, server = int(case["steps"]), case["server"]
    rate = case["share"] * rate_limit(steps, quadratics.smoothness)
    problem = quadratics.problem(rate, server, steps)
    full = quadratics.full_gradient
    squared = float(full @ full)
    updates = [quadratics.update(n, rate, steps)[:2] for n in range(quadratics.clients)]
    for chosen in subsets(quadratics.clients):
        change = quadratics.change([updates[n] for n in chosen], server)
        deviation = quadratics.deviation(updates, chosen)
        for constants in (paper_constants(problem), rescaled_constants(problem)):
            bound = constants.bound(squared, deviation)
            scale = abs(change) + abs(constants.c1) * squared + constants.c2 * deviation
            assert change <= bound + 1e-9 * (scale + constants.c3)  # rounding of float64 sums


@settings(max_examples=200, deadline=None)
@given(scenarios)
def test_lemma_1_bounds_the_drift_at_every_step(case: dict[str, float]) -> None:
    quadratics = Quadratics(
        np.random.default_rng(int(case["seed"])), 2, case["smoothness"], case["noise"],
        bool(case["convex"]), case["offset"],
    )  # fmt: skip
    steps = int(case["steps"])
    rate = case["share"] * rate_limit(steps, quadratics.smoothness)
    problem = quadratics.problem(rate, 1.0, steps)
    for n in range(2):
        gradient = quadratics.gradient(n, quadratics.start)
        limit = drift_bound(problem, float(gradient @ gradient))
        assert max(quadratics.update(n, rate, steps)[2]) <= limit * (1 + 1e-12)


def test_lemma_2_is_an_equality_when_sigma_g_is_exact() -> None:
    quadratics = Quadratics(np.random.default_rng(0), 6, 2.0, 1.0, convex=False)
    full = quadratics.full_gradient
    mean = float((quadratics.gradients() ** 2).sum(1).mean())
    assert mean == pytest.approx(
        mean_gradient_bound(float(full @ full), quadratics.global_variance), rel=1e-12
    )


def test_equality_at_rest() -> None:
    """All clients at a common optimum, no noise: nothing moves, and the bound is zero too."""
    quadratics = Quadratics(np.random.default_rng(0), 4, 1.0, 0.0, convex=True, offset=0.0)
    quadratics.start = np.zeros(DIMENSION)
    problem = quadratics.problem(0.1, 1.0, 3)
    updates = [quadratics.update(n, 0.1, 3)[:2] for n in range(4)]
    for chosen in subsets(4):
        assert quadratics.change([updates[n] for n in chosen], 1.0) == 0
        assert paper_constants(problem).bound(0.0, quadratics.deviation(updates, chosen)) == 0


def test_smoothness_step_is_an_equality_for_equal_curvature() -> None:
    """With every Hessian L I the proof's first line (with the right sign) loses nothing."""
    quadratics = Quadratics(np.random.default_rng(3), 3, 0.7, 0.0, convex=True)
    quadratics.hessian[:] = 0.7 * np.eye(DIMENSION)
    updates = [quadratics.update(n, 0.2, 2)[:2] for n in range(3)]
    mean = np.mean([m for m, _ in updates], axis=0)
    first_line = -quadratics.full_gradient @ mean + 0.7 / 2 * mean @ mean
    assert quadratics.change(updates, 1.0) == pytest.approx(first_line, rel=1e-12)


def test_the_printed_split_of_term_a_is_not_an_inequality() -> None:
    """E|X + Y + Z|^2 <= 2 E|X|^2 + 2 E|Z|^2 + E|Y|^2 fails: Y and Z share their noise.

    Three clients, two deliver, only those two are noisy, one step, all gradients zero: X = 0,
    Y + Z = minus the mean noise of the delivered. docs/theory.md avoids the split.
    """
    clients, variance, rate = 3, 1.0, 0.1
    noise = rate**2 * variance
    left = noise / 2  # variance of the mean of two
    z = 2 * (1 / 3 - 1 / 2) ** 2 * noise
    y = 2 / clients**2 * noise
    assert left > 2 * z + y


@given(
    local=st.floats(1e-4, 0.16), steps=st.integers(1, 3), smooth=st.floats(0, 1e3),
    server=st.floats(0.01, 3),
)  # fmt: skip
def test_printed_c1_is_positive_for_small_local_work(
    local: float, steps: int, smooth: float, server: float
) -> None:
    """Below eta_l E = 1/2 the printed bound never promises a decrease."""
    problem = Problem(local, server, steps, 10, smooth, 1.0, 1.0)
    assert local * steps < 0.5
    assert not paper_constants(problem).promises_descent


def test_constants_by_hand() -> None:
    problem = Problem(0.1, 2.0, 3, 5, 0.5, local_variance=7.0, global_variance=11.0)
    shared = 2 * 2 * 0.7**2 + 12 * 4 * 0.09 * 0.5 + 24 * 2 * 0.0081 * 0.25
    noise = 2 * 0.01 * 27 / 10 + 3 * 4 * 0.01 * 3 * 0.5 + 6 * 2 * 1e-4 * 27 * 0.25
    found = paper_constants(problem)
    assert found.c1 == pytest.approx(shared - 1)
    assert found.c2 == pytest.approx(2 * (1 + 2 * 0.5))
    assert found.c3 == pytest.approx(shared * 11 + noise * 7)


def test_rescaled_constants_promise_descent_for_small_rates() -> None:
    problem = Problem(0.01, 1.0, 3, 10, 1.0, 0.0, 0.0)
    assert rescaled_constants(problem).promises_descent
    assert not paper_constants(problem).promises_descent
    assert isinstance(rescaled_constants(problem), Constants)
