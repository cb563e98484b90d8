"""Data sets: digits (bundled with scikit-learn), CIFAR-10, and a user's own `.npz` files.

Images stay as they come, [sample, row, column, channel], mostly uint8; a mini-batch is
normalised per channel when it is taken. Its permuted view is what PyTorch calls channels_last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfade.config import LearningConfig
from fedfade.errors import UserError, not_allowed
from fedfade.randomness import numpy_generator
from fedfade.storage import read_json, read_npz

DATA_VARIABLE = "FEDFADE_DATA"
CIFAR10_FILES = (*(f"train_{k}" for k in range(1, 6)), "test")
CIFAR10_IMAGES = 10_000
"""Images in each of these files."""
_TEST_SHARE = 0.2  # of data that come without a test set
_MAX_CLASSES = 100_000


@dataclass(frozen=True)
class Dataset:
    """Images and labels of one task; `to` moves them to a device."""

    name: str
    train_images: Tensor  # [sample, row, column, channel], uint8 or float32
    train_labels: Tensor  # [sample], int64
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: Tensor  # [channel], of the training images
    deviation: Tensor  # [channel]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns of an image."""
        _, rows, columns, channels = self.train_images.shape
        return channels, rows, columns

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on another device."""
        names = ("train_images", "train_labels", "test_images", "test_labels", "mean", "deviation")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def normalised(self, images: Tensor) -> Tensor:
        """float32 [..., channel, row, column], channels_last in memory."""
        scaled = (images.to(torch.float32) - self.mean) / self.deviation
        return scaled.movedim(-1, -3)


def load_data(config: LearningConfig) -> Dataset:
    """The data set `learning.data` names.

    >>> data = load_data(LearningConfig(data="digits"))
    >>> data.shape, len(data.train_labels), len(data.test_labels), len(data.classes)
    ((1, 8, 8), 1437, 360, 10)
    """
    if config.data == "digits":
        return _digits()
    if config.data == "cifar10":
        return _cifar10(cifar10_folder(config.data_dir))
    path = Path(config.data)
    if path.is_dir():
        return _from_folder(path, path.name)
    if path.suffix == ".npz" and path.is_file():
        return _from_file(path)
    raise not_allowed(
        "learning.data", config.data, "digits, cifar10, or the path of a folder or .npz file"
    )


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where data sets are kept: the argument, FEDFADE_DATA, or the user's cache folder."""
    chosen = data_dir or os.environ.get(DATA_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fedfade"


def find_cifar10(data_dir: str | Path | None = None) -> Path | None:
    """The folder that holds all of CIFAR-10: the data folder itself or `cifar10` in it."""
    root = data_folder(data_dir)
    for folder in (root / "cifar10", root):
        if all((folder / f"{name}.npz").is_file() for name in CIFAR10_FILES):
            return folder
    return None


def cifar10_folder(data_dir: str | Path | None = None) -> Path:
    """Like `find_cifar10`, but missing data are an error that says what to do."""
    found = find_cifar10(data_dir)
    if found is None:
        root = data_folder(data_dir)
        raise UserError(
            f"CIFAR-10 is not in {str(root)!r}: run 'fedfade data cifar10 --data-dir {root}' once "
            f"with a network, or point --data-dir or {DATA_VARIABLE} at a folder that has it."
        )
    return found


# --- sources ---------------------------------------------------------------------------------


def _digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, every fifth of a fixed shuffle for testing."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[..., None]  # values 0 ... 16
    return _split("digits", images, bunch.target, tuple(str(k) for k in range(10)))


def _cifar10(folder: Path) -> Dataset:
    """The six files and no others, each of the size it must have."""
    *training, testing = (_cifar10_pair(folder / f"{name}.npz") for name in CIFAR10_FILES)
    images, labels = (np.concatenate(parts) for parts in zip(*training, strict=True))
    return _assemble("cifar10", images, labels, *testing, _class_names(folder / "classes.json"))


def _cifar10_pair(path: Path) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    images, labels = _read_pair(path)
    shape = (CIFAR10_IMAGES, 32, 32, 3)
    if images.shape != shape:
        raise UserError(
            f"{str(path)!r} is not of CIFAR-10: its images have shape {list(images.shape)}, and it "
            f"must be {list(shape)}."
        )
    wrong = labels[(labels < 0) | (labels > 9)]
    if len(wrong):
        raise UserError(
            f"{str(path)!r} is not of CIFAR-10: a label is {wrong[0]}, and it must be 0 ... 9."
        )
    return images, labels


def _from_folder(folder: Path, name: str) -> Dataset:
    training = sorted(folder.glob("train*.npz"))
    if not training:
        alone = sorted(folder.glob("*.npz"))
        if len(alone) == 1:
            return _from_file(alone[0])
        raise UserError(
            f"learning.data: folder {str(folder)!r} has no train*.npz (and not one single .npz)."
        )
    images, labels = _read_pairs(training, "training")
    names = _class_names(folder / "classes.json")
    testing = sorted(folder.glob("test*.npz"))
    if not testing:
        return _split(name, images, labels, names)
    test_images, test_labels = _read_pairs(testing, "test")
    return _assemble(name, images, labels, test_images, test_labels, names)


def _from_file(path: Path) -> Dataset:
    images, labels = _read_pair(path)
    extra = read_npz(path, ("test_images", "test_labels"))
    if len(extra) == 1:
        raise UserError(f"{str(path)!r} must hold 'test_images' and 'test_labels' or neither.")
    if extra:
        test_images, test_labels = _checked_pair(path, extra["test_images"], extra["test_labels"])
        return _assemble(path.stem, images, labels, test_images, test_labels, None)
    return _split(path.stem, images, labels, None)


def _read_pairs(paths: list[Path], kind: str) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """One after the other."""
    images, labels = zip(*map(_read_pair, paths), strict=True)
    if len({part.shape[1:] for part in images}) > 1:
        raise UserError(
            f"learning.data: the {kind} files in {str(paths[0].parent)!r} differ in shape."
        )
    return np.concatenate(images), np.concatenate(labels)


def _read_pair(path: Path) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    arrays = read_npz(path, ("images", "labels"))
    if len(arrays) != 2:
        raise UserError(f"{str(path)!r} must hold the arrays 'images' and 'labels'.")
    return _checked_pair(path, arrays["images"], arrays["labels"])


def _checked_pair(
    path: Path, images: NDArray[np.generic], labels: NDArray[np.generic]
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    where = repr(str(path))
    if images.ndim == 3:
        images = images[..., None]  # grey images may come without a channel axis
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise UserError(
            f"images in {where} have shape {images.shape}: it must be [sample, row, column, "
            "channel] with 1 or 3 channels."
        )
    if images.dtype != np.uint8:
        if images.dtype.kind not in "iuf":
            raise UserError(f"images in {where} are {images.dtype}: they must be numbers.")
        images = images.astype(np.float32)
        if not np.isfinite(images).all():
            raise UserError(f"images in {where} hold values that are not finite.")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(
            f"labels in {where} are {labels.dtype} of shape {labels.shape}: they must be whole "
            f"numbers, one for each of the {len(images)} images."
        )
    return images, labels.astype(np.int64)


def _class_names(path: Path) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    names = read_json(path)
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise UserError(f"{str(path)!r} must be a list of class names.")
    return tuple(names)


def _split(
    name: str,
    images: NDArray[np.generic],
    labels: NDArray[np.int64],
    names: tuple[str, ...] | None,
) -> Dataset:
    """Set a fixed fifth aside for testing; the split never depends on a run's seed."""
    if len(images) < 2:
        raise UserError(f"learning.data: {name!r} has {len(images)} image(s), too few to split.")
    order = numpy_generator(0, "test split").permutation(len(images))
    count = max(1, round(_TEST_SHARE * len(images) + 0.1))
    train, test = np.sort(order[count:]), np.sort(order[:count])
    return _assemble(name, images[train], labels[train], images[test], labels[test], names)


def _assemble(
    name: str,
    images: NDArray[np.generic],
    labels: NDArray[np.int64],
    test_images: NDArray[np.generic],
    test_labels: NDArray[np.int64],
    names: tuple[str, ...] | None,
) -> Dataset:
    if images.shape[1:] != test_images.shape[1:]:
        raise UserError(
            f"learning.data: training images of {name!r} have shape {images.shape[1:]}, test "
            f"images {test_images.shape[1:]}: they must agree."
        )
    classes = len(names) if names is not None else int(labels.max()) + 1
    limit = min(classes, _MAX_CLASSES)
    for which, found in (("training", labels), ("test", test_labels)):
        wrong = found[(found < 0) | (found >= limit)]
        if len(wrong):
            raise UserError(
                f"learning.data: a {which} label of {name!r} is {wrong[0]}: labels must be "
                f"0 ... {limit - 1}."
            )
    mean, deviation = _channel_statistics(images)
    return Dataset(
        name=name,
        train_images=torch.from_numpy(np.ascontiguousarray(images)),
        train_labels=torch.from_numpy(np.asarray(labels, dtype=np.int64)),
        test_images=torch.from_numpy(np.ascontiguousarray(test_images)),
        test_labels=torch.from_numpy(np.asarray(test_labels, dtype=np.int64)),
        classes=names if names is not None else tuple(str(k) for k in range(classes)),
        mean=torch.tensor(mean, dtype=torch.float32),
        deviation=torch.tensor(deviation, dtype=torch.float32),
    )


def _channel_statistics(
    images: NDArray[np.generic],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation per channel; a constant channel is only shifted."""
    flat = images.reshape(-1, images.shape[-1])
    if images.dtype == np.uint8:  # exact and quick from the histogram
        values = np.arange(256.0)
        shares = np.stack([np.bincount(channel, minlength=256) for channel in flat.T]) / len(flat)
        mean = shares @ values
        variance = shares @ values**2 - mean**2
    else:
        mean = flat.mean(axis=0, dtype=np.float64)
        variance = flat.var(axis=0, dtype=np.float64)
    return mean, np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 1e-12)), 1.0)
