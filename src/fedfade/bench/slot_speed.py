"""What slots cost, in CPU time on one thread: the exact schedule, whole rounds under each policy,
many clients."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

from fedfade import allocation
from fedfade.bench.timing import Figures, cpu_seconds, in_turns, machine, median_cpu_ms
from fedfade.config import load_config
from fedfade.device import one_thread
from fedfade.graphs import fuse, record
from fedfade.radio import Cell, Channel, db_to_linear
from fedfade.randomness import fold, normal, stream, uniform
from fedfade.uplink import (
    Action,
    Progress,
    Round,
    Scenario,
    draw_chance,
    plain_round,
    play_slot,
    scenario_from_config,
    slot_air,
    start_round,
)

SNRS_DB = (-10.0, 0.0, 10.0, 20.0)
PAYLOAD_BITS = 9_932_960

LINKS = {
    "shannon": ["radio.link=shannon"],
    "capped": ["radio.link=capped"],
    "nr": ["radio.link=nr"],
    "nr expected": ["radio.link=nr", "radio.nr.feedback=expected"],
}
STEPS = 250

SCHEDULED = 250  # slots that `schedule` times
REPEATS, ROUND_REPEATS, STEP_REPEATS = 5, 3, 9  # of a schedule, of whole rounds, of slot steps

# What `scale` measures.
CLIENTS = (10, 100, 1000, 10_000)
SLOTS = 10
LOW = "max-sum-rate at -10 dB"
"""Where no certificate spares the search (docs/explanation/policies.md)."""
POLICIES = ("block-fading-schedule", "shortest-remaining-first", "max-sum-rate", LOW)
LIMIT_S = 20.0  # a policy that needs longer for its slots is not tried with more clients
GRAM_WIDTH = 94_410  # parameters of the paper's CNN on digits
GRAM_BYTES = 2**30  # no more than this for the updates of all clients


@one_thread()
def schedule() -> Figures:
    """Milliseconds a slot at N=10, C=4 for weak to strong clients; ratio to enumeration."""

    def ms_per_slot(received: Tensor) -> float:
        return median_cpu_ms(partial(allocation.max_sum_rate, received, 1.0), REPEATS) / SCHEDULED

    figures: Figures = {"clients": 10, "bands": 4, "slots": SCHEDULED}
    times = {snr_db: ms_per_slot(instances(snr_db, 10, 4, SCHEDULED)) for snr_db in SNRS_DB}
    figures |= {f"ms_per_slot_at_{snr_db:.0f}_db": ms for snr_db, ms in times.items()}
    small = instances(0.0, 5, 3, SCHEDULED)
    few, exact = small[:25], ms_per_slot(small)
    enumerated = median_cpu_ms(partial(best_by_enumeration, few), REPEATS) / len(few)
    found = allocation.sum_rate_nats(few, allocation.max_sum_rate(few, 1.0))
    return {
        **figures,
        # The headline is the slowest of them: weak clients, where sub-bands may be shared.
        "ms_per_slot": max(times.values()),
        "ms_per_slot_n5_c3": exact,
        "ms_per_slot_n5_c3_enumerated": enumerated,
        "ratio_to_enumeration_n5_c3": exact / enumerated,
        "largest_gap_to_enumeration": float((best_by_enumeration(few) - found).max()),
        **machine(),
    }


def instances(
    snr_db: float, clients: int, bands: int, slots: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Received SNR under Rayleigh fading, 5 dB spread between clients: [slot, client, band]."""
    keys = fold(stream(0, "bench schedule"), torch.arange(slots, device=device))
    level = snr_db + 5.0 * normal(fold(keys, 1), (clients, 1))
    return torch.pow(10.0, level / 10) * -torch.log(uniform(fold(keys, 2), (clients, bands)))


def best_by_enumeration(received: Tensor) -> Tensor:
    """The best sum rate over all (C+1)^N choices: [slot]."""
    clients, bands = received.shape[-2:]
    every = torch.tensor(list(itertools.product(range(-1, bands), repeat=clients)))
    return torch.stack([allocation.sum_rate_nats(slot[None], every).max() for slot in received])


@one_thread()
def rounds(episodes: int, device: torch.device) -> Figures:
    """The slot step under every link on the device; on the CPU also slots a second under every
    policy, for episodes of 10 clients x 250 slots."""
    figures: Figures = {"clients": 10, "episodes": episodes}
    if device.type == "cpu":
        figures |= _slots_per_s(episodes)
    return figures | slot_steps(episodes, device) | machine()


def _slots_per_s(episodes: int) -> Figures:
    scenario, alpha, draw = paper_cell(10)
    channel_s = cpu_seconds(partial(draw, episodes))
    played, keys = independent_round(alpha, draw(episodes)), torch.arange(episodes)
    slots_per_s = {}
    for name in allocation.BUILT_IN:
        play = partial(allocation.play_round, allocation.load_policy(name), scenario, played, keys)
        ms = median_cpu_ms(play, ROUND_REPEATS)
        slots_per_s[f"slots_per_s {name}"] = 1e3 * episodes * scenario.slots / ms
    return {
        "bands": scenario.bands,
        "slots": scenario.slots,
        "channel_s": channel_s,
        **slots_per_s,
        "genie_s": cpu_seconds(partial(allocation.genie_bound, scenario, played)),
    }


def slot_steps(episodes: int, device: torch.device) -> Figures:
    """Microseconds of one slot under every link, everybody sending, as training plays it: CPU
    time, or wall time of a recorded step on a GPU. Ratios are to Shannon's."""
    runs = [_slot_step(changes, episodes, device) for changes in LINKS.values()]
    spent = in_turns(runs, STEP_REPEATS)
    us = [1e6 / STEPS * median(cpu if device.type == "cpu" else wall) for wall, cpu in spent]
    figures: Figures = {"slot_step_device": device.type}
    figures |= {f"slot_step_us {name}": one for name, one in zip(LINKS, us, strict=True)}
    ratios = {name: one / us[0] for name, one in zip(LINKS, us, strict=True)}
    figures |= {f"slot_step_ratio {name}": ratio for name, ratio in ratios.items()}
    line = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return figures | {"slot_step_to_shannon": f"{line} on {device.type}, {episodes} episodes"}


def _slot_step(changes: Sequence[str], episodes: int, device: torch.device) -> Callable[[], None]:
    """`STEPS` slots of a round at 15 dB, in place."""
    scenario = scenario_from_config(load_config("paper", changes), PAYLOAD_BITS * 1e3, device)
    clients, slots = scenario.clients, scenario.slots
    keys = fold(stream(0, "bench slots"), torch.arange(episodes, device=device))
    fading = -torch.log(uniform(keys, (slots, clients, scenario.bands)))
    alpha = torch.full((episodes, clients), 30.0 * scenario.noise_w / scenario.full_power_w)
    round_ = independent_round(alpha.to(device), fading)
    round_ = round_._replace(chance=draw_chance(scenario, fold(keys, 1)))
    band = torch.arange(clients, device=device).expand(episodes, -1) % scenario.bands
    action = Action(band, torch.full_like(band, scenario.full_level))
    left, state = start_round(scenario, episodes)
    slot = torch.zeros(1, dtype=torch.int64, device=device)

    def step() -> None:
        before = Progress(left, state)
        after, _ = play_slot(scenario, before, slot_air(scenario, round_, slot), action)
        left.copy_(after.remaining_bits)
        state.copy_(after.link_state)
        slot.add_(1).remainder_(slots)

    with torch.no_grad():
        recorded = record(fuse(step, device), [left, state, slot], device)

    @torch.no_grad()
    def run() -> None:
        for _ in range(STEPS):
            recorded()

    return run


def paper_cell(clients: int) -> tuple[Scenario, Tensor, Callable[[int], Tensor]]:
    """The paper's cell with so many clients: scenario, large-scale gains, fading of a round."""
    config = load_config("paper")
    scenario = replace(scenario_from_config(config, PAYLOAD_BITS), clients=clients)
    trajectory = Cell(config.cell, config.radio, clients).trajectory([0], rounds=1)
    channel = Channel(config.radio, config.cell, clients)

    def draw(episodes: int) -> Tensor:  # [episode, slot, client, band]
        return channel.small_scale_gain([0], 0, range(episodes), trajectory)[0]

    return scenario, db_to_linear(trajectory.at(0).gain_db), draw


def independent_round(alpha: Tensor, fading: Tensor) -> Round:
    """A round whose updates are orthogonal, over fading [episode, slot, client, band]."""
    episodes, _, clients, _ = fading.shape
    inner = torch.eye(clients, device=alpha.device).expand(episodes, -1, -1)
    alpha = alpha.expand(episodes, -1)
    return plain_round(alpha, fading, inner, torch.zeros_like(alpha[:, 0]), torch.zeros_like(alpha))


@one_thread()
def scale() -> Figures:
    """One cell with four sub-bands at growing numbers of clients: slots, fading, Gram matrix."""
    figures: Figures = {"bands": 4, "slots_timed": SLOTS}
    tried = list(POLICIES)
    for clients in CLIENTS:
        scenario, alpha, draw = paper_cell(clients)
        if clients <= 1000:
            fading_ms = 1000 * cpu_seconds(partial(draw, 1))
            figures[f"fading_ms_per_client_round {clients}"] = fading_ms / clients
        for name, spent in _slots(replace(scenario, slots=SLOTS), alpha, tried).items():
            figures[f"ms_per_slot {name} {clients}"] = 1000 * spent / SLOTS
            # The next size has ten times the clients, so at least ten times the work.
            if 10 * spent > LIMIT_S:
                tried.remove(name)
        if 4 * clients * GRAM_WIDTH <= GRAM_BYTES:
            updates = torch.randn(clients, GRAM_WIDTH, generator=torch.Generator().manual_seed(0))
            figures[f"gram_s {clients}"] = cpu_seconds(partial(torch.matmul, updates, updates.T))
    return figures | machine()


def _slots(scenario: Scenario, alpha: Tensor, names: list[str]) -> dict[str, float]:
    """Seconds for a few slots under each policy, over Rayleigh fading."""
    shape = (1, scenario.slots, scenario.clients, scenario.bands)
    fading = -torch.log1p(-torch.rand(shape, generator=torch.Generator().manual_seed(0)))
    low = torch.full_like(alpha, 0.1 * scenario.noise_w / scenario.full_power_w)
    keys, spent = torch.zeros(1, dtype=torch.int64), {}
    for name in names:
        policy = allocation.load_policy(name.split()[0])
        played = independent_round(low if name == LOW else alpha, fading)
        allocation.play_round(policy, replace(scenario, slots=1), played, keys)  # warm up
        spent[name] = cpu_seconds(partial(allocation.play_round, policy, scenario, played, keys))
    return spent
