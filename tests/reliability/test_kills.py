"""A few kills of each command; `make kill` does fifty of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.reliability.kills import SCENARIOS


def test_killed_runs_end_in_the_same_bits() -> None:
    """In a process of its own, because it forks; another seed every day would hide a failure."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.reliability.kills", "--kills", "3", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    assert {line["command"]: line["kills"] for line in found} == dict.fromkeys(SCENARIOS, 3)
