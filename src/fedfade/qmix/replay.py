"""Replay memory: the last transitions, each observation stored once.

One slot of all parallel episodes is a row. What follows a row is the next row, so no transition
carries its successor; the row after the newest is where the next observation is already written.
Position and fill are tensors, so that storing and sampling never wait for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.graphs import fuse
from fedfade.randomness import fold, integers, stream


class Batch(NamedTuple):
    """Transitions for one update."""

    observation: Tensor  # [agent, batch, width]
    state: Tensor  # [batch, width]
    choice: Tensor  # [agent, batch] int64
    reward: Tensor  # [batch] discounted sum over the n steps
    next_observation: Tensor  # [agent, batch, width]
    next_state: Tensor  # [batch, width]
    discount: Tensor  # [batch] gamma^n, or 0 where the episode ended


class Replay:
    """A ring of rows [row, episode], kept flat: index = row * episodes + episode."""

    def __init__(
        self,
        capacity: int,
        episodes: int,
        agents: int,
        width: int,
        state_width: int,
        slots: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.episodes = episodes
        self.slots = slots
        # One row more than asked for: the newest observation, whose action is still to come.
        self.rows = -(-capacity // episodes) + 1
        flat = self.rows * episodes
        self.observation = torch.zeros(agents, flat, width, device=device)
        self.state = torch.zeros(flat, state_width, device=device)
        self.choice = torch.zeros(agents, flat, dtype=torch.int64, device=device)
        self.reward = torch.zeros(flat, device=device)
        self.slot = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self.stored = torch.zeros((), dtype=torch.int64, device=device)  # rows ever completed
        self._key = torch.tensor(stream(seed, "replay"), device=device)
        self._episode = torch.arange(episodes, device=device)
        self._drawn = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [update, transition]
        self._first = torch.zeros((), dtype=torch.int64, device=device)
        self.sample = fuse(self._sample, self.observation.device)

    def tensors(self) -> dict[str, Tensor]:
        """All there is to remember."""
        names = ("observation", "state", "choice", "reward", "slot", "stored")
        return {name: getattr(self, name) for name in names}

    def _place(self) -> Tensor:
        """Flat indices of the row being written: [episode]."""
        return self.stored % self.rows * self.episodes + self._episode

    def see(self, slot: Tensor, observation: Tensor, state: Tensor) -> None:
        """Write what is observed now: [agent, episode, width], [episode, width]."""
        place = self._place()
        self.observation.index_copy_(1, place, observation)
        self.state.index_copy_(0, place, state)
        self.slot.index_copy_(0, (self.stored % self.rows)[None], slot.view(1))

    def act(self, choice: Tensor, reward: Tensor) -> None:
        """Complete the row: what was done [agent, episode] and what it brought [episode]."""
        place = self._place()
        self.choice.index_copy_(1, place, choice)
        self.reward.index_copy_(0, place, reward)
        self.stored.add_(1)

    def draw_ahead(self, update: Tensor, count: int, size: int) -> None:
        """Random numbers for the next `count` updates of `size` transitions: all in one go,
        because making them is many small operations."""
        if self._drawn.shape != (count, size):
            self._drawn = self._drawn.new_zeros(count, size)
        numbers = update + torch.arange(count, device=update.device)
        self._drawn.copy_(integers(fold(self._key, numbers), 1 << 31, (size,)))
        self._first.copy_(update)

    def _sample(self, update: Tensor, gamma: float, n_step: int = 1) -> Batch:
        """Uniformly drawn transitions for update number `update`, one that was drawn ahead."""
        oldest = (self.stored - (self.rows - 1)).clamp(min=0)
        # The newest n-1 rows wait for the rewards that belong to them.
        ready = (self.stored - oldest - (n_step - 1)).clamp(min=1)
        drawn = self._drawn.index_select(0, (update - self._first).view(1))[0]
        draw = (drawn * (ready * self.episodes)) >> 31
        row = oldest + torch.div(draw, self.episodes, rounding_mode="floor")
        episode = draw % self.episodes
        here = row % self.rows * self.episodes + episode
        there = (row + n_step) % self.rows * self.episodes + episode
        slot = self.slot[row % self.rows]
        return Batch(
            observation=self.observation.index_select(1, here),
            state=self.state.index_select(0, here),
            choice=self.choice.index_select(1, here),
            reward=self._return(row, episode, slot, gamma, n_step),
            next_observation=self.observation.index_select(1, there),
            next_state=self.state.index_select(0, there),
            discount=torch.where(slot + n_step < self.slots, gamma**n_step, 0.0),
        )

    def _return(
        self, row: Tensor, episode: Tensor, slot: Tensor, gamma: float, n_step: int
    ) -> Tensor:
        """Discounted rewards of n steps; those after the deadline belong to another episode."""
        total = self.reward[row % self.rows * self.episodes + episode]
        for step in range(1, n_step):
            place = (row + step) % self.rows * self.episodes + episode
            inside = slot + step < self.slots
            total = total + torch.where(inside, gamma**step * self.reward[place], 0.0)
        return total
