"""The fixed numbers of one uplink: what a slot can carry and what a round must."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfade.config import Config, RadioConfig, RewardConfig
from fedfade.radio.link import dbm_to_w, noise_w


@dataclass(frozen=True)
class Scenario:
    """Everything about the uplink that no slot and no round changes."""

    clients: int
    bands: int
    slots: int
    rounds: int
    payload_bits: float
    bandwidth_hz: float
    slot_s: float
    noise_w: float
    power_w: Tensor  # [level] transmit power; exactly 0 for the silent level
    full_power_w: float  # the strongest level
    full_level: int
    silent_level: int
    fading_shape: float  # of the gamma distribution nearest to a sub-band's fading
    reward: RewardConfig
    observe: tuple[str, ...]
    hide: tuple[str, ...]
    csi_delay_slots: int  # age of the fading others announce

    @property
    def levels(self) -> int:
        """Number of power levels."""
        return self.power_w.numel()

    @property
    def actions(self) -> int:
        """Choices an agent has in a slot: sub-band times power level."""
        return self.bands * self.levels

    @property
    def device(self) -> torch.device:
        """Where the tensors of this scenario live."""
        return self.power_w.device


def scenario_from_config(
    config: Config, payload_bits: float, device: torch.device | str = "cpu"
) -> Scenario:
    """The scenario a config describes; `payload_bits` because `auto` depends on the model."""
    radio = config.radio
    assert radio.silent_level is not None  # the config's own check
    return Scenario(
        clients=config.learning.clients,
        bands=radio.subbands,
        slots=radio.slots,
        rounds=config.run.rounds,
        payload_bits=float(payload_bits),
        bandwidth_hz=radio.bandwidth_hz,
        slot_s=radio.slot_s,
        noise_w=noise_w(radio),
        power_w=dbm_to_w(torch.tensor(radio.power_levels_dbm, device=device)),
        full_power_w=float(dbm_to_w(radio.power_levels_dbm[radio.full_level])),
        full_level=radio.full_level,
        silent_level=radio.silent_level,
        fading_shape=_fading_shape(radio),
        reward=config.allocation.reward,
        observe=tuple(config.allocation.observe),
        hide=tuple(config.allocation.hide),
        csi_delay_slots=config.allocation.csi_delay_slots,
    )


def _fading_shape(radio: RadioConfig) -> float:
    """Rayleigh at one frequency; a mean over a sub-band of the clustered channel spreads by
    3.5 dB instead of 5.6, as a gamma variable of shape 2 does."""
    averaged = radio.subband_gain == "average" and radio.subcarriers > 1
    return 2.0 if radio.source == "clustered" and averaged else 1.0
