"""What `fedfade train` and `fedfade export` say to the person who types them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedfade.agents import Report, Trainer, live, load_checkpoint, trained_folders
from fedfade.commands.train import MIXER_NAMES
from fedfade.config import load_config
from fedfade.errors import UserError
from fedfade.experiments.sweep_commands import Train


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


def test_an_interrupt_in_the_last_batch_still_leaves_a_curve(
    fedfade, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["train", "small-cell", *words(overrides), "--episodes", 40, "--out", tmp_path]
    real, played = Trainer.play_batch, []

    def interrupted(self: Trainer) -> list[Report]:
        played.append(self)
        if len(played) in (1, 2):  # the first of two batches, and then the second
            signal.raise_signal(signal.SIGINT)
        return real(self)

    monkeypatch.setattr(Trainer, "play_batch", interrupted)
    answer = fedfade(*asked)
    assert answer.code == 130
    assert "stopped; the same command continues" in answer.err
    answer = fedfade(*asked)
    assert answer.code == 0, answer.err
    assert "stopped" not in answer.err
    assert answer.out.startswith("40 episodes, ")
    assert (tmp_path / "curve.png").exists()


def test_a_training_is_overwritten_when_asked(
    fedfade, overrides: list[str], tmp_path: Path
) -> None:
    asked = ["train", "small-cell", *words(overrides), "--episodes", 20, "--out"]
    other = ["--set", "qmix.gamma=0.5"]
    assert fedfade(*asked, tmp_path / "one").code == 0
    before = (tmp_path / "one" / "checkpoint.json").read_bytes()
    assert fedfade(*asked, tmp_path / "one", *other).code == 2
    wrong = ["--overwrite", "--gradients", "none.npz"]
    assert fedfade(*asked, tmp_path / "one", *wrong).code == 2
    assert (tmp_path / "one" / "checkpoint.json").read_bytes() == before
    for folder in ("one", "fresh"):
        answer = fedfade(*asked, tmp_path / folder, *other, "--overwrite")
        assert answer.code == 0, answer.err
    one, fresh = (load_checkpoint(tmp_path / folder) for folder in ("one", "fresh"))
    assert one.files == fresh.files
    assert len(list((tmp_path / "one").glob("*.safetensors"))) == 2


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


def test_data_traces_and_code_that_changed_are_not_the_trainings(
    fedfade, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a training on the old and half on the new would pass as one."""
    monkeypatch.chdir(tmp_path)
    code = Path("own_model.py")
    code.write_text("from fedfade.learning.model import mlp\n\nmake = lambda *given: mlp(*given)\n")
    sample = ["channel", "sample", "--drops", 20, "--out", "drops.npz", "--seed"]
    assert fedfade(*sample, 0).code == 0
    fields = ["radio.source=traces", "radio.traces=drops.npz", "learning.model=own_model:make"]
    asked = ["train", "small-cell", "--out", "run", *words([*overrides, *fields]), "--episodes"]
    assert fedfade(*asked, 20).code == 0
    again = ([*asked, 40], ["verify", "run"])
    for command in again:
        assert fedfade(*command).code == 0
    before = code.read_text()
    code.write_text(before + "another = 1\n")
    for command in again:
        answer = fedfade(*command)
        assert answer.code == 2
        assert "'own_model:make' has changed (more than comments) since the run in" in answer.err
    code.write_text(before)
    assert fedfade(*sample, 5).code == 0
    for command in again:
        assert "'drops.npz' has changed" in fedfade(*command).err
    config = load_config("small-cell", [*overrides, *fields, "qmix.episodes=40"])
    with pytest.raises(UserError, match=r"'drops\.npz' has changed"):
        Train().lines(config, Path("run"))


def test_a_seed_that_was_alone_is_joined_by_others(
    fedfade, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training, then two seeds of it: nothing is trained twice, and both are found."""
    monkeypatch.setattr("fedfade.commands.train._draw", lambda *given: None)
    asked = ["train", "small-cell", *words(overrides), "--episodes", 20]
    assert fedfade(*asked, "--out", tmp_path / "grown").code == 0
    before = load_checkpoint(tmp_path / "grown").files
    other = [*asked, "--set", "qmix.gamma=0.5", "--seeds", 2]
    assert "qmix.gamma" in fedfade(*other, "--out", tmp_path / "grown").err
    for out in ("grown", "fresh"):
        answer = fedfade(*asked, "--seeds", 2, "--out", tmp_path / out)
        assert answer.code == 0, answer.err
    folders = trained_folders(tmp_path / "grown")
    assert [folder.name for folder in folders] == ["seed-0", "seed-1"]
    assert load_checkpoint(folders[0]).files == before
    fresh = trained_folders(tmp_path / "fresh")
    for one, same in zip(folders, fresh, strict=True):
        ours, theirs = (load_checkpoint(folder).tensors("agents") for folder in (one, same))
        for name, tensor in ours.items():  # alone, sums are of other lengths and round differently
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)
    answer = fedfade(*asked, "--seed", 2, "--out", tmp_path / "grown")  # one more
    assert answer.code == 0, answer.err
    assert len(trained_folders(tmp_path / "grown")) == 3


def test_a_page_follows_a_training(
    fedfade, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read again by the browser while it runs, and no more when it has ended."""
    monkeypatch.setattr("fedfade.commands.train._draw", lambda *given: None)
    seen: list[str] = []
    real = live.write_text
    monkeypatch.setattr(
        live, "write_text", lambda path, text: (seen.append(text), real(path, text))
    )
    monkeypatch.setattr(live, "REFRESH_S", 1e-9)
    monkeypatch.setattr(live, "_SHARE", 1e9)
    asked = ["train", "small-cell", *words(overrides), "--episodes", 60, "--out", tmp_path]
    answer = fedfade(*asked)
    assert answer.code == 0, answer.err
    assert f"open {tmp_path / 'training.html'}" in answer.err
    assert "a median client needs about" in answer.err
    assert all('http-equiv="refresh"' in text for text in seen[:2])
    assert "Time left" in seen[1]
    page = (tmp_path / "training.html").read_text()
    assert page == seen[-1]
    assert "refresh" not in page
    assert "Time left" not in page
    for word in ("Finished.", "Uploads a round", "Exploration", "Value of a state", "<polyline"):
        assert word in page
    (tmp_path / "training.html").unlink()
    assert "already finished" in fedfade(*asked).err  # from the finished folder
    assert (tmp_path / "training.html").read_text() == page
