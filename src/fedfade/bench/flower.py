"""What the uplink adds to a round of Flower's simulation."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from fedfade.agents import AgentNetworks, QmixPolicy
from fedfade.allocation import Policy, load_policy
from fedfade.bench import machine
from fedfade.config import load_config
from fedfade.errors import UserError
from fedfade.experiments import Uplink
from fedfade.uplink import observation_width, start_round

SETTINGS = {"preset": "quickstart", "set": "learning.payload_bits=auto run.device=cpu"}
POLICY = "block-fading-schedule"
"""A local policy, so that it can be decided on either side."""


SLOT_MESSAGES = 10  # exchanges timed for what one message a slot would cost


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
    clients = config.learning.clients
    inner = {"fraction_evaluate": 0.0, "min_available_nodes": clients}
    bare, message_s = _simulate(FedAvg(**inner), clients, rounds)
    figures: dict[str, object] = {
        "fedavg_s_per_round": bare,
        "s_per_empty_exchange": message_s,
        "s_per_round at one exchange a slot": bare + config.radio.slots * message_s,
    }
    for decide in ("server", "client"):
        strategy = WirelessStrategy(FedAvg(**inner), config, POLICY, decide=decide)
        seconds, _ = _simulate(strategy, clients, rounds)
        figures[f"uplink_s_per_round decided by {decide}"] = seconds
    sizes = {"clients": clients, "slots": config.radio.slots, "rounds": rounds}
    return figures | exchanges() | sizes | machine()


def exchanges(rounds: int = 3) -> dict[str, object]:
    """Exchanges until decisions on the clients repeat, one number a round, by policy.

    Networks have random weights, large enough to react to what is left to send.
    """
    from fedfade.flower.decisions import decide, play_with_clients
    from fedfade.flower.policies import OneAgent

    config = load_config("paper", ["run.seeds=1", "run.device=cpu"])
    payload = float(config.learning.payload_bits)
    uplink = Uplink(config, payload, torch.device("cpu"))
    scenario, everybody = uplink.scenario, range(uplink.scenario.clients)
    choices: dict[str, list[Policy]] = {
        name: [load_policy(name)] * scenario.clients
        for name in ("max-individual-rate", POLICY, "block-fading-schedule-feedback")
    }
    for share in (False, True):
        sizes = (scenario.clients, observation_width(scenario), [250, 120, 120], scenario.actions)
        agents = AgentNetworks(*sizes, [torch.Generator().manual_seed(0)], share)
        for weight in agents.weights:
            weight.data.mul_(3.0)
        trained = QmixPolicy(agents, config)
        name = "shared network" if share else "networks"
        choices[name] = [OneAgent(trained, n) for n in everybody]
    vectors = torch.randn(1, scenario.clients, 30, generator=torch.Generator().manual_seed(0))
    found: dict[str, object] = {}
    for name, policies in choices.items():
        counts = []
        for number in range(rounds):
            played = play_with_clients(
                name,
                policies[0].scope,
                scenario,
                uplink.round(number, vectors @ vectors.mT),
                uplink.keys(name, number),
                start_round(scenario, 1),
                lambda asked, p=policies: {
                    q.client: decide(p[q.client], scenario, q) for q in asked
                },  # type: ignore[misc]
            )
            counts.append(played.exchanges)
        found[f"exchanges {name}"] = " ".join(map(str, counts))
    return found


def _simulate(strategy: Any, clients: int, rounds: int) -> tuple[float, float]:
    """Median seconds from one broadcast to the next, and of an exchange of empty messages."""
    from flwr.app import Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from fedfade.flower import FederatedTask, UplinkMod

    client, server = ClientApp(mods=[UplinkMod(POLICY)]), ServerApp()
    client.train()(lambda m, c: FederatedTask.from_run_config(SETTINGS).train(m, c))
    client.query()(lambda m, c: Message(RecordDict(), reply_to=m))
    ends: list[float] = []
    asked: list[float] = []

    def note(server_round: int, arrays: Any) -> None:
        ends.append(time.perf_counter())

    def main(grid: Any, context: Any) -> None:
        task = FederatedTask.from_run_config(SETTINGS)
        strategy.start(grid, task.initial_arrays(), rounds + 1, evaluate_fn=note)
        for _ in range(SLOT_MESSAGES):
            begin = time.perf_counter()
            kind = MessageType.QUERY
            grid.send_and_receive([Message(RecordDict(), n, kind) for n in grid.get_node_ids()])
            asked.append(time.perf_counter() - begin)

    server.main()(main)
    run_simulation(
        server,
        client,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
    )
    return median(after - before for before, after in pairwise(ends[1:])), median(asked)
