"""One slot of the uplink, as a pure function.

The same step serves comparison, training, PettingZoo and Flower: given what is left to send,
the gains of this slot and everybody's action, it says what is left afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.radio.link import delivered_bits, rate_bps, sinr
from fedfade.uplink.scenario import Scenario


class Action(NamedTuple):
    """What every client does in a slot."""

    band: Tensor  # [episode, client] int64, 0 ... bands-1
    level: Tensor  # [episode, client] int64, index into the power levels


class Round(NamedTuple):
    """One round's upload problem; constant while its slots are played."""

    alpha: Tensor  # [episode, client] large-scale power gain, linear
    fading: Tensor  # [episode, slot, client, band] small-scale power gain, unit mean
    inner: Tensor  # [episode, client, client] Gram matrix <d_n, d_n'> of the updates
    number: Tensor  # [episode] float, the federated round t

    @property
    def deviation(self) -> Tensor:
        """Estimated squared gradient deviation |g_{t-1} - g_n|^2: [episode, client]."""
        return self.inner.diagonal(dim1=-2, dim2=-1)


def decode_action(scenario: Scenario, choice: Tensor) -> Action:
    """The action behind a number 0 ... actions-1: sub-band times levels plus power level.

    >>> from fedfade.config import load_config
    >>> from fedfade.uplink import scenario_from_config
    >>> decode_action(scenario_from_config(load_config("paper"), 1.0), torch.tensor([0, 7, 15]))
    Action(band=tensor([0, 1, 3]), level=tensor([0, 3, 3]))
    """
    band = torch.div(choice, scenario.levels, rounding_mode="floor")
    return Action(band, choice - band * scenario.levels)


class Progress(NamedTuple):
    """What changes from slot to slot."""

    remaining_bits: Tensor  # [episode, client]

    @property
    def finished(self) -> Tensor:
        """Who has delivered everything: [episode, client] bool."""
        return self.remaining_bits <= 0


class SlotResult(NamedTuple):
    """What one slot brought."""

    rate_bps: Tensor  # [episode, client]
    bits: Tensor  # [episode, client] bits that counted towards the payload
    finished_now: Tensor  # [episode, client] bool


def start_round(scenario: Scenario, episodes: int) -> Progress:
    """Everybody has the whole payload before them."""
    shape = (episodes, scenario.clients)
    return Progress(torch.full(shape, scenario.payload_bits, device=scenario.device))


def slot_gain(round_: Round, slot: int) -> Tensor:
    """Power gain H = alpha * h in one slot (paper: eq. 9): [episode, client, band]."""
    return round_.alpha[:, :, None] * round_.fading[:, slot]


def play_slot(
    scenario: Scenario, progress: Progress, gain: Tensor, action: Action
) -> tuple[Progress, SlotResult]:
    """Send for one slot; clients that are done stay silent whatever they answered."""
    active = ~progress.finished
    power_w = scenario.power_w[action.level] * active
    rate = rate_bps(sinr(gain, action.band, power_w, scenario.noise_w), scenario.bandwidth_hz)
    bits = delivered_bits(rate, scenario.slot_s, progress.remaining_bits)
    after = progress.remaining_bits - bits
    result = SlotResult(
        rate_bps=rate,
        bits=bits,
        finished_now=active & (after <= 0),
    )
    return Progress(after), result
