"""Peers stand in one table, those that are not installed too; nothing about how long it took."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fedfade.bench import channel_speed, federated_round, flower_speed, peers, qmix_speed

SIZES = {"repeats": 1, "rounds": 2, "episodes": 7}
HELD = [f"QMIX with held decisions, {what}" for what in ("playing", "learning", "both")]
MEASURED = [
    "fading of a client-round, CPU time",
    *(f"FedAvg with uplink, decided by the {side}" for side in ("server", "client")),
    *["federated round of the paper's CNN"] * 2,
    *HELD * 2,
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated_round, "BATCH", 5)
    monkeypatch.setattr(qmix_speed, "PEER_ITERATIONS", 1)
    monkeypatch.setattr(flower_speed, "exchanges", dict)


def test_who_is_not_installed_is_named(
    fedfade: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, gone = importlib.util.find_spec, {"sionna", "flwr", "ray"}

    def find_spec(name: str, *where: Any) -> Any:
        return None if name in gone else real(name, *where)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(peers, "find_spec", find_spec)
    monkeypatch.setattr(qmix_speed, "peer_timers", lambda *given: None)
    words = (word for name, size in SIZES.items() for word in (f"--{name}", size))
    answer = fedfade("bench", "peers", "--json", *words)
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out.splitlines()[-1])["rows"]
    assert [row["measured"] for row in rows] == MEASURED
    extras = ["sionna", "flower", "flower", None, "flower", *["peers"] * 6]
    for row, extra in zip(rows, extras, strict=True):
        assert row["who"] in answer.out
        assert row["who"] in answer.err  # as soon as it was measured
        if extra is None:
            assert row["who"].startswith("plain loop, PyTorch ")
            assert row["ratio"] == pytest.approx(row["peer"] / row["ours"])
        else:
            assert row["who"].endswith(f", not installed: pip install 'fedfade[{extra}]'")
            assert row["peer"] is row["ratio"] is None
            assert (row["ours"] is None) == ("FedAvg" in row["measured"])


def timers(config: Any, frames: int, batched: bool, device: str, turn: Any) -> Any:
    turn()
    return [{f"timers/{part}_time": 1.0 for part in qmix_speed.PARTS}]


def test_ratios_say_how_many_times_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all peers, whose own figures are made up."""
    for package in ("flwr", "ray", "benchmarl"):
        pytest.importorskip(package)
    sionna = {"sionna": "9.9", "sionna_ms_per_client_round": 1e6}
    monkeypatch.setattr(channel_speed, "_sionna", lambda repeats: sionna)
    monkeypatch.setattr(federated_round, "flower_seconds", lambda *given: 1e3)
    seconds = iter((1.0, 2.0, 4.0))  # bare, decided by the server, by the clients
    monkeypatch.setattr(flower_speed, "simulate", lambda *given: (next(seconds), 0.1))
    monkeypatch.setattr(qmix_speed, "peer_timers", timers)
    told: list[peers.PeerRow] = []
    found: Any = peers.measure(**SIZES, tell=told.append)
    assert [row.measured for row in told] == MEASURED
    assert found["rows"] == [{**row._asdict(), "ratio": row.ratio} for row in told]
    fading, by_server, by_clients, _, beside_flower, *held = told
    assert fading.who == "Sionna 9.9"
    assert fading.ratio == pytest.approx(1e6 / fading.ours)
    assert [by_server.ratio, by_clients.ratio] == [0.5, 0.25]
    assert by_server.who.endswith(" without uplink")
    assert beside_flower.who.startswith("Flower 1.")
    assert beside_flower.ratio == pytest.approx(1e3 / beside_flower.ours)
    for row in held:
        assert row.ratio == pytest.approx(row.ours / row.peer)
        assert row.who.startswith("BenchMARL ")
    assert len({row.who for row in held}) == 2
    assert logging.root.manager.disable == logging.NOTSET


def test_the_papers_sizes_are_measured_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"transitions_per_s": 6.0, "peer_transitions_per_s": 2.0}
    rates |= {"collecting_transitions_per_s": 10.0, "peer_collecting_transitions_per_s": 1.0}
    held = {f"held_{figure}_per_s": 1.0 for figure in peers.HELD}
    monkeypatch.setattr(qmix_speed, "train", lambda *given: {**rates, **held})
    monkeypatch.setattr(peers, "version", lambda package: "9.9")
    ratios = {row.measured: row.ratio for row in peers._agents(1, 1, 7, paper=True)}
    assert ratios["QMIX at the paper's sizes, playing"] == 10.0
    assert ratios["QMIX at the paper's sizes, both"] == 3.0
