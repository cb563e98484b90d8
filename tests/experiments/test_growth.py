"""Policies, seeds and rounds added to a run folder: the numbers of a fresh run, bit by bit."""

from __future__ import annotations

import json
import os
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from fedfade.config import load_config
from fedfade.experiments.growth import growth
from tests.conftest import TINY

SETTINGS = [word for override in TINY for word in ("--set", override)]
BASE = ("random,perfect", 2, 3)  # policies, seeds, rounds
"""What is there at first; with evaluations every second round its last is tested for being that."""


def words(policies: str, seeds: int, rounds: int, *more: object) -> list[object]:
    every = ["--set", "run.evaluate_every=2", *more]
    counts = ["--policies", policies, "--seeds", seeds, "--rounds", rounds]
    return ["compare", "paper", *SETTINGS, *counts, *every]


def left(folder: Path) -> dict[str, object]:
    """What a folder holds that is not of its history."""
    record = json.loads((folder / "run.json").read_text())
    arrays = np.load(folder / "gradients.npz")
    own = ("models", "scopes", "inputs", "agents", "left")
    return {
        "metrics": (folder / "metrics.csv").read_bytes(),
        "config": (folder / "config.yaml").read_bytes(),
        "gradients": {name: arrays[name].tobytes() for name in arrays.files},
        **{name: record[name] for name in own},
    }


def same(folder: Path, fresh: Path) -> None:
    one, other = left(folder), left(fresh)
    one["left"].pop("gradients.npz"), other["left"].pop("gradients.npz")  # dates in the archive
    assert one == other
    assert not (folder / "more").exists()


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a tiny run goes into its report."""
    monkeypatch.setattr("fedfade.experiments.write_report", lambda folder, *others: folder)


GROWN = [
    ("random,max-sum-rate,perfect", 2, 3),
    ("random,perfect,genie", 3, 3),
    ("random,perfect", 2, 6),
    ("max-sum-rate,random,genie,perfect", 3, 5),
]


@pytest.mark.parametrize("whole", GROWN, ids=str)
def test_a_grown_run_is_a_fresh_one(whole: tuple[str, int, int], fedfade, tmp_path: Path) -> None:
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    assert fedfade(*words(*BASE), "--out", grown).code == 0
    answer = fedfade(*words(*whole), "--out", grown)
    assert answer.code == 0, answer.err
    assert f"adding to {grown}: " in answer.err
    assert fedfade(*words(*whole), "--out", fresh).code == 0
    same(grown, fresh)
    assert "already finished" in fedfade(*words(*whole), "--out", grown).err
    answer = fedfade("verify", grown, "--rounds", 9)
    assert answer.code == 0, answer.out


def test_naming_what_is_new_is_enough(fedfade, tmp_path: Path) -> None:
    """Policies are added to those that are there; a run that was stopped is finished first."""
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    assert fedfade(*words(*BASE), "--out", out).code == 0
    assert fedfade(*words("max-individual-rate", 2, 3), "--out", out).code == 0
    answer = fedfade(*words("random", 2, 4), "--out", out)  # and a second time
    assert answer.code == 0, answer.err
    assert fedfade(*words("random,perfect,max-individual-rate", 2, 4), "--out", fresh).code == 0
    same(out, fresh)
    record = json.loads((out / "run.json").read_text())
    assert [one["what"] for one in record["grown"]] == ["max-individual-rate", "rounds 3 to 3"]
    before = left(out)
    for less, field in ((("random", 1, 4), "run.seeds"), (("random", 2, 3), "run.rounds")):
        answer = fedfade(*words(*less), "--out", out)
        assert answer.code == 2
        assert field in answer.err
    answer = fedfade(*words("max-sum-rate", 2, 4, "--set", "radio.clusters=5"), "--out", out)
    assert answer.code == 2
    assert "radio.clusters" in answer.err
    assert "policies, seeds and rounds may be added" in answer.err
    assert left(out) == before


def test_who_is_told_how_long_a_run_is_begins_again(
    fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents observe the round as t / T; without kept models everybody begins again."""
    monkeypatch.chdir(tmp_path)
    Path("long_runs.py").write_text(
        "from fedfade.allocation.baselines import RandomBand\nclass Mine(RandomBand): pass\n"
    )
    own = [*SETTINGS, "--episodes", 20, "--set", "qmix.hidden=[4]"]
    assert fedfade("train", "paper", *own, "--out", "agents").code == 0
    who = ("random,qmix,long_runs:Mine", 2)
    for rounds, out in ((2, "grown"), (2, "bare"), (4, "fresh"), (4, "grown"), (4, "bare")):
        if (out, rounds) == ("bare", 4):
            Path("bare/checkpoint.safetensors").unlink()
        answer = fedfade(*words(*who, rounds, "--checkpoint", "agents"), "--out", out)
        assert answer.code == 0, answer.err
        if rounds == 4 and out != "fresh":
            assert "how long a run is may matter: qmix and long_runs:Mine" in answer.err
        assert ("not kept its models" in answer.err) == ((out, rounds) == ("bare", 4))
    same(Path("grown"), Path("fresh"))
    same(Path("bare"), Path("fresh"))


def test_agents_join_a_run(fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training more, unless that gives agents that are there another name."""
    monkeypatch.chdir(tmp_path)
    own = [*SETTINGS, "--episodes", 20, "--set", "qmix.hidden=[4]"]
    assert fedfade("train", "paper", *own, "--seeds", 2, "--out", "agents").code == 0
    run = [*words("random", 1, 2), "--out", "run"]
    assert fedfade(*run).code == 0
    assert fedfade(*run, "--checkpoint", "agents/seed-0").code == 0
    rows = Path("run/metrics.csv").read_text()
    assert "qmix" in rows
    answer = fedfade(*run, "--checkpoint", "agents")  # qmix would be qmix-seed-0
    assert answer.code == 2
    assert "allocation.checkpoint" in answer.err
    assert Path("run/metrics.csv").read_text() == rows


def test_killed_anywhere_the_same_command_goes_on(fedfade, tmp_path: Path) -> None:
    """Before every single rename: the folder is readable at any time and ends as a fresh one."""
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    whole = words("random,genie,max-individual-rate", 2, 3, "--set", "run.checkpoint_s=0")
    assert fedfade(*whole, "--out", fresh).code == 0
    assert fedfade(*words("random", 1, 2), "--out", out).code == 0
    kills = 0
    for number in count(1):
        child = os.fork()
        if not child:
            rename, left_over = os.replace, iter(range(1, number))

            def dying(*paths: Path) -> None:
                if next(left_over, None) is None:  # noqa: B023
                    os.kill(os.getpid(), signal.SIGKILL)
                rename(*paths)  # noqa: B023

            os.replace = dying
            os._exit(fedfade(*whole, "--out", out).code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        kills += 1
    assert kills > 5  # each gets further than the last
    same(out, fresh)


def test_what_counts_as_more(tmp_path: Path) -> None:
    """A folder without a run, or with another, has nothing to be added to."""
    config = load_config("paper", TINY)
    assert growth(tmp_path, config) is None


def test_what_runs_remember_grows_along(fedfade, tmp_path: Path) -> None:
    """Error feedback, a server's memory, a mean of models; and no two payloads alike."""
    fields = {
        "learning.codec": "int8",
        "learning.error_feedback": "true",
        "learning.server": "mifa",
        "learning.average_models": "0.5",
        "learning.payload_factors": "[0.5,1,1.5,2]",
    }
    more = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    assert fedfade(*words("random", 1, 2, *more), "--out", grown).code == 0
    for out in (grown, fresh):
        answer = fedfade(*words("random,genie", 2, 3, *more), "--out", out)
        assert answer.code == 0, answer.err
    same(grown, fresh)
    kept = [load_file(folder / "checkpoint.safetensors") for folder in (grown, fresh)]
    assert kept[0].keys() == kept[1].keys() >= {"parameters", "uploads", "grams"}
    assert all(tensor.equal(kept[1][name]) for name, tensor in kept[0].items())
