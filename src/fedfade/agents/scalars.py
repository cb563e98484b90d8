"""TensorBoard scalars without TensorBoard.

An event file is a sequence of records (length, checksum, payload, checksum), each payload one
protobuf message `Event`. Scalars need three of its fields; these lines spare a training machine
the whole package.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from fedfade.errors import UserError
from fedfade.storage import make_folder

_CRC_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_SESSION_START = 1


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_CRC_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """The checksum of the record format.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


class ScalarWriter:
    """Appends scalars to a new event file in a folder; `first_step` hides older ones after it."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        make_folder(folder)
        # Readers take files in the order of their names: nanoseconds with all their zeros, so that
        # a training resumed within the second comes after what it continues.
        seconds, fraction = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds}.{fraction:09d}.{socket.gethostname()}"
        self._path = folder / name
        try:
            self._file: IO[bytes] = self._path.open("wb", buffering=0)
        except OSError as error:
            raise self._refused(error) from None
        self._event(_bytes_field(3, b"brain.Event:2"))
        # A session start tells TensorBoard to drop what an interrupted run wrote beyond this.
        start = _varint(1 << 3 | 0) + _varint(_SESSION_START)
        self._event(_bytes_field(7, start), first_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values that are numbers."""
        summary = b"".join(
            _bytes_field(1, _bytes_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in values.items()
            if math.isfinite(value)
        )
        self._event(_bytes_field(5, summary), step)

    def _event(self, payload: bytes, step: int = 0) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + payload
        head = struct.pack("<Q", len(event))
        record = head + struct.pack("<I", masked_crc32c(head))
        record += event + struct.pack("<I", masked_crc32c(event))
        try:
            written = self._file.write(record)  # whole, so that a killed run leaves whole records
        except OSError as error:
            raise self._refused(error) from None
        if written != len(record):
            raise self._refused(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _refused(self, error: OSError) -> UserError:
        reason = (error.strerror or type(error).__name__).lower()
        return UserError(f"{str(self._path)!r} cannot be written: {reason}.")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
