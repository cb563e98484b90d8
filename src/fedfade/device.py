"""The device a run computes on."""

from __future__ import annotations

import torch

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
