"""Traces: reading, importing impulse responses, refusing what is broken; the channel commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import UserError
from fedfade.radio import Cell, Channel, gain_statistics
from fedfade.radio.impulse import read_impulse_responses
from fedfade.radio.traces import load_traces


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Thirty drops of 250 slots and 4 sub-bands, of unit mean after xpr_gain."""
    generator = np.random.default_rng(0)
    gain = generator.exponential(size=(30, 250, 4)).astype(np.float32)
    mean = generator.uniform(0.5, 0.9, 30).astype(np.float32)
    np.savez(tmp_path / "t.npz", small_scale_gain=gain * mean[:, None, None], xpr_gain=mean)
    return tmp_path / "t.npz"


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    arrays = dict(np.load(path))
    change(arrays)
    np.savez(path, **arrays)
    return path


def test_traces_play_whole_drops(recorded: Path) -> None:
    radio, cell = RadioConfig(source="traces", traces=str(recorded)), CellConfig()
    channel = Channel(radio, cell, clients=5)
    trajectory = Cell(cell, radio, 5).trajectory([0, 1], rounds=2)
    gain = channel.small_scale_gain([0, 1], 1, range(3), trajectory)
    assert gain.shape == (2, 3, 250, 5, 4)
    arrays = np.load(recorded)
    drops = torch.from_numpy(arrays["small_scale_gain"] / arrays["xpr_gain"][:, None, None])
    assert any(torch.equal(gain[1, 2, :, 4], drop) for drop in drops)
    folder = RadioConfig(source="traces", traces=str(recorded.parent))
    assert torch.equal(
        Channel(folder, cell, 5).small_scale_gain([0, 1], 1, range(3), trajectory), gain
    )


def test_clients_of_an_episode_never_share_a_drop(recorded: Path) -> None:
    radio, cell = RadioConfig(source="traces", traces=str(recorded)), CellConfig()
    drops = len(np.load(recorded)["small_scale_gain"])
    channel = Channel(radio, cell, drops)
    trajectory = Cell(cell, radio, drops).trajectory([0, 1], rounds=3)
    gain = channel.small_scale_gains([0, 1], range(3), range(20), trajectory)
    first = gain[..., 0, :, 0].flatten(0, 2)  # one number tells a drop: [episode, client]
    assert all(len(set(row)) == drops for row in first.tolist())
    assert len(set(first[:, 0].tolist())) > 0.8 * drops  # and everybody gets them all in time
    alone = channel.small_scale_gain([0, 1], 2, [7], trajectory)
    assert torch.equal(alone[:, 0], gain[:, 2, 7])


def test_broken_traces_are_refused(recorded: Path, fedfade: Callable[..., Any]) -> None:
    def refused(*words: str) -> str:
        answer = fedfade(
            "channel", "sample", "--drops", 2, "--out", recorded.parent / "out" / "gains.npz",
            "--set", "radio.source=traces", "--set", f"radio.traces={recorded}", *words,
        )  # fmt: skip
        assert answer.code == 2
        assert "Traceback" not in answer.err
        assert not (recorded.parent / "out" / "gains.npz").exists()
        return str(answer.err)

    assert "radio.slots = 300" in refused("--set", "radio.slots=300")
    assert "radio.subbands = 5" in refused("--set", "radio.subbands=5")

    def put_nan(arrays: dict[str, Any]) -> None:
        arrays["small_scale_gain"][7, 3, 1] = np.nan

    changed(recorded, put_nan)
    assert "drop 7" in refused()
    changed(recorded, lambda arrays: arrays.pop("small_scale_gain"))
    assert "small_scale_gain" in refused()
    recorded.write_bytes(b"PK\x03\x04 no archive")
    assert "not an intact .npz" in refused()
    recorded.unlink()
    assert "cannot be read" in refused()


def put(arrays: dict[str, Any], name: str, value: float) -> None:
    arrays[name][7, 3, 1] = value


SPOILED: list[tuple[Callable[[dict[str, Any], str], object], str]] = [
    (lambda arrays, name: put(arrays, name, np.nan), r"'{name}' in .* NaN .*drop 7"),
    (lambda arrays, name: put(arrays, name, -1.0), "'{name}' in .* negative"),
    (lambda arrays, name: put(arrays, name, 1e35), "'{name}' in .* above 1e\\+10"),
    (lambda arrays, name: arrays.update({name: arrays[name] * 1j}), "'{name}' in .* complex64"),
    (lambda arrays, name: arrays.update({name: arrays[name][0]}), r"'{name}' in .* \[250, 4\]"),
    (lambda arrays, name: arrays.update({name: arrays[name][:5]}), r"\[5, 250, 4\].* same drops"),
    (lambda arrays, name: arrays.update({name: arrays[name][:, :9]}), r"\[30, 9, 4\].* slots"),
    (
        lambda arrays, name: arrays.update({name: arrays[name][..., :1]}),
        r"\[30, 250, 1\].*sub-bands",
    ),
]


@pytest.mark.parametrize("kind", ["average", "centre"])
@pytest.mark.parametrize("name", ["small_scale_gain", "small_scale_gain_bandavg"])
@pytest.mark.parametrize(("spoil", "sentence"), SPOILED)
def test_gains_that_are_not_used_are_checked_too(
    recorded: Path,
    kind: str,
    name: str,
    spoil: Callable[[dict[str, Any], str], object],
    sentence: str,
) -> None:
    def add_averages(arrays: dict[str, Any]) -> None:
        arrays["small_scale_gain_bandavg"] = arrays["small_scale_gain"][..., ::-1]

    radio = RadioConfig(source="traces", traces=str(recorded), subband_gain=kind)
    centre = load_traces(radio)
    changed(recorded, add_averages)
    assert torch.equal(load_traces(radio), centre.flip(-1) if kind == "average" else centre)
    changed(recorded, lambda arrays: spoil(arrays, name))
    with pytest.raises(UserError, match=sentence.format(name=name)):
        load_traces(radio)


@pytest.mark.parametrize("factor", [1e-9, 0.25, 4.0])
def test_gains_whose_mean_is_not_one_are_refused(
    recorded: Path, fedfade: Callable[..., Any], factor: float
) -> None:
    """They would count the path loss twice; `channel show` still shows them."""
    changed(recorded, lambda arrays: arrays.update(xpr_gain=arrays["xpr_gain"] / factor))
    radio = RadioConfig(source="traces", traces=str(recorded))
    with pytest.raises(UserError, match=r"t.npz' is not allowed: .* mean of .* one of 1"):
        load_traces(radio)
    assert fedfade("channel", "show", recorded, "--out", recorded.with_suffix(".png")).code == 0


def test_too_few_drops_for_the_clients(recorded: Path) -> None:
    radio = RadioConfig(source="traces", traces=str(recorded))
    with pytest.raises(Exception, match="30 drops, fewer than the 31 clients"):
        Channel(radio, CellConfig(), clients=31)


# --- import ------------------------------------------------------------------------------------


def responses(drops: int = 3, paths: int = 6, slots: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    shape = (drops, paths, slots)
    coefficients = 1e-5 * (generator.normal(size=shape) + 1j * generator.normal(size=shape))
    return coefficients, generator.uniform(0, 1e-6, (drops, paths, slots))


def expected_gains(coefficients: np.ndarray, delays: np.ndarray, subcarriers: int) -> np.ndarray:
    """Every frequency by itself, from the definition."""
    delays = np.broadcast_to(delays.reshape(*coefficients.shape[:2], -1), coefficients.shape)
    bands = []
    for centre in (-7.5e6, -2.5e6, 2.5e6, 7.5e6):
        power = np.zeros((coefficients.shape[0], coefficients.shape[2]))
        for k in range(subcarriers):
            frequency = centre + (k - (subcarriers - 1) / 2) * 5e6 / subcarriers
            field = (coefficients * np.exp(-2j * np.pi * frequency * delays)).sum(1)
            power += np.abs(field) ** 2 / subcarriers
        bands.append(power)
    mean = (np.abs(coefficients) ** 2).mean(2).sum(1)
    return np.stack(bands, -1) / mean[:, None, None]


def test_import_reads_matlabs_oldest_files(tmp_path: Path) -> None:
    """Version 4 knows matrices alone: one drop, or drops of one slot."""
    from scipy.io import savemat

    coefficients, delays = responses(drops=3, slots=1)
    arrays = {"text": "none", "coeff": coefficients[..., 0], "delay": delays[..., 0]}
    savemat(tmp_path / "four.mat", arrays, format="4")
    found, times = read_impulse_responses(tmp_path / "four.mat", "drop,path")
    assert np.array_equal(found, coefficients.astype(np.complex64))
    assert np.array_equal(times, delays)
    content = (tmp_path / "four.mat").read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / "cut.mat").write_bytes(content[:length])
        with pytest.raises(UserError, match=r"not an intact .mat|no impulse response"):
            read_impulse_responses(tmp_path / "cut.mat", "drop,path")
    parts = []  # as a big-endian machine writes them
    for name, array in (("h", coefficients[..., 0]), ("tau", delays[..., 0])):
        both = [array.real, array.imag] if np.iscomplexobj(array) else [array]
        parts.append(np.array([1000, *array.shape, len(both) - 1, len(name) + 1], ">i4").tobytes())
        parts += [name.encode() + b"\0", *(part.T.astype(">f8").tobytes() for part in both)]
    (tmp_path / "big.mat").write_bytes(b"".join(parts))
    assert np.array_equal(read_impulse_responses(tmp_path / "big.mat", "drop,path")[0], found)


@pytest.mark.parametrize("ending", [".npz", ".mat"])
@pytest.mark.parametrize("drifting", [True, False])
@pytest.mark.parametrize("subcarriers", [1, 25])
def test_import_samples_the_response(
    tmp_path: Path,
    fedfade: Callable[..., Any],
    ending: str,
    drifting: bool,
    subcarriers: int,
) -> None:
    coefficients, delays = responses()
    delays = delays if drifting else delays[..., 0]
    file = tmp_path / f"cir{ending}"
    if ending == ".npz":
        np.savez(file, coefficients=coefficients, delays=delays)
    else:
        from scipy.io import savemat

        savemat(file, {"coeff": coefficients, "delay": delays})
    kind = "centre" if subcarriers == 1 else "average"
    answer = fedfade("channel", "import", file, "--subband-gain", kind)
    assert answer.code == 0, answer.err
    found = np.load(tmp_path / "cir.traces.npz")
    expected = expected_gains(coefficients, delays, subcarriers)
    np.testing.assert_allclose(found["small_scale_gain"], expected, rtol=1e-4, atol=1e-5)
    power_db = 10 * np.log10((np.abs(coefficients) ** 2).mean(2).sum(1))
    np.testing.assert_allclose(found["large_scale_gain_db"], power_db, rtol=1e-5)


def test_import_takes_the_axes_of_other_tools(tmp_path: Path, fedfade: Callable[..., Any]) -> None:
    coefficients, delays = responses()
    plain, antennas = tmp_path / "plain.npz", tmp_path / "antennas.npz"
    np.savez(plain, coefficients=coefficients, delays=delays[..., 0])
    # Sionna: [batch, rx, rx antenna, tx, tx antenna, path, time] and [batch, rx, tx, path].
    np.savez(
        antennas,
        a=coefficients[:, None, None, None, None],
        tau=delays[:, None, None, :, 0],
    )
    for file in (plain, antennas):
        assert fedfade("channel", "import", file, "--out", file.with_suffix(".out.npz")).code == 0
    first, second = (np.load(f.with_suffix(".out.npz")) for f in (plain, antennas))
    assert np.array_equal(first["small_scale_gain"], second["small_scale_gain"])


def several(*leading: int, paths: int = 5, slots: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and delays with axes in front."""
    coefficients, delays = responses(int(np.prod(leading)), paths, slots)
    return coefficients.reshape(*leading, paths, slots), delays.reshape(*leading, paths, slots)


def test_import_takes_sionnas_batches_and_users(tmp_path: Path) -> None:
    """[batch, rx, rx antenna, tx, tx antenna, path, time]: every pair of users a drop."""
    coefficients, delays = several(3, 1, 1, 4, 1)
    wanted = coefficients.reshape(12, 5, 7).astype(np.complex64)
    for taus in (delays[:, :, 0, :, 0, :, 0], delays[..., 0], delays):  # the last two: per antenna
        np.savez(tmp_path / "sionna.npz", a=coefficients, tau=taus)
        found, times = read_impulse_responses(tmp_path / "sionna.npz")
        assert np.array_equal(found, wanted)
        assert np.array_equal(
            np.broadcast_to(times, (12, 5, 7))[..., 0], delays[..., 0].reshape(12, 5)
        )
    coefficients, delays = several(3, 1, 2, 4, 1)
    np.savez(tmp_path / "sionna.npz", a=coefficients, tau=delays[:, :, 0, :, 0, :, 0])
    with pytest.raises(UserError, match=r"shape \[3, 1, 2, 4, 1, 5, 7\]: .* --axes"):
        read_impulse_responses(tmp_path / "sionna.npz")
    names = "drop,drop,antenna,drop,antenna,path,slot"
    found, _ = read_impulse_responses(tmp_path / "sionna.npz", names)
    assert np.array_equal(found, coefficients[:, :, 0, :, 0].reshape(12, 5, 7).astype(np.complex64))


def test_axes_that_leave_doubt_are_asked_for(tmp_path: Path, fedfade: Callable[..., Any]) -> None:
    coefficients, delays = several(3)
    file = tmp_path / "cir.npz"

    def read(values: np.ndarray, taus: np.ndarray, axes: str | None = None) -> tuple[int, ...]:
        np.savez(file, coefficients=values, delays=taus)
        return read_impulse_responses(file, axes)[0].shape

    # Drops and paths, or paths and slots?
    with pytest.raises(UserError, match=r"shape \[3, 5\]: \[drop, path, slot\], or .* --axes"):
        read(coefficients[..., 0], delays[..., 0])
    assert read(coefficients[..., 0], delays[..., 0], "drop,path") == (3, 5, 1)
    assert read(coefficients[0], delays[0], "path,slot") == (1, 5, 7)
    assert read(coefficients[0], delays[0, :, 0]) == (1, 5, 7)  # a delay a path: no doubt
    # QuaDRiGa's [rx, tx, path, slot]: antennas, or drops?
    with pytest.raises(UserError, match=r"shape \[3, 1, 5, 7\]: .* --axes"):
        read(coefficients[:, None], delays[:, None])
    assert read(coefficients[:, None], delays[:, None], "drop,antenna,path,slot") == (3, 5, 7)
    assert read(coefficients[:, None], delays[0], "antenna,antenna,path,slot") == (1, 5, 7)
    # In any order.
    turned = np.ascontiguousarray(coefficients.transpose(2, 0, 1))
    assert read(turned, delays[..., 0], "slot, drop, path") == (3, 5, 7)
    found, times = read_impulse_responses(file, "slot,drop,path")
    assert np.array_equal(found, coefficients.astype(np.complex64))
    assert np.array_equal(times[..., 0], delays[..., 0])
    for wrong in ("drop,path", "drop,slot,slot", "drop,path,time", "path,path,slot", ""):
        answer = fedfade("channel", "import", file, "--axes", wrong)
        assert answer.code == 2
        assert (
            f"--axes = '{wrong}' is not allowed: it must be a name for each of the 3" in answer.err
        )
    answer = fedfade("channel", "import", file, "--axes", "slot,drop,path")
    assert answer.out.startswith("3 drops of 7 slots x 4")


def test_imported_metadata_claim_only_what_is_known(
    tmp_path: Path, fedfade: Callable[..., Any]
) -> None:
    from scipy.io import savemat

    coefficients, delays = responses(drops=3, slots=20)
    (tmp_path / "somewhere").mkdir()
    file = tmp_path / "somewhere" / "cir.mat"
    savemat(file, {"coeff": coefficients, "delay": delays})

    def metadata(*words: str) -> dict[str, Any]:
        out = tmp_path / "out.npz"
        answer = fedfade("channel", "import", file, "--out", out, *words)
        assert answer.code == 0, answer.err
        found: dict[str, Any] = json.loads(str(np.load(out)["metadata"]))
        assert sorted(found.pop("definitions")) == sorted(set(np.load(out).files) - {"metadata"})
        assert found.pop("source").startswith("fedfade ")
        return found

    known = {"imported_from": "cir.mat", "drops": 3, "slots": 20, "subbands": 4}
    sampled = {"subband_bw_hz": 5e6, "subband_gain": "average", "subcarriers_for_average": 25}
    assert metadata() == known | sampled
    told = metadata(
        "--subband-gain", "centre", "--set", "radio.slot_s=0.001", "--set", "radio.subbands=2",
        "--set", " radio.speed_mps = 3", "--set", "radio.clusters=5", "--set", "radio.slots=7",
    )  # fmt: skip
    sampled = {"subband_bw_hz": 5e6, "subband_gain": "centre", "slot_s": 0.001, "speed_mps": 3.0}
    assert told == known | sampled | {"subbands": 2}


def test_import_refuses_what_is_no_impulse_response(
    tmp_path: Path, fedfade: Callable[..., Any]
) -> None:
    from scipy.io import savemat

    coefficients, delays = responses()

    def refused(name: str) -> str:
        answer = fedfade("channel", "import", tmp_path / name)
        assert answer.code == 2, answer
        assert "Traceback" not in answer.err
        assert len(answer.err.strip().splitlines()) == 1
        assert not list(tmp_path.glob("*.traces.npz"))
        return str(answer.err)

    savemat(tmp_path / "other.mat", {"temperature": np.arange(4.0), "log": {"a": 1}})
    assert "temperature" in refused("other.mat")
    savemat(tmp_path / "struct.mat", {"coeff": {"re": 1}, "delay": delays})
    assert "no impulse response" in refused("struct.mat")
    (tmp_path / "hdf.mat").write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + b" " * 200)
    assert "7.3" in refused("hdf.mat")
    (tmp_path / "noise.mat").write_bytes(np.random.default_rng(0).bytes(3000))
    assert "not an intact .mat" in refused("noise.mat")
    savemat(tmp_path / "whole.mat", {"coeff": coefficients, "delay": delays})
    half = (tmp_path / "whole.mat").read_bytes()[:700]
    (tmp_path / "half.mat").write_bytes(half)
    assert "not an intact .mat" in refused("half.mat")
    np.savez(tmp_path / "shape.npz", coefficients=coefficients, delays=delays[:, :2])
    assert "delays" in refused("shape.npz")
    np.savez(tmp_path / "ns.npz", coefficients=coefficients, delays=delays * 1e9)
    assert "seconds" in refused("ns.npz")
    coefficients[1, 2, 3] = np.nan
    np.savez(tmp_path / "nan.npz", coefficients=coefficients, delays=delays)
    assert "NaN" in refused("nan.npz")
    np.savez(tmp_path / "pickle.npz", coefficients=np.array([{}], dtype=object), delays=delays)
    assert "Python objects" in refused("pickle.npz")
    assert "cannot be read" in refused("missing.mat")
    (tmp_path / "text.csv").write_text("1,2")
    assert "neither" in refused("text.csv")


# --- sample and show ---------------------------------------------------------------------------


def test_sample_and_show(tmp_path: Path, fedfade: Callable[..., Any]) -> None:
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    words = ("channel", "sample", "--clusters", 21, "--drops", 40, "--seed", 7)
    assert fedfade(*words, "--out", first).code == 0
    assert fedfade(
        *words, "--carrier-ghz", 2.0, "--speed", 3.0, "--subband-gain", "centre", "--out", second
    ).code == 0  # fmt: skip
    arrays = np.load(first)
    assert arrays["small_scale_gain"].shape == (40, 250, 4)
    assert arrays["large_scale_gain_db"].shape == (40,)
    assert arrays["position"].shape == (40, 2)
    assert np.array_equal(arrays["xpr_gain"], np.ones(40))
    metadata = json.loads(str(np.load(second)["metadata"]))
    assert metadata["carrier_hz"] == 2e9
    assert metadata["speed_mps"] == 3.0
    assert metadata["subband_gain"] == "centre"

    picture = tmp_path / "fig.png"
    answer = fedfade("channel", "show", first, second, "--out", picture)
    assert answer.code == 0, answer.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    std = gain_statistics(arrays["small_scale_gain"]).std_db
    assert f"{std:.2f}" in answer.out
    assert "Rayleigh" in answer.out


def test_sample_is_reproducible(tmp_path: Path, fedfade: Callable[..., Any]) -> None:
    for name in ("a.npz", "b.npz"):
        fedfade("channel", "sample", "--drops", 5, "--seed", 3, "--out", tmp_path / name)
    one, other = (np.load(tmp_path / name) for name in ("a.npz", "b.npz"))
    assert all(np.array_equal(one[key], other[key]) for key in one.files)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--clusters", "1"), "radio.clusters = 1"),
        (("--set", "radio.bandwidth_hz=0"), "radio.bandwidth_hz"),
        (("--set", "radio.bandwidth_hz=-5e6"), "radio.bandwidth_hz"),
        (("--speed", "nan"), "radio.speed_mps"),
        (("--carrier-ghz", "-3.5"), "radio.carrier_hz"),
        (("--subband-gain", "middle"), "radio.subband_gain"),
        (("--drops", "0"), "--drops"),
    ],
)
def test_sample_refuses_bad_settings(
    tmp_path: Path, fedfade: Callable[..., Any], words: tuple[str, ...], named: str
) -> None:
    answer = fedfade("channel", "sample", *words, "--out", tmp_path / "g.npz")
    assert answer.code == 2
    assert named in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "g.npz").exists()


def test_output_that_cannot_be_written(tmp_path: Path, fedfade: Callable[..., Any]) -> None:
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file" / "g.npz", Path("/proc/none/g.npz")):
        answer = fedfade("channel", "sample", "--drops", 2, "--out", out)
        assert answer.code == 2
        assert "cannot be made" in answer.err or "cannot be written" in answer.err
    answer = fedfade("channel", "sample", "--drops", 2, "--out", tmp_path / "g.txt")
    assert answer.code == 2
    assert ".npz" in answer.err


def test_show_refuses_what_it_cannot_draw(
    tmp_path: Path, recorded: Path, fedfade: Callable[..., Any]
) -> None:
    picture = tmp_path / "fig.png"
    for words in (
        (recorded, recorded, recorded, "--out", picture),
        (recorded, "--out", tmp_path / "fig.doc"),
        (tmp_path / "none.npz", "--out", picture),
        (recorded, "--out", picture, "--drop", 10_000),  # it has not so many
    ):
        assert fedfade("channel", "show", *words).code == 2
    assert not picture.exists()
    assert fedfade("channel", "show", recorded, "--out", picture).code == 0  # no positions in it


def test_bench_ends_with_one_json_object() -> None:
    """In a process of its own, whose memory is not that of the one that started it."""
    ballast = np.ones(100 << 20)  # 800 MB
    del ballast
    command = [sys.executable, "-m", "fedfade", "bench", "channel", "--json", "--repeats", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout.strip().splitlines()[-1])
    assert figures["threads"] == 1
    assert figures["ms_per_client_round"] > 0
    assert 5 < figures["memory_mb"] < 200  # about 35
