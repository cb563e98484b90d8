"""Benchmarks: each module measures one thing and returns plain figures."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["machine", "median_cpu_ms"]


def machine() -> dict[str, object]:
    """What the figures were measured with: versions, threads, processor.

    >>> sorted(machine())
    ['cpu', 'cpu_count', 'fedfade', 'numpy', 'python', 'threads', 'torch']
    """
    import numpy
    import torch

    from fedfade import __version__

    return {
        "fedfade": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "threads": torch.get_num_threads(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def median_cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """Median CPU milliseconds of a call, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)
