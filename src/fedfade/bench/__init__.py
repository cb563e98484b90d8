"""Benchmarks: each module measures one thing and returns plain figures."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["machine", "median_cpu_ms", "median_ms", "seconds", "without_compiling"]


def machine() -> dict[str, object]:
    """What the figures were measured with: versions, threads, processor.

    >>> sorted(machine())
    ['cpu', 'cpu_count', 'fedfade', 'gpu', 'numpy', 'python', 'threads', 'torch']
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
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
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


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, until the device has done it."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def median_ms(
    work: Callable[[], object], repeats: int, device: torch.device, times: int = 1
) -> float:
    """Median milliseconds of a call that is made `times` at a stretch, after one to warm up."""

    def stretch() -> None:
        for _ in range(times):
            work()

    work()
    return 1e3 / times * statistics.median(seconds(stretch, device) for _ in range(repeats))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Work is recorded but its small operations are not fused: half a minute less for each size."""
    before = os.environ.get("FEDFADE_COMPILE")
    os.environ["FEDFADE_COMPILE"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDFADE_COMPILE"]
        else:
            os.environ["FEDFADE_COMPILE"] = before
