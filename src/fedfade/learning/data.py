"""Data sets: digits (bundled with scikit-learn), CIFAR-10, and a user's own `.npz` files.

Images stay as they come, [sample, row, column, channel], mostly uint8; a mini-batch is
normalised per channel when it is taken. Its permuted view is what PyTorch calls channels_last.
"""

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Self

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
CIFAR10_IMAGES = 10_000  # in each of these files
_TEST_SHARE = 0.2  # of data that come without a test set
_MAX_CLASSES = 100_000

Array = NDArray[np.generic]
LabelledImages = tuple[Array, NDArray[np.int64]]  # [sample, row, column, channel], [sample]


@dataclass(frozen=True)
class Dataset:
    """Images and labels of one task; `to` moves them to a device."""

    name: str
    classes: tuple[str, ...]
    train_images: Tensor  # [sample, row, column, channel], uint8 or float32
    train_labels: Tensor  # [sample], int64
    test_images: Tensor
    test_labels: Tensor
    mean: Tensor  # [channel], of the training images
    deviation: Tensor  # [channel]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns of an image."""
        _, rows, columns, channels = self.train_images.shape
        return channels, rows, columns

    def to(self, device: torch.device | str) -> Self:
        """The same data on another device."""
        names = ("train_images", "train_labels", "test_images", "test_labels", "mean", "deviation")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def normalised(self, images: Tensor) -> Tensor:
        """float32 [..., channel, row, column], channels_last in memory."""
        return ((images.to(torch.float32) - self.mean) / self.deviation).movedim(-1, -3)


def load_data(config: LearningConfig) -> Dataset:
    """The data set `learning.data` names."""
    if config.data == "digits":
        return _digits()
    if config.data == "cifar10":
        return _cifar10(config.data_dir)
    path = Path(config.data)
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".npz" and path.is_file():
        return _from_file(path)
    allowed = "digits, cifar10, or the path of a folder or .npz file"
    raise not_allowed("learning.data", config.data, allowed)


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Where data sets are kept: the argument, FEDFADE_DATA, or the user's cache folder."""
    chosen = data_dir or os.environ.get(DATA_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fedfade")
    place = Path(chosen) if chosen else cache
    try:
        return place.expanduser()
    except RuntimeError:
        known = "a folder whose ~ stands for the home of a user of this machine"
        raise not_allowed("learning.data_dir", str(place), known) from None


def find_cifar10(data_dir: str | Path | None = None) -> Path | None:
    """The folder that holds all of CIFAR-10: the data folder itself or `cifar10` in it."""
    root = data_folder(data_dir)
    for folder in (root / "cifar10", root):
        if all((folder / f"{name}.npz").is_file() for name in CIFAR10_FILES):
            return folder
    return None


def _digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, every fifth of a fixed shuffle for testing."""
    package = find_spec("sklearn")  # read, not imported: that takes a second
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    images = table[:, :-1].reshape(-1, 8, 8, 1).astype(np.uint8)  # values 0 ... 16
    labels = table[:, -1].astype(np.int64)
    return _assemble("digits", (images, labels), None, tuple("0123456789"))


def _cifar10(data_dir: str | None) -> Dataset:
    """The six files and no others, each of the size it must have."""
    folder, root = find_cifar10(data_dir), data_folder(data_dir)
    if folder is None:
        raise UserError(
            f"CIFAR-10 is not in {str(root)!r}: run 'fedfade data cifar10 --data-dir {root}' once "
            f"with a network, or point --data-dir or {DATA_VARIABLE} at a folder that has it."
        )
    shape, pairs = (CIFAR10_IMAGES, 32, 32, 3), []
    for file in (folder / f"{name}.npz" for name in CIFAR10_FILES):
        images, labels = _read(file)
        stranger = f"{str(file)!r} is not of CIFAR-10"
        if images.shape != shape:
            found = f"its images have shape {list(images.shape)}"
            raise UserError(f"{stranger}: {found}, and it must be {list(shape)}.")
        if len(wrong := labels[(labels < 0) | (labels > 9)]):
            raise UserError(f"{stranger}: a label is {wrong[0]}, and it must be 0 ... 9.")
        pairs.append((images, labels))
    names = _class_names(folder / "classes.json")
    return _assemble("cifar10", _concatenate(pairs[:-1]), pairs[-1], names)


def _from_folder(folder: Path) -> Dataset:
    training, testing = (sorted(folder.glob(f"{kind}*.npz")) for kind in ("train", "test"))
    if not training:
        alone = list(folder.glob("*.npz"))
        if len(alone) == 1:
            return _from_file(alone[0])
        missing = "no train*.npz (and not one single .npz)"
        raise UserError(f"learning.data: folder {str(folder)!r} has {missing}.")
    parts = []
    for kind, files in (("training", training), ("test", testing)):
        pairs = [_read(file) for file in files]
        if len({images.shape[1:] for images, _ in pairs}) > 1:
            raise UserError(f"learning.data: the {kind} files in {str(folder)!r} differ in shape.")
        parts.append(_concatenate(pairs) if pairs else None)
    assert parts[0] is not None
    return _assemble(folder.name, parts[0], parts[1], _class_names(folder / "classes.json"))


def _from_file(path: Path) -> Dataset:
    train = _read(path)
    there = read_npz(path, ("test_images", "test_labels"))
    if len(there) == 1:
        raise UserError(f"{str(path)!r} must hold 'test_images' and 'test_labels' or neither.")
    test = _checked(path, there["test_images"], there["test_labels"]) if there else None
    return _assemble(path.stem, train, test, None)


def _read(path: Path) -> LabelledImages:
    arrays = read_npz(path, ("images", "labels"))
    if len(arrays) != 2:
        raise UserError(f"{str(path)!r} must hold the arrays 'images' and 'labels'.")
    return _checked(path, arrays["images"], arrays["labels"])


def _concatenate(pairs: list[LabelledImages]) -> LabelledImages:
    images, labels = zip(*pairs, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _checked(path: Path, images: Array, labels: Array) -> LabelledImages:
    where = repr(str(path))
    if images.ndim == 3:
        images = images[..., None]  # grey images may come without a channel axis
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        allowed = "[sample, row, column, channel] with 1 or 3 channels"
        raise UserError(f"images in {where} have shape {images.shape}: it must be {allowed}.")
    if images.dtype != np.uint8:
        if images.dtype.kind not in "iuf":
            raise UserError(f"images in {where} are {images.dtype}: they must be numbers.")
        images = images.astype(np.float32)
        if not np.isfinite(images).all():
            raise UserError(f"images in {where} hold values that are not finite.")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        found = f"{labels.dtype} of shape {labels.shape}"
        allowed = f"whole numbers, one for each of the {len(images)} images"
        raise UserError(f"labels in {where} are {found}: they must be {allowed}.")
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _class_names(path: Path) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    names = read_json(path)
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise UserError(f"{str(path)!r} must be a list of class names.")
    return tuple(names)


def _assemble(
    name: str, train: LabelledImages, test: LabelledImages | None, names: tuple[str, ...] | None
) -> Dataset:
    images, labels = train
    if test is None:  # a fixed fifth is set aside; the split never depends on a run's seed
        if len(images) < 2:
            few = f"{len(images)} image(s), too few to split"
            raise UserError(f"learning.data: {name!r} has {few}.")
        order = numpy_generator(0, "test split").permutation(len(images))
        count = max(1, round(_TEST_SHARE * len(images) + 0.1))
        kept, aside = np.sort(order[count:]), np.sort(order[:count])
        test = images[aside], labels[aside]
        images, labels = images[kept], labels[kept]
    if images.shape[1:] != test[0].shape[1:]:
        shapes = f"have shape {images.shape[1:]}, test images {test[0].shape[1:]}"
        raise UserError(f"learning.data: training images of {name!r} {shapes}: they must agree.")
    classes = len(names) if names is not None else int(labels.max()) + 1
    limit = min(classes, _MAX_CLASSES)
    for which, found in (("training", labels), ("test", test[1])):
        if len(wrong := found[(found < 0) | (found >= limit)]):
            strange = f"a {which} label of {name!r} is {wrong[0]}"
            raise UserError(f"learning.data: {strange}: labels must be 0 ... {limit - 1}.")
    names = names or tuple(str(k) for k in range(classes))
    arrays = images, labels, *test, *_channel_statistics(images)
    return Dataset(name, names, *(torch.from_numpy(array) for array in arrays))


def _channel_statistics(images: Array) -> NDArray[np.float32]:
    """Mean and standard deviation: [2, channel]; a constant channel is only shifted."""
    flat = images.reshape(-1, images.shape[-1])
    if images.dtype == np.uint8:  # exact and quick from the histogram
        values = np.arange(256.0)
        shares = np.stack([np.bincount(channel, minlength=256) for channel in flat.T]) / len(flat)
        mean = shares @ values
        variance = shares @ values**2 - mean**2
    else:
        mean, variance = flat.mean(0, dtype=np.float64), flat.var(0, dtype=np.float64)
    deviation = np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 1e-12)), 1.0)
    return np.array([mean, deviation], np.float32)
