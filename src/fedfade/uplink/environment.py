"""The uplink as a PettingZoo environment: one agent a client, one step a decision.

A thin face on the batched core (`fedfade.uplink.episodes`) with a batch of one.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from fedfade.config import Config
from fedfade.errors import UserError, not_allowed
from fedfade.uplink.episodes import Episodes
from fedfade.uplink.gradients import gradient_source
from fedfade.uplink.observation import observation_width, state_width
from fedfade.uplink.parts import BOUND

ID = "fedfade/uplink-v1"
"""The number goes up when results on the same seed could change."""

_MAX_SEED = 2**31

Dicts = dict[str, Any]


class UplinkEnv(ParallelEnv[str, NDArray[np.float32], int]):  # type: ignore[misc]
    """Clients sharing sub-bands; all get the same reward, and all stop at the deadline."""

    metadata = {  # noqa: RUF012 - PettingZoo's attribute
        "name": ID,
        "render_modes": ["rgb_array"],
        "is_parallelizable": True,
        "render_fps": 10,
    }

    def __init__(self, config: Config, render_mode: str | None = None) -> None:
        self.config, self.render_mode = config, render_mode
        if render_mode != "human":  # PettingZoo's render_test makes one, whatever is offered
            self._check_render_mode()
        self._gradients = gradient_source(config)
        self._episodes = Episodes(config, self._gradients, seeds=[0])
        self.scenario = scenario = self._episodes.scenario
        self.possible_agents = [f"client_{n}" for n in range(scenario.clients)]
        self.agents: list[str] = []
        everybody, width = self.possible_agents, observation_width(scenario)
        box = partial(spaces.Box, -BOUND, BOUND, dtype=np.float32)
        self.observation_spaces = {agent: box(shape=(width,)) for agent in everybody}
        self.action_spaces = {agent: spaces.Discrete(scenario.actions) for agent in everybody}
        self.state_space = box(shape=(state_width(scenario),))
        self._random: np.random.Generator | None = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Dicts, Dicts]:
        """Begin an episode; with a seed, begin again at the first episode of the first round."""
        self._check_render_mode()
        if seed is not None or self._random is None:
            self._random, _ = seeding.np_random(seed)
            seeds = [int(self._random.integers(_MAX_SEED))]
            self._episodes = Episodes(self.config, self._gradients, seeds)
        self._episodes.begin()
        shape = (self.scenario.slots, self.scenario.bands, self.scenario.clients)
        self._rate_bps = np.zeros(shape, dtype=np.float32)  # so far
        self.agents = list(self.possible_agents)
        return self._observe(), self._infos()

    def step(self, actions: Mapping[str, int]) -> tuple[Dicts, Dicts, Dicts, Dicts, Dicts]:
        """One decision, held for `qmix.hold_slots` slots or to the deadline, which ends the
        episode: nothing can be delivered after it. Rewards of the slots are summed."""
        self._check_begun("step")
        if not self.agents:
            return {}, {}, {}, {}, {}
        first = self._episodes.slot
        earned, sent = self._episodes.decide(self._choices(actions))
        for slot, (action, result) in enumerate(sent, first):
            band, everybody = action.band[0].numpy(), np.arange(self.scenario.clients)
            self._rate_bps[slot, band, everybody] = result.rate_bps[0].numpy()
        reward, ended = float(earned[0]), self._episodes.ended
        agents, self.agents = self.agents, [] if ended else self.agents
        rewards, ends, cuts = (dict.fromkeys(agents, value) for value in (reward, ended, False))
        return self._observe(), rewards, ends, cuts, self._infos()

    def state(self) -> NDArray[np.float32]:
        """What a central critic or mixer may see."""
        self._check_begun("state")
        return np.asarray(self._episodes.states()[0].numpy())

    def render(self) -> NDArray[np.uint8] | None:
        """The round so far: who sends where, and how far everybody is."""
        if self.render_mode is None:
            return None
        self._check_begun("render")
        from fedfade.uplink.figures import pixels, round_so_far_figure

        episodes = self._episodes
        left = (episodes.progress.remaining_bits[0] / self.scenario.payload_bits).numpy()
        share = (1.0 - left).clip(0.0, 1.0)
        return pixels(round_so_far_figure(self._rate_bps, share, episodes.slot))

    def _check_render_mode(self) -> None:
        if self.render_mode not in (None, "rgb_array"):
            raise not_allowed("render_mode", self.render_mode, "None or 'rgb_array'")

    def _check_begun(self, asked: str) -> None:
        if self._random is None:
            raise UserError(f"{asked}() has no episode yet: call reset first.")

    def _observe(self) -> Dicts:
        seen = self._episodes.observations()[0].numpy()
        return dict(zip(self.possible_agents, seen, strict=True))

    def _infos(self) -> Dicts:
        episodes = self._episodes
        number, finished = int(episodes.round.number[0]), episodes.progress.finished[0].tolist()
        infos = [{"delivered": done, "round": number} for done in finished]
        return dict(zip(self.possible_agents, infos, strict=True))

    def _choices(self, actions: Mapping[str, int]) -> torch.Tensor:
        """One number an agent, checked: [1, client]."""
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise UserError(f"no action for {missing[0]}: every client must act in every step.")
        if unknown := [agent for agent in actions if agent not in self.action_spaces]:
            known = f"one of client_0 to {self.possible_agents[-1]}"
            raise not_allowed("agent of an action", unknown[0], known)
        return torch.tensor([[self._choice(agent, actions[agent]) for agent in self.agents]])

    def _choice(self, agent: str, action: Any) -> int:
        """The action as a number; nothing is rounded, for 1.5 is a mistake and not a 1."""
        try:
            number = int(action)
            allowed = number == action and 0 <= number < self.scenario.actions
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a long tensor
            allowed = False
        if not allowed:
            choices = f"a whole number between 0 and {self.scenario.actions - 1}"
            raise not_allowed(f"action of {agent}", action, choices)
        return number
