"""What `fedfade train` and `fedfade export` say to the person who types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedfade.agents import load_checkpoint
from fedfade.commands.train import MIXER_NAMES


def words(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_whole_batches_are_announced_and_a_finished_training_says_so(
    fedfade, overrides: list[str], tmp_path: Path
) -> None:
    asked = ["train", "small-cell", *words(overrides), "--episodes", 25, "--out", tmp_path / "run"]
    answer = fedfade(*asked)
    assert answer.code == 0
    assert "40/40 episodes: batches of 20 " in answer.err
    again = fedfade(*asked)
    assert again.code == 0
    assert again.err.replace("\n", "") == f"already finished: {tmp_path / 'run'}"
    assert again.out == answer.out
    even = fedfade(*asked[:-3], 60, *asked[-2:])  # goes on from 40
    assert "60/60 episodes" in even.err
    assert "batches of" not in even.err


@pytest.mark.parametrize("mixer", ["qmix", "qplex", "vdn", "independent"])
def test_the_curve_is_named_after_the_mixer(
    mixer: str, fedfade, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = []
    monkeypatch.setattr(
        "fedfade.commands.train._draw", lambda curves, path, clients, title: titles.append(title)
    )
    changes = words([*overrides, f"qmix.mixer={mixer}", "qmix.episodes=20"])
    assert fedfade("train", "small-cell", *changes, "--out", tmp_path).code == 0
    assert titles == [f"{MIXER_NAMES[mixer]} on small-cell"]
    assert ("QMIX" in titles[0]) == (mixer == "qmix")


def test_who_is_refused_sees_the_reason_alone(fedfade, tmp_path: Path) -> None:
    changes = ["qmix.parallel_episodes=7"]
    answer = fedfade("train", "small-cell", *words(changes), "--out", tmp_path)
    assert answer.code == 2
    assert answer.err.startswith("error: qmix.parallel_episodes = 7")
    assert "starting" not in answer.err


def test_shipped_agents_are_exported_by_name(
    fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    answer = fedfade("export", "qmix-plus", "--onnx", "out")
    assert answer.code == 0, answer.err
    assert len(list(Path("out").glob("client-*.onnx"))) == 10
    assert json.loads(Path("out/normalisation.json").read_text())["inputs"]
    refused = fedfade("export", "qmix-minus", "--onnx", "out")
    assert refused.code == 2
    assert "'qmix-minus' holds no checkpoint.json" in refused.err


ABSENT = ("tensorboard", "matplotlib", "pettingzoo", "onnx", "onnxruntime")
"""What a machine that only trains need not have."""


def test_training_needs_no_extras(overrides: list[str], tmp_path: Path) -> None:
    """The real command where none of them can be imported: one line for each file it leaves out."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
        "from fedfade.cli import main; main()\n"
    )
    changes = words([*overrides, "qmix.episodes=60"])
    command = [sys.executable, "-c", program, "train", "small-cell", *changes, "--out", tmp_path]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count("no TensorBoard files: pip install 'fedfade[tensorboard]'") == 1
    assert answer.stderr.count("no curve.png: Matplotlib is not installed") == 1
    assert load_checkpoint(tmp_path).episodes == 60
    assert not (tmp_path / "tensorboard").exists()
    refused = subprocess.run(
        [sys.executable, "-c", program, "export", tmp_path, "--onnx", tmp_path / "onnx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "fedfade export needs ONNX: pip install 'fedfade[onnx]'" in refused.stderr
