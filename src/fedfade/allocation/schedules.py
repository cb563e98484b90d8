"""Policies that serve clients one after another instead of all at once.

Everybody who does not finish is left out of the average, so bits spread evenly over all
clients are wasted. These policies order clients by the time they are expected to need and give
each sub-band to one client at a time, shortest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.policy import Scope, View, full_power
from fedfade.uplink import Action


def ergodic_rate(snr: Tensor) -> Tensor:
    """Mean of log2(1 + snr * h) over h ~ Exp(1), in bit/s/Hz: the shape of `snr`.

    The closed form e^(1/snr) E1(1/snr) / ln 2 overflows at low SNR and exists on no GPU; with
    h = e^x the integrand dies off at both ends so fast that the plain trapezoid rule converges
    to float precision.

    >>> round(float(ergodic_rate(torch.tensor(100.0))), 3)
    5.884
    """
    x = torch.linspace(-16.0, 4.5, 96, dtype=snr.dtype, device=snr.device)
    weight = torch.exp(x - torch.exp(x)) * (x[1] - x[0])
    return (torch.log2(1.0 + snr[..., None] * torch.exp(x)) * weight).sum(-1)


def expected_slots(view: View) -> Tensor:
    """Slots a client alone on a sub-band needs for what it has left: [episode, client]."""
    scenario = view.scenario
    bits_per_slot = ergodic_rate(view.snr) * scenario.bandwidth_hz * scenario.slot_s
    return view.remaining_bits / bits_per_slot.clamp(min=torch.finfo(torch.float32).tiny)


def shortest_first(view: View, slots: Tensor) -> Tensor:
    """Clients in order of expected slots: [episode, client].

    Among equals the turn moves on by as many clients as there are sub-bands every round, which
    everybody can work out, so that on a ring not always the same ones are served.
    """
    number = torch.arange(view.scenario.clients, device=slots.device)
    passed = (view.round_index.long() * view.scenario.bands)[:, None]
    by_turn = ((number - passed) % view.scenario.clients).argsort(-1)
    return by_turn.gather(-1, slots.gather(-1, by_turn).argsort(dim=-1, stable=True))


MARGIN = 1.1
"""A client may start if its expected end is at most this many rounds away. The estimate takes
Rayleigh fading; a sub-band's average fades less, so that clients tend to finish earlier."""


@dataclass
class Timetable:
    """Who sends where and from when, fixed at the start of a round."""

    band: Tensor  # [episode, client]
    start: Tensor  # [episode, client] first slot


def block_fading_timetable(view: View) -> Timetable:
    """Fill the sub-bands shortest client first; the next one follows at the expected end."""
    slots = expected_slots(view)
    order = shortest_first(view, slots)
    free = torch.zeros(len(slots), view.scenario.bands, device=slots.device)  # when a band is free
    band, start = torch.zeros_like(order), torch.zeros_like(slots)
    for place in range(view.scenario.clients):
        client = order[:, place, None]
        earliest, where = free.min(dim=-1, keepdim=True)
        end = earliest + slots.gather(1, client)
        # Who cannot make the deadline would only disturb the one before.
        useful = (end <= MARGIN * view.scenario.slots) | (earliest == 0)
        band.scatter_(1, client, where)
        start.scatter_(1, client, torch.where(useful, earliest, torch.inf))
        free.scatter_(1, where, torch.where(useful, end, earliest))
    return Timetable(band, start)


class BlockFadingSchedule:
    """Decide once a round from the large-scale gains alone, as earlier work does.

    Every client computes the same timetable from the announced gains, so no client needs to
    know another's fading or progress. Who is not done at the expected end goes on sending.
    """

    name = "block-fading-schedule"
    scope: Scope = "local"
    gradient_aware = False

    def begin(self, view: View) -> Timetable:
        """The timetable of the round."""
        return block_fading_timetable(view)

    def act(self, view: View, memory: Timetable) -> Action:
        """Send from the slot the timetable names."""
        return full_power(view, torch.where(memory.start <= view.slot, memory.band, -1))


@dataclass
class Queue:
    """Who holds which sub-band now, and who is next."""

    order: Tensor  # [episode, client]
    band: Tensor  # [episode, client], -1 while waiting or done
    called: Tensor  # [episode] clients called to send so far


class FinishFeedbackSchedule:
    """The block-fading order, but the next client starts when one has really finished.

    Needs the base station to announce finishes, one bit a client and slot.
    """

    name = "block-fading-schedule-feedback"
    scope: Scope = "feedback"
    gradient_aware = False

    def begin(self, view: View) -> Queue:
        """Everybody waits in order of expected time."""
        order = shortest_first(view, expected_slots(view))
        return Queue(order, torch.full_like(order, -1), order.new_zeros(len(order)))

    def act(self, view: View, memory: Queue) -> Action:
        """Free the sub-bands of those who are done and call the next."""
        assert view.finished is not None
        memory.band = torch.where(view.finished, -1, memory.band)
        taken = torch.nn.functional.one_hot(memory.band + 1, view.scenario.bands + 1)[..., 1:]
        free = taken.sum(1) == 0  # [episode, band]
        # The i-th free sub-band goes to the i-th client not called yet.
        place = memory.called[:, None] + free.cumsum(-1) - 1
        calls = free & (place < view.scenario.clients)
        episode, band = calls.nonzero(as_tuple=True)
        client = memory.order[episode, place[episode, band]]
        memory.band[episode, client] = band
        memory.called = memory.called + calls.sum(-1)
        return full_power(view, memory.band)


class ShortestRemainingFirst:
    """Centralised: the clients nearest to done, matched to sub-bands by everybody's fading."""

    name = "shortest-remaining-first"
    scope: Scope = "central"
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """As many clients as there are sub-bands, assigned for the greatest sum rate."""
        scenario = view.scenario
        slots = expected_slots(view).masked_fill(~view.active, torch.inf)
        chosen = shortest_first(view, slots)[:, : scenario.bands]  # [episode, place]
        rows = chosen[..., None].expand(-1, -1, scenario.bands)
        place_band, _ = assign(torch.log1p(view.received_snr.gather(1, rows)))
        band = torch.full_like(view.active, -1, dtype=torch.int64).scatter(1, chosen, place_band)
        return full_power(view, band.masked_fill(~view.active, -1))
