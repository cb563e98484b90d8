"""Benchmarks: each module measures one thing and returns plain figures."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["machine"]


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
