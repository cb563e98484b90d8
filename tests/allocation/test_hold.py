"""A policy that holds its decisions, against a plain loop over slots."""

import math
from collections.abc import Callable

import pytest
import torch

from fedfade.allocation import Action, View, load_policy, play_round
from fedfade.allocation.play import Observations, RecordedRounds
from fedfade.errors import UserError
from fedfade.uplink import Round, Scenario, observe, start_round

SMALL = ("radio.slots=24", "learning.payload_bits=6e5", "learning.clients=4", "radio.subbands=3")


class Best:
    """Everybody on the sub-band where its own column of fading is best; remembers when asked."""

    name, scope, observes, recordable = "best", "local", True, True

    def __init__(self, hold: object = 1, hops: bool = False) -> None:
        self.hold_slots, self.hop_subbands, self.asked = hold, hops, []

    def begin(self, view: View) -> None:
        self.asked = []

    def act(self, view: View, memory: None) -> Action:
        self.asked.append(view.slot)
        band = view.observation[..., :3].argmax(-1)
        return Action(band, torch.full_like(band, view.scenario.full_level))


def plain(s: Scenario, round_: Round, episode: int, hold: int, hops: bool) -> list[list[float]]:
    """What everybody has left after each slot of `Best`, with no tensor in it."""
    left = [s.payload_bits] * 4
    alpha, fading = round_.alpha[episode].tolist(), round_.fading[episode].tolist()
    found, chosen = [], [0] * 4
    for slot in range(s.slots):
        bands = [(b + slot) % 3 if hops else b for b in range(3)]  # of logical 0, 1, 2
        if slot % hold == 0:
            chosen = [max(range(3), key=lambda b: fading[slot][n][bands[b]]) for n in range(4)]
        heard = [
            alpha[n] * fading[slot][n][bands[chosen[n]]] * s.full_power_w * (left[n] > 0)
            for n in range(4)
        ]
        after = []
        for n in range(4):
            noise = s.noise_w
            noise += sum(heard[m] for m in range(4) if m != n and chosen[m] == chosen[n])
            rate = s.bandwidth_hz * math.log2(1 + heard[n] / noise)
            after.append(max(0.0, left[n] - rate * s.slot_s))
        left = after
        found.append(left)
    return found


@pytest.mark.parametrize("hops", [False, True])
@pytest.mark.parametrize("hold", [1, 5, 8, 24, 100])
def test_held_play_is_a_plain_loop(hold: int, hops: bool, make_round: Callable) -> None:
    """Also where the hold does not divide the round, or is longer than it."""
    observe_fading = "allocation.observe=[fading, remaining]"
    scenario, round_ = make_round(15, 6, overrides=(*SMALL, observe_fading))
    policy = Best(hold, hops)
    outcome = play_round(policy, scenario, round_, torch.arange(3), record=True)
    assert policy.asked == list(range(0, 24, hold))
    for episode in range(3):
        wanted = torch.tensor(plain(scenario, round_, episode, hold, hops))
        found = outcome.history.remaining_bits[:, episode]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2.0)
    assert 0 < int(outcome.delivered.sum()) < 12
    # Who is done is silent though its action is held.
    done = torch.cat([torch.zeros(1, 3, 4), outcome.history.remaining_bits[:-1] <= 0]).bool()
    assert bool((outcome.history.level[done] == scenario.silent_level).all())
    recorded = RecordedRounds(policy, scenario, round_, torch.arange(3))
    again = recorded.play(round_, torch.arange(3))
    assert torch.equal(again.bits, outcome.bits)


def test_what_agents_of_the_scenario_do_is_nothing_to_others(make_round: Callable) -> None:
    for name in ("random", "wrap-around-choice", "max-individual-rate"):
        played = []
        for agents in ((), ("qmix.hold_slots=6", "qmix.hop_subbands=true")):
            scenario, round_ = make_round(15, 6, overrides=(*SMALL, *agents))
            policy = load_policy(name)
            played.append(play_round(policy, scenario, round_, torch.arange(3), record=True))
        for one, other in zip(played[0].history, played[1].history, strict=True):
            assert torch.equal(one, other)


def test_observations_are_made_where_decisions_are(
    make_round: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, round_ = make_round(15, 6, overrides=(*SMALL, "qmix.hold_slots=5"))
    from fedfade import uplink

    made, original = [], uplink.static_observation

    def counted(scenario: Scenario, round_: Round, slots: torch.Tensor):
        made.append(slots.tolist())
        return original(scenario, round_, slots)

    monkeypatch.setattr("fedfade.uplink.static_observation", counted)
    observations, progress = Observations(scenario, round_, 3), start_round(scenario, 3)
    for slot in (0, 5, 10, 15, 20):
        wanted = observe(scenario, round_, progress, slot)
        torch.testing.assert_close(observations.at(slot, progress), wanted)
    assert made == [[0, 5, 10], [15, 20]]


@pytest.mark.parametrize("hold", [0, -3, 2.5, "5"])
def test_a_hold_that_is_none_is_refused(hold: object, make_round: Callable) -> None:
    scenario, round_ = make_round(overrides=SMALL)
    with pytest.raises(UserError, match=r"hold_slots of policy 'best' = .* a whole number above 0"):
        play_round(Best(hold), scenario, round_, torch.arange(3))
