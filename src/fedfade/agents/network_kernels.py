"""All layers of the agents' networks in one launch, in Triton, which comes with PyTorch for CUDA.

Layers are so small that a GPU spends its time between them: four matrix products, each with a bias
and a ReLU, are eight launches. Here a block takes some observations of one agent through all of
them, in TensorFloat-32. Weights are rounded once, in a launch before, and not in every block.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32  # a block: with more a block takes longer, and few rows leave most of a GPU idle
_UNITS = 64  # of a wide layer at a time: all of them would not fit
_WARPS = 4  # that one product shares
_STAGES = 2  # weights under way while others are multiplied
_SIZE = 1024  # weights that a block rounds
_MOST = (64, 256, 128, 128, 64)  # features before, between and after the layers


def fit(sizes: Sequence[int]) -> bool:
    """Whether layers of such sizes, before, between and behind them, can be done here."""
    return len(sizes) == len(_MOST) and all(a <= b for a, b in zip(sizes, _MOST, strict=True))


@triton.jit
def _rounded(x: tl.tensor) -> tl.tensor:
    """To TensorFloat-32, to nearest, where the product itself would cut off. What is not a number
    stays so: its bits might overflow to 0, and nobody would see that a training diverged."""
    bits = x.to(tl.int32, bitcast=True) + 0x1000
    return tl.where(tl.abs(x) < float("inf"), (bits & -0x2000).to(tl.float32, bitcast=True), x)


@triton.jit
def _relu(x: tl.tensor) -> tl.tensor:
    return tl.where(x < 0, 0.0, x)  # as PyTorch's, which keeps what is not a number


@triton.jit
def _round_some(weight: tl.tensor, out: tl.tensor, count: tl.tensor, SIZE: tl.constexpr) -> None:
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    tl.store(out + place, _rounded(tl.load(weight + place, mask=inside)), mask=inside)


@triton.jit
def _round_weights(
    w1: tl.tensor,
    w2: tl.tensor,
    w3: tl.tensor,
    w4: tl.tensor,
    r1: tl.tensor,
    r2: tl.tensor,
    r3: tl.tensor,
    r4: tl.tensor,
    n1: tl.tensor,
    n2: tl.tensor,
    n3: tl.tensor,
    n4: tl.tensor,
    SIZE: tl.constexpr,
) -> None:
    """n weights w of every layer to r."""
    layer = tl.program_id(1)
    if layer == 0:
        _round_some(w1, r1, n1, SIZE)
    elif layer == 1:
        _round_some(w2, r2, n2, SIZE)
    elif layer == 2:
        _round_some(w3, r3, n3, SIZE)
    else:
        _round_some(w4, r4, n4, SIZE)


@triton.jit
def _block(
    start: tl.tensor, row: tl.tensor, rows: tl.tensor, column: tl.tensor, columns: tl.constexpr
) -> tl.tensor:
    """Rows and columns of a matrix, 0 beyond its ends."""
    inside = (row < rows) & (column < columns)
    return tl.load(start + row * columns + column, mask=inside, other=0.0)


@triton.jit
def _put(
    start: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.constexpr,
    x: tl.tensor,
) -> None:
    tl.store(start + row * columns + column, x, mask=(row < rows) & (column < columns))


@triton.jit
def _layer(x: tl.tensor, weight: tl.tensor, bias: tl.tensor) -> tl.tensor:
    return _relu(tl.dot(x, weight, input_precision="tf32") + bias)


@triton.jit
def _network_forward(
    x: tl.tensor,  # [network, row, WIDTH]
    w1: tl.tensor,  # [network, WIDTH, FIRST]
    b1: tl.tensor,
    w2: tl.tensor,
    b2: tl.tensor,
    w3: tl.tensor,
    b3: tl.tensor,
    w4: tl.tensor,
    b4: tl.tensor,
    h1: tl.tensor,  # [network, row, FIRST], written if KEEP, as are the two below
    h2: tl.tensor,
    h3: tl.tensor,
    values: tl.tensor,  # [network, row, ACTIONS]
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    ACTIONS: tl.constexpr,
    # The same as powers of two, which blocks are.
    WIDTH_2: tl.constexpr,
    SECOND_2: tl.constexpr,
    ACTIONS_2: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    KEEP: tl.constexpr,
) -> None:
    """ROWS rows of a network through all its layers."""
    network = tl.program_id(1).to(tl.int64)
    before, after = network * rows, tl.arange(0, ACTIONS_2)[None]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    feature, middle = tl.arange(0, WIDTH_2), tl.arange(0, SECOND_2)
    seen = _rounded(_block(x + before * WIDTH, row, rows, feature[None], WIDTH))
    total = tl.zeros((ROWS, SECOND_2), tl.float32)
    for first in tl.range(0, FIRST, UNITS):
        unit = first + tl.arange(0, UNITS)
        weight = _block(w1 + network * WIDTH * FIRST, feature[:, None], WIDTH, unit[None], FIRST)
        bias = _block(b1 + network * FIRST, 0, 1, unit[None], FIRST)
        hidden = _layer(seen, weight, bias)
        if KEEP:
            _put(h1 + before * FIRST, row, rows, unit[None], FIRST, hidden)
        weight = _block(w2 + network * FIRST * SECOND, unit[:, None], FIRST, middle[None], SECOND)
        total = tl.dot(_rounded(hidden), weight, total, input_precision="tf32")
    total += _block(b2 + network * SECOND, 0, 1, middle[None], SECOND)
    second = _relu(total)
    if KEEP:
        _put(h2 + before * SECOND, row, rows, middle[None], SECOND, second)
    second = _rounded(second)
    value = tl.zeros((ROWS, ACTIONS_2), tl.float32)
    for first in tl.range(0, THIRD, UNITS):
        unit = first + tl.arange(0, UNITS)
        weight = _block(w3 + network * SECOND * THIRD, middle[:, None], SECOND, unit[None], THIRD)
        bias = _block(b3 + network * THIRD, 0, 1, unit[None], THIRD)
        hidden = _layer(second, weight, bias)
        if KEEP:
            _put(h3 + before * THIRD, row, rows, unit[None], THIRD, hidden)
        weight = _block(w4 + network * THIRD * ACTIONS, unit[:, None], THIRD, after, ACTIONS)
        value = tl.dot(_rounded(hidden), weight, value, input_precision="tf32")
    value += _block(b4 + network * ACTIONS, 0, 1, after, ACTIONS)
    _put(values + before * ACTIONS, row, rows, after, ACTIONS, value)


@triton.jit
def _network_backward(
    slope: tl.tensor,  # [network, row, ACTIONS] of the loss, by value
    w2: tl.tensor,
    w3: tl.tensor,
    w4: tl.tensor,
    h1: tl.tensor,  # as the forward pass kept them
    h2: tl.tensor,
    h3: tl.tensor,
    g1: tl.tensor,  # slopes by what the layers give before their ReLU
    g2: tl.tensor,
    g3: tl.tensor,
    rows: tl.tensor,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    ACTIONS: tl.constexpr,
    SECOND_2: tl.constexpr,
    ACTIONS_2: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
) -> None:
    """Slopes of ROWS rows of a network from its values down to its first layer."""
    network = tl.program_id(1).to(tl.int64)
    before, after = network * rows, tl.arange(0, ACTIONS_2)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    middle = tl.arange(0, SECOND_2)
    g = _rounded(_block(slope + before * ACTIONS, row, rows, after[None], ACTIONS))
    total = tl.zeros((ROWS, SECOND_2), tl.float32)
    for first in tl.range(0, THIRD, UNITS):
        unit = first + tl.arange(0, UNITS)
        weight = _block(w4 + network * THIRD * ACTIONS, unit[:, None], THIRD, after[None], ACTIONS)
        hidden = _block(h3 + before * THIRD, row, rows, unit[None], THIRD)
        down = tl.dot(g, tl.trans(weight), input_precision="tf32")
        down = tl.where(hidden <= 0, 0.0, down)
        _put(g3 + before * THIRD, row, rows, unit[None], THIRD, down)
        weight = _block(w3 + network * SECOND * THIRD, middle[:, None], SECOND, unit[None], THIRD)
        weight = tl.trans(weight)
        total = tl.dot(_rounded(down), weight, total, input_precision="tf32")
    middle_layer = _block(h2 + before * SECOND, row, rows, middle[None], SECOND)
    total = tl.where(middle_layer <= 0, 0.0, total)
    _put(g2 + before * SECOND, row, rows, middle[None], SECOND, total)
    second = _rounded(total)
    for first in tl.range(0, FIRST, UNITS):
        unit = first + tl.arange(0, UNITS)
        weight = _block(w2 + network * FIRST * SECOND, unit[:, None], FIRST, middle[None], SECOND)
        hidden = _block(h1 + before * FIRST, row, rows, unit[None], FIRST)
        down = tl.dot(second, tl.trans(weight), input_precision="tf32")
        _put(g1 + before * FIRST, row, rows, unit[None], FIRST, tl.where(hidden <= 0, 0.0, down))


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())  # a product's blocks are 16 wide at least


def _as_read(weights: Sequence[Tensor]) -> list[Tensor]:
    """Weights of all layers as tensor cores read them."""
    out = [torch.empty_like(weight) for weight in weights]
    counts = [weight.numel() for weight in weights]
    _round_weights[-(-max(counts) // _SIZE), len(counts)](*weights, *out, *counts, _SIZE)
    return out


def forward(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    out: Sequence[Tensor],
    keep: bool,
) -> None:
    """What every layer gives, [network, row, features], into `out`: of those in between only if
    they are to be kept."""
    networks, rows, width = x.shape
    first, second, third, actions = (weight.shape[2] for weight in weights)
    layers = [one for pair in zip(_as_read(weights), biases, strict=True) for one in pair]
    _network_forward[-(-rows // _ROWS), networks](
        x.contiguous(), *layers, *out, rows, width, first, second, third, actions,
        _power_of_two(width), _power_of_two(second), _power_of_two(actions), _ROWS, _UNITS, keep,
        num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip


def backward(
    slope: Tensor, weights: Sequence[Tensor], tape: Sequence[Tensor], out: Sequence[Tensor]
) -> None:
    """Slopes by what the first three layers give before their ReLU, [network, row, features], from
    those by the values; `tape` is what the forward pass kept of these layers."""
    networks, rows, actions = slope.shape
    first, second, third = (kept.shape[2] for kept in tape)
    layers = _as_read(weights)[1:]
    _network_backward[-(-rows // _ROWS), networks](
        slope.contiguous(), *layers, *tape, *out, rows, first, second, third, actions,
        _power_of_two(second), _power_of_two(actions), _ROWS, _UNITS,
        num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
