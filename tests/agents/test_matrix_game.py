"""The matrix game of QTRAN and QPLEX (Son et al. 2019, Wang et al. 2021), which is not monotonic.

Both agents' first action pays 8, one alone costs 12, the rest is worth 0. What an agent's first
action is worth changes its sign with what the other does, so no monotonic mixture can say it, and
under even exploration the first action looks bad to both. Duplex dueling can say it all.
"""

from typing import NamedTuple

import pytest
import torch

from fedfade.agents.learner import Learner
from fedfade.agents.transitions import Batch
from fedfade.config import QmixConfig

PAYOFF = torch.tensor([[8.0, -12.0, -12.0], [-12.0, 0.0, 0.0], [-12.0, 0.0, 0.0]])


def transitions(actions: torch.Tensor) -> Batch:
    """Joint actions [run, batch] from 0 to 8 in a game of one step."""
    runs, size = actions.shape
    choice = torch.stack([actions // 3, actions % 3], 1).flatten(0, 1)  # [run x agent, batch]
    seen, state = torch.ones(2 * runs, size, 1), torch.ones(runs, size, 1)
    none = torch.zeros(runs, size)
    return Batch(seen, state, choice, PAYOFF.flatten()[actions], seen, state, none)


class Learned(NamedTuple):
    """After uniform exploration, of runs that liked their first action from the start, and of
    others that did not."""

    liking: tuple[torch.Tensor, torch.Tensor]  # what the greedy agents get [run], Q_tot [run, 9]
    neutral: tuple[torch.Tensor, torch.Tensor]


def learned(mixer: str, liking: int = 10, neutral: int = 20) -> Learned:
    """So many runs of each kind, all in one batch, each kind with seeds and actions of its own."""
    sizes, runs = (liking, neutral), liking + neutral
    config = QmixConfig(
        mixer=mixer, hidden=[32], hypernet_width=64, agent_rate=2e-3, mixer_rate=1e-3
    )
    seeds = [*range(liking), *range(neutral)]
    learner = Learner(config, 2, width=1, state_width=1, actions=3, seeds=seeds)
    with torch.no_grad():
        learner.agents.biases[-1][: 2 * liking, ..., 0] += 3.0
    drawn = [torch.Generator().manual_seed(0) for _ in sizes]
    for _ in range(1500):
        actions = [
            torch.randint(9, (n, 16), generator=g) for n, g in zip(sizes, drawn, strict=True)
        ]
        learner.update(transitions(torch.cat(actions)))
    batch = transitions(torch.arange(9).expand(runs, 9))
    values = learner.agents(batch.observation)
    q = values.gather(-1, batch.choice[..., None])[..., 0]
    total = learner.mixer(q, batch.state, values, batch.choice)[:, 0].detach()
    a, b = values[:, 0].argmax(-1).view(runs, 2).T
    return Learned(*zip(PAYOFF[a, b].split(sizes), total.split(sizes), strict=True))


@pytest.fixture(scope="module")
def qplex() -> Learned:
    return learned("qplex")


@pytest.fixture(scope="module")
def qmix() -> Learned:
    return learned("qmix")


def worst(total: torch.Tensor) -> torch.Tensor:
    """Largest error among the nine joint actions: [run]."""
    return (total - PAYOFF.flatten()).abs().amax(-1)


def test_duplex_dueling_can_say_it_and_a_monotonic_mixture_cannot(
    qplex: Learned, qmix: Learned
) -> None:
    """From where the best joint action is the greedy one. A monotonic Q_tot that has 8 for it must
    be wrong by 6 somewhere: where the other does not, its first action costs 12."""
    payoff, total = qplex.liking
    assert bool((payoff == 8.0).all())
    assert float(worst(total).median()) < 1.0  # of a range of 20, still under mini-batch noise
    _, total = qmix.liking
    assert bool((worst(total) > 5.99).all())


def test_duplex_dueling_finds_it_from_uniform_exploration(qplex: Learned, qmix: Learned) -> None:
    """Agents have to pass a tie of their actions, where no lambda helps; about half of them do.
    Under a monotonic mixture it takes initial weights that happen to like the first action."""
    assert int((qplex.neutral[0] == 8.0).sum()) >= 5
    assert int((qmix.neutral[0] == 8.0).sum()) <= 2
