"""Play the slots of a round under a policy."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade import uplink
from fedfade.allocation.policy import ActionChecks, Observed, Policy, View, gradient_aware
from fedfade.device import spare_bytes
from fedfade.errors import not_allowed
from fedfade.graphs import record as record_work
from fedfade.seams import ask
from fedfade.uplink import Progress, Round, Scenario

_STATIC_SHARE, _STATIC_BYTES = 0.1, 2**24
"""Memory for what is known of observations before the slots are played: of a GPU's, on the CPU."""


class History(NamedTuple):
    """Every slot of a round, for pictures."""

    band: Tensor  # [slot, episode, client]
    level: Tensor  # [slot, episode, client] power level actually used
    rate_bps: Tensor  # [slot, episode, client]
    remaining_bits: Tensor  # [slot, episode, client] after the slot
    sends: Tensor  # [slot, episode, client] bool: not done, ready, and the round not over


class Outcome(NamedTuple):
    """How a round ended."""

    delivered: Tensor  # [episode, client] bool, the set N_t (paper: eq. 7)
    bits: Tensor  # [episode, client] bits received towards the payload
    finish_slot: Tensor  # [episode, client] slots used, `slots` for those who did not finish
    sum_rate_bps: Tensor  # [episode] mean over slots
    reward: Tensor  # [episode] sum of slot rewards
    slots: Tensor  # [episode] until the round was over
    sent_slots: Tensor  # [episode, client] slots in which it sent
    power_w: Tensor  # [episode, client] sum over slots of its transmit power
    history: History | None

    @property
    def used(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `uplink.Bill.spent` makes out the costs of."""
        return self.slots, self.finish_slot, self.sent_slots, self.power_w

    def arrived(self, scenario: Scenario) -> Tensor:
        """Who delivered, or, where a part counts, the share of its bits: [episode, client]."""
        if not scenario.count_partial:
            return self.delivered
        share = self.bits.to(scenario.device) / scenario.payload_bits
        return torch.where(self.delivered, 1.0, share.clamp(max=1.0 - 2.0**-23))


def as_observed(policy: Policy, scenario: Scenario) -> Scenario:
    """The scenario as a policy observes it and acts in it, if it says how (`observed`,
    `hold_slots`, `hop_subbands`); what the scenario's agents do is not its business."""
    hold = getattr(policy, "hold_slots", 1)
    if not isinstance(hold, int) or hold < 1:
        raise not_allowed(f"hold_slots of policy {policy.name!r}", hold, "a whole number above 0")
    observed: Observed | None = getattr(policy, "observed", None)
    seen = observed._asdict() if observed else {}
    hops = bool(getattr(policy, "hop_subbands", False))
    wanted = {"hold_slots": hold, "hop_subbands": hops, **seen}
    same = all(getattr(scenario, name) == value for name, value in wanted.items())
    return scenario if same else replace(scenario, **wanted)


def slots_at_once(policy: Policy, scenario: Scenario, episodes: int) -> int:
    """Slots of observations that fit the memory set aside; 0 for policies without any."""
    if not getattr(policy, "observes", False):
        return 0
    scenario = as_observed(policy, scenario)
    widths = scenario.clients * uplink.observation_width(scenario) + uplink.state_width(scenario)
    room = spare_bytes(scenario.device, _STATIC_SHARE, _STATIC_BYTES)
    return max(1, room // (4 * episodes * widths))


class Observations:
    """What agents observe where they decide: all that no action changes is made for many slots."""

    def __init__(self, scenario: Scenario, round_: Round, slots: int) -> None:
        self._scenario, self._round, self._size = scenario, round_, slots
        self._slots = range(0)
        self._blank: Tensor | None = None  # [slot, client, episode, width]

    def at(self, slot: int, progress: Progress) -> Tensor:
        """Every agent's observation in a slot: [episode, client, width]."""
        if slot not in self._slots:
            self._blank = None  # before the next is made
            every = range(slot, self._scenario.slots, self._scenario.hold_slots)
            self._slots = some = every[: self._size]
            slots = torch.arange(some.start, some.stop, some.step, device=self._scenario.device)
            static = uplink.static_observation(self._scenario, self._round, slots)
            self._blank = static.observation
        assert self._blank is not None
        blank = self._blank[self._slots.index(slot)].clone()
        return uplink.fill_observation(self._scenario, blank, progress).transpose(0, 1)


def make_view(
    policy: Policy,
    scenario: Scenario,
    round_: Round,
    progress: Progress,
    slot: int,
    keys: Tensor,
    observations: Observations | None = None,
) -> View:
    """What a policy of this scope is handed in this slot.

    Playing many slots of a round is cheaper with `observations` made once. Nothing of a round is
    known before it begins, so fading that would be older shows the mean.
    """
    aware = gradient_aware(policy)
    if observations is None and getattr(policy, "observes", False):
        observations = Observations(as_observed(policy, scenario), round_, slots=1)
    measured = slot - int(getattr(policy, "csi_delay_slots", 0))
    fading = round_.fading[:, max(measured, 0)]
    told = scenario.antennas > 1 and policy.scope == "central" and measured >= 0
    return View(
        scenario=scenario,
        slot=slot,
        snr=uplink.mean_snr(scenario, round_),
        fading=fading if measured >= 0 else torch.full_like(fading, scenario.antennas),
        remaining_bits=progress.remaining_bits.float(),
        deviation=round_.deviation if aware else None,
        round_index=round_.number,
        observation=None if observations is None else observations.at(slot, progress),
        finished=None if policy.scope == "local" else progress.finished,
        age=round_.age if aware and policy.scope != "local" else None,
        inner=round_.inner if aware and policy.scope == "central" else None,
        direction=round_.direction[:, measured] if told else None,
        round_keys=keys,
        ready_slot=round_.staggered,
    )


@torch.no_grad()
def play_round(
    policy: Policy,
    scenario: Scenario,
    round_: Round,
    keys: Tensor,
    record: bool = False,
    start: Progress | None = None,
    trusted_slots: int | None = None,
) -> Outcome:
    """Play all slots of a round for a batch of episodes; `keys` [episode] feed random policies.

    `start` is what each client has to send, the whole payload if not given; a client with nothing
    to send is silent and counts as delivered. With `trusted_slots`, what the policy answers is
    not checked, and observations are made for so many slots at once.
    """
    episodes = len(round_.alpha)
    checks = ActionChecks(policy.name, scenario, episodes)
    trusted = trusted_slots is not None
    known = trusted_slots if trusted else slots_at_once(policy, scenario, episodes)
    played = as_observed(policy, scenario)
    observations = Observations(played, round_, known) if known else None
    left = None if start is None else start.remaining_bits
    progress = start = uplink.start_round(scenario, episodes, left)
    who = f"policy {policy.name!r}"
    view = make_view(policy, scenario, round_, progress, 0, keys, observations)
    memory = ask(who, policy, "begin", view)
    finish_slot = torch.full_like(round_.alpha, scenario.slots)
    rate_sum, reward, slots = torch.zeros(3, episodes, device=scenario.device)
    sent_slots, power_w = torch.zeros(2, *round_.alpha.shape, device=scenario.device)
    normalised = uplink.normalised_inner(round_.inner)
    frames = []
    for slot in range(scenario.slots):
        if slot % played.hold_slots == 0:
            view = make_view(policy, scenario, round_, progress, slot, keys, observations)
            answer = ask(who, policy, "act", view, memory)
            held = answer if trusted else checks.take(answer)
        action = uplink.hop(played, held, slot)
        air = uplink.slot_air(scenario, round_, slot)
        after, result = uplink.play_slot(scenario, progress, air, action)
        reward += uplink.slot_reward(scenario, normalised, progress, after, result)
        rate_sum += result.rate_bps.sum(-1)
        finish_slot = torch.where(result.finished_now, slot + 1.0, finish_slot)
        sent_slots += result.power_w > 0
        power_w += result.power_w
        if air.quorum is not None:
            slots += ~uplink.is_over(progress, air.quorum)
        if record:
            level = torch.where(result.sends, action.level, scenario.silent_level)
            left = after.remaining_bits.float()
            frames.append((action.band, level, result.rate_bps, left, result.sends))
        progress = after
    checks.finish()
    if air.quorum is None:  # over when the last is done
        slots = torch.where(start.finished, 0.0, finish_slot).amax(-1)
    return Outcome(
        delivered=progress.finished,
        bits=(start.remaining_bits - progress.remaining_bits).float(),
        finish_slot=finish_slot,
        sum_rate_bps=rate_sum / scenario.slots,
        reward=reward,
        slots=slots,
        sent_slots=sent_slots,
        power_w=power_w,
        history=History(*map(torch.stack, zip(*frames, strict=True))) if record else None,
    )


class RecordedRounds:
    """Rounds of so many episodes under one policy, recorded with the first and replayed.

    On CUDA a slot is a hundred small launches, a recorded round one. For policies that set
    `recordable`; what they answer is taken as it is.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy, scenario: Scenario, round_: Round, keys: Tensor) -> None:
        self.episodes = len(keys)
        scenario = as_observed(policy, scenario)  # a recording may not ask how large payloads are
        self._inputs = [part.clone() for part in (*round_, keys)]
        kept = Round(*self._inputs[:-1])
        known = slots_at_once(policy, scenario, self.episodes)
        clients = torch.zeros(self.episodes, scenario.clients, device=scenario.device)
        once = clients[:, 0]
        by_slots = (once, clients, clients)
        results = (clients.bool(), clients, clients, once, once, *by_slots)  # but the history
        self._results = [part.clone() for part in results]

        def work() -> None:
            new = play_round(policy, scenario, kept, self._inputs[-1], trusted_slots=known)
            for place, value in zip(self._results, new[:-1], strict=True):
                place.copy_(value)

        self._replay = record_work(work, self._results, scenario.device)

    @torch.no_grad()
    def play(self, round_: Round, keys: Tensor) -> Outcome:
        for place, value in zip(self._inputs, (*round_, keys), strict=True):
            place.copy_(value)
        self._replay()
        return Outcome._make([*(part.clone() for part in self._results), None])
