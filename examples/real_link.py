"""Uploads per round as the link becomes a real one: NR, antennas, neighbours, 8-bit updates.

    python examples/real_link.py --seeds 20 --rounds 3

plays the paper's cell under each policy, on channels that no policy was tuned on and without
learning, and prints means out of 10 with their standard errors over seeds. The last two columns
are differences on the same rounds: what packing gains over knowing everybody's fading, and what a
client's own fading is worth to the wrap-around plan.
"""

import argparse
import math
from itertools import product

import torch
from torch import Tensor
from typer import echo

from fedfade.allocation import GENIE, genie_bound, load_policy, play_round
from fedfade.config import load_config
from fedfade.experiments.uploads import Uplink

POLICIES = (
    *("random", "max-individual-rate", "block-fading-schedule", "wrap-around-schedule"),
    *("wrap-around-pairs", "wrap-around-choice", "shortest-remaining-first", "max-sum-rate"),
    "deadline-matching",
)
PAYLOADS = {"float32": 9_932_960.0, "int8": 2_513_567.0}  # docs/explanation/learning.md


def uploads(uplink: Uplink, rounds: list[int]) -> dict[str, Tensor]:
    """Clients that deliver, the mean over rounds: [seed]."""
    batch, scenario = uplink.rounds(rounds), uplink.scenario
    found = {GENIE: genie_bound(scenario, batch)}
    for name in POLICIES:
        outcome = play_round(load_policy(name), scenario, batch, uplink.keys(name, *rounds))
        found[name] = outcome.delivered.sum(-1).float()
    return {name: each.view(len(uplink.seeds), -1).mean(-1) for name, each in found.items()}


def shown(each: Tensor, sign: str = "") -> str:
    """Mean and standard error over seeds."""
    return f"{float(each.mean()):{sign}.2f} ± {float(each.std()) / math.sqrt(len(each)):.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--activity", type=float, default=0.5, help="of the six neighbours")
    given = parser.parse_args()
    torch.set_num_threads(1)
    columns = [*POLICIES, GENIE, "packing - knowing", "own fading"]
    echo("| updates | link | antennas | neighbours | " + " | ".join(columns) + " |")
    echo("|---" * (4 + len(columns)) + "|")
    rounds = [100 * i // given.rounds for i in range(given.rounds)]
    ways = product(PAYLOADS.items(), ("shannon", "nr"), (1, 4), (0, 6))
    for (codec, payload), link, antennas, cells in ways:
        changes = [f"run.seed={given.seed}", f"run.seeds={given.seeds}", f"radio.link={link}"]
        changes += [f"radio.receive_antennas={antennas}", f"cell.interference_cells={cells}"]
        changes += [f"cell.interference_activity={given.activity}", "radio.link_overhead=0.08"]
        config = load_config("paper", changes)
        found = uploads(Uplink(config, payload, torch.device("cpu")), rounds)
        packing, choice = found["wrap-around-schedule"], found["wrap-around-choice"]
        row = [shown(found[name]) for name in (*POLICIES, GENIE)]
        row += [shown(packing - found["max-sum-rate"], "+"), shown(choice - packing, "+")]
        echo(f"| {codec} | {link} | {antennas} | {cells} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
