"""Too little memory ends a command with one sentence that names what to lower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.agents.checkpoint import load_checkpoint
from fedfade.config import load_config
from fedfade.experiments import RunFolder, read_rows
from fedfade.learning import Models
from tests.conftest import TINY

CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ...")
CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
HOST = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

COMPARE = [word for change in [*TINY, "run.checkpoint_s=0"] for word in ("--set", change)]
TRAIN = [
    word
    for change in [
        "qmix.episodes=60",
        "qmix.parallel_episodes=10",
        "qmix.replay_size=400",
        "qmix.batch_size=32",
        "qmix.hidden=[16]",
        "radio.slots=20",
        "run.checkpoint_s=0",
        "run.device=cpu",
    ]
    for word in ("--set", change)
]


def failing(function: Callable[..., object], after: int, error: Exception) -> Callable[..., object]:
    """The function, until it has been called `after` times."""
    calls = []

    def call(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) > after:
            raise error
        return function(*arguments, **named)

    return call


def one_sentence(answer, *words: str) -> None:
    assert answer.code == 2
    lines = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in answer.err
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(("error", "place"), [(CUDA, "the GPU"), (CUBLAS, "the GPU")])
def test_training(error: Exception, place: str, fedfade, monkeypatch, tmp_path: Path) -> None:
    words = ["train", "small-cell", "--gradients", "synthetic", "--out", tmp_path / "run", *TRAIN]
    monkeypatch.setattr(Trainer, "play_batch", failing(Trainer.play_batch, 3, error))
    answer = fedfade(*words)
    one_sentence(answer, place, "qmix.parallel_episodes", "qmix.batch_size", "qmix.replay_size")
    assert load_checkpoint(tmp_path / "run").episodes == 30  # all that was played
    monkeypatch.undo()
    assert fedfade(*words).code == 0
    assert load_checkpoint(tmp_path / "run").episodes == 60


def test_comparing(fedfade, monkeypatch, tmp_path: Path) -> None:
    words = ["compare", "paper", "--policies", "random,perfect", "--out", tmp_path, *COMPARE]
    monkeypatch.setattr(Models, "train", failing(Models.train, 2, CUDA))
    one_sentence(fedfade(*words), "the GPU", "fedfade compare", "run.seeds", "policies")
    place = RunFolder(tmp_path, load_config(tmp_path / "config.yaml"), torch.device("cpu"))
    stored = place.load_checkpoint()
    assert stored is not None
    assert stored[0] == 2
    assert len(read_rows(place.metrics)) == 2 * 2 * 2  # rounds x seeds x policies
    monkeypatch.undo()
    assert fedfade(*words).code == 0
    assert place.finished


def test_learning(fedfade, monkeypatch) -> None:
    settings = [word for change in TINY for word in ("--set", change)]
    monkeypatch.setattr(Models, "train", failing(Models.train, 1, HOST))
    one_sentence(fedfade("learn", "paper", *settings), "this machine", "learning.batch_size")


def test_other_errors_stay_what_they_are(fedfade, monkeypatch) -> None:
    """A fault in the program must not pass for a lack of memory."""
    monkeypatch.setattr(Models, "train", failing(Models.train, 0, RuntimeError("shapes")))
    settings = [word for change in TINY for word in ("--set", change)]
    with pytest.raises(RuntimeError, match="shapes"):
        fedfade("learn", "paper", *settings)
