"""How long the exact max sum rate takes, and what enumeration would take instead."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from fedfade.allocation import max_sum_rate, sum_rate_nats
from fedfade.bench import machine, median_cpu_ms
from fedfade.randomness import fold, normal, stream, uniform

SLOTS = 250
SNRS_DB = (-10.0, 0.0, 10.0, 20.0)


def measure(repeats: int = 5) -> dict[str, object]:
    """Milliseconds a slot at N=10, C=4 for weak to strong clients; ratio to enumeration."""
    torch.set_num_threads(1)
    figures: dict[str, object] = {"clients": 10, "bands": 4, "slots": SLOTS}
    times = []
    for snr_db in SNRS_DB:
        received = instances(snr_db, 10, 4, SLOTS)
        times.append(median_cpu_ms(partial(max_sum_rate, received, 1.0), repeats) / SLOTS)
        figures[f"ms_per_slot_at_{snr_db:.0f}_db"] = times[-1]
    # The headline is the slowest of them: weak clients, where sub-bands may be shared.
    figures["ms_per_slot"] = max(times)
    small = instances(0.0, 5, 3, SLOTS)
    exact = median_cpu_ms(partial(max_sum_rate, small, 1.0), repeats) / SLOTS
    brute = median_cpu_ms(partial(_enumerate, small[:25]), repeats) / 25
    figures["ms_per_slot_n5_c3"] = exact
    figures["ms_per_slot_n5_c3_enumerated"] = brute
    figures["ratio_to_enumeration_n5_c3"] = exact / brute
    found = sum_rate_nats(small[:25], max_sum_rate(small[:25], 1.0))
    figures["largest_gap_to_enumeration"] = float((_enumerate(small[:25]) - found).max())
    return figures | machine()


def instances(
    snr_db: float, clients: int, bands: int, slots: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Received SNR under Rayleigh fading, 5 dB spread between clients: [slot, client, band]."""
    keys = fold(stream(0, "bench schedule"), torch.arange(slots, device=device))
    level = snr_db + 5.0 * normal(fold(keys, 1), (clients, 1))
    return torch.pow(10.0, level / 10) * -torch.log(uniform(fold(keys, 2), (clients, bands)))


def _enumerate(received: Tensor) -> Tensor:
    """The best sum rate over all (C+1)^N choices, vectorised: [slot]."""
    clients, bands = received.shape[-2:]
    every = torch.tensor(list(itertools.product(range(-1, bands), repeat=clients)))
    rates = [sum_rate_nats(slot[None], every).max() for slot in received]
    return torch.stack(rates)
