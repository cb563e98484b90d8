"""How many threads compute: as many as cores are free, and `--threads` on whatever computes."""

from __future__ import annotations

import os

import pytest
import torch
import typer.main

from fedfade import device
from fedfade.agents import Trainer
from fedfade.app import app
from fedfade.config import load_config

COMPUTING = [
    "compare",
    "replay",
    "train",
    "ladder",
    "levers",
    "sweep",
    "reproduce",
    "verify",
    "learn",
    "bound",
]


@pytest.fixture(autouse=True)
def as_before() -> None:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("cores", "idle", "threads"),
    [
        (4, [1.0, 1.0, 1.0, 1.0], 4),  # nobody else is there
        (4, [0.0, 0.9, 0.1, 0.9], 2),  # two others
        (2, [0.0, 0.0], 1),  # busy: one, at least
        (2, [1.0] * 64, 2),  # a large machine of which two cores are ours
        (1, [1.0], 1),
        (3, [], 3),  # a system that does not say
    ],
)
def test_threads_are_the_cores_nobody_else_keeps_busy(
    cores: int, idle: list[float], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([[0.0] * len(idle), [share * device._WATCHED_S for share in idle]])
    monkeypatch.setattr(device, "usable_cores", lambda: cores)
    monkeypatch.setattr(device, "_idle_s", lambda: next(moments))
    assert device.free_cores() == threads


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= device.free_cores() <= device.usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(device, "free_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    device.use_threads(None)
    assert torch.get_num_threads() == 1
    device.use_threads(2)
    assert torch.get_num_threads() == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    device.use_threads(None)
    assert torch.get_num_threads() == 3


def test_every_command_that_computes_takes_threads() -> None:
    commands = typer.main.get_command(app).commands
    for name in COMPUTING:
        assert "threads" in {option.name for option in commands[name].params}, name
    assert "threads" in {o.name for o in commands["channel"].commands["sample"].params}


@pytest.mark.parametrize(("preset", "threads"), [("small-cell", 1), ("ring", 2)])
def test_small_updates_take_one_thread(
    preset: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 episodes of the small cell took 7 s on one thread and 390 s on two busy cores."""
    settings = ["qmix.gradients=synthetic", "radio.slots=5", "qmix.replay_size=600"]
    trainer = Trainer(load_config(preset, settings))
    found = []
    monkeypatch.setattr(Trainer, "recorded", (None, lambda: found.append(torch.get_num_threads())))
    torch.set_num_threads(2)
    trainer.update()
    assert found == [threads]
    assert torch.get_num_threads() == 2
