"""The device a run computes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedfade.config import Precision
from fedfade.errors import UserError


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


@contextmanager
def one_thread() -> Iterator[None]:
    """For tensors so small that sharing them costs 10x, and sums that must not depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def matrix_products(precision: Precision) -> Iterator[None]:
    """Arithmetic of float32 matrix products on CUDA: exact, or TensorFloat-32 for speed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
