"""Play the slots of a round under a policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.allocation.policy import Policy, View, check_action, gradient_aware
from fedfade.randomness import fold
from fedfade.uplink import (
    Progress,
    Round,
    Scenario,
    normalised_inner,
    observe,
    play_slot,
    slot_gain,
    slot_reward,
    start_round,
)


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


def make_view(
    policy: Policy, scenario: Scenario, round_: Round, progress: Progress, slot: int, keys: Tensor
) -> View:
    """What this policy may see in this slot, and no more."""
    aware = gradient_aware(policy)
    observation = None
    if getattr(policy, "observes", False):
        observation = observe(scenario, round_, progress, slot)
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
        keys=fold(keys, slot),
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
    episodes = len(round_.alpha)
    start = start_round(scenario, episodes) if start is None else start
    progress = start
    memory = policy.begin(make_view(policy, scenario, round_, progress, 0, keys))
    finish_slot = torch.full_like(progress.remaining_bits, scenario.slots)
    rate_sum = torch.zeros(episodes, device=scenario.device)
    reward = torch.zeros(episodes, device=scenario.device)
    normalised = normalised_inner(round_.inner)
    frames = []
    for slot in range(scenario.slots):
        view = make_view(policy, scenario, round_, progress, slot, keys)
        action = check_action(policy.name, policy.act(view, memory), scenario, episodes)
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
