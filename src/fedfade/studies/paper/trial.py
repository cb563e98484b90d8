"""Uploads on unseen seeds, without learning: trained agents beside policies, and the swap test.

Agents of every training meet every evaluation seed. Where training keeps one layout (clients that
stay, tasks that restart the same), each training is tried in its own, on fading it has not seen.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pandas import DataFrame, concat
from torch import Tensor

from fedfade.agents import load_policy_checkpoint
from fedfade.allocation import Outcome, Policy, load_policy, play_round
from fedfade.config import Config, changed
from fedfade.device import one_thread
from fedfade.experiments.metrics import jain
from fedfade.experiments.uploads import Uplink, joined
from fedfade.studies.frames import matching, means
from fedfade.studies.noise import Difference, beyond, paired
from fedfade.studies.paper.setting import QMIX
from fedfade.studies.swap import ALL, AS_IS, swap_test
from fedfade.uplink import GradientSource

LOCAL_HEURISTICS = ("random", "max-individual-rate")
LEARNED = (
    "Agents *learned* if they deliver more than random and more than max individual rate, and "
    "less when they are shown another episode's observation, each beyond noise."
)


class Player(NamedTuple):
    """Who plays, by which name in tables, and whether with swapped observations too."""

    name: str
    policy: Policy
    training: str = ""
    swaps: bool = False


class CellPlayed(NamedTuple):
    """What tells a cell apart in tables, and its uplink."""

    labels: Mapping[str, Any]
    uplink: Uplink


def play_cells(
    cells: Sequence[CellPlayed],
    numbers: Sequence[int],
    source: GradientSource,
    players: Iterable[Player],
) -> DataFrame:
    """Some rounds of every cell in one batch, [cell, seed, round] episodes, under everybody: a line
    per cell, policy, training, swapped part and seed. Cells differ in gains alone."""
    first = cells[0].uplink
    seeds, scenario = first.seeds, first.scenario
    inner = torch.stack([source.inner(seeds, number) for number in numbers], 1).flatten(0, 1)
    batch = joined([cell.uplink.rounds(numbers) for cell in cells])
    batch = batch._replace(inner=inner.repeat(len(cells), 1, 1))

    def by_seed(values: Tensor) -> Tensor:
        """Mean over rounds, or what clients got in all of them: [cell, seed, ...]."""
        shape = (len(cells), len(seeds), len(numbers), *values.shape[1:])
        return values.float().reshape(shape).mean(2).cpu()

    def lines(player: Player, swapped: str, outcome: Outcome) -> Iterable[dict[str, Any]]:
        served, reward = by_seed(outcome.delivered), by_seed(outcome.reward)
        who = {"policy": player.name, "training": player.training, "swapped": swapped}
        for place, cell in enumerate(cells):
            for seed, shares, paid in zip(seeds, served[place], reward[place], strict=True):
                got = {"uploads": float(shares.sum()), "reward": float(paid)}
                fairness = jain(shares.numpy().astype(float))
                yield {**cell.labels, **who, "seed": seed, **got, "fairness": fairness}

    table: list[dict[str, Any]] = []
    for player in players:
        keys = first.keys(player.policy.name, *numbers).repeat(len(cells))
        if player.swaps:
            outcomes = swap_test(player.policy, scenario, batch, keys)
        else:
            outcomes = {AS_IS: play_round(player.policy, scenario, batch, keys)}
        for swapped, outcome in outcomes.items():
            table += lines(player, swapped, outcome)
    return DataFrame(table)


def tried(
    config: Config,
    seeds: Sequence[int],
    numbers: Sequence[int],
    source: GradientSource,
    policies: Sequence[str],
    agents: Mapping[int, Path | None],
    device: torch.device,
) -> DataFrame:
    """Policies and the agents of every training seed, where there are any, these with swapped
    observations too."""
    config = changed(config, {"run.seed": seeds[0], "run.seeds": len(seeds)})
    players = {
        seed: Player(QMIX, load_policy_checkpoint(folder, config), str(seed), swaps=True)
        for seed, folder in agents.items()
        if folder is not None
    }
    with one_thread():
        if config.cell.mobility != "fixed" and config.run.restart != "same":
            cell = CellPlayed({}, Uplink(config, source.payload_bits, device))
            everybody = [*(Player(name, load_policy(name)) for name in policies), *players.values()]
            return play_cells([cell], numbers, source, everybody)
        tables = []
        for seed in agents:
            cell = CellPlayed({}, Uplink(config, source.payload_bits, device, layout=seed))
            others = [Player(name, load_policy(name), str(seed)) for name in policies]
            own = [players[seed]] if seed in players else []
            tables.append(play_cells([cell], numbers, source, [*others, *own]))
        return concat(tables, ignore_index=True)


class Use(NamedTuple):
    """Whether agents learned to use what they observe, from the table of `tried`."""

    above: Mapping[str, Difference]  # in uploads, by policy
    swapped: Difference  # what they lose with another episode's observation
    kept: Mapping[str, float]  # share of uploads kept, by part swapped

    @property
    def needed(self) -> list[Difference]:
        """All that have to be beyond noise."""
        return [*(self.above[name] for name in LOCAL_HEURISTICS), self.swapped]


def use_of_inputs(lines: DataFrame) -> Use:
    """Uploads above other policies, and what is left of them when observations are swapped."""
    agents, own = {"policy": QMIX, "swapped": AS_IS}, matching(lines, policy=QMIX)
    others = [name for name in lines["policy"].unique() if name != QMIX]
    above = {name: paired(lines, agents, {"policy": name}, "uploads") for name in others}
    swapped = paired(own, {"swapped": AS_IS}, {"swapped": ALL}, "uploads")
    uploads = means(own, "swapped", "uploads")
    before = uploads.get(AS_IS, 0.0) or math.nan  # nobody delivers: nothing to keep
    return Use(above, swapped, (uploads / before).drop(AS_IS, errors="ignore").to_dict())


def learned_facts(lines: DataFrame) -> dict[str, Any]:
    """The answer for one set of agents, for claims and tables."""
    use = use_of_inputs(lines)
    return {**use._asdict(), "learned": all(beyond(use.needed))}
