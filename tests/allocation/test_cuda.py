"""On a GPU: the same assignments, the same rounds, recorded or not."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from fedfade.agents import QmixPolicy, Trainer
from fedfade.allocation import BUILT_IN, genie_bound, load_policy, max_sum_rate, play_round
from fedfade.allocation import sum_rate_nats as sum_rate
from fedfade.allocation.assignment import assign, assign_by_table
from fedfade.allocation.play import RecordedRounds
from fedfade.config import load_config
from fedfade.uplink import Round

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RECORDABLE = ["random", "max-individual-rate", "block-fading-schedule", "shortest-remaining-first"]


@pytest.fixture(autouse=True)
def without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU goes the same way: a machine with a GPU need not have SciPy."""

    def by_table(value):
        flat = value.reshape(-1, *value.shape[-2:])
        column = assign_by_table(flat)
        chosen = flat.gather(-1, column.clamp(min=0)[..., None])[..., 0]
        total = torch.where(column >= 0, chosen, 0.0).sum(-1)
        return column.reshape(value.shape[:-1]), total.reshape(value.shape[:-2])

    if not torch.cuda.is_available():
        return
    for name in ("max_sum_rate", "schedules", "genie", "deadline"):
        module = sys.modules.get(f"fedfade.allocation.{name}")
        if hasattr(module, "assign"):
            monkeypatch.setattr(module, "assign", by_table)


def moved(scenario, round_):
    device = torch.device("cuda")
    there = replace(scenario, power_w=scenario.power_w.to(device))
    return there, Round(*(part.to(device) for part in round_))


@pytest.mark.parametrize("shape", [(10, 4), (4, 10), (14, 4), (9, 8)])
def test_assignments(shape: tuple[int, int]) -> None:
    value = torch.rand(5000, *shape, generator=torch.Generator().manual_seed(0))
    column, total = assign(value.cuda())
    assert torch.equal(column.cpu(), assign_by_table(value))  # random values: no ties
    assert total.device.type == "cuda"


@pytest.mark.parametrize("snr_db", [-10, 0, 10, 25])
def test_max_sum_rate(snr_db: float) -> None:
    generator = torch.Generator().manual_seed(1)
    level = 10 ** ((snr_db + 5 * torch.randn(400, 10, 1, generator=generator)) / 10)
    snr = level * -torch.log1p(-torch.rand(400, 10, 4, generator=generator))
    here, there = max_sum_rate(snr, 1.0), max_sum_rate(snr.cuda(), 1.0).cpu()
    assert torch.allclose(sum_rate(snr, here), sum_rate(snr, there), rtol=2e-6)


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_rounds_of_every_policy(name: str, make_round) -> None:
    scenario, round_ = make_round(20, 6, episodes=16, overrides=("radio.slots=120",))
    scenario = replace(scenario, payload_bits=scenario.payload_bits / 2)
    policy, keys = load_policy(name), torch.arange(16)
    here = play_round(policy, scenario, round_, keys)
    there = play_round(policy, *moved(scenario, round_), keys.cuda())
    # Where two choices are worth the same, rounding decides, and what follows differs.
    assert (here.delivered == there.delivered.cpu()).float().mean() > 0.97
    difference = (here.bits - there.bits.cpu()).abs() / scenario.payload_bits
    # A plan in which all have the same time: rounding decides whose turn comes first.
    assert float(difference.mean()) < (0.03 if name == "progressive-schedule" else 0.01)


def test_the_genie(make_round) -> None:
    scenario, round_ = make_round(18, 6, episodes=8)
    assert torch.equal(genie_bound(scenario, round_), genie_bound(*moved(scenario, round_)).cpu())


@pytest.mark.parametrize("name", [*RECORDABLE, "qmix", "qmix held"])
def test_recorded_rounds(name: str, make_round) -> None:
    """Recording fails where a policy waits for the device, so this says that these do not."""
    small = ("radio.slots=30",)
    if name.startswith("qmix"):
        held = ["qmix.hold_slots=7", "qmix.hop_subbands=true"] if name == "qmix held" else []
        config = load_config("paper", [*small, *held, "qmix.gradients=synthetic", "run.seed=3"])
        policy = QmixPolicy(Trainer(config, "cuda").learner.agents, config)
    else:
        policy = load_policy(name)
    scenario, round_ = moved(*make_round(20, 5, episodes=6, overrides=small))
    keys = torch.arange(6, device="cuda")
    recorded = RecordedRounds(policy, scenario, round_, keys)
    for seed in (0, 1, 2):
        round_ = moved(*make_round(20, 5, episodes=6, seed=seed, overrides=small))[1]
        played = play_round(policy, scenario, round_, keys + seed)
        for one, other in zip(recorded.play(round_, keys + seed), played, strict=True):
            assert one is other is None or torch.equal(one, other)
