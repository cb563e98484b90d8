"""Convolutions of all clients against PyTorch's own, one client at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.decorators import allow_in_graph
from torch.func import grad, vmap

from fedfade.bench.federated_round import random_images
from fedfade.config import LearningConfig, Precision
from fedfade.device import matrix_products
from fedfade.learning import Federation, batched, build_model
from fedfade.learning.batched import ClientBatch, MatmulConv2d
from fedfade.learning.convolution import Blocks, Geometry, convolve

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
NO_TRITON = pytest.mark.skipif(not find_spec("triton"), reason="no Triton")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_CUDA)]
CLIENTS, SAMPLES = 3, 4
ROOT = Path(__file__).parents[2]
SHAPES = {  # rows, columns, channels, out, then the geometry
    "first": (8, 8, 3, 16, Geometry((3, 3), (1, 1), (1, 1))),
    "middle": (6, 5, 32, 7, Geometry((3, 3), (1, 1), (1, 1))),
    "point": (4, 7, 5, 6, Geometry((1, 1), (0, 0), (1, 1))),
    "no padding": (7, 6, 5, 4, Geometry((3, 3), (0, 0), (1, 1))),
    "large": (6, 9, 3, 5, Geometry((5, 5), (2, 2), (1, 1))),
    "dilated": (9, 8, 5, 4, Geometry((3, 3), (2, 1), (2, 2))),
    "not square": (9, 7, 5, 8, Geometry((1, 3), (0, 2), (1, 1))),
}
Three = tuple[Tensor, Tensor, Tensor]


def draw(name: str, device: str = "cpu") -> Three:
    """Images, kernels and the gradient of the outcome of every client."""
    rows, columns, channels, out, geometry = SHAPES[name]
    high, wide = geometry.size
    after = geometry.after(rows, columns)
    sizes = [
        (CLIENTS, SAMPLES, rows, columns, channels),
        (CLIENTS, high * wide * channels, out),
        (CLIENTS, SAMPLES, *after, out),
    ]
    generator = torch.Generator().manual_seed(0)
    x, kernel, change = (torch.randn(*size, generator=generator).to(device) for size in sizes)
    return x, kernel, change


def wanted(given: Three, geometry: Geometry) -> Three:
    """Outcome, gradient of the images and of the kernels in float64, client after client."""
    found: list[tuple[Tensor, ...]] = []
    for x, kernel, change in zip(*(each.double().cpu() for each in given), strict=True):
        both = x.requires_grad_(), kernel.requires_grad_()
        weight = kernel.unflatten(0, (*geometry.size, -1)).permute(3, 2, 0, 1)
        how = {"padding": geometry.padding, "dilation": geometry.dilation}
        out = F.conv2d(x.permute(0, 3, 1, 2), weight, **how).permute(0, 2, 3, 1)  # type: ignore[arg-type]
        found.append((out.detach(), *torch.autograd.grad(out, both, change)))
    out, images, kernels = (torch.stack(each) for each in zip(*found, strict=True))
    return out, images, kernels


def close(found: Tensor, true: Tensor, rounding: float = 1e-6) -> bool:
    """Up to the rounding of a sum of a few hundred terms: ten times one in float32."""
    assert found.shape == true.shape
    error = (found.double().cpu() - true).abs().max()
    return bool(error <= 10 * rounding * true.abs().max())


def mapped(geometry: Geometry):  # type: ignore[no-untyped-def]
    """Outcome and gradients of all clients by a function written for one."""

    def loss(both: tuple[Tensor, Tensor], change: Tensor) -> tuple[Tensor, Tensor]:
        out = convolve(both[0][None], both[1][None], *geometry)[0]
        return (out * change).sum(), out

    return vmap(grad(loss, has_aux=True), randomness="error")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients(name: str, device: str) -> None:
    geometry = SHAPES[name][-1]
    x, kernel, change = given = draw(name, device)
    true = wanted(given, geometry)
    both = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    out = convolve(*both, *geometry)
    found = (out.detach(), *torch.autograd.grad(out, both, change))
    assert all(close(*pair) for pair in zip(found, true, strict=True))
    (images, kernels), out = mapped(geometry)((x, kernel), change)
    assert all(close(*pair) for pair in zip((out, images, kernels), true, strict=True))


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "aot_eager"),
        *(pytest.param("cuda", b, marks=NO_CUDA) for b in ("aot_eager", "inductor")),
    ],
)
def test_compiled_as_a_whole(backend: str, device: str) -> None:
    allow_in_graph(convolve)
    geometry = SHAPES["middle"][-1]
    x, kernel, change = given = draw("middle", device)
    work = torch.compile(mapped(geometry), dynamic=False, fullgraph=True, backend=backend)
    (images, kernels), out = work((x, kernel), change)
    true = wanted(given, geometry)
    assert all(close(*pair) for pair in zip((out, images, kernels), true, strict=True))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (2, 1)])
def test_only_one_is_mapped(axes: tuple[int | None, int | None]) -> None:
    """Images or kernels of all clients with those of a single one, and in other places."""
    geometry = SHAPES["first"][-1]
    x, kernel, _ = draw("first")

    def one(x: Tensor, kernel: Tensor) -> Tensor:
        return convolve(x[None], kernel[None], *geometry)[0]

    given = [
        each[0] if axis is None else each.movedim(0, axis)
        for each, axis in zip((x, kernel), axes, strict=True)
    ]
    found = vmap(one, in_dims=axes)(*given)
    whole = [
        each[:1].expand_as(each) if axis is None else each
        for each, axis in zip((x, kernel), axes, strict=True)
    ]
    assert torch.equal(found, convolve(*whole, *geometry))


def test_a_layer_is_the_same_either_way() -> None:
    """Unfolded here, as on a GPU there: with its bias, and the gradient of all it knows."""
    layer = MatmulConv2d(5, 8, 3, padding=2, dilation=2)
    images = torch.randn(SAMPLES, 5, 9, 7, requires_grad=True)
    change = torch.randn(SAMPLES, 8, 9, 7)
    found = []
    for gathers in (False, True):
        layer.kernels = gathers
        out = layer(images)
        everything = [images, *layer.parameters()]
        found.append([out.detach(), *torch.autograd.grad(out, everything, change)])
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(plain, other, rtol=1e-4, atol=1e-4)


INTERPRETED = [
    Blocks(32, 16, 16, 4, 2),  # the channels of one place at a time
    Blocks(16, 32, 64, 4, 2),  # several places in a block, and rows beyond the last
]


def in_blocks() -> None:
    """Every shape by the kernels themselves; the process this runs in interprets them."""
    from fedfade.learning import convolution_kernels as kernels

    for number, (name, (*_, geometry)) in enumerate(SHAPES.items()):
        x, kernel, change = given = draw(name)
        out, images, gradient = wanted(given, geometry)
        turned = kernel.unflatten(1, (*geometry.size, -1)).flip(1, 2).transpose(3, 4).flatten(1, 3)
        cut, parts = INTERPRETED[number % 2], (1, 3)[number // 2 % 2]
        found = kernels.convolve(x, kernel, geometry, cut, "ieee")
        assert close(found, out), name
        found = kernels.convolve(change, turned, geometry.backwards, cut, "ieee")
        assert close(found, images), name
        found = kernels.kernel_gradient(x, change, geometry, cut, "ieee", parts)
        assert close(found, gradient), name


@NO_TRITON
@pytest.mark.parametrize(("room", "wanted"), [(100, [3]), (64, [3, 2]), (40, [3, 2, 1]), (16, [])])
def test_a_small_gpu_does_fewer_steps_at_once(room: int, wanted: list[int]) -> None:
    from triton import OutOfResources

    from fedfade.learning.convolution_kernels import with_room

    tried = []

    def launch(stages: int) -> None:
        tried.append(stages)
        if 32 * stages > room:
            raise OutOfResources(32 * stages, room, "shared memory")

    if wanted:
        with_room(launch, 3)
        assert tried == wanted
    else:  # none at all
        with pytest.raises(OutOfResources):
            with_room(launch, 3)


@NO_TRITON
def test_kernels_by_their_interpreter() -> None:
    code = f"from {__name__} import in_blocks; in_blocks()"
    settings = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], env=settings, cwd=ROOT, check=True, timeout=600)


@NO_CUDA
@pytest.mark.parametrize(("precision", "rounding"), [("tf32", 5e-4), ("bf16", 2e-3)])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_in_fewer_digits_on_cuda(
    name: str, precision: Precision, rounding: float
) -> None:
    geometry, dtype = SHAPES[name][-1], torch.bfloat16 if precision == "bf16" else torch.float32
    x, kernel, change = (each.to(dtype) for each in draw(name, "cuda"))
    both = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    with matrix_products(precision):
        out = convolve(*both, *geometry)
        found = (out.detach(), *torch.autograd.grad(out, both, change))
    for ours, true in zip(found, wanted((x, kernel, change), geometry), strict=True):
        assert close(ours, true, rounding)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_of_local_training(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients' gradients with unfolded images and without; a pixel of two that are nearly
    equal may be the greater in one and not in the other."""
    dataset = random_images(100, rows=16).to(device)
    config = LearningConfig(clients=CLIENTS, partition="iid", batch_size=20)
    federation = Federation(config, dataset, device=device)
    state, samples = federation.start([0]), federation.mini_batches([0], 0)[0, :, 0]
    flat, averaged = (each.expand(CLIENTS, -1) for each in (state.parameters, state.buffers))
    model, found = build_model(config.model, dataset.shape, 10, seed=0), []
    for gathers in (False, True):
        monkeypatch.setattr(batched, "kernels_run_on", lambda device, it=gathers: it)
        batch = ClientBatch(model, dataset, "fp32")
        assert batch.mapped
        found.append(batch.gradient(flat.contiguous(), batch.buffers(averaged), samples)[:2])
    for plain, ours in zip(*found, strict=True):
        assert (ours - plain).norm() < 5e-3 * plain.norm()
