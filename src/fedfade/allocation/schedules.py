"""Policies that serve clients one after another instead of all at once.

Everybody who does not finish is left out of the average, so bits spread evenly over all
clients are wasted. These policies order clients by the time they are expected to need and give
each sub-band to one client at a time, shortest first.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.policy import BuiltInPolicy, View, full_power, own_best
from fedfade.uplink import Action, plan


class BlockFadingSchedule(BuiltInPolicy):
    """Decide once a round from the large-scale gains alone, as earlier work does.

    Every client computes the same timetable from the announced gains, so no client needs to
    know another's fading or progress. A client not done at its expected end goes on sending.
    """

    name = "block-fading-schedule"

    def begin(self, view: View) -> plan.Timetable:
        given = (view.scenario, view.snr, view.round_index, view.remaining_bits)
        return plan.timetable(*given, view.ready_slot)

    def act(self, view: View, memory: plan.Timetable) -> Action:
        return full_power(view, torch.where(memory.start <= view.slot, memory.band, -1))


class PlannedTurns(NamedTuple):
    """What a client looks up in a slot."""

    reserved: plan.Reservation
    left: Tensor  # [episode, client, slot] slots reserved from this one on
    free: Tensor  # [episode, slot, band] probability that the holder is done


class WrapAroundSchedule(BuiltInPolicy):
    """Decide once a round too, but let a client finish on another sub-band than it began on.

    No slot is left over at the end of a sub-band because nobody could finish in it, and all
    change sub-band every slot, so that nobody is stuck with a bad one.
    """

    name = "wrap-around-schedule"
    choice = False

    def worth(self, view: View) -> Tensor | None:
        """What a client's update counts [episode, client]; None: all alike."""
        return None

    def begin(self, view: View) -> PlannedTurns:
        given = (view.scenario, view.snr, view.round_index, view.remaining_bits)
        worth, ready = self.worth(view), view.ready_slot
        reserved = plan.reserve(*given, choice=self.choice, worth=worth, ready=ready)
        left = reserved.bands.any(-1).flip(-1).cumsum(-1).flip(-1)
        return PlannedTurns(reserved, left, plan.holder_done(reserved))

    def act(self, view: View, memory: PlannedTurns) -> Action:
        """The best of its own sub-bands by its own fading; a late client goes on elsewhere."""
        reserved, slot = memory.reserved, view.slot
        share = view.remaining_bits / view.scenario.payload_bits
        needed = (share * reserved.slots)[..., None]
        mine, grace = reserved.bands[:, :, slot], reserved.grace[:, :, slot]
        free = memory.free[:, slot, None].expand(mine.shape)
        more = plan.after_turn(grace, free, needed, memory.left[:, :, slot, None])
        mine = mine | (more & ~mine.any(-1, keepdim=True))
        return own_best(view, mine)


class WrapAroundChoice(WrapAroundSchedule):
    """The wrap-around plan; sub-bands it leaves empty are reserved for those who send.

    With two or three to choose from, clients finish that are too weak for one.
    """

    name = "wrap-around-choice"
    choice = True


class WrapAroundFeedback(WrapAroundChoice):
    """The wrap-around plan whose turns end when their clients have finished, which all hear.

    What is free then goes to those of the plan who have not finished and have no turn now: first
    to those whose turn is over, then to those whose turn comes. What is left is a choice for all
    who send.
    """

    name = "wrap-around-feedback"
    scope = "feedback"

    def act(self, view: View, memory: PlannedTurns) -> Action:
        assert view.finished is not None
        reserved, slot = memory.reserved, view.slot
        order = reserved.rank.argsort(-1)  # clients in the order of service from here on
        turns = reserved.turns.gather(1, order[..., None, None].expand(reserved.turns.shape))
        can = (~view.finished & view.ready).gather(1, order)
        mine = turns[:, :, slot] & can[..., None]  # [episode, place, band]
        comes = turns[:, :, slot:].any(-1).any(-1)
        planned = turns.any(-1).any(-1) | (reserved.slots < 1.0).gather(1, order)  # no whole slot
        waits = planned & can & ~mine.any(-1)
        late = waits & ~comes
        number = torch.where(late, late.cumsum(-1), (waits & comes).cumsum(-1)) - 1
        number = number + (waits & comes) * late.sum(-1, keepdim=True)
        free = ~mine.any(1)  # [episode, band]
        card = free.cumsum(-1) - 1
        given = (card[:, None] == number[..., None]) & free[:, None] & waits[..., None]
        mine = plan.deal((mine | given)[:, :, None])[:, :, 0]
        mine = mine.gather(1, reserved.rank[..., None].expand(mine.shape))
        return own_best(view, mine)


class WrapAroundPairs(WrapAroundSchedule):
    """The wrap-around plan for twice the sub-bands, two of which are one: where there are several
    antennas, the base station tells two clients apart. With one it is the plan itself."""

    name = "wrap-around-pairs"

    def begin(self, view: View) -> PlannedTurns:
        return super().begin(_by_pairs(view))

    def act(self, view: View, memory: PlannedTurns) -> Action:
        action = super().act(_by_pairs(view), memory)
        return action._replace(band=action.band % view.scenario.bands)


def _by_pairs(view: View) -> View:
    """With every sub-band twice: b and b + C are the same."""
    if view.scenario.antennas == 1:
        return view
    twice = replace(view.scenario, bands=2 * view.scenario.bands)
    return replace(view, scenario=twice, fading=view.fading.repeat(1, 1, 2))


class WrapAroundAge(WrapAroundChoice):
    """The wrap-around plan, but a client counts 1 + the rounds since it delivered last.

    Who hears finishes knows everybody's age.
    """

    name = "wrap-around-age"
    scope = "feedback"
    gradient_aware = True  # what it does in a round depends on the rounds before

    def worth(self, view: View) -> Tensor | None:
        assert view.age is not None
        return 1.0 + view.age


class WrapAroundInnovation(WrapAroundChoice):
    """The wrap-around plan, but a client counts by how far its update is from what the server
    would take in its place.

    That is |g_n - y_n|^2 under a rule that remembers y_n, |g_n - g_{t-1}|^2 otherwise.

    Every client knows its own; the base station would have to announce this one number of each.
    """

    name = "wrap-around-innovation"
    scope = "central"
    gradient_aware = True

    def worth(self, view: View) -> Tensor | None:
        return view.deviation


@dataclass
class Queue:
    """Who holds which sub-band now, and who is next."""

    order: Tensor  # [episode, client]
    band: Tensor  # [episode, client], -1 while waiting or done


class FinishFeedbackSchedule(BuiltInPolicy):
    """The block-fading order, but the next client starts when one has really finished.

    Needs the base station to announce finishes, one bit a client and slot.
    """

    name = "block-fading-schedule-feedback"
    scope = "feedback"

    def begin(self, view: View) -> Queue:
        """Everybody waits in order of expected time."""
        slots = plan.expected_slots(view.scenario, view.snr, view.remaining_bits)
        order = plan.soonest_first(view.scenario, slots, view.round_index, view.ready_slot)
        return Queue(order, torch.full_like(order, -1))

    def act(self, view: View, memory: Queue) -> Action:
        assert view.finished is not None
        band = torch.where(view.finished, -1, memory.band)
        taken = torch.nn.functional.one_hot(band + 1, view.scenario.bands + 1)[..., 1:]
        free = taken.sum(1) == 0  # [episode, band]
        # The first free sub-band goes to the first who waits, even for its own training; the
        # second to the second ...
        waits = ((band < 0) & ~view.finished).gather(1, memory.order)
        turn = waits.cumsum(-1) - 1  # [episode, place]
        first_free = free.byte().argsort(dim=-1, descending=True, stable=True)
        called = waits & (turn < free.sum(-1, keepdim=True))
        given = first_free.gather(1, turn.clamp(0, view.scenario.bands - 1))
        held = band.gather(1, memory.order)
        memory.band = band.scatter(1, memory.order, torch.where(called, given, held))
        return full_power(view, memory.band)


class ShortestRemainingFirst(BuiltInPolicy):
    """Centralised: the clients nearest to done, as many as there are sub-bands, matched to these
    by everybody's fading for the greatest sum rate."""

    name = "shortest-remaining-first"
    scope = "central"

    def act(self, view: View, memory: None) -> Action:
        scenario = view.scenario
        slots = plan.expected_slots(scenario, view.snr, view.remaining_bits)
        slots = slots.masked_fill(~view.can_send, torch.inf)
        order = plan.shortest_first(scenario, slots, view.round_index)
        chosen = order[:, : scenario.bands]  # [episode, place]
        rows = chosen[..., None].expand(-1, -1, scenario.bands)
        place_band, _ = assign(scenario.link.efficiency(view.received_snr.gather(1, rows)))
        band = torch.full_like(view.active, -1, dtype=torch.int64).scatter(1, chosen, place_band)
        return full_power(view, band.masked_fill(~view.can_send, -1))
