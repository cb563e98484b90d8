"""The replay memory: the last transitions, each observation stored once.

One decision of all parallel episodes is a row; without a hold that is a slot. What follows a row is
the next row, so no transition carries its successor; the row after the newest is where the next
observation is already written. Position and fill are tensors, so that storing and sampling never
wait for the device.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedfade.graphs import Work, fused, record
from fedfade.randomness import fold, integers, streams


class TransitionMemory(Protocol):
    """Where a rollout leaves what agents saw and did."""

    def see(self, slot: Tensor, observation: Tensor, state: Tensor, finished: Tensor) -> None:
        """What is observed before decision number `slot` [1] of an episode: [run x agent, episode,
        width], [run, episode, width]; and who has finished: [run x agent, episode]."""

    def act(self, choice: Tensor, reward: Tensor, lesson: Tensor | None = None) -> None:
        """What was done [run x agent, episode] and what all earned by it [run, episode]; what the
        teacher, if there is one, would have done."""


class Batch(NamedTuple):
    """Transitions for one update."""

    observation: Tensor  # [run x agent, batch, width]
    state: Tensor  # [run, batch, width]
    choice: Tensor  # [run x agent, batch] int64
    reward: Tensor  # [run, batch] discounted sum over the n steps
    next_observation: Tensor  # [run x agent, batch, width]
    next_state: Tensor  # [run, batch, width]
    discount: Tensor  # [run, batch] gamma^n, or 0 where the episode ended
    finished: Tensor | None = None  # [run x agent, batch] bool, where they are masked
    next_finished: Tensor | None = None
    lesson: Tensor | None = None  # [run x agent, batch] int64, what the teacher would have done


class ReplayMemory:
    """A ring of rows [row, episode], kept flat: index = row * episodes + episode.

    Each run has its own. All runs store in step, and each draws its own transitions.
    """

    def __init__(
        self,
        capacity: int,
        episodes: int,
        agents: int,
        width: int,
        state_width: int,
        slots: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        keep_finished: bool = False,
        keep_lessons: bool = False,
    ) -> None:
        self.episodes, self.slots = episodes, slots
        # One row more than asked for: the newest observation, whose action is still to come.
        self.rows = -(-capacity // episodes) + 1
        flat = self.rows * episodes
        self.runs = runs = len(seeds)
        self.observation = torch.zeros(runs * agents, flat, width, device=device)
        self.state = torch.zeros(runs, flat, state_width, device=device)
        self.choice = torch.zeros(runs * agents, flat, dtype=torch.int64, device=device)
        self.reward = torch.zeros(runs, flat, device=device)
        finished = torch.zeros(runs * agents, flat, dtype=torch.bool, device=device)
        self.finished = finished if keep_finished else None
        self.lesson = torch.zeros_like(self.choice) if keep_lessons else None
        self.slot = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self.stored = torch.zeros((), dtype=torch.int64, device=device)  # rows ever completed
        self._keys = streams(seeds, "replay", device=device)  # [run]
        self._episode = torch.arange(episodes, device=device)
        first = flat * torch.arange(runs * agents, device=device)  # where each agent's part begins
        self._agent_first = first.view(runs, agents, 1)
        self._run_first = flat * torch.arange(runs, device=device)[:, None]
        self._drawn = torch.zeros(0, dtype=torch.int64, device=device)  # [update, run, transition]
        self._first = torch.zeros((), dtype=torch.int64, device=device)
        self._draw: Work = self._draw_numbers

    def tensors(self) -> list[Tensor]:
        """All there is to remember."""
        return [getattr(self, name) for name in self.take(0)]

    def take(self, run: int) -> dict[str, Tensor]:
        """What one run remembers, as if it were alone."""
        kept = {"finished": self.finished, "lesson": self.lesson}
        some = {name: t.chunk(self.runs)[run] for name, t in kept.items() if t is not None}
        return some | {
            "observation": self.observation.chunk(self.runs)[run],
            "state": self.state[run],
            "choice": self.choice.chunk(self.runs)[run],
            "reward": self.reward[run],
            "slot": self.slot,  # the same in all runs, as is the next
            "stored": self.stored,
        }

    def put(self, run: int, found: dict[str, Tensor]) -> None:
        """The reverse of `take`."""
        for name, tensor in self.take(run).items():
            tensor.copy_(found[name])

    def _place(self) -> Tensor:
        """Flat indices of the row being written: [episode]."""
        return self.stored % self.rows * self.episodes + self._episode

    def see(
        self, slot: Tensor, observation: Tensor, state: Tensor, finished: Tensor | None = None
    ) -> None:
        """Write what is observed now: [run x agent, episode, width], [run, episode, width]; and
        who has finished: [run x agent, episode]."""
        place = self._place()
        if self.finished is not None and finished is not None:
            self.finished.index_copy_(1, place, finished)
        self.observation.index_copy_(1, place, observation)
        self.state.index_copy_(1, place, state)
        self.slot.index_copy_(0, (self.stored % self.rows)[None], slot.view(1))

    def act(self, choice: Tensor, reward: Tensor, lesson: Tensor | None = None) -> None:
        """Complete the row: choices [run x agent, episode] and rewards [run, episode]; what the
        teacher, if there is one, would have done."""
        place = self._place()
        self.choice.index_copy_(1, place, choice)
        if self.lesson is not None and lesson is not None:
            self.lesson.index_copy_(1, place, lesson)
        self.reward.index_copy_(1, place, reward)
        self.stored.add_(1)

    def draw_ahead(self, update: Tensor, count: int, size: int) -> None:
        """Random numbers for the next `count` updates of `size` transitions: all in one go,
        because making them is many small operations."""
        if self._drawn.shape != (count, self.runs, size):
            self._drawn = self._drawn.new_zeros(count, self.runs, size)
            self._draw = record(self._draw_numbers, [self._drawn], self._drawn.device)
        self._first.copy_(update)
        self._draw()

    def _draw_numbers(self) -> None:
        count, _, size = self._drawn.shape
        numbers = self._first + torch.arange(count, device=self._first.device)
        self._drawn.copy_(integers(fold(self._keys, numbers[:, None]), 1 << 31, (size,)))

    @fused
    def sample(self, update: Tensor, gamma: Tensor | float, n_step: int = 1) -> Batch:
        """Uniformly drawn transitions for update number `update`, one that was drawn ahead.

        `gamma` [run, 1] is every run's discount.
        """
        oldest = (self.stored - (self.rows - 1)).clamp(min=0)
        # The newest n-1 rows wait for the rewards that belong to them.
        ready = (self.stored - oldest - (n_step - 1)).clamp(min=1)
        drawn = self._drawn.index_select(0, (update - self._first).view(1))[0]  # [run, batch]
        draw = (drawn * (ready * self.episodes)) >> 31
        row = oldest + torch.div(draw, self.episodes, rounding_mode="floor")
        slot, episode = self.slot[row % self.rows], draw % self.episodes
        here = row % self.rows * self.episodes + episode
        there = (row + n_step) % self.rows * self.episodes + episode
        reward = _rows(self.reward, self._run_first + here)
        for step in range(1, n_step):  # rewards after the deadline belong to another episode
            place = (row + step) % self.rows * self.episodes + episode
            later = gamma**step * _rows(self.reward, self._run_first + place)
            reward = reward + torch.where(slot + step < self.slots, later, 0.0)
        own, next_own = self._agent_first + here[:, None], self._agent_first + there[:, None]
        finished = self.finished
        masks = [None if finished is None else _rows(finished, rows) for rows in (own, next_own)]
        return Batch(
            observation=_rows(self.observation, own),
            state=_rows(self.state, self._run_first + here),
            choice=_rows(self.choice, own),
            reward=reward,
            next_observation=_rows(self.observation, next_own),
            next_state=_rows(self.state, self._run_first + there),
            discount=torch.where(slot + n_step < self.slots, gamma**n_step, 0.0),
            finished=masks[0],
            next_finished=masks[1],
            lesson=None if self.lesson is None else _rows(self.lesson, own),
        )


def _rows(stored: Tensor, rows: Tensor) -> Tensor:
    """Of [part, row, ...] the rows asked for, counted over all parts: [part, batch, ...]."""
    found = stored.flatten(0, 1).index_select(0, rows.flatten())
    return found.view(len(stored), -1, *stored.shape[2:])
