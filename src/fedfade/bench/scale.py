"""What a round costs as the number of clients grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from fedfade.allocation import load_policy, play_round
from fedfade.bench import machine
from fedfade.config import load_config
from fedfade.radio import Cell, Channel, db_to_linear
from fedfade.uplink import Round, scenario_from_config

CLIENTS = (10, 100, 1000, 10_000)
SLOTS = 10
LOW = "max-sum-rate at -10 dB"
"""Where no certificate spares the search (docs/policies.md)."""
POLICIES = ("block-fading-schedule", "shortest-remaining-first", "max-sum-rate", LOW)
LIMIT_S = 20.0  # a policy that needs longer for its slots is not tried with more clients
GRAM_WIDTH = 94_410  # parameters of the paper's CNN on digits
GRAM_BYTES = 2**30  # no more than this for the updates of all clients


def measure() -> dict[str, object]:
    """CPU seconds on one thread, of one cell with four sub-bands, at growing numbers of clients."""
    torch.set_num_threads(1)
    figures: dict[str, object] = {"bands": 4, "slots_timed": SLOTS}
    tried = list(POLICIES)
    for clients in CLIENTS:
        figures |= _radio(clients) if clients <= 1000 else {}
        for name, spent in _slots(clients, tried).items():
            figures[f"ms_per_slot {name} {clients}"] = 1000 * spent / SLOTS
            # The next size has ten times the clients, so at least ten times the work.
            if 10 * spent > LIMIT_S:
                tried.remove(name)
        if 4 * clients * GRAM_WIDTH <= GRAM_BYTES:
            updates = torch.randn(clients, GRAM_WIDTH, generator=torch.Generator().manual_seed(0))
            figures[f"gram_s {clients}"] = _seconds(partial(torch.matmul, updates, updates.T))
    return figures | machine()


def _radio(clients: int) -> dict[str, object]:
    """A whole round of clustered fading for everybody."""
    config = load_config("paper")
    trajectory = Cell(config.cell, config.radio, clients).trajectory([0], rounds=1)
    channel = Channel(config.radio, config.cell, clients)
    spent = _seconds(lambda: channel.small_scale_gain([0], 0, [0], trajectory))
    return {f"fading_ms_per_client_round {clients}": 1000 * spent / clients}


def _slots(clients: int, names: list[str]) -> dict[str, float]:
    """Seconds for a few slots under each policy, over Rayleigh fading."""
    config = load_config("paper")
    scenario = scenario_from_config(config, 9_932_960)
    scenario = replace(scenario, slots=SLOTS, clients=clients)
    places = Cell(config.cell, config.radio, clients).trajectory([0], rounds=1).at(0)
    uniform = torch.rand(
        (1, SLOTS, clients, scenario.bands), generator=torch.Generator().manual_seed(0)
    )
    usual = Round(
        alpha=db_to_linear(places.gain_db),
        fading=-torch.log1p(-uniform),
        inner=torch.eye(clients)[None],
        number=torch.zeros(1),
    )
    weak = usual._replace(
        alpha=torch.full_like(usual.alpha, 0.1 * scenario.noise_w / scenario.full_power_w)
    )
    keys = torch.zeros(1, dtype=torch.int64)
    spent = {}
    for name in names:
        policy, round_ = load_policy(name.split()[0]), weak if name == LOW else usual
        play_round(policy, replace(scenario, slots=1), round_, keys)  # warm up
        spent[name] = _seconds(partial(play_round, policy, scenario, round_, keys))
    return spent


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
