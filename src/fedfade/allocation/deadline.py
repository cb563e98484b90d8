"""Policies that aim at the deadline: serve as many clients as can still finish, all to the end.

Serving the shortest four first leaves the fifth too little time; serving everybody leaves
everybody unfinished. These look at the whole rest of the round in every slot. Going from the
shortest client to the longest, clients belong to the round as long as their slots add up to no
more than there are. Among these, the one with most left to send is the one to hurry.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.policy import BuiltInPolicy, View, full_power, own_best
from fedfade.uplink import Action
from fedfade.uplink.plan import planned_rate, soonest_first


def bits_per_slot(view: View) -> Tensor:
    """What a client is expected to send in a slot alone on a sub-band: [episode, client]."""
    scenario = view.scenario
    rate = planned_rate(scenario, view.snr)
    return (rate * scenario.bandwidth_hz * scenario.slot_s).clamp(min=1e-20)


def members(view: View, needed: Tensor, gain: Tensor | float, reach: float) -> Tensor:
    """Who can still finish together, shortest first: [episode, client] bool.

    Clients need `needed` slots, infinitely many when done; a slot is worth `gain` of those. As
    many clients as there are sub-bands may try anyway if they lack no more than a factor `reach`.
    """
    bands, own = view.scenario.bands, view.own_slots_left
    order = soonest_first(view.scenario, needed, view.round_index, view.ready_slot)
    slots = needed.gather(1, order)
    own = own.gather(1, order) if isinstance(own, Tensor) else own
    place = torch.arange(view.scenario.clients, device=needed.device)
    fits = (slots.cumsum(-1) <= gain * view.slots_left * bands) & (slots <= gain * own)
    tries = (place < bands) & (slots <= reach * own) | (place == 0)
    return torch.zeros_like(fits).scatter(1, order, fits | tries) & needed.isfinite()


def shares(view: View, needed: Tensor) -> Tensor:
    """Sub-bands of the longest, as many clients as there are, all changing every slot: [episode,
    client, band] bool. Who needs less than 0 slots has none."""
    bands = view.scenario.bands
    longest = needed.argsort(dim=-1, descending=True, stable=True)[:, :bands]
    sends = needed.gather(1, longest) >= 0.0
    place = torch.where(sends, torch.arange(longest.shape[1], device=needed.device), -1)
    turn = torch.full_like(needed, -1, dtype=torch.int64).scatter(1, longest, place)
    senders = sends.sum(-1, keepdim=True).clamp(min=1)
    rolled = (torch.arange(bands, device=needed.device) + view.slot) % bands
    return (rolled % senders)[:, None, :] == turn[..., None]


@dataclass
class Account:
    """What was expected of the slots so far, and what came of it."""

    bits: Tensor  # [episode, client] expected bits of a slot alone on a sub-band
    remaining_bits: Tensor  # [episode, client] before the last slot
    sent: Tensor  # [episode, client] bool, who sent in it
    gained: Tensor  # [episode] expected slots' worth of bits that were sent so far
    slots: Tensor  # [episode] in so many slots


class DeadlineMatching(BuiltInPolicy):
    """Centralised: all who can still finish, matched to sub-bands by everybody's fading.

    With more candidates than sub-bands, nobody needs to send in a bad slot, so a slot is worth
    more than expected of a client alone. How much more is learned during the round, which makes
    the policy as careful as channel knowledge is old (`deadline-matching@5`).
    """

    name = "deadline-matching"
    scope = "central"

    FIRST_GAIN, FIRST_SLOTS = 1.2, 10.0  # assumed worth of a slot, as if seen in so many slots
    HURRY = 0.5  # exponent of the time needed in a client's weight
    BEYOND = 1e-3  # weight of clients that cannot finish: they take what nobody else wants

    def begin(self, view: View) -> Account:
        bits = bits_per_slot(view)
        slots = torch.full_like(bits[:, 0], self.FIRST_SLOTS * view.scenario.bands)
        nobody = torch.zeros_like(view.active)
        return Account(bits, view.remaining_bits, nobody, self.FIRST_GAIN * slots, slots)

    def act(self, view: View, memory: Account) -> Action:
        """Weigh everybody's rate by how much it has before it, and match for the greatest sum."""
        scenario, bits = view.scenario, memory.bits
        # What a slot has been worth so far; the last slot of an upload is not full.
        whole = memory.sent & view.active
        worth = (memory.remaining_bits - view.remaining_bits) / bits
        memory.gained = memory.gained + (worth * whole).sum(-1)
        memory.slots = memory.slots + whole.sum(-1)
        memory.remaining_bits = view.remaining_bits
        gain = (memory.gained / memory.slots)[:, None]
        # More slots than any round has; beyond, weights would leave the range of numbers.
        needed = (view.remaining_bits / bits).clamp(max=1e12)
        needed = needed.masked_fill(~view.active, torch.inf)
        hurry = (needed / view.own_slots_left) ** self.HURRY
        belongs = members(view, needed, gain, reach=torch.inf)
        weight = torch.where(belongs, hurry, self.BEYOND * hurry).masked_fill(~view.can_send, 0.0)
        rate = scenario.link.efficiency(view.received_snr)
        rate = rate * (scenario.bandwidth_hz * scenario.slot_s)
        band, _ = assign((weight / bits)[..., None] * rate)
        band = band.masked_fill(~view.can_send, -1)
        memory.sent = band >= 0
        return full_power(view, band)


class CsiMatching(BuiltInPolicy):
    """Clients matched by everybody's fading, with nobody's progress but finishes known.

    Those who fit into the round at its start are thought to send in step with the clock, the others
    to have sent nothing. The longest are hurried at first, and less and less.
    """

    name = "csi-matching"
    scope = "csi"

    GAIN = 1.2  # worth of a slot by what is expected of a client alone
    HURRY = 0.25  # exponent of the time needed in a client's weight, in the first slot
    BEYOND = 1e-3  # weight of clients that do not fit: they take what nobody else wants

    def begin(self, view: View) -> tuple[Tensor, Tensor]:
        bits = bits_per_slot(view)
        return bits, (view.remaining_bits / bits).clamp(max=1e12)  # slots that all of it takes

    def act(self, view: View, memory: tuple[Tensor, Tensor]) -> Action:
        assert view.finished is not None
        scenario, left = view.scenario, view.slots_left
        bits, whole = memory
        order = soonest_first(scenario, whole, view.round_index, view.ready_slot)
        needed, done = whole.gather(1, order), view.finished.gather(1, order)
        place = torch.arange(scenario.clients, device=needed.device)

        def fit(slots: Tensor, rest: int) -> Tensor:
            most = self.GAIN * rest
            return (slots.cumsum(-1) <= most * scenario.bands) & (slots <= most)

        member = fit(needed, scenario.slots) | (place < scenario.bands)
        still = torch.where(member, needed * (left / scenario.slots), needed) * ~done
        tries = member & ((~done).cumsum(-1) <= scenario.bands)
        belongs = torch.zeros_like(done).scatter(1, order, fit(still, left) | tries)
        hurry = (whole / scenario.slots) ** (self.HURRY * left / scenario.slots)
        weight = torch.where(belongs, hurry, self.BEYOND * hurry)
        weight = weight.masked_fill(view.finished | ~view.ready, 0.0)
        rate = scenario.link.efficiency(view.received_snr)
        rate = rate * (scenario.bandwidth_hz * scenario.slot_s)
        band, _ = assign((weight / bits)[..., None] * rate)
        return full_power(view, band.masked_fill(weight <= 0.0, -1))


@dataclass
class ExpectedSlots:
    """What all clients know of each other without being told."""

    whole: Tensor  # [episode, client] slots the upload was expected to take
    needed: Tensor  # [episode, client] of these, not yet given


class DeadlineFeedback(BuiltInPolicy):
    """All who can still finish take turns, knowing no more than who has finished.

    Everybody keeps the same account of the turns all have had, which stands for the progress
    nobody knows, and changes sub-band every slot. Where fewer send than there are sub-bands,
    each chooses the best of its share by its own fading.
    """

    name = "deadline-feedback"
    scope = "feedback"

    MARGIN = 1.03  # slots set aside for one slot expected
    OVERDUE = 0.03  # of its upload, what a client late to finish is thought to have left
    REACH = 1.2  # a choice of sub-bands makes up for so much

    def begin(self, view: View) -> ExpectedSlots:
        whole = view.remaining_bits / bits_per_slot(view)
        return ExpectedSlots(whole, whole)

    def act(self, view: View, memory: ExpectedSlots) -> Action:
        assert view.finished is not None
        needed = memory.needed.maximum(self.OVERDUE * memory.whole)
        needed = needed.masked_fill(view.finished, torch.inf)
        belongs = members(view, needed, 1.0 / self.MARGIN, self.REACH)
        mine = shares(view, needed.masked_fill(~(belongs & view.ready), -1.0))
        memory.needed = memory.needed - mine.any(-1).float()
        return own_best(view, mine)


@dataclass
class Pace:
    """What everybody was expected to send, and the turns all have had."""

    bits: Tensor  # [episode, client] expected of a slot alone on a sub-band
    whole_bits: Tensor  # [episode, client] to send when the round began
    turns: Tensor  # [episode, client] slots given so far


class DeadlineProgress(BuiltInPolicy):
    """All who can still finish take turns by what everybody has left, which a base station knows:
    it has received the rest.

    A client's pace is learned from its own progress or, until it has sent, from everybody's. So
    announced gains say who goes first, and need not be exact.
    """

    name = "deadline-progress"
    scope = "central"

    GAIN = 1.06  # worth of a slot by what is expected of it, as clients choose at the end
    REACH = 1.3  # clients that lack no more than this factor may try
    OWN, ALL = 20.0, 40.0  # slots that count as much as the announced gain of one, and of all

    def begin(self, view: View) -> Pace:
        bits = bits_per_slot(view)
        return Pace(bits, view.remaining_bits, torch.zeros_like(bits))

    def act(self, view: View, memory: Pace) -> Action:
        sent = (memory.whole_bits - view.remaining_bits) / memory.bits  # in slots as expected
        total, turns = (x.sum(-1, keepdim=True) for x in (sent, memory.turns))
        pace = (self.ALL + total) / (self.ALL + turns)  # [episode, 1] of those who have not sent
        pace = (self.OWN * pace + sent) / (self.OWN + memory.turns)
        needed = (view.remaining_bits / (memory.bits * pace)).clamp(max=1e12)
        needed = needed.masked_fill(~view.active, torch.inf)
        belongs = members(view, needed, self.GAIN, self.REACH)
        mine = shares(view, needed.masked_fill(~(belongs & view.ready), -1.0))
        memory.turns = memory.turns + mine.any(-1).float()
        return own_best(view, mine)
