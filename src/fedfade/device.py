"""The device a run computes on."""

from __future__ import annotations

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


@contextmanager
def one_thread() -> Iterator[None]:
    """Play slots on one thread: their tensors are so small that sharing them costs 10x."""
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
