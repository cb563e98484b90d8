"""All layers in one launch, against one matrix product after the other."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fedfade.agents.learner import Learner
from fedfade.agents.networks import AgentNetworks
from fedfade.config import QmixConfig
from fedfade.device import matrix_products
from tests.agents.test_learner import random_batch

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
NO_TRITON = pytest.mark.skipif(not find_spec("triton"), reason="no Triton")
TF32 = 2e-3  # four layers of products with ten bits
SIZES = {  # rows, then features before, between and behind the layers
    "paper": (40, (20, 252, 120, 120, 16)),
    "blocks of 64": (300, (5, 100, 20, 128, 3)),
    "uneven": (70, (18, 40, 64, 24, 17)),
}


def drawn(sizes: Sequence[int], rows: int) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Weights, biases, observations and slopes of two networks."""
    g = torch.Generator().manual_seed(0)
    pairs = list(pairwise(sizes))
    weights = [torch.randn(2, i, o, generator=g) / i**0.5 for i, o in pairs]
    biases = [torch.randn(2, 1, o, generator=g) for _, o in pairs]
    x, slope = (torch.randn(2, rows, size, generator=g) for size in (sizes[0], sizes[-1]))
    return weights, biases, x, slope


def near(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() < TF32 * wanted.abs().max())


def interpreted() -> None:
    """Forward and backward by the kernels themselves; the process this runs in interprets them."""
    from fedfade.agents import network_kernels as kernels

    for rows, sizes in SIZES.values():
        assert kernels.fit(sizes)
        weights, biases, x, slope = drawn(sizes, rows)
        kept, last, below = (
            [x.new_full((2, rows, n), torch.nan) for n in sizes[1:]] for _ in "123"
        )
        kernels.forward(x, weights, biases, kept, keep=True)
        kernels.forward(x, weights, biases, last, keep=False)
        assert torch.equal(kept[-1], last[-1])
        wanted = x.double()
        for layer, found in enumerate(kept):
            wanted = torch.baddbmm(biases[layer].double(), wanted, weights[layer].double())
            wanted = wanted.relu() if layer < 3 else wanted
            assert near(found, wanted)
        kernels.backward(slope, weights, kept[:-1], below[:-1])
        wanted = slope.double()
        for layer in (3, 2, 1):
            wanted = (wanted @ weights[layer].double().mT) * (kept[layer - 1] > 0)
            assert near(below[layer - 1], wanted)
    strangers(kernels)


def strangers(kernels: ModuleType) -> None:
    """What is not a number, in whatever bits, shows in the values and in the gradients: a training
    that diverged must be seen."""
    rows, sizes = SIZES["uneven"]
    for bits in (0x7FFFFFFF, 0x7FC00000, -1):
        strange = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
        for layer in range(4):
            weights, biases, x, slope = drawn(sizes, rows)
            weights[layer][0, 3] = strange  # all that comes from one unit
            found = [x.new_zeros(2, rows, size) for size in sizes[1:]]
            kernels.forward(x, weights, biases, found, keep=True)
            assert found[-1][0].isnan().all()
            assert not found[-1][1].isnan().any()
            below = [torch.zeros_like(kept) for kept in found[:-1]]
            kernels.backward(slope, weights, found[:-1], below)
            assert layer == 0 or below[0][0].isnan().any()


@NO_TRITON
def test_kernels_by_their_interpreter() -> None:
    code = f"from {__name__} import interpreted; interpreted()"
    settings = os.environ | {"TRITON_INTERPRET": "1"}
    here = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], env=settings, cwd=here, check=True, timeout=600)


@NO_CUDA
@pytest.mark.parametrize("options", [{}, {"share_parameters": True, "dueling": True}])
def test_an_update_on_cuda_is_the_same_either_way(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, the gradients of all parameters with the kernels and without."""
    sizes, found = (4, 9, 12, 5), []
    batch = random_batch(sizes, 300, seed=1)
    on_gpu = type(batch)(*(None if part is None else part.cuda() for part in batch))
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(AgentNetworks, "_kernels", lambda networks: None)
        learner = Learner(QmixConfig(**options), *sizes, seeds=[0], device="cuda")
        before = learner.tensors()["online"].clone()
        with matrix_products("tf32"):
            learner.update(on_gpu)
        # A first step of RMSProp is the sign of the gradient, but for its second moment.
        found.append((learner.tensors()["square"].clone(), learner.tensors()["online"] - before))
    (ours, moved), (plain_square, plain_moved) = found
    assert (ours - plain_square).norm() < 0.02 * plain_square.norm()
    assert (moved * plain_moved).sum() > 0.95 * plain_moved.square().sum()
