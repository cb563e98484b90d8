"""Clients that are late to send, and rounds that end early, under every policy."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from fedfade.allocation import (
    BUILT_IN,
    Action,
    Outcome,
    View,
    full_power,
    genie_bound,
    load_policy,
    play_round,
)
from fedfade.allocation.play import make_view
from fedfade.uplink import Round, Scenario, plan, start_round

EPISODES = 12


@pytest.fixture
def late(make_round) -> tuple[Scenario, Round]:
    """60 slots; a third of the clients is late, some of them so much that they never send."""
    scenario, round_ = make_round(
        20, 8, EPISODES, overrides=("radio.slots=60", "learning.payload_bits=1.2e6")
    )
    generator = torch.Generator().manual_seed(1)
    slots = torch.randint(1, 75, (EPISODES, 10), generator=generator).clamp(max=60)
    some = torch.rand(EPISODES, 10, generator=generator) < 0.35
    return scenario, round_._replace(ready_slot=torch.where(some, slots, 0))


def played(name: str, scenario: Scenario, round_: Round) -> Outcome:
    return play_round(load_policy(name), scenario, round_, torch.arange(EPISODES), record=True)


@pytest.mark.parametrize("name", BUILT_IN)
def test_nobody_sends_before_it_is_ready_nor_beats_the_genie(name: str, late) -> None:
    scenario, round_ = late
    outcome = played(name, scenario, round_)
    assert outcome.history is not None
    sent = scenario.power_w[outcome.history.level] > 0  # [slot, episode, client]
    slot = torch.arange(scenario.slots)[:, None, None]
    assert not (sent & (slot < round_.ready_slot)).any()
    assert sent.any(0).sum() > EPISODES  # and some do send
    assert (outcome.history.rate_bps[~sent] == 0).all()
    assert (outcome.delivered.sum(-1) <= genie_bound(scenario, round_)).all()
    # The same clients, all ready at once: the bound can only be higher.
    at_once = round_._replace(ready_slot=round_.ready_slot[:, :0])
    assert (genie_bound(scenario, round_) <= genie_bound(scenario, at_once)).all()


BY_PLAN = ("wrap-around", "progressive-schedule")  # turns by slot are another plan than the row


@pytest.mark.parametrize("name", [name for name in BUILT_IN if not name.startswith(BY_PLAN)])
def test_ready_in_slot_0_is_not_late(name: str, make_round) -> None:
    scenario, round_ = make_round(
        20, 8, EPISODES, overrides=("radio.slots=60", "learning.payload_bits=1.2e6")
    )
    zero = torch.zeros(EPISODES, 10, dtype=torch.int64)
    plain, staggered = (
        played(name, scenario, r) for r in (round_, round_._replace(ready_slot=zero))
    )
    for one, other in zip(plain[:-1], staggered[:-1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("choice", [False, True])
def test_turns_by_slot_are_a_plan(choice: bool, late) -> None:
    """No sub-band has two holders, nobody holds one before it is ready, and where all are ready
    as many slots are dealt as in a row."""
    scenario, round_ = late
    snr = round_.alpha * (scenario.full_power_w / scenario.noise_w)
    given = (scenario, snr, round_.number)
    found = plan.reserve(*given, choice=choice, ready=round_.ready_slot).bands
    assert found.sum(1).max() == 1
    assert choice or found.sum(-1).max() == 1
    slot = torch.arange(scenario.slots)[:, None]
    assert not (found & (slot < round_.ready_slot[..., None, None])).any()
    row = plan.reserve(*given, choice=False).bands.sum((1, 2, 3))
    turns = plan.reserve(*given, choice=False, ready=torch.zeros_like(round_.ready_slot))
    assert (turns.bands.sum((1, 2, 3)) - row).abs().max() <= 10  # a slot a client, from rounding


def test_turns_by_slot_fill_what_a_row_fills(make_round) -> None:
    """Three clients of 12 slots on two sub-bands of 18: only preemption serves all. Who needs all
    the slots left goes first, so nobody is cut off."""
    scenario, _ = make_round(overrides=("radio.slots=18", "radio.subbands=2", "learning.clients=3"))
    turns = plan._turns(scenario, torch.full((1, 3), 12.0), torch.zeros(1, 3, dtype=torch.int64))
    assert turns.sum((2, 3)).tolist() == [[12, 12, 12]]
    assert turns.sum((1, 3)).tolist() == [[2] * 18]
    late = torch.tensor([[0, 0, 6]])  # the last one is ready just in time
    assert plan._turns(scenario, torch.full((1, 3), 12.0), late).sum((2, 3)).tolist() == [[12] * 3]


@pytest.mark.parametrize("name", ["block-fading-schedule", "wrap-around-choice"])
def test_to_know_who_is_late_pays(name: str, make_round) -> None:
    """Plans that take first slots into account deliver more than those that do not."""
    scenario, round_ = make_round(
        20, 8, 60, overrides=("radio.slots=80", "learning.payload_bits=2e6")
    )
    generator = torch.Generator().manual_seed(2)
    ready = torch.randint(0, 50, (60, 10), generator=generator)
    round_ = round_._replace(ready_slot=ready)

    class Unaware:
        scope, gradient_aware = "local", True
        name = "unaware"

        def __init__(self) -> None:
            self._policy = load_policy(name)

        def begin(self, view: View) -> object:
            return self._policy.begin(replace(view, ready_slot=None))

        def act(self, view: View, memory: object) -> Action:
            return self._policy.act(replace(view, ready_slot=None), memory)

    keys = torch.arange(60)
    aware = play_round(load_policy(name), scenario, round_, keys).delivered.sum()
    unaware = play_round(Unaware(), scenario, round_, keys).delivered.sum()  # type: ignore[arg-type]
    assert aware > unaware


def test_max_sum_rate_is_that_of_those_who_are_ready(late) -> None:
    scenario, round_ = late
    policy, keys = load_policy("max-sum-rate"), torch.arange(EPISODES)
    progress = start_round(scenario, EPISODES)
    view = make_view(policy, scenario, round_, progress, 10, keys)
    assert torch.equal(view.can_send, round_.ready_slot <= 10)
    found = policy.act(view, None)
    gone = round_._replace(ready_slot=round_.ready_slot[:, :0])  # the same with the late ones done
    left = torch.where(round_.ready_slot <= 10, progress.remaining_bits, 0.0)
    done = make_view(policy, scenario, gone, progress._replace(remaining_bits=left), 10, keys)
    assert all(map(torch.equal, found, policy.act(done, None)))


# --- rounds that end early --------------------------------------------------------------------


def quorum(scenario: Scenario, slot: int) -> int:
    first, last = scenario.quorum
    return math.ceil(Fraction(first) - Fraction((first - last) * slot, scenario.slots))


@pytest.mark.parametrize(
    ("deadline", "wanted"), [("wait-for-k", (3, 3)), ("adaptive", (10, 3)), ("fixed", (10, 10))]
)
@pytest.mark.parametrize("name", ["random", "max-sum-rate", "block-fading-schedule-feedback"])
def test_a_round_ends_when_enough_have_delivered(
    deadline: str, wanted: tuple[int, int], name: str, make_round
) -> None:
    """Slot for slot the round of a fixed deadline, up to where that one has delivered enough."""
    size = ("radio.slots=60", "learning.payload_bits=4e5", f"run.deadline={deadline}")
    scenario, round_ = make_round(20, 8, EPISODES, overrides=(*size, "run.deadline_clients=3"))
    assert scenario.quorum == wanted
    whole = played(name, replace(scenario, quorum=(10, 10)), round_)
    outcome = played(name, scenario, round_)
    for episode in range(EPISODES):
        finish, delivered = whole.finish_slot[episode], whole.delivered[episode]
        over = next(
            (
                slot
                for slot in range(scenario.slots)
                if int((finish[delivered] <= slot).sum()) >= quorum(scenario, slot)
            ),
            scenario.slots,
        )
        assert outcome.slots[episode] == over
        assert torch.equal(outcome.delivered[episode], delivered & (finish <= over))
        assert outcome.history is not None
        assert whole.history is not None
        left = whole.history.remaining_bits[over - 1, episode]
        assert torch.equal(outcome.history.remaining_bits[-1, episode], left)
        assert not outcome.history.rate_bps[over:, episode].any()
        powers = scenario.power_w[outcome.history.level[:, episode]]
        assert torch.allclose(outcome.power_w[episode], powers.sum(0))
        assert torch.equal(outcome.sent_slots[episode], (powers > 0).sum(0).float())
    if deadline != "fixed":
        assert (outcome.slots < whole.slots).any()


def test_who_has_nothing_to_send_does_not_keep_a_round_open(make_round) -> None:
    scenario, round_ = make_round(25, 0, 2, overrides=("learning.payload_bits=1e5",))
    left = torch.zeros(2, 10)
    left[:, 4] = 1e5
    start = start_round(scenario, 2, left)
    outcome = play_round(load_policy("random"), scenario, round_, torch.arange(2), start=start)
    assert torch.equal(outcome.slots, outcome.finish_slot[:, 4])
    assert (outcome.slots < 50).all()


class Loud:
    """Everybody sends always, ready or not: what the slots allow is not the policy's to say."""

    name, scope, gradient_aware = "loud", "local", False

    def begin(self, view: View) -> None: ...

    def act(self, view: View, memory: None) -> Action:
        assert view.ready_slot is not None
        return full_power(view, torch.zeros_like(view.ready_slot))


def test_a_policy_cannot_make_a_client_ready(late) -> None:
    scenario, round_ = late
    outcome = play_round(Loud(), scenario, round_, torch.arange(EPISODES))  # type: ignore[arg-type]
    assert torch.equal(outcome.sent_slots > 0, round_.ready_slot < scenario.slots)
