"""The parts of an observation: how wide, which numbers, and whose business they are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fedfade.allocation import load_policy, play_round
from fedfade.config import load_config
from fedfade.seams import PARTS
from fedfade.uplink import (
    Progress,
    Round,
    Scenario,
    decode_action,
    global_state,
    observation_width,
    observe,
    part_columns,
    plan_preference,
    play_slot,
    ranked_clients,
    scenario_from_config,
    slot_air,
    start_round,
    state_width,
    static_observation,
)
from fedfade.uplink.parts import BOUND
from fedfade.uplink.plan import ergodic_rate, likely_done, reserve, timetable

ALL = tuple(PARTS.built_in)


def scenario_seeing(*parts: str, delay: int = 0, hide: str = "") -> Scenario:
    config = load_config(
        "paper",
        [
            f"allocation.observe=[{', '.join(parts)}]",
            f"allocation.csi_delay_slots={delay}",
            f"allocation.hide=[{hide}]",
        ],
    )
    return scenario_from_config(config, 9_932_960)


@pytest.fixture
def round_(make_round) -> Round:
    return make_round(20, 8, episodes=4, seed=3)[1]


def test_widths() -> None:
    widths = {
        "alphas": 10,
        "fading": 4,
        "finished": 10,
        "others_fading": 40,
        "schedule": 8,
        "reservation": 20,
        "order": 31,
        "slack": 2,
        "finished_order": 10,
        "order_fading": 40,
        "ready": 11,
    }
    s = scenario_seeing(*ALL)
    columns = part_columns(s)
    assert {name: c.stop - c.start for name, c in columns.items()} == {
        name: widths.get(name, 1) for name in ALL
    }
    assert observation_width(s) == sum(widths.get(name, 1) for name in ALL)
    s = scenario_seeing("schedule", "fading")
    assert part_columns(s) == {"schedule": slice(0, 8), "fading": slice(8, 12)}


def test_one_slot_is_a_row_of_the_static_observation(round_: Round) -> None:
    """Comparison asks slot by slot, training lays out all of them at once."""
    # Their progress is no column of its own.
    mixed = ("time_to_finish", "reservation", "slack", "finished_order")
    s = scenario_seeing(*(name for name in ALL if name not in mixed), delay=3)
    nothing_done = Progress(torch.zeros(4, 10))  # fills 0 into `remaining`
    s_all = static_observation(s, round_)
    finished = part_columns(s)["finished"]
    for slot in (0, 2, 3, 100, 249):
        row = observe(s, round_, nothing_done, slot).transpose(0, 1)
        row[..., finished] = 0
        assert torch.equal(row, s_all.observation[slot])


def test_everybodys_fading_number_by_number(round_: Round) -> None:
    s = scenario_seeing("others_fading", "fading")
    found = observe(s, round_, start_round(s, 4), 7)
    for me in range(10):
        for n in range(10):
            for c in range(4):
                db = 10 * math.log10(float(round_.fading[2, 7, n, c]))
                wanted = max(db, -40) / 10  # float32 logarithm against double
                assert float(found[2, me, 4 * n + c]) == pytest.approx(wanted, abs=1e-5)
        assert torch.equal(found[:, me, 4 * me : 4 * me + 4], found[:, me, 40:])


@pytest.mark.parametrize("delay", [1, 5, 100])
def test_old_csi_is_the_fresh_one_shifted(delay: int, round_: Round) -> None:
    fresh = static_observation(scenario_seeing("others_fading"), round_).observation
    old = static_observation(scenario_seeing("others_fading", delay=delay), round_).observation
    assert torch.equal(old[delay:], fresh[:-delay])
    assert bool((old[:delay] == 0).all())  # 0 dB: nothing of the round has been heard yet


def test_csi_older_than_a_round_says_nothing(round_: Round) -> None:
    old = static_observation(scenario_seeing("others_fading", delay=250), round_).observation
    assert bool((old == 0).all())


def test_hidden_fading_hides_everybodys(round_: Round) -> None:
    for delay in (0, 5):
        s = scenario_seeing("fading", "others_fading", "order_fading", delay=delay, hide="fading")
        assert bool((static_observation(s, round_).observation == 1).all())


def test_the_schedule_part_number_by_number(round_: Round) -> None:
    s = scenario_seeing("schedule")
    snr = round_.alpha * s.full_power_w / s.noise_w
    plan = timetable(s, snr, round_.number)
    assert bool(plan.start.isinf().any())  # some wait in vain, and some for a freed sub-band
    assert bool((plan.start.isfinite() & (plan.start > 0)).any())
    for slot in (0, 60, 249):
        found = observe(s, round_, start_round(s, 4), slot)
        for e in range(4):
            for n in range(10):
                start, end = float(plan.start[e, n]), float(plan.end[e, n])
                wanted = [float(start <= slot), 0, 0, 0, 0]
                wanted[1 + int(plan.band[e, n])] = 1
                wanted += [min(max((start - slot) / 250, 0), 2)]
                wanted += [min(max((end - slot) / 250, -2), 2), int(plan.rank[e, n]) / 10]
                torch.testing.assert_close(found[e, n], torch.tensor(wanted))


def test_the_schedule_part_is_what_the_schedule_does(round_: Round) -> None:
    """An agent that sends when and where its schedule part says plays the schedule."""
    s = scenario_seeing("schedule")
    keys = torch.arange(4)
    played = play_round(load_policy("block-fading-schedule"), s, round_, keys, record=True)
    assert played.history is not None
    seen = static_observation(s, round_).observation.transpose(
        1, 2
    )  # [slot, episode, client, width]
    sends = played.history.level != s.silent_level
    done = torch.cat([torch.zeros(1, 4, 10), played.history.remaining_bits[:-1] <= 0]).bool()
    assert torch.equal(sends, (seen[..., 0] == 1) & ~done)
    assert torch.equal(played.history.band[sends], seen[..., 1:5].argmax(-1)[sends])


@pytest.mark.parametrize("binary", [False, True])
def test_the_planned_subband_is_what_the_wrap_around_choice_does(
    round_: Round, binary: bool
) -> None:
    """Agents that have learned nothing and prefer the plan play it, to the last slot."""
    s = replace(scenario_seeing("slots_left", "reservation"), binary_power=binary)
    preference = plan_preference(s, 1.0)
    assert preference is not None
    matrix, vector = preference
    progress, keys = start_round(s, 4), torch.arange(4)
    played = play_round(load_policy("wrap-around-choice"), s, round_, keys, record=True)
    assert played.history is not None
    for slot in range(s.slots):
        choice = (observe(s, round_, progress, slot) @ matrix + vector).argmax(-1)
        action = decode_action(s, choice)
        progress, _ = play_slot(s, progress, slot_air(s, round_, slot), action)
        assert torch.equal(progress.remaining_bits, played.history.remaining_bits[slot])


def test_the_reservation_part_number_by_number(round_: Round) -> None:
    """The static: nobody's progress is in it, nor where to go on after the own turn."""
    s = scenario_seeing("reservation")
    plan = reserve(s, round_.alpha * s.full_power_w / s.noise_w, round_.number)
    seen = static_observation(s, round_).observation  # [slot, client, episode, width]
    waits = set()
    for e, n in itertools.product(range(4), range(10)):
        turns = [t for t in range(250) if plan.bands[e, n, t].any()]
        for slot in (0, 60, 130, 249):
            mine, grace = plan.bands[e, n, slot].tolist(), plan.grace[e, n, slot].tolist()
            heard = [h * own for h, own in zip(round_.fading[e, slot, n], mine, strict=True)]
            planned = [any(mine) and h == max(heard) for h in heard]
            found = seen[slot, n, e].tolist()
            assert found[:12] == [*planned, *mine, *grace]
            for c in range(4):
                holder = plan.bands[e, :, slot, c].nonzero().flatten().tolist()
                sent = [likely_done(plan.sent[e, m, slot]) for m in holder] or [1.0]
                assert found[12 + c] == pytest.approx(float(sent[0]), abs=1e-6)
            wait = min([t - slot for t in turns if t >= slot], default=250)
            left = sum(t >= slot for t in turns)
            needed = min(float(plan.slots[e, n]) / 250, 2.0)
            wanted = [wait / 250, left / 250, needed, int(plan.rank[e, n]) / 10]
            assert found[16:] == pytest.approx(wanted, abs=1e-6)
            waits.add(wait)
    assert {0, 250} < waits  # some send, some never, some wait


def test_time_to_finish_by_hand(round_: Round) -> None:
    s = scenario_seeing("time_to_finish", "remaining")
    left = torch.rand(4, 10, generator=torch.Generator().manual_seed(0)) * s.payload_bits
    left[1, 2] = 0.0
    snr = round_.alpha * s.full_power_w / s.noise_w
    bits_per_round = ergodic_rate(snr) * s.bandwidth_hz * s.slot_s * s.slots
    found = observe(s, round_, Progress(left), 17)
    torch.testing.assert_close(found[..., 0], left / bits_per_round)
    torch.testing.assert_close(found[..., 1], left / s.payload_bits)


def test_the_order_part_number_by_number(round_: Round) -> None:
    """Mean rates of gamma-2 fading by adding up many draws, ranks by sorting in Python."""
    s = scenario_seeing("order", "slack")
    assert s.fading_shape == 2.0
    draws = -torch.log(torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0)))
    round_.alpha[1, 4] *= 0.01
    gain = draws.mean(1)  # two exponentials: gamma of shape 2 and mean 1
    snr = round_.alpha[1] * s.full_power_w / s.noise_w
    bits = [float(torch.log2(1 + x * gain).mean()) * s.bandwidth_hz * s.slot_s for x in snr]
    slots = [s.payload_bits / b for b in bits]
    order = sorted(range(10), key=lambda n: slots[n])
    rounds = [min(slots[n] / 250, 2) for n in order]
    assert rounds[0] < 0.5  # some finish in time,
    assert rounds[-1] == 2  # some never would
    left = torch.full((4, 10), 0.25 * s.payload_bits)
    found = observe(s, round_, Progress(left), 60)[1]
    for n in range(10):
        rank = order.index(n)
        wanted = [float(place == rank) for place in range(10)] + rounds
        wanted += [min(sum(rounds[:rank]) / 4, 2)]
        wanted += [min(sum(rounds[: place + 1]) / 4, 2) for place in range(10)]
        takes = min(0.25 * slots[n] / 250, 2)
        wanted += [190 / 250 - takes, takes]
        # 200,000 draws: the mean rate to about 0.2 %, of sums up to 2
        assert found[n].tolist() == pytest.approx(wanted, abs=0.01)


def test_the_order_is_the_schedules_and_the_plans(round_: Round) -> None:
    s = scenario_seeing("order", "schedule", "reservation")
    seen, where = observe(s, round_, start_round(s, 4), 0), part_columns(s)
    rank = seen[..., where["order"]][..., :10].argmax(-1)
    for part in ("schedule", "reservation"):
        assert torch.equal(rank, (10 * seen[..., where[part]][..., -1]).round().long())


def test_a_finished_client_has_all_the_time_left(round_: Round) -> None:
    s = scenario_seeing("slack", "slots_left")
    seen = observe(s, round_, Progress(torch.zeros(4, 10)), 60)
    assert torch.equal(seen[..., 0], seen[..., 2])
    assert bool((seen[..., 1] == 0).all())


def test_in_the_order_of_rank_is_the_same_for_all_and_resorted(round_: Round) -> None:
    s = scenario_seeing("order", "finished", "finished_order", "others_fading", "order_fading")
    left = torch.rand(4, 10, generator=torch.Generator().manual_seed(1)) - 0.4
    seen, where = observe(s, round_, Progress(left.clamp(min=0)), 5), part_columns(s)
    rank = seen[..., where["order"]][..., :10].argmax(-1)
    for part, ranked in (("finished", "finished_order"), ("others_fading", "order_fading")):
        by_number, by_rank = (
            seen[..., where[name]].unflatten(-1, (10, -1)) for name in (part, ranked)
        )
        for e, me, n in itertools.product(range(4), range(10), range(10)):
            assert torch.equal(by_number[e, me, n], by_rank[e, me, rank[e, n]])


RANKED = ("order", "slack", "finished_order", "order_fading", "fading", "remaining", "slots_left")


@pytest.mark.parametrize("delay", [0, 4])
def test_nobody_is_told_apart_by_number(delay: int, round_: Round) -> None:
    """Number the clients differently: each sees what it saw, and so does a ranked mixer."""
    s = replace(scenario_seeing(*RANKED, delay=delay), ranked_state=True)
    generator = torch.Generator().manual_seed(2)
    left = (torch.rand(4, 10, generator=generator) - 0.3).clamp(min=0) * s.payload_bits
    new = torch.randperm(10, generator=generator)
    inner = round_.inner[:, new][:, :, new]
    renumbered = round_._replace(alpha=round_.alpha[:, new], inner=inner)
    renumbered = renumbered._replace(fading=round_.fading[:, :, new])
    seen, state = observe(s, round_, Progress(left), 9), global_state(s, round_, Progress(left), 9)
    assert not torch.equal(seen[:, new], seen)
    left = left[:, new]
    assert torch.equal(observe(s, renumbered, Progress(left), 9), seen[:, new])
    other = global_state(s, renumbered, Progress(left), 9)
    assert torch.equal(other[:, :-10], state[:, :-10])
    assert torch.equal(new[ranked_clients(other, 10)], ranked_clients(state, 10))


def test_the_ranked_state_is_the_state_resorted(round_: Round) -> None:
    s = scenario_seeing("order")
    ranked = replace(s, ranked_state=True)
    assert state_width(ranked) == state_width(s) + 10
    left = torch.rand(4, 10, generator=torch.Generator().manual_seed(1)) * s.payload_bits
    plain, sorted_ = (global_state(one, round_, Progress(left), 7) for one in (s, ranked))
    clients = ranked_clients(sorted_, 10)
    rank = observe(s, round_, Progress(left), 7)[..., :10].argmax(-1)
    assert torch.equal(clients.gather(1, rank), torch.arange(10).expand(4, -1))
    for first, width in ((0, 1), (10, 4), (50, 1), (61, 1)):  # gains, fading, remaining, deviation
        ours = plain[:, first : first + 10 * width].unflatten(1, (10, width))
        theirs = sorted_[:, first : first + 10 * width].unflatten(1, (10, width))
        assert torch.equal(ours.gather(1, clients[..., None].expand(-1, -1, width)), theirs)
    assert torch.equal(plain[:, [60, 71]], sorted_[:, [60, 71]])  # clock, round


def test_everything_stays_in_bounds(make_round) -> None:
    """From no signal to absurd gains: PettingZoo's boxes promise |x| <= BOUND."""
    s = scenario_seeing(*ALL, delay=2)
    for snr_db in (-300.0, 0.0, 90.0):
        round_ = make_round(snr_db, 30, episodes=2)[1]
        for slot in (0, 249):
            seen = observe(s, round_, start_round(s, 2), slot)
            assert bool(seen.isfinite().all())
            assert float(seen.abs().max()) <= BOUND


def _changed_parts(s: Scenario, before: torch.Tensor, after: torch.Tensor) -> set[str]:
    return {
        name
        for name, where in part_columns(s).items()
        if not torch.equal(before[..., where], after[..., where])
    }


@pytest.mark.parametrize("delay", [0, 4])
def test_whose_business_it_is(delay: int, round_: Round) -> None:
    """Change what is private to others: only the part that announces it changes for me."""
    s = scenario_seeing(*ALL, delay=delay)
    me, others = 3, [n for n in range(10) if n != 3]
    progress = Progress(torch.full((4, 10), 0.5 * s.payload_bits))
    mine = observe(s, round_, progress, 9)[:, me]

    fading = round_.fading.clone()
    fading[:, :, others] *= 2.0
    seen = observe(s, round_._replace(fading=fading), progress, 9)[:, me]
    assert _changed_parts(s, mine, seen) == {"others_fading", "order_fading"}

    left = progress.remaining_bits.clone()
    left[:, others] *= 0.3
    assert _changed_parts(s, mine, observe(s, round_, Progress(left), 9)[:, me]) == set()
    left[:, 5] = 0.0
    seen = observe(s, round_, Progress(left), 9)[:, me]
    assert _changed_parts(s, mine, seen) == {"finished", "finished_order"}

    inner = round_.inner.clone()
    inner[:, others] *= 3.0
    seen = observe(s, round_._replace(inner=inner), progress, 9)[:, me]
    assert _changed_parts(s, mine, seen) == set()


def test_the_environment_shows_all_parts() -> None:
    from fedfade.uplink import parallel_env

    parts = {"observe": list(ALL), "csi_delay_slots": 1}
    env = parallel_env("ring", max_cycles=4, allocation=parts)
    seen, _ = env.reset(seed=0)
    assert seen["client_0"].shape == (observation_width(scenario_seeing(*ALL)),)
    while env.agents:
        seen, *_ = env.step({agent: 3 for agent in env.agents})
        assert all(env.observation_space(agent).contains(x) for agent, x in seen.items())
