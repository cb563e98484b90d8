"""The benchmark's own arithmetic; its figures are for idle machines."""

import pytest

from fedfade.agents import Trainer
from fedfade.bench import qmix_speed
from fedfade.bench.floors import update_layers
from fedfade.bench.qmix_speed import held, measure
from fedfade.config import load_config


def test_the_floor_counts_every_product() -> None:
    """2 x 512 x 10 x 51,600 weights x 5 passes, less the observation's gradient; and the mixer."""
    trainer = Trainer(load_config("paper", ["qmix.gradients=synthetic", "run.device=cpu"]))
    agents = 2 * 512 * 10 * (5 * (20 * 252 + 252 * 120 + 120 * 120 + 120 * 16) - 20 * 252)
    mixer = 2 * 512 * (4 * (72 * 192 + 64 * 320 + 64 * 32 + 32 * 1) - 72 * 192)
    assert sum(layer.flop for layer in update_layers(trainer)) == agents + mixer


def test_figures_fit_together() -> None:
    """Nothing about how long anything took: only that the figures follow from each other."""
    figures = measure(repeats=2, threads=1, peers=False)
    assert figures["floor_fraction"] == pytest.approx(figures["floor_ms"] / figures["update_ms"])
    assert figures["updates_per_s"] == pytest.approx(1e3 / figures["update_ms"])
    slots = 1500 * (250 * figures["slot_ms"] + figures["prepare_batch_ms"])
    hours = (250_000 * figures["update_ms"] + slots) / 3.6e6
    assert figures["projected_hours"] == pytest.approx(hours)


def test_held_figures_go_without_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmix_speed, "peer_timers", lambda *given: None)
    figures = held(episodes=7)
    assert figures["held_batched_peer"].startswith("not installed")
    assert figures["held_decisions_per_s"] > figures["held_trained_decisions_per_s"] > 0


def test_held_figures_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours and BenchMARL's, with all the latter offers installed."""
    pytest.importorskip("benchmarl")
    monkeypatch.setattr(qmix_speed, "PEER_ITERATIONS", 1)
    figures = held(episodes=7)
    for peer in ("batched_peer", "pettingzoo_peer"):
        for what in ("decisions", "updates", "trained_decisions"):
            rates = figures[f"held_{what}_per_s"], figures[f"held_{peer}_{what}_per_s"]
            assert figures[f"held_{peer}_{what}_ratio"] == pytest.approx(rates[0] / rates[1])
