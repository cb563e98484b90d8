"""Every file fedfade reads that somebody else may have written: how it is read, and good ones.

`tests/reliability/test_loaders.py` breaks the good ones a little, `tests/reliability/fuzz.py` a
lot. A loader may return or refuse with a `UserError`; anything else is a fault.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as dump_tensors

from fedfade.agents.checkpoint import FORMAT, INDEX, VERSION, load_checkpoint
from fedfade.config import LearningConfig, RadioConfig, load_config, render_config
from fedfade.errors import UserError
from fedfade.experiments.comparison import compared_names
from fedfade.experiments.findings import left_out_lines, summaries, verdict
from fedfade.experiments.metrics import Row, check_complete, read_rows, rows_text
from fedfade.experiments.run_folder import RunFolder, digest, open_finished
from fedfade.experiments.sweep import load_sweep
from fedfade.learning import load_data
from fedfade.learning.data import _class_names
from fedfade.learning.download import Source, _read_archive
from fedfade.radio import gain_statistics, read_recording
from fedfade.radio.impulse import read_impulse_responses, sampled_gains
from fedfade.radio.traces import load_traces
from fedfade.studies.paper.plan import load_plan
from fedfade.uplink.gradients import RecordedGradients

TINY = load_config(
    "paper",
    [
        *("learning.clients=2", "run.seeds=1", "run.rounds=2", "radio.slots=3", "radio.subbands=2"),
        "allocation.policies=[random, perfect]",
    ],
)
RADIO = RadioConfig(slots=3, subbands=2, traces="x", source="traces")


@dataclass(frozen=True)
class Loader:
    """One kind of file."""

    suffix: str
    read: Callable[[Path], object]  # of a path with this content
    good: tuple[bytes, ...]


# --- good files ---------------------------------------------------------------------------------


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _mat(compress: bool, version: str = "5", **arrays: np.ndarray) -> bytes:
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, arrays, do_compression=compress, format=version)
    return file.getvalue()


_RANDOM = np.random.default_rng(0)
_GAINS = _RANDOM.exponential(size=(4, 3, 2))
_PATHS = _RANDOM.normal(size=(2, 3, 4)) + 1j * _RANDOM.normal(size=(2, 3, 4))
_DELAYS = _RANDOM.uniform(0, 1e-6, size=(2, 3))
_IMAGES = _RANDOM.integers(0, 255, (20, 8, 8, 1), dtype=np.uint8)


def _rows() -> bytes:
    import tempfile

    numbers = dict.fromkeys(Row._fields, 0.5)
    rows = [
        Row(
            **numbers  # type: ignore[arg-type]
            | {"seed": 0, "policy": policy, "round": number, "delivered_clients": "0 1"}
            | {"not_finite": 1, "not_finite_clients": "1"}
        )
        for number in range(2)
        for policy in ("random", "perfect")
    ]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "m.csv").write_text(rows_text(rows))
        return (Path(name) / "m.csv").read_bytes()


_TENSORS = {"parameters": torch.arange(6.0).reshape(2, 3), "uploads": torch.ones(2, 2).long()}
_INDEX = {
    "format": FORMAT,
    "version": VERSION,
    "batch": 3,
    "episodes": 60,
    "config": TINY.model_dump(),
    "files": {
        part: {"name": f"{part}-00000003.safetensors", "sha256": "0"}
        for part in ("agents", "training")
    },
}
_READINGS = b"""factors:
  layout:
    default: walking
    levels:
      walking: {says: clients walk}
      ring: {says: clients on a ring, set: {cell.mobility: ring, cell.ring_snr_db: 20}}
readings:
  - {name: default}
  - {name: ring, levels: {layout: ring}}
"""
_SWEEP = b"""preset: small-cell
grid:
  radio.clusters: [7, 14]
  learning.clients: [2, 3]
seeds: [0, 5]
resources: {cpus: 1}
"""


def _cifar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]:
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = 3073
            tar.addfile(member, io.BytesIO(bytes(3073)))
    return file.getvalue()


# --- reading, as the commands do ----------------------------------------------------------------


def _traces(path: Path) -> object:
    radio = RADIO.model_copy(update={"traces": str(path)})
    for average in ("average", "centre"):
        load_traces(radio.model_copy(update={"subband_gain": average}))
    return gain_statistics(read_recording(path).gain)


def _impulse(path: Path) -> object:
    return sampled_gains(*read_impulse_responses(path), RADIO)


def _gradients(path: Path) -> object:
    return RecordedGradients(TINY, path).inner([3], 1)


def _sweep(path: Path) -> object:
    return len(load_sweep(path).points)


def _readings(path: Path) -> object:
    return load_plan(path, TINY).chosen(())


def _metrics(path: Path) -> object:
    rows = read_rows(path)
    check_complete(rows, path, compared_names(TINY), TINY, 2)
    return summaries(rows), verdict(rows, 2), left_out_lines(rows)


def _record(path: Path) -> object:
    (path.parent / "config.yaml").write_text(render_config(TINY))
    path.rename(path.parent / "run.json")
    return open_finished(path.parent)


def _index(path: Path) -> object:
    path.rename(path.parent / INDEX)
    return load_checkpoint(path.parent).tensors("agents")


def _agents(path: Path) -> object:
    """Safetensors whose digest was made to fit."""
    content = path.read_bytes()
    name = _INDEX["files"]["agents"]["name"]  # type: ignore[index]
    (path.parent / name).write_bytes(content)
    files = json.loads(json.dumps(_INDEX))
    files["files"]["agents"]["sha256"] = hashlib.sha256(content).hexdigest()
    (path.parent / INDEX).write_text(json.dumps(files))
    return load_checkpoint(path.parent).tensors("agents")


def _comparison(path: Path) -> object:
    path.rename(path.parent / "checkpoint.safetensors")
    return RunFolder(path.parent, TINY, torch.device("cpu")).load_checkpoint()


def _archive(path: Path) -> object:
    with path.open("rb") as file:
        return _read_archive(file, Source(images_per_file=1))


LOADERS: dict[str, Loader] = {
    "traces": Loader(
        ".npz",
        _traces,
        (
            _npz(small_scale_gain=_GAINS, xpr_gain=np.ones(4), metadata=np.array('{"a": 1}')),
            _npz(small_scale_gain=_GAINS, small_scale_gain_bandavg=_GAINS.astype(np.float32)),
        ),
    ),
    "impulse-npz": Loader(".npz", _impulse, (_npz(coefficients=_PATHS, delays=_DELAYS),)),
    "impulse-mat": Loader(
        ".mat",
        _impulse,
        (
            _mat(True, coeff=_PATHS, delay=_DELAYS),
            _mat(False, h=_PATHS, tau=_DELAYS, note=np.array("x")),
            _mat(False, "4", note=np.array("x"), coeff=_PATHS[0], delay=_DELAYS[0]),
        ),
    ),
    "images": Loader(
        ".npz",
        lambda path: load_data(LearningConfig(data=str(path))),
        (_npz(images=_IMAGES, labels=np.arange(20) % 3),),
    ),
    "gradients": Loader(".npz", _gradients, (_npz(inner=_RANDOM.normal(size=(2, 3, 2, 2))),)),
    "preset": Loader(
        ".yaml",
        load_config,
        (
            render_config(TINY).encode(),
            b"radio: {clusters: 3, carrier_hz: 3.5e+9}\nlearning:\n  data: digits\n",
        ),
    ),
    "sweep": Loader(".yaml", _sweep, (_SWEEP,)),
    "readings": Loader(".yaml", _readings, (_READINGS,)),
    "metrics": Loader(".csv", _metrics, (_rows(),)),
    "record": Loader(".json", _record, (b'{"finished": "now", "scopes": {"random": "local"}}',)),
    "checkpoint-index": Loader(".json", _index, (json.dumps(_INDEX).encode(),)),
    "agents": Loader(".safetensors", _agents, (dump_tensors(_TENSORS),)),
    "comparison": Loader(
        ".safetensors",
        _comparison,
        (dump_tensors(_TENSORS, {"rounds_done": "1", "sha256": digest(_TENSORS)}),),
    ),
    "class-names": Loader(".json", _class_names, (b'["cat", "dog"]',)),
    "cifar-archive": Loader(".gz", _archive, (_cifar(),)),
}


def load(name: str, content: bytes, folder: Path) -> object:
    """Write the content where the loader looks for it and read it."""
    loader = LOADERS[name]
    path = folder / f"input{loader.suffix}"
    path.write_bytes(content)
    return loader.read(path)


# --- hostile files ------------------------------------------------------------------------------


def npy_header(descr: object, shape: object, version: int = 1) -> bytes:
    """An array that promises anything."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode(
        "latin1", "replace"
    )
    size = struct.pack("<H" if version == 1 else "<I", len(header) + 1)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + b"\n"


def one_sentence(error: UserError) -> None:
    """What every refusal must be."""
    text = str(error)
    assert text.endswith(".")
    assert text.isprintable()  # no line breaks, nothing that steers a terminal
    assert len(text) < 2000
