"""What an agent sees, and what the mixer sees (paper: section IV-B).

An observation is a list of named parts, chosen in `allocation.observe`. Gains are in decibels
and everything is scaled to order 1, because networks learn badly from 1e-12 and 9932960.

Nearly all of it is known before the first slot: gains, deviations, the clock. That part is a
`StaticObservation`, made once a round for all slots; a slot then only fills in the progress.

What an agent needs to be told for it, beyond the large-scale gains announced once a round:

    nothing            alphas, fading, remaining, slots_left, deviation, round, schedule,
                       reservation, time_to_finish
    who has finished   finished
    everybody's fading others_fading, fresh or `allocation.csi_delay_slots` old
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.uplink.plan import after_turn, expected_slots, holder_done, reserve, timetable
from fedfade.uplink.scenario import Scenario
from fedfade.uplink.slot import Progress, Round

# Centre and scale of each quantity in the units named.
SNR_CENTRE_DB, SNR_SCALE_DB = 15.0, 15.0
SNR_FLOOR = 1e-10
FADING_SCALE_DB = 10.0
FADING_FLOOR = 1e-4  # -40 dB: a deep fade, below which a sub-band is equally useless
DEVIATION_SCALE = 4.0  # decades
DEVIATION_FLOOR = 1e-12
PLAN_BOUND = 2.0  # rounds: farther away than this, and never, look the same
BOUND = 10.0
"""No observed value leaves [-BOUND, BOUND]; sensible ones stay far inside."""


class StaticObservation(NamedTuple):
    """What is observed in each slot whatever the clients do; progress is filled in later."""

    observation: Tensor  # [slot, client, episode, width]: client first, as stacked networks want
    state: Tensor  # [slot, episode, width]


def _decibel(x: Tensor, floor: float) -> Tensor:
    return 10.0 * torch.log10(x.clamp(min=floor))


def _snr(scenario: Scenario, round_: Round) -> Tensor:
    """Mean SNR at full power: [episode, client]."""
    return round_.alpha * (scenario.full_power_w / scenario.noise_w)


def scaled_snr(scenario: Scenario, round_: Round) -> Tensor:
    """Large-scale gains as mean SNR at full power: [episode, client]."""
    snr = _snr(scenario, round_)
    return ((_decibel(snr, SNR_FLOOR) - SNR_CENTRE_DB) / SNR_SCALE_DB).clamp(-BOUND, BOUND)


def scaled_fading(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Small-scale gains in some slots: [episode, slot, client, band]."""
    fading = round_.fading.index_select(1, slots)
    if "fading" in scenario.hide:
        return torch.ones_like(fading)
    return (_decibel(fading, FADING_FLOOR) / FADING_SCALE_DB).clamp(max=BOUND)


def scaled_deviation(scenario: Scenario, round_: Round) -> Tensor:
    """Squared gradient deviation in decades: [episode, client]."""
    if "gradient" in scenario.hide:
        return torch.ones_like(round_.deviation)
    decades = torch.log10(round_.deviation.clamp(min=DEVIATION_FLOOR))
    return (decades / DEVIATION_SCALE).clamp(max=BOUND)


def scaled_clock(scenario: Scenario, slots: Tensor) -> Tensor:
    """Share of the slots left, this one included: [slot]."""
    return (scenario.slots - slots) / scenario.slots


# --- the named parts of an observation: [slot, client, episode, width], or broadcast to it ------


def _alphas(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return scaled_snr(scenario, round_)[None, None]


def _fading(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return scaled_fading(scenario, round_, slots).permute(1, 2, 0, 3)


def _others_fading(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Everybody's fading `csi_delay_slots` ago; the mean, 0 dB, while there is none so old."""
    measured = slots - scenario.csi_delay_slots
    fading = scaled_fading(scenario, round_, measured.clamp(min=0))
    if "fading" not in scenario.hide:
        fading = fading * (measured >= 0)[None, :, None, None]
    return fading.transpose(0, 1).flatten(2)[:, None]


def _slots_left(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return scaled_clock(scenario, slots)[:, None, None, None]


def _deviation(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return scaled_deviation(scenario, round_).T[None, :, :, None]


def _round(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return (round_.number / scenario.rounds)[None, None, :, None]


def _schedule(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Own place in the block-fading schedule: sends now, its sub-band (one of C), rounds until
    its start and until its expected end, rank in the order of service."""
    plan = timetable(scenario, _snr(scenario, round_), round_.number)
    start, end = plan.start.T, plan.end.T  # [client, episode]
    now = slots[:, None, None]
    band = plan.band.T[..., None] == torch.arange(scenario.bands, device=scenario.device)
    columns = [
        (start <= now)[..., None].float(),
        band.float().expand(len(slots), *band.shape),
        ((start - now) / scenario.slots).clamp(0.0, PLAN_BOUND)[..., None],
        ((end - now) / scenario.slots).clamp(-PLAN_BOUND, PLAN_BOUND)[..., None],
        (plan.rank.T / scenario.clients).expand(len(slots), *start.shape)[..., None],
    ]
    return torch.cat(columns, dim=-1)


def _reservation(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Own place in the wrap-around plan. C columns each: the planned sub-band (of the reserved
    ones the best by own fading), all reserved ones, where to go on after the own turn, how likely
    it is that a sub-band's holder is done; then rounds until the own turn, share of the slots
    reserved from now on, rounds the bits left take, rank."""
    plan = reserve(scenario, _snr(scenario, round_), round_.number)
    mine = plan.bands.permute(2, 1, 0, 3)  # [slot, client, episode, band]
    sends = mine.any(-1, keepdim=True)
    every = torch.arange(scenario.slots, device=slots.device)
    fading = scaled_fading(scenario, round_, every).permute(1, 2, 0, 3)
    best = torch.where(mine, fading, -BOUND).argmax(-1, keepdim=True)
    planned = (best == torch.arange(scenario.bands, device=scenario.device)) & sends
    free = holder_done(plan).transpose(0, 1)[:, None]  # [slot, 1, episode, band]
    needed = (plan.slots.T / scenario.slots).clamp(max=PLAN_BOUND)[None, :, :, None]
    columns = [
        planned.float(),
        mine.float(),
        plan.grace.permute(2, 1, 0, 3).float(),
        free.expand(mine.shape),
        _until(sends) / scenario.slots,
        sends.flip(0).cumsum(0).flip(0) / scenario.slots,
        needed.expand(sends.shape),
        (plan.rank.T / scenario.clients)[None, :, :, None].expand(sends.shape),
    ]
    return torch.cat(columns, dim=-1).index_select(0, slots)


def _until(sends: Tensor) -> Tensor:
    """Slots until the next own one: 0 if it is now, all of them if there is none."""
    slots = len(sends)
    slot = torch.arange(slots, device=sends.device).view(-1, 1, 1, 1)
    own = torch.where(sends, slot, 2 * slots)
    return (own.flip(0).cummin(0).values.flip(0) - slot).clamp(max=slots)


def _time_to_finish(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Rounds a whole payload takes alone on a sub-band; a slot multiplies by the share left."""
    snr = _snr(scenario, round_)
    needed = expected_slots(scenario, snr, torch.full_like(snr, scenario.payload_bits))
    return (needed / scenario.slots).clamp(max=BOUND).T[None, :, :, None]


def _progress(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return torch.zeros(1, 1, 1, 1, device=scenario.device)


PARTS: dict[str, Callable[[Scenario, Round, Tensor], Tensor]] = {
    "alphas": _alphas,
    "fading": _fading,
    "remaining": _progress,
    "slots_left": _slots_left,
    "deviation": _deviation,
    "round": _round,
    "finished": _progress,
    "others_fading": _others_fading,
    "schedule": _schedule,
    "reservation": _reservation,
    "time_to_finish": _time_to_finish,
}


def part_columns(scenario: Scenario) -> dict[str, slice]:
    """Where each part lies in an agent's observation.

    >>> from fedfade.config import load_config
    >>> from fedfade.uplink import scenario_from_config
    >>> columns = part_columns(scenario_from_config(load_config("paper"), 9932960))
    >>> columns["fading"], columns["remaining"]
    (slice(10, 14, None), slice(14, 15, None))
    """
    clients, bands = scenario.clients, scenario.bands
    widths = {
        "alphas": clients,
        "finished": clients,
        "fading": bands,
        "others_fading": clients * bands,
        "schedule": bands + 4,
        "reservation": 4 * bands + 4,
    }
    columns: dict[str, slice] = {}
    start = 0
    for name in scenario.observe:
        columns[name] = slice(start, start + widths.get(name, 1))
        start = columns[name].stop
    return columns


def observation_width(scenario: Scenario) -> int:
    """Numbers in one agent's observation; N + C + 4 for the paper's."""
    last = part_columns(scenario)[scenario.observe[-1]]
    return int(last.stop)


def state_width(scenario: Scenario) -> int:
    """Numbers in the global state."""
    return scenario.clients * (scenario.bands + 3) + 2


def static_observation(
    scenario: Scenario, round_: Round, slots: Tensor | None = None
) -> StaticObservation:
    """Everything about a round's observations that no action changes; for all slots, or some."""
    if slots is None:
        slots = torch.arange(scenario.slots, device=scenario.device)
    episodes = len(round_.alpha)
    full = (len(slots), scenario.clients, episodes)
    observation = torch.cat(
        [
            PARTS[name](scenario, round_, slots).expand(*full, where.stop - where.start)
            for name, where in part_columns(scenario).items()
        ],
        dim=-1,
    )
    shape = (len(slots), episodes)
    state = torch.cat(
        [
            scaled_snr(scenario, round_).expand(*shape, -1),
            scaled_fading(scenario, round_, slots).transpose(0, 1).flatten(2),
            torch.zeros(*shape, scenario.clients, device=scenario.device),
            scaled_clock(scenario, slots)[:, None, None].expand(*shape, 1),
            scaled_deviation(scenario, round_).expand(*shape, -1),
            (round_.number / scenario.rounds)[:, None].expand(*shape, 1),
        ],
        dim=-1,
    )
    return StaticObservation(observation, state)


def fill_observation(scenario: Scenario, blank: Tensor, progress: Progress) -> Tensor:
    """Write the progress into one slot's static, in place: [client, episode, width]."""
    columns = part_columns(scenario)
    share = (progress.remaining_bits * (1.0 / scenario.payload_bits)).T[..., None]
    if "remaining" in columns:
        blank[..., columns["remaining"]] = share
    if "time_to_finish" in columns:
        blank[..., columns["time_to_finish"]] *= share
    if "reservation" in columns:
        _fill_reservation(scenario, blank[..., columns["reservation"]], share)
    if "finished" in columns:
        blank[..., columns["finished"]] = progress.finished.to(blank.dtype)[None]
    return blank


def _fill_reservation(scenario: Scenario, part: Tensor, share: Tensor) -> None:
    """What is left takes so long; who has no sub-band now may plan to go on elsewhere."""
    sizes = [scenario.bands] * 4 + [4]
    planned, mine, grace, free, numbers = torch.split(part, sizes, dim=-1)
    needed, left = numbers[..., 2:3], numbers[..., 1:2]
    needed *= share
    slots = scenario.slots
    more = after_turn(grace > 0, free, needed * slots, left * slots)
    planned += more * (mine.sum(-1, keepdim=True) == 0)


def fill_state(scenario: Scenario, blank: Tensor, progress: Progress) -> Tensor:
    """Write the progress into one slot's static, in place: [episode, width]."""
    start = scenario.clients * (1 + scenario.bands)
    share = progress.remaining_bits * (1.0 / scenario.payload_bits)
    blank[:, start : start + scenario.clients] = share
    return blank


def observe(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    """Every agent's local observation (paper: eq. 26): [episode, client, width]."""
    slots = torch.tensor([slot], device=scenario.device)
    blank = static_observation(scenario, round_, slots).observation[0]
    return fill_observation(scenario, blank, progress).transpose(0, 1)


def global_state(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    """What the mixer sees in training (paper: eq. 27): [episode, width]."""
    slots = torch.tensor([slot], device=scenario.device)
    blank = static_observation(scenario, round_, slots).state[0]
    return fill_state(scenario, blank, progress)


def plan_preference(scenario: Scenario, trust: float) -> tuple[Tensor, Tensor] | None:
    """What is added to an agent's values so that the planned action has a head start of `trust`:
    the matrix [width, action] and the vector [action] of a linear map of its observation."""
    if not trust:
        return None
    matrix = torch.zeros(observation_width(scenario), scenario.actions)
    vector = torch.zeros(scenario.actions)
    silent = scenario.silent_level  # on sub-band 0: they are all the same
    vector[silent] = trust
    first = part_columns(scenario)["reservation"].start
    for band in range(scenario.bands):
        matrix[first + band, band * scenario.levels + scenario.full_level] = trust
        matrix[first + band, silent] = -trust
    return matrix.to(scenario.device), vector.to(scenario.device)
