"""Numbers at the edge of the world: nothing becomes NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.allocation import BUILT_IN, genie_bound, load_policy, play_round
from fedfade.config import load_config
from fedfade.seams import PARTS
from fedfade.uplink import (
    Progress,
    global_state,
    observe,
    plain_round,
    round_reward,
    scenario_from_config,
)
from tests.reliability import EXAMPLES

GAINS = st.sampled_from([0.0, 1e-45, 1e-38, 1e-30, 1e-13, 1e-8, 1e-3, 1.0])
FADING = st.sampled_from([0.0, 1e-30, 1e-4, 1.0, 1.0, 30.0])
LEVELS = st.sampled_from(
    [[0.0, -100.0], [23.0, 10.0, 5.0, -100.0], [60.0, -99.9, -100.0, -300.0], [-99.0, -100.0]]
)
PAYLOADS = st.sampled_from([1e-6, 1.0, 1e5, 1e7, 9e15])


@settings(max_examples=60 * EXAMPLES, deadline=None, derandomize=True)
@given(
    clients=st.integers(1, 5),
    bands=st.integers(1, 4),
    payload=PAYLOADS,
    levels=LEVELS,
    gains=st.lists(GAINS, min_size=5, max_size=5),
    fading=st.lists(FADING, min_size=20, max_size=20),
    equal=st.booleans(),
    inner=st.sampled_from([0.0, 1e-38, 1.0, 1e30]),
    nothing_left=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_no_round_makes_a_nan(
    clients: int,
    bands: int,
    payload: float,
    levels: list[float],
    gains: list[float],
    fading: list[float],
    equal: bool,
    inner: float,
    nothing_left: list[bool],
) -> None:
    """Every policy, the genie, observations and reward: zero and equal gains, nothing to send."""
    config = load_config(
        "paper",
        [
            f"learning.clients={clients}",
            f"radio.subbands={bands}",
            f"radio.power_levels_dbm={levels}",
            "radio.slots=5",
            f"allocation.observe=[{', '.join(PARTS.built_in)}]",
        ],
    )
    scenario = scenario_from_config(config, payload)
    alpha = torch.tensor([gains[:1] * clients if equal else gains[:clients]])
    fade = (
        torch.tensor(fading[: clients * bands]).reshape(1, 1, clients, bands).expand(2, 5, -1, -1)
    )
    round_ = plain_round(
        alpha=alpha.expand(2, -1),
        fading=fade.contiguous(),
        inner=(inner * torch.eye(clients)).expand(2, -1, -1),
        number=torch.zeros(2),
        age=torch.zeros(2, clients),
    )
    left = torch.full((2, clients), payload)
    left[1, torch.tensor(nothing_left[:clients])] = 0.0
    for name in BUILT_IN:
        outcome = play_round(
            load_policy(name), scenario, round_, torch.arange(2), record=True, start=Progress(left)
        )
        for part in (outcome.bits, outcome.finish_slot, outcome.sum_rate_bps, outcome.reward):
            assert bool(part.isfinite().all()), name
        assert bool((outcome.bits >= 0).all())
        assert bool(outcome.delivered[left == 0].all())
        unreachable = (alpha == 0).expand(2, -1) & (left > 0)
        assert not bool(outcome.delivered[unreachable].any()), name
        assert outcome.history is not None
        assert bool(outcome.history.rate_bps.isfinite().all())
    bound = genie_bound(scenario, round_)
    assert bool(bound.isfinite().all())
    for slot in (0, 4):
        for seen in (
            observe(scenario, round_, Progress(left), slot),
            global_state(scenario, round_, Progress(left), slot),
        ):
            assert bool(seen.isfinite().all())
            assert float(seen.abs().max()) <= 10.0
    everyone = torch.ones(2, clients, dtype=torch.bool)
    assert bool(round_reward(scenario, round_.inner, everyone).isfinite().all())


@pytest.mark.parametrize("payload", [1e-6, 9e15])
@pytest.mark.parametrize("levels", ["[0, -100]", "[-100, 23]"])
def test_extreme_payloads_through_the_command(
    payload: float, levels: str, fedfade, tmp_path
) -> None:
    """A payload of nothing is delivered by whoever may send, one of 9e15 bits by nobody."""
    from fedfade.experiments import read_rows
    from tests.conftest import TINY

    changes = [*TINY, f"learning.payload_bits={payload!r}", f"radio.power_levels_dbm={levels}"]
    changes += ["run.rounds=1", "run.seeds=1"]
    words = [word for change in changes for word in ("--set", change)]
    out = tmp_path / "run"
    answer = fedfade(
        *("compare", "paper", "--policies", "max-individual-rate,max-sum-rate,genie"),
        *("--out", out, *words),
    )
    assert answer.code == 0, answer.err
    for row in read_rows(out / "metrics.csv"):
        assert row.delivered == (4 if payload < 1 else 0)
        assert row.policy == "genie" or math.isfinite(row.reward)


@pytest.mark.parametrize("clients", [1, 2])
def test_one_client_on_one_sub_band_trains(clients: int) -> None:
    from fedfade.agents import Trainer
    from tests.reliability.kills import SMALL_CELL

    changes = [f"learning.clients={clients}", "radio.subbands=1", "qmix.gradients=synthetic"]
    trainer = Trainer(load_config("small-cell", [*SMALL_CELL, *changes]))
    report = [trainer.play_batch() for _ in range(2)][-1][0]
    assert math.isfinite(report.reward)
    assert math.isfinite(report.loss)
