"""Files that are written whole or not at all, and read without trusting them.

Nothing here unpickles: `.npz` archives are checked from their headers before an array is
allocated, so that a small file cannot claim a large one.
"""

import fcntl
import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedfade.errors import UserError, not_allowed

MAX_ARRAY_BYTES = 16 * 2**30
"""No array of a file handed to us may claim more than this."""

_DEFLATE_RATIO = 1032  # no deflated stream grows by more
_TEMPORARY = ".fedfade-"  # how names of files being written begin

_held: dict[Path, tuple[int, int] | None] = {}
"""Folders this process holds, with their device and inode: a folder that was moved away must not
come into being again, half empty, under its old name."""


@contextmanager
def _told(refused: str) -> Iterator[None]:
    """What the system refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UserError(f"{refused}: {reason}.") from None


def make_folder(path: Path) -> Path:
    """Create a folder (and its parents), or say why not."""
    with _told(f"folder {str(path)!r} cannot be made"):
        path.mkdir(parents=True, exist_ok=True)
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
    with _told(f"{str(path)!r} cannot be written"):
        # The suffix stays last: Matplotlib and NumPy choose the format by it.
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=path.suffix, dir=path.parent)
        temporary = Path(name)
        try:
            os.fchmod(handle, 0o644)
            os.close(handle)
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)  # makes the rename itself durable
        except OSError:
            _check_held(path)
            raise
        finally:
            with suppress(OSError):  # gone already, or its folder is
                temporary.unlink()


def _check_held(path: Path) -> None:
    """Refuse to write below a held folder that is no longer where it was."""
    for folder, identity in _held.items():
        if folder in path.absolute().parents and _identity(folder) != identity:
            raise UserError(
                f"folder {str(folder)!r} was moved or removed while in use; what was saved before "
                "is where the folder is now, and the same command continues there."
            )


def _identity(folder: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(folder)
        return found.st_dev, found.st_ino
    return None  # it is not there


def take_back(*paths: Path) -> None:
    """Remove files from a held folder, unless it was moved and this is another one."""
    with suppress(UserError, OSError):
        for path in paths:
            _check_held(path)
            path.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a file is one that `writing` had not finished when its process was killed."""
    return path.name.startswith(_TEMPORARY)


def _sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
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
    content = b""
    with _told(f"{str(path)!r} cannot be read"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            # A pipe or device has no size: read on until the limit, not into room for all of it.
            content = file.read(size)
            while len(content) <= max_bytes and (more := file.read(1 << 20)):
                content += more
    if max(size, len(content)) > max_bytes:
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
    arrays = {}
    try:
        with _told(f"{str(path)!r} cannot be read"), zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if not entry.filename.endswith(".npy") or (wanted and name not in wanted):
                    continue
                max_bytes -= _checked_size(archive, entry, path, max_bytes)
                with archive.open(entry) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    except UserError:
        raise
    except Exception:  # zipfile, zlib, struct and NumPy each have their own: all mean a broken file
        raise UserError(f"{str(path)!r} is not an intact .npz archive.") from None
    return arrays


def _checked_size(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, max_bytes: int
) -> int:
    """Bytes of an array; object arrays and those larger than what is in the file are refused."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("NumPy writes no such archives")
    array = f"array {entry.filename.removesuffix('.npy')!r} in {str(path)!r}"
    there, claimed = min(entry.compress_size, path.stat().st_size), entry.file_size
    if claimed > _DEFLATE_RATIO * there + 1000:
        held = f"more than {there} packed bytes can hold"
        raise UserError(f"{array} claims {claimed} bytes, {held}.")
    with archive.open(entry) as member:
        first = np.lib.format.read_magic(member) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.hasobject:
        raise UserError(f"{array} holds Python objects, which are refused.")
    if min(shape, default=0) < 0:
        raise ValueError("negative extent")
    # Items of no size count too: somebody may walk over them.
    size, limit = max(1, dtype.itemsize) * math.prod(shape), min(max_bytes, claimed)
    if size > limit:
        raise UserError(f"{array} claims {size} bytes; at most {limit} are read.")
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
    name = f"folder {str(folder)!r}"
    with _told(f"{name} cannot be written"):
        handle = open(folder / ".lock", "a+")  # noqa: SIM115 - held until the block ends
    with handle:
        with _told(f"{name} cannot be held"):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                advice = "wait for it or choose another --out"
                raise InUse(f"{name} is in use by another fedfade process; {advice}.") from None
        place = folder.absolute()
        _held[place] = _identity(folder)
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
