"""A policy that shows agents what it would do where they are, while they are trained.

Agents never see it when they act: what they keep is what their own observations let them repeat.
Asked in the states that agents get into, not in its own (Ross et al. 2011), it teaches them to
mend their mistakes too.
"""

from collections.abc import Sequence

from torch import Tensor

from fedfade import uplink
from fedfade.allocation import Action, ActionChecks, Policy, load_policy, make_view
from fedfade.randomness import streams
from fedfade.seams import ask


class Teacher:
    """The policy of that name in the rounds that agents are trained on."""

    def __init__(self, name: str, scenario: uplink.Scenario, seeds: Sequence[int]) -> None:
        self._policy: Policy = load_policy(name)
        self._who = f"qmix.teacher = {name!r}"
        self._ours = type(self._policy).__module__.startswith("fedfade.")
        self._scenario = scenario
        self._keys = streams(seeds, "teacher", device=scenario.device)  # [run]

    def begin(self, round_: uplink.Round, progress: uplink.Progress) -> None:
        """Look at the round that agents are about to play."""
        self._round = round_
        episodes = len(round_.alpha) // len(self._keys)
        self._now = self._keys.repeat_interleave(episodes)  # [episode of all runs]
        view = make_view(self._policy, self._scenario, round_, progress, 0, self._now)
        self._memory = ask(self._who, self._policy, "begin", view)

    def decide(self, decision: int, progress: uplink.Progress) -> Tensor:
        """The choice it would make for every client in this decision: [episode, client].

        A decision that is held is taken for all its slots; what is best in the middle of them
        stands for them. Agents that see their fading are shown what is best in the slot they see.
        """
        scenario, hold = self._scenario, self._scenario.hold_slots
        ahead = 0 if "fading" in scenario.observe else hold // 2
        slot = min(decision * hold + ahead, scenario.slots - 1)
        view = make_view(self._policy, scenario, self._round, progress, slot, self._now)
        answer: Action = ask(self._who, self._policy, "act", view, self._memory)
        if not self._ours:
            checks = ActionChecks(self._policy.name, scenario, len(self._now))
            answer = checks.take(answer)
            checks.finish()
        return uplink.encode_action(scenario, answer, slot)
