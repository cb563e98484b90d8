"""Parallel episodes of one round of every run under epsilon-greedy agents, decision by decision.

A decision is held for `qmix.hold_slots` slots, one in the paper; their rewards are summed. All
that a slot needs is laid out before the first one, so a decision is a fixed chain of tensor
operations on fixed buffers: nothing waits for the device and the chain can be captured.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfade import uplink
from fedfade.agents.networks import AgentNetworks, padded
from fedfade.agents.teacher import Teacher
from fedfade.agents.transitions import TransitionMemory
from fedfade.config import Config
from fedfade.graphs import fused, record
from fedfade.randomness import fold, integers, streams, uniform


class Rollout:
    """The episodes being played; `begin` a round, then `step` once a decision."""

    def __init__(self, rounds: uplink.ManyRounds, configs: Sequence[Config]) -> None:
        self.scenario = scenario = rounds.scenario
        self.device, self._hidden = scenario.device, rounds.by_hidden()
        # Of a run; the uplink plays those of all runs in one batch.
        self.episodes = episodes = rounds.episodes
        self.runs = len(configs)
        clients, device = scenario.clients, scenario.device
        decisions = scenario.decisions
        played, agents = self.runs * episodes, self.runs * clients
        self._width = width = uplink.observation_width(scenario)
        self._static = torch.zeros(decisions, clients, played, width, device=device)
        self._state = torch.zeros(decisions, played, uplink.state_width(scenario), device=device)
        self._round: uplink.Round | None = None  # the one being played, from the first on in place
        self._inner = torch.zeros(played, clients, clients, device=device)
        self._explores = torch.zeros(decisions, agents, episodes, dtype=torch.bool, device=device)
        self._random = torch.zeros(decisions, agents, episodes, dtype=torch.int64, device=device)
        self._choice = torch.zeros(agents, episodes, dtype=torch.int64, device=device)
        self._earned = torch.zeros(played, device=device)  # since the last decision
        self._before = torch.zeros(played, clients, device=device)  # bits left when it was taken
        self._lesson = torch.zeros_like(self._choice)  # what the teacher would do
        self._follows = torch.zeros(episodes, dtype=torch.bool, device=device)
        self._seen = torch.zeros(agents, episodes, padded(width), device=device)
        self._decisions = torch.arange(decisions, device=device)
        self._places = torch.arange(episodes, device=device)
        seeds = [config.run.seed for config in configs]
        self._keys = streams(seeds, "exploration", device=device)  # [run]
        name = configs[0].qmix.teacher
        self._teacher = Teacher(name, scenario, seeds) if name != "none" else None
        advance = [config.qmix.advance for config in configs]
        gamma = [config.qmix.gamma for config in configs]
        self._persists = configs[0].qmix.explore_decisions
        self._draws = configs[0].qmix.algorithm == "mappo"  # actions, instead of exploring
        self._advances = any(advance)
        self._advance_by = torch.tensor(advance, device=device).repeat_interleave(episodes)
        self._gamma = torch.tensor(gamma, device=device).repeat_interleave(episodes)
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.decision = torch.zeros_like(self.slot)
        self.remaining_bits, self._link_state = uplink.start_round(scenario, played)
        self.returns = torch.zeros(self.runs, episodes, device=device)  # sum of slot rewards
        self._batch = torch.zeros((), dtype=torch.int64, device=device)
        self._epsilon = torch.zeros((), device=device)
        self._explore = record(self._draw_exploration, [self._explores, self._random], device)

    @property
    def delivered(self) -> Tensor:
        """Who has nothing left to send: [run, episode, client]."""
        return (self.remaining_bits <= 0).view(self.runs, self.episodes, -1)

    @property
    def arrived(self) -> Tensor:
        """Of whose upload what counts: [run, episode, client]."""
        found = uplink.arrived(self.scenario, self._progress)
        return found.view(self.runs, self.episodes, -1)

    @property
    def _progress(self) -> uplink.Progress:
        return uplink.Progress(self.remaining_bits, self._link_state)

    def begin(
        self,
        round_: uplink.Round,
        epsilon: float,
        batch: int,
        memory: TransitionMemory,
        payload: float = 1.0,
        lessons: float = 0.0,
    ) -> None:
        """Lay out a round: observations, gains, and the random choices of all slots.

        Only the share `payload` of an upload is left to send, as if the rest had been sent. The
        teacher plays the share `lessons` of the episodes.
        """
        self._batch.fill_(batch)
        self._epsilon.fill_(epsilon)
        self._keep(round_)
        self._lay_out(round_)
        if not self._draws:
            self._explore()
        self.slot.zero_()
        self.decision.zero_()
        start = uplink.start_round(self.scenario, len(self.remaining_bits))
        self.remaining_bits.zero_().add_(payload * self.scenario.payload_bits)
        self._link_state.copy_(start.link_state)
        self.returns.zero_()
        self._taught = self._teacher is not None and lessons > 0
        if self._teacher is not None and self._taught:
            self._teacher.begin(round_, self._progress)
            self._follows.copy_(self._places < lessons * self.episodes)
        else:
            self._follows.zero_()
        self._look(memory)

    def _keep(self, round_: uplink.Round) -> None:
        """Slots are played from where the first round lies: a recording knows addresses only."""
        if self._round is None:
            self._round = uplink.Round(*(part.clone() for part in round_))
        for place, part in zip(self._round, round_, strict=True):
            place.copy_(part)

    @fused
    def _lay_out(self, round_: uplink.Round) -> None:
        decided = self._decisions * self.scenario.hold_slots
        for scenario, own in self._hidden:
            seen = uplink.Round(*(field[own] for field in round_))
            static = uplink.static_observation(scenario, seen, decided)
            self._static[:, :, own] = static.observation
            self._state[:, own] = static.state
        self._inner.copy_(uplink.normalised_inner(round_.inner))

    def _draw_exploration(self) -> None:
        by_batch = fold(self._keys, self._batch)
        keys = fold(by_batch, self._decisions[:, None])  # [decision, run]
        shape = (self.scenario.clients, self.episodes)
        explores = uniform(fold(keys, 0), shape) < self._epsilon  # [decision, run, client, episode]
        choice = integers(fold(keys, 1), self.scenario.actions, shape)
        if self._persists > 1:
            # A whim lasts for some decisions, beginning at any of them: each finds its whim's draw.
            phase = integers(fold(by_batch, len(self._decisions)), self._persists, shape)
            decision = self._decisions.view(-1, 1, 1, 1)
            whim = (decision + phase).div(self._persists, rounding_mode="floor")
            explores, choice = explores.gather(0, whim), choice.gather(0, whim)
        self._explores.copy_(explores.flatten(1, 2))
        self._random.copy_(choice.flatten(1, 2))

    @torch.no_grad()
    def ask_teacher(self, decision: int) -> None:
        """Before a decision: what would the teacher do, while there are lessons?"""
        if self._teacher is not None and self._taught:
            choice = self._teacher.decide(decision, self._progress)
            by_agent = choice.view(self.runs, self.episodes, -1).mT.flatten(0, 1)
            self._lesson.copy_(by_agent)

    @torch.no_grad()
    def step(self, agents: AgentNetworks, memory: TransitionMemory) -> None:
        """Every agent observes and decides, everybody sends, the transition is stored."""
        self._decide(agents, agents(self._seen))
        for _ in range(self.scenario.hold_slots):
            self._play_slot()
        self._store(memory)

    @fused
    def _decide(self, agents: AgentNetworks, values: Tensor) -> None:
        """What follows from the agents' values [run x client, episode, action]."""
        if self._draws:
            keys = fold(fold(self._keys, self._batch), self.decision)
            choice = agents.draw(self._seen, values, keys)
        else:
            greedy = agents.choose(self._seen, values)
            choice = torch.where(self._now(self._explores), self._now(self._random), greedy)
            choice = torch.where(self._follows, self._lesson, choice)
        self._choice.copy_(choice)
        self._earned.zero_()
        self._before.copy_(self.remaining_bits)

    @fused
    def _play_slot(self) -> None:
        before, scenario = self._progress, self.scenario
        assert self._round is not None
        by_episode = self._choice.view(self.runs, -1, self.episodes).mT.flatten(0, 1)
        action = uplink.decode_action(scenario, by_episode, self.slot)  # [played, client]
        air = uplink.slot_air(scenario, self._round, self.slot.clamp(max=scenario.slots - 1))
        after, result = uplink.play_slot(scenario, before, air, action)
        reward = uplink.slot_reward(scenario, self._inner, before, after, result)
        left = after.remaining_bits
        if scenario.slots % scenario.hold_slots:  # the last decision is held to the deadline
            goes_on = self.slot < scenario.slots
            reward, left = reward * goes_on, torch.where(goes_on, left, before.remaining_bits)
        self._earned.add_(reward)
        self.remaining_bits.copy_(left)
        self._link_state.copy_(after.link_state)
        self.slot.add_(1)

    @fused
    def _store(self, memory: TransitionMemory) -> None:
        before, after = uplink.Progress(self._before), self._progress
        self.returns.add_(self._earned.view(self.runs, self.episodes))
        reward = self._earned + self._advance(before, after)
        memory.act(self._choice, reward.view(self.runs, self.episodes), self._lesson)
        self.decision.add_(1)
        self._look(memory)

    def _advance(self, before: uplink.Progress, after: uplink.Progress) -> Tensor:
        """Potential-based reward (Ng et al. 1999): gamma phi(after) - phi(before), phi the
        payload shares of those who have not finished, and 0 after the deadline: [episode]."""
        if not self._advances:
            return torch.zeros_like(self._earned)
        shares = []
        for progress in (before, after):
            share = 1.0 - (progress.remaining_bits / self.scenario.payload_bits).float()
            shares.append(torch.where(progress.finished, 0.0, share).sum(-1))
        goes_on = self.decision < self.scenario.decisions - 1
        return self._advance_by * (self._gamma * shares[1] * goes_on - shares[0])

    def _look(self, memory: TransitionMemory) -> None:
        """Observe what the next decision is taken on. After the last there is none: what is
        written then is never bootstrapped from, and overwritten when the next round begins."""
        progress = self._progress
        seen = uplink.fill_observation(self.scenario, self._now(self._static), progress)
        seen = seen.view(len(seen), self.runs, self.episodes, -1).transpose(0, 1)
        self._seen[..., : self._width] = seen.flatten(0, 1)
        state = uplink.fill_state(self.scenario, self._now(self._state), progress)
        finished = progress.finished.view(self.runs, self.episodes, -1).mT.flatten(0, 1)
        memory.see(self.decision, self._seen, state.view(self.runs, self.episodes, -1), finished)

    def _now(self, by_decision: Tensor) -> Tensor:
        """The row of the current decision, as a copy."""
        last = self.scenario.decisions - 1
        return by_decision.index_select(0, self.decision.clamp(max=last))[0]

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        counts = [self.slot, self.decision, self._choice, self._earned, self._before]
        return [*counts, *self._progress, self.returns, self._seen]
