"""Holding a decision: logical sub-bands that hop in step, and the environment a decision a step."""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from pettingzoo.test import parallel_api_test, parallel_seed_test

from fedfade.allocation import play_round
from fedfade.config import load_config
from fedfade.errors import UserError
from fedfade.uplink import (
    Action,
    Rounds,
    decode_action,
    gradient_source,
    hop,
    observe,
    parallel_env,
    part_columns,
    play_slot,
    slot_air,
    start_round,
)
from fedfade.uplink.slot import by_logical_band


@pytest.mark.parametrize(
    ("slots", "hold", "decisions"), [(250, 1, 250), (250, 25, 10), (250, 60, 5), (250, 250, 1)]
)
def test_decisions_of_a_round(make_round: Callable, slots: int, hold: int, decisions: int) -> None:
    scenario, _ = make_round(overrides=(f"radio.slots={slots}", f"qmix.hold_slots={hold}"))
    assert scenario.decisions == decisions


def test_a_hold_longer_than_the_round_is_refused() -> None:
    with pytest.raises(UserError, match=r"qmix.hold_slots = 9 is not .* at most radio.slots = 8"):
        load_config("paper", ["radio.slots=8", "qmix.hold_slots=9"])


def test_the_same_logical_subband_always_collides_and_others_never(make_round: Callable) -> None:
    scenario, _ = make_round(overrides=("qmix.hop_subbands=true",))
    pairs = torch.tensor(list(itertools.product(range(4), repeat=2)))  # [pair, client]
    visited = []
    for slot in range(9):
        band = decode_action(scenario, pairs * scenario.levels, slot).band
        assert torch.equal(band[:, 0] == band[:, 1], pairs[:, 0] == pairs[:, 1])
        assert torch.equal(band, (pairs + slot) % 4)
        on_device = decode_action(scenario, pairs * scenario.levels, torch.tensor([slot]))
        assert torch.equal(on_device.band, band)
        visited.append(band)
    turns = torch.stack(visited)[:4].sort(dim=0).values
    assert torch.equal(turns, torch.arange(4)[:, None, None].expand(turns.shape))  # all in C slots
    stays = replace(scenario, hop_subbands=False)
    assert torch.equal(decode_action(stays, pairs * scenario.levels, 3).band, pairs)


def test_hopping_is_a_round_by_another_name(make_round: Callable) -> None:
    """Sent on hopping sub-bands, or on those of a round whose fading is told by logical one."""
    scenario, round_ = make_round(
        18, 5, overrides=("radio.slots=9", "qmix.hop_subbands=true", "learning.payload_bits=3e5")
    )
    told = by_logical_band(round_)
    hopping = named = start_round(scenario, 3)
    choice = torch.randint(4, (3, 10), generator=torch.Generator().manual_seed(0))
    action = Action(choice, torch.full_like(choice, scenario.full_level))
    for slot in range(9):
        for band in range(4):
            there = round_.fading[:, slot, :, (band + slot) % 4]
            assert torch.equal(told.fading[:, slot, :, band], there)
        air = slot_air(scenario, round_, slot)
        hopping, _ = play_slot(scenario, hopping, air, hop(scenario, action, slot))
        named, _ = play_slot(scenario, named, slot_air(scenario, told, slot), action)
        assert torch.equal(hopping.remaining_bits, named.remaining_bits)


@pytest.mark.parametrize("slot", [0, 5, 18])
def test_agents_see_logical_subbands(make_round: Callable, slot: int) -> None:
    """Column b of what lies by sub-band is where b is sent now, however old what it tells is."""
    names = ("fading", "others_fading", "reservation")
    parts = f"allocation.observe=[{', '.join(names)}]"
    overrides = ("radio.slots=20", "allocation.csi_delay_slots=3", parts)
    scenario, round_ = make_round(18, 5, overrides=(*overrides, "learning.payload_bits=8e5"))
    progress = start_round(scenario, 3)
    stays = observe(scenario, round_, progress, slot)
    hops = observe(replace(scenario, hop_subbands=True), round_, progress, slot)
    columns = part_columns(scenario)
    physical = (torch.arange(4) + slot) % 4
    by_band = [(columns["fading"], 1), (columns["others_fading"], 10)]
    start = columns["reservation"].start
    by_band.append((slice(start, start + 16), 4))  # four columns each, then four of the plan
    for where, times in by_band:
        before, after = (x[..., where].unflatten(-1, (times, 4)) for x in (stays, hops))
        assert torch.equal(after, before[..., physical])
    assert torch.equal(hops[..., start + 16 :], stays[..., start + 16 :])


@pytest.mark.parametrize("hold", [1, 25])
def test_pettingzoo(hold: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        parallel_api_test(parallel_env(max_cycles=60, hold_slots=hold), num_cycles=20)
        parallel_seed_test(
            lambda: parallel_env("ring", max_cycles=60, hold_slots=hold), num_cycles=10
        )


@pytest.mark.parametrize(("hold", "hops"), [(7, False), (7, True), (60, True)])
def test_a_step_is_as_many_steps_of_a_slot_each(hold: int, hops: bool) -> None:
    """The same actions again and again: rewards add up, and what is seen next is the same."""
    held, plain = (
        parallel_env("small-cell", max_cycles=60, hold_slots=k, qmix={"hop_subbands": hops})
        for k in (hold, 1)
    )
    g = np.random.default_rng(2)
    seen, _ = held.reset(seed=5)
    shown, _ = plain.reset(seed=5)
    steps = 0
    while held.agents:
        for agent, own in seen.items():
            assert np.array_equal(own, shown[agent])
        assert np.array_equal(held.state(), plain.state())
        actions = {agent: int(g.integers(8)) for agent in held.agents}
        seen, rewards, ends, cuts, infos = held.step(actions)
        total = 0.0
        for _ in range(min(hold, 60 - steps * hold)):
            shown, paid, ended, _, told = plain.step(actions)
            total += paid["client_0"]
        assert set(rewards.values()) == {total}
        assert (ends, infos) == (ended, told)
        assert not any(cuts.values())
        steps += 1
    assert steps == held.scenario.decisions
    assert not plain.agents


@pytest.mark.parametrize("hops", [False, True])
def test_a_round_of_steps_is_what_play_round_plays(hops: bool) -> None:
    env = parallel_env("small-cell", hold_slots=30, **{"qmix.hop_subbands": hops})
    observations, _ = env.reset(seed=3)
    rounds = Rounds(env.config, gradient_source(env.config), 1, env._episodes.rounds.seeds)

    class Apart:
        """Clients n and n + 2 change places, on a sub-band and silent, with every decision."""

        name, scope, observes = "apart", "local", True
        hold_slots, hop_subbands = 30, hops

        def begin(self, view):
            self.seen, self.choices = [], []

        def act(self, view, memory):
            self.seen.append(view.observation[0].numpy())
            silent = (torch.arange(4) // 2 + len(self.seen)) % 2 == 0
            level = torch.where(silent, view.scenario.silent_level, view.scenario.full_level)
            self.choices.append(torch.arange(4) % 2 * view.scenario.levels + level)
            return decode_action(view.scenario, self.choices[-1][None])

    policy = Apart()
    outcome = play_round(policy, rounds.scenario, rounds.round(0), torch.zeros(1).long())
    total = 0.0
    for seen, choice in zip(policy.seen, policy.choices, strict=True):
        assert np.array_equal(np.stack(list(observations.values())), seen)
        actions = dict(zip(env.agents, choice.tolist(), strict=True))
        observations, rewards, _, _, infos = env.step(actions)
        total += rewards["client_0"]
    assert not env.agents
    assert [info["delivered"] for info in infos.values()] == outcome.delivered[0].tolist()
    assert total == pytest.approx(float(outcome.reward[0]), rel=1e-5)
