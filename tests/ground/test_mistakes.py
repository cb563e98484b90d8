"""Mistakes on the command line end like all others: one sentence, exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MISTAKES = [
    ("train ring --seeds x", "--seeds = 'x' is not allowed: it must be a whole number from 1 to"),
    ("channel sample --out g.npz --drops 0", "--drops = 0 is not allowed: it must be a whole"),
    ("partition --alpha y", "--alpha = 'y' is not allowed: it must be a number."),
    ("channel sample", "fedfade channel sample needs --out: the .npz to write."),
    ("compare", "fedfade compare needs PRESET: heavy, mappo-hold, paper,"),
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


STARTS = [
    (KeyboardInterrupt(), 130, ""),
    (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 2, "too little mem"),
    (SystemError("error return without exception set"), 2, "too little memory for fedfade presets"),
]


@pytest.mark.parametrize(("error", "code", "words"), STARTS)
def test_what_ends_the_imports(error, code: int, words: str, fedfade, monkeypatch) -> None:
    class Ending:
        def find_spec(self, name: str, *others: object) -> None:
            if name == "fedfade.app":
                raise error

    monkeypatch.delitem(sys.modules, "fedfade.app")
    monkeypatch.setattr("sys.meta_path", [Ending(), *sys.meta_path])
    answer = fedfade("presets")
    assert answer.code == code
    assert words in answer.err
    assert answer.err.count("\n") <= 1


def test_a_name_that_is_no_text(fedfade) -> None:
    answer = fedfade("channel", "sample", "--drops", 1, "--out", os.fsdecode(b"g\xff.npz"))
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "error: 'g\\udcff.npz' is not allowed: names must be UTF-8 text.\n"


def test_a_shell_with_odd_wishes(tmp_path: Path) -> None:
    """No such windows, warnings as errors, and nowhere to complain: none is the run's business."""
    wishes = {"MPLBACKEND": "nonsense", "PYTHONWARNINGS": "error"}
    picture = tmp_path / "clients.png"
    words = ["partition", "--data", "digits", "--clients", "2", "--figure", str(picture)]
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "fedfade", *words],
            env=os.environ | wishes, stdout=subprocess.PIPE, stderr=full, check=False,
        )  # fmt: skip
        refused = subprocess.run(
            [sys.executable, "-m", "fedfade", "no-such"], stderr=full, check=False
        )
    assert answer.returncode == 0
    assert picture.exists()
    assert refused.returncode == 2
