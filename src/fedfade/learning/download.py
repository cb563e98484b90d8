"""CIFAR-10 from its authors, checked and turned into `.npz` files.

The binary release is a tar of raw bytes (one label, then the red, green and blue planes of an
image, 3,073 bytes in all), so nothing has to be unpickled.
"""

import hashlib
import re
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedfade.errors import UserError
from fedfade.learning.data import CIFAR10_FILES, find_cifar10
from fedfade.storage import make_folder, read_bytes, sha256_of, write_json, write_npz

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_BATCHES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
_FILES = dict(zip(_BATCHES, CIFAR10_FILES, strict=True))
_RECORD = 1 + 3 * 32 * 32
_MAX_ARCHIVE_BYTES = 2**30
_SUMS = "SHA256SUMS"
_SUM_LINE = re.compile(r"^([0-9a-fA-F]{64}) [ *](.+?)\s*$", re.MULTILINE)

Arrays = dict[str, NDArray[np.uint8]]
OnBytes = Callable[[int, int], None]  # told the bytes so far and in all, or 0 if nobody knows


@dataclass(frozen=True)
class Source:
    """An archive and what it must hash to."""

    url: str = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    md5: str = "c32a1d4ab5d03f1284b67883e8d87530"
    images_per_file: int = 10_000


def fetch_cifar10(
    folder: Path, source: Source | None = None, tell: OnBytes = lambda done, total: None
) -> Path:
    """The folder with CIFAR-10: as found, or downloaded into `folder`/cifar10.

    What is found must agree with a SHA256SUMS beside it. The six files are written only after the
    whole archive has passed its checksum.
    """
    if found := find_cifar10(folder):
        _check_sums(found)
        return found
    target = folder / "cifar10"
    made = [place for place in (target, *target.parents) if not place.exists()]  # inner first
    make_folder(target)  # now, so that a folder we may not write to is known
    try:
        files = _download(source or Source(), tell)
    except BaseException:
        with suppress(OSError):  # not ours to remove if there is something in it
            for place in made:
                place.rmdir()
        raise
    write_json(target / "classes.json", list(CLASSES))
    for name in CIFAR10_FILES:  # until all are there `find_cifar10` does not take the folder
        write_npz(target / f"{name}.npz", files[name])
    return target


def _check_sums(folder: Path) -> None:
    """Compare the files with the sums beside them, if any; reading data does not, to be quick."""
    sums = folder / _SUMS
    if not sums.is_file():
        return
    text = read_bytes(sums, 2**20).decode("utf-8", "replace")
    wanted = {name: digest.lower() for digest, name in _SUM_LINE.findall(text)}
    for name in (f"{file}.npz" for file in CIFAR10_FILES):
        if name not in wanted:
            raise UserError(f"{str(sums)!r} has no sum of {name!r}: it must have all six files'.")
        file, needed = folder / name, f"{wanted[name]}, as {_SUMS} beside it says"
        if (digest := sha256_of(file)) != wanted[name]:
            raise UserError(f"{str(file)!r} has SHA-256 {digest}: it must be {needed}.")


def _download(source: Source, tell: OnBytes) -> dict[str, Arrays]:
    """The six files of an archive that passed its checksum."""
    md5, done = hashlib.md5(usedforsecurity=False), 0
    with tempfile.TemporaryFile() as archive:
        try:
            with urllib.request.urlopen(source.url, timeout=30) as answer:
                total = int(answer.headers.get("Content-Length") or 0)
                while block := answer.read(1 << 18):
                    done += len(block)
                    if done > _MAX_ARCHIVE_BYTES:
                        raise UserError(f"{source.url} sends more than {_MAX_ARCHIVE_BYTES} bytes.")
                    archive.write(block)
                    md5.update(block)
                    tell(done, total)
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"CIFAR-10 cannot be downloaded from {source.url} ({reason}): get a network, or "
                "put the folder of train_1.npz ... train_5.npz and test.npz in place and name it "
                "with --data-dir or FEDFADE_DATA."
            ) from None
        if md5.hexdigest() != source.md5:
            wanted = f"{source.md5}; it is damaged or not CIFAR-10, so nothing was written"
            found = f"the archive from {source.url} has MD5 {md5.hexdigest()}"
            raise UserError(f"{found}: it must be {wanted}.")
        archive.seek(0)
        return _read_archive(archive, source)


def _read_archive(archive: IO[bytes], source: Source) -> dict[str, Arrays]:
    """Images [sample, row, column, channel] and labels of the six files."""
    found: dict[str, Arrays] = {}
    size = _RECORD * source.images_per_file
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            for member in tar:
                name = _FILES.get(Path(member.name).name)
                if name is None or not member.isfile():
                    continue
                file = tar.extractfile(member)
                raw = file.read(size + 1) if file else b""
                if len(raw) != size:
                    wrong = "has the wrong size: the archive is not the binary CIFAR-10"
                    raise UserError(f"{member.name} in {source.url} {wrong}.")
                rows = np.frombuffer(raw, np.uint8).reshape(-1, _RECORD)
                planes = rows[:, 1:].reshape(-1, 3, 32, 32)
                images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
                found[name] = {"images": images, "labels": rows[:, 0].copy()}
    except (tarfile.TarError, EOFError, OSError):
        raise UserError(f"the archive from {source.url} is truncated or damaged.") from None
    if missing := sorted(set(_FILES.values()) - set(found)):
        raise UserError(f"the archive from {source.url} lacks {', '.join(missing)}.")
    return found
