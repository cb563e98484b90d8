"""The two-step game of the QMIX paper (Rashid et al. 2018, section 5).

The first agent's first action leads to one of two matrix games; one pays 7 whatever is done, the
other 0, 1, 1 or 8. A sum of individual values cannot express the second and settles for 7; a
monotonic mixture can and finds 8.
"""

import torch

from fedfade.agents.learner import Learner
from fedfade.agents.transitions import Batch
from fedfade.config import QmixConfig

GAMMA = 0.99
PAYOFF = torch.tensor([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])  # [game, a, b]


def all_transitions() -> Batch:
    """Each joint action in each of the three states once: uniform exploration, no noise."""
    state, following, choice, reward, discount = [], [], [], [], []
    for place in range(3):
        for a in range(2):
            for b in range(2):
                state.append(place)
                following.append(1 + a if place == 0 else place)
                choice.append((a, b))
                reward.append(0.0 if place == 0 else float(PAYOFF[place - 1, a, b]))
                discount.append(GAMMA if place == 0 else 0.0)
    here, there = torch.eye(3)[state], torch.eye(3)[following]
    return Batch(
        observation=here.expand(2, -1, -1).contiguous(),
        state=here[None],
        choice=torch.tensor(choice).T.contiguous(),
        reward=torch.tensor(reward)[None],
        next_observation=there.expand(2, -1, -1).contiguous(),
        next_state=there[None],
        discount=torch.tensor(discount)[None],
    )


def learned_returns(mixer: str, seeds: range, updates: int = 1500) -> list[float]:
    """What the greedy agents of every seed get after learning from all transitions again and again.

    All seeds learn in one batch, each as it does alone (test_side_by_side.py).
    """
    config = QmixConfig(
        mixer=mixer,
        hidden=[32],
        mixing_width=8,
        hypernet_width=16,
        agent_rate=1e-3,
        mixer_rate=1e-3,
    )
    runs = len(seeds)
    learner = Learner(config, agents=2, width=3, state_width=3, actions=2, seeds=seeds)
    given = [part for part in all_transitions() if part is not None]
    batch = Batch(*(part.repeat(runs, *[1] * (part.ndim - 1)) for part in given))
    for update in range(updates):
        learner.update(batch)
        if update % 20 == 0:
            learner.copy_target()
    greedy = learner.agents(torch.eye(3).expand(2 * runs, -1, -1)).argmax(
        -1
    )  # [run x agent, state]
    first, second = greedy.view(runs, 2, 3).unbind(1)  # [run, state]
    game, run = first[:, 0], torch.arange(runs)
    return PAYOFF[game, first[run, 1 + game], second[run, 1 + game]].tolist()


def test_qmix_finds_the_eight() -> None:
    assert learned_returns("qmix", range(20)) == [8.0] * 20


def test_a_sum_of_values_settles_for_seven() -> None:
    assert learned_returns("vdn", range(3)) == [7.0] * 3
