"""Numeric arrays of MATLAB files, versions 5 to 7, without trusting a single length in them.

A file is a header of 128 bytes and then elements: tag (type, length), data, padded to 8 bytes. An
array is an element of type 14 whose own elements are flags, extents, name, real and imaginary
part; a compressed element (type 15) unpacks to one. Only named numeric arrays are unpacked, and
nothing is allocated that the bytes in the file do not fill.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Set

import numpy as np

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
_NUMBERS |= {13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC_CLASSES = range(6, 16)  # double, single, and the integers
_COMPLEX = 0x08
_HEAD = 512  # unpacked bytes that surely hold flags, extents and name of an array we want


class BrokenMat(ValueError):
    """Not a MATLAB file of these versions, or damaged."""


class TooLarge(ValueError):
    """An array that claims more than is read; its text names it."""


def read_mat(
    content: bytes, wanted: Set[str], max_bytes: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The numeric arrays of `wanted` by name, and the names of everything in the file.

    >>> from io import BytesIO; from scipy.io import savemat
    >>> file = BytesIO(); savemat(file, {"x": np.eye(2) * 1j, "note": "hello"})
    >>> arrays, names = read_mat(file.getvalue(), {"x"}, max_bytes=1000)
    >>> arrays["x"].tolist(), names
    ([[1j, 0j], [0j, 1j]], ['x', 'note'])
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if len(content) < 128 or order is None:
        raise BrokenMat("no header")
    arrays: dict[str, np.ndarray] = {}
    names = []
    for kind, data in _elements(memoryview(content)[128:], order, padded=True):
        if kind == _COMPRESSED:
            name = _name(_unpack(data, _HEAD), order)
            if name in wanted:
                unpacked = _unpack(data, max_bytes + 4096)
                if len(unpacked) > max_bytes + 4095:
                    raise TooLarge(name)
                array = _array(*_first(unpacked, order), max_bytes)
        elif kind == _MATRIX:
            name = _name_in(data, order)
            array = _array(data, order, max_bytes) if name in wanted else None
        else:
            continue
        names.append(name)
        if name in wanted and array is not None:
            arrays[name] = array
    return arrays, names


def _elements(data: memoryview, order: str, padded: bool) -> Iterator[tuple[int, memoryview]]:
    """Elements one after another; each must lie inside `data`."""
    place = 0
    while place < len(data):
        head = data[place : place + 8]
        if len(head) < 8:
            raise BrokenMat("a tag is cut off")
        first, second = (int(n) for n in np.frombuffer(head, f"{order}u4"))
        if first >> 16:  # up to four bytes share the tag with type and length
            kind, length = first & 0xFFFF, first >> 16
            if length > 4:
                raise BrokenMat("a small element that is not small")
            yield kind, head[4 : 4 + length]
            place += 8
            continue
        if second > len(data) - place - 8:
            raise BrokenMat("an element longer than the file")
        yield first, data[place + 8 : place + 8 + second]
        place += 8 + second
        # Compressed elements are not padded; all others are.
        if first != _COMPRESSED or not padded:
            place += -second % 8


def _unpack(data: memoryview, limit: int) -> memoryview:
    try:
        return memoryview(zlib.decompressobj().decompress(data, limit))
    except zlib.error:
        raise BrokenMat("a compressed element is damaged") from None


def _first(unpacked: memoryview, order: str) -> tuple[memoryview, str]:
    for kind, data in _elements(unpacked, order, padded=False):
        if kind == _MATRIX:
            return data, order
        break
    raise BrokenMat("no array in a compressed element")


def _name(head: memoryview, order: str) -> str:
    """Name of the array that begins with these unpacked bytes."""
    if len(head) < 8 or int(np.frombuffer(head[:4], f"{order}u4")[0]) != _MATRIX:
        raise BrokenMat("no array in a compressed element")
    return _name_in(head[8:], order)


def _name_in(data: memoryview, order: str) -> str:
    parts = _elements(data, order, padded=False)
    try:
        for _ in range(2):  # flags, extents
            next(parts)
        kind, name = next(parts)
    except StopIteration:
        raise BrokenMat("an array without a name") from None
    if kind not in (1, 2):
        raise BrokenMat("a name that is no text")
    return bytes(name).decode("latin1")


def _array(data: memoryview, order: str, max_bytes: int) -> np.ndarray | None:
    """A full numeric array, None for structures, texts and the like."""
    parts = list(_elements(data, order, padded=False))
    if len(parts) < 3 or len(parts[0][1]) != 8:
        raise BrokenMat("an array without flags")
    flags = int(np.frombuffer(parts[0][1], f"{order}u4")[0])
    if flags & 0xFF not in _NUMERIC_CLASSES:
        return None
    shape = _numbers(*parts[1], order)
    if shape.dtype.kind != "i" or len(shape) < 2 or len(shape) > 32 or (shape < 0).any():
        raise BrokenMat("extents that are none")
    count = 1
    for extent in shape.tolist():
        count *= extent
    complex_ = bool(flags >> 8 & _COMPLEX)
    if 16 * count > max_bytes:
        raise TooLarge(bytes(parts[2][1]).decode("latin1"))
    if len(parts) < 4 + complex_:
        raise BrokenMat("an array without numbers")
    values = _numbers(*parts[3], order)
    if complex_:
        imaginary = _numbers(*parts[4], order)
        if len(imaginary) != len(values):
            raise BrokenMat("real and imaginary parts of different length")
        values = values + 1j * imaginary
    if len(values) != count:
        raise BrokenMat("extents that do not fit the numbers")
    return values.reshape(shape.tolist(), order="F")


def _numbers(kind: int, data: memoryview, order: str) -> np.ndarray:
    if kind not in _NUMBERS:
        raise BrokenMat("an unknown type of number")
    dtype = np.dtype(order + _NUMBERS[kind])
    if len(data) % dtype.itemsize:
        raise BrokenMat("half a number")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
