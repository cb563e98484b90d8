"""Recorded work does what plain calls do, and recording itself does nothing."""

from __future__ import annotations

import pytest
import torch

from fedfade import graphs
from fedfade.graphs import fuse, record

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_recording_changes_nothing_and_replaying_repeats(device: str) -> None:
    place = torch.device(device)
    state = torch.arange(4.0, device=place)
    count = torch.zeros((), dtype=torch.int64, device=place)

    def work() -> None:
        state.mul_(0.5).add_(count)
        count.add_(1)

    replay = record(work, [state, count], place)
    assert state.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert count.item() == 0
    expected = torch.arange(4.0)
    for number in range(5):
        replay()
        expected = expected * 0.5 + number
    assert state.tolist() == expected.tolist()
    state.fill_(8.0)  # buffers may be filled from outside between replays
    replay()
    assert state.tolist() == [4.0 + 5.0] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_a_recording_keeps_what_it_reads(device: str) -> None:
    """Nobody else holds the tensors of the work, and others are made where they would have been."""
    place = torch.device(device)
    total = torch.zeros(1000, device=place)

    def recorded():
        step = torch.full_like(total, 3.0)
        return record(lambda: total.add_(step), [total], place)

    replay = recorded()
    _others = [torch.full_like(total, -1.0) for _ in range(50)]
    replay()
    assert total.unique().tolist() == [3.0]


@pytest.mark.parametrize("device", DEVICES)
def test_fused_functions_give_the_same_numbers(device: str) -> None:
    place = torch.device(device)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2.0 + 1.0).sum(-1)

    x = torch.linspace(-1, 1, 64, device=place).view(8, 8)
    assert torch.allclose(fuse(function, place)(x), function(x), atol=1e-6)


def test_on_the_cpu_nothing_is_wrapped() -> None:
    def work() -> None: ...

    cpu = torch.device("cpu")
    assert record(work, [], cpu) is work
    assert fuse(work, cpu) is work


def test_rows_of_compiled_work_are_never_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 read the padding as numbers (`test_cuda.py` looks at the numbers, on a GPU).
    Other settings of the compiler are kept."""
    asked: list[object] = []

    def compiled(function: object, **settings: object) -> object:
        asked.append(settings["options"])
        return function

    monkeypatch.setattr(graphs, "compiled_on", lambda device: True)
    monkeypatch.setattr(torch, "compile", compiled)
    for own in ({}, {"options": {"realize_reads_threshold": 3}}):
        fuse(torch.sin, torch.device("cpu"), **own)
    unpadded = {"comprehensive_padding": False}
    assert asked == [unpadded, unpadded | {"realize_reads_threshold": 3}]
