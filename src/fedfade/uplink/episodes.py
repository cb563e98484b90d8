"""Episodes of several tasks in step, decision by decision: what the environments are faces of.

Episodes follow each other as in training: `run.episodes_per_round` of them on the same federated
round, the last of which decides who is averaged, then the next round.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.uplink import observation as observed
from fedfade.uplink.gradients import GradientSource
from fedfade.uplink.reward import normalised_inner, slot_reward
from fedfade.uplink.rounds import Rounds
from fedfade.uplink.slot import (
    Action,
    SlotResult,
    arrived,
    decode_action,
    play_slot,
    slot_air,
    start_round,
)


class Episodes:
    """One episode of every task at a time, a task a seed; all reach the deadline at once."""

    def __init__(
        self,
        config: Config,
        gradients: GradientSource,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self.rounds = Rounds(config, gradients, 1, seeds, device)
        self.scenario = scenario = self.rounds.scenario
        self.number, self.slot = -1, scenario.slots  # no episode is open
        self.progress = start_round(scenario, len(seeds))

    @property
    def ended(self) -> bool:
        return self.slot == self.scenario.slots

    def begin(self) -> None:
        """The next episode; one that was left early counts as it stands."""
        if not self.ended:
            self._deliver()
        self.number += 1
        self.slot, scenario = 0, self.scenario
        self.round = self.rounds.round(self.number)
        decided = torch.arange(0, scenario.slots, scenario.hold_slots, device=scenario.device)
        self._static = observed.static_observation(scenario, self.round, decided)
        self._inner = normalised_inner(self.round.inner)
        self.progress = start_round(scenario, len(self.rounds.seeds))

    def decide(self, choices: Tensor) -> tuple[Tensor, list[tuple[Action, SlotResult]]]:
        """Hold the decisions [task, client] for `qmix.hold_slots` slots or to the deadline: the
        sum of the slots' rewards [task], and what was sent in each."""
        scenario, sent = self.scenario, []
        reward = torch.zeros(len(choices), dtype=torch.float64, device=scenario.device)
        until = min(self.slot + scenario.hold_slots, scenario.slots)
        for slot in range(self.slot, until):
            before, action = self.progress, decode_action(scenario, choices, slot)
            air = slot_air(scenario, self.round, slot)
            self.progress, result = play_slot(scenario, before, air, action)
            reward += slot_reward(scenario, self._inner, before, self.progress, result)
            sent.append((action, result))
        self.slot = until
        if self.ended:
            self._deliver()
        return reward, sent

    def observations(self) -> Tensor:
        """What every agent sees: [task, client, width]."""
        blank = self._static.observation[self._decision].clone()
        return observed.fill_observation(self.scenario, blank, self.progress).transpose(0, 1)

    def states(self) -> Tensor:
        """What a central critic or mixer may see: [task, width]."""
        blank = self._static.state[self._decision].clone()
        return observed.fill_state(self.scenario, blank, self.progress)

    @property
    def _decision(self) -> int:
        """The decision to be taken; after the deadline the last one's gains stay in view."""
        return min(self.slot, self.scenario.slots - 1) // self.scenario.hold_slots

    def _deliver(self) -> None:
        self.rounds.deliver(self.number, arrived(self.scenario, self.progress)[:, None])
