"""What the uplink adds to a round of Flower's simulation."""

import os
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from fedfade.agents import AgentNetworks, QmixPolicy
from fedfade.allocation import Policy, load_policy
from fedfade.bench.timing import Figures, machine, median_ms, wall_clock
from fedfade.config import load_config
from fedfade.errors import UserError
from fedfade.experiments import Uplink
from fedfade.learning import payload_bits
from fedfade.uplink import observation_width, start_round

SETTINGS = {"preset": "quickstart", "set": "learning.payload_bits=auto run.device=cpu"}
POLICY = "block-fading-schedule"
"""A local policy, so that it can be decided on either side."""
EXCHANGE_ROUNDS = 3  # in which exchanges are counted
SLOT_MESSAGES = 10  # exchanges timed for what one message a slot would cost


def measure(rounds: int = 5) -> Figures:
    """Median seconds of a round: 10 clients on digits, 250 slots; the first round warms up."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from flwr.app import Message, MessageType, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp.strategy import FedAvg

        from fedfade.flower import FederatedTask, UplinkMod, WirelessStrategy
    except ImportError:
        needed = "Flower, which is not installed: pip install 'fedfade[flower]'"
        raise UserError(f"this needs {needed}.") from None
    config = load_config(SETTINGS["preset"], SETTINGS["set"].split())
    clients, slots = config.learning.clients, config.radio.slots
    client: Any = ClientApp(mods=[UplinkMod(POLICY)])
    client.train()(lambda m, c: FederatedTask.from_run_config(SETTINGS).train(m, c))
    client.query()(lambda m, c: Message(RecordDict(), reply_to=m))

    def empty_exchange_s(grid: Any) -> float:
        def ask() -> None:
            messages = [Message(RecordDict(), n, MessageType.QUERY) for n in grid.get_node_ids()]
            grid.send_and_receive(messages)

        return 1e-3 * median_ms(ask, SLOT_MESSAGES)

    def timed(strategy: Any) -> tuple[float, float]:
        first = FederatedTask.from_run_config(SETTINGS).initial_arrays()
        return simulate(strategy, client, first, clients, rounds, empty_exchange_s)

    inner = {"fraction_evaluate": 0.0, "min_available_nodes": clients}
    bare_s, exchange_s = timed(FedAvg(**inner))
    figures: Figures = {
        "fedavg_s_per_round": bare_s,
        "s_per_empty_exchange": exchange_s,
        "s_per_round at one exchange a slot": bare_s + slots * exchange_s,
    }
    for decide in ("server", "client"):
        strategy = WirelessStrategy(FedAvg(**inner), config, POLICY, decide=decide)
        figures[f"uplink_s_per_round decided by {decide}"] = timed(strategy)[0]
    sizes = {"clients": clients, "slots": slots, "rounds": rounds}
    return figures | exchanges() | sizes | machine()


def simulate(
    strategy: Any, client: Any, first: Any, clients: int, rounds: int, last: Callable[[Any], float]
) -> tuple[float, float]:
    """Median seconds from one broadcast to the next, and what `last` finds on the grid."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    ends: list[float] = []
    found = []

    def note(server_round: int, arrays: Any) -> None:
        ends.append(wall_clock())

    def main(grid: Any, context: Any) -> None:
        strategy.start(grid, first, rounds + 1, evaluate_fn=note)
        found.append(last(grid))

    server = ServerApp()
    server.main()(main)
    resources = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=clients, backend_config=resources)
    return median(after - before for before, after in pairwise(ends[1:])), found[0]


def exchanges() -> Figures:
    """Exchanges until decisions on the clients repeat, one number a round, by policy. Networks have
    random weights, large enough to react to what is left to send."""
    from fedfade.flower.decisions import Decisions, OneAgent, Seen, decide, play_with_clients

    config = load_config("paper", ["run.seeds=1", "run.device=cpu"])
    uplink = Uplink(config, payload_bits(config.learning), torch.device("cpu"))
    scenario = uplink.scenario
    choices: dict[str, list[Policy]] = {
        name: [load_policy(name)] * scenario.clients
        for name in ("max-individual-rate", POLICY, "block-fading-schedule-feedback")
    }
    sizes = (scenario.clients, observation_width(scenario), [250, 120, 120], scenario.actions)
    for name, share in (("networks", False), ("shared network", True)):
        agents = AgentNetworks(*sizes, [torch.Generator().manual_seed(0)], share)
        for weight in agents.weights:
            weight.data.mul_(3.0)
        trained = QmixPolicy(agents, config)
        choices[name] = [OneAgent(trained, n) for n in range(scenario.clients)]
    vectors = torch.randn(1, scenario.clients, 30, generator=torch.Generator().manual_seed(0))

    def count(name: str, policies: list[Policy], number: int) -> int:
        def ask(questions: list[Seen]) -> dict[int, Decisions]:
            return {q.client: decide(policies[q.client], scenario, q) for q in questions}

        round_, keys = uplink.round(number, vectors @ vectors.mT), uplink.keys(name, number)
        start = start_round(scenario, 1)
        return play_with_clients(policies[0], scenario, round_, keys, start, ask)[1]

    return {
        f"exchanges {name}": " ".join(
            str(count(name, ps, number)) for number in range(EXCHANGE_ROUNDS)
        )
        for name, ps in choices.items()
    }
