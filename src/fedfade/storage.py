"""Files that are written whole or not at all, and read without trusting them.

Nothing here unpickles: `.npz` archives are checked from their headers before an array is
allocated, so that a small file cannot claim a large one.
"""

import ast
import fcntl
import hashlib
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

_DEFLATE_RATIO = 1032  # no deflated stream grows by more
_TEMPORARY = ".fedfade-"  # how names of files being written begin

_held: dict[Path, tuple[int, int]] = {}
"""Folders this process holds, with their device and inode: a folder that was moved away must not
come into being again, half empty, under its old name."""


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def make_folder(path: Path) -> Path:
    """Create a folder (and its parents), or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder {str(path)!r} cannot be made: {_reason(error)}.") from None
    return path


def check_folder(path: Path) -> None:
    """Say why a folder cannot be made or written to, without making it."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"folder {str(path)!r} cannot be made: {str(place)!r} is a file.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"folder {str(path)!r} cannot be written: permission denied.")


@contextmanager
def writing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes its place in one step.

    Until the block ends without an error nothing at `path` changes: the temporary file is
    flushed to disk and renamed over it, or removed.
    """
    path = Path(path)
    if path.is_dir():
        raise not_allowed("output", str(path), "a file, and this is a folder")
    _check_held(path)
    make_folder(path.parent)
    try:
        # The suffix stays last: Matplotlib and NumPy choose the format by it.
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=path.suffix, dir=path.parent)
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
        _check_held(path)
        raise UserError(f"{str(path)!r} cannot be written: {_reason(error)}.") from None
    finally:
        with suppress(OSError):  # gone already, or its folder is
            temporary.unlink()


def _check_held(path: Path) -> None:
    """Refuse to write below a held folder that is no longer where it was."""
    for folder, identity in _held.items():
        if folder not in path.absolute().parents:
            continue
        try:
            found = os.stat(folder)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != identity:
            raise UserError(
                f"folder {str(folder)!r} was moved or removed while in use; what was saved before "
                "is where the folder is now, and the same command continues there."
            )


def take_back(*paths: Path) -> None:
    """Remove files from a held folder, unless it was moved and this is another one."""
    with suppress(UserError, OSError):
        for path in paths:
            _check_held(path)
            path.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a file is one that `writing` had not finished when its process was killed."""
    return path.name.startswith(_TEMPORARY)


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


def save_figure(figure: Any, path: Path | str, dpi: int = 150) -> None:
    """Write a Matplotlib figure whole or not at all."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: Path | str, max_bytes: int) -> bytes:
    """A file's content, unless it is larger than allowed."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise UserError(f"{str(path)!r} is larger than {max_bytes} bytes.")
            # A pipe or device has no size: read on until the limit, not into room for all of it.
            content = file.read(size)
            while len(content) <= max_bytes and (more := file.read(1 << 20)):
                content += more
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {_reason(error)}.") from None
    if len(content) > max_bytes:
        raise UserError(f"{str(path)!r} is larger than {max_bytes} bytes.")
    return content


def read_json(path: Path | str, max_bytes: int = 16 * 2**20) -> Any:
    """Read JSON, or say in one sentence what is wrong with it."""
    try:
        return json.loads(read_bytes(path, max_bytes).decode("utf-8"))
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

    Object arrays (pickles), arrays larger than `max_bytes` in all, and arrays larger than what the
    file really holds are refused from the headers, before anything is allocated.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {}
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if not entry.filename.endswith(".npy") or (wanted and name not in wanted):
                    continue
                _check_packing(entry, path)
                with archive.open(entry) as member:
                    max_bytes -= _checked_size(member, entry.file_size, name, path, max_bytes)
                with archive.open(entry) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
            return arrays
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {_reason(error)}.") from None
    except Exception:  # zipfile, zlib, struct and NumPy each have their own: all mean a broken file
        raise UserError(f"{str(path)!r} is not an intact .npz archive.") from None


def _check_packing(entry: zipfile.ZipInfo, path: Path) -> None:
    """What an entry unpacks to is limited by what is really in the file."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("NumPy writes no such archives")
    there = min(entry.compress_size, path.stat().st_size)
    if entry.file_size > _DEFLATE_RATIO * there + 1000:
        raise UserError(
            f"array {entry.filename.removesuffix('.npy')!r} in {str(path)!r} claims "
            f"{entry.file_size} bytes, more than {there} packed bytes can hold."
        )


def _checked_size(member: IO[bytes], file_size: int, name: str, path: Path, max_bytes: int) -> int:
    """Bytes of an array; object arrays and oversized ones are refused."""
    head = member.read(12)
    if head[:6] != b"\x93NUMPY":
        raise ValueError("not an array")
    if head[6] == 1:
        length, start = struct.unpack("<H", head[8:10])[0], head[10:]
    else:
        length, start = struct.unpack("<I", head[8:12])[0], b""
    if length > 10_000:
        raise ValueError("header too long")
    header = ast.literal_eval((start + member.read(length - len(start))).decode("latin1"))
    dtype = np.dtype(header["descr"])
    if dtype.hasobject:
        raise UserError(f"array {name!r} in {str(path)!r} holds Python objects, which are refused.")
    # Items of no size count too: somebody may walk over them.
    size = max(1, int(dtype.itemsize))
    for extent in header["shape"]:
        if int(extent) < 0:
            raise ValueError("negative extent")
        size *= int(extent)
    limit = min(max_bytes, file_size)
    if size > limit:
        raise UserError(
            f"array {name!r} in {str(path)!r} claims {size} bytes; at most {limit} are read."
        )
    return size


class InUse(UserError):
    """Another process holds a folder."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a run folder; a second holder is refused. The kernel frees it if the process dies.

    What a killed process left half written is removed, and so is a new folder into which nothing
    was written before the user's mistake was found.
    """
    new = not folder.exists()
    make_folder(folder)
    try:
        handle = open(folder / ".lock", "a+")  # noqa: SIM115 - held until the block ends
    except OSError as error:
        raise UserError(f"folder {str(folder)!r} cannot be written: {_reason(error)}.") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"folder {str(folder)!r} is in use by another fedfade process; wait for it or "
                "choose another --out."
            ) from None
        except OSError as error:
            raise UserError(f"folder {str(folder)!r} cannot be held: {_reason(error)}.") from None
        place, found = folder.absolute(), os.stat(folder)
        _held[place] = (found.st_dev, found.st_ino)
        try:
            for rest in [*folder.glob(f"{_TEMPORARY}*"), *folder.glob(f"*/{_TEMPORARY}*")]:
                with suppress(OSError):
                    rest.unlink()
            yield
        except UserError:
            with suppress(OSError):  # gone already, or somebody has just put something there
                if new and os.listdir(folder) == [".lock"]:
                    take_back(folder / ".lock")
                    folder.rmdir()
            raise
        finally:
            del _held[place]
