"""A policy that takes its time and leaves a trace of every point that is begun."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from fedfade.allocation import Action, View, full_power


class Slow:
    """Everybody on sub-band 0; every round it begins is a line in the file $FEDFADE_TRACE."""

    name, scope, gradient_aware = "slow", "local", True

    def begin(self, view: View) -> None:
        with Path(os.environ["FEDFADE_TRACE"]).open("a") as file:
            # Who computes it, and which round of which seed: every seed has an SNR of its own.
            who = f"{os.getpid()} {os.getppid()}"
            file.write(f"{who} {int(view.round_index[0])} {float(view.snr[0, 0]):.6e}\n")
        time.sleep(float(os.environ.get("FEDFADE_PAUSE_S", "0")))

    def act(self, view: View, memory: None) -> Action:
        return full_power(view, torch.zeros_like(view.active, dtype=torch.int64))
