"""Who sends when, worked out before the first slot from the large-scale gains alone.

The gains are announced to all, so every client computes the same plan and needs to hear nothing
from the others during the round.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.uplink.scenario import Scenario


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


def expected_slots(scenario: Scenario, snr: Tensor, remaining_bits: Tensor) -> Tensor:
    """Slots a client alone on a sub-band needs for what it has left: [episode, client]."""
    bits_per_slot = ergodic_rate(snr) * scenario.bandwidth_hz * scenario.slot_s
    return remaining_bits / bits_per_slot.clamp(min=torch.finfo(torch.float32).tiny)


def shortest_first(scenario: Scenario, slots: Tensor, round_number: Tensor) -> Tensor:
    """Clients in order of expected slots: [episode, client].

    Among equals the turn moves on by as many clients as there are sub-bands every round, which
    everybody can work out, so that on a ring not always the same ones are served.
    """
    number = torch.arange(scenario.clients, device=slots.device)
    passed = (round_number.long() * scenario.bands)[:, None]
    by_turn = ((number - passed) % scenario.clients).argsort(-1)
    return by_turn.gather(-1, slots.gather(-1, by_turn).argsort(dim=-1, stable=True))


MARGIN = 1.1
"""A client may start if its expected end is at most this many rounds away. The estimate takes
Rayleigh fading; a sub-band's average fades less, so that clients tend to finish earlier."""


class Timetable(NamedTuple):
    """Who sends where and from when, fixed at the start of a round."""

    band: Tensor  # [episode, client]
    start: Tensor  # [episode, client] first slot, inf for who is not to send
    end: Tensor  # [episode, client] slot by which it is expected to be done, inf likewise
    rank: Tensor  # [episode, client] place in the order of service, 0 first


def timetable(
    scenario: Scenario, snr: Tensor, round_number: Tensor, remaining_bits: Tensor | None = None
) -> Timetable:
    """Fill the sub-bands shortest client first; the next one follows at the expected end.

    `snr` [episode, client] is the mean SNR at full power; `remaining_bits` what each has to
    send, the whole payload if not given.
    """
    if remaining_bits is None:
        remaining_bits = torch.full_like(snr, scenario.payload_bits)
    slots = expected_slots(scenario, snr, remaining_bits)
    order = shortest_first(scenario, slots, round_number)
    free = torch.zeros(len(slots), scenario.bands, device=slots.device)  # when a band is free
    band, start, end = torch.zeros_like(order), torch.zeros_like(slots), torch.zeros_like(slots)
    for place in range(scenario.clients):
        client = order[:, place, None]
        earliest, where = free.min(dim=-1, keepdim=True)
        done = earliest + slots.gather(1, client)
        # Who cannot make the deadline would only disturb the one before.
        useful = (done <= MARGIN * scenario.slots) | (earliest == 0)
        band.scatter_(1, client, where)
        start.scatter_(1, client, torch.where(useful, earliest, torch.inf))
        end.scatter_(1, client, torch.where(useful, done, torch.inf))
        free.scatter_(1, where, torch.where(useful, done, earliest))
    return Timetable(band, start, end, order.argsort(-1))
