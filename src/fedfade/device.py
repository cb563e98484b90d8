"""The device a run computes on, and how many threads of the CPU."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from fedfade.config import Precision
from fedfade.errors import UserError
from fedfade.storage import read_bytes


def pick_device(wanted: str) -> torch.device:
    """The device `run.device` asks for.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("run.device = 'cuda' is not allowed: there is no CUDA device here.")
    cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def spare_bytes(device: torch.device, share: float, on_cpu: int) -> int:
    """Memory a batch may take: a share of what is free on a GPU, a fixed amount on the CPU.

    >>> spare_bytes(torch.device("cpu"), 0.1, on_cpu=2**20)
    1048576
    """
    if device.type != "cuda":
        return on_cpu
    free, _ = torch.cuda.mem_get_info(device)
    # PyTorch keeps what it once had; to the driver that is not free, to us it is.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(share * (free + kept))


_WATCHED_S = 0.1
_MAX_BYTES = 2**20  # of what the system says about itself


def usable_cores() -> int:
    """Cores this process may use: those it is bound to, no more than its control group is paid."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(UserError, ValueError):
        quota, period = read_bytes("/sys/fs/cgroup/cpu.max", _MAX_BYTES).split()
        return max(1, min(bound or 1, math.ceil(int(quota) / int(period))))  # "max": no quota
    return bound or 1


def free_cores() -> int:
    """Usable cores that nobody else keeps busy now, at least one: threads that wait for a core
    make all others wait, and one thread is ten times faster than two on a busy machine."""
    cores = usable_cores()
    if cores == 1 or not (before := _idle_s()):
        return cores
    time.sleep(_WATCHED_S)
    each = sorted((b - a for a, b in zip(before, _idle_s(), strict=False)), reverse=True)
    return max(1, min(cores, round(sum(each[:cores]) / _WATCHED_S)))


def _idle_s() -> list[float]:
    """Seconds each core has been idle since the machine started; nothing where nobody says."""
    with suppress(UserError, ValueError, IndexError):
        lines = read_bytes("/proc/stat", _MAX_BYTES).decode().splitlines()
        ticks = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
        return [(int(own[4]) + int(own[5])) / os.sysconf("SC_CLK_TCK") for own in ticks]
    return []


def use_threads(wanted: int | None) -> None:
    """Compute on so many threads; if nobody says how many, here or by OMP_NUM_THREADS, on as many
    as there are free cores; numbers are the same with one thread and two."""
    if wanted is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(wanted or free_cores())


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Compute on so many threads, and then on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


one_thread = partial(on_threads, 1)
"""For tensors so small that sharing them costs 10x, and sums that must not depend on it."""


@contextmanager
def matrix_products(precision: Precision) -> Iterator[None]:
    """Arithmetic of float32 matrix products on CUDA: exact, or TensorFloat-32 for speed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
