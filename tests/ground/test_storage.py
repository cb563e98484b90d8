"""Files are written whole or not at all, and read without trusting them."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.errors import UserError
from fedfade.storage import (
    check_folder,
    folder_lock,
    read_json,
    read_npz,
    write_json,
    write_npz,
    write_text,
    writing,
)


def test_an_error_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half() -> None:
        with writing(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_killed_processes_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    """Beside an output by the next one, in a run folder at any depth; not what is being written."""
    deep = tmp_path / "regimes" / "runs"
    deep.mkdir(parents=True)
    left = [place / ".fedfade-left.csv" for place in (tmp_path, deep)]
    for file in left:
        file.touch()
    with writing(tmp_path / "one.npz") as first, writing(deep / "two.csv") as second:
        assert not any(file.exists() for file in left)
        left[1].touch()
        with folder_lock(tmp_path):
            assert not left[1].exists()
            assert first.exists()
            assert second.exists()
    assert sorted(os.listdir(tmp_path)) == [".lock", "one.npz", "regimes"]


def test_a_folder_that_cannot_be_written() -> None:
    # /proc takes no files from anybody, root included.
    with pytest.raises(UserError, match="cannot be written"), writing(Path("/proc/a.txt")):
        pass


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"), writing(tmp_path / "file" / "a"):
        pass


def test_a_name_that_is_no_text_is_spelled_out(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "data in caf\udce9")
    assert (tmp_path / "a.txt").read_bytes() == b"data in caf\\udce9"


def test_npz_round_trip(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6.0).reshape(2, 3), "name": np.array("text")}
    write_npz(tmp_path / "a.npz", arrays)
    back = read_npz(tmp_path / "a.npz")
    assert np.array_equal(back["x"], arrays["x"])
    assert str(back["name"]) == "text"
    assert set(read_npz(tmp_path / "a.npz", wanted=("x",))) == {"x"}


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="Python objects"):
        read_npz(path)
    path.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(UserError, match="not an intact"):
        read_npz(path)


def test_a_small_file_that_claims_a_terabyte_is_refused(tmp_path: Path) -> None:
    header = str({"descr": "<f8", "fortran_order": False, "shape": (1 << 37,)}).encode()
    header = header.ljust(118) + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(UserError, match="claims 1099511627776 bytes"):
        read_npz(tmp_path / "a.npz")


def _intact() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(20.0), y=np.array("abc"))
    return buffer.getvalue()


@settings(max_examples=150, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(_intact()) - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    cut=st.integers(0, len(_intact())),
)
def test_damaged_archives_never_crash(
    edits: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(_intact())
    for place, value in edits:
        data[place] = value
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    path.write_bytes(bytes(data[: cut or None]))
    with suppress(UserError):  # any other exception fails the test
        read_npz(path)


def test_json_without_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": 1}
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(tmp_path / "a.json")


def test_a_place_is_checked_without_making_it(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "er")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file' is a file"):
        check_folder(tmp_path / "file" / "sub")


def test_a_mistake_leaves_no_new_folder(tmp_path: Path) -> None:
    """But what was written, and a folder that was there, stay."""

    def fail_in(folder: Path, write: bool) -> None:
        with suppress(UserError), folder_lock(folder):
            if write:
                write_json(folder / "a.json", {})
            raise UserError("a mistake.")

    fail_in(tmp_path / "new", write=False)
    assert not (tmp_path / "new").exists()
    fail_in(tmp_path / "new", write=True)
    assert (tmp_path / "new" / "a.json").exists()
    (tmp_path / "old").mkdir()
    fail_in(tmp_path / "old", write=False)
    assert (tmp_path / "old").exists()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedfade.storage import folder_lock\n"
        "try:\n"
        "    with folder_lock(Path(sys.argv[1])): print('in')\n"
        "except Exception as error: print(error)\n"
    )

    def second() -> str:
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with folder_lock(tmp_path):
        assert "in use by another fedfade process" in second()
    assert second().strip() == "in"
