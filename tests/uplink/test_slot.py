"""The slot step against a plain-Python one, and the sum of slot rewards against the round's."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.allocation import play_round
from fedfade.config import load_config
from fedfade.uplink import (
    Action,
    Air,
    Progress,
    RewardWeights,
    Round,
    Scenario,
    SlotAir,
    arrived,
    decode_action,
    encode_action,
    global_state,
    normalised_inner,
    observe,
    plain_round,
    play_slot,
    round_reward,
    scenario_from_config,
    slot_air,
    slot_reward,
    start_round,
)


def scenario(clients: int = 5, bands: int = 3, slots: int = 20) -> Scenario:
    config = load_config(
        "ring",
        [f"learning.clients={clients}", f"radio.subbands={bands}", f"radio.slots={slots}"],
    )
    return scenario_from_config(config, payload_bits=4e5)


def random_round(s: Scenario, episodes: int, seed: int) -> Round:
    g = torch.Generator().manual_seed(seed)
    snr_db = 20 + 5 * torch.randn(episodes, s.clients, generator=g)
    vectors = torch.randn(episodes, s.clients, 7, generator=g)
    return plain_round(
        alpha=10 ** (snr_db / 10) * s.noise_w / s.full_power_w,
        fading=-torch.rand(episodes, s.slots, s.clients, s.bands, generator=g).log(),
        inner=vectors @ vectors.mT,
        number=torch.zeros(episodes),
        age=torch.zeros(episodes, s.clients),
    )


def plain_slot(
    s: Scenario, remaining: list[float], gain: list[list[float]], band: list[int], level: list[int]
) -> list[float]:
    """What is left after a slot, one client after another (paper: eq. 10 to 12)."""
    watt = [float(w) for w in s.power_w]
    left = []
    for n in range(s.clients):
        if remaining[n] <= 0:
            left.append(0.0)
            continue
        noise = s.noise_w
        for other in range(s.clients):
            if other != n and band[other] == band[n] and remaining[other] > 0:
                noise += watt[level[other]] * gain[other][band[n]]
        sinr = watt[level[n]] * gain[n][band[n]] / noise
        bits = s.bandwidth_hz * math.log2(1 + sinr) * s.slot_s
        left.append(max(0.0, remaining[n] - bits))
    return left


def test_a_round_played_by_an_independent_implementation() -> None:
    s = scenario()
    episodes = 8
    round_ = random_round(s, episodes, seed=0)
    progress = start_round(s, episodes)
    g = torch.Generator().manual_seed(1)
    plain = [[s.payload_bits] * s.clients for _ in range(episodes)]
    for slot in range(s.slots):
        choice = torch.randint(s.actions, (episodes, s.clients), generator=g)
        action = decode_action(s, choice)
        progress, _ = play_slot(s, progress, slot_air(s, round_, slot), action)
        for e in range(episodes):
            gain = (round_.alpha[e, :, None] * round_.fading[e, slot]).tolist()
            plain[e] = plain_slot(
                s, plain[e], gain, action.band[e].tolist(), action.level[e].tolist()
            )
        # float32 against double, errors adding up over the slots: a millionth of the payload each
        torch.testing.assert_close(
            progress.remaining_bits, torch.tensor(plain), atol=1e-6 * s.payload_bits * 20, rtol=0
        )
    assert 0 < int(progress.finished.sum()) < progress.finished.numel()


def even_air(s: Scenario) -> SlotAir:
    """Everybody is heard at 20 dB on every sub-band."""
    gain = torch.full((1, s.clients, s.bands), 100 * s.noise_w / s.full_power_w)
    return SlotAir(Air(gain, s.noise_w, None), gain.new_empty(1, 0), gain.new_empty(1, 0))


def test_the_finished_neither_send_nor_disturb() -> None:
    s = scenario(clients=2)
    air = even_air(s)
    both = Action(torch.zeros(1, 2, dtype=torch.int64), torch.full((1, 2), s.full_level))
    _, result = play_slot(s, Progress(torch.tensor([[0.0, 4e5]])), air, both)
    assert float(result.rate_bps[0, 0]) == 0.0
    alone = s.bandwidth_hz * math.log2(101)
    assert math.isclose(float(result.rate_bps[0, 1]), alone, rel_tol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_slot_rewards_add_up_to_the_round(
    seed: int, clients: int, bands: int, remembers: bool
) -> None:
    """lambda_1 |N_t| - lambda_2 |sum of d_n|^2 whatever the order of finishing (eq. 29, 30)."""
    s = replace(scenario(clients, bands), remembers=remembers)
    round_ = random_round(s, 4, seed)
    normalised = normalised_inner(round_.inner)
    g = torch.Generator().manual_seed(seed)
    progress, total, sent = start_round(s, 4), torch.zeros(4), torch.zeros(4)
    for _ in range(s.slots):
        bits = torch.rand(4, clients, generator=g) * 0.12 * s.payload_bits
        after = Progress((progress.remaining_bits - bits).clamp(min=0))
        action = decode_action(s, torch.zeros(4, clients, dtype=torch.int64))
        _, result = play_slot(s, progress, slot_air(s, round_, 0), action)
        total += slot_reward(s, normalised, progress, after, result)
        sent += result.rate_bps.sum(-1) * s.slot_s / (s.bands * s.payload_bits)
        progress = after
    wanted = s.reward.convergence * round_reward(s, round_.inner, progress.finished)
    # 20 float32 additions of numbers up to 3
    torch.testing.assert_close(total, wanted + s.reward.rate * sent, atol=2e-5, rtol=1e-5)


def test_slot_rewards_add_up_where_a_part_counts() -> None:
    """lambda_1 times the shares, and |sum of share_n d_n|^2; payloads of their own."""
    own = torch.tensor([1.0, 0.2, 3.0])
    s = replace(scenario(3, 2), count_partial=True, payload_bits=4e5 * own)
    round_ = random_round(s, 4, 0)
    progress, total, rates = start_round(s, 4), torch.zeros(4), torch.zeros(4)
    assert torch.equal(progress.remaining_bits[0], 4e5 * own)
    action = Action(torch.zeros(4, 3).long(), torch.full((4, 3), s.full_level))
    for slot in range(s.slots):
        after, result = play_slot(s, progress, slot_air(s, round_, slot), action)
        total += slot_reward(s, normalised_inner(round_.inner), progress, after, result)
        rates += result.rate_bps.sum(-1) * s.slot_s / (s.bands * 4e5 * own.mean())
        progress = after
    share = 1 - progress.remaining_bits / (4e5 * own)
    assert ((share > 0) & (share < 1)).any()
    assert torch.allclose(arrived(s, progress), share)
    weights, unit = s.reward, normalised_inner(round_.inner)
    bias = torch.einsum("en,enm,em->e", share, unit, share)
    wanted = weights.delivered * share.sum(-1) - weights.deviation * bias
    torch.testing.assert_close(wanted, round_reward(s, round_.inner, share))
    torch.testing.assert_close(total, weights.convergence * wanted + weights.rate * rates)


def test_everybody_sees_the_share_of_its_own_payload() -> None:
    s = replace(scenario(clients=2, bands=2, slots=10), payload_bits=torch.tensor([4e5, 1e5]))
    round_ = random_round(s, 1, seed=3)
    progress = Progress(torch.tensor([[1e5, 1e5]]))
    assert observe(s, round_, progress, slot=4)[0, :, 4].tolist() == [0.25, 1.0]
    assert global_state(s, round_, progress, slot=4)[0, 6:8].tolist() == [0.25, 1.0]


def test_deviations_are_in_units_of_their_mean() -> None:
    """Squares 1, 2 and 6 have the mean 3; nothing changes when gradients are a millionth."""
    d = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, 2.0]])
    inner = d @ d.T
    wanted = inner / 3
    found = normalised_inner(torch.stack([inner, 1e-12 * inner, 0 * inner]))
    torch.testing.assert_close(found, torch.stack([wanted, wanted, 0 * inner]))
    s = scenario(clients=3)
    reward = round_reward(s, inner[None], torch.tensor([[True, False, True]]))
    wanted_reward = 2 * s.reward.delivered - s.reward.deviation * 5 / 3  # d_0 + d_2 = (0, 1, 2)
    assert math.isclose(float(reward), wanted_reward, rel_tol=1e-6)


def test_slot_rewards_spelled_out_as_in_the_paper() -> None:
    """Eq. 30's sums over D and D- one by one."""
    s = scenario(clients=6)
    round_ = random_round(s, 1, seed=5)
    normalised = normalised_inner(round_.inner)
    before = Progress(torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0]]))
    after = Progress(torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]]))
    silent = Action(torch.zeros(1, 6, dtype=torch.int64), torch.full((1, 6), s.silent_level))
    _, result = play_slot(s, before, slot_air(s, round_, 0), silent)
    now, earlier, inner = [1, 4], [0, 3], normalised[0].tolist()
    bracket = 0.0
    for n in now:
        bracket += inner[n][n] + 2 * sum(inner[n][m] for m in earlier)
        bracket += sum(inner[n][m] for m in now if m != n)
    wanted = s.reward.delivered * len(now) - s.reward.deviation * bracket
    found = slot_reward(s, normalised, before, after, result)
    assert math.isclose(float(found), s.reward.convergence * wanted, rel_tol=1e-5)


def test_the_finished_are_paid_for_in_every_slot() -> None:
    """From the slot on in which they finish; a round's pay is that weight a client and slot."""
    s = scenario(clients=4, slots=30)
    s = replace(s, reward=s.reward._replace(finished=0.25))
    plain = replace(s, reward=s.reward._replace(finished=0.0))
    round_ = random_round(s, 6, seed=2)
    normalised, g = normalised_inner(round_.inner), torch.Generator().manual_seed(0)
    progress, extra, waited = start_round(s, 6), torch.zeros(6), [0] * 6
    for slot in range(s.slots):
        choice = torch.randint(s.actions, (6, 4), generator=g)
        after, result = play_slot(s, progress, slot_air(s, round_, slot), decode_action(s, choice))
        given = (normalised, progress, after, result)
        extra += slot_reward(s, *given) - slot_reward(plain, *given)
        for episode, left in enumerate(after.remaining_bits.tolist()):
            waited[episode] += left.count(0.0)
        progress = after
    assert len({*waited}) > 1
    torch.testing.assert_close(extra, 0.25 * torch.tensor(waited).float())


def test_every_episode_may_have_weights_of_its_own() -> None:
    s = scenario(clients=4)
    weights = [RewardWeights(1.0, 2.0, 0.1, 0.02, 0.0), RewardWeights(0.5, 0.0, 0.3, 0.1, 0.4)]
    each = RewardWeights(*(torch.tensor(column) for column in zip(*weights, strict=True)))
    round_ = random_round(s, 2, seed=1)
    before, after = Progress(torch.tensor([[9e4, 0.0, 9e4, 4e5]] * 2)), Progress(torch.zeros(2, 4))
    action = decode_action(s, torch.full((2, 4), s.full_level))
    _, result = play_slot(s, before, slot_air(s, round_, 0), action)
    given = (normalised_inner(round_.inner), before, after, result)
    found = slot_reward(replace(s, reward=each), *given)
    alone = [slot_reward(replace(s, reward=own), *given)[n] for n, own in enumerate(weights)]
    torch.testing.assert_close(found, torch.stack(alone))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("hops", [False, True])
def test_every_action_has_a_number_of_its_own(hops: bool, binary: bool) -> None:
    s = replace(scenario(clients=4, bands=3), hop_subbands=hops, binary_power=binary)
    choice = torch.arange(s.actions)[:, None].expand(-1, 4)
    for slot in (0, 1, 2, 7, torch.tensor([5])):
        assert torch.equal(encode_action(s, decode_action(s, choice, slot), slot), choice)


def test_a_subband_or_silence() -> None:
    """One action for each sub-band at full power, and one that is heard nowhere."""
    s = replace(scenario(clients=4, bands=3), binary_power=True)
    assert s.actions == 4
    action = decode_action(s, torch.tensor([[0, 1, 2, 3]]))
    assert action.band[0, :3].tolist() == [0, 1, 2]
    assert action.level.tolist() == [[s.full_level] * 3 + [s.silent_level]]
    hopping = decode_action(replace(s, hop_subbands=True), torch.tensor([[0, 1, 2, 3]]), 2)
    assert hopping.band[0, :3].tolist() == [2, 0, 1]
    assert torch.equal(hopping.level, action.level)
    air = even_air(s)
    _, result = play_slot(s, start_round(s, 1), air, action)
    alone = s.bandwidth_hz * math.log2(101)
    torch.testing.assert_close(result.rate_bps, torch.tensor([[alone, alone, alone, 0.0]]))


def test_an_observation_number_by_number() -> None:
    s = scenario(clients=2, bands=2, slots=10)
    round_ = random_round(s, 1, seed=3)._replace(number=torch.tensor([30.0]))
    progress = Progress(torch.tensor([[1e5, 4e5]]))
    found = observe(s, round_, progress, slot=4)[0]
    for n in range(2):
        snr_db = 10 * torch.log10(round_.alpha[0] * s.full_power_w / s.noise_w)
        fading_db = 10 * torch.log10(round_.fading[0, 4, n])
        deviation = math.log10(float(round_.inner[0, n, n]))
        wanted = [
            *((snr_db - 15) / 15).tolist(),
            *(fading_db / 10).tolist(),
            float(progress.remaining_bits[0, n]) / s.payload_bits,
            0.6,  # 6 of 10 slots left
            deviation / 4,
            0.3,  # round 30 of 100
        ]
        torch.testing.assert_close(found[n], torch.tensor(wanted), atol=1e-5, rtol=1e-5)


def test_the_state_number_by_number() -> None:
    s = scenario(clients=2, bands=2, slots=10)
    round_ = random_round(s, 1, seed=3)._replace(number=torch.tensor([30.0]))
    progress = Progress(torch.tensor([[1e5, 4e5]]))
    snr_db = 10 * torch.log10(round_.alpha[0] * s.full_power_w / s.noise_w)
    fading_db = 10 * torch.log10(round_.fading[0, 4])
    wanted = [
        *((snr_db - 15) / 15).tolist(),
        *(fading_db / 10).flatten().tolist(),
        0.25,
        1.0,
        0.6,  # 6 of 10 slots left
        *(math.log10(float(round_.inner[0, n, n])) / 4 for n in range(2)),
        0.3,  # round 30 of 100
    ]
    found = global_state(s, round_, progress, slot=4)[0]
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-5, rtol=1e-5)


def test_hidden_observations_are_one() -> None:
    config = load_config("ring", ["allocation.hide=[gradient, fading]", "radio.slots=3"])
    s = scenario_from_config(config, 4e5)
    round_ = random_round(s, 2, seed=0)
    found = observe(s, round_, start_round(s, 2), 1)
    assert bool((found[..., 10:14] == 1).all())
    assert bool((found[..., 16] == 1).all())
    state = global_state(s, round_, start_round(s, 2), 1)  # nor does the mixer see them
    fading, deviation = state[:, 10:50], state[:, 61:71]
    assert bool((fading == 1).all())
    assert bool((deviation == 1).all())


def test_a_server_that_remembers_misses_the_absent() -> None:
    """The convergence part falls with |sum of d_n over the absent|^2, and starts at 0."""
    s = replace(scenario(3, 2), remembers=True)
    vectors = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
    inner = (vectors @ vectors.T)[None]
    scale = inner[0].diagonal().mean()

    def bias(absent: list[int]) -> float:
        return float(vectors[absent].sum(0).square().sum() / scale)

    for delivered in ([], [1], [0, 2], [0, 1, 2]):
        absent = [n for n in range(3) if n not in delivered]
        member = torch.tensor([[n in delivered for n in range(3)]])
        wanted = s.reward.delivered * len(delivered)
        wanted += s.reward.deviation * (bias([0, 1, 2]) - bias(absent))
        assert math.isclose(float(round_reward(s, inner, member)), wanted, abs_tol=1e-5)


@pytest.mark.parametrize("payload", [9_932_960.0, 1e10, 1e12, 9e15])
def test_no_bit_of_a_large_payload_is_lost(payload: float) -> None:
    """What was sent is what the rates of all slots add up to, here in float64."""
    s = replace(scenario(slots=250), payload_bits=payload)
    round_, action = random_round(s, 2, seed=3), Action(*torch.zeros(2, 2, s.clients).long())
    action.band.copy_(torch.arange(s.clients) % s.bands)
    outcome = play_round(_Always(action), s, round_, torch.arange(2), record=True)
    rates = outcome.history.rate_bps.double() * s.slot_s  # [slot, episode, client]
    unfinished = ~outcome.delivered
    assert unfinished.any()
    assert torch.allclose(outcome.bits[unfinished].double(), rates.sum(0)[unfinished], rtol=1e-5)
    if payload <= 2**24:
        assert start_round(s, 1).remaining_bits.dtype == torch.float32


class _Always:
    name, scope = "always", "local"

    def __init__(self, action: Action) -> None:
        self.action = action

    def begin(self, view: object) -> None:
        return None

    def act(self, view: object, memory: object) -> Action:
        return self.action


def test_a_rate_is_worth_no_more_than_a_payload() -> None:
    """A payload of one bit: whoever sends finishes, and C of them are worth 1, not 144,598."""
    s = replace(scenario(), payload_bits=1.0)
    s = replace(s, reward=s.reward._replace(convergence=0.0, rate=1.0))
    round_, before = random_round(s, 2, seed=3), start_round(s, 2)
    action = Action(*torch.zeros(2, 2, s.clients).long())
    after, result = play_slot(s, before, slot_air(s, round_, 0), action)
    assert after.finished.all()
    reward = slot_reward(s, normalised_inner(round_.inner), before, after, result)
    assert torch.allclose(reward, torch.tensor(s.clients / s.bands))
