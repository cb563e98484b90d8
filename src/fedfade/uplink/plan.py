"""Who sends when, worked out before the first slot from the large-scale gains alone.

The gains are announced to all, so every client computes the same plan and needs to hear nothing
from the others during the round.

    timetable   one client after another on a sub-band, as earlier work does
    reserve     clients may change sub-band in mid-upload, so that no time is left over at the end
                of any (McNaughton's wrap-around rule), and sub-bands nobody needs become a choice

Where computing takes clients unequally long, `ready` [episode, client] says in which slot each can
begin, which is announced too; without it all can in slot 0.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.graphs import unfused
from fedfade.uplink.expected import look_up
from fedfade.uplink.scenario import Scenario


def _shannon(ratio: Tensor) -> Tensor:
    return torch.log2(1.0 + ratio)


def ergodic_rate(snr: Tensor, efficiency: Callable[[Tensor], Tensor] = _shannon) -> Tensor:
    """Mean of log2(1 + snr * h) over h ~ Exp(1), in bit/s/Hz: the shape of `snr`. Another link has
    another efficiency.

    The closed form e^(1/snr) E1(1/snr) / ln 2 overflows at low SNR and exists on no GPU; with
    h = e^x the integrand dies off at both ends so fast that the plain trapezoid rule converges
    to float precision.
    """
    x = torch.linspace(-16.0, 4.5, 96, dtype=snr.dtype, device=snr.device)
    weight = torch.exp(x - torch.exp(x)) * (x[1] - x[0])
    return (efficiency(snr[..., None] * torch.exp(x)) * weight).sum(-1)


def expected_slots(scenario: Scenario, snr: Tensor, bits: Tensor | None = None) -> Tensor:
    """Slots a client alone on a sub-band needs for its bits, a payload if not given:
    [episode, client]."""
    bits = torch.zeros_like(snr) + scenario.payload_bits if bits is None else bits
    if scenario.antennas > 1 or scenario.rate_table is not None:
        rate = planned_rate(scenario, snr)
    else:  # as earlier work does: Rayleigh fading, though a sub-band's mean fades less
        rate = ergodic_rate(snr, scenario.link.efficiency)
    bits_per_slot = rate * scenario.bandwidth_hz * scenario.slot_s
    return bits / bits_per_slot.clamp(min=torch.finfo(torch.float32).tiny)


def shortest_first(scenario: Scenario, slots: Tensor, round_number: Tensor) -> Tensor:
    """Clients in order of expected slots: [episode, client].

    Among equals the turn moves on by as many clients as there are sub-bands every round, which
    everybody can work out, so that clients on a ring take turns.
    """
    number = torch.arange(scenario.clients, device=slots.device)
    passed = (round_number.long() * scenario.bands)[:, None]
    by_turn = ((number - passed) % scenario.clients).argsort(-1)
    return by_turn.gather(-1, slots.gather(-1, by_turn).argsort(dim=-1, stable=True))


def soonest_first(
    scenario: Scenario, slots: Tensor, round_number: Tensor, ready: Tensor | None
) -> Tensor:
    """The same for clients that begin when they are ready: in order of their soonest ends."""
    return shortest_first(scenario, slots if ready is None else ready + slots, round_number)


class Order(NamedTuple):
    """Who is served before whom, which everybody works out from the announced gains."""

    clients: Tensor  # [episode, place] shortest expected time first
    rank: Tensor  # [episode, client] its place, from 0
    slots: Tensor  # [episode, client] expected for a whole payload alone on a sub-band


def service_order(
    scenario: Scenario, snr: Tensor, round_number: Tensor, ready: Tensor | None = None
) -> Order:
    """The order of expected times under the scenario's own fading. The order is that of any
    fading; the times of Rayleigh fading would be too long where a sub-band is an average."""
    bits_per_slot = planned_rate(scenario, snr) * (scenario.bandwidth_hz * scenario.slot_s)
    slots = scenario.payload_bits / bits_per_slot.clamp(min=torch.finfo(torch.float32).tiny)
    clients = soonest_first(scenario, slots, round_number, ready)
    return Order(clients, clients.argsort(-1), slots)


MARGIN = 1.1
"""A client may start if its expected end is at most this many rounds away. The estimate assumes
Rayleigh fading; a sub-band's average fades less, so that clients tend to finish earlier."""


class Timetable(NamedTuple):
    """Who sends where and from when, fixed at the start of a round."""

    band: Tensor  # [episode, client]
    start: Tensor  # [episode, client] first slot, inf for clients that do not send
    end: Tensor  # [episode, client] slot by which it is expected to be done, inf likewise
    rank: Tensor  # [episode, client] place in the order of service, 0 first


def timetable(
    scenario: Scenario,
    snr: Tensor,
    round_number: Tensor,
    remaining_bits: Tensor | None = None,
    ready: Tensor | None = None,
) -> Timetable:
    """Fill the sub-bands shortest client first; the next one follows at the expected end.

    `snr` [episode, client] is the mean SNR at full power; `remaining_bits` what each has to
    send, the whole payload if not given.
    """
    slots = expected_slots(scenario, snr, remaining_bits)
    order = soonest_first(scenario, slots, round_number, ready)
    free = torch.zeros(len(slots), scenario.bands, device=slots.device)  # when a band is free
    band, start, end = torch.zeros_like(order), torch.zeros_like(slots), torch.zeros_like(slots)
    for place in range(scenario.clients):
        client = order[:, place, None]
        earliest, where = free.min(dim=-1, keepdim=True)
        begins = earliest if ready is None else earliest.maximum(ready.gather(1, client))
        done = begins + slots.gather(1, client)
        # A client that cannot make the deadline would only disturb the one before.
        useful = (done <= MARGIN * scenario.slots) | (earliest == 0)
        useful = useful if ready is None else useful & (begins < scenario.slots)
        band.scatter_(1, client, where)
        start.scatter_(1, client, torch.where(useful, begins, torch.inf))
        end.scatter_(1, client, torch.where(useful, done, torch.inf))
        free.scatter_(1, where, torch.where(useful, done, earliest))
    return Timetable(band, start, end, order.argsort(-1))


# --- reserved sub-bands -------------------------------------------------------------------------

SPARE = 1.3  # nobody gets more than this many times the slots it is expected to need
UNCERTAINTY = 0.04  # standard deviation of a client's mean rate in a round, relative
GRACE = 5  # slots that a client may go on sending after its turn if it needs no more than these
# A client that needs at most LATE slots, and more than it has, may use another's sub-band once
# that one is done with probability LIKELY.
LATE, LIKELY = 30, 0.6
LIKENESS = 0.6  # best of m sub-bands counts as best of 1 + 0.6 (m - 1): neighbours fade alike


class Reservation(NamedTuple):
    """Which sub-bands each client may use in each slot; no two clients share one."""

    bands: Tensor  # [episode, client, slot, band] bool
    turns: Tensor  # [episode, client, slot, band] bool, of these without those dealt for a choice
    grace: Tensor  # [episode, client, slot, band] bool, where to go on just after the own turn
    sent: Tensor  # [episode, client, slot] share of the payload expected to be sent before it
    slots: Tensor  # [episode, client] expected for a whole payload alone on one sub-band
    rank: Tensor  # [episode, client] place in the order of service, 0 first


def best_rate(
    snr: Tensor, choices: float, shape: float, efficiency: Callable[[Tensor], Tensor] = _shannon
) -> Tensor:
    """Mean of log2(1 + snr * h), h the best of `choices` sub-bands, in bit/s/Hz, or of another
    link's efficiency.

    One sub-band fades like a gamma variable of unit mean: shape 1 is Rayleigh, a mean over many
    subcarriers is nearer to shape 2.
    """
    x = torch.linspace(-16.0, 4.5, 192, device=snr.device)  # h = e^x, as in `ergodic_rate`
    one = torch.exp(shape * (x + math.log(shape) - torch.exp(x)) - math.lgamma(shape))
    one = one / one.sum()
    below = one.cumsum(0) - 0.5 * one
    power = 1.0 + LIKENESS * (choices - 1)
    best = one * below ** (power - 1.0)
    return (efficiency(snr[..., None] * torch.exp(x)) * (best / best.sum())).sum(-1)


def planned_rate(scenario: Scenario, snr: Tensor, choices: int = 1) -> Tensor:
    """Mean rate of a client alone on the best of so many sub-bands, in bit/s/Hz; `snr` at one
    antenna. Several gather as many times the power, and fade less."""
    snr = snr * scenario.antennas
    if scenario.rate_table is not None:
        return look_up(scenario.rate_table, snr, choices)
    return best_rate(snr, choices, scenario.fading_shape, scenario.link.efficiency)


def reserve(
    scenario: Scenario,
    snr: Tensor,
    round_number: Tensor,
    remaining_bits: Tensor | None = None,
    choice: bool = True,
    hop: bool = True,
    worth: Tensor | None = None,
    ready: Tensor | None = None,
) -> Reservation:
    """Serve as many clients as are likely to finish, shortest first, and share out what is left.

    The clients served stand in one long row of C * T slots, cut into C sub-bands: a client at a
    cut sends at the end of one sub-band and at the beginning of the next, which never overlap.
    With `hop` all change sub-band every slot in step, so that nobody is left with a bad one. With
    `choice`, sub-bands that the row does not fill are dealt to those who send, weakest first.
    With `worth` [episode, client], as much of it as is likely to finish, most per slot first; who
    is not expected to finish alone on a sub-band comes last. With `ready` there is no row: clients
    take their turns slot by slot (`_turns`).
    """
    whole = torch.zeros_like(snr) + scenario.payload_bits
    remaining_bits = whole if remaining_bits is None else remaining_bits
    choices = range(1, scenario.bands + 1 if choice else 2)
    rate = torch.stack([planned_rate(scenario, snr, m) for m in choices], -1)
    rate = rate * (scenario.bandwidth_hz * scenario.slot_s)  # bits a slot
    alone = rate[..., 0].clamp(min=torch.finfo(torch.float32).tiny)
    slots = remaining_bits / alone  # [episode, client]
    order = soonest_first(scenario, slots, round_number, ready)
    if worth is not None:
        end = slots if ready is None else ready + slots
        per_slot = torch.where(end <= scenario.slots, worth / slots, 0.0).gather(1, order)
        order = order.gather(1, per_slot.argsort(dim=1, descending=True, stable=True))
    # From here on clients are in the order of service: [episode, place].
    needed = slots.gather(1, order)
    rate = rate.gather(1, order[..., None].expand(-1, -1, len(choices)))
    rate = rate / remaining_bits.gather(1, order).clamp(min=1.0)[..., None]  # payloads a slot
    value = torch.ones_like(needed) if worth is None else worth.gather(1, order)
    begin = None if ready is None else ready.gather(1, order)
    own = _turns(scenario, _most_likely(scenario, needed, rate, value, begin), begin)
    mine = deal(own) if choice else own
    rank = order.argsort(-1)
    place = rank[..., None, None].expand(mine.shape)
    slot = torch.arange(scenario.slots, device=snr.device)[:, None]
    band = torch.arange(scenario.bands, device=snr.device)
    logical = ((band - hop * slot) % scenario.bands).expand(mine.shape)
    bands, turns, grace = (
        part.gather(1, place).gather(-1, logical) for part in (mine, own, _after(own))
    )
    sent = _payloads(mine, rate).cumsum(-1)
    sent = torch.nn.functional.pad(sent[..., :-1], (1, 0)).gather(1, place[..., 0])
    return Reservation(bands, turns, grace, sent, whole / alone, rank)


def _most_likely(
    scenario: Scenario, needed: Tensor, rate: Tensor, value: Tensor, ready: Tensor | None
) -> Tensor:
    """Slots for each place [episode, place]: the first 1, 2, ... or N clients are served,
    whichever lets most of them finish, each counting its value [episode, place]."""
    place = torch.arange(needed.shape[1], device=needed.device)
    length = scenario.bands * scenario.slots
    most = needed.new_full((len(needed),), -1.0)
    kept = torch.zeros_like(needed)
    longest = torch.full_like(needed, scenario.slots)
    longest = longest if ready is None else longest - ready
    for last in range(needed.shape[1]):
        wanted = torch.where(place <= last, needed.minimum(longest), 0.0)
        spare = length / wanted.sum(-1, keepdim=True).clamp(min=1.0)
        given = (wanted * spare.clamp(max=SPARE)).minimum(longest)
        own = _turns(scenario, given, ready)
        served = deal(own) if rate.shape[-1] > 1 else own
        finish = likely_done(_payloads(served, rate).sum(-1))
        likely = (finish * value * (place <= last)).sum(-1)
        better = (spare[:, 0] >= 1.0) & (likely > most)
        most = torch.where(better, likely, most)
        kept = torch.where(better[:, None], given, kept)
    return kept


def after_turn(grace: Tensor, free: Tensor, needed: Tensor, left: Tensor) -> Tensor:
    """Where a client goes on without a sub-band of its own: [..., band] bool.

    One that is nearly done stays where its turn was (`grace` [..., band]); one that is late by no
    more than a few slots tries the sub-band whose holder is likeliest to be done (`free` [...,
    band]). `needed` [..., 1] slots are what its bits left take, `left` [..., 1] are still reserved.
    """
    stays = grace & (needed <= GRACE)
    late = (needed > left) & (needed <= LATE) & ~stays.any(-1, keepdim=True)
    band = torch.arange(free.shape[-1], device=free.device)
    likeliest = free.argmax(-1, keepdim=True) == band
    return stays | (likeliest & (free >= LIKELY) & late)


def holder_done(plan: Reservation) -> Tensor:
    """Probability that nobody uses a sub-band any more: [episode, slot, band]."""
    done = torch.where(plan.bands, likely_done(plan.sent)[..., None], 0.0).sum(1)
    return torch.where(plan.bands.any(1), done, 1.0)


def likely_done(sent: Tensor) -> Tensor:
    """Probability that a client expected to have sent this share of its payload has sent all."""
    return 0.5 * (1.0 + torch.erf((sent - 1.0) / (UNCERTAINTY * math.sqrt(2.0))))


def _payloads(mine: Tensor, rate: Tensor) -> Tensor:
    """Share of a payload expected to be sent in each slot, by the number of sub-bands to choose
    from: [episode, place, slot]."""
    return torch.nn.functional.pad(rate, (1, 0)).gather(-1, mine.sum(-1))


def _turns(scenario: Scenario, given: Tensor, ready: Tensor | None) -> Tensor:
    """Who sends when and on which logical sub-band: [episode, place, slot, band] bool."""
    return _row(scenario, given) if ready is None else _one_by_one(scenario, given, ready)


@unfused  # hundreds of slots
def _one_by_one(scenario: Scenario, given: Tensor, ready: Tensor) -> Tensor:
    """In every slot those who are ready, in the order of places; but whoever needs all the slots
    that are left goes first, so that the last ones are as full as those of a row."""
    bands, slots, clients = scenario.bands, scenario.slots, given.shape[1]
    place = torch.arange(clients, device=given.device)
    band = torch.arange(bands, device=given.device)
    left, turns = given.round(), []
    for slot in range(slots):
        can, must = (ready <= slot) & (left > 0), left >= slots - slot
        urgency = torch.where(can, place - clients * must, clients)
        rank = urgency.argsort(dim=-1, stable=True).argsort(-1)
        turn = can[..., None] & (rank[..., None] == band)  # [episode, place, band]
        left = left - turn.any(-1).float()
        turns.append(turn)
    return torch.stack(turns, 2)


def _row(scenario: Scenario, given: Tensor) -> Tensor:
    """Lay clients end to end and cut the row: [episode, place, slot, band] bool."""
    # Whole slots; a turn of at most T slots stays one. 1e-3 makes up for sums in float32.
    end = torch.floor(given.cumsum(-1) + 1e-3)
    start = torch.nn.functional.pad(end[..., :-1], (1, 0))[..., None, None]
    # A sum of floats may round a turn of T up to T + 1: nobody sends on two sub-bands at once.
    end = torch.minimum(end[..., None, None], start + scenario.slots)
    slot = torch.arange(scenario.slots, device=given.device)[:, None]
    band = torch.arange(scenario.bands, device=given.device)
    at = band * scenario.slots + slot  # [slot, band] place in the row
    return (at >= start) & (at < end)


def deal(mine: Tensor) -> Tensor:
    """`mine` and the sub-bands nobody has, dealt one by one to those who send, the last first."""
    sends = mine.any(-1)  # [episode, place, slot]
    free = ~mine.any(1)  # [episode, slot, band]
    card = free.cumsum(-1) - 1
    after = sends.flip(1).cumsum(1).flip(1) - 1  # senders behind: 0 for the last place
    hands = sends.sum(1).clamp(min=1)[..., None]  # [episode, slot, 1]
    dealt = (card % hands)[:, None] == after[..., None]
    return mine | (dealt & free[:, None] & sends[..., None])


def _after(own: Tensor) -> Tensor:
    """The sub-band of a client's turn, in the `GRACE` slots after it."""
    later = torch.zeros_like(own)
    for slots in range(1, min(GRACE, own.shape[-2] - 1) + 1):
        later[..., slots:, :] |= own[..., :-slots, :]
    return later & ~own.any(-1, keepdim=True)
