"""A bound: no policy, however clairvoyant, can have more clients deliver in a round.

Any choice of bands and powers gives client n in a slot and sub-band at most x_n L_n nats, where
x_n is its share of the received power, L_n = (1 + 1/P_n) ln(1 + P_n) and P_n its SNR at full
power (docs/explanation/policies.md has the three lines of proof). Shares on a sub-band sum to at
most T/(1+T), T the sum of all P_n, and a client is on one sub-band at a time; P_n is 0 in
slots before it is ready. Rounds that end early (`run.deadline`) deliver no more. So for any prices
mu in [0, 1]^N, the number of clients that deliver S bits (S_n of their own) is at most

    sum_n (1 - mu_n) + (1/S) sum over slots of the best assignment of mu_n L_n to sub-bands.

With M antennas and any linear receiver x_n is at most q_n = h_n^H R^-1 h_n, R being the covariance
of all that is received; these sum to at most M T/(M+T), and none is above P_n/(1+P_n). So a
sub-band is M places instead of one. Noise with other cells in it is that of the slot: the genie
knows it.

A link that carries no more than Shannon's rate, and never more than m nats, makes it tighter: then
x_n L_n is also at most x_n m / (1 - e^-m), because the rate is convex in x_n until it reaches m.

The prices are fitted by subgradient steps; a bad fit makes the bound loose, never wrong.
"""

import math

import torch
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.uplink import Round, Scenario

_STEPS = 80


def genie_bound(scenario: Scenario, round_: Round) -> Tensor:
    """Upper bound on the number of clients that can deliver in each episode: [episode]."""
    snr = round_.alpha[:, None, :, None] * round_.fading  # [episode, slot, client, band]
    snr = snr * (scenario.full_power_w / scenario.noise_w)
    if scenario.other_cells:
        snr = snr / (1.0 + round_.other_cells_w / scenario.noise_w)[:, :, None]
    if (ready := round_.staggered) is not None:  # nobody sends before it is ready
        slot = torch.arange(scenario.slots, device=snr.device)[:, None]
        snr = snr * (ready[:, None] <= slot)[..., None]
    total, places = snr.sum(-2, keepdim=True), scenario.antennas
    nats = torch.where(snr > 1e-6, (1.0 + 1.0 / snr.clamp(min=1e-6)) * torch.log1p(snr), 1.0)
    most = scenario.link.efficiency(torch.full((1,), 1e30, device=snr.device)) * math.log(2.0)
    # A link may carry nothing at any SINR, as NR does with a gap of 60 dB: 0, where this is 0 / 0.
    nats = torch.minimum(nats, torch.where(most > 0, most / -torch.expm1(-most), 0.0))
    share = total / (places + total)
    if places > 1:  # with one antenna no client's own limit is above it
        share = torch.maximum(share, snr / (1.0 + snr))
    nats = torch.where(snr > 0, nats, 0.0) * share
    bits = scenario.payload_bits
    bits = bits[:, None] if isinstance(bits, Tensor) else bits  # [client, band]
    per_slot = scenario.bandwidth_hz * scenario.slot_s / math.log(2.0) / bits
    payloads = nats * per_slot  # what a client with a sub-band's share to itself could send
    price = _fit_prices(payloads, places)
    # With the one-sub-band rule back in: an assignment instead of the best clients per band.
    _, carried = assign((price[:, None, :, None] * payloads).repeat(1, 1, 1, places))
    bound = (1.0 - price).sum(-1) + carried.sum(-1)
    return torch.floor(bound.clamp(max=scenario.clients) + 1e-4)


def _fit_prices(payloads: Tensor, places: int) -> Tensor:
    """Projected subgradient descent on the relaxed bound: [episode, client]."""
    episodes, _, clients, _ = payloads.shape
    price = torch.full((episodes, clients), 0.7, device=payloads.device)
    best_price, best_value = price, torch.full((episodes,), math.inf, device=payloads.device)
    for step in range(_STEPS):
        priced = price[:, None, :, None] * payloads
        winner = (  # `max` finds the one in a third of the time
            priced.max(-2, True) if places == 1 else priced.topk(min(places, clients), dim=-2)
        )
        value = (1.0 - price).sum(-1) + winner.values.sum((-3, -2, -1))
        better = value < best_value
        best_price = torch.where(better[:, None], price, best_price)
        best_value = torch.where(better, value, best_value)
        won = torch.zeros_like(payloads).scatter_(-2, winner.indices, 1.0)
        slope = (won * payloads).sum((1, 3)) - 1.0  # payloads served beyond the one needed
        price = (price - 0.3 / math.sqrt(step + 1.0) * slope).clamp(0.0, 1.0)
    return best_price
