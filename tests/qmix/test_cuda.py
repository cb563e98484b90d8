"""Captured graphs give the numbers of plain calls."""

from types import SimpleNamespace

import pytest
import torch

from fedfade.config import Config
from fedfade.qmix import Trainer


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_equal_plain_calls(tiny: Config) -> None:
    captured, plain = Trainer(tiny, "cuda"), Trainer(tiny, "cuda")
    plain._engine = SimpleNamespace(step=plain._step, update=plain._update)
    for _ in range(3):
        assert captured.play_batch()[:6] == plain.play_batch()[:6]
    for name, tensor in captured.tensors().items():
        assert torch.equal(tensor, plain.tensors()[name]), name
