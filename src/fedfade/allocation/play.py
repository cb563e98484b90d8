"""Play the slots of a round under a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfade.allocation.policy import ActionChecks, Observed, Policy, View, gradient_aware
from fedfade.device import spare_bytes
from fedfade.errors import UserError, out_of_memory
from fedfade.graphs import record as record_work
from fedfade.seams import one_line
from fedfade.uplink import (
    Action,
    Progress,
    Round,
    Scenario,
    fill_observation,
    normalised_inner,
    observation_width,
    observe,
    play_slot,
    slot_gain,
    slot_reward,
    start_round,
    state_width,
    static_observation,
)

_STATIC_SHARE, _STATIC_BYTES = 0.1, 2**24
"""Memory for what is known of observations before the slots are played: of a GPU's, on the CPU."""


class History(NamedTuple):
    """Every slot of a round, for pictures."""

    band: Tensor  # [slot, episode, client]
    level: Tensor  # [slot, episode, client] power level actually used
    rate_bps: Tensor  # [slot, episode, client]
    remaining_bits: Tensor  # [slot, episode, client] after the slot


class Outcome(NamedTuple):
    """How a round ended."""

    delivered: Tensor  # [episode, client] bool
    bits: Tensor  # [episode, client] bits received towards the payload
    finish_slot: Tensor  # [episode, client] slots used, `slots` for those who did not finish
    sum_rate_bps: Tensor  # [episode] mean over slots
    reward: Tensor  # [episode] sum of slot rewards
    history: History | None


class Observations:
    """What agents observe along a round: all that no action changes is made for many slots."""

    def __init__(self, scenario: Scenario, round_: Round, slots: int) -> None:
        self._scenario, self._round, self._size = scenario, round_, slots
        self._slots = range(0)
        self._blank: Tensor | None = None  # [slot, client, episode, width]

    def at(self, slot: int, progress: Progress) -> Tensor:
        """Every agent's observation in a slot: [episode, client, width]."""
        if slot not in self._slots:
            self._blank = None  # before the next is made
            self._slots = range(slot, min(slot + self._size, self._scenario.slots))
            slots = torch.arange(self._slots.start, self._slots.stop, device=self._scenario.device)
            self._blank = static_observation(self._scenario, self._round, slots).observation
        assert self._blank is not None
        blank = self._blank[slot - self._slots.start].clone()
        return fill_observation(self._scenario, blank, progress).transpose(0, 1)


def _observes(policy: Policy) -> bool:
    return bool(getattr(policy, "observes", False))


def as_observed(policy: Policy, scenario: Scenario) -> Scenario:
    """The scenario as a policy observes it, if it says how (`observed`)."""
    observed: Observed | None = getattr(policy, "observed", None)
    return scenario if observed is None else replace(scenario, **observed._asdict())


def make_view(
    policy: Policy,
    scenario: Scenario,
    round_: Round,
    progress: Progress,
    slot: int,
    keys: Tensor,
    observations: Observations | None = None,
) -> View:
    """What a policy of this scope is handed in this slot; `observations` of the round spare work
    to who plays many slots of it."""
    aware = gradient_aware(policy)
    observation = None
    if observations is not None:
        observation = observations.at(slot, progress)
    elif _observes(policy):
        observation = observe(as_observed(policy, scenario), round_, progress, slot)
    return View(
        scenario=scenario,
        slot=slot,
        snr=round_.alpha * (scenario.full_power_w / scenario.noise_w),
        fading=known_fading(policy, round_, slot),
        remaining_bits=progress.remaining_bits,
        deviation=round_.deviation if aware else None,
        round_index=round_.number,
        observation=observation,
        finished=None if policy.scope == "local" else progress.finished,
        inner=round_.inner if aware and policy.scope == "central" else None,
        round_keys=keys,
    )


def known_fading(policy: Policy, round_: Round, slot: int) -> Tensor:
    """The fading a policy goes by, as old as it says: [episode, client, band].

    Nothing of a round is known before it begins, so what would be older shows the mean.
    """
    measured = slot - int(getattr(policy, "csi_delay_slots", 0))
    return round_.fading[:, measured] if measured >= 0 else torch.ones_like(round_.fading[:, 0])


@torch.no_grad()
def play_round(
    policy: Policy,
    scenario: Scenario,
    round_: Round,
    keys: Tensor,
    record: bool = False,
    start: Progress | None = None,
) -> Outcome:
    """Play all slots of a round for a batch of episodes; `keys` [episode] feed random policies.

    `start` is what each client has to send, the whole payload if not given; a client with nothing
    to send is silent and counts as delivered.
    """
    checks = ActionChecks(policy.name, scenario, len(round_.alpha))
    seen = as_observed(policy, scenario)
    known = _slots_known(seen, len(round_.alpha)) if _observes(policy) else 0
    outcome = _play(policy, scenario, round_, keys, checks.take, known, record, start)
    checks.finish()
    return outcome


def _slots_known(scenario: Scenario, episodes: int) -> int:
    """Slots of observations that fit the memory set aside."""
    widths = scenario.clients * observation_width(scenario) + state_width(scenario)
    room = spare_bytes(scenario.device, _STATIC_SHARE, _STATIC_BYTES)
    return max(1, room // (4 * episodes * widths))


def _play(
    policy: Policy,
    scenario: Scenario,
    round_: Round,
    keys: Tensor,
    take: Callable[[Any], Action],
    known: int,
    record: bool = False,
    start: Progress | None = None,
) -> Outcome:
    episodes = len(round_.alpha)
    start = start_round(scenario, episodes) if start is None else start
    progress = start
    seen = as_observed(policy, scenario)
    observations = Observations(seen, round_, known) if _observes(policy) else None
    view = make_view(policy, scenario, round_, progress, 0, keys, observations)
    memory = _asked(policy, "begin", view)
    finish_slot = torch.full_like(progress.remaining_bits, scenario.slots)
    rate_sum = torch.zeros(episodes, device=scenario.device)
    reward = torch.zeros(episodes, device=scenario.device)
    normalised = normalised_inner(round_.inner)
    frames = []
    for slot in range(scenario.slots):
        view = make_view(policy, scenario, round_, progress, slot, keys, observations)
        action = take(_asked(policy, "act", view, memory))
        after, result = play_slot(scenario, progress, slot_gain(round_, slot), action)
        reward += slot_reward(scenario, normalised, progress, after, result)
        rate_sum += result.rate_bps.sum(-1)
        finish_slot = torch.where(result.finished_now, slot + 1.0, finish_slot)
        if record:
            level = torch.where(progress.finished, scenario.silent_level, action.level)
            frames.append((action.band, level, result.rate_bps, after.remaining_bits))
        progress = after
    return Outcome(
        delivered=progress.finished,
        bits=start.remaining_bits - progress.remaining_bits,
        finish_slot=finish_slot,
        sum_rate_bps=rate_sum / scenario.slots,
        reward=reward,
        history=History(*map(torch.stack, zip(*frames, strict=True))) if record else None,
    )


def _asked(policy: Policy, question: str, *given: object) -> Any:
    """What a policy answers; whatever a user's raises becomes one sentence.

    A fault of our own policies stays one: its trace is what is needed to mend it.
    """
    try:
        return getattr(policy, question)(*given)
    except UserError:
        raise
    except Exception as error:
        ours = type(policy).__module__.startswith("fedfade.")
        if ours or out_of_memory(error, "") is not None:
            raise
        kind, place = type(error).__name__, _line_of(error)
        raise UserError(
            f"policy {policy.name!r} raised {kind} in {question}{place}: {one_line(error)}."
        ) from error


def _line_of(error: Exception) -> str:
    """The line of the policy that raised; none where it could not even be called."""
    inside = error.__traceback__ and error.__traceback__.tb_next
    if inside is None:
        return ""
    return f" ({Path(inside.tb_frame.f_code.co_filename).name}, line {inside.tb_lineno})"


class RecordedRounds:
    """Rounds of so many episodes under one policy, recorded with the first and replayed.

    On CUDA a slot is a hundred small launches, a recorded round one. For policies that set
    `recordable`; what they answer is taken as it is.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy, scenario: Scenario, round_: Round, keys: Tensor) -> None:
        self.episodes = len(keys)
        self._inputs = [part.clone() for part in (*round_, keys)]
        kept = Round(*self._inputs[:-1])
        known = _slots_known(scenario, self.episodes)
        clients = torch.zeros(self.episodes, scenario.clients, device=scenario.device)
        once = clients[:, 0]
        self._results = [
            part.clone() for part in (clients.bool(), clients, clients, once, once)
        ]  # as in Outcome, but for the history

        def work() -> None:
            new = _play(policy, scenario, kept, self._inputs[-1], Action._make, known)
            for place, value in zip(self._results, new[:5], strict=True):
                place.copy_(value)

        self._replay = record_work(work, self._results, scenario.device)

    @torch.no_grad()
    def play(self, round_: Round, keys: Tensor) -> Outcome:
        """As `play_round` does."""
        for place, value in zip(self._inputs, (*round_, keys), strict=True):
            place.copy_(value)
        self._replay()
        return Outcome._make([*(part.clone() for part in self._results), None])
