"""The progress bar: what it leaves on the screen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedfade.commands.options import time_left


def test_a_bar_leaves_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with time_left("rounds", 3) as tell:
        tell(1, "uploads")
        tell(3, "done")
    assert "3/3 rounds" in capsys.readouterr().err
    with pytest.raises(ValueError, match="wrong"), time_left("rounds", 3):
        raise ValueError("wrong")
    assert capsys.readouterr().err == ""


_ON_A_TERMINAL = """
import os, pty, sys
answer, terminal = pty.openpty()
os.dup2(terminal, 2)
os.environ["TERM"] = "xterm"
from fedfade.commands.options import time_left
with time_left("rounds", 3) as tell:
    if "report" in sys.argv:
        tell(3, "done")
os.write(2, b"THE END")  # a terminal hands over what was written bit by bit
seen = b""
while b"THE END" not in seen:
    seen += os.read(answer, 100_000)
print(seen.decode())
"""


@pytest.mark.parametrize("told", ["report", "silence"])
def test_a_bar_on_a_terminal(told: str) -> None:
    """It spins from the beginning; unless something was reported it is wiped away."""
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_TERMINAL, told], capture_output=True, text=True, check=True
    )
    assert "starting" in done.stdout
    kept = done.stdout.rpartition("\x1b[2K")[2]  # after the last line was wiped
    assert ("3/3" in kept) == (told == "report")
