"""One slot of the uplink of a cell, as a pure function, and the round it belongs to.

The same step serves comparison, training, PettingZoo and Flower: given what is left to send,
the gains of this slot and everybody's action, it says what is left afterwards.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.radio import db_to_linear, delivered_bits, sinr
from fedfade.randomness import uniform
from fedfade.uplink.scenario import Scenario


class Round(NamedTuple):
    """One round's upload problem; constant while its slots are played."""

    alpha: Tensor  # [episode, client] large-scale power gain, linear
    fading: Tensor  # [episode, slot, client, band] small-scale power gain; its mean: antennas
    inner: Tensor  # [episode, client, client] Gram matrix <d_n, d_n'> of the updates
    number: Tensor  # [episode] float, the federated round t
    age: Tensor  # [episode, client] rounds since its update arrived last, or since the first round
    # What is not there is empty: no slots, no antennas, no clients (`plain_round`).
    chance: Tensor  # [episode, slot, client] uniform numbers for the link
    other_cells_w: Tensor  # [episode, slot, band] power received from other cells
    # Of unit norm, in real and imaginary parts: compilers have no complex numbers.
    direction: Tensor  # [episode, slot, client, band, antenna, 2]
    ready_slot: Tensor  # [episode, client] first slot in which a client can send

    @property
    def deviation(self) -> Tensor:
        """Estimated squared gradient deviation |g_{t-1} - g_n|^2, from the server's memory of the
        client where it has one: [episode, client]."""
        return self.inner.diagonal(dim1=-2, dim2=-1)

    @property
    def staggered(self) -> Tensor | None:
        """`ready_slot` where clients are not all ready in slot 0."""
        return self.ready_slot if self.ready_slot.shape[-1] else None


def plain_round(
    alpha: Tensor,
    fading: Tensor,
    inner: Tensor,
    number: Tensor,
    age: Tensor,
    chance: Tensor | None = None,
) -> Round:
    """A round with one antenna and no other cells, in which everybody is ready from slot 0."""
    episodes, slots, clients, bands = fading.shape
    nothing = alpha.new_empty
    return Round(
        alpha,
        fading,
        inner,
        number,
        age,
        chance=nothing(episodes, 0, clients) if chance is None else chance,
        other_cells_w=nothing(episodes, 0, bands),
        direction=nothing(episodes, slots, clients, bands, 0, 2),
        ready_slot=nothing(episodes, 0),
    )


def as_announced(round_: Round, off_db: Tensor) -> Round:
    """A round whose announced gains are `off_db` [episode, client] above the real ones.

    What a client measures beside its announced gain, its fading, is as far below: what arrives is
    what it was.
    """
    off = db_to_linear(off_db)
    return round_._replace(alpha=round_.alpha * off, fading=round_.fading / off[:, None, :, None])


def draw_chance(scenario: Scenario, keys: Tensor) -> Tensor:
    """Uniform numbers by which the link decides who gets through: [episode, slot, client], none if
    it does not draw. `keys` [episode] seed them."""
    return uniform(keys, (scenario.slots if scenario.link.draws else 0, scenario.clients))


class Action(NamedTuple):
    """What every client does in a slot."""

    band: Tensor  # [episode, client] int64, 0 ... bands-1
    level: Tensor  # [episode, client] int64, index into the power levels


def decode_action(scenario: Scenario, choice: Tensor, slot: int | Tensor = 0) -> Action:
    """The action behind a number 0 ... actions-1: sub-band times levels plus power level, or, where
    power is binary, the sub-band, and the last one silence.

    Given the slot, the sub-band is the physical one (`hop`).

    >>> from fedfade.config import load_config
    >>> from fedfade.uplink import scenario_from_config
    >>> decode_action(scenario_from_config(load_config("paper"), 1.0), torch.tensor([0, 7, 15]))
    Action(band=tensor([0, 1, 3]), level=tensor([0, 3, 3]))
    """
    if scenario.binary_power:
        band = choice.clamp(max=scenario.bands - 1)
        level = torch.where(choice == band, scenario.full_level, scenario.silent_level)
    else:
        band = torch.div(choice, scenario.levels, rounding_mode="floor")
        level = choice - band * scenario.levels
    return hop(scenario, Action(band, level), slot)


def encode_action(scenario: Scenario, action: Action, slot: int | Tensor = 0) -> Tensor:
    """The reverse of `decode_action`: the number of every client's action as it is sent in a slot,
    [episode, client]."""
    band, level = action
    if scenario.hop_subbands:
        band = (band - slot) % scenario.bands
    if scenario.binary_power:
        return torch.where(level == scenario.silent_level, scenario.bands, band)
    return band * scenario.levels + level


def hop(scenario: Scenario, action: Action, slot: int | Tensor) -> Action:
    """An agent's action as it is sent in a slot, an int or a tensor [1]: where sub-bands hop,
    logical b is physical (b + slot) mod C."""
    if not scenario.hop_subbands:
        return action
    return action._replace(band=(action.band + slot) % scenario.bands)


def by_logical_band(round_: Round) -> Round:
    """The round as seen by who hops: staying on a logical sub-band is hopping over all."""
    _, slots, _, bands = round_.fading.shape
    slot, band = (torch.arange(n, device=round_.fading.device) for n in (slots, bands))
    physical = (band + slot[:, None, None]) % bands  # [slot, 1, band]
    return round_._replace(fading=round_.fading.gather(-1, physical.expand(round_.fading.shape)))


class Progress(NamedTuple):
    """What changes from slot to slot."""

    remaining_bits: Tensor  # [episode, client], as `Scenario.counted_in` says
    link_state: Tensor = torch.zeros(0)  # [episode, client, width], where the link remembers

    @property
    def finished(self) -> Tensor:
        """Who has delivered everything (paper: eq. 13): [episode, client] bool."""
        return self.remaining_bits <= 0


class SlotResult(NamedTuple):
    rate_bps: Tensor  # [episode, client]
    bits: Tensor  # [episode, client] bits that counted towards the payload
    finished_now: Tensor  # [episode, client] bool
    sends: Tensor  # [episode, client] bool: not done, ready, and the round not over
    power_w: Tensor  # [episode, client] transmit power


def start_round(
    scenario: Scenario, episodes: int, remaining_bits: Tensor | None = None
) -> Progress:
    """Everybody has the whole payload to send, or what is given: [episode, client]."""
    shape, dtype = (episodes, scenario.clients), scenario.counted_in
    if remaining_bits is None:
        remaining_bits = torch.zeros(shape, dtype=dtype, device=scenario.device)
        remaining_bits = remaining_bits + scenario.payload_bits
    # What belongs together lies together: [width, episode, client] in memory.
    state = scenario.link.initial[:, None, None].repeat(1, *shape).movedim(0, -1)
    return Progress(remaining_bits.to(dtype), state)


def arrived(scenario: Scenario, progress: Progress) -> Tensor:
    """What counts of each client's upload: whether all of it has arrived, bool, or the share that
    has, if a part counts: [episode, client]."""
    if not scenario.count_partial:
        return progress.finished
    share = 1.0 - (progress.remaining_bits / scenario.payload_bits).float()
    return torch.where(progress.finished, 1.0, share)


def noise_rise_db(scenario: Scenario, round_: Round) -> Tensor:
    """How far other cells raise the noise, the mean in dB over a round: [episode].

    The base station announces it with the gains, in steps of 0.1 dB. The levels of single slots
    are known to nobody in advance.
    """
    if not scenario.other_cells:
        return torch.zeros_like(round_.number)
    rise = torch.log10(1.0 + round_.other_cells_w / scenario.noise_w).mean((1, 2))
    return torch.round(100.0 * rise) / 10.0


def mean_snr(scenario: Scenario, round_: Round) -> Tensor:
    """Mean SNR at full power at one antenna, other cells counted as noise, as all know it:
    [episode, client]."""
    snr = round_.alpha * (scenario.full_power_w / scenario.noise_w)
    if not scenario.other_cells:
        return snr
    return snr / db_to_linear(noise_rise_db(scenario, round_))[:, None]


Slots = int | tuple[int, int] | Tensor
"""A slot, an int or a tensor [1], or two, a pair or a tensor [2]."""


class Air(NamedTuple):
    """What is between the clients and the base station: now, or, along an axis in front, now and
    when the base station measured what link adaptation goes by."""

    gain: Tensor  # [..., episode, client, band] H = alpha * h
    noise_w: float | Tensor  # a number, or [..., episode, band] with what other cells send in it
    direction: Tensor | None  # [..., episode, client, band, antenna, 2]; None with one antenna


class SlotAir(NamedTuple):
    """All of a round that a slot is played in."""

    air: Air
    ready: Tensor  # [episode, client] bool, who can send; the last axis empty where all can
    chance: Tensor  # [episode, client] uniform numbers; the last axis empty where none are needed
    quorum: int | Tensor | None = None  # uploads with which the round is over; None: those of all


def slot_air(scenario: Scenario, round_: Round, slot: int | Tensor) -> SlotAir:
    """The air of one slot, an int or a tensor [1]. A round begins with a measurement: in its first
    slots nothing older is known."""
    link, delay = scenario.link, scenario.link_delay_slots
    slots: Slots = slot
    if link.adapts and delay:
        if isinstance(slot, int):
            slots = slot, max(slot - delay, 0)
        else:
            slots = torch.cat([slot, slot - delay]).clamp_(min=0)
    air = _air(scenario, round_, slots)
    chance = _of_slot(round_.chance, slot) if link.draws else round_.chance[:, :0, 0]
    (first, last), quorum = scenario.quorum, None
    if last < scenario.clients:
        fewer = (first - last) * slot // scenario.slots  # in whole numbers: the same everywhere
        quorum = first - fewer
    return SlotAir(air, round_.ready_slot <= slot, chance, quorum)


def is_over(progress: Progress, quorum: int | Tensor) -> Tensor:
    """Whether as many have delivered as end the round: [episode] bool."""
    return progress.finished.sum(-1) >= quorum


def _of_slot(by_slot: Tensor, slots: Slots) -> Tensor:
    """[episode, slot, ...] -> [episode, ...], or [2, episode, ...] of two slots."""
    if isinstance(slots, int):
        return by_slot[:, slots]
    if isinstance(slots, tuple):
        return torch.stack([by_slot[:, slot] for slot in slots])
    found = by_slot.index_select(1, slots)
    return found[:, 0] if len(slots) == 1 else found.transpose(0, 1)


def _air(scenario: Scenario, round_: Round, slots: Slots) -> Air:
    """The air in a slot (paper: eq. 9), or in two."""
    gain = round_.alpha[:, :, None] * _of_slot(round_.fading, slots)
    noise_w: float | Tensor = scenario.noise_w
    if scenario.other_cells:
        noise_w = noise_w + _of_slot(round_.other_cells_w, slots)
    several = round_.direction.shape[-2] > 0
    return Air(gain, noise_w, _of_slot(round_.direction, slots) if several else None)


def play_slot(
    scenario: Scenario, progress: Progress, air: SlotAir, action: Action
) -> tuple[Progress, SlotResult]:
    """Send for one slot; clients that are done stay silent whatever they answered, and so do those
    who are not ready, and all when the round is over."""
    active = ~progress.finished
    sends = active & air.ready if air.ready.shape[-1] else active
    if air.quorum is not None:
        sends = sends & ~is_over(progress, air.quorum)[:, None]
    power_w = scenario.power_w[action.level] * sends
    gain, noise_w, direction = air.air
    found = sinr(gain, action.band, power_w, noise_w, direction, scenario.receiver)
    ratio, known = (found, found) if found.ndim == 2 else found.unbind()
    state, rate = scenario.link.send(progress.link_state, ratio, known, air.chance)
    bits = delivered_bits(rate, scenario.slot_s, progress.remaining_bits)
    after = progress.remaining_bits - bits
    result = SlotResult(rate, bits, active & (after <= 0), sends, power_w)
    return Progress(after, state), result
