"""MAPPO (Yu et al. 2022): agents learn by policy gradients, a central critic says what a state is
worth.

The agents are the networks of Q-learning; what they answer are logits, in training an action is
drawn from them, and executed is the largest. They play a batch of episodes into an `EpisodeMemory`;
from it they learn in a few passes, no farther away from what played it than PPO's clip allows. The
critic sees the state, in training alone.

Runs, one per seed, lie side by side and share nothing: the loss is a sum over runs. Nothing waits
for the device, so an update can be recorded.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.agents.kept import KeptAgents
from fedfade.agents.networks import Generators, Tensors, stacked_layers, through_layers
from fedfade.agents.optimisers import Flat, adam_step, clip
from fedfade.agents.sets import SetCritic, SetNetworks, make_agents
from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused
from fedfade.randomness import fold, streams, torch_generator, uniform

EPSILON = 1e-5  # of Adam
MEMORY = 0.99  # a batch: how slowly the running mean of returns forgets


class EpisodeMemory:
    """A batch of episodes of every run: what was seen, done and earned at each decision.

    There is room for one look more than there are decisions, which nobody learns from.
    """

    def __init__(
        self,
        decisions: int,
        episodes: int,
        agents: int,
        width: int,
        state_width: int,
        runs: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.decisions, self.episodes = decisions, episodes
        by_agent, by_run = (runs * agents, episodes), (runs, episodes)
        self.observation = torch.zeros(decisions + 1, *by_agent, width, device=device)
        self.state = torch.zeros(decisions + 1, *by_run, state_width, device=device)
        self.active = torch.zeros(decisions + 1, *by_agent, device=device)  # 0 once finished
        self.choice = torch.zeros(decisions, *by_agent, dtype=torch.int64, device=device)
        self.lesson = torch.zeros_like(self.choice)  # what the teacher would have done
        self.reward = torch.zeros(decisions, *by_run, device=device)
        self.log_prob = torch.zeros(decisions, *by_agent, device=device)
        self.advantage = torch.zeros(runs, decisions, episodes, device=device)
        self.target = torch.zeros_like(self.advantage)  # of the critic
        self._now = torch.zeros(1, dtype=torch.int64, device=device)

    def see(self, decision: Tensor, observation: Tensor, state: Tensor, finished: Tensor) -> None:
        """What is observed before decision number `decision` [1]: [run x agent, episode, width],
        [run, episode, width]; and who has finished: [run x agent, episode]."""
        self._now.copy_(decision)
        self.observation.index_copy_(0, decision, observation[None])
        self.state.index_copy_(0, decision, state[None])
        self.active.index_copy_(0, decision, (~finished)[None].to(self.active.dtype))

    def act(self, choice: Tensor, reward: Tensor, lesson: Tensor | None = None) -> None:
        """What was done [run x agent, episode] and what all earned by it [run, episode]; what the
        teacher, if there is one, would have done."""
        self.choice.index_copy_(0, self._now, choice[None])
        self.reward.index_copy_(0, self._now, reward[None])
        if lesson is not None:
            self.lesson.index_copy_(0, self._now, lesson[None])

    def take(self, run: int) -> dict[str, Tensor]:
        """Nothing is remembered from batch to batch."""
        return {}

    def put(self, run: int, found: dict[str, Tensor]) -> None:
        """The reverse of `take`."""

    def tensors(self) -> list[Tensor]:
        """All that playing and learning write."""
        return [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]


class Sample(NamedTuple):
    """Some episodes of a batch, all their decisions in a row."""

    observation: Tensor  # [run x agent, sample, width]
    state: Tensor  # [run, sample, width]
    choice: Tensor  # [run x agent, sample] int64
    lesson: Tensor  # [run x agent, sample] int64
    log_prob: Tensor  # [run x agent, sample]
    active: Tensor  # [run x agent, sample]
    advantage: Tensor  # [run, sample]
    target: Tensor  # [run, sample]


class Critic(nn.Module):
    """What a state is worth, in standard deviations of returns: [run, batch, width] to [run,
    batch]. Of a longer state it reads the beginning."""

    def __init__(self, width: int, hidden: Sequence[int], generators: Generators) -> None:
        super().__init__()
        self.width = width
        self.layers = stacked_layers(generators, width, *hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        return through_layers(self.layers, state[..., : self.width])[..., 0]


class MappoLearner:
    """Agents and critic of every run, and how they learn; the same interface as `Learner`.

    With a configuration of its own a run may have another discount.
    """

    def __init__(
        self,
        config: QmixConfig | Sequence[QmixConfig],
        agents: int,
        width: int,
        state_width: int,
        actions: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        preference: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        configs = [config] * len(seeds) if isinstance(config, QmixConfig) else list(config)
        self.config, self.runs = (config := configs[0]), len(seeds)
        gamma = torch.tensor([own.gamma for own in configs], device=device)
        self._gamma = gamma[:, None, None]
        drawn = [torch_generator(seed, "agent networks") for seed in seeds]
        self.agents = make_agents(config, agents, width, actions, drawn, preference)
        # A state in the order of rank ends in who has which, which is no business of the critic's.
        state_width -= agents if config.state == "order" else 0
        drawn = [torch_generator(seed, "critic") for seed in seeds]
        hidden = config.mappo.value_hidden
        self.critic: Critic | SetCritic
        if isinstance(self.agents, SetNetworks):
            self.critic = SetCritic(self.agents, hidden, drawn)
        else:
            self.critic = Critic(state_width, hidden, drawn)
        self.agents.to(device), self.critic.to(device)
        self._flat = [Flat(self.agents, self.runs), Flat(self.critic, self.runs)]
        self._longest = torch.tensor(config.mappo.max_grad_norm, device=device)
        self.kept = KeptAgents(configs, self.agents, self._flat[0])
        self._mean = [torch.zeros_like(flat.values) for flat in self._flat]
        self._square = [torch.zeros_like(flat.values) for flat in self._flat]
        self.updates = torch.zeros((), dtype=torch.int64, device=device)  # steps ever taken
        # Of all returns, the older the less: how many batches, their mean, their mean square.
        self._returns = torch.zeros(self.runs, 3, device=device)
        self._shuffle = streams(seeds, "minibatches", device=device)  # [run]
        self._room = cache(lambda size: (self.agents.make_room(size), self.agents.make_room(size)))
        self._side = SideStream(self.updates.device)

    def resize(self, *size: int) -> None:
        """From now on so many clients, numbers in an observation, and actions."""
        assert isinstance(self.agents, SetNetworks)
        self.agents.resize(*size)

    def update(
        self, memory: EpisodeMemory, done: Tensor, lessons: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Learn from a batch of episodes when the share `done` [] of the training is over, and from
        the teacher with weight `lessons` []; mean squared error of the critic and mean value of a
        state: [run] each."""
        value = self._look_back(memory)
        mappo, figures = self.config.mappo, []
        for _ in range(mappo.epochs):
            order = uniform(fold(self._shuffle, self.updates), (memory.episodes,)).argsort(-1)
            for episodes in order.chunk(mappo.minibatches, -1):  # [run, episode]
                figures.append(self._step(self._pick(memory, episodes), done, lessons))
        return torch.stack(figures).mean(0), value

    @torch.no_grad()
    def _look_back(self, memory: EpisodeMemory) -> Tensor:
        """What the actions taken were worth, how likely they were, targets of the critic; the mean
        value: [run]."""
        self._remember_odds(memory)
        shape = (self.runs, memory.decisions, memory.episodes)
        state = memory.state[:-1].transpose(0, 1).flatten(1, 2)
        worth = self._scale(self.critic(state).view(shape))
        trace = self.config.mappo.gae_lambda
        gain, returns = advantages(memory.reward.transpose(0, 1), worth, self._gamma, trace)
        now = torch.stack([torch.ones_like(returns), returns, returns.square()]).mean((2, 3)).T
        self._returns.lerp_(now, 1.0 - MEMORY)
        mean, deviation = self._normal()
        memory.target.copy_((returns - mean) / deviation)
        # Normalised as they will be averaged: over the agents that had a say.
        active = memory.active[:-1].view(memory.decisions, self.runs, -1, memory.episodes)
        weight = active.sum(2).transpose(0, 1)
        weight = weight / weight.sum((1, 2), keepdim=True).clamp(min=1.0)
        gain = gain - (weight * gain).sum((1, 2), keepdim=True)
        spread = (weight * gain.square()).sum((1, 2), keepdim=True).sqrt()
        memory.advantage.copy_(gain / (spread + 1e-8))
        return worth.mean((1, 2))

    def _remember_odds(self, memory: EpisodeMemory) -> None:
        """The logarithms of the probabilities of the actions taken; nothing was learned since."""
        for seen, choice, log_prob in zip(
            memory.observation[:-1], memory.choice, memory.log_prob, strict=True
        ):
            log = self.agents.preferred(seen, self.agents(seen)).log_softmax(-1)
            log_prob.copy_(log.gather(-1, choice[..., None])[..., 0])

    def _normal(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of returns: [run, 1, 1]; 0 and 1 before there are any."""
        weight, total, square = self._returns.T[..., None, None]
        known = weight > 0
        mean = torch.where(known, total / weight, 0.0)
        variance = torch.where(known, square / weight - mean.square(), 1.0)
        return mean, variance.clamp(min=1e-6).sqrt()

    def _scale(self, normalised: Tensor) -> Tensor:
        mean, deviation = self._normal()
        return mean + deviation * normalised

    def _pick(self, memory: EpisodeMemory, episodes: Tensor) -> Sample:
        """These episodes [run, episode], of each run its own."""
        decision = torch.arange(memory.decisions, device=episodes.device)[:, None]

        def rows(stored: Tensor) -> Tensor:
            """Of [decision, part, episode, ...], parts being runs or agents of all runs: [part,
            sample, ...]."""
            parts, most = stored.shape[1:3]
            part = torch.arange(parts, device=episodes.device)[:, None, None]
            own = episodes.repeat_interleave(parts // self.runs, 0)[:, None]
            place = ((decision * parts + part) * most + own).flatten()
            return stored.flatten(0, 2).index_select(0, place).view(parts, -1, *stored.shape[3:])

        return Sample(
            rows(memory.observation),
            rows(memory.state),
            rows(memory.choice),
            rows(memory.lesson),
            rows(memory.log_prob),
            rows(memory.active),
            rows(memory.advantage.transpose(0, 1)),
            rows(memory.target.transpose(0, 1)),
        )

    def _step(self, sample: Sample, done: Tensor, lessons: Tensor | None) -> Tensor:
        """One step of agents and critic; the critic's error: [run]."""
        kept, spare = self._room(sample.choice.shape[-1])
        with torch.no_grad():
            tape: Tensors = self.agents.layers(sample.observation, kept)
        logits = tape[-1].detach().requires_grad_()
        loss = self._actor_loss(logits, sample, done, lessons)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        assert logits.grad is not None
        self.agents.descend(tape, logits.grad, spare, [self._side])
        error = self._critic_loss(sample.state, sample.target)
        error.sum().backward()  # type: ignore[no-untyped-call]
        self._move(done)
        return error.detach()

    @fused
    def _actor_loss(
        self, logits: Tensor, sample: Sample, done: Tensor, lessons: Tensor | None
    ) -> Tensor:
        """PPO's clipped objective with a bonus for entropy and one for doing as the teacher does
        (Schmitt et al. 2018), to be made small, as a mean over agents that had a say: [run]."""
        mappo = self.config.mappo
        log = self.agents.preferred(sample.observation, logits).log_softmax(-1)
        ratio = (log.gather(-1, sample.choice[..., None])[..., 0] - sample.log_prob).exp()
        advantage = sample.advantage.repeat_interleave(self.agents.agents, 0)
        near = ratio.clamp(1.0 - mappo.clip, 1.0 + mappo.clip)
        gain = torch.minimum(ratio * advantage, near * advantage)
        entropy = -(log.exp() * log).sum(-1)
        bonus = mappo.entropy_start + (mappo.entropy_end - mappo.entropy_start) * done
        good = gain + bonus * entropy
        if lessons is not None:
            good = good + lessons * log.gather(-1, sample.lesson[..., None])[..., 0]
        total = (good * sample.active).view(self.runs, -1).sum(-1)
        return -total / sample.active.view(self.runs, -1).sum(-1).clamp(min=1.0)

    @fused
    def _critic_loss(self, state: Tensor, target: Tensor) -> Tensor:
        value: Tensor = self.critic(state)
        return (value - target).square().mean(-1)

    def _move(self, done: Tensor) -> None:
        """Along the gradients, which are then 0."""
        self.updates += 1
        mappo, left = self.config.mappo, 1.0 - done
        for place, rate in enumerate((mappo.rate, mappo.critic_rate)):
            flat = self._flat[place]
            clip([flat], self._longest)
            moments = (self._mean[place], self._square[place])
            options = (rate * left, self.updates)
            adam_step(flat.values, flat.gradient, *moments, *options, epsilon=EPSILON)
        self.kept.update(self.updates - 1)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that learning changes, by name."""
        flat = {name: tensor for name, (_, tensor) in self._parts().items()}
        return flat | {"returns": self._returns, "steps": self.updates}

    def take(self, run: int) -> dict[str, Tensor]:
        """What an exact continuation of one run needs, as if it had been trained alone."""
        found = {name: flat.take(tensor, run) for name, (flat, tensor) in self._parts(run).items()}
        return found | {"returns": self._returns[run], "steps": self.updates.clone()}

    def put(self, run: int, found: dict[str, Tensor]) -> None:
        """The reverse of `take`."""
        for name, (flat, tensor) in self._parts().items():
            flat.put(tensor, run, found.get(name, found["actor"]))  # no mean of its own
        self._returns[run] = found["returns"]
        self.updates.copy_(found["steps"])

    def _parts(self, run: int | None = None) -> dict[str, tuple[Flat, Tensor]]:
        """What is remembered of all runs, or of one."""
        parts = {}
        for place, name in enumerate(("actor", "critic")):
            flat = self._flat[place]
            parts[name] = (flat, flat.values)
            parts[f"{name} mean"] = (flat, self._mean[place])
            parts[f"{name} square"] = (flat, self._square[place])
        return parts | {name: (self._flat[0], own) for name, own in self.kept.parts(run).items()}


def advantages(reward: Tensor, value: Tensor, gamma: Tensor, trace: float) -> tuple[Tensor, Tensor]:
    """Generalised advantages (Schulman et al. 2016) and the returns they amount to: [run,
    decision, episode]. `gamma` [run, 1, 1]; `trace` is lambda. After the last decision nothing
    follows.

    >>> one = torch.ones(1, 2, 1)
    >>> [found.flatten().tolist() for found in advantages(one, one, one[:, :1], 0.5)]
    [[1.0, 0.0], [2.0, 1.0]]
    """
    following = F.pad(value[:, 1:], (0, 0, 0, 1))
    surprise = reward + gamma * following - value
    decision = torch.arange(value.shape[1], device=value.device)
    ahead = decision - decision[:, None]
    weight = torch.where(ahead >= 0, (gamma * trace) ** ahead.clamp(min=0), 0.0)
    advantage = weight @ surprise  # [run, decision, decision] times [run, decision, episode]
    return advantage, advantage + value
