"""Rounds under every policy of the ladder, without learning and with; tables of what came out."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pandas import DataFrame, Series

from fedfade.agents import load_policy_checkpoint
from fedfade.allocation import GENIE, PERFECT, Policy, genie_bound, load_policy, play_round
from fedfade.config import changed
from fedfade.device import one_thread, pick_device
from fedfade.errors import UserError
from fedfade.experiments import Uplink, compare_many
from fedfade.experiments.run_folder import mark
from fedfade.learning import payload_bits, plain_payload
from fedfade.radio import gain_statistics
from fedfade.studies.frames import Bar, StudyRun, kept, labelled, matching
from fedfade.studies.ladder.rungs import FIRST_SEED, OWN, Agents, Ladder, LadderCell, as_trained
from fedfade.studies.noise import mean_error
from fedfade.studies.paper.setting import PLAYED_ROUND, QMIX
from fedfade.uplink import Round, scenario_from_config
from fedfade.uplink.gradients import SyntheticGradients

_CELL = ["cell", "speed"]


def compute(ladder: Ladder, out: Path, bar: Bar, accuracy: bool = True) -> dict[str, DataFrame]:
    """The tables of the study, those of federated runs too where asked for; what is finished is
    read."""
    with bar("cells", len(ladder.cells)) as tell:
        lines = play(ladder, out, tell)
    table = ladder_table(ladder, lines)
    tables = {"ladder": table, "policies": policy_table(ladder, lines)}
    if accuracy:
        runs = accuracy_runs(ladder, out, table)
        with bar("rounds", sum(run.config.run.rounds for run in runs)) as tell:
            tables["accuracy"] = accuracy_table(ladder, runs, table, tell)
    return tables


def amounts(ladder: Ladder) -> dict[str, float]:
    """The work of `compute` by its bars, in federated rounds of one run; which policies learn, the
    rounds without learning say, one a rung at most."""
    cell, run = ladder.cells[0], ladder.base.run
    played = len(ladder.cells) * len(cell.rounds) * cell.config.run.seeds * len(ladder.policies)
    learning = len(ladder.accuracy_cells) * len(ladder.rungs) * run.seeds * run.rounds
    return {"cells": PLAYED_ROUND * played, "rounds": float(learning)}


def play(ladder: Ladder, out: Path, tell: Callable[[int, str], None]) -> DataFrame:
    """Uploads of every cell, policy and seed; what is on disk is read."""
    tables = []
    device = pick_device(ladder.base.run.device)
    for number, cell in enumerate(ladder.cells):
        tell(number, f"{cell.name}, {cell.speed_mps:g} m/s")
        for agents in (None, *ladder.agents):
            name, content = (agents.name, agents.digests) if agents else ("", ladder.policies)
            path = out / "runs" / f"{file_name(cell, name, content)}.csv"
            with one_thread():
                table = kept(path, partial(_played, ladder, cell, agents, device))
            if not {"seed", "uploads"} <= {*table.select_dtypes(float)}:
                raise UserError(f"{str(path)!r} is damaged: remove it to play these rounds again.")
            tables.append(table.assign(**cell.labels))
    tell(len(ladder.cells), "done")
    return pd.concat(tables, ignore_index=True)


def file_name(cell: LadderCell, name: str, content: Sequence[str]) -> str:
    """A name a person can read, and a digest of all that decides the numbers."""
    tree = cell.config.model_dump(include={"radio", "cell", "run"})
    for field in ("device", "checkpoint_s", "precision", "evaluate_every", "train_absent"):
        del tree["run"][field]
    learning = cell.config.learning
    bits = plain_payload(payload_bits(learning))
    digest = mark(tree, cell.rounds, learning.clients, bits, name, list(content))
    words = re.sub(r"[^A-Za-z0-9.+_-]+", "-", f"{cell.name} {cell.speed_mps:g} {name}".strip())
    return f"{words}-{digest}"


def _rounds(cell: LadderCell, device: torch.device) -> tuple[Uplink, Round]:
    """All rounds of a cell in one batch: [(seed, round)]."""
    config = cell.config
    source = SyntheticGradients(config, device)
    uplink = Uplink(config, source.payload_bits, device)
    inner = torch.stack([source.inner(uplink.seeds, number) for number in cell.rounds], 1)
    return uplink, uplink.rounds(cell.rounds)._replace(inner=inner.flatten(0, 1))


def _played(
    ladder: Ladder, cell: LadderCell, agents: Agents | None, device: torch.device
) -> DataFrame:
    """The policies without learning on all rounds, or agents of every trained seed."""
    uplink, rounds = _rounds(cell, device)
    config = as_trained(cell.config, agents) if agents else cell.config
    scenario = scenario_from_config(config, uplink.scenario.payload_bits, device)

    def by_seed(name: str, training: str, policy: Policy | None) -> DataFrame:
        if policy is None:
            count = genie_bound(scenario, rounds)
        else:
            keys = uplink.keys(policy.name, *cell.rounds)
            count = play_round(policy, scenario, rounds, keys).delivered.sum(-1)
        uploads = count.float().reshape(len(uplink.seeds), -1).mean(-1).tolist()
        seeds = {"seed": uplink.seeds, "uploads": uploads}
        return DataFrame({"policy": name, "training": training, **seeds})

    if agents:
        policies = enumerate(load_policy_checkpoint(folder, config) for folder in agents.folders)
        return pd.concat(by_seed(agents.name, f"training {n}", policy) for n, policy in policies)
    names = ladder.policies
    return pd.concat(by_seed(n, "", None if n == GENIE else load_policy(n)) for n in names)


def fading_memory(ladder: Ladder) -> dict[tuple[float, int], float]:
    """Autocorrelation of the fading's power, by speed and age, in the preset's own cell."""
    device = pick_device(ladder.base.run.device)
    found: dict[tuple[float, int], float] = {}
    for cell in ladder.cells:
        if cell.name == OWN:
            gain = _rounds(cell, device)[1].fading  # [(seed, round), slot, client, band]
            drops = gain.transpose(1, 2).flatten(0, 1).numpy(force=True)
            memory = gain_statistics(drops, tuple(ladder.ages)).autocorrelation
            found |= {(cell.speed_mps, age): memory[age] for age in memory}
    return found


def policy_table(ladder: Ladder, lines: DataFrame) -> DataFrame:
    """One line per cell and policy: where it stands and what it delivers."""
    rung = {name: rung.name for rung in ladder.rungs for name in rung.policies}
    learned = {agents.name: agents.rung for agents in ladder.agents}
    by_seed = lines.groupby([*_CELL, "policy", "seed"], sort=False)["uploads"].mean()  # trainings
    seeds = by_seed.groupby([*_CELL, "policy"], sort=False)
    table = DataFrame({"uploads": seeds.mean(), "error": seeds.sem()}).reset_index()
    table.insert(2, "rung", table["policy"].map(rung | learned))
    table.insert(4, "learned", _learned(table, learned))
    return table


def ladder_table(ladder: Ladder, lines: DataFrame) -> DataFrame:
    """The best policy without learning of every rung, those below it included. Policies of a cell
    play the same rounds, so what a rung adds is a mean of differences."""
    table = []
    for cell in ladder.cells:
        own = matching(lines, **cell.labels)
        scores = own.pivot_table(index="seed", columns="policy", values="uploads")
        best: list[str] = []
        for rung in ladder.rungs:
            below = best
            best = [scores[[*below, *rung.policies]].sum().idxmax()]  # of equals the first
            uploads, error = mean_error(scores[best[0]])
            gain, gain_error = mean_error(scores[best[0]] - scores[(below or best)[0]])
            line = {**cell.labels, "rung": rung.name, "policy": best[0], "uploads": uploads}
            table.append({**line, "error": error, "gain": gain, "gain_error": gain_error})
    return DataFrame(table)


def accuracy_runs(ladder: Ladder, out: Path, table: DataFrame) -> list[StudyRun]:
    """The best policy of every rung, in the middle of the map and in the preset's own cell, for as
    many rounds and seeds as the preset says: those without learning together, every training alone.
    """
    runs, asked = [], ladder.base.run
    for cell in ladder.accuracy_cells:
        best = matching(table, **cell.labels)["policy"].unique()
        policies = [*(name for name in best if name != GENIE), PERFECT]
        fields: dict[str, Any] = {"run.seeds": asked.seeds, "allocation.policies": policies}
        folder = out / "accuracy" / file_name(cell, "", policies)
        runs.append(StudyRun(cell.labels, changed(cell.config, fields), folder))
        for agents in ladder.agents:
            for number in range(asked.seeds):  # evaluation seed i with the agents of training i
                trained = number % len(agents.folders)
                fields = {
                    "run.seed": FIRST_SEED + number,
                    "run.seeds": 1,
                    "run.rounds": asked.rounds,
                    "allocation.policies": [QMIX],
                    "allocation.checkpoint": str(agents.folders[trained]),
                }
                config = changed(as_trained(cell.config, agents), fields)
                content = [agents.digests[trained], str(number)]
                folder = out / "accuracy" / file_name(cell, agents.name, content)
                runs.append(StudyRun({**cell.labels, "agents": agents.name}, config, folder))
    return runs


def accuracy_table(
    ladder: Ladder, runs: Sequence[StudyRun], table: DataFrame, tell: Callable[[int, str], None]
) -> DataFrame:
    """Final accuracy and uploads on every rung, all comparisons side by side."""
    device = pick_device(ladder.base.run.device)
    found = compare_many([run.config for run in runs], [run.folder for run in runs], device, tell)
    learned = {agents.name: agents.rung for agents in ladder.agents}
    rows = labelled(runs, found)
    if learned:  # by their own names
        rows["policy"] = rows["agents"].fillna(rows["policy"])
    seeds = rows.groupby([*_CELL, "policy", "seed"], sort=False)
    ends = seeds.agg(accuracy=("accuracy", "last"), uploads=("delivered", "mean")).reset_index()
    everywhere = DataFrame([(PERFECT, "bound"), *learned.items()], columns=["policy", "rung"])
    everywhere = everywhere.merge(ends[_CELL].drop_duplicates(), "cross")
    rungs = pd.concat([table[[*_CELL, "policy", "rung"]], everywhere])
    on_rungs = ends.merge(rungs, "left").groupby([*_CELL, "rung", "policy"], sort=False)
    final = on_rungs.agg(
        accuracy=("accuracy", "mean"),
        error=("accuracy", "sem"),
        uploads=("uploads", "mean"),
        seeds=("seed", "count"),
    ).reset_index()
    final.insert(4, "learned", _learned(final, learned))
    return final


def _learned(table: DataFrame, agents: Iterable[str]) -> Series:
    return table["policy"].isin([*agents]).map({True: "yes", False: "no"})
