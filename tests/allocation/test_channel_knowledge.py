"""What policies do with channel knowledge: fresh, old, or none but who has finished."""

from __future__ import annotations

import pytest
import torch

from fedfade.allocation import genie_bound, load_policy, play_round
from fedfade.allocation.play import make_view
from fedfade.errors import UserError
from fedfade.uplink import as_announced, start_round
from fedfade.uplink.plan import soonest_first


def played(name: str, scenario, round_):
    return play_round(load_policy(name), scenario, round_, torch.arange(len(round_.alpha)))


def uploads(name: str, scenario, round_) -> float:
    return float(played(name, scenario, round_).delivered.sum(-1).float().mean())


def test_old_knowledge_is_what_was_known_then(make_round) -> None:
    scenario, round_ = make_round(20, 3)
    policy = load_policy("shortest-remaining-first@5")
    assert (policy.name, policy.scope) == ("shortest-remaining-first@5", "central")
    for slot in (0, 4, 5, 9, 249):
        view = make_view(policy, scenario, round_, start_round(scenario, 3), slot, torch.arange(3))
        mean = torch.ones(3, 10, 4)
        assert torch.equal(view.fading, mean if slot < 5 else round_.fading[:, slot - 5])


def test_no_delay_is_fresh(make_round) -> None:
    scenario, round_ = make_round(20, 3)
    for name in ("shortest-remaining-first", "max-sum-rate", "deadline-matching"):
        fresh, same = played(name, scenario, round_), played(f"{name}@0", scenario, round_)
        assert torch.equal(fresh.bits, same.bits)


def test_rates_stay_physical(make_round) -> None:
    """Choosing by old fading, sending over the real one: bits do not depend on the belief."""
    scenario, round_ = make_round(25, 0, episodes=6)
    name = "shortest-remaining-first"
    still = round_._replace(fading=round_.fading[:, :1].expand_as(round_.fading).contiguous())
    fresh, old = played(name, scenario, still), played(f"{name}@1", scenario, still)
    # On a channel that does not move only the first slot of the round is a guess.
    assert abs(float((fresh.finish_slot - old.finish_slot).abs().max())) <= 1.0
    # On one that moves from slot to slot independently, yesterday's fading is worth nothing.
    never = uploads(f"{name}@250", scenario, round_)
    assert uploads(name, scenario, round_) >= never + 1.0
    assert abs(uploads(f"{name}@1", scenario, round_) - never) <= 0.5


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("random@5", "knows nobody else's fading"),
        ("max-sum-rate@-1", "whole number of slots"),
        ("max-sum-rate@", "whole number of slots"),
        ("nobody@5", "one of random"),
    ],
)
def test_wrong_names_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_policy(name)


# Mean uploads out of 10 under Rayleigh fading, the paper's payload: below and above what is left.
@pytest.mark.parametrize(("snr_db", "spread_db"), [(15, 3), (20, 0), (20, 10.85), (25, 0)])
def test_each_rung_of_knowledge_is_worth_something(snr_db, spread_db, make_round) -> None:
    # `make_round` draws Rayleigh fading, and the schedules count on what they are told of it.
    rayleigh = ("radio.source=rayleigh",)
    scenario, round_ = make_round(snr_db, spread_db, episodes=8, seed=11, overrides=rayleigh)
    genie = float(genie_bound(scenario, round_).mean())
    schedule = uploads("block-fading-schedule", scenario, round_)
    feedback = uploads("deadline-feedback", scenario, round_)
    central = uploads("deadline-matching", scenario, round_)
    assert schedule <= feedback <= central <= genie
    assert central >= uploads("shortest-remaining-first", scenario, round_)
    # Independent Rayleigh slots give the matching everything a bound that knows the future has
    # but a client and the fractions the bound rounds down.
    assert central >= genie - 1.0


def test_the_feedback_is_used(make_round) -> None:
    """When one finishes early, its slots go to others."""
    scenario, round_ = make_round(20, 0, episodes=4)
    policy, keys = load_policy("deadline-feedback"), torch.arange(4)
    fresh, progress = policy.begin, start_round(scenario, 4)
    view = make_view(policy, scenario, round_, progress, 0, keys)
    turns = fresh(view)
    first = policy.act(view, turns)
    sending = (first.level != scenario.silent_level)[0].nonzero().flatten()
    assert len(sending) == scenario.bands
    assert len(first.band[0, sending].unique()) == scenario.bands  # one sub-band each
    left = progress.remaining_bits.clone()
    left[:, sending[0]] = 0.0
    after = make_view(policy, scenario, round_, progress._replace(remaining_bits=left), 1, keys)
    second = policy.act(after, turns)
    silent = second.level == scenario.silent_level
    assert bool(silent[0, sending[0]])
    assert int((~silent[0]).sum()) == scenario.bands


def test_plans_that_are_told_more_deliver_more(make_round) -> None:
    """Averages of sub-bands, as the plans count on; 40 rounds."""
    gamma = ("radio.source=gamma",)
    scenario, round_ = make_round(15, 6, episodes=40, seed=3, overrides=gamma)
    names = ("wrap-around-choice", "wrap-around-feedback", "csi-matching", "deadline-matching")
    found = [uploads(name, scenario, round_) for name in names]
    assert found == sorted(found), found


def test_who_sees_progress_needs_no_exact_gains(make_round) -> None:
    """Told of 3 dB too much or too little of everybody, at random or alike, it loses next to
    nothing, where a plan loses most of what it delivers."""
    scenario, round_ = make_round(20, 3, episodes=40, seed=3, overrides=("radio.source=gamma",))
    off = 3.0 * torch.randn(round_.alpha.shape, generator=torch.Generator().manual_seed(0))
    exact, wrong, above = (as_announced(round_, db) for db in (0.0 * off, off, 0.0 * off + 3.0))
    name, plan = "deadline-progress", "wrap-around-schedule"
    told = uploads(name, scenario, exact)
    assert told >= uploads("deadline-feedback", scenario, exact)
    assert uploads(name, scenario, wrong) >= 0.93 * told
    assert uploads(name, scenario, above) >= 0.98 * told
    assert uploads(plan, scenario, wrong) < 0.8 * uploads(plan, scenario, exact)
    assert uploads(plan, scenario, above) < 0.5 * uploads(plan, scenario, exact)


def test_turns_by_progress_are_a_plain_loop(make_round) -> None:
    """Who sends in a slot, client by client in plain Python: the longest of those that fit into the
    rest of the round, each as fast as its progress and its announced gain say together."""
    scenario, round_ = make_round(18, 6, episodes=60, seed=5, overrides=("radio.source=gamma",))
    policy, keys, draw = load_policy("deadline-progress"), torch.arange(60), torch.rand
    fresh = start_round(scenario, 60)
    view = make_view(policy, scenario, round_, fresh, 0, keys)
    order = soonest_first(scenario, view.snr.reciprocal(), view.round_index, None)  # stable
    torch.manual_seed(1)
    for slot in (1, 100, 200):
        memory = policy.begin(view)
        memory.turns = (draw(60, 10) < 0.6) * (slot * draw(60, 10)).floor()
        sent = (memory.turns * memory.bits * (0.5 + draw(60, 10))).minimum(memory.whole_bits)
        now = fresh._replace(remaining_bits=memory.whole_bits - sent)
        worth, turns = sent / memory.bits, memory.turns.clone()
        action = policy.act(make_view(policy, scenario, round_, now, slot, keys), memory)
        sends = action.level != scenario.silent_level
        left = scenario.slots - slot
        for n in range(60):
            common = (40 + float(worth[n].sum())) / (40 + float(turns[n].sum()))
            needed = {}
            for c in range(10):
                pace = (20 * common + float(worth[n, c])) / (20 + float(turns[n, c]))
                if now.remaining_bits[n, c] > 0:
                    needed[c] = float(now.remaining_bits[n, c] / memory.bits[n, c]) / pace
            place = {int(c): at for at, c in enumerate(order[n])}
            member, work = [], 0.0
            for at, c in enumerate(sorted(needed, key=lambda c: (needed[c], place[c]))):
                work += needed[c]
                fits = work <= 1.06 * left * scenario.bands and needed[c] <= 1.06 * left
                tries = at == 0 or (at < scenario.bands and needed[c] <= 1.3 * left)
                member += [c] * (fits or tries)
            longest = sorted(member, key=lambda c: -needed[c])[: scenario.bands]
            assert set(longest) == set(sends[n].nonzero().flatten().tolist())
        torch.testing.assert_close(memory.turns, turns + sends)


def test_a_turn_that_ends_early_goes_to_who_is_late(make_round) -> None:
    """Both clients of the plan's first turns have sent alike; one hears that the other is done, and
    who has neither finished nor a turn left takes what is free."""
    scenario, round_ = make_round(25, 0, episodes=1, overrides=("learning.clients=3",))
    policy, keys = load_policy("wrap-around-feedback"), torch.arange(1)
    progress, last = start_round(scenario, 1), scenario.slots - 1
    memory = policy.begin(make_view(policy, scenario, round_, progress, 0, keys))
    turns = memory.reserved.turns[0].any(-1)  # [client, slot]
    late = int((~turns[:, last]).float().argmax())
    assert turns[late].any()
    for done in ([], [client for client in range(3) if client != late]):
        left = progress.remaining_bits.clone()
        left[:, done] = 0.0
        now = progress._replace(remaining_bits=left)
        action = policy.act(make_view(policy, scenario, round_, now, last, keys), memory)
        sends = action.level[0] != scenario.silent_level
        assert sends.tolist() == [client not in done for client in range(3)]
        assert len({*action.band[0, sends].tolist()}) == 3 - len(done)


@pytest.mark.parametrize(("clients", "bands"), [(2, 4), (5, 1), (1, 1), (4, 4)])
@pytest.mark.parametrize(
    "name",
    [
        *("deadline-feedback", "wrap-around-feedback", "deadline-progress"),
        *("deadline-matching", "csi-matching"),
    ],
)
def test_any_number_of_clients_and_sub_bands(name, clients, bands, make_round) -> None:
    overrides = (f"learning.clients={clients}", f"radio.subbands={bands}")
    scenario, round_ = make_round(20, 6, overrides=overrides)
    outcome = play_round(load_policy(name), scenario, round_, torch.arange(3), record=True)
    assert int(outcome.delivered.sum()) > 0
    history = outcome.history
    sending = history.level != scenario.silent_level
    for band in range(bands):  # nobody disturbs anybody
        assert int((sending & (history.band == band)).sum(-1).max()) <= 1
