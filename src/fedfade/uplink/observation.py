"""What an agent sees, and what the mixer sees (paper: section IV-B).

An observation is a list of named parts, chosen in `allocation.observe`. Gains are in decibels
and everything is scaled to order 1, because networks learn badly from 1e-12 and 9932960.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedfade.uplink.scenario import Scenario
from fedfade.uplink.slot import Progress, Round

# Centre and scale of each quantity in the units named.
SNR_CENTRE_DB, SNR_SCALE_DB = 15.0, 15.0
FADING_SCALE_DB = 10.0
FADING_FLOOR = 1e-4  # -40 dB: a deep fade, below which a sub-band is equally useless
DEVIATION_SCALE = 4.0  # decades
DEVIATION_FLOOR = 1e-12


def _decibel(x: Tensor, floor: float) -> Tensor:
    return 10.0 * torch.log10(x.clamp(min=floor))


def scaled_snr(scenario: Scenario, round_: Round) -> Tensor:
    """Large-scale gains as mean SNR at full power: [episode, client]."""
    snr = round_.alpha * (scenario.full_power_w / scenario.noise_w)
    return (_decibel(snr, 1e-10) - SNR_CENTRE_DB) / SNR_SCALE_DB


def scaled_fading(scenario: Scenario, round_: Round, slot: int) -> Tensor:
    """Small-scale gains of a slot: [episode, client, band]."""
    if "fading" in scenario.hide:
        return torch.ones_like(round_.fading[:, slot])
    return _decibel(round_.fading[:, slot], FADING_FLOOR) / FADING_SCALE_DB


def scaled_deviation(scenario: Scenario, round_: Round) -> Tensor:
    """Squared gradient deviation in decades: [episode, client]."""
    if "gradient" in scenario.hide:
        return torch.ones_like(round_.deviation)
    return torch.log10(round_.deviation.clamp(min=DEVIATION_FLOOR)) / DEVIATION_SCALE


def _alphas(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    everybody = scaled_snr(scenario, round_)[:, None, :]
    return everybody.expand(-1, scenario.clients, -1)


def _fading(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    return scaled_fading(scenario, round_, slot)


def _remaining(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    return (progress.remaining_bits / scenario.payload_bits)[:, :, None]


def _slots_left(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    left = (scenario.slots - slot) / scenario.slots
    return torch.full_like(progress.remaining_bits, left)[:, :, None]


def _deviation(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    return scaled_deviation(scenario, round_)[:, :, None]


def _round(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    when = (round_.number / scenario.rounds)[:, None, None]
    return when.expand(-1, scenario.clients, 1)


def _finished(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    return progress.finished.to(torch.float32)[:, None, :].expand(-1, scenario.clients, -1)


Part = Callable[[Scenario, Round, Progress, int], Tensor]

PARTS: dict[str, Part] = {
    "alphas": _alphas,
    "fading": _fading,
    "remaining": _remaining,
    "slots_left": _slots_left,
    "deviation": _deviation,
    "round": _round,
    "finished": _finished,
}
"""Each part of an observation: [episode, client, width]."""


def observation_width(scenario: Scenario) -> int:
    """Numbers in one agent's observation; N + C + 4 for the paper's."""
    widths = {"alphas": scenario.clients, "finished": scenario.clients, "fading": scenario.bands}
    return sum(widths.get(part, 1) for part in scenario.observe)


def observe(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    """Every agent's local observation (paper: eq. 26): [episode, client, width]."""
    parts = [PARTS[name](scenario, round_, progress, slot) for name in scenario.observe]
    return torch.cat(parts, dim=-1)


def state_width(scenario: Scenario) -> int:
    """Numbers in the global state."""
    return scenario.clients * (scenario.bands + 3) + 2


def global_state(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    """What the mixer sees in training (paper: eq. 27): [episode, width]."""
    remaining = progress.remaining_bits / scenario.payload_bits
    left = (scenario.slots - slot) / scenario.slots
    return torch.cat(
        [
            scaled_snr(scenario, round_),
            scaled_fading(scenario, round_, slot).flatten(1),
            remaining,
            torch.full_like(remaining[:, :1], left),
            scaled_deviation(scenario, round_),
            (round_.number / scenario.rounds)[:, None],
        ],
        dim=-1,
    )
