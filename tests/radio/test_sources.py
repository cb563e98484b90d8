"""The fading seam: built-in sources, the page's example, and sources that do it wrong."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfade.config import CellConfig, RadioConfig, load_config
from fedfade.errors import UserError
from fedfade.radio import Cell, Channel, LargeScale, gain_statistics
from fedfade.randomness import uniform
from fedfade.seams import FADING

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-fading.md"
CELL = CellConfig()


@pytest.fixture
def my_fading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of the page, in the working folder."""
    (code,) = (
        text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if "class Nakagami" in text
    )
    (tmp_path / "my_fading.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_fading", raising=False)
    return tmp_path


def drawn(radio: RadioConfig, seeds: list[int], rounds: list[int], episodes: list[int]) -> Any:
    trajectory = Cell(CELL, radio, 3).trajectory(seeds, rounds=4)
    return Channel(radio, CELL, 3).small_scale_gains(seeds, rounds, episodes, trajectory)


def test_the_page_draws_nakagami_fading(my_fading: Path, fedfade: Callable[..., Any]) -> None:
    """Power of variance 1 / m; 200 drops of 1000 values: error about 0.003."""
    words = ("--set", "radio.source=my_fading:Nakagami", "--out", my_fading / "g.npz")
    answer = fedfade("channel", "sample", "--drops", 200, *words)
    assert answer.code == 0, answer.err
    gain = np.load(my_fading / "g.npz")["small_scale_gain"]
    assert gain.shape == (200, 250, 4)
    assert gain.mean() == pytest.approx(1.0, abs=0.01)
    assert gain.var() == pytest.approx(1 / 3, abs=0.01)
    found = gain_statistics(gain)
    correlations = [*found.autocorrelation.values(), *found.band_correlation.values()]
    assert max(map(abs, correlations)) < 0.02


def test_a_users_source_does_not_depend_on_the_batch(my_fading: Path) -> None:
    radio = RadioConfig(source="my_fading:Nakagami", slots=20)
    many = drawn(radio, [0, 1], [0, 2, 3], [0, 1, 2, 3, 4])
    assert many.shape == (2, 3, 5, 20, 3, 4)
    assert torch.equal(drawn(radio, [1], [2], [3])[0, 0, 0], many[1, 1, 3])
    assert len(many.unique()) > 0.99 * many.numel()


def test_a_comparison_under_a_users_source(my_fading: Path, fedfade: Callable[..., Any]) -> None:
    answer = fedfade(
        "compare", "quickstart", "--seeds", 1, "--rounds", 1, "--policies", "random",
        "--set", "radio.source=my_fading:Nakagami", "--out", my_fading / "run",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "my_fading:Nakagami" in (my_fading / "run" / "config.yaml").read_text()


def test_an_entry_point_is_a_name(my_fading: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("nakagami", "my_fading:Nakagami", FADING.group)
    monkeypatch.setattr("fedfade.seams.entries", lambda group: [entry])
    monkeypatch.syspath_prepend(str(my_fading))
    radio = load_config("paper", ["radio.source=nakagami", "radio.slots=5"]).radio
    assert drawn(radio, [0], [0], [0]).shape == (1, 1, 1, 5, 3, 4)
    with pytest.raises(
        UserError, match="one of clustered, rayleigh, gamma, traces, nakagami, or module"
    ):
        load_config("paper", ["radio.source=rice"])


def test_where_clients_are_is_told_in_the_shape_of_the_keys() -> None:
    """A source that answers with what it was told about position and gain."""
    radio = RadioConfig(source="tests.radio.test_sources:Telling", slots=2, subbands=2)
    trajectory = Cell(CELL, radio, 3).trajectory([4, 5], rounds=4)
    gain = Channel(radio, CELL, 3).small_scale_gains([4, 5], [1, 3], [0, 1], trajectory)
    for run, number, episode in ((0, 0, 0), (1, 0, 1), (1, 1, 0)):
        at = trajectory.at([1, 3][number])
        told = gain[run, number, episode]  # [slot, client, band]
        assert torch.equal(told[0], (-at.gain_db[run])[:, None].expand(3, 2))
        assert torch.equal(told[1], at.position[run].abs())


class Telling:
    def __init__(self, *given: object) -> None:
        assert [type(one) for one in given[:3]] == [RadioConfig, CellConfig, int]

    def gains(self, keys: torch.Tensor, at: LargeScale) -> torch.Tensor:
        assert keys.shape == at.distance_m.shape
        return torch.stack([(-at.gain_db)[..., None].expand(-1, -1, 2), at.position.abs()], dim=-2)


class Wrong:
    """A source whose gains are spoiled in one way."""

    def __init__(self, radio: RadioConfig, *_: object) -> None:
        self.shape = (radio.slots, radio.subbands)

    def gains(self, keys: torch.Tensor, at: LargeScale) -> Any:
        return self.spoil(uniform(keys, self.shape))

    def spoil(self, gain: torch.Tensor) -> Any:
        raise NotImplementedError


def spoiled(change: Callable[[torch.Tensor], object]) -> type[Wrong]:
    return type("Spoiled", (Wrong,), {"spoil": lambda self, gain: change(gain)})


def put(gain: torch.Tensor, value: float) -> torch.Tensor:
    gain[0, 1, 2, 1] = value
    return gain


transposed = spoiled(lambda gain: gain.transpose(-1, -2))
short = spoiled(lambda gain: gain[..., :2, :])
flat = spoiled(lambda gain: gain.flatten(0, 1))
double = spoiled(lambda gain: gain.double())
imaginary = spoiled(lambda gain: gain * 1j)
elsewhere = spoiled(lambda gain: gain.to("meta"))
array = spoiled(lambda gain: gain.numpy())
nothing = spoiled(lambda gain: None)
nan = spoiled(lambda gain: put(gain, float("nan")))
infinite = spoiled(lambda gain: put(gain, float("inf")))
negative = spoiled(lambda gain: put(gain, -0.1))
dividing = spoiled(lambda gain: 1 // 0)
unmakable = spoiled(lambda gain: gain)
unmakable.__init__ = lambda self: None  # type: ignore[assignment]


class Silent:
    def __init__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("transposed", r"returned torch.float32 \[1, 3, 4, 9\] on cpu: .* \[1, 3, 9, 4\] on cpu"),
        ("short", r"returned torch.float32 \[1, 3, 2, 4\]"),
        ("flat", r"returned torch.float32 \[3, 9, 4\] on cpu: gains \[episode, client, slot, ban"),
        ("double", r"returned torch.float64 .* must be torch.float32 \[1, 3, 9, 4\] on cpu"),
        ("imaginary", "returned torch.complex64"),
        ("elsewhere", r".* \[1, 3, 9, 4\] on meta: gains .* on cpu"),
        ("array", "returned ndarray: gains"),
        ("nothing", "returned NoneType: gains"),
        ("nan", "returned gains that are negative, NaN or infinite"),
        ("infinite", "returned gains that are negative, NaN or infinite"),
        ("negative", "returned gains that are negative, NaN or infinite"),
        ("dividing", "raised ZeroDivisionError in gains: integer division"),
    ],
)
def test_wrong_gains_end_in_a_sentence(name: str, sentence: str) -> None:
    source = f"tests.radio.test_sources:{name}"
    with pytest.raises(UserError, match=f"^radio.source = '{source}' {sentence}"):
        drawn(RadioConfig(source=source, slots=9), [0], [0], [0])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("tests.radio.test_sources:Missing", "radio.source = .* cannot be loaded: .*'Missing'"),
        ("no_such_module:Source", "radio.source = .* cannot be loaded: No module named"),
        ("tests.radio.test_sources:", r"radio.source = .* module:attribute"),
        ("tests.radio.test_sources:unmakable", "source .* cannot be made: .*positional argument"),
        ("tests.radio.test_sources:Silent", "source .* has no 'gains': fedfade.radio.FadingSource"),
    ],
)
def test_what_is_no_source_is_refused(source: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Channel(RadioConfig(source=source), CELL, clients=3)


def test_a_users_source_takes_no_traces() -> None:
    fields = ["radio.source=my_fading:Nakagami", "radio.traces=gains.npz"]
    with pytest.raises(UserError, match=r"null unless radio.source is 'traces'"):
        load_config("paper", fields)
