"""Uploads per round of policies and trained agents, over cells, clusters and speeds.

    python examples/policy_table.py runs/plus-0 runs/plus-1 --seed 1000

plays every round of every cell under the block-fading schedule, the wrap-around schedules, max sum
rate, and the agents of each folder (or shipped name), on channels no training has seen, and prints
means over seeds and rounds, out of 10; agents of several folders are averaged, or with --each have
a column of their own. With --csv every number goes into a file too, with its standard error over
seeds and its ratio to the last policy named, seed by seed. --set changes any field, such as the
sizes; --vary has a line for every value of one. With --swap it plays the agents of each folder with
another episode's observation instead, part by part: what they deliver then says what they use.

What everybody counts on may be wrong: --vary cell.announced_error_db 0 1 2 has gains announced
with an error, and --rogue has one client send where and when it likes.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from typer import echo

from fedfade.agents import agents_folder, load_policy_checkpoint
from fedfade.allocation import Action, Outcome, Policy, View, load_policy
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.randomness import integers
from fedfade.studies.policies import compared, uploads_by_seed, whole_batch
from fedfade.studies.swap import AS_IS, swap_test

BASELINES = (
    "block-fading-schedule",
    "wrap-around-schedule",
    "wrap-around-choice",
    "max-sum-rate",
    "shortest-remaining-first",
)


def agents_in(folders: list[str], config: Config) -> list[Policy]:
    """The agents that were asked for."""
    return [load_policy_checkpoint(agents_folder(Path(folder)), config) for folder in folders]


def mean_uploads(outcome: Outcome) -> float:
    return float(outcome.delivered.sum(-1).float().mean())


class WithRogue:
    """A policy that all follow but one client, in the middle by its gain: at full power it sends
    on a sub-band drawn slot by slot until it is done."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.name, self.scope = policy, policy.name, policy.scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def begin(self, view: View) -> Any:
        return self._policy.begin(view)

    def act(self, view: View, memory: Any) -> Action:
        band, level = (part.clone() for part in self._policy.act(view, memory))
        rogue = view.snr.median(-1, keepdim=True).indices  # [episode, 1]
        drawn = integers(view.keys, view.scenario.bands, (1,))
        return Action(
            band.scatter(1, rogue, drawn), level.scatter(1, rogue, view.scenario.full_level)
        )


def uploads(config: Config, names: list[str], folders: list[str], rogue: bool) -> torch.Tensor:
    """Mean uploads a round of every seed, of baselines and then of each folder's agents:
    [policy, seed]."""
    batch, found = whole_batch(config, torch.device("cpu")), []
    for policy in [*map(load_policy, names), *agents_in(folders, config)]:
        played = WithRogue(policy) if rogue else policy
        found.append(uploads_by_seed(played, batch, config.run.seeds))
    return torch.stack(found)


def print_swaps(config: Config, folders: list[str]) -> None:
    """Uploads as they are, and their share kept when a part is another episode's, in %."""
    batch = whole_batch(config, torch.device("cpu"))
    for folder, agents in zip(folders, agents_in(folders, config), strict=True):
        outcomes = swap_test(agents, *batch)
        found = {part: mean_uploads(outcome) for part, outcome in outcomes.items()}
        whole = found.pop(AS_IS)
        kept = ", ".join(f"{part} {100 * value / whole:.0f} %" for part, value in found.items())
        echo(f"{folder}: {whole:.2f} uploads; kept with another episode's {kept}")


def cell_config(
    given: argparse.Namespace, preset: str, speed: float, clusters: int, varied: str | None = None
) -> Config:
    """One cell of the table."""
    changes = [
        f"radio.clusters={clusters}",
        f"radio.speed_mps={speed}",
        f"run.seed={given.seed}",
        f"run.seeds={given.seeds}",
        f"run.rounds={given.rounds}",
        "run.device=cpu",
        "qmix.gradients=synthetic",
    ]
    if preset == "paper":
        changes.append(f"cell.mobility={given.mobility}")
    return load_config(preset, [*changes, *given.set, *([varied] if varied else [])])


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
    parser.add_argument("--cells", nargs="+", default=["paper", "ring"], help="presets")
    parser.add_argument("--set", nargs="+", default=[], help="fields, as in --set of fedfade")
    parser.add_argument("--vary", nargs="+", default=[], help="a field and its values")
    parser.add_argument("--each", action="store_true", help="a column for every folder")
    parser.add_argument("--csv", type=Path, help="a file for all numbers and their errors")
    parser.add_argument("--swap", action="store_true", help="the swap test, in the paper's cell")
    parser.add_argument("--rogue", action="store_true", help="one client does as it likes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.swap:
        print_swaps(cell_config(given, "paper", given.speeds[0], given.clusters[0]), given.folders)
        return
    agents = given.folders if given.each else ["agents"] * bool(given.folders)
    names, rows = [*given.policies, *agents], []
    field, *values = given.vary or ["varied"]
    varied = [f"{field}={value}" for value in values] or [None]
    echo(f"| cell | clusters | m/s | {field} | " + " | ".join(names) + " |")
    echo("|---" * (4 + len(names)) + "|")
    for setting, preset, speed, clusters in product(
        varied, given.cells, given.speeds, given.clusters
    ):
        config = cell_config(given, preset, speed, clusters, setting)
        found = uploads(config, given.policies, given.folders, given.rogue)
        count, rival = len(given.policies), found[max(0, len(given.policies) - 1)]
        if not given.each and given.folders:
            found = torch.cat([found[:count], found[count:].mean(0, keepdim=True)])
        cells = " | ".join(f"{value:.2f}" for value in found.mean(-1))
        value = setting.partition("=")[2] if setting else "nothing"
        echo(f"| `{preset}` | {clusters} | {speed:g} | {value} | {cells} |")
        for name, own in zip(names, found, strict=True):
            row = [f"{number:.4f}" for number in compared(own, rival)]
            size = [str(config.learning.clients), str(config.radio.subbands)]
            rows.append([preset, *size, str(clusters), f"{speed:g}", value, name, *row])
    if given.csv:
        head = ["cell", "clients", "subbands", "clusters", "speed_mps", field, "policy"]
        head += ["uploads", "error", "ratio", "ratio_error"]
        given.csv.write_text("\n".join(map(",".join, [head, *rows])) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
