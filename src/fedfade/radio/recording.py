"""Gain files: what `fedfade channel sample` and `import` write and `show` reads."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfade import __version__
from fedfade.config import CellConfig, RadioConfig
from fedfade.radio.cell import Cell
from fedfade.radio.channel import Channel
from fedfade.radio.impulse import read_impulse_responses, sampled_gains
from fedfade.radio.traces import read_gains
from fedfade.randomness import stream
from fedfade.storage import read_npz

_TOLD = ("carrier_hz", "speed_mps", "slot_s")
"""Fields of `radio` that say how impulse responses were taken, which the responses do not tell."""
_CHUNK = 1000  # drops at a time: bounds memory, changes no value


@dataclass(frozen=True)
class Recording:
    """One file of gains."""

    name: str
    gain: np.ndarray
    """Unit mean: [drop, slot, band]."""
    position: np.ndarray | None
    """[drop, 2] in metres."""
    large_scale_gain_db: np.ndarray | None
    """[drop]."""
    metadata: Mapping[str, Any]


def sample(radio: RadioConfig, cell: CellConfig, drops: int, seed: int) -> dict[str, np.ndarray]:
    """Independent drops: each one client somewhere in a cell of its own.

    Drop i is the same whatever the number of drops.

    >>> arrays = sample(RadioConfig(), CellConfig(placement="redraw"), drops=3, seed=7)
    >>> arrays["small_scale_gain"].shape
    (3, 250, 4)
    """
    place = Cell(cell, radio, clients=1)
    channel = Channel(radio, cell, clients=1)
    spread_db = cell.ring_spread_db if cell.placement == "ring" else cell.shadowing_db
    columns: dict[str, list[np.ndarray]] = {}
    for first in range(0, drops, _CHUNK):
        seeds = [stream(seed, "drop", i) for i in range(first, min(first + _CHUNK, drops))]
        trajectory = place.trajectory(seeds, rounds=1)
        here = trajectory.at(0)
        gain = channel.small_scale_gain(seeds, 0, [0], trajectory)[:, 0, :, 0]
        for name, value in {
            "small_scale_gain": gain,
            "large_scale_gain_db": here.gain_db[:, 0] - radio.antenna_gain_dbi,
            "position": here.position[:, 0],
            "heading_rad": here.heading_rad[:, 0],
            "shadow_db": here.shadowing[:, 0] * spread_db,
            "delay_spread_s": here.delay_spread_s[:, 0],
            "asa_deg": here.azimuth_spread_deg[:, 0],
        }.items():
            columns.setdefault(name, []).append(value.numpy())
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    arrays["xpr_gain"] = np.ones(drops, dtype=np.float32)
    arrays["metadata"] = np.array(
        json.dumps(_metadata(radio, {"seed": seed, "drops": drops, "cell": cell.model_dump()}))
    )
    return arrays


def convert(
    path: Path | str, radio: RadioConfig, told: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Impulse responses of a file as gains in the same layout.

    `told`: the fields of `radio` that somebody knows to hold for this file. All others but those
    the responses are sampled by are a preset's, and the metadata do not claim them.
    """
    gain, mean = sampled_gains(read_impulse_responses(path), radio)
    drops, slots, bands = gain.shape
    metadata = {
        "source": f"fedfade {__version__}",
        "imported_from": Path(path).name,
        "drops": drops,
        "slots": slots,
        "subbands": bands,
        **_sampling(radio),
        **{name: getattr(radio, name) for name in _TOLD if name in told},
        "definitions": {
            "small_scale_gain": _DEFINITIONS["small_scale_gain"],
            "large_scale_gain_db": "mean power of the drop",
            "xpr_gain": _DEFINITIONS["xpr_gain"],
        },
    }
    return {
        "small_scale_gain": gain,
        "large_scale_gain_db": (10.0 * np.log10(mean)).astype(np.float32),
        "xpr_gain": np.ones(len(mean), dtype=np.float32),
        "metadata": np.array(json.dumps(metadata)),
    }


def read_recording(path: Path | str, average: bool = False) -> Recording:
    """A gain file, ours or in the same layout; positions and metadata may be missing."""
    path = Path(path)
    gain = read_gains(path, average)
    drops = len(gain)
    arrays = read_npz(path, ("position", "large_scale_gain_db", "metadata"))
    position = arrays.get("position")
    large_scale = arrays.get("large_scale_gain_db")
    metadata: Any = {}
    if "metadata" in arrays and arrays["metadata"].dtype.kind == "U":
        try:
            metadata = json.loads(str(arrays["metadata"]))
        except (ValueError, RecursionError):
            metadata = {}
    return Recording(
        name=path.stem,
        gain=gain,
        position=position if position is not None and position.shape == (drops, 2) else None,
        large_scale_gain_db=(
            large_scale if large_scale is not None and large_scale.shape == (drops,) else None
        ),
        metadata=metadata if isinstance(metadata, dict) else {},
    )


_DEFINITIONS = {
    "small_scale_gain": "power gain over large-scale gain, unit mean [drop, slot, band]; "
    "at the sub-band's centre or averaged over it, see subband_gain",
    "large_scale_gain_db": "-(path loss) + shadow fading, no antenna gain",
    "position": "client x, y in m, base station at 0, 0",
    "heading_rad": "direction of travel",
    "shadow_db": "shadow fading, positive = gain",
    "xpr_gain": "1: the gains have unit mean already",
}


def _sampling(radio: RadioConfig) -> dict[str, object]:
    """How sub-bands were made of a frequency response."""
    facts: dict[str, object] = {
        "subband_bw_hz": radio.bandwidth_hz,
        "subband_gain": radio.subband_gain,
    }
    if radio.subband_gain == "average":
        facts["subcarriers_for_average"] = radio.subcarriers
    return facts


def _metadata(radio: RadioConfig, more: Mapping[str, object]) -> dict[str, object]:
    """What a reader of drawn gains needs to know."""
    return {
        "source": f"fedfade {__version__}",
        "scenario": "3GPP TR 38.901 UMi NLOS",
        "model": radio.source,
        "NumClusters": radio.clusters,
        "cluster_draw": radio.cluster_draw,
        "carrier_hz": radio.carrier_hz,
        "speed_mps": radio.speed_mps,
        "slot_s": radio.slot_s,
        "slots": radio.slots,
        "subbands": radio.subbands,
        **_sampling(radio),
        "definitions": _DEFINITIONS,
        **more,
    }
