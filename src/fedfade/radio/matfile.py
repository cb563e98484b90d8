"""Numeric arrays of MATLAB files, versions 4 to 7, without trusting a single length in them.

From version 5 on a file is a header of 128 bytes and then elements: tag (type, length), data,
padded to 8 bytes. An array is an element of type 14 whose own elements are flags, extents, name,
real and imaginary part; a compressed element (type 15) unpacks to one. Only named numeric arrays
are unpacked, and nothing is allocated that the bytes in the file do not fill. SciPy's reader is no
substitute: some damaged files end it, and Python with it, in a segmentation fault.
"""

import math
import zlib
from collections.abc import Iterator, Set
from itertools import islice

import numpy as np

from fedfade.storage import most_unpacked

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
_NUMBERS |= {13: "u8"}
_NUMBERS_4 = {0: "f8", 1: "f4", 2: "i4", 3: "i2", 4: "u2", 5: "u1"}
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC_CLASSES = range(6, 16)  # double, single, and the integers
_COMPLEX = 0x08
_HEAD = 512  # unpacked bytes that surely hold flags, extents and name of an array we want


class BrokenMat(ValueError):
    """Not a MATLAB file of these versions, or damaged."""


class TooLarge(ValueError):
    """An array that claims more than is read; its text names it."""


def _require(intact: bool, fault: str) -> None:
    if not intact:
        raise BrokenMat(fault)


def read_mat(
    content: bytes, wanted: Set[str], max_bytes: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The numeric arrays of `wanted` by name, and the names of everything in the file."""
    if content[126:128] not in (b"IM", b"MI"):
        return _read_version_4(memoryview(content), wanted)
    order = "<" if content[126:128] == b"IM" else ">"
    arrays: dict[str, np.ndarray] = {}
    names, room = [], min(max_bytes, most_unpacked(len(content)))
    for kind, data in _elements(memoryview(content)[128:], order):
        if kind not in (_MATRIX, _COMPRESSED):
            continue
        name = _name(data if kind == _MATRIX else _unpack(data, _HEAD, order)[8:], order)
        names.append(name)
        if name not in wanted:
            continue
        inside = data
        if kind == _COMPRESSED:
            unpacked = _unpack(data, room + 1, order)
            room -= len(unpacked)
            if room < 0:
                raise TooLarge(name)
            _, inside = next(_elements(unpacked, order))
        if (array := _array(inside, order, max_bytes)) is not None:
            arrays[name] = array
    return arrays, names


def _read_version_4(data: memoryview, wanted: Set[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """No header; matrices one after another: five numbers, a name, real and imaginary part."""
    arrays: dict[str, np.ndarray] = {}
    names: list[str] = []
    while data or not names:
        _require(len(data) >= 20, "no header")
        order = "<" if int.from_bytes(data[:4], "little") < 1000 else ">"
        kind, rows, columns, imaginary, length = np.frombuffer(data[:20], f"{order}i4").tolist()
        machine, (precision, matrix) = kind // 1000, divmod(kind % 1000, 10)
        _require(machine == (order == ">") and precision in _NUMBERS_4, "no header")
        _require(matrix in (0, 1, 2) and imaginary in (0, 1), "no header")
        _require(min(rows, columns) >= 0 and 0 < length <= 256, "extents that make no shape")
        dtype = np.dtype(order + _NUMBERS_4[precision])
        count = rows * columns * (1 + imaginary)
        end = 20 + length + count * dtype.itemsize
        _require(end <= len(data), "an array longer than the file")
        names.append(bytes(data[20 : 19 + length]).decode("latin1"))
        if names[-1] in wanted and matrix == 0:
            parts = np.frombuffer(data[20 + length : end], dtype).astype(dtype.newbyteorder("="))
            real, *rest = np.split(parts, 1 + imaginary)
            values = real + 1j * rest[0] if rest else real
            arrays[names[-1]] = values.reshape((rows, columns), order="F")
        data = data[end:]
    return arrays, names


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Elements one after another; each must lie inside `data`."""
    while data:
        _require(len(data) >= 8, "a tag is cut off")
        kind, length = np.frombuffer(data[:8], f"{order}u4").tolist()
        if kind >> 16:  # up to four bytes share the tag with type and length
            kind, length = kind & 0xFFFF, kind >> 16
            _require(length <= 4, "a small element that is not small")
            yield kind, data[4 : 4 + length]
            data = data[8:]
            continue
        _require(length <= len(data) - 8, "an element longer than the file")
        yield kind, data[8 : 8 + length]
        padding = 0 if kind == _COMPRESSED else -length % 8
        data = data[8 + length + padding :]


def _unpack(data: memoryview, limit: int, order: str) -> memoryview:
    """A compressed array with its tag, up to `limit` bytes of it."""
    try:
        unpacked = memoryview(zlib.decompressobj().decompress(data, limit))
    except zlib.error:
        raise BrokenMat("a compressed element is damaged") from None
    array = len(unpacked) >= 8 and np.frombuffer(unpacked[:4], f"{order}u4")[0] == _MATRIX
    _require(array, "no array in a compressed element")
    return unpacked


def _name(data: memoryview, order: str) -> str:
    head = list(islice(_elements(data, order), 3))  # flags, extents, name
    _require(len(head) == 3, "an array without a name")
    kind, name = head[2]
    _require(kind in (1, 2), "a name that is not text")
    return bytes(name).decode("latin1")


def _array(data: memoryview, order: str, max_bytes: int) -> np.ndarray | None:
    """A full numeric array; None for structures, texts and the like."""
    parts = list(islice(_elements(data, order), 5))  # flags, extents, name, real and imaginary part
    _require(len(parts) >= 3 and len(parts[0][1]) == 8, "an array without flags")
    bits = int(np.frombuffer(parts[0][1], f"{order}u4")[0])
    if bits & 0xFF not in _NUMERIC_CLASSES:
        return None
    shape = _numbers(*parts[1], order)
    if shape.dtype.kind != "i" or not 2 <= len(shape) <= 32 or (shape < 0).any():
        raise BrokenMat("extents that make no shape")
    count = math.prod(shape.tolist())
    if 16 * count > max_bytes:
        raise TooLarge(bytes(parts[2][1]).decode("latin1"))
    has_imaginary = bool(bits >> 8 & _COMPLEX)
    _require(len(parts) >= 4 + has_imaginary, "an array without numbers")
    values = _numbers(*parts[3], order)
    if has_imaginary:
        imaginary = _numbers(*parts[4], order)
        _require(len(imaginary) == len(values), "real and imaginary parts of different length")
        values = values + 1j * imaginary
    _require(len(values) == count, "extents that do not fit the numbers")
    return values.reshape(shape.tolist(), order="F")


def _numbers(kind: int, data: memoryview, order: str) -> np.ndarray:
    _require(kind in _NUMBERS, "an unknown type of number")
    dtype = np.dtype(order + _NUMBERS[kind])
    _require(len(data) % dtype.itemsize == 0, "half a number")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
