"""The commands as a user types them."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Answer

Command = Callable[..., Answer]

PNG = b"\x89PNG"
SMALL = ["--set", "learning.clients=4", "--set", "learning.batch_size=20"]


def last_json(result: Answer) -> dict[str, object]:
    found = json.loads(result.out.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_partition_counts_and_picture(fedfade: Command, tmp_path: Path) -> None:
    picture = tmp_path / "classes.png"
    result = fedfade(
        "partition", "--data", "digits", "--alpha", 0.5, "--alpha", 50, "--clients", 7,
        "--seed", 3, "--json", "--figure", picture,
    )  # fmt: skip
    assert result.code == 0, result.err
    found = last_json(result)
    assert [p["alpha"] for p in found["partitions"]] == [0.5, 50.0]  # type: ignore[attr-defined]
    counts = np.array(found["partitions"][0]["counts"])  # type: ignore[index]
    assert counts.shape == (7, 10)
    assert counts.sum(1).tolist() == [1437 // 7] * 7
    assert picture.read_bytes().startswith(PNG)
    again = fedfade("partition", "--data", "digits", "--clients", 7, "--seed", 3, "--json")
    assert last_json(again)["partitions"][0]["counts"] == counts.tolist()  # type: ignore[index]


def test_learn_writes_curve_and_picture(fedfade: Command, tmp_path: Path) -> None:
    result = fedfade(
        "learn", "quickstart", "--rounds", 4, "--seeds", 2, "--evaluate-every", 3,
        "--out", tmp_path / "o", "--json", *SMALL,
    )  # fmt: skip
    assert result.code == 0, result.err
    rows = list(csv.DictReader((tmp_path / "o" / "curve.csv").open()))
    assert [(row["round"], row["seed"]) for row in rows] == [
        ("2", "0"), ("2", "1"), ("3", "0"), ("3", "1"),
    ]  # fmt: skip
    assert float(rows[-1]["accuracy"]) == pytest.approx(
        last_json(result)["accuracy"][1],  # type: ignore[index]
        abs=1e-6,  # digits written
    )
    assert (tmp_path / "o" / "accuracy.png").read_bytes().startswith(PNG)


def test_bound_table_figure_and_json(fedfade: Command, tmp_path: Path) -> None:
    result = fedfade(
        "bound", "quickstart", "--rounds", 2, "--delivered", 2, "--draws", 3, "--json",
        "--figure", tmp_path / "b.png", "--table", tmp_path / "b.csv", *SMALL,
    )  # fmt: skip
    assert result.code == 0, result.err
    rounds = last_json(result)["rounds"]
    assert isinstance(rounds, list)
    assert [r["delivered"] for r in rounds] == [2, 2]
    for r in rounds:
        assert r["bound"] == pytest.approx(r["first"] + r["second"] + r["third"])
        assert r["measured"] <= r["rescaled"]
        assert r["measured"] <= r["bound"]
        assert r["smoothness"] > 0
        assert r["local_deviation"] > 0
    assert (tmp_path / "b.png").read_bytes().startswith(PNG)
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 3


def test_all_delivered_leaves_no_deviation(fedfade: Command) -> None:
    result = fedfade("bound", "quickstart", "--rounds", 1, "--draws", 2, "--json", *SMALL)
    (row,) = last_json(result)["rounds"]  # type: ignore[misc]
    # Both sides are the mean of the same four updates: a few float32 roundings apart at most.
    assert row["deviation"] < 1e-12


def test_data_says_what_is_there(fedfade: Command) -> None:
    result = fedfade("data", "digits")
    assert result.code == 0
    assert "1437 training and 360 test images of 8 x 8 x 1, 10 classes" in result.out


def test_bench_learning_ends_with_json(fedfade: Command) -> None:
    result = fedfade("bench", "learning", "--json", "--repeats", 1, "--no-flower")
    assert result.code == 0, result.err
    found = last_json(result)
    assert found["ratio_to_plain_loop"] > 0  # type: ignore[operator]
    assert found["clients"] == 10


def save(path: Path, side: int = 8, labels: np.ndarray | None = None) -> Path:
    count = 20
    images = np.random.default_rng(0).integers(0, 255, (count, side, side, 1), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(count) % 2 if labels is None else labels)
    return path


def broken_factory(shape: object, classes: int) -> None:
    raise RuntimeError("no such luck")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["learn", "quickstart", "--set", "learning.data={tmp}/negative.npz"], "label"),
        (["learn", "quickstart", "--set", "learning.data={tmp}/small.npz"], "at least 8 x 8"),
        (["learn", "quickstart", "--set", "learning.data={tmp}/fine.npz", "--set",
          "learning.clients=17"], "learning.clients = 17"),
        (["learn", "quickstart", "--set", "learning.data={tmp}/cut.npz"], "intact"),
        (["learn", "quickstart", "--set", "learning.data=nowhere"], "learning.data = 'nowhere'"),
        (["learn", "quickstart", "--set", "learning.model=tests.learning.test_federation:number"],
         "returned int"),
        (["learn", "quickstart", "--set",
          "learning.model=tests.learning.test_federation:wrong_width"], "(2, 10)"),
        (["learn", "quickstart", "--set",
          "learning.model=tests.learning.test_commands:broken_factory"], "no such luck"),
        (["learn", "quickstart", "--set", "learning.model=no.such:thing"], "cannot be loaded"),
        (["learn", "quickstart", "--set", "learning.model=cnn2"], "module:attribute"),
        (["learn", "quickstart", "--delivered", "11"], "--delivered = 11"),
        (["learn", "quickstart", "--precision", "half"], "run.precision = 'half'"),
        (["learn", "paper", "--data-dir", "{tmp}/none"], "fedfade data cifar10"),
        (["learn", "paper", "--data-dir", "{tmp}/it's 😀: 5"], "it's 😀: 5"),
        (["partition", "--data", "digits", "--clients", "2000"], "clients"),
        (["partition", "--data", "digits", "--alpha", "0"], "learning.alpha"),
        (["partition", "--data", "digits", "--figure", "x.txt"], "--figure"),
        (["partition", "--data", "digits", "--figure", "{tmp}/fine.npz/x.png"], "is a file"),
        (["bound", "quickstart", "--figure", "x.gif"], "--figure"),
        (["bound", "quickstart", "--table", "x.png"], "ending in .csv"),
        (["bound", "quickstart", "--checkpoint", "{tmp}"], "qmix where --checkpoint is given"),
        (["learn", "quickstart", "--out", "{tmp}/fine.npz"], "is a file"),
        (["data", "mnist"], "cifar10 or digits"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    fedfade: Command, tmp_path: Path, words: list[str], sentence: str
) -> None:
    save(tmp_path / "fine.npz")
    save(tmp_path / "small.npz", side=7)
    save(tmp_path / "negative.npz", labels=np.arange(20) - 1)
    whole = (tmp_path / "fine.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    result = fedfade(*(word.replace("{tmp}", str(tmp_path)) for word in words))
    assert result.code == 2, result.err
    assert sentence in " ".join(result.err.split())
    assert "Traceback" not in result.err


def test_wrong_checksum_through_the_command(
    fedfade: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedfade.learning import download

    fake = tmp_path / "fake.tar.gz"
    fake.write_bytes(b"not an archive")
    monkeypatch.setattr(download, "Source", lambda: download_source(fake))
    result = fedfade("data", "cifar10", "--data-dir", tmp_path / "d")
    assert result.code == 2
    assert "MD5" in result.err
    assert not list((tmp_path / "d").rglob("*.npz"))


def download_source(path: Path) -> object:
    class Given:
        url = path.as_uri()
        md5 = "0" * 32
        images_per_file = 2

    return Given()
