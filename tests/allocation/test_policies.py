"""Policies: what they may know, what they deliver, and what they must not answer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.special import exp1

from fedfade.allocation import (
    BUILT_IN,
    Action,
    ergodic_rate,
    full_power,
    genie_bound,
    load_policy,
    play_round,
    policy_names,
)
from fedfade.allocation.baselines import RandomBand
from fedfade.allocation.play import Observations, RecordedRounds, make_view, slots_at_once
from fedfade.allocation.policy import ActionChecks
from fedfade.allocation.progressive import equal_time
from fedfade.errors import UserError
from fedfade.uplink import (
    Progress,
    Round,
    observation_width,
    observe,
    plan,
    start_round,
    state_width,
)
from tests.conftest import TINY

LOCAL = [name for name in BUILT_IN if load_policy(name).scope != "central"]


def uploads(policy, scenario, round_) -> float:
    keys = torch.arange(len(round_.alpha))
    return float(play_round(policy, scenario, round_, keys).delivered.sum(-1).float().mean())


@pytest.mark.parametrize("name", LOCAL)
def test_a_decentralised_client_does_not_look_at_the_others(name: str, make_round) -> None:
    """Change everything private to the others: one's own action stays."""
    scenario, round_ = make_round(15, 6, episodes=4)
    policy = load_policy(name)
    progress = start_round(scenario, 4)
    me, others = 3, [n for n in range(scenario.clients) if n != 3]
    view = make_view(policy, scenario, round_, progress, 0, torch.arange(4))
    fading, left = view.fading.clone(), view.remaining_bits.clone()
    if policy.scope != "csi":  # to which everybody's fading is known
        fading[:, others] = fading[:, others].flip(1) * 3.0
    left[:, others] *= 0.9
    changed = replace(view, fading=fading, remaining_bits=left)
    for slot in (0, 40):
        one, other = replace(view, slot=slot), replace(changed, slot=slot)
        seen = policy.act(one, policy.begin(replace(view, slot=0)))
        seen_too = policy.act(other, policy.begin(replace(view, slot=0)))
        assert torch.equal(seen.band[:, me], seen_too.band[:, me])
        assert torch.equal(seen.level[:, me], seen_too.level[:, me])


def test_a_view_holds_no_more_than_its_scope(make_round) -> None:
    scenario, round_ = make_round()
    progress = start_round(scenario, 3)
    keys = torch.arange(3)
    for name in BUILT_IN:
        policy = load_policy(name)
        view = make_view(policy, scenario, round_, progress, 0, keys)
        assert (view.finished is None) == (policy.scope == "local")
        by_worth = name in ("wrap-around-age", "wrap-around-innovation")
        assert (view.deviation is None) == (not by_worth)  # the others look at no gradients
        assert (view.inner is None) == (name != "wrap-around-innovation")
        assert (view.age is None) == (not by_worth)


# Uploads per round out of 10 under Rayleigh fading with the paper's payload: which policy
# starves and which delivers is settled by the physics, so the bounds are wide apart.
REGIMES = [
    (15, 0, {"random": (0, 0), "max-sum-rate": (0, 0), "block-fading-schedule": (4, 4)}),
    (20, 0, {"max-individual-rate": (0, 0), "max-sum-rate": (0, 0)}),
    (20, 0, {"shortest-remaining-first": (4, 4), "block-fading-schedule-feedback": (4, 4)}),
    (20, 3, {"max-sum-rate": (4.5, 6.0), "block-fading-schedule": (3.8, 4.3)}),
    (25, 0, {"shortest-remaining-first": (8, 8), "block-fading-schedule": (4, 4.2)}),
    (20, 10.85, {"random": (0.5, 1.8), "shortest-remaining-first": (5.0, 6.4)}),
]


@pytest.mark.parametrize(("snr_db", "spread_db", "expected"), REGIMES)
def test_uploads_by_regime(snr_db, spread_db, expected, make_round) -> None:
    scenario, round_ = make_round(snr_db, spread_db, episodes=12)
    for name, (low, high) in expected.items():
        assert low <= uploads(load_policy(name), scenario, round_) <= high, name


@pytest.mark.parametrize(("snr_db", "spread_db"), [(5, 3), (15, 0), (20, 10), (30, 3)])
def test_nobody_beats_the_genie(snr_db: float, spread_db: float, make_round) -> None:
    scenario, round_ = make_round(snr_db, spread_db, episodes=6)
    bound = genie_bound(scenario, round_)
    keys = torch.arange(6)
    for name in BUILT_IN:
        outcome = play_round(load_policy(name), scenario, round_, keys)
        assert (outcome.delivered.sum(-1) <= bound).all(), name


@pytest.mark.parametrize("snr_db", [-20, -3, 20])
def test_the_genie_is_tight_for_one_client_alone(snr_db: float, make_round) -> None:
    """One client, one sub-band: the bound is whether it makes it, L P/(1+P) being ln(1+P)."""
    single = ("learning.clients=1", "radio.subbands=1", "radio.slots=100")
    scenario, round_ = make_round(snr_db, 0, episodes=1, overrides=single)
    snr = 10 ** (snr_db / 10) * round_.fading
    carried = scenario.bandwidth_hz * scenario.slot_s * torch.log2(1 + snr).sum()
    for payload, bound in ((0.995 * carried, 1.0), (1.005 * carried, 0.0)):
        assert genie_bound(replace(scenario, payload_bits=float(payload)), round_).item() == bound


def test_the_genie_allows_for_sharing_at_low_snr(make_round) -> None:
    """Ten clients at -3 dB on one sub-band carry 0.87 nats together, one alone 0.41."""
    crowd = ("radio.subbands=1", "radio.slots=100")
    scenario, round_ = make_round(-3, 0, episodes=1, overrides=crowd)
    round_ = round_._replace(fading=torch.ones_like(round_.fading))
    each = math.log2(1 + 0.5012 / (1 + 9 * 0.5012)) * scenario.bandwidth_hz * scenario.slot_s
    scenario = replace(scenario, payload_bits=0.999 * 100 * each)
    everyone = Custom(lambda view: full_power(view, torch.zeros_like(view.active).long()))
    assert uploads(everyone, scenario, round_) == 10
    assert genie_bound(scenario, round_).item() == 10


@pytest.mark.parametrize("snr_db", [-10, 0, 10])
def test_the_genie_by_hand_for_equal_clients(snr_db: float, make_round) -> None:
    """Three alike that do not fade, one sub-band: all prices 1, so slots L T/(1+T) payloads."""
    alike = ("learning.clients=3", "radio.subbands=1", "radio.slots=50")
    scenario, round_ = make_round(snr_db, 0, episodes=1, overrides=alike)
    round_ = round_._replace(fading=torch.ones_like(round_.fading))
    snr = 10 ** (snr_db / 10)
    nats = 50 * (1 + 1 / snr) * math.log(1 + snr) * 3 * snr / (1 + 3 * snr)
    carried = nats / math.log(2) * scenario.bandwidth_hz * scenario.slot_s
    for payloads, bound in ((0.95, 0), (1.05, 1), (1.8, 1), (2.05, 2), (9.0, 3)):
        assert genie_bound(replace(scenario, payload_bits=carried / payloads), round_) == bound


def test_ergodic_rate_is_the_exponential_integral() -> None:
    snr = 10 ** torch.linspace(-2, 6, 33, dtype=torch.float64)
    exact = torch.from_numpy((1 / snr).exp().numpy() * exp1((1 / snr).numpy())) / torch.log(
        torch.tensor(2.0, dtype=torch.float64)
    )
    assert torch.allclose(ergodic_rate(snr), exact, rtol=1e-6)


def test_feedback_gives_a_freed_sub_band_to_the_next(make_round) -> None:
    scenario, round_ = make_round(25, 3, episodes=5)
    policy = load_policy("block-fading-schedule-feedback")
    history = play_round(policy, scenario, round_, torch.arange(5), record=True).history
    sending = scenario.power_w[history.level] > 0  # [slot, episode, client]
    for band in range(scenario.bands):
        crowd = (sending & (history.band == band)).sum(-1)
        assert (crowd <= 1).all()  # never a collision
    assert (sending.sum(-1) <= scenario.bands).all()


def test_deadline_feedback_changes_sub_band_every_slot(make_round) -> None:
    """Four alike on four sub-bands: nobody is stuck with a bad one, and nobody collides."""
    scenario, round_ = make_round(15, 0, episodes=2, overrides=("learning.clients=4",))
    policy = load_policy("deadline-feedback")
    history = play_round(policy, scenario, round_, torch.arange(2), record=True).history
    assert (history.level[:8] == scenario.full_level).all()
    for band in (history.band[:4], history.band[4:8]):  # [slot, episode, client]
        assert (band.sort(0).values == torch.arange(4)[:, None, None]).all()
        assert (band.sort(-1).values == torch.arange(4)).all()


def test_deadline_matching_learns_what_a_whole_slot_is_worth(make_round) -> None:
    """One of two senders finished in the slot: what it sent says nothing of a slot's worth."""
    two = ("learning.clients=2", "radio.subbands=2")
    scenario, round_ = make_round(15, 0, episodes=1, overrides=two)
    policy = load_policy("deadline-matching")
    progress = Progress(torch.tensor([[1e4, scenario.payload_bits]]))
    view = make_view(policy, scenario, round_, progress, 0, torch.arange(1))
    memory = policy.begin(view)
    policy.act(view, memory)
    assert memory.sent.all()
    sent = 1.5 * memory.bits
    left = torch.tensor([[0.0, scenario.payload_bits - float(sent[0, 1])]])
    policy.act(replace(view, slot=1, remaining_bits=left), memory)
    assert memory.slots.item() == 20 + 1  # ten slots on each sub-band are assumed at the start
    assert memory.gained.item() == pytest.approx(1.2 * 20 + 1.5, rel=1e-5)
    assert memory.sent.tolist() == [[False, True]]


def test_who_has_its_turn_before_it_waits(make_round) -> None:
    """Three alike have 1.3 times the slots they need, one after another: the second's turn is cut,
    at the end of one sub-band and the beginning of the next. Between the two it has enough left
    and leaves even empty sub-bands alone; the first, late after its turn, does not."""
    scenario, round_ = make_round(25, 0, episodes=1, overrides=("learning.clients=3",))
    policy = load_policy("wrap-around-schedule")
    view = make_view(policy, scenario, round_, start_round(scenario, 1), 0, torch.arange(1))
    memory = policy.begin(view)
    turns = memory.reserved.bands[0].any(-1)  # [client, slot]
    assert turns[:, 0].tolist() == [True, True, False]
    assert turns[:, -1].tolist() == [False, True, False]

    def sends(slot: int, slots_needed: float) -> list[bool]:
        share = slots_needed / memory.reserved.slots[0, 0]
        left = torch.full((1, 3), float(share * scenario.payload_bits))
        action = policy.act(replace(view, slot=slot, remaining_bits=left), memory)
        return (action.level[0] == scenario.full_level).tolist()

    assert turns[:, 110].tolist() == sends(110, 20.0) == [True, False, True]
    assert turns[:, 170].tolist() == sends(170, 31.0) == [False, True, True]
    assert sends(170, 20.0) == [True, True, True]


@pytest.mark.parametrize("name", ["block-fading-schedule", "shortest-remaining-first"])
def test_equal_clients_take_turns(name: str, make_round) -> None:
    """On a ring, five rounds of four sub-bands serve each of ten clients twice."""
    scenario, round_ = make_round(20, 0, episodes=5)  # episode number = round number
    outcome = play_round(load_policy(name), scenario, round_, torch.arange(5))
    assert outcome.delivered.sum(0).tolist() == [2] * 10


@pytest.mark.parametrize("name", BUILT_IN)
def test_who_begins_with_less_is_planned_with_less(name: str, make_round) -> None:
    """A quarter left of everybody's payload is a quarter of the payload."""
    scenario, round_ = make_round(8, 6, episodes=8)
    quarter = replace(scenario, payload_bits=scenario.payload_bits / 4)
    start, keys = start_round(quarter, 8), torch.arange(8)
    found = play_round(load_policy(name), scenario, round_, keys, start=start)
    wanted = play_round(load_policy(name), quarter, round_, keys)
    assert wanted.delivered.any()
    assert torch.equal(found.bits, wanted.bits)
    assert torch.equal(found.finish_slot, wanted.finish_slot)


@pytest.mark.parametrize("name", BUILT_IN)
def test_who_has_nothing_to_send_takes_nobodys_turn(name: str, make_round) -> None:
    """Two of ten take part in a round: one of them begins at once, mostly both."""
    scenario, round_ = make_round(20, 3, episodes=5)
    bits = torch.zeros(5, 10)
    bits[:, [3, 8]] = scenario.payload_bits
    policy, keys = load_policy(name), torch.arange(5)
    outcome = play_round(policy, scenario, round_, keys, record=True, start=Progress(bits))
    assert outcome.history is not None
    sending = outcome.history.level != scenario.silent_level  # [slot, episode, client]
    assert sending[0, :, [3, 8]].any(-1).all()
    assert not sending[:, :, bits[0] == 0].any()
    if name not in ("random", "wrap-around-schedule", "wrap-around-choice"):
        assert sending[0, :, [3, 8]].all()


OWN = torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0, 0.2, 1.0, 0.4, 0.7, 1.5])  # payloads, of one S


@pytest.mark.parametrize("name", BUILT_IN)
def test_everybody_has_a_payload_of_its_own(name: str, make_round) -> None:
    """A list of equal ones is a number; of unequal ones, nobody sends more than it has, and the
    genie knows them too."""
    small = ("radio.slots=50", "learning.payload_bits=2000000")
    scenario, round_ = make_round(12, 6, episodes=4, overrides=small)
    bits, policy, keys = scenario.payload_bits, load_policy(name), torch.arange(4)
    equal = replace(scenario, payload_bits=torch.full((10,), bits))
    for one, other in zip(
        play_round(policy, scenario, round_, keys)[:5],
        play_round(policy, equal, round_, keys)[:5],
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    unequal = replace(scenario, payload_bits=OWN * bits)
    outcome = play_round(policy, unequal, round_, keys)
    assert torch.equal(outcome.delivered, outcome.bits >= OWN * bits)
    assert (outcome.bits <= OWN * bits).all()
    assert (outcome.delivered.sum(-1) <= genie_bound(unequal, round_)).all()
    # What is left is a share of the own payload: so it is to begin with the same bits of one
    # that is as large for all, except to those who see their share.
    if name in ("random", "max-individual-rate", "max-sum-rate"):
        start = Progress((OWN * bits).expand(4, -1))
        assert torch.equal(
            play_round(policy, scenario, round_, keys, start=start).bits, outcome.bits
        )


def test_plans_go_by_the_own_payload(make_round) -> None:
    """Equal clients, two of them with a tenth to send: they are first and done in a tenth."""
    scenario, round_ = make_round(15, 0, episodes=2)
    own = torch.ones(10)
    own[[4, 7]] = 0.1
    unequal = replace(scenario, payload_bits=own * scenario.payload_bits)
    snr = round_.alpha * (scenario.full_power_w / scenario.noise_w)
    table = plan.timetable(unequal, snr, round_.number)
    assert (table.rank[:, [4, 7]] < 2).all()
    whole = plan.expected_slots(scenario, snr)
    torch.testing.assert_close((table.end - table.start)[:, 4], 0.1 * whole[:, 4])
    order = plan.service_order(unequal, snr, round_.number)
    torch.testing.assert_close(order.slots[:, 4], 0.1 * order.slots[:, 3])
    reserved = plan.reserve(unequal, snr, round_.number)
    assert (reserved.rank[:, [4, 7]] < 2).all()


@pytest.mark.parametrize("bits", [1e-6, 1.0])
def test_a_payload_of_one_bit(bits: float, make_round) -> None:
    scenario, round_ = make_round(15, 0, episodes=2, overrides=("radio.slots=50",))
    for name in BUILT_IN:
        tiny = replace(scenario, payload_bits=bits)
        assert uploads(load_policy(name), tiny, round_) == 10, name


def test_time_is_shared_equally() -> None:
    """Against filling up a little at a time."""
    needed = torch.tensor([[3.0, 50.0, 20.0, 8.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 99.0, 1.0]])
    for slots in (5.0, 40.0, 1000.0):
        filled, step = torch.zeros_like(needed), 0.01
        for _ in range(100_000):
            open_ = filled < needed
            if not (going := open_.any(-1) & (filled.sum(-1) < slots)).any():
                break
            filled += step * (open_ & going[:, None])
        torch.testing.assert_close(equal_time(needed, slots), filled, atol=0.05, rtol=0)


@pytest.mark.parametrize("name", ["progressive-schedule", "progressive-matching"])
def test_more_clients_are_of_use_where_a_part_counts(name: str, make_round) -> None:
    """A quarter of an upload holds the signs and the highest bits: more than under a policy that
    keeps all slots for those who finish."""
    scenario, round_ = make_round(14, 6, episodes=6)
    keys = torch.arange(6)
    shares = [
        play_round(load_policy(one), scenario, round_, keys).bits / scenario.payload_bits
        for one in (name, "wrap-around-choice")
    ]
    useful, finished = ((share >= 0.26).sum(-1).float().mean() for share in shares)
    assert useful >= finished + 1


def test_what_arrived_is_a_share_where_a_part_counts(make_round) -> None:
    scenario, round_ = make_round(14, 6, episodes=3)
    partial = replace(scenario, count_partial=True)
    outcome = play_round(load_policy("random"), partial, round_, torch.arange(3))
    share = outcome.arrived(partial)
    torch.testing.assert_close(share, outcome.bits / scenario.payload_bits)
    assert torch.equal(share >= 1, outcome.delivered)
    assert outcome.arrived(scenario) is outcome.delivered


def test_bits_add_up(make_round) -> None:
    scenario, round_ = make_round(20, 5, episodes=4)
    outcome = play_round(load_policy("max-sum-rate"), scenario, round_, torch.arange(4), True)
    left = outcome.history.remaining_bits[-1]
    assert torch.allclose(outcome.bits + left, torch.tensor(scenario.payload_bits))
    assert torch.equal(outcome.delivered, left <= 0)
    assert (outcome.finish_slot[outcome.delivered] <= scenario.slots).all()
    assert (outcome.finish_slot[~outcome.delivered] == scenario.slots).all()


class Custom:
    name, scope = "custom", "local"

    def __init__(self, answer) -> None:
        self.answer = answer

    def begin(self, view):
        return None

    def act(self, view, memory):
        return self.answer(view)


WRONG = [
    (lambda view: None, "answered NoneType"),
    (lambda view: Action(view.active, view.active), "int64"),
    (lambda view: full_power(view, torch.zeros(2, dtype=torch.int64)), r"shape \[2\]"),
    (lambda view: full_power(view, torch.full_like(view.active, 9, dtype=torch.int64)), "band 9"),
    (
        lambda view: full_power(view, view.fading.argmax(-1))._replace(
            level=torch.full_like(view.active, -1, dtype=torch.int64)
        ),
        "level -1",
    ),
]


@pytest.mark.parametrize(("answer", "sentence"), WRONG)
def test_wrong_answers_are_refused(answer, sentence: str, make_round) -> None:
    scenario, round_ = make_round(episodes=3)
    with pytest.raises(UserError, match=sentence):
        play_round(Custom(answer), scenario, round_, torch.arange(3))


def test_values_are_checked_after_the_round_where_looking_would_wait(make_round) -> None:
    """As on a GPU, here on PyTorch's device without values: nothing may be looked at in a slot."""
    scenario, _ = make_round(episodes=3)
    checks = ActionChecks("custom", scenario, 3)
    meta = torch.full((3, 10), 2, device="meta")
    checks.take(Action(meta, meta))
    checks = ActionChecks("custom", scenario, 3)
    checks._extremes = [torch.tensor([[0, 1], [3, 2]]), torch.tensor([[1, -5], [2, 3]])]
    with pytest.raises(UserError, match=r"level -5: it must be between 0 and 3"):
        checks.finish()
    checks.finish()  # said once


def test_observations_for_many_slots_are_those_of_each(make_round, monkeypatch) -> None:
    parts = "alphas, fading, remaining, slots_left, deviation, round, schedule, time_to_finish"
    scenario, round_ = make_round(
        15, 6, episodes=4, overrides=("radio.slots=9", f"allocation.observe=[{parts}]")
    )
    width = scenario.clients * observation_width(scenario) + state_width(scenario)
    agents = Custom(None)
    agents.observes = True
    monkeypatch.setattr("fedfade.allocation.play._STATIC_BYTES", 4 * 4 * width * 4)
    observations = Observations(scenario, round_, slots_at_once(agents, scenario, 4))
    for slot in (0, 0, 1, 5, 8):  # twice in a slot: before the first one, and in it
        progress = Progress(torch.full((4, 10), scenario.payload_bits * (1 - slot / 9)))
        there = observations.at(slot, progress)
        # Vectorised logarithms differ in the last bit from those of single elements.
        assert torch.allclose(there, observe(scenario, round_, progress, slot), atol=1e-6)


def test_recorded_rounds_are_rounds(make_round) -> None:
    """Recorded with one round, replayed with others; here the recording is the function itself."""
    for name in ("random", "block-fading-schedule", "shortest-remaining-first"):
        policy = load_policy(name)
        scenario, first = make_round(20, 5, episodes=4, overrides=("radio.slots=40",))
        keys = torch.arange(4)
        recorded = RecordedRounds(policy, scenario, first, keys)
        for seed in (1, 2):
            round_ = make_round(20, 5, episodes=4, seed=seed, overrides=("radio.slots=40",))[1]
            played = play_round(policy, scenario, round_, keys + seed)
            for one, other in zip(recorded.play(round_, keys + seed), played, strict=True):
                assert one is other is None or torch.equal(one, other)


def test_unknown_policies_list_the_known() -> None:
    with pytest.raises(UserError) as caught:
        load_policy("magic")
    assert all(name in str(caught.value) for name in policy_names())
    with pytest.raises(UserError, match="cannot be loaded"):
        load_policy("no.such.module:Policy")
    with pytest.raises(UserError, match="has no 'name'"):
        load_policy("fractions:Fraction")


def divides_by_zero() -> None:
    raise ZeroDivisionError("division\nby zero")


class TooNew:
    """An entry point whose module cannot be imported."""

    name = "too-new"

    def load(self) -> None:
        raise ImportError("no module named 'tomorrow'")


def test_whatever_a_users_policy_raises_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"divides_by_zero' .*: division by zero\.$"):
        load_policy(f"{__name__}:divides_by_zero")
    with pytest.raises(UserError, match=r"policy 'fedfade.allocation:full_power' .*argument"):
        load_policy("fedfade.allocation:full_power")
    monkeypatch.setattr("fedfade.seams.entries", lambda group: [TooNew()])
    with pytest.raises(UserError, match=r"policy = 'too-new' cannot be loaded: .*tomorrow'\.$"):
        load_policy("too-new")


class Faulty:
    """A user's policy that raises in the method named."""

    name, scope = "faulty", "local"

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def begin(self, view):
        if self.where == "begin":
            raise self.error

    def act(self, view, memory):
        if view.slot == 2 and self.where == "act":
            raise self.error
        return full_power(view, torch.zeros_like(view.remaining_bits, dtype=torch.int64))


@pytest.mark.parametrize("where", ["begin", "act"])
def test_whatever_a_users_policy_raises_while_playing_is_one_sentence(
    where: str, make_round
) -> None:
    scenario, round_ = make_round()
    policy = Faulty(where, KeyError("no\nsuch key"))
    place = r"\(test_policies\.py, line \d+\)"
    sentence = rf"^policy 'faulty' raised KeyError in {where} {place}: .*\.$"
    with pytest.raises(UserError, match=sentence) as caught:
        play_round(policy, scenario, round_, torch.arange(3))
    assert caught.value.__cause__ is policy.error
    policy.begin = lambda: None
    with pytest.raises(UserError, match=r"'faulty' raised TypeError in begin: .* argument"):
        play_round(policy, scenario, round_, torch.arange(3))


def looks_up_what_is_not_there() -> Faulty:
    return Faulty("act", KeyError("gain"))


def divides_before_it_plays() -> Faulty:
    return Faulty("begin", ZeroDivisionError("division by zero"))


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("looks_up_what_is_not_there", "raised KeyError in act"),
        ("divides_before_it_plays", "raised ZeroDivisionError in begin"),
    ],
)
def test_a_policy_that_raises_leaves_the_folder_to_the_corrected_command(
    factory: str, sentence: str, fedfade, tmp_path
) -> None:
    words = [word for override in TINY for word in ("--set", override)]
    words = ["compare", "paper", *words, "--out", tmp_path / "run", "--policies"]
    answer = fedfade(*words, f"random,{__name__}:{factory}")
    assert answer.code == 2, answer.err
    assert f":{factory}' {sentence} (test_policies.py, line " in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()
    assert fedfade(*words, "random").code == 0


@pytest.mark.parametrize(
    "error",
    [
        UserError("a sentence of its own."),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        KeyboardInterrupt(),
    ],
)
def test_what_has_a_sentence_elsewhere_passes_through(error: BaseException, make_round) -> None:
    scenario, round_ = make_round()
    with pytest.raises(type(error)) as caught:
        play_round(Faulty("act", error), scenario, round_, torch.arange(3))
    assert caught.value is error


def test_a_fault_of_our_own_is_not_laid_to_the_user(make_round, monkeypatch) -> None:
    scenario, round_ = make_round()
    monkeypatch.setattr(RandomBand, "act", lambda self, view, memory: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        play_round(load_policy("random"), scenario, round_, torch.arange(3))


@pytest.mark.parametrize("name", ["perfect", "genie", "qmix"])
def test_what_knows_no_fading_has_none_of_old(name: str) -> None:
    with pytest.raises(UserError) as caught:
        load_policy(f"{name}@5", others=["qmix"])
    assert f"policy = '{name}@5' is not allowed: it must be {name}," in str(caught.value)


@pytest.mark.parametrize("name", ["wrap-around-age", "wrap-around-innovation"])
def test_who_counts_more_is_served_first(name: str, make_round) -> None:
    """With equal worth it is the plan of wrap-around-choice; at equal gains the worthiest deliver;
    a client that cannot finish alone gets in nobody's way, whatever it is worth."""
    scenario, round_ = make_round(14, 3, episodes=8)
    clients, keys = scenario.clients, torch.arange(8)

    def worth(each: torch.Tensor, of: Round) -> Round:
        return of._replace(inner=torch.diag_embed(each), age=each - 1.0)

    def delivered(policy: str, of: Round) -> torch.Tensor:
        return play_round(load_policy(policy), scenario, of, keys).delivered

    plain = delivered("wrap-around-choice", round_)
    same = delivered(name, worth(torch.ones(8, clients), round_))
    assert torch.equal(same, plain)
    alike = round_._replace(alpha=torch.full_like(round_.alpha, float(round_.alpha.mean())))
    each = 1.0 + torch.stack([torch.randperm(clients) for _ in range(8)]).float()
    found = delivered(name, worth(each, alike))
    least = torch.where(found, each, torch.inf).amin(-1)
    most = torch.where(found, 0.0, each).amax(-1)
    assert 0 < int(found.sum()) < found.numel()
    assert bool((least > most).all())  # the served are the worthiest
    lost = alike._replace(alpha=alike.alpha.clone())
    lost.alpha[:, 0] *= 1e-6
    each = torch.ones(8, clients)
    each[:, 0] = 1e6
    count = delivered(name, worth(each, lost)).sum()
    assert int(count) >= int(delivered("wrap-around-choice", lost).sum()) - 8
