"""The bound along a real run: L, the variances, the three terms and what F really did.

F is what the clients minimise: the expected training-mode mini-batch loss (paper: eq. 1),
averaged over the clients (paper: eq. 2). Its gradient (paper: eq. 15) is the mean of stochastic
gradients (paper: eq. 20), here over a few draws per client.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedfade.learning.averaging import ServerState
from fedfade.learning.federation import Federation
from fedfade.learning.round import Deliver, RoundResult, play_rounds
from fedfade.learning.theorem import Problem, paper_constants, rate_limit, rescaled_constants
from fedfade.randomness import numpy_generator


@dataclass(frozen=True)
class BoundRow:
    """One round, measured."""

    round: int
    delivered: int
    smoothness: float  # L
    local_deviation: float  # sigma_l
    global_deviation: float  # sigma_g
    gradient_squared: float  # |grad F(w_t)|^2
    deviation: float  # |gbar - g|^2, one sample of the expectation
    rate_allowed: bool  # eta_l <= 1 / (sqrt(8) E L)
    first: float  # C1 |grad F|^2
    second: float  # C2 |gbar - g|^2
    third: float  # C3
    bound: float
    rescaled: float  # the bound with `rescaled_constants`
    measured: float  # F(w_{t+1}) - F(w_t)


@dataclass(frozen=True)
class _Slopes:
    """Stochastic gradients at one model per client."""

    mean: Tensor  # [client, D]
    variance: Tensor  # [client] of a single draw
    loss: float


def bound_along_run(
    federation: Federation,
    seed: int,
    rounds: int,
    deliver: Deliver | int | None = None,
    draws: int = 8,
) -> Iterator[BoundRow]:
    """Train one run and compare the bound with what happened, round by round."""
    for done in play_rounds(federation, [seed], rounds, deliver):
        yield _measure(federation, seed, done, draws)


def _measure(federation: Federation, seed: int, done: RoundResult, draws: int) -> BoundRow:
    config, number, state = federation.config, done.sent.number, done.sent.before
    updates = done.sent.updates.parameters[0]  # [client, D]
    samples = _samples(federation, seed, number, draws)  # [client, draw, sample]
    before, after = (s.parameters.expand(len(updates), -1) for s in (state, done.after))
    models = before, before - updates, after  # w_t, every w_n^(E), w_{t+1}
    here, there, then = (_slopes(federation, each, state, samples) for each in models)
    gradient_squared, spread = _moments(here, draws)
    change = (there.mean - here.mean).norm(dim=1)
    problem = Problem(
        local_rate=config.local_rate,
        global_rate=config.global_rate,
        steps=federation.mini_batches([seed], number).shape[2],
        clients=config.clients,
        smoothness=float((change / updates.norm(dim=1).clamp_min(1e-12)).max()),
        local_variance=float(here.variance.max()),
        global_variance=spread,
    )
    arrived = done.arrived[0]
    mean = updates[arrived].sum(0) / arrived.sum().clamp_min(1)  # of nobody: 0
    deviation = float((updates.mean(0) - mean).square().sum())
    constants = paper_constants(problem)
    return BoundRow(
        round=number,
        delivered=int(arrived.sum()),
        smoothness=problem.smoothness,
        local_deviation=problem.local_variance**0.5,
        global_deviation=spread**0.5,
        gradient_squared=gradient_squared,
        deviation=deviation,
        rate_allowed=config.local_rate <= rate_limit(problem.steps, problem.smoothness),
        first=constants.c1 * gradient_squared,
        second=constants.c2 * deviation,
        third=constants.c3,
        bound=constants.bound(gradient_squared, deviation),
        rescaled=rescaled_constants(problem).bound(gradient_squared, deviation),
        measured=then.loss - here.loss,
    )


def _samples(federation: Federation, seed: int, round: int, draws: int) -> Tensor:
    """Mini-batches for the estimates, apart from those trained on: [client, draw, sample]."""
    parts = federation.partition(seed)
    size = min([federation.config.batch_size, *(len(part) for part in parts)])
    rows = []
    for client, part in enumerate(parts):
        generator = numpy_generator(seed, "bound", round, client)
        rows.append([part[generator.choice(len(part), size, False)] for _ in range(draws)])
    return torch.from_numpy(np.array(rows)).to(federation.device)


def _slopes(federation: Federation, models: Tensor, state: ServerState, samples: Tensor) -> _Slopes:
    """Every client's mean gradient at its own row of `models`, and how much draws scatter."""
    clients, draws = samples.shape[:2]
    buffers = state.buffers.expand(clients, -1).contiguous()
    rows = replace(state, parameters=models.contiguous(), buffers=buffers)
    found = federation.gradients(rows, samples)  # parameters [client, draw, D]
    mean = found.parameters.mean(1)
    scatter = (found.parameters - mean[:, None]).square().sum((1, 2))
    return _Slopes(mean, scatter / max(draws - 1, 1), float(found.loss.mean()))


def _moments(slopes: _Slopes, draws: int) -> tuple[float, float]:
    """|grad F|^2 and sigma_g^2, both freed of the estimates' own variance."""
    clients = len(slopes.mean)
    noise = float(slopes.variance.mean()) / draws  # of one client's mean gradient
    overall = slopes.mean.mean(0)
    squared = float(overall.square().sum()) - noise / clients
    spread = float((slopes.mean - overall).square().sum(1).mean()) - noise * (1 - 1 / clients)
    return max(squared, 0.0), max(spread, 0.0)
