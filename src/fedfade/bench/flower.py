"""What the uplink adds to a round of Flower's simulation."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import median
from typing import Any

from fedfade.bench import machine
from fedfade.config import load_config
from fedfade.errors import UserError

SETTINGS = {"preset": "quickstart", "set": "learning.payload_bits=auto run.device=cpu"}
POLICY = "block-fading-schedule"
"""A local policy, so that it can be decided on either side."""


def measure(rounds: int = 5) -> dict[str, object]:
    """Median seconds of a round: 10 clients on digits, 250 slots; the first round warms up."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from flwr.serverapp.strategy import FedAvg

        from fedfade.flower import WirelessStrategy
    except ImportError:
        raise UserError(
            "this needs Flower, which is not installed: pip install 'fedfade[flower]'."
        ) from None
    config = load_config(SETTINGS["preset"], SETTINGS["set"].split())
    inner = {"fraction_evaluate": 0.0, "min_available_nodes": config.learning.clients}
    bare = _simulate(FedAvg(**inner), config.learning.clients, rounds)
    figures: dict[str, object] = {"fedavg_s_per_round": bare}
    for decide in ("server", "client"):
        strategy = WirelessStrategy(FedAvg(**inner), config, POLICY, decide=decide)
        seconds = _simulate(strategy, config.learning.clients, rounds)
        figures[f"uplink_s_per_round decided by {decide}"] = seconds
        if decide == "client":
            exchanges = sum(report.exchanges for report in strategy.history) / (rounds + 1)
            figures["exchanges_per_round"] = exchanges
            figures["s_per_exchange"] = (seconds - bare) / exchanges
    sizes = {"clients": config.learning.clients, "slots": config.radio.slots, "rounds": rounds}
    return figures | sizes | machine()


def _simulate(strategy: Any, clients: int, rounds: int) -> float:
    """Median seconds from one broadcast to the next."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from fedfade.flower import FederatedTask, UplinkMod

    client, server = ClientApp(mods=[UplinkMod(POLICY)]), ServerApp()
    client.train()(lambda m, c: FederatedTask.from_run_config(SETTINGS).train(m, c))
    ends: list[float] = []

    def note(server_round: int, arrays: Any) -> None:
        ends.append(time.perf_counter())

    def main(grid: Any, context: Any) -> None:
        task = FederatedTask.from_run_config(SETTINGS)
        strategy.start(grid, task.initial_arrays(), rounds + 1, evaluate_fn=note)

    server.main()(main)
    run_simulation(
        server,
        client,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
    )
    return median(after - before for before, after in pairwise(ends[1:]))
