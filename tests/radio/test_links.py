"""The link seam: Shannon, capped, the page's example, and links that do it wrong."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfade.allocation import BUILT_IN, genie_bound, load_policy, play_round
from fedfade.config import RadioConfig, load_config
from fedfade.errors import UserError
from fedfade.radio import load_link, rate_bps
from fedfade.uplink import Action, play_slot, slot_air, start_round

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-link.md"
NOTHING = torch.zeros(1, 4, 0)
RATIO = torch.tensor([[0.0, 0.1, 3.0, 1e6]])


@pytest.fixture
def my_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of the page, in the working folder."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "my_link.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_link", raising=False)
    return tmp_path


def test_shannon_is_the_papers_rate() -> None:
    link = load_link(RadioConfig())
    _, rate = link.send(NOTHING, RATIO, RATIO, NOTHING)
    assert torch.equal(rate, rate_bps(RATIO, 5e6))
    assert torch.equal(link.efficiency(RATIO), torch.log2(1.0 + RATIO))


def test_capped_by_hand() -> None:
    changes = ["radio.link=capped", "radio.link_overhead=0.25", "radio.capped.gap_db=3"]
    link = load_link(load_config("paper", [*changes, "radio.capped.ceiling_bps_hz=4"]).radio)
    _, rate = link.send(NOTHING, RATIO, RATIO, NOTHING)
    wanted = [min(4.0, math.log2(1 + r / 10**0.3)) * 0.75 for r in RATIO[0].tolist()]
    assert link.efficiency(RATIO)[0].tolist() == pytest.approx(wanted, rel=1e-5)
    assert rate[0].tolist() == pytest.approx([5e6 * bits for bits in wanted], rel=1e-5)


@pytest.mark.parametrize("link", ["capped", "nr", "my_link:OneScheme"])
def test_every_policy_plays_under_every_link(link: str, my_link: Path, make_round: Any) -> None:
    """Nobody gets more than the link carries at most; a strong client delivers something."""
    changes = (f"radio.link={link}", "learning.payload_bits=4e5", "radio.slots=60")
    scenario, round_ = make_round(18.0, 6.0, overrides=changes)
    most = float(scenario.link.efficiency(torch.tensor([1e9]))) * scenario.bandwidth_hz
    for name in BUILT_IN:
        outcome = play_round(load_policy(name), scenario, round_, torch.arange(3), record=True)
        assert outcome.history is not None
        assert float(outcome.history.rate_bps.max()) <= most * (1 + 1e-5), name
        assert float(outcome.bits.sum()) > 0, name


def test_max_sum_rate_matches_by_the_links_rates(make_round: Any) -> None:
    """Above the ceiling nobody gains, so the weaker ones get the better sub-bands."""
    scenario, round_ = make_round(
        30.0, 0.0, 1, overrides=("radio.link=capped", "learning.clients=2", "radio.subbands=2")
    )
    strong, weak = (
        1e4 * scenario.noise_w / scenario.full_power_w,
        5 * scenario.noise_w / scenario.full_power_w,
    )
    round_ = round_._replace(alpha=torch.tensor([[strong, weak]]))
    fading = torch.ones_like(round_.fading)
    fading[:, :, :, 1] = 2.0  # the second sub-band is better for both
    round_ = round_._replace(fading=fading)
    outcome = play_round(
        load_policy("max-sum-rate"), scenario, round_, torch.arange(1), record=True
    )
    assert outcome.history is not None
    assert outcome.history.band[0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("link", ["capped", "nr"])
def test_the_genie_knows_the_ceiling(link: str, make_round: Any) -> None:
    """No policy delivers more than it says, and it says no more than the ceiling lets through, up
    to an upload that a bad fit of its prices may add."""
    scenario, round_ = make_round(32.0, 3.0, overrides=(f"radio.link={link}",))
    bound = genie_bound(scenario, round_)
    slots = 9_932_960 / (5.5547 * scenario.bandwidth_hz * scenario.slot_s)
    assert float(bound.max()) <= 1.03 * scenario.bands * scenario.slots / slots + 1
    assert float(genie_bound(*make_round(32.0, 3.0)).min()) > float(bound.max()) + 2
    for name in BUILT_IN:
        delivered = play_round(load_policy(name), scenario, round_, torch.arange(3)).delivered
        assert bool((delivered.sum(-1) <= bound).all()), name


def test_the_genie_of_a_link_that_carries_nothing(make_round: Any) -> None:
    """With such a gap no SINR of the tables is enough."""
    scenario, round_ = make_round(20.0, overrides=("radio.link=nr", "radio.nr.gap_db=60"))
    assert not scenario.link.efficiency(torch.full((1,), 1e30)).any()
    assert genie_bound(scenario, round_).tolist() == [0.0] * len(round_.alpha)


def test_the_page(my_link: Path, fedfade: Callable[..., Any]) -> None:
    words = ("--set", "radio.link=my_link:OneScheme", "--seeds", 1, "--rounds", 1, "--out", "run")
    answer = fedfade("compare", "small-cell", "--policies", "random,max-sum-rate", *words)
    assert answer.code == 0, answer.err
    link = load_link(load_config("paper", ["radio.link=my_link:OneScheme"]).radio)
    assert link.efficiency(torch.tensor([2.9, 3.1])).tolist() == [0.0, 2.0]


def test_a_picture_of_a_link(my_link: Path, fedfade: Callable[..., Any]) -> None:
    for words in ([], ["--set", "radio.link=my_link:OneScheme"]):
        answer = fedfade("channel", "link", "--out", "link.png", *words)
        assert answer.code == 0, answer.err
        assert Path("link.png").stat().st_size > 10_000
        row = next(line.split() for line in answer.out.splitlines() if line.split()[0] == "20")
        assert row[1:3] == ["6.66", "4.76"]  # Shannon, capped
        assert row[3] == ("2.00" if words else "4.76")
    wrong = fedfade("channel", "link", "--out", "link.txt")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)


_SEND = "def send(self, state, ratio, known, chance):"
WRONG = {
    f"{_SEND} return state, ratio.double()": "rate torch.float64",
    f"{_SEND} return state, ratio - 1": "negative, NaN or inf",
    f"{_SEND} return ratio": "it must answer \\(state, rate\\)",
    f"{_SEND} return ratio, ratio": "a state that is not shaped",
    f"{_SEND} return 1 / 0": "raised ZeroDivisionError in send",
    "": "has no 'send'",
}


@pytest.mark.parametrize(("method", "sentence"), WRONG.items())
def test_a_link_that_does_it_wrong(
    method: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_round: Any
) -> None:
    lines = ["class Own:", "  def __init__(self, radio, device): pass"]
    lines += ["  def efficiency(self, ratio): return ratio", f"  {method}"]
    (tmp_path / "wrong_link.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_link", raising=False)

    def play() -> None:
        scenario, round_ = make_round(overrides=("radio.link=wrong_link:Own",))
        play_round(load_policy("random"), scenario, round_, torch.arange(3))

    with pytest.raises(UserError, match=sentence):
        play()


def test_link_adaptation_knows_what_was_some_slots_ago(make_round: Any) -> None:
    """A round begins with a measurement; an int and a tensor for the slot are the same."""
    changes = ("radio.link=nr", "radio.link_delay_slots=2", "cell.interference_cells=1")
    scenario, round_ = make_round(overrides=changes)
    round_ = round_._replace(other_cells_w=round_.fading[:, :, 0] * scenario.noise_w)
    for slot in (0, 1, 2, 7):
        for place in (slot, torch.tensor([slot])):
            (gain, noise_w, _), _, chance, _ = slot_air(scenario, round_, place)
            for air, seen in enumerate((slot, max(slot - 2, 0))):
                assert torch.equal(gain[air], round_.alpha[:, :, None] * round_.fading[:, seen])
                assert torch.equal(noise_w[air], scenario.noise_w + round_.other_cells_w[:, seen])
            assert torch.equal(chance, round_.chance[:, slot])
    one = slot_air(replace(scenario, link_delay_slots=0), round_, 3).air
    assert torch.equal(one.gain, round_.alpha[:, :, None] * round_.fading[:, 3])


def test_interference_counts_in_both_sinrs(make_round: Any) -> None:
    """A neighbour on the sub-band lowers the scheme that is picked, so its block gets through."""
    changes = ("radio.link=nr", "radio.nr.feedback=expected", "learning.clients=2")
    scenario, round_ = make_round(15.0, 0.0, 1, overrides=changes)
    round_ = round_._replace(fading=torch.ones_like(round_.fading))
    full = torch.full((1, 2), scenario.full_level)
    rates = []
    for band in ([0, 1], [0, 0]):
        action = Action(torch.tensor([band]), full)
        progress = start_round(scenario, 1)
        for slot in range(3):
            progress, result = play_slot(
                scenario, progress, slot_air(scenario, round_, slot), action
            )
        rates.append(result.rate_bps / scenario.bandwidth_hz)
    alone, shared = rates
    curve = scenario.link.efficiency(torch.tensor([10**1.5, 10**1.5 / (1 + 10**1.5)]))
    assert alone[0].tolist() == pytest.approx([float(curve[0])] * 2, rel=0.1)
    assert shared[0].tolist() == pytest.approx([float(curve[1])] * 2, rel=0.1)
