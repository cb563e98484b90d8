"""QMIX as the paper trains it (paper: algorithm 1), in one file. Read this first.

One training seed, one small network per agent, autograd and PyTorch's optimiser. `trainer.py` and
the modules it uses do the same, for many seeds at once and much faster; the tests hold them to
this file. Options beyond the paper's QMIX (other mixers, shared networks, n-step returns) are
only there.

    python -m fedfade.agents.reference
"""

import copy
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from fedfade import uplink
from fedfade.config import Config, QmixConfig, load_config
from fedfade.randomness import fold, integers, stream, uniform


class Transition(NamedTuple):
    """One slot of one episode; in an update each field has the batch in front."""

    observation: Tensor  # [agent, width]
    state: Tensor  # [width]
    choice: Tensor  # [agent] int64
    reward: Tensor  # []
    next_observation: Tensor  # [agent, width]
    next_state: Tensor  # [width]
    discount: Tensor  # [] gamma, or 0 in the last slot: nothing is delivered after the deadline


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Mixer(nn.Module):
    """Q_tot from Q_1 ... Q_N by two layers whose weights come from the state (paper: eq. 33).

    No weight is negative, so Q_tot never falls when an agent's value rises: the best joint action
    is the best action of each agent.
    """

    def __init__(self, agents: int, state: int, config: QmixConfig) -> None:
        super().__init__()
        width, hypernet = config.mixing_width, config.hypernet_width
        self.first_weight = perceptron(state, hypernet, agents * width)
        self.first_bias = nn.Linear(state, width)
        self.second_weight = perceptron(state, hypernet, width)
        self.second_bias = perceptron(state, width, 1)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Values q [batch, agent] of the actions taken, state [batch, width] -> [batch]."""
        first = self.first_weight(state).abs().unflatten(-1, (q.shape[-1], -1))
        hidden = F.elu(torch.einsum("ba,baw->bw", q, first) + self.first_bias(state))
        total = (hidden * self.second_weight(state).abs()).sum(-1)
        return total + self.second_bias(state).squeeze(-1)  # type: ignore[no-any-return]


class Networks(nn.Module):
    """Everything that is learned: a network of its own for each agent, and the mixer."""

    def __init__(self, scenario: uplink.Scenario, config: QmixConfig) -> None:
        super().__init__()
        sizes = [uplink.observation_width(scenario), *config.hidden, scenario.actions]
        self.agents = nn.ModuleList(perceptron(*sizes) for _ in range(scenario.clients))
        self.mixer = Mixer(scenario.clients, uplink.state_width(scenario), config)

    def values(self, observation: Tensor) -> Tensor:
        """Q_n(z_n, .) of every agent: [batch, agent, width] -> [batch, agent, action]."""
        by_agent = zip(self.agents, observation.unbind(1), strict=True)
        return torch.stack([network(seen) for network, seen in by_agent], dim=1)


class ReferenceLearner:
    """Online networks, target networks, and how the online ones act and learn."""

    def __init__(self, scenario: uplink.Scenario, config: QmixConfig, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.online = Networks(scenario, config)
        self.target = copy.deepcopy(self.online)
        agents = {"params": self.online.agents.parameters(), "lr": config.agent_rate}
        mixer = {"params": self.online.mixer.parameters(), "lr": config.mixer_rate}
        self.optimiser = torch.optim.RMSprop([agents, mixer], alpha=0.99, eps=1e-8)

    @torch.no_grad()
    def act(self, observation: Tensor, epsilon: float, key: Tensor) -> Tensor:
        """The best action of each agent or, with probability epsilon, any: [episode, agent]."""
        values = self.online.values(observation)  # [episode, agent, action]
        shape = (values.shape[1], values.shape[0])  # as the fast trainer draws them
        anything = integers(fold(key, 1), values.shape[2], shape).T
        return torch.where(epsilon > uniform(fold(key, 0), shape).T, anything, values.argmax(-1))

    @torch.no_grad()
    def target_value(self, batch: Transition) -> Tensor:
        """y = r + gamma Q_tot(z', a', s'; target) (paper: eq. 35), a' chosen online: [batch]."""
        best = self.online.values(batch.next_observation).argmax(-1, keepdim=True)
        q = self.target.values(batch.next_observation).gather(-1, best).squeeze(-1)
        following: Tensor = self.target.mixer(q, batch.next_state)
        return batch.reward + batch.discount * following

    def update(self, batch: Transition) -> float:
        """One step on the mean squared TD error (paper: eq. 34), which is returned."""
        taken = self.online.values(batch.observation).gather(-1, batch.choice[..., None])
        total = self.online.mixer(taken.squeeze(-1), batch.state)
        loss = F.mse_loss(total, self.target_value(batch))
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.item()


def look(
    scenario: uplink.Scenario, round_: uplink.Round, progress: uplink.Progress, slot: int
) -> tuple[Tensor, Tensor]:
    """What the agents [episode, agent, width] and the mixer [episode, width] see in a slot."""
    seen = uplink.observe(scenario, round_, progress, slot)
    return seen, uplink.global_state(scenario, round_, progress, slot)


def train_reference(
    config: Config, learner: ReferenceLearner | None = None
) -> Iterator[tuple[float, float, list[float]]]:
    """Train for `qmix.episodes`; yields mean reward and uploads of an episode, and the losses,
    of each batch of `qmix.parallel_episodes`, which are episodes of the same federated round."""
    qmix, seed, episodes = config.qmix, config.run.seed, config.qmix.parallel_episodes
    rounds = uplink.Rounds(config, uplink.gradient_source(config), episodes, [seed])
    scenario = rounds.scenario
    learner = learner or ReferenceLearner(scenario, qmix, seed)
    memory: deque[Transition] = deque(maxlen=-(-qmix.replay_size // episodes) * episodes)
    stored = updates = 0
    for batch in range(-(-qmix.episodes // episodes)):
        round_ = rounds.round(batch)  # broadcast, local training, channel
        inner = uplink.normalised_inner(round_.inner)
        decayed = min(1.0, batch * episodes / qmix.epsilon_episodes)
        epsilon = qmix.epsilon_start + (qmix.epsilon_end - qmix.epsilon_start) * decayed
        exploration = fold(stream(seed, "exploration"), batch)
        progress = uplink.start_round(scenario, episodes)
        seen, state = look(scenario, round_, progress, 0)
        returns, losses = torch.zeros(episodes), []
        for slot in range(scenario.slots):
            # Act and send; the uplink silences clients that have finished.
            choice = learner.act(seen, epsilon, fold(exploration, slot))
            air = uplink.slot_air(scenario, round_, slot)
            action = uplink.decode_action(scenario, choice, slot)
            after, result = uplink.play_slot(scenario, progress, air, action)
            reward = uplink.slot_reward(scenario, inner, progress, after, result)  # [episode]
            returns += reward
            # Store. The last slot has no successor, so what stands in for it has no weight.
            last = slot == scenario.slots - 1
            next_seen, next_state = look(scenario, round_, after, slot if last else slot + 1)
            discount = torch.full_like(reward, 0.0 if last else qmix.gamma)
            fields = (seen, state, choice, reward, next_seen, next_state, discount)
            memory.extend(map(Transition, *fields))
            progress, seen, state = after, next_seen, next_state
            # Learn: so many updates and target copies are due after so many transitions.
            before, stored = stored, stored + episodes
            due = stored // qmix.update_every - before // qmix.update_every
            for _ in range(due if stored >= qmix.batch_size else 0):
                key = fold(stream(seed, "replay"), updates)
                drawn = integers(key, len(memory), (qmix.batch_size,)).tolist()
                sample = zip(*(memory[place] for place in drawn), strict=True)
                losses.append(learner.update(Transition(*map(torch.stack, sample))))
                updates += 1
            if stored // qmix.target_every > before // qmix.target_every:
                learner.target.load_state_dict(learner.online.state_dict())
        rounds.deliver(batch, progress.finished[None])  # whose updates are averaged
        yield returns.mean().item(), progress.finished.sum(-1).float().mean().item(), losses


if __name__ == "__main__":
    easy = ["radio.slots=12", "learning.payload_bits=294000", "qmix.epsilon_episodes=300"]
    small_cell = load_config("small-cell", [*easy, "qmix.agent_rate=0.002", "qmix.episodes=500"])
    for number, (reward, uploads, _) in enumerate(train_reference(small_cell)):
        typer.echo(f"batch {number}: reward {reward:.2f}, uploads {uploads:.2f} of 4")
