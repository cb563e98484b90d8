"""Mistakes on the command line end like all others: one sentence, exit code 2."""

from __future__ import annotations

import pytest

MISTAKES = [
    ("train ring --seeds x", "--seeds = 'x' is not allowed: it must be a whole number from 1 to"),
    ("channel sample --out g.npz --drops 0", "--drops = 0 is not allowed: it must be a whole"),
    ("partition --alpha y", "--alpha = 'y' is not allowed: it must be a number."),
    ("channel sample", "fedfade channel sample needs --out: the .npz to write."),
    ("compare", "fedfade compare needs PRESET: preset name or path of a .yaml file."),
    ("compare ring --sedes 3", "--sedes is not a known option: did you mean --seeds? fedfade comp"),
    ("channel smaple", "smaple is not a known command: did you mean sample? fedfade channel has"),
    ("channel sample --out", "option '--out' requires an argument."),
    ("presets all", "got unexpected extra argument (all): fedfade presets --help shows"),
]


@pytest.mark.parametrize(("line", "sentence"), MISTAKES)
def test_a_mistake_in_an_option_is_one_sentence(line: str, sentence: str, fedfade) -> None:
    answer = fedfade(*line.split())
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith(f"error: {sentence}")
    assert answer.err.endswith(".\n")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(("line", "code"), [("", 2), ("channel", 2), ("channel --help", 0)])
def test_help_is_still_a_page(line: str, code: int, fedfade) -> None:
    answer = fedfade(*line.split())
    assert answer.code == code
    assert "Usage: fedfade" in answer.out + answer.err
    assert "error:" not in answer.err


def test_a_command_that_ends_well_ends_with_0(fedfade) -> None:
    assert fedfade("--version").code == 0
    assert fedfade("presets").code == 0
