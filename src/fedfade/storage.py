"""Files that are written whole or not at all, and read without trusting them.

Nothing here unpickles: `.npz` archives are checked against a size limit from their headers
before an array is allocated.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedfade.errors import UserError, not_allowed

MAX_ARRAY_BYTES = 16 * 2**30
"""No array of a file handed to us may claim more than this."""


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def make_folder(path: Path) -> Path:
    """Create a folder (and its parents), or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder {str(path)!r} cannot be made: {_reason(error)}.") from None
    return path


@contextmanager
def writing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes its place in one step.

    Until the block ends without an error nothing at `path` changes: the temporary file is
    flushed to disk and renamed over it, or removed.
    """
    path = Path(path)
    if path.is_dir():
        raise not_allowed("output", str(path), "a file, and this is a folder")
    make_folder(path.parent)
    try:
        # The suffix stays last: Matplotlib and NumPy choose the format by it.
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent
        )
        os.fchmod(handle, 0o644)
        os.close(handle)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {_reason(error)}.") from None
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {_reason(error)}.") from None
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path | str, text: str) -> None:
    """Write a text file whole or not at all."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: object) -> None:
    """Write JSON whole or not at all; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path | str, max_bytes: int = 256 * 2**20) -> Any:
    """Read JSON, or say in one sentence what is wrong with it."""
    path = Path(path)
    try:
        if path.stat().st_size > max_bytes:
            raise UserError(f"{str(path)!r} is larger than {max_bytes} bytes.")
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {_reason(error)}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{str(path)!r} is not valid JSON.") from None


def write_npz(path: Path | str, arrays: Mapping[str, Any]) -> None:
    """Write a compressed `.npz` whole or not at all."""
    with writing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_npz(
    path: Path | str, wanted: tuple[str, ...] | None = None, max_bytes: int = MAX_ARRAY_BYTES
) -> dict[str, np.ndarray]:
    """Arrays of an `.npz` by name (all, or those of `wanted` that are there).

    Object arrays (pickles) and arrays larger than `max_bytes` are refused from the header,
    before anything is allocated.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {}
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if not entry.filename.endswith(".npy") or (wanted and name not in wanted):
                    continue
                with archive.open(entry) as member:
                    _check_header(member, name, path, max_bytes)
                with archive.open(entry) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
            return arrays
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {_reason(error)}.") from None
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError):
        raise UserError(f"{str(path)!r} is not an intact .npz archive.") from None
    except Exception as error:  # zlib.error, struct.error, MemoryError: all mean a broken file
        if isinstance(error, UserError):
            raise
        raise UserError(f"{str(path)!r} is not an intact .npz archive.") from None


def _check_header(member: IO[bytes], name: str, path: Path, max_bytes: int) -> None:
    """Refuse object arrays and oversized arrays before NumPy allocates them."""
    head = member.read(12)
    if head[:6] != b"\x93NUMPY":
        raise ValueError("not an array")
    if head[6] == 1:
        length, start = struct.unpack("<H", head[8:10])[0], head[10:]
    else:
        length, start = struct.unpack("<I", head[8:12])[0], b""
    if length > 100_000:
        raise ValueError("header too long")
    header = ast.literal_eval((start + member.read(length - len(start))).decode("latin1"))
    dtype = np.dtype(header["descr"])
    if dtype.hasobject:
        raise UserError(f"array {name!r} in {str(path)!r} holds Python objects, which are refused.")
    size = dtype.itemsize
    for extent in header["shape"]:
        size *= int(extent)
    if size > max_bytes or size < 0:
        raise UserError(
            f"array {name!r} in {str(path)!r} claims {size} bytes; at most {max_bytes} are read."
        )


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a run folder; a second holder is refused. The kernel frees it if the process dies."""
    make_folder(folder)
    try:
        handle = open(folder / ".lock", "a+")  # noqa: SIM115 - held until the block ends
    except OSError as error:
        raise UserError(f"folder {str(folder)!r} cannot be written: {_reason(error)}.") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"folder {str(folder)!r} is in use by another fedfade process; wait for it or "
                "choose another --out."
            ) from None
        yield
