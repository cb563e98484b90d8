"""Gain files: what `fedfade channel sample` and `import` write and `show` reads."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfade import __version__
from fedfade.config import CellConfig, RadioConfig
from fedfade.radio.cell import Cell
from fedfade.radio.channel import Channel
from fedfade.radio.impulse import read_impulse_responses, sampled_gains
from fedfade.radio.traces import read_gains
from fedfade.randomness import stream
from fedfade.storage import read_npz

_MOTION = ("carrier_hz", "speed_mps", "slot_s")
"""Fields of `radio` that say how impulse responses were taken, which the responses do not tell."""
_CHUNK = 1000  # drops at a time: bounds memory, changes no value
_DEFINITIONS = {
    "small_scale_gain": "power gain over large-scale gain, unit mean [drop, slot, band]; "
    "at the sub-band's centre or averaged over it, see subband_gain",
    "large_scale_gain_db": "-(path loss) + shadow fading, no antenna gain",
    "position": "client x, y in m, base station at 0, 0",
    "heading_rad": "direction of travel",
    "shadow_db": "shadow fading, positive = gain",
    "xpr_gain": "1: the gains have unit mean already",
}


@dataclass(frozen=True)
class Recording:
    """One file of gains."""

    name: str
    gain: np.ndarray  # [drop, slot, band], unit mean
    position: np.ndarray | None  # [drop, 2] in metres
    large_scale_gain_db: np.ndarray | None  # [drop]
    metadata: Mapping[str, Any]


def sample_drops(
    radio: RadioConfig, cell: CellConfig, drops: int, seed: int
) -> dict[str, np.ndarray]:
    """Independent drops: each one client somewhere in a cell of its own.

    Drop i is the same whatever the number of drops.
    """
    places, channel = Cell(cell, radio, clients=1), Channel(radio, cell, clients=1)
    spread_db = cell.ring_spread_db if cell.mobility == "ring" else cell.shadowing_db
    chunks = []
    for first in range(0, drops, _CHUNK):
        seeds = [stream(seed, "drop", i) for i in range(first, min(first + _CHUNK, drops))]
        trajectory = places.trajectory(seeds, rounds=1)
        at = trajectory[:, 0, 0]  # [drop]
        chunk = {
            "small_scale_gain": channel.small_scale_gain(seeds, 0, [0], trajectory)[:, 0, :, 0],
            "large_scale_gain_db": at.gain_db - radio.antennas_dbi,
            "position": at.position,
            "heading_rad": at.heading_rad,
            "shadow_db": at.shadowing * spread_db,
            "delay_spread_s": at.delay_spread_s,
            "asa_deg": at.azimuth_spread_deg,
        }
        chunks.append(chunk)
    metadata = {
        "scenario": "3GPP TR 38.901 UMi NLOS",
        "model": radio.source,
        "NumClusters": radio.clusters,
        **_fields(radio, "cluster_draw", *_MOTION, "slots", "subbands"),
        **_sampling(radio),
        "definitions": _DEFINITIONS,
        "seed": seed,
        "drops": drops,
        "cell": cell.model_dump(),
    }
    arrays = {name: torch.cat([c[name] for c in chunks]).numpy() for name in chunks[0]}
    return arrays | _about(drops, metadata)


def import_drops(
    path: Path | str, radio: RadioConfig, told: Collection[str] = (), axes: str | None = None
) -> dict[str, np.ndarray]:
    """Impulse responses of a file as gains in the same layout.

    `told`: the fields of `radio` that somebody knows to hold for this file. All others but those
    the responses are sampled by are a preset's, and the metadata do not claim them. `axes`: what
    those of the coefficients are, where their shape leaves doubt.
    """
    gain, mean = sampled_gains(*read_impulse_responses(path, axes), radio)
    metadata = {
        "imported_from": Path(path).name,
        **dict(zip(("drops", "slots", "subbands"), gain.shape, strict=True)),
        **_sampling(radio),
        **_fields(radio, *(name for name in _MOTION if name in told)),
        "definitions": {
            "small_scale_gain": _DEFINITIONS["small_scale_gain"],
            "large_scale_gain_db": "mean power of the drop",
            "xpr_gain": _DEFINITIONS["xpr_gain"],
        },
    }
    gain_db = (10.0 * np.log10(mean)).astype(np.float32)
    arrays = {"small_scale_gain": gain, "large_scale_gain_db": gain_db}
    return arrays | _about(len(mean), metadata)


def read_recording(path: Path | str, average: bool = False) -> Recording:
    """A gain file, ours or in the same layout; positions and metadata may be missing."""
    path = Path(path)
    gain = read_gains(path, average)
    arrays = read_npz(path, ("position", "large_scale_gain_db", "metadata"))
    metadata: Any = {}
    if "metadata" in arrays and arrays["metadata"].dtype.kind == "U":
        with suppress(ValueError, RecursionError):
            metadata = json.loads(str(arrays["metadata"]))

    def of_each_drop(name: str, *extents: int) -> np.ndarray | None:
        array = arrays.get(name)
        return array if array is not None and array.shape == (len(gain), *extents) else None

    metadata = metadata if isinstance(metadata, dict) else {}
    position, gain_db = of_each_drop("position", 2), of_each_drop("large_scale_gain_db")
    return Recording(path.stem, gain, position, gain_db, metadata)


def _fields(radio: RadioConfig, *names: str) -> dict[str, object]:
    return {name: getattr(radio, name) for name in names}


def _sampling(radio: RadioConfig) -> dict[str, object]:
    """How sub-bands were made of a frequency response."""
    facts = {"subband_bw_hz": radio.bandwidth_hz, **_fields(radio, "subband_gain")}
    averaged = {"subcarriers_for_average": radio.subcarriers}
    return facts | (averaged if radio.subband_gain == "average" else {})


def _about(drops: int, metadata: Mapping[str, object]) -> dict[str, np.ndarray]:
    """What every file says about its gains."""
    text = json.dumps({"source": f"fedfade {__version__}", **metadata})
    return {"xpr_gain": np.ones(drops, dtype=np.float32), "metadata": np.array(text)}
