"""The swap test: do agents use what they observe?

Each part of the observation in turn, then all of it, is replaced by what another episode of the
batch shows in the same slot; the clock, which is the same in all episodes, runs backwards. Agents
that deliver as much as before do not use that part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedfade.allocation import Action, Outcome, Policy, View, play_round
from fedfade.allocation.play import as_observed
from fedfade.errors import UserError
from fedfade.experiments.uploads import joined, part_of
from fedfade.uplink import Round, Scenario, part_columns

AS_IS, ALL = "as is", "all"
CLOCK = "slots_left"


class Swapped:
    """Agents in a batch of equal blocks of episodes, the parts named for each block swapped."""

    recordable = False

    def __init__(self, policy: Policy, scenario: Scenario, blocks: Sequence[Sequence[str]]) -> None:
        self.policy, self.blocks = policy, blocks
        self.name, self.scope = policy.name, policy.scope
        self._columns = part_columns(as_observed(policy, scenario))

    def __getattr__(self, name: str) -> Any:
        """What it observes is the agents' own business."""
        return getattr(self.policy, name)

    def begin(self, view: View) -> Any:
        return self.policy.begin(view)

    def act(self, view: View, memory: Any) -> Action:
        assert view.observation is not None
        shape = view.observation.shape
        seen = view.observation.reshape(len(self.blocks), -1, *shape[1:]).clone()
        for block, parts in zip(seen, self.blocks, strict=True):
            for part in parts:
                own = block[..., self._columns[part]]
                own.copy_(self._other(part, own, view.scenario.slots))
        return self.policy.act(replace(view, observation=seen.flatten(0, 1)), memory)

    def _other(self, part: str, own: Tensor, slots: int) -> Tensor:
        if part == CLOCK:
            return 1 + 1 / slots - own
        # Half a batch and a bit away: where it is [seed, round], another seed and another round.
        return own.roll(len(own) // 2 | 1, 0)


@torch.no_grad()
def swap_test(
    policy: Policy, scenario: Scenario, round_: Round, keys: Tensor
) -> Mapping[str, Outcome]:
    """The same episodes as they are, with each part swapped, and with all: outcomes by name.

    Fading and gains the bits go through stay the episode's own; only what agents see is another's.
    """
    if len(keys) < 2:
        raise UserError("a swap test needs at least two episodes: play more seeds or rounds.")
    parts = list(part_columns(as_observed(policy, scenario)))
    blocks = {AS_IS: [], **{part: [part] for part in parts}, ALL: parts}
    swapped = Swapped(policy, scenario, list(blocks.values()))
    batch = joined([round_] * len(blocks))
    outcome = play_round(swapped, scenario, batch, keys.repeat(len(blocks)))
    numbers = torch.arange(len(batch.alpha), device=keys.device).reshape(len(blocks), -1)
    return {name: part_of(outcome, own) for name, own in zip(blocks, numbers, strict=True)}
