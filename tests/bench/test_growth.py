"""Curves of cost: which points there are and what is written of them."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfade.bench import growth
from fedfade.bench.stage import Stage
from fedfade.bench.timing import without_compiling
from fedfade.graphs import fuse

CPU = torch.device("cpu")
FEW = {"clients": (5, 10), "sub-bands": (4,), "slots": (250,), "seeds": (1, 2)}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes as they are, costs invented: clients x sub-bands x slots x seeds."""

    def cost(name: str) -> growth.Cost:
        def work(stage: Stage, config: Any, seeds: int) -> dict[str, float]:
            sizes = (config.learning.clients, config.radio.subbands, config.radio.slots, seeds)
            return {name: float(torch.tensor(sizes).prod())}

        work.__name__ = name
        return work

    enters = {cost("all"): tuple(growth.AXES), cost("some"): ("clients", "seeds")}
    monkeypatch.setattr(growth, "ENTERS", enters)


@pytest.mark.usefixtures("quick")
def test_one_size_changes_at_a_time(tmp_path: Path) -> None:
    found = growth.measure(CPU, out=tmp_path)
    rows = list(csv.DictReader((tmp_path / "growth.csv").open()))
    for row in rows:  # proportional to what changes, all else being the paper's
        assert float(row["ms"]) == 10_000 * int(row["size"]) / growth.PAPER[row["axis"]]
    assert len(rows) == len(found["points"]) == (4 + 3 + 3 + 4) + (4 + 4)  # type: ignore[arg-type]
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("quick")
def test_a_size_that_fails_leaves_the_others(
    fedfade: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def tight(stage: Stage, config: Any, seeds: int) -> dict[str, float]:
        if config.learning.clients != 20:
            raise torch.OutOfMemoryError("no room")
        return {"tight": 1.0}

    monkeypatch.setitem(growth.ENTERS, tight, ("clients",))
    answer = fedfade("bench", "growth", "--device", "cpu", "--json", "--out", tmp_path)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    assert [p for p in found["points"] if p[0] == "tight"] == [["tight", "clients", 20, 1.0]]
    assert [line.split(":")[0] for line in found["failed"]] == [
        f"tight, clients = {n}, failed" for n in (5, 10, 50)
    ]
    assert "tight, clients = 50, failed: OutOfMemoryError: no room" in answer.err
    assert (tmp_path / "growth.png").stat().st_size > 10_000  # drawn without that curve


def test_every_cost_is_measured() -> None:
    found = growth.measure(CPU, axes=FEW)
    assert found["failed"] == []
    seen = {(work, axis) for work, axis, *_ in found["points"]}  # type: ignore[attr-defined]
    slots = {"slot step", "update", "fading of a round", "max sum rate, a round"}
    both = {"federated round"}
    assert {work for work, axis in seen if axis == "clients"} == slots | both
    assert {work for work, axis in seen if axis == "slots"} == slots


@pytest.mark.parametrize("before", [None, "1"])
def test_nothing_is_compiled_meanwhile(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("FEDFADE_COMPILE", raising=False)
    if before is not None:
        monkeypatch.setenv("FEDFADE_COMPILE", before)
    with without_compiling():
        assert fuse(len, torch.device("cuda")) is len
    assert os.environ.get("FEDFADE_COMPILE") == before
