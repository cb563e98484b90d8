"""Clocks, and what the figures were measured with."""

import os
import platform
import re
import time
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy
import torch
from torch.utils import benchmark

from fedfade import __version__

Call = Callable[[], object]
Figures = dict[str, object]

wall_clock = benchmark.timer
"""Seconds, once the device has finished."""


def machine() -> Figures:
    """Versions, threads, processor."""
    about = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", about.read_text()) if about.exists() else []
    return {
        "fedfade": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "threads": torch.get_num_threads(),
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def seconds(call: Call, clock: Callable[[], float] = wall_clock) -> float:
    """Seconds of one call."""
    return timeit.timeit(call, timer=clock, number=1)


def median_ms(
    call: Call, repeats: int, calls: int = 1, clock: Callable[[], float] = wall_clock
) -> float:
    """Median milliseconds of a call over stretches of `calls`, after one call to warm up."""
    call()
    return 1e3 / calls * median(timeit.repeat(call, timer=clock, repeat=repeats, number=calls))


cpu_seconds = partial(seconds, clock=time.process_time)
median_cpu_ms = partial(median_ms, clock=time.process_time)
"""CPU time of a call, whatever else the machine does."""


def in_turns(calls: Sequence[Call], repeats: int) -> list[tuple[list[float], list[float]]]:
    """Wall and CPU seconds of every repeat of each call; the first turn warms up. Calls take turns,
    so that a busy machine disturbs all alike."""
    spent: list[tuple[list[float], list[float]]] = [([], []) for _ in calls]
    for _ in range(repeats + 1):
        for call, (wall, cpu) in zip(calls, spent, strict=True):
            begin = time.process_time()
            wall.append(seconds(call))
            cpu.append(time.process_time() - begin)
    return [(wall[1:], cpu[1:]) for wall, cpu in spent]


without_compiling = partial(patch.dict, os.environ, FEDFADE_COMPILE="0")
"""Work is recorded but its small operations are not fused: half a minute less for each size."""
