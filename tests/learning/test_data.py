"""Data sets: what is read, how it is normalised, and what is refused."""

import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfade.config import LearningConfig
from fedfade.errors import UserError
from fedfade.learning import load_data
from fedfade.learning.download import CLASSES, Source, fetch_cifar10
from tests.conftest import Answer, shared_folder

OFFICIAL_MD5 = {
    "train_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "train_2": "5ea93a67294ea407fff1d09f752e9692",
    "train_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "train_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "train_5": "53f37980c15c3d472c316c40844f3f0d",
    "test": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
"""Sums of the six files in the official cifar-10-batches-bin."""


def write(path: Path, images: np.ndarray, labels: np.ndarray, **more: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, images=images, labels=labels, **more)
    return path


def config(path: object) -> LearningConfig:
    return LearningConfig(data=str(path))


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_training_images_are_standardised_per_channel(name: str) -> None:
    shared = shared_folder()
    if name == "cifar10" and shared is None:
        name = "digits"
    data_dir = str(shared / "data") if shared else None
    data = load_data(LearningConfig(data=name, data_dir=data_dir))
    images = data.normalised(data.train_images).double()
    assert images.mean((0, 2, 3)).abs().max() < 1e-5  # float32 pixels
    assert (images.std((0, 2, 3)) - 1).abs().max() < 1e-4
    assert images.shape[1:] == data.shape
    assert torch.unique(data.test_labels).tolist() == list(range(10))
    if name == "cifar10":
        assert len(data.train_labels) == 50_000
        assert data.train_labels.bincount().tolist() == [5000] * 10


def test_digits_split_is_fixed_and_disjoint() -> None:
    one, two = load_data(config("digits")), load_data(config("digits"))
    assert torch.equal(one.train_images, two.train_images)
    assert len(one.train_labels) + len(one.test_labels) == 1797


@pytest.mark.parametrize("channels", [1, 3])
def test_own_files(tmp_path: Path, channels: int) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, (30, 9, 11, channels), dtype=np.uint8)
    labels = np.arange(30) % 4
    single = load_data(config(write(tmp_path / "one.npz", images, labels)))
    assert single.shape == (channels, 9, 11)
    assert (len(single.train_labels), len(single.test_labels)) == (24, 6)
    for k in (1, 2):
        write(tmp_path / "many" / f"train_{k}.npz", images.astype(np.float64) / 255, labels)
    write(tmp_path / "many" / "test.npz", images, labels)
    (tmp_path / "many" / "classes.json").write_text(json.dumps(["a", "b", "c", "d", "e"]))
    folder = load_data(config(tmp_path / "many"))
    assert folder.classes == ("a", "b", "c", "d", "e")
    assert (len(folder.train_labels), len(folder.test_labels)) == (60, 30)
    pair = write(
        tmp_path / "pair.npz", images[..., 0], labels, test_images=images[:3, ..., 0],
        test_labels=labels[:3],
    )  # fmt: skip
    assert load_data(config(pair)).shape == (1, 9, 11)


IMAGES = np.zeros((20, 8, 8, 1), np.uint8)
LABELS = np.arange(20) % 2


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (IMAGES, LABELS - 1, "label"),
        (IMAGES, LABELS.astype(float), "whole numbers"),
        (IMAGES, LABELS[:5], "one for each"),
        (IMAGES[..., 0, 0], LABELS, "shape"),
        (np.zeros((20, 8, 8, 2)), LABELS, "1 or 3 channels"),
        (np.full((20, 8, 8, 1), np.nan), LABELS, "not finite"),
        (IMAGES.astype(str), LABELS, "numbers"),
        (IMAGES[:1], LABELS[:1], "too few"),
    ],
)
def test_bad_arrays(tmp_path: Path, images: np.ndarray, labels: np.ndarray, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_data(config(write(tmp_path / "bad.npz", images, labels)))


def test_labels_beyond_the_classes(tmp_path: Path) -> None:
    write(tmp_path / "d" / "train.npz", IMAGES, LABELS)
    write(tmp_path / "d" / "test.npz", IMAGES, LABELS + 1)
    with pytest.raises(UserError, match=r"test label of 'd' is 2: labels must be 0 \.\.\. 1"):
        load_data(config(tmp_path / "d"))
    (tmp_path / "d" / "classes.json").write_text('["a"]')
    with pytest.raises(UserError, match="training label"):
        load_data(config(tmp_path / "d"))


@pytest.mark.parametrize("kind", ["train", "test"])
def test_files_of_different_shapes(tmp_path: Path, kind: str) -> None:
    for name in ("train_1", "train_2", "test_1", "test_2"):
        other = name == f"{kind}_2"
        write(tmp_path / f"{name}.npz", np.zeros((20, 9 if other else 8, 8), np.uint8), LABELS)
    with pytest.raises(UserError, match=f"the {kind}.* files in .* differ in shape"):
        load_data(config(tmp_path))


@pytest.mark.parametrize("there", ["test_images", "test_labels"])
def test_half_a_test_set(tmp_path: Path, there: str) -> None:
    extra = {"test_images": IMAGES, "test_labels": LABELS}[there]
    path = write(tmp_path / "half.npz", IMAGES, LABELS, **{there: extra})
    with pytest.raises(UserError, match="'test_images' and 'test_labels' or neither"):
        load_data(config(path))


@pytest.mark.parametrize("make", ["empty", "pickle", "text", "missing"])
def test_bad_files(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x.npz"
    if make == "empty":
        path = tmp_path
    elif make == "pickle":
        np.savez(path, images=np.array([{}], dtype=object), labels=np.zeros(1, int))
    elif make == "text":
        path.write_text("images")
    with pytest.raises(UserError):
        load_data(config(path))


# --- CIFAR-10 --------------------------------------------------------------------------------


def archive(images: int = 2, leave_out: str = "") -> bytes:
    """An archive in the official layout, `images` a file."""
    generator = np.random.default_rng(5)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]:
            if name == leave_out:
                continue
            rows = generator.integers(0, 256, (images, 3073), dtype=np.uint8)
            rows[:, 0] %= 10
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = rows.size
            tar.addfile(member, io.BytesIO(rows.tobytes()))
    return buffer.getvalue()


@pytest.fixture
def two_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CIFAR-10 of two images a file."""
    monkeypatch.setattr("fedfade.learning.data.CIFAR10_IMAGES", 2)


@pytest.fixture
def small_cifar10(tmp_path: Path, two_each: None) -> Path:
    """Six files of two images, with their sums beside them."""
    generator = np.random.default_rng(6)
    for k, name in enumerate(OFFICIAL_MD5):
        images = generator.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        write(tmp_path / "cifar10" / f"{name}.npz", images, np.array([k, 9 - k], np.uint8))
    (tmp_path / "cifar10" / "classes.json").write_text(json.dumps(CLASSES))
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted((tmp_path / "cifar10").iterdir())
    ]
    (tmp_path / "cifar10" / "SHA256SUMS").write_text("".join(lines))
    return tmp_path / "cifar10"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder served over HTTP on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def source(raw: bytes, url: str) -> Source:
    return Source(f"{url}/c.tar.gz", hashlib.md5(raw).hexdigest(), images_per_file=2)


@pytest.mark.usefixtures("two_each")
def test_download_converts_bytes_faithfully(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, url = served
    raw = archive()
    (folder / "c.tar.gz").write_bytes(raw)
    seen: list[tuple[int, int]] = []
    out = fetch_cifar10(tmp_path / "d", source(raw, url), lambda *told: seen.append(told))
    assert seen[-1] == (len(raw), len(raw))
    data = load_data(LearningConfig(data="cifar10", data_dir=str(tmp_path / "d")))
    assert data.classes == CLASSES
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        member = tar.extractfile("cifar-10-batches-bin/data_batch_1.bin")
        assert member is not None
        original = np.frombuffer(member.read(), np.uint8).reshape(2, 3073)
    found = np.load(out / "train_1.npz")
    planes = found["images"].transpose(0, 3, 1, 2).reshape(2, 3072)
    np.testing.assert_array_equal(np.column_stack([found["labels"], planes]), original)
    # The second time what is there is used: the server's file is gone.
    (folder / "c.tar.gz").unlink()
    assert fetch_cifar10(tmp_path / "d", source(raw, url)) == out


@pytest.mark.usefixtures("two_each")
@pytest.mark.parametrize("lost", ["train_1", "train_4", "test"])
def test_a_part_of_cifar10_is_not_cifar10(
    tmp_path: Path, served: tuple[Path, str], lost: str
) -> None:
    folder, url = served
    raw = archive()
    (folder / "c.tar.gz").write_bytes(raw)
    out = fetch_cifar10(tmp_path / "d", source(raw, url))
    (out / f"{lost}.npz").unlink()
    with pytest.raises(UserError, match="CIFAR-10 is not in"):
        load_data(LearningConfig(data="cifar10", data_dir=str(tmp_path / "d")))
    fetch_cifar10(tmp_path / "d", source(raw, url))
    data = load_data(LearningConfig(data="cifar10", data_dir=str(tmp_path / "d")))
    assert len(data.train_labels) == 10


@pytest.mark.parametrize("fault", ["checksum", "truncated", "lacking", "size", "offline"])
def test_faulty_downloads_write_nothing(
    tmp_path: Path, served: tuple[Path, str], fault: str
) -> None:
    folder, url = served
    raw = archive(
        images=3 if fault == "size" else 2,
        leave_out="test_batch.bin" if fault == "lacking" else "",
    )
    if fault == "truncated":
        raw = raw[: len(raw) // 2]
    wanted = source(b"other" if fault == "checksum" else raw, url)
    if fault != "offline":
        (folder / "c.tar.gz").write_bytes(raw)
    sentence = {
        "checksum": "MD5",
        "truncated": "truncated",
        "lacking": "lacks test",
        "size": "wrong size",
        "offline": "--data-dir or FEDFADE_DATA",
    }
    with pytest.raises(UserError, match=sentence[fault]):
        fetch_cifar10(tmp_path / "d" / "inner", wanted)
    assert not (tmp_path / "d").exists()


def test_a_failed_download_leaves_folders_that_were_there(
    tmp_path: Path, served: tuple[Path, str]
) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(UserError, match="cannot be downloaded"):
        fetch_cifar10(tmp_path / "d" / "inner", source(b"", served[1]))
    assert (tmp_path / "d").is_dir()
    assert not list((tmp_path / "d").iterdir())


def test_the_home_of_nobody(fedfade) -> None:
    answer = fedfade("learn", "paper", "--data-dir", "~no-such-user/x")
    assert answer.code == 2
    assert "learning.data_dir = '~no-such-user/x' is not allowed" in answer.err


def test_black_images_are_not_cifar10(tmp_path: Path) -> None:
    for name in OFFICIAL_MD5:
        write(tmp_path / f"{name}.npz", np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 10)
    sentence = r"train_1\.npz' is not of CIFAR-10: .* \[20, 32, 32, 3\], .* \[10000, 32, 32, 3\]\.$"
    with pytest.raises(UserError, match=sentence):
        load_data(LearningConfig(data="cifar10", data_dir=str(tmp_path)))


@pytest.mark.parametrize("name", ["train_3", "test"])
@pytest.mark.parametrize(
    ("shape", "label", "sentence"),
    [
        ((3, 32, 32, 3), 1, r"\[3, 32, 32, 3\]"),
        ((2, 28, 28, 3), 1, r"\[2, 28, 28, 3\]"),
        ((2, 32, 32, 1), 1, r"\[2, 32, 32, 1\]"),
        ((2, 32, 32, 3), 10, "a label is 10"),
        ((2, 32, 32, 3), -1, "a label is -1"),
    ],
)
def test_every_file_of_cifar10_has_its_size_and_labels(
    small_cifar10: Path, name: str, shape: tuple[int, ...], label: int, sentence: str
) -> None:
    learning = LearningConfig(data="cifar10", data_dir=str(small_cifar10))
    assert len(load_data(learning).train_labels) == 10
    write(small_cifar10 / f"{name}.npz", np.zeros(shape, np.uint8), np.full(shape[0], label))
    with pytest.raises(UserError, match=rf"{name}\.npz' is not of CIFAR-10: .*{sentence}"):
        load_data(learning)


def test_other_files_beside_cifar10_are_not_trained_on(small_cifar10: Path) -> None:
    for name in ("train_6", "test_2"):
        write(small_cifar10 / f"{name}.npz", np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, int))
    data = load_data(LearningConfig(data="cifar10", data_dir=str(small_cifar10)))
    assert (len(data.train_labels), len(data.test_labels)) == (10, 2)


def test_cifar10_that_is_there_agrees_with_its_sums(
    small_cifar10: Path, fedfade: Callable[..., Answer]
) -> None:
    words = ("data", "cifar10", "--data-dir", small_cifar10.parent)
    answer = fedfade(*words)
    assert answer.code == 0, answer.err
    assert "10 training and 2 test images" in answer.out
    path, sums = small_cifar10 / "train_1.npz", small_cifar10 / "SHA256SUMS"
    arrays = dict(np.load(path))
    write(path, arrays["images"], arrays["labels"][::-1])
    answer = fedfade(*words)
    assert answer.code == 2
    assert f"'{path}' has SHA-256" in answer.err
    text = sums.read_text()
    now = hashlib.sha256(path.read_bytes()).hexdigest()
    right = "\n".join(
        f"{now.upper()} *train_1.npz" if "train_1" in line else line for line in text.splitlines()
    )
    sums.write_text(right)  # as sha256sum --binary writes it
    assert fedfade(*words).code == 0
    sums.write_text(right.replace("train_4", "train_five"))
    answer = fedfade(*words)
    assert answer.code == 2
    assert "has no sum of 'train_4.npz'" in answer.err
    sums.unlink()
    assert fedfade(*words).code == 0


def test_the_reference_copy_is_the_official_release() -> None:
    """The layout we read, turned back into official bytes; without a copy, our own conversion."""
    shared = shared_folder()
    if shared is None:
        assert Source().md5 == "c32a1d4ab5d03f1284b67883e8d87530"
        return
    found = np.load(shared / "data" / "cifar10" / "test.npz")
    planes = found["images"].transpose(0, 3, 1, 2).reshape(10_000, 3072)
    rows = np.concatenate([found["labels"][:, None], planes], axis=1)
    assert hashlib.md5(rows.tobytes()).hexdigest() == OFFICIAL_MD5["test"]
