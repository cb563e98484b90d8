"""The kernels of `convolution`, in Triton, which comes with PyTorch for CUDA."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import OutOfResources

from fedfade.learning.convolution import Blocks, Geometry, splits


@triton.jit
def _convolve(
    x: tl.tensor,  # [client, sample, row, column, channel]
    kernel: tl.tensor,  # [client, place x channel, out]
    out: tl.tensor,  # [client, sample, row, column, out]
    pixels: tl.tensor,  # of all samples of a client, in the outcome
    x_client: tl.tensor,  # numbers of a client
    kernel_client: tl.tensor,
    kernel_row: tl.tensor,  # numbers from one row to the next
    kernel_column: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    PAD_ROWS: tl.constexpr,
    PAD_COLUMNS: tl.constexpr,
    STEP_ROW: tl.constexpr,
    STEP_COLUMN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRODUCTS: tl.constexpr,
) -> None:
    """M pixels and N outcomes of a client; K terms of every sum at a time."""
    across: tl.constexpr = (OUT + N - 1) // N
    block, client = tl.program_id(0), tl.program_id(1).to(tl.int64)
    x += client * x_client
    kernel += client * kernel_client
    out += client * pixels * OUT
    pixel = block // across * M + tl.arange(0, M)
    channel_out = block % across * N + tl.arange(0, N)
    place_in_image = pixel % (OUT_ROWS * OUT_COLUMNS)
    first_row = (place_in_image // OUT_COLUMNS - PAD_ROWS)[:, None]
    first_column = (place_in_image % OUT_COLUMNS - PAD_COLUMNS)[:, None]
    sample = (pixel // (OUT_ROWS * OUT_COLUMNS))[:, None]
    inside = (pixel < pixels)[:, None]
    terms: tl.constexpr = HIGH * WIDE * CHANNELS
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, terms, K):
        k = start + tl.arange(0, K)
        if CHANNELS % K == 0:  # one place of the kernel for all
            place = start // CHANNELS
            # Said because the compiler forgets it: neighbours are read together.
            channel = (tl.multiple_of(start % CHANNELS, K) + tl.arange(0, K))[None]
        else:
            place = (k // CHANNELS)[None]
            channel = (k % CHANNELS)[None]
        row = first_row + place // WIDE * STEP_ROW
        column = first_column + place % WIDE * STEP_COLUMN
        there = inside & (row >= 0) & (row < ROWS) & (column >= 0) & (column < COLUMNS)
        if terms % K != 0:
            there = there & (k < terms)[None]
        at = ((sample * ROWS + row) * COLUMNS + column) * CHANNELS + channel
        patch = tl.load(x + at, mask=there, other=0.0)
        at_kernel = k[:, None] * kernel_row + channel_out[None] * kernel_column
        known = (k < terms)[:, None] & (channel_out < OUT)[None]
        weights = tl.load(kernel + at_kernel, mask=known, other=0.0)
        total = tl.dot(patch, weights, total, input_precision=PRODUCTS)
    known = inside & (channel_out < OUT)[None]
    at_out = pixel[:, None] * OUT + channel_out[None]
    tl.store(out + at_out, total.to(out.dtype.element_ty), mask=known)


@triton.jit
def _convolution_gradient(
    x: tl.tensor,  # [client, sample, row, column, channel]
    gradient: tl.tensor,  # [client, sample, row, column, out]
    sums: tl.tensor,  # [client, split, place x channel, out]
    pixels: tl.tensor,
    x_client: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    PAD_ROWS: tl.constexpr,
    PAD_COLUMNS: tl.constexpr,
    STEP_ROW: tl.constexpr,
    STEP_COLUMN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRODUCTS: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """M rows and N columns of the gradient of a client's kernel, over the pixels of a split: as
    many steps of K each."""
    across: tl.constexpr = (OUT + N - 1) // N
    terms: tl.constexpr = HIGH * WIDE * CHANNELS
    block, split, client = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    x += client * x_client
    gradient += client * pixels * OUT
    sums += (client * tl.num_programs(1) + split) * terms * OUT
    first = block // across * M
    k = first + tl.arange(0, M)
    channel_out = block % across * N + tl.arange(0, N)
    if CHANNELS % M == 0:  # one place of the kernel for all
        place = first // CHANNELS
        channel = (tl.multiple_of(first % CHANNELS, M) + tl.arange(0, M))[None]
    else:
        place = (k // CHANNELS)[None]
        channel = (k % CHANNELS)[None]
    add_row = place // WIDE * STEP_ROW - PAD_ROWS
    add_column = place % WIDE * STEP_COLUMN - PAD_COLUMNS
    total = tl.zeros((M, N), tl.float32)
    for step in range(0, STEPS):
        pixel = (split * STEPS + step) * K + tl.arange(0, K)
        inside = (pixel < pixels)[:, None]
        place_in_image = pixel % (OUT_ROWS * OUT_COLUMNS)
        row = (place_in_image // OUT_COLUMNS)[:, None] + add_row
        column = (place_in_image % OUT_COLUMNS)[:, None] + add_column
        sample = (pixel // (OUT_ROWS * OUT_COLUMNS))[:, None]
        there = inside & (row >= 0) & (row < ROWS) & (column >= 0) & (column < COLUMNS)
        if terms % M != 0:
            there = there & (k < terms)[None]
        at = ((sample * ROWS + row) * COLUMNS + column) * CHANNELS + channel
        patch = tl.load(x + at, mask=there, other=0.0)
        at_gradient = pixel[:, None] * OUT + channel_out[None]
        known = inside & (channel_out < OUT)[None]
        change = tl.load(gradient + at_gradient, mask=known, other=0.0)
        total = tl.dot(tl.trans(patch), change, total, input_precision=PRODUCTS)
    known = (k < terms)[:, None] & (channel_out < OUT)[None]
    tl.store(sums + k[:, None] * OUT + channel_out[None], total, mask=known)


def with_room(launch: Callable[[int], object], stages: int) -> None:
    """Launch with so many steps on their way at once, or as many as a small GPU has room for."""
    for fewer in range(stages, 0, -1):
        try:
            launch(fewer)
            return
        except OutOfResources:
            if fewer == 1:
                raise


def convolve(x: Tensor, kernel: Tensor, geometry: Geometry, cut: Blocks, products: str) -> Tensor:
    """As `convolution.convolve`, cut up in this way."""
    x = x.contiguous()
    clients, samples, *image, channels = x.shape
    rows, columns = geometry.after(*image)
    out = x.new_empty(clients, samples, rows, columns, kernel.shape[2])
    pixels = samples * rows * columns
    grid = (-(-pixels // cut.rows) * -(-kernel.shape[2] // cut.columns), clients)
    numbers = (
        x, kernel, out, pixels, x.stride(0), *kernel.stride(),
        *image, rows, columns, channels, kernel.shape[2],
        *geometry.size, *geometry.padding, *geometry.dilation,
        cut.rows, cut.columns, cut.depth, products,
    )  # fmt: skip
    with_room(
        lambda stages: _convolve[grid](*numbers, num_warps=cut.warps, num_stages=stages), cut.stages
    )
    return out


def kernel_gradient(
    x: Tensor, gradient: Tensor, geometry: Geometry, cut: Blocks, products: str, parts: int = 0
) -> Tensor:
    """[client, place x channel, out] from images and the gradient of the outcome. The sum over
    pixels is split, into parts that the sizes alone decide: the same bits every time."""
    x, gradient = x.contiguous(), gradient.contiguous()
    clients, samples, *image, channels = x.shape
    rows, columns, out = gradient.shape[2:]
    high, wide = geometry.size
    pixels, terms = samples * rows * columns, high * wide * channels
    tiles = -(-terms // cut.rows) * -(-out // cut.columns)
    steps = -(-pixels // cut.depth)
    steps_of_split = -(-steps // (parts or splits(clients, tiles, steps, x.dtype)))
    parts = -(-steps // steps_of_split)
    sums = x.new_empty(clients, parts, terms, out, dtype=torch.float32)
    grid = (tiles, parts, clients)
    numbers = (
        x, gradient, sums, pixels, x.stride(0),
        *image, rows, columns, channels, out,
        *geometry.size, *geometry.padding, *geometry.dilation,
        cut.rows, cut.columns, cut.depth, products, steps_of_split,
    )  # fmt: skip
    with_room(
        lambda stages: _convolution_gradient[grid](
            *numbers, num_warps=cut.warps, num_stages=stages
        ),
        cut.stages,
    )
    return sums.sum(1).to(x.dtype)
