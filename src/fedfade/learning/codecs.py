"""What clients put on the air: an update becomes tensors that are sent, and an update again.

A codec (`learning.codec`) is made from the learning configuration and the sizes of the model's
tensors, which lie one after the other in an update. It encodes what was trained, batched over
runs and clients; running statistics travel beside it (`wire.py`). Nothing is claimed: the types
and shapes of the tensors sent say how many bits they are.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedfade.config import LearningConfig
from fedfade.device import one_thread
from fedfade.graphs import fused
from fedfade.learning.averaging import by_run
from fedfade.randomness import fold, uniform

_TINY = torch.finfo(torch.float32).tiny


class Codec(Protocol):
    """How an update travels.

    Optional: `statistics`, the type in which running statistics travel, float32 if there is none;
    `shaped(shapes)` is told the shapes of the model's tensors before anything is sent. A codec that
    sends its bits in order of importance is a `ProgressiveCodec`.
    """

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        """What is sent of values [run, client, D]: tensors [run, client, ...], in order. `keys`
        [run, client] are for random numbers of this round."""

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        """What the server makes of it: float32 [run, client, D]."""


class ProgressiveCodec(Codec, Protocol):
    """Bits in order of importance: the first of them make an update too."""

    least_bits: int  # fewer are of no use

    def decode_part(self, sent: Sequence[Tensor], bits: Tensor) -> Tensor:
        """The update that the first bits [run, client], int64, of what was sent tell."""


class AsTrained:
    """Every value as float32, as it was trained."""

    def __init__(self, config: LearningConfig, sizes: Sequence[int]) -> None:
        del config, sizes  # nothing to set

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return (values,)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        return sent[0]


class Float16(AsTrained):
    """Every value rounded to half precision; beyond 65,504 it is infinite and does not count."""

    statistics = torch.float16

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return (values.half(),)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        return sent[0].float()


class _ByTensor:
    """What looks at one tensor after the other."""

    def __init__(self, config: LearningConfig, sizes: Sequence[int]) -> None:
        self.sizes, self.values = list(sizes), sum(sizes)


class Int8(_ByTensor):
    """Every value as a whole multiple of its tensor's largest / 127, rounded up or down at random
    so that the mean is right (QSGD); a float32 scale per tensor."""

    levels = 127

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        # Drawn apart: compilers fold a hash of shifted places into numbers beyond 64 bits.
        return _rounded(values, uniform(keys, (self.values,)), self.sizes, self.levels)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        scale, whole = sent
        return _scaled(whole, scale, self.sizes)


class Int4(Int8):
    """The same with 15 levels, two values in a byte."""

    levels = 7

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        scale, whole = super().encode(values, keys)
        nibbles = torch.nn.functional.pad(whole + 8, (0, self.values % 2)).to(torch.uint8)
        return scale, nibbles[..., ::2] << 4 | nibbles[..., 1::2]

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        scale, packed = sent
        nibbles = torch.stack([packed >> 4, packed & 15], -1).flatten(-2)[..., : self.values]
        return super().decode((scale, nibbles.to(torch.int8) - 8))


class Sign(_ByTensor):
    """The sign of every value, one bit, and the mean magnitude of every tensor as float32."""

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return by_run(self._means, values), to_bytes(values >= 0)

    def _means(self, values: Tensor) -> Tensor:
        parts = torch.split(values, self.sizes, dim=-1)
        return torch.stack([part.abs().mean(-1) for part in parts], -1)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        scale, packed = sent
        sign = 2 * to_bits(packed, self.values).to(torch.int8) - 1
        return _scaled(sign, scale, self.sizes)


class LowRank(_ByTensor):
    """Every matrix as two factors of rank `learning.codec_rank`, float32, by two steps of power
    iteration from random numbers (PowerSGD, Vogels et al. 2019, without its warm start).

    A convolution's rows are its output channels. What is no matrix, or has no more values than its
    factors, goes as it is.
    """

    def __init__(self, config: LearningConfig, sizes: Sequence[int]) -> None:
        super().__init__(config, sizes)
        self.rank, self._rows = config.codec_rank, [0] * len(sizes)  # 0: goes as it is

    def shaped(self, shapes: Sequence[torch.Size]) -> None:
        for n, (shape, size) in enumerate(zip(shapes, self.sizes, strict=True)):
            if len(shape) > 1 and self.rank * (shape[0] + size // shape[0]) < size:
                self._rows[n] = shape[0]

    @one_thread()  # threads would share sums
    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        sent: list[Tensor] = []
        for n, part in enumerate(torch.split(values, self.sizes, dim=-1)):
            if not self._rows[n]:
                sent.append(part)
                continue
            matrix = part.reshape(*keys.shape, self._rows[n], -1)  # [run, client, row, column]
            start = uniform(fold(keys, n), (matrix.shape[-1], self.rank)) - 0.5
            left = torch.linalg.qr(matrix @ start).Q  # [run, client, row, rank]
            left = torch.linalg.qr(matrix @ (matrix.mT @ left)).Q
            sent += [left, matrix.mT @ left]
        return sent

    @one_thread()
    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        each = iter(sent)
        parts = [next(each) @ next(each).mT if rows else next(each) for rows in self._rows]
        return torch.cat([part.flatten(2) for part in parts], -1)


class TopK:
    """The share `learning.codec_fraction` of the values, those of greatest magnitude, as float32,
    each after its place in ceil(log2 D) bits; the greatest first, so that a part is of use."""

    def __init__(self, config: LearningConfig, sizes: Sequence[int]) -> None:
        self.values = sum(sizes)
        self.kept = math.ceil(config.codec_fraction * self.values)
        self.least_bits = 32 + (self.values - 1).bit_length()  # of a value and its place

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        place = values.abs().topk(self.kept, dim=-1).indices
        chosen = values.gather(-1, place).view(torch.int32).long() & 0xFFFFFFFF
        numbers = place << 32 | chosen  # [run, client, k]
        octets = numbers[..., None].view(torch.uint8).flip(-1)  # the highest first
        bits = to_bits(octets, 64)[..., 64 - self.least_bits :]
        return (to_bytes(bits.flatten(-2)),)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        everything = torch.full_like(sent[0][..., 0], 8, dtype=torch.int64) * sent[0].shape[-1]
        return self.decode_part(sent, everything)

    def decode_part(self, sent: Sequence[Tensor], bits: Tensor) -> Tensor:
        found = to_bits(sent[0], self.kept * self.least_bits)
        found = found.view(*bits.shape, self.kept, self.least_bits)
        padded = torch.nn.functional.pad(found, (64 - self.least_bits, 0))
        octets = to_bytes(padded).flip(-1).contiguous()
        numbers = octets.view(torch.int64)[..., 0]  # [run, client, k]
        values = (numbers & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
        rank = torch.arange(self.kept, device=bits.device)
        values = torch.where(rank < (bits // self.least_bits)[..., None], values, 0.0)
        nothing = values.new_zeros(*values.shape[:-1], self.values)
        return nothing.scatter(-1, numbers >> 32, values)


class Int8Planes(Int8):
    """`int8` by bit planes: scales, the signs, the highest bit of every magnitude, the next, ...

    Of a magnitude whose last bits are missing the middle of what it may be is taken, and 0 if
    nothing but zeros have come.
    """

    PLANES = 7  # of magnitudes

    def __init__(self, config: LearningConfig, sizes: Sequence[int]) -> None:
        super().__init__(config, sizes)
        self._scales, self._plane = 32 * len(self.sizes), 8 * -(-self.values // 8)  # bits
        self.least_bits = self._scales + self._plane + 1

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        scale, whole = super().encode(values, keys)
        size = whole.abs()
        planes = [whole < 0, *((size >> bit) & 1 for bit in reversed(range(self.PLANES)))]
        return scale, torch.stack([to_bytes(plane) for plane in planes], 2)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        everything = torch.full_like(sent[0][..., 0], torch.iinfo(torch.int32).max)
        return self.decode_part(sent, everything.long())

    def decode_part(self, sent: Sequence[Tensor], bits: Tensor) -> Tensor:
        scale, packed = sent
        place = torch.arange(self.values, device=bits.device)
        since = (bits - self._scales)[..., None] - place - 1
        # Planes that have come of each value, that of the signs not counted.
        known = torch.div(since, self._plane, rounding_mode="floor").clamp(0, self.PLANES)
        size = torch.zeros(1, device=bits.device)
        for plane in range(1, self.PLANES + 1):
            bit = to_bits(packed[:, :, plane], self.values) * (known >= plane)
            size = size + bit * 2.0 ** (self.PLANES - plane)
        missing = 0.5 * (torch.exp2((self.PLANES - known).float()) - 1.0)
        size = torch.where(size > 0, size + missing, 0.0)
        minus = to_bits(packed[:, :, 0], self.values).bool()
        return _scaled(torch.where(minus, -size, size), scale, self.sizes)


@fused
def _rounded(values: Tensor, above: Tensor, sizes: list[int], levels: int) -> tuple[Tensor, Tensor]:
    """Scales [run, client, tensor], and every value in units of its tensor's, a whole number:
    rounded up with the probability of its fraction, by uniform numbers `above`."""
    parts = torch.split(values, sizes, dim=-1)
    largest = torch.stack([part.abs().amax(-1) for part in parts], -1)
    scale = (largest / levels).clamp(min=_TINY)  # of a tensor of zeros too
    drawn = torch.split(above, sizes, dim=-1)
    whole = [
        (part / scale[..., n, None] + own).floor().clamp(-levels, levels).to(torch.int8)
        for n, (part, own) in enumerate(zip(parts, drawn, strict=True))
    ]
    return scale, torch.cat(whole, -1)


@fused
def _scaled(whole: Tensor, scale: Tensor, sizes: list[int]) -> Tensor:
    """Every value times its tensor's scale."""
    parts = torch.split(whole, sizes, dim=-1)
    return torch.cat([part * scale[..., n, None] for n, part in enumerate(parts)], -1)


def to_bytes(bits: Tensor) -> Tensor:
    """Bits [..., n], 0 or 1, eight to a byte, the first the highest: uint8 [..., ceil(n / 8)].

    >>> to_bytes(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1]))
    tensor([129, 128], dtype=torch.uint8)
    """
    bits = bits.to(torch.uint8)
    octets = torch.nn.functional.pad(bits, (0, -bits.shape[-1] % 8))
    octets = octets.view(*bits.shape[:-1], -1, 8)
    return (octets << _shifts(bits.device)).sum(-1, dtype=torch.uint8)


def to_bits(packed: Tensor, count: int) -> Tensor:
    """The first bits of bytes [..., m]: uint8 [..., count], 0 or 1."""
    return ((packed[..., None] >> _shifts(packed.device)) & 1).flatten(-2)[..., :count]


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=device)
