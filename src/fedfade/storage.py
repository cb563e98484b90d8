"""Files that are written whole or not at all, and read without trusting them.

Nothing here unpickles: `.npz` archives are checked from their headers before an array is
allocated, so that a small file cannot claim a large one.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedfade.errors import UserError, not_allowed

MAX_ARRAY_BYTES = 16 * 2**30
"""No array of a file handed to us may claim more than this."""

_UNPACKED_RATIO, _UNPACKED_FREE = 50, 64 * 2**20
_NPY_HEADER = 10_200  # no array has a longer one
_FIGURE_DPI = 150
_TEMPORARY = ".fedfade-"  # how names of files being written begin

_held: dict[Path, tuple[int, int]] = {}
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
    _check_held(path)
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
        _clear(path.parent.glob(f"{_TEMPORARY}*"))
        handle, temporary = _temporary(path)
        try:
            os.fchmod(handle, 0o644)
            yield temporary
            _sync(temporary)
            _rename(temporary, path)
        except OSError:
            _check_held(path)
            raise
        finally:
            with suppress(OSError):  # gone already, or its folder is
                temporary.unlink()
            os.close(handle)


def _temporary(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, locked while its handle is open, so that `_clear` spares it."""
    while True:
        # The suffix stays last: Matplotlib and NumPy choose the format by it.
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=path.suffix, dir=path.parent)
        with suppress(OSError):  # there are file systems without locks, where nothing is cleared
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # somebody cleared it before it was locked


def _clear(files: Iterable[Path]) -> None:
    """Remove what killed processes left half written, and nothing that is being written."""
    for file in files:
        with suppress(OSError):
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()
            finally:
                os.close(handle)


@contextmanager
def staying(folder: Path) -> Iterator[None]:
    """Nothing below `folder` is written, or made anew, once it is no longer where it is now."""
    _held[place := folder.absolute()] = _identity(folder) or (0, 0)  # gone: nothing has that
    try:
        yield
    finally:
        del _held[place]


def rename(path: Path, new: Path) -> None:
    """Give a file of ours another name, in one step."""
    _check_held(new)
    with _told(f"{str(new)!r} cannot be written"):
        _rename(path, new)


def _rename(path: Path, new: Path) -> None:
    os.replace(path, new)
    _sync(new.parent)  # makes the rename itself durable


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
        # A name of a file may hold what is no text; it is spelled out.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path | str, value: object) -> None:
    """Write JSON whole or not at all; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def save_figure(figure: Any, path: Path | str) -> None:
    """Write a Matplotlib figure whole or not at all."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=_FIGURE_DPI)


def regular(path: Path | str) -> Path:
    """A path, unless what is there is a pipe or a device, which may block or never end."""
    with _told(f"{str(path)!r} cannot be read"):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder the system says so itself
        raise UserError(f"{str(path)!r} cannot be read: it is a pipe or a device, not a file.")
    return Path(path)


def most_unpacked(packed: int) -> int:
    """Bytes that so many packed ones may unpack to: measured numbers do not shrink like zeros,
    of which deflate packs a thousand into one."""
    return _UNPACKED_RATIO * packed + _UNPACKED_FREE


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, however large."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: Path | str, max_bytes: int) -> bytes:
    """A file's content, unless it is larger than allowed."""
    content = b""
    with _told(f"{str(path)!r} cannot be read"), regular(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            # It may grow meanwhile: read on until the limit, not into room for all of it.
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

    Object arrays (pickles), arrays larger in all than `max_bytes` or than a file of this size may
    unpack to, are refused from the headers, before anything is allocated.
    """
    path, arrays = regular(path), {}
    max_bytes = min(max_bytes, most_unpacked(path.stat().st_size))
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
    claimed = entry.file_size
    if claimed > max_bytes + _NPY_HEADER:
        raise UserError(f"{array} claims {claimed} bytes; at most {max_bytes} are read.")
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


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links in it: what is written or cleaned up there may lie outside."""
    for link in _links(folder):
        raise UserError(f"{link!r} is a link, which may lead out of {str(folder)!r}: remove it.")


def _links(folder: Path | str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:  # somebody may be at work there
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif entry.is_dir():
                yield from _links(entry.path)


def begin_anew(folder: Path, marker: str, names: Iterable[str]) -> None:
    """Remove what a command has left in a folder, and nothing else, if it has left its `marker`;
    the marker last, by which it is known."""
    if not (folder / marker).exists():
        return
    with folder_lock(folder):
        for path in (path for name in (*names, marker) for path in folder.glob(name)):
            with _told(f"{str(path)!r} cannot be removed"):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class InUse(UserError):
    """Another process holds a folder."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a run folder; a second holder is refused. The kernel frees it if the process dies.

    What a killed process left half written is removed, and so is a new folder into which nothing
    was written before the user's mistake was found. A folder with links in it is refused.
    """
    new = not folder.exists()
    make_folder(folder)
    refuse_links(folder)
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
        with staying(folder):
            try:
                _clear(folder.rglob(f"{_TEMPORARY}*"))
                yield
            except UserError:
                with suppress(OSError):  # gone already, or somebody has just put something there
                    if new and os.listdir(folder) == [".lock"]:
                        take_back(folder / ".lock")
                        folder.rmdir()
                raise
