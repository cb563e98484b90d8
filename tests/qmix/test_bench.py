"""The benchmark's own arithmetic; its figures are for idle machines."""

from fedfade.bench.train import _flop, measure
from fedfade.config import load_config
from fedfade.qmix import Trainer


def test_the_floor_counts_every_product() -> None:
    """2 x 512 x 10 x 50,820 weights x 5 passes, less the observation's gradient; and the mixer."""
    trainer = Trainer(load_config("paper", ["qmix.gradients=synthetic", "run.device=cpu"]))
    agents = 2 * 512 * 10 * (5 * (18 * 250 + 250 * 120 + 120 * 120 + 120 * 16) - 18 * 250)
    mixer = 2 * 512 * (4 * (72 * 192 + 64 * 320 + 64 * 32 + 32 * 1) - 72 * 192)
    assert _flop(trainer) == agents + mixer


def test_figures() -> None:
    figures = measure(repeats=2, threads=1, peers=False)
    assert 0.3 < figures["floor_fraction"] < 1.1
    seconds = 250_000 / figures["updates_per_s"]
    assert figures["projected_hours"] > seconds / 3600
