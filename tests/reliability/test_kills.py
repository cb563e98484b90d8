"""A few kills of each command; `make kill` does fifty of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

KILLS = [("train", 3), ("train-seeds", 3), ("compare", 3), ("sweep", 3)]


@pytest.mark.parametrize(("command", "kills"), KILLS)
def test_killed_runs_end_in_the_same_bits(command: str, kills: int) -> None:
    """In a process of its own, because it forks; another seed every day would hide a failure."""
    words = ["--command", command, "--kills", str(kills), "--seed", "1"]
    answer = subprocess.run(
        [sys.executable, "-m", "tests.reliability.kills", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["kills"] == kills
