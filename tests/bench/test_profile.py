"""Kernels are counted and sorted; on a CPU, operations."""

import json
from collections.abc import Callable
from typing import Any

import torch

from fedfade.bench.profile import look


def test_operations_are_counted() -> None:
    a, b = torch.ones(2, 64, 64, 64)
    room = torch.empty_like(a)

    def work() -> None:
        torch.bmm(a, b, out=room)
        room.sin_()

    found = look(work, torch.device("cpu"))
    assert found["kernels"] >= 2
    assert set(found["busy_us"]) == {"matrix products", "other"}
    assert {name for name, _ in found["top"]} >= {"aten::bmm", "aten::sin_"}


def test_command(fedfade: Callable[..., Any]) -> None:
    answer = fedfade("bench", "profile", "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])["profiles"]
    assert list(found) == ["slot step", "update", "federated round"]
    for one in found.values():
        assert one["busy_us"]["matrix products"] > 0
        costs = [cost for _, cost in one["top"]]
        assert costs == sorted(costs, reverse=True)
        assert sum(costs) <= 1.0001 * sum(one["busy_us"].values())  # the rest is cheaper still
