"""Kill -9 at random moments, go on, compare every bit with the run nobody disturbed.

    python -m tests.reliability.kills --kills 50 --command train --command compare --command sweep

Half of the kills come at a moment drawn over the run, half between two renames of its saves.
Commands run as a user runs them, in processes forked from this one, which has paid for the
imports. A run is killed up to five times, then left to finish; so on until there were enough kills.
After every kill, whatever is in the folder must still be readable.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedfade.agents.checkpoint import has_checkpoint, load_checkpoint
from fedfade.cli import main as fedfade
from fedfade.config import load_config
from fedfade.experiments import RunFolder, read_rows
from fedfade.experiments.run_folder import digest
from fedfade.experiments.sweep import load_sweep
from fedfade.storage import read_json, read_npz
from tests.conftest import TINY

IN_A_ROW = 5  # kills of one run before it may finish
LIMIT_S = 600.0  # for a run that nobody kills

SMALL_CELL = [
    "radio.slots=12",
    "qmix.hidden=[16, 8]",
    "qmix.batch_size=32",
    "qmix.replay_size=500",
    "qmix.episodes=120",
    "qmix.epsilon_episodes=80",
    "qmix.gradients=learning",
    "learning.local_work=1",
    "run.rounds=4",
]
SWEEP = """preset: paper
set: {SETTINGS}
grid:
  radio.clusters: [4, 5]
seeds: 1
"""

Facts = dict[str, str]
"""What a finished folder holds, by name, as text or digest."""


def overrides(changes: list[str]) -> list[str]:
    """As words of a command line."""
    both = [*changes, "run.checkpoint_s=0", "run.device=cpu"]
    return [word for change in both for word in ("--set", change)]


# --- what is run --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A command, what its folder holds in the end, and what must be readable at any time."""

    words: Callable[[Path], list[str]]  # of the folder
    facts: Callable[[Path], Facts]
    readable: Callable[[Path], None]
    renames: int  # of a run; before one of them it is killed


def compare_words(folder: Path) -> list[str]:
    """Fifteen rounds of four policies, saved after each."""
    changes = overrides([*TINY, "run.rounds=15"])
    policies = "random,max-sum-rate,perfect,genie"
    return ["compare", "paper", "--policies", policies, "--out", str(folder), *changes]


def compare_facts(folder: Path) -> Facts:
    """Metrics, Gram matrices and final models."""
    record = read_json(folder / "run.json")
    arrays = {
        name: np.ascontiguousarray(a) for name, a in read_npz(folder / "gradients.npz").items()
    }
    return {
        "finished": str(record["finished"] is not None),
        "models": json.dumps(record["models"], sort_keys=True),
        "metrics": (folder / "metrics.csv").read_text(),
        "gradients": str({name: (a.shape, a.tobytes()) for name, a in arrays.items()}),
        "report": str((folder / "report.html").exists()),
        "left over": str(sorted(p.name for p in folder.iterdir() if p.name.startswith(".fed"))),
    }


def compare_readable(folder: Path) -> None:
    """Config, record, metrics and checkpoint: each as it was written, or not there."""
    if not (folder / "config.yaml").exists():
        return
    config = load_config(folder / "config.yaml")
    place = RunFolder(folder, config, torch.device("cpu"))
    if (folder / "run.json").exists():
        assert place.record
    stored = place.load_checkpoint()
    if stored is not None:
        assert len(read_rows(place.metrics)) >= 8 * stored[0]  # 3 policies and the genie, 2 seeds


def train_words(folder: Path) -> list[str]:
    """Six batches of episodes on real federated rounds, saved after each."""
    return ["train", "small-cell", "--out", str(folder), *overrides(SMALL_CELL)]


def seeds_words(folder: Path) -> list[str]:
    """The same with two seeds in one program."""
    return [*train_words(folder), "--seeds", "2"]


def seeds_facts(folder: Path) -> Facts:
    """Of both seeds."""
    both = {name: train_facts(folder / name) for name in ("seed-0", "seed-1")}
    return {f"{name} {fact}": value for name, own in both.items() for fact, value in own.items()}


def seeds_readable(folder: Path) -> None:
    """Both are."""
    for name in ("seed-0", "seed-1"):
        train_readable(folder / name)


def train_facts(folder: Path) -> Facts:
    """Everything in the last checkpoint: networks, targets, optimiser, replay, model, curve."""
    stored = load_checkpoint(folder)
    return {
        "episodes": str(stored.episodes),
        "agents": digest(stored.tensors("agents")),
        "training": digest(stored.tensors("training")),
    }


def train_readable(folder: Path) -> None:
    """The checkpoint names two whole files."""
    if has_checkpoint(folder):
        stored = load_checkpoint(folder)
        assert stored.tensors("agents")
        assert stored.tensors("training")


def sweep_words(folder: Path) -> list[str]:
    """Two points on two processes."""
    settings = dict(change.split("=") for change in [*TINY, "run.rounds=16", "run.checkpoint_s=0"])
    settings["allocation.policies"] = "[random, perfect]"
    file = folder.parent / "points.yaml"
    inside = ", ".join(
        f"{name}: {value}" for name, value in settings.items() if ".seeds" not in name
    )
    file.write_text(SWEEP.replace("SETTINGS", inside))
    return ["sweep", str(file), "--workers", "2", "--out", str(folder)]


def sweep_facts(folder: Path) -> Facts:
    """The table, and every point."""
    facts = {"table": (folder / "sweep.csv").read_text()}
    for point in load_sweep(folder.parent / "points.yaml").points:
        here = folder / "points" / point.name
        record = read_json(here / "run.json")
        facts[f"{point.name} models"] = json.dumps(record["models"], sort_keys=True)
        facts[f"{point.name} metrics"] = (here / "metrics.csv").read_text()
    return facts


def sweep_readable(folder: Path) -> None:
    """Points that are there are readable."""
    for point in (folder / "points").glob("*"):
        with suppress(AssertionError):  # its worker may still be at it
            compare_readable(point)


SCENARIOS = {
    "compare": Scenario(compare_words, compare_facts, compare_readable, 44),
    "train": Scenario(train_words, train_facts, train_readable, 29),
    "train-seeds": Scenario(seeds_words, seeds_facts, seeds_readable, 56),
    "sweep": Scenario(sweep_words, sweep_facts, sweep_readable, 4),
}


# --- killing ------------------------------------------------------------------------------------


def die_before_rename(number: int) -> None:
    """Let this process be killed in the middle of a save: before so many files get their names."""
    rename, left = os.replace, iter(range(1, number))

    def dying(*paths: Path) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*paths)

    os.replace = dying  # type: ignore[assignment]


def started(words: list[str], log: Path, dies_before: int | None = None) -> int:
    """Run a command in a forked process; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        if dies_before is not None:
            die_before_rename(dies_before)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.set_num_threads(1)
        sys.argv = ["fedfade", *words]
        fedfade()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def workers_of(process: int) -> list[int]:
    """Processes a process has started."""
    with suppress(OSError):
        return [
            int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    return []


def ended(process: int, seconds: float) -> int | None:
    """Exit code of a process, None if it still runs after so long."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(0.002, max(0.0, deadline - time.monotonic())))


def kill(process: int, with_workers: bool) -> None:
    """SIGKILL; the workers of a sweep with it, or left to find out."""
    victims = [process, *(workers_of(process) if with_workers else [])]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    os.waitpid(process, 0)


def finish(scenario: Scenario, folder: Path) -> Facts:
    """Let a run end by itself."""
    log = folder.parent / "log.txt"
    code = ended(started(scenario.words(folder), log), LIMIT_S)
    if code != 0:
        raise AssertionError(f"exit code {code}: {log.read_text()[-2000:]}")
    return scenario.facts(folder)


def harness(command: str, kills: int, seed: int) -> dict[str, object]:
    """Kill a command so often; raises where a bit differs."""
    scenario, chance = SCENARIOS[command], random.Random(f"{command} {seed}")
    place = Path(tempfile.mkdtemp(prefix="fedfade-kills-"))
    try:
        start = time.monotonic()
        whole = finish(scenario, place / "whole")
        took = time.monotonic() - start
        done, runs, midway, between = 0, 0, 0, 0
        while done < kills:
            runs += 1
            folder = place / "killed"
            for _ in range(IN_A_ROW):
                aimed = chance.randint(1, scenario.renames) if chance.random() < 0.5 else None
                process = started(scenario.words(folder), place / "log.txt", aimed)
                code = ended(process, LIMIT_S if aimed else chance.uniform(0, took))
                if code not in (None, -signal.SIGKILL):
                    if code != 0:
                        raise AssertionError(f"{code}: {(place / 'log.txt').read_text()[-2000:]}")
                    break
                if code is None:
                    kill(process, chance.random() < 0.5)
                done, between = done + 1, between + (code is not None)
                midway += any(folder.glob("**/checkpoint.*"))
                scenario.readable(folder)
                if done == kills:
                    break
            found = finish(scenario, folder)
            for name, value in whole.items():
                if found[name] != value:
                    raise AssertionError(f"{command}, run {runs}: {name} differs")
            shutil.rmtree(folder)
        return {
            "command": command,
            "kills": done,
            "of these between two renames": between,
            "of these with a checkpoint to go on from": midway,
            "runs finished afterwards, equal bit by bit": runs,
            "seconds of an undisturbed run": round(took, 1),
        }
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--command", action="append", choices=list(SCENARIOS))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for module in ("matplotlib.figure", "scipy.optimize", "fedfade.agents.run"):
        importlib.import_module(module)  # what commands import late, once for all
    for command in asked.command or SCENARIOS:
        line = harness(command, asked.kills, asked.seed)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
