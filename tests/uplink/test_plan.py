"""Reserved sub-bands: nobody's twice, no time lost to the cuts, and as likely as promised."""

from __future__ import annotations

import pytest
import torch

from fedfade.config import load_config
from fedfade.uplink import Scenario, plan, scenario_from_config
from fedfade.uplink.plan import (
    LIKENESS,
    after_turn,
    best_rate,
    ergodic_rate,
    expected_slots,
    reserve,
    timetable,
)


@pytest.fixture
def scenario() -> Scenario:
    return scenario_from_config(load_config("paper"), 9_932_960)


def some_snr(episodes: int = 64) -> torch.Tensor:
    db = 15.0 + 11.0 * torch.randn(episodes, 10, generator=torch.Generator().manual_seed(0))
    return 10.0 ** (db / 10.0)


@pytest.mark.parametrize("choice", [False, True])
def test_a_subband_is_reserved_for_one_client_at_a_time(scenario: Scenario, choice: bool) -> None:
    plan = reserve(scenario, some_snr(), torch.arange(64), choice=choice)
    assert plan.bands.sum(1).max() == 1
    if not choice:
        # One sub-band at a time, although a turn may be cut in two: McNaughton's rule.
        assert plan.bands.sum(-1).max() == 1
    assert not (plan.bands.any(-1) & plan.grace.any(-1)).any()


def test_choice_leaves_no_subband_empty_while_somebody_sends(scenario: Scenario) -> None:
    bands = reserve(scenario, some_snr(), torch.zeros(64)).bands
    sends = bands.any(-1).any(1)  # [episode, slot]
    assert (bands.any(1).all(-1) == sends).all()


def test_equal_clients_share_all_slots(scenario: Scenario) -> None:
    """At 20 dB a client needs about 158 of 250 slots: four sub-bands have room for six, one
    after another on a sub-band for four."""
    plan = reserve(scenario, torch.full((1, 10), 100.0), torch.zeros(1))
    served = plan.bands.any(-1).sum(-1)[0]
    assert (served > 0).sum() == 6
    assert served.sum() == scenario.bands * scenario.slots
    assert served[served > 0].min() >= plan.slots[0, 0]


def test_slots_are_those_of_a_whole_payload(scenario: Scenario) -> None:
    """Of which the share left takes its share, whatever a client begins with."""
    snr = some_snr()
    bits = scenario.payload_bits * torch.linspace(0.0, 1.0, 10).expand(64, -1)
    plan = reserve(scenario, snr, torch.zeros(64), bits)
    assert torch.equal(plan.slots, reserve(scenario, snr, torch.zeros(64)).slots)
    assert not plan.bands[:, 0].any()  # nothing to send


def test_turns_move_on_among_equals(scenario: Scenario) -> None:
    plan = reserve(scenario, torch.full((2, 10), 100.0), torch.tensor([0.0, 1.0]))
    assert (plan.bands.any(-1).any(-1)[0] != plan.bands.any(-1).any(-1)[1]).any()


def test_best_rate_against_drawn_fading() -> None:
    """Gamma variables of shape 2, three independent ones; 400,000 draws of a rate that spreads
    by about 1 bit/s/Hz have a standard error of 0.002."""
    power = 3.0
    draws = torch.distributions.Gamma(2.0, 2.0).sample((400_000, 3))
    drawn = torch.log2(1.0 + 30.0 * draws.max(-1).values).mean()
    choices = 1.0 + (power - 1.0) / LIKENESS
    assert best_rate(torch.tensor(30.0), choices, 2.0) == pytest.approx(float(drawn), abs=0.01)


def test_best_of_one_is_the_ergodic_rate() -> None:
    snr = torch.logspace(-2, 5, 20)
    assert torch.allclose(best_rate(snr, 1, 1.0), ergodic_rate(snr), rtol=1e-4)


def test_a_timetable_leaves_no_subband_empty(scenario: Scenario) -> None:
    """Who needs more than a round begins where nobody was before it, and nowhere else."""
    plan = timetable(scenario, torch.full((1, 10), 0.1), torch.zeros(1))
    assert plan.start[0, :4].tolist() == [0.0] * 4
    assert sorted(plan.band[0, :4].tolist()) == [0, 1, 2, 3]
    assert bool(plan.start[0, 4:].isinf().all() & plan.end[0, 4:].isinf().all())
    needed = expected_slots(scenario, torch.tensor(0.1), torch.tensor(scenario.payload_bits))
    assert float(needed) > 2 * scenario.slots
    assert torch.allclose(plan.end[0, :4], needed)


# Where the own turn just was, how likely each of three holders is done, slots needed and left:
# where to go on, None for nowhere. Who is nearly done stays, for up to 5 slots; who is late and
# needs up to 30 moves to the likeliest, from 0.6 on.
AFTER = [
    (1, [0.9, 0.0, 0.1], 5.0, 0.0, 1),
    (1, [0.9, 0.0, 0.1], 5.1, 0.0, 0),
    (1, [0.5, 0.0, 0.1], 5.1, 0.0, None),
    (None, [0.5, 0.59, 0.1], 3.0, 0.0, None),
    (None, [0.5, 0.0, 0.61], 3.0, 0.0, 2),
    (None, [0.8, 0.0, 1.0], 30.0, 29.0, 2),
    (None, [0.8, 0.0, 1.0], 30.1, 0.0, None),
    (None, [0.8, 0.0, 1.0], 20.0, 20.0, None),
]


@pytest.mark.parametrize(("turn", "done", "needed", "left", "band"), AFTER)
def test_where_to_go_on_after_the_turn(
    turn: int | None, done: list[float], needed: float, left: float, band: int | None
) -> None:
    grace = torch.tensor([place == turn for place in range(3)])
    found = after_turn(grace, torch.tensor(done), torch.tensor([needed]), torch.tensor([left]))
    assert found.tolist() == [place == band for place in range(3)]


def test_nobody_holds_two_sub_bands_at_once() -> None:
    """In float32 these turns of 250 slots add up so that one is rounded up to 251."""
    scenario = scenario_from_config(load_config("paper"), 1.0)
    given = torch.tensor([[161.84083557128906, 250.0, 250.0, 134.15814208984375, 250.0, 250.0]])
    ends = torch.floor(given.cumsum(-1) + 1e-3)
    assert (ends.diff() > scenario.slots).any()
    assert plan._row(scenario, given).sum(-1).max() == 1
