"""The one-step convergence bound of the paper (Theorem 1) as numbers.

    E[F(w_{t+1})] - F(w_t) <= C1 |grad F(w_t)|^2 + C2 E|gbar - g|^2 + C3       (paper: eq. 25)

gbar is the average of all clients' updates (paper: eq. 17), g that of the delivered ones
(paper: eq. 16). docs/explanation/theory.md proves the bound again, says where the printed proof
slips, and derives `rescaled_constants`.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What the bound knows about a federated problem."""

    local_rate: float  # eta_l
    global_rate: float  # eta_g
    steps: int  # E, local mini-batch steps
    clients: int  # N
    smoothness: float  # L of Assumption 1 (paper: eq. 19)
    local_variance: float  # sigma_l^2 of Assumption 2 (paper: eq. 21)
    global_variance: float  # sigma_g^2 of Assumption 3 (paper: eq. 22)


@dataclass(frozen=True)
class Constants:
    """C1, C2, C3 of Theorem 1."""

    c1: float
    c2: float
    c3: float

    def bound(self, gradient_squared: float, deviation: float) -> float:
        """The right-hand side (paper: eq. 25)."""
        return self.c1 * gradient_squared + self.c2 * deviation + self.c3


def rate_limit(steps: int, smoothness: float) -> float:
    """Largest local rate Lemma 1 and Theorem 1 allow: 1 / (sqrt(8) E L)."""
    return math.inf if smoothness == 0 else 1.0 / (math.sqrt(8.0) * steps * smoothness)


def drift_bound(problem: Problem, gradient_squared: float) -> float:
    """Lemma 1 (paper: eq. 23): bounds E|w_n^(i) - w_t|^2 for i = 0 ... E by |grad F_n(w_t)|^2,
    for which the paper prints |F_n|^2."""
    rate, steps = problem.local_rate, problem.steps
    return 12 * rate**2 * steps**2 * gradient_squared + 3 * rate**2 * steps * problem.local_variance


def mean_gradient_bound(gradient_squared: float, global_variance: float) -> float:
    """Lemma 2 (paper: eq. 24): bounds the clients' mean |grad F_n|^2 by that of F."""
    return gradient_squared + global_variance


def paper_constants(problem: Problem) -> Constants:
    """C1, C2, C3 as printed below the bound (paper: eq. 25)."""
    local, server, steps = problem.local_rate, problem.global_rate, problem.steps
    smooth = problem.smoothness
    shared = (
        2 * server * (1 - local * steps) ** 2
        + 12 * server**2 * local**2 * steps**2 * smooth
        + 24 * server * local**4 * steps**4 * smooth**2
    )
    noise = (
        server * local**2 * steps**3 / (2 * problem.clients)
        + 3 * server**2 * local**2 * steps * smooth
        + 6 * server * local**4 * steps**3 * smooth**2
    )
    c3 = shared * problem.global_variance + noise * problem.local_variance
    return Constants(c1=shared - server / 2, c2=server * (1 + server * smooth), c3=c3)


def rescaled_constants(problem: Problem) -> Constants:
    """The same bound with updates compared to eta_l E grad F instead of grad F.

    The paper's C1 is positive whenever eta_l E < 1/2, because it measures an update of size
    eta_l E |grad F| against |grad F| itself. Measured on its own scale, C1 is negative as soon as
    eta_l E L is small (derivation in docs/explanation/theory.md).
    """
    local, server, steps = problem.local_rate, problem.global_rate, problem.steps
    reach, smooth = local * steps, problem.smoothness
    drift = server * reach * smooth**2 + smooth * server**2
    noise = 12 * reach**2 * problem.global_variance + 3 * local**2 * steps * problem.local_variance
    c1 = 12 * reach**2 * drift - server * reach / 2
    return Constants(c1, c2=server / reach + smooth * server**2, c3=drift * noise)
