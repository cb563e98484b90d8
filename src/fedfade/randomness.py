"""Random numbers that depend on (seed, purpose, indices) and on nothing else.

Every stream is a 64-bit key, every draw a hash of (key, position) by SplitMix64. So the
numbers of drop 7 are the same whether it is computed alone or in a batch of 600, on the CPU
or on CUDA, first or last: resuming and re-batching change nothing.

    seed + purpose  --stream-->  key  --fold-->  one key per drop, round, episode
                                      --uniform / normal / integers-->  numbers

Host-side work that wants NumPy (partitions, mini-batch order) takes `numpy_generator`.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(word: int) -> int:
    """The int64 with the same 64 bits, because torch has no arithmetic on uint64."""
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's `>>` copies the sign bit in, the mask takes it out again."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on every element (int64 arithmetic wraps, as it must)."""
    x = (x ^ _shift_right(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift_right(x, 27)) * _signed(_MIX_2)
    return x ^ _shift_right(x, 31)


def stream(seed: int, purpose: str, *indices: int) -> int:
    """The key of one stream, a signed 64-bit integer.

    >>> stream(0, "fading", 3) == stream(0, "fading", 3) != stream(0, "fading", 4)
    True
    """
    text = "/".join([str(int(seed)), purpose, *(str(int(i)) for i in indices)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return _signed(int.from_bytes(digest, "little"))


def streams(
    seeds: Sequence[int], purpose: str, *indices: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Keys of the same purpose for several seeds: [seed]."""
    return torch.tensor([stream(s, purpose, *indices) for s in seeds], device=device)


def fold(keys: Tensor | int, index: Tensor | int) -> Tensor:
    """New keys from keys and an index; the two broadcast against each other.

    >>> drops = fold(stream(7, "fading"), torch.arange(600))      # [drop]
    >>> clients = fold(drops[:, None], torch.arange(10))          # [drop, client]
    >>> clients.shape
    torch.Size([600, 10])
    """
    # A plain number is filled in where the other is: carrying it there would wait.
    if not isinstance(keys, Tensor):
        device = index.device if isinstance(index, Tensor) else None
        keys = torch.full((), int(keys), dtype=torch.int64, device=device)
    if not isinstance(index, Tensor):
        index = torch.full((), int(index), dtype=torch.int64, device=keys.device)
    index = index.to(keys.device, torch.int64)
    # Two rounds of mixing, so that (key + a, index + b) never meets (key, index) by addition.
    return _mix(_mix(index * _signed(_GAMMA) + 1) ^ _mix(keys))


def bits(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """64 random bits an element, as int64: [*keys.shape, *shape]."""
    count = math.prod(shape)
    position = torch.arange(1, count + 1, device=keys.device)
    # Times a tensor, not a number: compilers take a range for 32-bit integers otherwise.
    gamma = torch.full((), _signed(_GAMMA), dtype=torch.int64, device=keys.device)
    return _mix(keys[..., None] + position * gamma).reshape(*keys.shape, *shape)


def uniform(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """float32 in the open interval (0, 1): [*keys.shape, *shape]."""
    return _between_0_and_1(bits(keys, shape))


def _between_0_and_1(words: Tensor) -> Tensor:
    # 23 bits and half a step: neither 0 nor 1 can occur, so log and division are safe.
    return (_shift_right(words, 41).to(torch.float32) + 0.5) * 2.0**-23


def normal(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """Standard normal float32 by Box-Muller, two from each 64-bit word: [*keys.shape, *shape]."""
    count = math.prod(shape)
    words = bits(keys, ((count + 1) // 2,))
    radius = torch.sqrt(-2.0 * torch.log(_between_0_and_1(words)))
    angle = (words & 0xFFFFFF).to(torch.float32) * (2.0 * math.pi * 2.0**-24)
    pair = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return pair[..., :count].reshape(*keys.shape, *shape)


def integers(keys: Tensor, high: Tensor | int, shape: Sequence[int]) -> Tensor:
    """Whole numbers 0 ... high-1 as int64: [*keys.shape, *shape]."""
    # 31 random bits times high, then the upper part: bias below high / 2^31.
    return (_shift_right(bits(keys, shape), 33) * high) >> 31


def numpy_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A NumPy generator for host-side work, keyed the same way."""
    return np.random.default_rng(stream(seed, purpose, *indices) & _WORD)


def torch_generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """A CPU torch generator, for library code that insists on one (weight initialisation)."""
    return torch.Generator().manual_seed(stream(seed, purpose, *indices) & (_WORD >> 1))
