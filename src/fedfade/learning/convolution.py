"""A convolution with other weights for every client, in one launch for all of them.

A convolution is a matrix product of unfolded images, which are nine times as large as the images;
on a GPU writing and reading them takes most of a training step. Here they are never written: the
kernels in `convolution_kernels` gather a block of them where it is multiplied.

Layouts: images [client, sample, row, column, channel], kernels [client, place x channel, out],
which tensor cores for float32 like best with the neighbours of a column side by side in memory.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfade.graphs import in_one_piece

_PROCESSORS = 132  # of a large GPU
_WORTH_IT = 8  # steps of such a sum that a block takes at least


Product = Literal["images", "kernel"]
"""The product with images, or the gradient of its kernel."""


class Geometry(NamedTuple):
    """Where the places of a kernel lie, by row and column."""

    size: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def reach(self) -> tuple[int, int]:
        """Pixels between a kernel's first place and its last."""
        (high, wide), (down, right) = self.size, self.dilation
        return down * (high - 1), right * (wide - 1)

    @property
    def backwards(self) -> "Geometry":
        """Of the convolution that takes the gradient back to the images."""
        rows, columns = (r - p for r, p in zip(self.reach, self.padding, strict=True))
        return self._replace(padding=(rows, columns))

    def after(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of the outcome.

        >>> Geometry((3, 5), (1, 0), (1, 2)).after(32, 32)
        (32, 24)
        """
        (pad_rows, pad_columns), (down, right) = self.padding, self.reach
        return rows + 2 * pad_rows - down, columns + 2 * pad_columns - right


class Blocks(NamedTuple):
    """How a product is cut up."""

    rows: int
    columns: int
    depth: int  # of the sum, a step
    warps: int
    stages: int  # steps on their way at once


def blocks(work: Product, channels: int, out: int, dtype: torch.dtype, products: str) -> Blocks:
    """For the product with images of so many channels, or for the gradient of its kernel. Found
    by trying on an H200.

    All pixels of a block read the same place of the kernel if the channels can be divided so.

    >>> blocks("images", 64, 128, torch.bfloat16, "tf32")
    Blocks(rows=128, columns=128, depth=64, warps=8, stages=3)
    >>> blocks("kernel", 3, 32, torch.float32, "tf32")
    Blocks(rows=32, columns=32, depth=32, warps=4, stages=3)
    """
    wide, half = _power_of_two(out, 64 if work == "kernel" else 128), dtype != torch.float32
    if work == "kernel":
        exact = products == "ieee" and not half  # without tensor cores
        # Tensor cores take float32 numbers turned around a few at a time: small blocks wait less.
        rows = _part_of(channels, 64 if exact or half else 32)
        return Blocks(rows, wide, 16 if exact else 64 if half else 32, 4, 2 if exact else 3)
    depth = _part_of(channels, 64 if half else 32)
    return Blocks(128, wide, depth, warps=8 if wide > 64 else 4, stages=3)


def _power_of_two(number: int, most: int) -> int:
    """That holds a number, in what tensor cores can do."""
    return max(16, min(most, 1 << (number - 1).bit_length()))


def _part_of(channels: int, most: int) -> int:
    """The greatest power of two that divides the channels, or where it is tiny, any."""
    divides = min(most, channels & -channels)
    return divides if divides >= 16 else 32


def splits(clients: int, tiles: int, steps: int, dtype: torch.dtype) -> int:
    """Parts of a sum of so many steps that are worked out side by side: what comes out is small,
    and one block each would keep few of a GPU's processors busy.

    >>> [splits(10, 1, 800, torch.float32), splits(10, 18, 50, torch.bfloat16)]
    [100, 3]
    """
    launched = _PROCESSORS * (8 if dtype == torch.float32 else 4)
    return max(1, min(-(-launched // (clients * tiles)), steps // _WORTH_IT))


def products(work: Product) -> str:
    """How the kernels are to multiply float32 numbers. Three products of TensorFloat-32 for one,
    of numbers and of what rounding left of them, add up to float32's accuracy sooner than it does
    itself; but not where numbers have to be turned around."""
    if torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "tf32x3" if work == "images" else "ieee"


def shifted(
    images: Tensor, geometry: Geometry, stride: Sequence[int] = (1, 1)
) -> tuple[list[Tensor], int, int]:
    """Images [sample, channel, row, column] as every place of a kernel sees them, each
    [sample, row, column, channel], and how many rows and columns that are."""
    (high, wide), (pad_rows, pad_columns), (step_row, step_column) = geometry
    down, right = stride
    x = F.pad(images, (pad_columns, pad_columns, pad_rows, pad_rows)).permute(0, 2, 3, 1)
    rows = (x.shape[1] - step_row * (high - 1) - 1) // down + 1
    columns = (x.shape[2] - step_column * (wide - 1) - 1) // right + 1
    return [
        x[:, i : i + down * (rows - 1) + 1 : down, j : j + right * (columns - 1) + 1 : right]
        for i in range(0, step_row * high, step_row)
        for j in range(0, step_column * wide, step_column)
    ], rows, columns  # fmt: skip


def _unfolded(x: Tensor, geometry: Geometry) -> tuple[Tensor, int, int]:
    """Images of all clients as matrices [client, pixel, place x channel]."""
    patches, rows, columns = shifted(x.flatten(0, 1).permute(0, 3, 1, 2), geometry)
    unfolded = torch.cat(patches, -1)
    return unfolded.view(len(x), -1, unfolded.shape[-1]), rows, columns


# `torch.library.custom_op` brings a rule for derivatives of its own, which `torch.func.grad`
# refuses; without one the rule is `_Convolution`'s.
_GEOMETRY = "int[2] size, int[2] padding, int[2] dilation"
_AS_IT_IS = torch.Tag.needs_exact_strides  # nothing else in memory than what was given
for _name, _other in (("convolve", "kernel"), ("kernel_gradient", "out")):
    _schema = f"(Tensor x, Tensor {_other}, {_GEOMETRY}) -> Tensor"
    torch.library.define(f"fedfade::{_name}", _schema, tags=_AS_IT_IS)


@torch.library.impl("fedfade::convolve", "cpu")
def _convolve_unfolded(x: Tensor, kernel: Tensor, *where: Any) -> Tensor:
    patches, rows, columns = _unfolded(x, Geometry(*where))
    return torch.bmm(patches, kernel).view(*x.shape[:2], rows, columns, -1)


@torch.library.impl("fedfade::kernel_gradient", "cpu")
def _kernel_gradient_unfolded(x: Tensor, out: Tensor, *where: Any) -> Tensor:
    patches, _, _ = _unfolded(x, Geometry(*where))
    return torch.bmm(patches.mT, out.flatten(1, 3))


@torch.library.impl("fedfade::convolve", "cuda")
def _convolve_on_cuda(x: Tensor, kernel: Tensor, *where: Any) -> Tensor:
    from fedfade.learning import convolution_kernels

    how = products("images")
    cut = blocks("images", x.shape[-1], kernel.shape[-1], x.dtype, how)
    return convolution_kernels.convolve(x, kernel, Geometry(*where), cut, how)


@torch.library.impl("fedfade::kernel_gradient", "cuda")
def _kernel_gradient_on_cuda(x: Tensor, out: Tensor, *where: Any) -> Tensor:
    from fedfade.learning import convolution_kernels

    how = products("kernel")
    cut = blocks("kernel", x.shape[-1], out.shape[-1], x.dtype, how)
    return convolution_kernels.kernel_gradient(x, out, Geometry(*where), cut, how)


def _outcome(x: Tensor, kernel: Tensor, *where: Any) -> Tensor:
    rows, columns = Geometry(*(tuple(pair) for pair in where)).after(*x.shape[2:4])
    return x.new_empty(*x.shape[:2], rows, columns, kernel.shape[2])


def _gradient_outcome(x: Tensor, out: Tensor, *where: Any) -> Tensor:
    (high, wide), *_ = where
    return x.new_empty(len(x), high * wide * x.shape[-1], out.shape[-1])


torch.library.register_fake("fedfade::convolve", _outcome)
torch.library.register_fake("fedfade::kernel_gradient", _gradient_outcome)


def _mapped(name: str) -> None:
    """Under `torch.vmap` what is mapped over becomes more clients."""
    operation = getattr(torch.ops.fedfade, name)

    def more_clients(info: Any, axes: Sequence[int | None], *given: Any) -> tuple[Tensor, int]:
        both = (
            one.expand(info.batch_size, *one.shape) if axis is None else one.movedim(axis, 0)
            for one, axis in zip(given[:2], axes, strict=False)
        )
        found: Tensor = operation(*(one.flatten(0, 1) for one in both), *given[2:])
        return found.view(info.batch_size, -1, *found.shape[1:]), 0

    torch.library.register_vmap(f"fedfade::{name}", more_clients)


_mapped("convolve")
_mapped("kernel_gradient")


class _Convolution(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
        return _run("convolve", x, kernel, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.geometry = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel = ctx.saved_tensors
        out, geometry = gradients[0].contiguous(), ctx.geometry
        to_images = to_kernel = None
        if ctx.needs_input_grad[0]:
            places = kernel.unflatten(1, (*geometry.size, -1))  # [client, i, j, channel, out]
            turned = places.flip(1, 2).permute(0, 3, 1, 2, 4).flatten(2).mT
            to_images = _run("convolve", out, turned, geometry.backwards)
        if ctx.needs_input_grad[1]:
            to_kernel = _run("kernel_gradient", x, out, geometry)
        return to_images, to_kernel, None


def _run(name: str, one: Tensor, other: Tensor, geometry: Geometry) -> Tensor:
    found: Tensor = getattr(torch.ops.fedfade, name)(one, other, *map(list, geometry))
    return found


@in_one_piece
def convolve(
    x: Tensor,
    kernel: Tensor,
    size: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Images [client, sample, row, column, channel] with the kernels [client, place x channel,
    out]; with at most as much padding as a kernel reaches."""
    found: Tensor = _Convolution.apply(x.contiguous(), kernel, Geometry(size, padding, dilation))  # type: ignore[no-untyped-call]
    return found
