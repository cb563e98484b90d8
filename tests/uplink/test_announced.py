"""Gains that are announced wrongly: what arrives stays what it is, what is planned does not."""

import pytest
import torch
from torch import Tensor

from fedfade.allocation import load_policy, play_round
from fedfade.config import load_config
from fedfade.experiments.uploads import Uplink
from fedfade.uplink import Round, Rounds, gradient_source, mean_snr

SMALL = ("run.seeds=40", "run.rounds=5", "qmix.gradients=synthetic", "radio.source=gamma")


def uplink(preset: str, *changes: str) -> Uplink:
    config = load_config(preset, [*SMALL, *changes])
    return Uplink(config, 9_932_960, torch.device("cpu"))


def received(round_: Round) -> Tensor:
    """What a base station measures: [episode, slot, client, band]."""
    return round_.alpha[:, None, :, None] * round_.fading


def uploads(one: Uplink, policy: str) -> float:
    keys = torch.arange(40 * 5)
    outcome = play_round(load_policy(policy), one.scenario, one.rounds(range(5)), keys)
    return float(outcome.delivered.sum(-1).float().mean())


def test_what_arrives_is_what_it_was() -> None:
    plain, wrong = uplink("paper"), uplink("paper", "cell.announced_error_db=3")
    real, told = (one.rounds(range(5)) for one in (plain, wrong))
    torch.testing.assert_close(received(told), received(real), rtol=1e-5, atol=0)
    for policy in ("max-sum-rate", "random"):  # which ask for no announced gain
        assert uploads(wrong, policy) == pytest.approx(uploads(plain, policy), abs=0.01)


def test_errors_are_drawn_by_client_and_round() -> None:
    """Normal, of the deviation asked for, about what all are off by."""
    plain = uplink("paper")
    wrong = uplink("paper", "cell.announced_error_db=3", "cell.announced_above_db=-1.5")
    real, told = (one.rounds(range(5)).alpha.log10() * 10 for one in (plain, wrong))
    off = (told - real).view(40, 5, 10)  # [seed, round, client]
    # 2000 draws: the mean within 3 / sqrt(2000) = 0.07, the deviation within 0.05; five times that
    assert float(off.mean()) == pytest.approx(-1.5, abs=0.35)
    assert float(off.std()) == pytest.approx(3.0, abs=0.25)
    for axis in (1, 2):  # no round and no client says anything of the next
        first, second = (
            off.narrow(axis, 0, off.shape[axis] - 1),
            off.narrow(axis, 1, off.shape[axis] - 1),
        )
        found = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
        assert abs(float(found)) < 0.12  # 1600 pairs: five times 1 / 40


def test_one_round_is_announced_alike_alone_and_in_training() -> None:
    changes = [*SMALL, "cell.announced_error_db=2", "run.restart=same", "run.repeat_fading=true"]
    config = load_config("paper", changes)
    compared = Uplink(config, 9_932_960, torch.device("cpu"))
    trained = Rounds(config, gradient_source(config), 20, [config.run.seed])
    for number in range(2):
        ours, theirs = trained.round(number), compared.round(number)
        assert torch.equal(ours.alpha[0], theirs.alpha[0])
        assert torch.equal(ours.fading[0], theirs.fading[0])
    together, alone = compared.rounds(range(2)), compared.rounds([1])
    assert torch.equal(together.alpha[1::2], alone.alpha)


def test_all_are_told_the_announced_gain() -> None:
    above = uplink("ring", "cell.announced_above_db=2")
    snr = 10 * mean_snr(above.scenario, above.rounds([0])).log10()
    torch.testing.assert_close(snr, torch.full_like(snr, 22.0), rtol=0, atol=1e-3)


def test_a_plan_needs_a_margin() -> None:
    """On a ring, where all are alike: told of 2 dB too much, all six of a plan miss the deadline;
    a margin of as much mends it."""
    exact, above = uplink("ring", "cell.ring_snr_db=18"), "cell.announced_above_db=2"
    plan = "wrap-around-schedule"
    assert uploads(uplink("ring", "cell.ring_snr_db=18", above), plan) < 1.0
    assert uploads(exact, plan) > 4.5
    careful = uplink("ring", "cell.announced_above_db=-1")
    assert 4.5 < uploads(careful, plan) < uploads(uplink("ring"), plan) + 0.05
