"""What no slot and no round of the uplink changes: its sizes, its link, weights of the reward."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.learning import Payload
from fedfade.radio import LoadedLink, dbm_to_w, load_link, noise_w
from fedfade.uplink.expected import rate_table

_SINGLE_BITS = 2**24
"""float32 tells one bit from the next up to here. Of a larger payload it would lose bits slot by
slot (0.2 % of 1e10, 12 % of 1e12), so what is left of one is counted in float64."""


class RewardWeights(NamedTuple):
    """Weights of the slot reward, as `allocation.reward` has them: numbers, or [episode]."""

    convergence: float | Tensor
    rate: float | Tensor
    delivered: float | Tensor
    deviation: float | Tensor
    finished: float | Tensor


@dataclass(frozen=True)
class Scenario:
    """Everything about the uplink that no slot and no round changes."""

    clients: int
    bands: int
    slots: int
    rounds: int
    payload_bits: Payload
    count_partial: bool  # what arrived of an unfinished upload counts
    bandwidth_hz: float
    slot_s: float
    noise_w: float
    link: LoadedLink  # what gets through of a slot
    link_delay_slots: int  # age of the air it adapts to
    rate_table: Tensor | None  # what a link that adapts is expected to carry (`expected.py`)
    power_w: Tensor  # [level] transmit power; exactly 0 for the silent level
    full_power_w: float  # the strongest level
    full_level: int
    silent_level: int
    antennas: int  # of the base station; fading is what all gather, so its mean is their number
    receiver: str  # how several are combined
    other_cells: bool  # clients of other cells are heard
    fading_shape: float  # of the gamma distribution nearest to a sub-band's fading
    reward: RewardWeights
    observe: tuple[str, ...]
    hide: tuple[str, ...]
    csi_delay_slots: int  # age of the fading others announce
    hold_slots: int  # an agent decides in slots 0, hold_slots, 2 hold_slots, ...
    hop_subbands: bool  # the sub-bands agents see and choose are logical
    binary_power: bool  # agents send at full power or not at all
    ranked_state: bool  # clients stand in the state by rank instead of by number
    quorum: tuple[int, int]  # uploads that end a round before its first slot, and after its last
    remembers: bool  # the server takes the last update of those who do not deliver

    counted_in: torch.dtype = field(init=False)  # what is left of a payload

    def __post_init__(self) -> None:
        large = bool((torch.as_tensor(self.payload_bits) > _SINGLE_BITS).any())
        object.__setattr__(self, "counted_in", torch.float64 if large else torch.float32)

    @property
    def levels(self) -> int:
        return self.power_w.numel()

    @property
    def actions(self) -> int:
        """Choices an agent has: sub-band times power level (paper: section IV-C); a sub-band at
        full power, or silence, where power is binary."""
        return self.bands + 1 if self.binary_power else self.bands * self.levels

    @property
    def decisions(self) -> int:
        """Times an agent decides in a round; the last decision may be held for fewer slots."""
        return -(-self.slots // self.hold_slots)

    @property
    def mean_payload_bits(self) -> Payload:
        """Over clients, where they differ."""
        bits = self.payload_bits
        return bits.mean() if isinstance(bits, Tensor) else bits

    @property
    def device(self) -> torch.device:
        return self.power_w.device


def scenario_from_config(
    config: Config, payload_bits: Payload, device: torch.device | str = "cpu"
) -> Scenario:
    """The scenario a config describes; `payload_bits` because `auto` depends on the model."""
    radio, allocation = config.radio, config.allocation
    # Rays of one cluster reach all antennas: four of the clustered channel's fade like two
    # (docs/explanation/channel.md). Those of other sources are independent.
    alike = 0.5 if radio.source == "clustered" else 1.0
    link = load_link(radio, device)
    return Scenario(
        clients=config.learning.clients,
        bands=radio.subbands,
        slots=radio.slots,
        rounds=config.run.rounds,
        payload_bits=payload_bits.to(device) if isinstance(payload_bits, Tensor) else payload_bits,
        count_partial=config.learning.count_partial,
        bandwidth_hz=radio.bandwidth_hz,
        slot_s=radio.slot_s,
        noise_w=noise_w(radio),
        link=link,
        link_delay_slots=radio.link_delay_slots,
        rate_table=rate_table(config).to(device) if link.adapts else None,
        power_w=dbm_to_w(torch.tensor(radio.power_levels_dbm, device=device)),
        full_power_w=float(dbm_to_w(radio.power_levels_dbm[radio.full_level])),
        full_level=radio.full_level,
        silent_level=radio.silent_level,
        antennas=radio.receive_antennas,
        receiver=radio.receiver,
        other_cells=config.cell.interference_cells > 0,
        fading_shape=radio.fading_shape * radio.receive_antennas**alike,
        reward=RewardWeights(**allocation.reward.model_dump()),
        observe=tuple(allocation.observe),
        hide=tuple(allocation.hide),
        csi_delay_slots=allocation.csi_delay_slots,
        hold_slots=config.qmix.hold_slots,
        hop_subbands=config.qmix.hop_subbands,
        binary_power=config.qmix.power == "binary",
        ranked_state=config.qmix.state == "order",
        quorum=_quorum(config),
        remembers=config.learning.remembers,
    )


def _quorum(config: Config) -> tuple[int, int]:
    """As `run.deadline` says."""
    first = last = config.learning.clients
    if config.run.deadline != "fixed":
        last = config.run.deadline_clients
    return (last if config.run.deadline == "wait-for-k" else first), last
