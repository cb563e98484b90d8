"""Parallel episodes of one round of every run under epsilon-greedy agents, slot after slot.

All that a slot needs is laid out before the first one, so a slot is a fixed chain of tensor
operations on fixed buffers: nothing waits for the device and the chain can be captured.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfade import uplink
from fedfade.agents.networks import AgentNetworks, padded
from fedfade.agents.transitions import ReplayMemory
from fedfade.config import Config
from fedfade.graphs import fused, record
from fedfade.randomness import fold, integers, streams, uniform


class Rollout:
    """The episodes being played; `begin` a round, then `step` once a slot."""

    def __init__(self, rounds: uplink.ManyRounds, configs: Sequence[Config]) -> None:
        self.scenario = scenario = rounds.scenario
        self.device, self._hidden = scenario.device, rounds.by_hidden()
        # Of a run; the uplink plays those of all runs in one batch.
        self.episodes = episodes = rounds.episodes
        self.runs = len(configs)
        slots, clients, device = scenario.slots, scenario.clients, scenario.device
        played, agents = self.runs * episodes, self.runs * clients
        self._width = width = uplink.observation_width(scenario)
        self._static = torch.zeros(slots, clients, played, width, device=device)
        self._state = torch.zeros(slots, played, uplink.state_width(scenario), device=device)
        self._gain = torch.zeros(slots, played, clients, scenario.bands, device=device)
        self._inner = torch.zeros(played, clients, clients, device=device)
        self._explores = torch.zeros(slots, agents, episodes, dtype=torch.bool, device=device)
        self._random = torch.zeros(slots, agents, episodes, dtype=torch.int64, device=device)
        self._seen = torch.zeros(agents, episodes, padded(width), device=device)
        self._slots = torch.arange(slots, device=device)
        seeds = [config.run.seed for config in configs]
        self._keys = streams(seeds, "exploration", device=device)  # [run]
        advance = [config.qmix.advance for config in configs]
        gamma = [config.qmix.gamma for config in configs]
        self._advances = any(advance)
        self._advance_by = torch.tensor(advance, device=device).repeat_interleave(episodes)
        self._gamma = torch.tensor(gamma, device=device).repeat_interleave(episodes)
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.remaining_bits = torch.zeros(played, clients, device=device)
        self.returns = torch.zeros(self.runs, episodes, device=device)  # sum of slot rewards
        self._batch = torch.zeros((), dtype=torch.int64, device=device)
        self._epsilon = torch.zeros((), device=device)
        self._explore = record(self._draw_exploration, [self._explores, self._random], device)

    @property
    def delivered(self) -> Tensor:
        """Who has nothing left to send: [run, episode, client]."""
        return (self.remaining_bits <= 0).view(self.runs, self.episodes, -1)

    def begin(
        self,
        round_: uplink.Round,
        epsilon: float,
        batch: int,
        replay: ReplayMemory,
        payload: float = 1.0,
    ) -> None:
        """Lay out a round: observations, gains, and the random choices of all slots.

        Only the share `payload` of an upload is left to send, as if the rest had been sent.
        """
        self._batch.fill_(batch)
        self._epsilon.fill_(epsilon)
        self._lay_out(round_)
        self._explore()
        self.slot.zero_()
        self.remaining_bits.fill_(payload * self.scenario.payload_bits)
        self.returns.zero_()
        self._look(replay)

    @fused
    def _lay_out(self, round_: uplink.Round) -> None:
        for scenario, own in self._hidden:
            static = uplink.static_observation(scenario, uplink.Round(*(x[own] for x in round_)))
            self._static[:, :, own] = static.observation
            self._state[:, own] = static.state
        gain = round_.alpha[:, None, :, None] * round_.fading  # H = alpha h (paper: eq. 9)
        self._gain.copy_(gain.transpose(0, 1))
        self._inner.copy_(uplink.normalised_inner(round_.inner))

    def _draw_exploration(self) -> None:
        keys = fold(fold(self._keys, self._batch), self._slots[:, None])  # [slot, run]
        shape = (self.scenario.clients, self.episodes)
        explores = uniform(fold(keys, 0), shape) < self._epsilon  # [slot, run, client, episode]
        self._explores.copy_(explores.flatten(1, 2))
        choice = integers(fold(keys, 1), self.scenario.actions, shape)
        self._random.copy_(choice.flatten(1, 2))

    @torch.no_grad()
    def step(self, agents: AgentNetworks, replay: ReplayMemory) -> None:
        """Every agent observes and acts, everybody sends, the transition is stored."""
        self._play_slot(agents, agents(self._seen), replay)

    @fused
    def _play_slot(self, agents: AgentNetworks, values: Tensor, replay: ReplayMemory) -> None:
        """What follows from the agents' values [run x client, episode, action]."""
        greedy = agents.choose(self._seen, values)
        choice = torch.where(self._now(self._explores), self._now(self._random), greedy)
        before = uplink.Progress(self.remaining_bits)
        by_episode = choice.view(self.runs, -1, self.episodes).mT.flatten(0, 1)  # [played, client]
        action = uplink.decode_action(self.scenario, by_episode)
        after, result = uplink.play_slot(self.scenario, before, self._now(self._gain), action)
        reward = uplink.slot_reward(self.scenario, self._inner, before, after, result)
        self.returns.add_(reward.view(self.runs, self.episodes))
        reward = reward + self._advance(before, after)
        replay.act(choice, reward.view(self.runs, self.episodes))
        self.remaining_bits.copy_(after.remaining_bits)
        self.slot.add_(1)
        self._look(replay)

    def _advance(self, before: uplink.Progress, after: uplink.Progress) -> Tensor:
        """Potential-based reward (Ng et al. 1999): gamma phi(after) - phi(before), phi the
        payload shares of those who have not finished, and 0 after the deadline: [episode]."""
        if not self._advances:
            return torch.zeros_like(before.remaining_bits[:, 0])
        shares = []
        for progress in (before, after):
            share = 1.0 - progress.remaining_bits / self.scenario.payload_bits
            shares.append(torch.where(progress.finished, 0.0, share).sum(-1))
        goes_on = self.slot < self.scenario.slots - 1
        return self._advance_by * (self._gamma * shares[1] * goes_on - shares[0])

    def _look(self, replay: ReplayMemory) -> None:
        """Observe the slot that begins. After the last there is none: what is written then is
        never bootstrapped from, and overwritten when the next round begins."""
        progress = uplink.Progress(self.remaining_bits)
        seen = uplink.fill_observation(self.scenario, self._now(self._static), progress)
        seen = seen.view(len(seen), self.runs, self.episodes, -1).transpose(0, 1)
        self._seen[..., : self._width] = seen.flatten(0, 1)
        state = uplink.fill_state(self.scenario, self._now(self._state), progress)
        finished = progress.finished.view(self.runs, self.episodes, -1).mT.flatten(0, 1)
        replay.see(self.slot, self._seen, state.view(self.runs, self.episodes, -1), finished)

    def _now(self, by_slot: Tensor) -> Tensor:
        """The row of the current slot, as a copy."""
        return by_slot.index_select(0, self.slot.clamp(max=self.scenario.slots - 1))[0]

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        return [self.slot, self.remaining_bits, self.returns, self._seen]
