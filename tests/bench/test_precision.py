"""Precision against results, where a CPU can say something about it."""

import json
from collections.abc import Callable
from typing import Any


def test_precisions_are_compared_seed_by_seed(fedfade: Callable[..., Any]) -> None:
    answer = fedfade("bench", "precision", "--device", "cpu", "--rounds", 2, "--seeds", 2, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    exact, tf32, bf16 = found["accuracy"]
    assert exact["precision"] == "fp32"
    assert exact["difference"] == exact["difference_error"] == 0.0
    assert tf32["accuracy"] == exact["accuracy"]  # a CPU has no TensorFloat-32
    assert bf16["precision"] == "bf16"
    assert found["q_values"]["same_action"] == 1.0
    assert found["q_values"]["largest_difference"] == 0.0
    assert "minus fp32" in answer.out
