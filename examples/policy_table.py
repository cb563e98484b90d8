"""Uploads per round of policies and trained agents, over cells, clusters and speeds.

    python examples/policy_table.py runs/plus-0 runs/plus-1 --seed 1000

plays every round of every cell under the block-fading schedule, the wrap-around schedules, max sum
rate, and the agents of each folder (or shipped name), on channels no training has seen, and prints
means over seeds and rounds, out of 10; agents of several folders are averaged.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import torch
from typer import echo

from fedfade.agents import load_policy_checkpoint, load_shipped_policy, shipped_policies
from fedfade.allocation import load_policy, play_round
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.experiments.uploads import Uplink
from fedfade.uplink import Round, gradient_source

BASELINES = (
    "block-fading-schedule",
    "wrap-around-schedule",
    "wrap-around-choice",
    "max-sum-rate",
    "shortest-remaining-first",
)


def uploads(config: Config, names: list[str], folders: list[str]) -> list[float]:
    """Mean uploads a round: one number a baseline, and one for the agents of all folders."""
    uplink = Uplink(config, float(config.learning.payload_bits), torch.device("cpu"))
    gradients = gradient_source(config, "cpu")  # some agents look at them
    rounds = [
        uplink.round(number, gradients.inner(uplink.seeds, number))
        for number in range(config.run.rounds)
    ]
    batch = Round(*(torch.cat(part) for part in zip(*rounds, strict=True)))
    keys = torch.arange(len(batch.alpha))
    agents = [
        load_shipped_policy(folder, config)
        if folder in shipped_policies() and not Path(folder).is_dir()
        else load_policy_checkpoint(folder, config)
        for folder in folders
    ]
    found = []
    for policy in [*map(load_policy, names), *agents]:
        delivered = play_round(policy, uplink.scenario, batch, keys).delivered
        found.append(float(delivered.sum(-1).float().mean()))
    means = found[: len(names)]
    return means + ([sum(found[len(names) :]) / len(folders)] if folders else [])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="folders of fedfade train, or shipped names")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clusters", type=int, nargs="+", default=[14, 21, 28])
    parser.add_argument("--speeds", type=float, nargs="+", default=[18.12, 7.67, 0.83])
    parser.add_argument("--mobility", default="reflect", help="of clients in the paper's cell")
    parser.add_argument("--policies", nargs="*", default=list(BASELINES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    agents = ["agents"] if given.folders else []
    echo("| cell | clusters | m/s | " + " | ".join([*given.policies, *agents]) + " |")
    echo("|---" * (3 + len(given.policies) + len(agents)) + "|")
    for preset, speed, clusters in product(("paper", "ring"), given.speeds, given.clusters):
        config = load_config(
            preset,
            [
                f"radio.clusters={clusters}",
                f"radio.speed_mps={speed}",
                f"run.seed={given.seed}",
                f"run.seeds={given.seeds}",
                f"run.rounds={given.rounds}",
                "run.device=cpu",
                "qmix.gradients=synthetic",
                *([f"cell.mobility={given.mobility}"] if preset == "paper" else []),
            ],
        )
        row = uploads(config, given.policies, given.folders)
        cells = " | ".join(f"{value:.2f}" for value in row)
        echo(f"| `{preset}` | {clusters} | {speed:g} | {cells} |")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
