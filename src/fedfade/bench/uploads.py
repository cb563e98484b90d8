"""How fast a round of slots is played under each policy."""

from __future__ import annotations

import statistics
import time

import torch

from fedfade.allocation import BUILT_IN, genie_bound, load_policy, play_round
from fedfade.bench import machine
from fedfade.config import load_config
from fedfade.radio import Cell, Channel, db_to_linear
from fedfade.uplink import Round, scenario_from_config

EPISODES = 20


def measure(repeats: int = 3) -> dict[str, object]:
    """Slots a second for 20 episodes of 10 clients x 250 slots, one thread."""
    torch.set_num_threads(1)
    config = load_config("paper")
    scenario = scenario_from_config(config, 9_932_960)
    clients = scenario.clients
    trajectory = Cell(config.cell, config.radio, clients).trajectory([0], rounds=1)
    channel = Channel(config.radio, config.cell, clients)
    start = time.process_time()
    fading = channel.small_scale_gain([0], 0, range(EPISODES), trajectory)[0]
    channel_s = time.process_time() - start
    round_ = Round(
        alpha=db_to_linear(trajectory.at(0).gain_db).expand(EPISODES, -1),
        fading=fading,
        inner=torch.eye(clients).expand(EPISODES, -1, -1),
        number=torch.zeros(EPISODES),
    )
    figures: dict[str, object] = {
        "clients": clients,
        "bands": scenario.bands,
        "slots": scenario.slots,
        "episodes": EPISODES,
        "channel_s": channel_s,
    }
    keys = torch.arange(EPISODES)
    for name in BUILT_IN:
        times = []
        for _ in range(repeats):
            start = time.process_time()
            play_round(load_policy(name), scenario, round_, keys)
            times.append(time.process_time() - start)
        slots = EPISODES * scenario.slots
        figures[f"slots_per_s {name}"] = slots / statistics.median(times)
    start = time.process_time()
    genie_bound(scenario, round_)
    figures["genie_s"] = time.process_time() - start
    return figures | machine()
