"""What an agent sees, and what the mixer sees (paper: section IV-B).

An observation is a list of named parts, chosen in `allocation.observe` (`fedfade.uplink.parts`).
Nearly all of it is known before the first slot: gains, deviations, the clock. That is a
`StaticObservation`, made once a round for all slots; a slot then only fills in the progress.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.uplink import parts
from fedfade.uplink.scenario import Scenario
from fedfade.uplink.slot import Progress, Round, by_logical_band


class StaticObservation(NamedTuple):
    """What is observed in each slot whatever the clients do; progress is filled in later."""

    observation: Tensor  # [slot, client, episode, width]: client first, as stacked networks want
    state: Tensor  # [slot, episode, width]


def part_columns(scenario: Scenario) -> dict[str, slice]:
    """Where each part lies in an agent's observation."""
    columns: dict[str, slice] = {}
    start = 0
    for name in scenario.observe:
        columns[name] = slice(start, start + parts.load_part(name).width(scenario))
        start = columns[name].stop
    return columns


def observation_width(scenario: Scenario) -> int:
    """Numbers in one agent's observation; N + C + 4 for the paper's."""
    return sum(parts.load_part(name).width(scenario) for name in scenario.observe)


def state_width(scenario: Scenario) -> int:
    """Numbers in the global state; in the order of rank it ends in who has which rank."""
    return scenario.clients * (scenario.bands + 3 + scenario.ranked_state) + 2


def static_observation(
    scenario: Scenario, round_: Round, slots: Tensor | None = None
) -> StaticObservation:
    """Everything about a round's observations that no action changes; for all slots, or some."""
    if slots is None:
        slots = torch.arange(scenario.slots, device=scenario.device)
    if scenario.hop_subbands:
        round_ = by_logical_band(round_)
    if "fading" in scenario.hide:
        round_ = round_._replace(fading=torch.ones_like(round_.fading))
    if "gradient" in scenario.hide:
        round_ = round_._replace(inner=torch.zeros_like(round_.inner))
    shape = (len(slots), len(round_.alpha))
    full = (shape[0], scenario.clients, shape[1])
    seen = []
    for name in scenario.observe:
        part = parts.load_part(name)
        static = part.static(scenario, round_, slots)
        seen.append(static.expand(*full, part.width(scenario)))
    snr, deviation = parts.scaled_snr(scenario, round_), parts.scaled_deviation(scenario, round_)
    fading, order = parts.scaled_fading(scenario, round_, slots), snr[:, :0]
    if scenario.ranked_state:
        clients = parts.order_of(scenario, round_).clients  # [episode, place]
        snr, deviation = snr.gather(1, clients), deviation.gather(1, clients)
        fading = fading.gather(2, clients[:, None, :, None].expand(fading.shape))
        order = clients / scenario.clients
    state = [
        snr.expand(*shape, -1),
        fading.transpose(0, 1).flatten(2),
        torch.zeros(*shape, scenario.clients, device=scenario.device),
        parts.scaled_clock(scenario, slots)[:, None, None].expand(*shape, 1),
        deviation.expand(*shape, -1),
        (round_.number / scenario.rounds)[:, None].expand(*shape, 1),
        order.expand(*shape, -1),
    ]
    return StaticObservation(torch.cat(seen, dim=-1), torch.cat(state, dim=-1))


def fill_observation(scenario: Scenario, blank: Tensor, progress: Progress) -> Tensor:
    """Write the progress into one slot's static observation, in place: [client, episode, width]."""
    share = (progress.remaining_bits * (1.0 / scenario.payload_bits)).float().T[..., None]
    start = 0
    for name in scenario.observe:
        part = parts.load_part(name)
        stop = start + part.width(scenario)
        if part.update is not None:
            part.update(scenario, blank[..., start:stop], share)
        start = stop
    return blank


def fill_state(scenario: Scenario, blank: Tensor, progress: Progress) -> Tensor:
    """Write the progress into one slot's static state, in place: [episode, width]."""
    where = slice(scenario.clients * (1 + scenario.bands), scenario.clients * (2 + scenario.bands))
    share = (progress.remaining_bits * (1.0 / scenario.payload_bits)).float()
    if scenario.ranked_state:
        share = share.gather(1, ranked_clients(blank, scenario.clients))
    blank[:, where] = share
    return blank


def ranked_clients(state: Tensor, clients: int) -> Tensor:
    """Who has which rank, as a state in the order of rank says: [..., place] int64."""
    return (state[..., -clients:] * clients).round().long()


def observe(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    """Every agent's local observation (paper: eq. 26): [episode, client, width]."""
    static = static_observation(scenario, round_, torch.tensor([slot], device=scenario.device))
    return fill_observation(scenario, static.observation[0], progress).transpose(0, 1)


def global_state(scenario: Scenario, round_: Round, progress: Progress, slot: int) -> Tensor:
    """What the mixer sees in training (paper: eq. 27): [episode, width]."""
    static = static_observation(scenario, round_, torch.tensor([slot], device=scenario.device))
    return fill_state(scenario, static.state[0], progress)


def plan_preference(scenario: Scenario, trust: float) -> tuple[Tensor, Tensor] | None:
    """What is added to an agent's values so that the planned action has a head start of `trust`:
    the matrix [width, action] and the vector [action] of a linear map of its observation."""
    if not trust:
        return None
    matrix = torch.zeros(observation_width(scenario), scenario.actions)
    vector = torch.zeros(scenario.actions)
    band = torch.arange(scenario.bands)
    full, silent = band, scenario.bands
    if not scenario.binary_power:  # silence on sub-band 0: they are all the same
        full, silent = band * scenario.levels + scenario.full_level, scenario.silent_level
    vector[silent] = trust
    planned = part_columns(scenario)["reservation"].start + band
    matrix[planned, full] = trust
    matrix[planned, silent] = -trust
    return matrix.to(scenario.device), vector.to(scenario.device)
