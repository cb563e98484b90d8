"""Files from strangers: whatever is in them, a loader returns or refuses with one sentence."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.agents import load_checkpoint
from fedfade.config import Config, load_config, parse_yaml
from fedfade.errors import UserError
from fedfade.experiments import RunFolder, read_rows
from fedfade.experiments.sweep import load_sweep
from fedfade.radio.impulse import read_impulse_responses
from fedfade.radio.matfile import read_mat
from fedfade.radio.traces import read_gains
from fedfade.storage import read_npz, sha256_of
from tests.reliability import EXAMPLES
from tests.reliability.loaders import LOADERS, load, npy_header, one_sentence

CASES = Path(__file__).parent / "cases"


def never_crashes(name: str, content: bytes, folder: Path) -> None:
    try:
        load(name, content, folder)
    except UserError as error:
        one_sentence(error)


@pytest.mark.parametrize("name", LOADERS)
def test_good_files_are_read(name: str, tmp_path: Path) -> None:
    for place, content in enumerate(LOADERS[name].good):
        folder = tmp_path / str(place)
        folder.mkdir()
        if name == "checkpoint-index":  # names files that are not there
            with pytest.raises(UserError, match="cannot be read"):
                load(name, content, folder)
        else:
            load(name, content, folder)


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "drop", "repeat"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 4, b"\x00" * 8, b"[", b"&"]),
    ),
    min_size=1,
    max_size=6,
)


def edited(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    data = bytearray(content)
    for kind, where, what in edits:
        place = int(where * len(data))
        if kind == "set":
            data[place : place + len(what)] = what
        elif kind == "cut":
            del data[place:]
        elif kind == "insert":
            data[place:place] = what
        elif kind == "drop":
            del data[place : place + len(what)]
        else:
            data[place:place] = data[place : place + 64]
    return bytes(data)


@pytest.mark.parametrize("name", LOADERS)
@settings(max_examples=60 * EXAMPLES, deadline=None, derandomize=True)
@given(edits=EDITS, which=st.integers(0, 9))
def test_damaged_files_never_crash(
    name: str, edits: list, which: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = LOADERS[name].good
    content = edited(good[which % len(good)], edits)
    never_crashes(name, content, tmp_path_factory.mktemp("damaged"))


ARRAYS = st.tuples(
    st.sampled_from(
        ["<f4", "<f8", "<c16", "|u1", "<i8", "<U3", "|O", "<f2", "|b1", "<M8[s]", "|V0"]
    )
    | st.text(max_size=6),
    st.lists(st.integers(-2, 5) | st.sampled_from([2**31, 2**62, 10**30]), max_size=5).map(tuple),
    st.binary(max_size=200),
)


@settings(max_examples=150 * EXAMPLES, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["traces", "impulse-npz", "images", "gradients"]),
    arrays=st.lists(ARRAYS, min_size=2, max_size=3),
    version=st.sampled_from([1, 2, 3, 9]),
)
def test_archives_that_promise_anything(
    name: str, arrays: list, version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Headers of any type and shape over any bytes, under the names the loader looks for."""
    with zipfile.ZipFile(io.BytesIO(LOADERS[name].good[0])) as good:
        names = good.namelist()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for entry, (descr, shape, data) in zip(names, arrays, strict=False):
            archive.writestr(entry, npy_header(descr, shape, version) + data)
    never_crashes(name, file.getvalue(), tmp_path_factory.mktemp("promises"))


YAML = st.recursive(
    st.sampled_from(["radio", "learning", "clients", "preset", "grid", "list", "~", "1e3", "0x1f"])
    | st.text(st.characters(codec="utf-8"), max_size=10)
    | st.sampled_from(
        ["2001-99-99", "&a [*a]", "!!python/object:os.system", "!!int x", "<<", "1:2:3"]
    )
    | st.integers().map(str),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]")
        | st.dictionaries(inner, inner, max_size=3).map(
            lambda d: "{" + ", ".join(f"{k}: {v}" for k, v in d.items()) + "}"
        )
    ),
    max_leaves=10,
)


@settings(max_examples=200 * EXAMPLES, deadline=None, derandomize=True)
@given(
    text=YAML
    | st.dictionaries(YAML, YAML, max_size=4).map(
        lambda d: "\n".join(f"{k}: {v}" for k, v in d.items())
    ),
    name=st.sampled_from(["preset", "sweep", "readings"]),
)
def test_any_yaml(text: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = text.encode("utf-8", "surrogatepass")
    never_crashes(name, content, tmp_path_factory.mktemp("yaml"))


@settings(max_examples=100 * EXAMPLES, deadline=None, derandomize=True)
@given(words=st.lists(st.text(max_size=20), max_size=3))
def test_any_override(words: list[str]) -> None:
    for text in (*words, *(f"radio.clusters={word}" for word in words)):
        try:
            load_config("paper", [text])
        except UserError as error:
            one_sentence(error)


def _cases() -> list[tuple[str, str]]:
    return [(p.parent.name, p.name) for p in sorted(CASES.glob("*/*"))]


@pytest.mark.parametrize(("name", "case"), _cases())
def test_what_fuzzing_once_found(name: str, case: str, tmp_path: Path) -> None:
    """Inputs that did end in a stack trace, kept so that they never do again."""
    never_crashes(name, (CASES / name / case).read_bytes(), tmp_path)


# --- small files that promise much --------------------------------------------------------------


def _within(megabytes: int, program: str) -> str:
    """Run a program that may not allocate more than so much address space beyond its imports."""
    head = (
        "import resource, sys\n"
        "import numpy, fedfade.storage, fedfade.config, fedfade.errors, fedfade.radio.matfile\n"
        "import fedfade.experiments.sweep, fedfade.agents.checkpoint\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"limit = used + {megabytes} * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "from fedfade.errors import UserError\n"
        "try:\n"
    )
    body = "".join(f"    {line}\n" for line in program.splitlines())
    tail = "except UserError as error: print('refused:', error)\n"
    answer = subprocess.run(
        [sys.executable, "-c", head + body + tail], capture_output=True, text=True, check=False
    )
    return answer.stdout + answer.stderr


def _element(kind: int, data: bytes, claimed: int | None = None) -> bytes:
    length = len(data) if claimed is None else claimed
    return struct.pack("<II", kind, length) + data + bytes(-len(data) % 8)


def _huge_mat(compressed: bool, claimed: int) -> bytes:
    """1 KB that declares an array of 2^20 x 2^20."""
    flags = _element(6, struct.pack("<II", 6, 0))
    shape = _element(5, struct.pack("<ii", 1 << 20, 1 << 20))
    matrix = flags + shape + _element(1, b"coeff") + _element(9, bytes(64), claimed)
    element = _element(14, matrix)
    if compressed:
        packed = zlib.compress(element)
        element = struct.pack("<II", 15, len(packed)) + packed
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + element


def test_a_kilobyte_that_declares_a_terabyte(tmp_path: Path) -> None:
    """Refused within 64 MB of memory: nothing of the promised size is ever allocated."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_header("<f8", (1 << 37,)))
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_header("<f8", (1 << 30,)))  # 8 GB: below the limit for all
    for place, (packed, claimed) in enumerate([(False, 64), (True, 64), (True, 2**32 - 1)]):
        (tmp_path / f"{place}.mat").write_bytes(_huge_mat(packed, claimed))
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}})
    content = struct.pack("<Q", len(header)) + header.encode()
    (tmp_path / "t.safetensors").write_bytes(content)
    program = f"""
from pathlib import Path
from fedfade.storage import read_npz
from fedfade.radio.matfile import read_mat
from fedfade.agents.checkpoint import Checkpoint
import hashlib
folder = Path({str(tmp_path)!r})
def tried(what):
    try: what(); print("read")
    except (UserError, ValueError) as error: print("refused:", type(error).__name__, error)
for name in "ab": tried(lambda: read_npz(folder / f"{{name}}.npz"))
for n in range(3): tried(lambda: read_mat((folder / f"{{n}}.mat").read_bytes(), {{"coeff"}}, 2**32))
sha = hashlib.sha256((folder / "t.safetensors").read_bytes()).hexdigest()
files = {{"agents": {{"name": "t.safetensors", "sha256": sha}}}}
tried(lambda: Checkpoint(folder, None, 0, 0, files).tensors("agents"))
"""
    lines = _within(64, program).strip().splitlines()
    assert len(lines) == 6, lines
    assert all(line.startswith("refused:") for line in lines), lines


def test_yaml_that_unfolds_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """A billion laughs: aliases of aliases. And a list that holds itself."""
    rows = ["a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        rows.append(f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]")
    for text in ("\n".join(rows), "radio: &r {clusters: *r}", "a: &a [*a]"):
        path = tmp_path / "laugh.yaml"
        path.write_text(text)
        for read in (load_config, load_sweep):
            with pytest.raises(UserError, match="aliases"):
                read(path)
        with pytest.raises(UserError, match="valid YAML value"):
            load_config("paper", [f"radio.clusters={text}"])


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 20_000, "- " * 40_000, "1" * 50_000])
def test_yaml_nested_or_long_beyond_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_yaml(text)


def test_files_larger_than_any_sensible_one_are_not_read(tmp_path: Path) -> None:
    for name, read in (("p.yaml", load_config), ("s.yaml", load_sweep)):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(2**31)  # sparse: takes no disk
        with pytest.raises(UserError, match="larger than"):
            read(path)


def test_only_files_are_read(tmp_path: Path) -> None:
    """A pipe blocks and a device never ends, whoever reads."""
    readers = {
        "a.yaml": [load_config, load_sweep],
        "a.npz": [read_npz, read_gains, read_impulse_responses, sha256_of],
        "a.mat": [read_impulse_responses],
        "metrics.csv": [read_rows],
        "checkpoint.json": [lambda path: load_checkpoint(path.parent)],
        "checkpoint.safetensors": [
            lambda path: RunFolder(path.parent, Config(), torch.device("cpu")).load_checkpoint()
        ],
    }
    for name, functions in readers.items():
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            path = tmp_path / name
            make(path)
            for read in functions:
                with pytest.raises(UserError, match=r"it is a pipe or a device|holds no"):
                    read(path)
            path.unlink()


def test_small_files_do_not_unfold_to_gigabytes(tmp_path: Path) -> None:
    """A thousand zeros pack into one byte; and of an array's elements five are looked at."""
    np.savez_compressed(tmp_path / "a.npz", small_scale_gain=np.zeros((10, 2**20), np.float64))
    with pytest.raises(UserError, match=r"claims 83886\d{3} bytes"):
        read_gains(tmp_path / "a.npz")
    flags, extents = struct.pack("<4I", 6, 8, 6, 0), struct.pack("<4i", 5, 8, 1, 1)
    name = struct.pack("<2I", 1, 4) + b"taus" + bytes(4)
    head = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"
    for size, refused in ((56 * 2**20, "not an intact"), (72 * 2**20, "too large: at most")):
        inside = flags + extents + name + bytes(size)
        packed = zlib.compress(struct.pack("<2I", 14, len(inside)) + inside)
        (tmp_path / "a.mat").write_bytes(head + struct.pack("<2I", 15, len(packed)) + packed)
        tracemalloc.start()
        with pytest.raises(UserError, match=refused):
            read_impulse_responses(tmp_path / "a.mat")
        assert tracemalloc.get_traced_memory()[1] < 200e6
        tracemalloc.stop()


def test_packed_archives_stay_within_their_limit(tmp_path: Path) -> None:
    """Arrays that are really there count together."""
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1000), b=np.zeros(1000))
    assert set(read_npz(tmp_path / "a.npz", max_bytes=16_000)) == {"a", "b"}
    with pytest.raises(UserError, match="at most"):
        read_npz(tmp_path / "a.npz", max_bytes=12_000)


# --- MATLAB files against an independent reader -------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    kind=st.sampled_from(["f8", "f4", "c16", "i2", "u1", "i8", ">f8"]),
    compress=st.booleans(),
    name=st.sampled_from(["a", "coeff", "delays_of_a_channel_sounder"]),
)
def test_matlab_files_as_scipy_reads_them(
    shape: list[int], kind: str, compress: bool, name: str
) -> None:
    from scipy.io import loadmat, savemat

    random = np.random.default_rng(len(name) + sum(shape))
    array = (100 * random.normal(size=shape) + (1j if kind == "c16" else 0)).astype(kind)
    file = io.BytesIO()
    savemat(file, {"before": "text", name: array, "s": {"x": 1}}, do_compression=compress)
    ours, names = read_mat(file.getvalue(), {name, "s", "before"}, 2**20)
    assert names == ["before", name, "s"]
    assert set(ours) == {name}
    assert np.array_equal(ours[name], loadmat(file)[name])
