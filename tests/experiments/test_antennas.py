"""Several antennas and other cells from the channel to uploads: bounds, plans, and what stays."""

import pytest
import torch
from torch import Tensor

from fedfade.allocation import BUILT_IN, Outcome, genie_bound, load_policy, play_round
from fedfade.config import load_config
from fedfade.experiments.uploads import Uplink
from fedfade.uplink import mean_snr, noise_rise_db
from fedfade.uplink.plan import planned_rate

PAYLOAD = 9_932_960.0
SMALL = ["run.seeds=2", "run.rounds=3", "radio.slots=50", "radio.source=gamma"]
FOUR, NEIGHBOURS = "radio.receive_antennas=4", "cell.interference_cells=6"


def uplink(*changes: str, payload: float = PAYLOAD / 5) -> Uplink:
    return Uplink(load_config("paper", [*SMALL, *changes]), payload, torch.device("cpu"))


def played(ours: Uplink, name: str) -> Outcome:
    return play_round(load_policy(name), ours.scenario, ours.rounds([0, 1, 2]), keys(ours, name))


def keys(ours: Uplink, name: str) -> Tensor:
    return ours.keys(name, 0, 1, 2)


def uploads(ours: Uplink, name: str) -> float:
    return float(played(ours, name).delivered.sum(-1).float().mean())


@pytest.mark.parametrize("given", [[], ["radio.receiver=mrc", "cell.interference_activity=0.5"]])
def test_one_antenna_in_a_cell_alone_is_what_it_was(given: list[str]) -> None:
    """Numbers of version 0.1.0, before there were antennas and neighbours."""
    config = load_config("paper", ["run.seeds=2", "run.rounds=2", *given])
    ours = Uplink(config, PAYLOAD, torch.device("cpu"))
    round_ = ours.rounds([1])
    gains = [0.5353029370307922, 1.9341272115707397, 0.3948417901992798]
    assert round_.fading[0, 100, :3, 0].tolist() == pytest.approx(gains, rel=1e-5)
    for name, delivered, rate in (
        ("max-individual-rate", [1, 1], [73257400.0, 63392112.0]),
        ("wrap-around-choice", [5, 3], [99567080.0, 59789236.0]),
        ("max-sum-rate", [4, 1], [119917040.0, 109642528.0]),
    ):
        outcome = play_round(load_policy(name), ours.scenario, round_, ours.keys(name, 1))
        assert outcome.delivered.sum(-1).tolist() == delivered
        assert outcome.sum_rate_bps.tolist() == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    "changes", [[FOUR], [FOUR, "radio.receiver=mrc"], [NEIGHBOURS], [FOUR, NEIGHBOURS]]
)
def test_no_policy_beats_the_genie(changes: list[str]) -> None:
    ours = uplink(*changes)
    bound = genie_bound(ours.scenario, ours.rounds([0, 1, 2]))
    most = torch.zeros_like(bound)
    for name in BUILT_IN:
        most = torch.maximum(most, played(ours, name).delivered.sum(-1).float())
    assert bool((most <= bound).all())
    assert float(most.mean()) > 1.0


def test_antennas_help_and_neighbours_harm_everybody() -> None:
    plain, four, heard = uplink(), uplink(FOUR), uplink(NEIGHBOURS)
    for name in ("random", "wrap-around-choice", "max-sum-rate"):
        assert uploads(heard, name) < uploads(plain, name) < uploads(four, name)
    # Without coordination, MMSE tells apart who meets on a sub-band; maximum ratio does less.
    assert uploads(four, "random") > 1.3 * uploads(uplink(FOUR, "radio.receiver=mrc"), "random")


def test_a_plan_for_two_on_a_sub_band() -> None:
    """With four antennas more is delivered than by one at a time; with one antenna it is the plan
    for one at a time."""
    four = uplink(FOUR, "run.seeds=6", payload=PAYLOAD / 4)
    names = ["wrap-around-schedule", "wrap-around-pairs"]
    one, two = (uploads(four, name) for name in names)
    assert one + 0.3 < two
    rounds, scenario = four.rounds([0, 1, 2]), four.scenario
    policy = load_policy("wrap-around-pairs")
    shown = play_round(policy, scenario, rounds, keys(four, policy.name), record=True).history
    assert shown is not None
    sending = torch.nn.functional.one_hot(shown.band, scenario.bands) * shown.sends[..., None]
    sending = sending * (shown.level != scenario.silent_level)[..., None]
    assert int(sending[0].sum(1).max()) == 2  # before anybody is late
    plain = [played(uplink(), name) for name in names]
    assert torch.equal(plain[0].bits, plain[1].bits)


def test_plans_expect_what_several_antennas_gather() -> None:
    """A client alone on a sub-band sends what the plan says, to a few percent."""
    for changes, sources in ((FOUR, ("gamma", "clustered", "rayleigh")), (NEIGHBOURS, ("gamma",))):
        for source in sources:
            ours = uplink(changes, f"radio.source={source}", "run.seeds=20", "radio.slots=20")
            round_, scenario = ours.rounds([0]), ours.scenario
            snr = round_.alpha[:, None, :, None] * round_.fading * scenario.full_power_w
            others = round_.other_cells_w[:, :, None] if scenario.other_cells else 0.0
            snr = snr / (scenario.noise_w + others)
            sent = torch.log2(1.0 + snr).mean((1, 3))
            planned = planned_rate(scenario, mean_snr(scenario, round_))
            strong = planned > 1.0
            assert float((sent / planned)[strong].mean()) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(("antennas", "gain"), [(1, "average"), (4, "average"), (4, "centre")])
def test_plans_know_how_little_an_array_fades(antennas: int, gain: str) -> None:
    """The shape of the gamma variable that spreads as the clustered channel does, in ln."""
    changes = (f"radio.receive_antennas={antennas}", f"radio.subband_gain={gain}")
    few = ("run.seeds=60", "radio.slots=2", "radio.source=clustered", "radio.slot_s=0.05")
    ours = uplink(*changes, *few)
    fading = ours.rounds([0]).fading.double()
    assert float(fading.mean()) == pytest.approx(antennas, rel=0.05)
    found = float(torch.polygamma(1, torch.tensor(ours.scenario.fading_shape)))
    assert found == pytest.approx(float(fading.log().var()), rel=0.15)


def test_the_announced_level_is_a_mean_in_steps_of_a_tenth_of_a_decibel() -> None:
    ours = uplink(NEIGHBOURS)
    round_ = ours.rounds([0, 1, 2])
    rise = noise_rise_db(ours.scenario, round_)
    level = 10 * torch.log10(1.0 + round_.other_cells_w / ours.scenario.noise_w)
    torch.testing.assert_close(rise, level.mean((1, 2)), atol=0.051, rtol=0)
    torch.testing.assert_close(10 * rise, torch.round(10 * rise), atol=1e-4, rtol=0)
    assert bool((rise > 1.0).all())
    silent = uplink(NEIGHBOURS, "cell.interference_activity=0")
    assert not noise_rise_db(silent.scenario, silent.rounds([0])).any()
    for name in ("random", "max-sum-rate"):  # and what nobody sends changes nothing
        assert torch.equal(played(silent, name).bits, played(uplink(), name).bits)


def test_only_central_policies_see_directions_and_none_before_they_are_measured() -> None:
    seen: list[bool] = []

    class Looking:
        name, scope, gradient_aware = "looking", "central", False
        csi_delay_slots = 2

        def begin(self, view: object) -> None: ...

        def act(self, view, memory: None):  # type: ignore[no-untyped-def]
            seen.append(view.direction is not None)
            assert self.scope == "central" or view.direction is None
            return load_policy("random").act(view, memory)

    policy, ours = Looking(), uplink(FOUR)
    for scope in ("central", "local"):
        policy.scope = scope
        play_round(policy, ours.scenario, ours.rounds([0]), keys(ours, "looking")[::3])
    assert seen == [False] * 2 + [True] * 48 + [False] * 50


def test_the_outlook_counts_antennas_and_neighbours() -> None:
    def slots(*changes: str) -> int:
        return int(uplink(*changes).outlook().partition("about ")[2].partition(" of")[0])

    assert slots(FOUR) < slots() < slots(NEIGHBOURS)
