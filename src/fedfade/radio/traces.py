"""Recorded gains: `.npz` files with `small_scale_gain` [drop, slot, band].

Optional beside it: `small_scale_gain_bandavg` (the sub-band averages of the same drops) and
`xpr_gain` [drop] (the mean power the gains are divided by). Other arrays are ignored. Both kinds of
gains are checked whichever is used: a file that is half broken is not to be trusted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfade.config import RadioConfig
from fedfade.errors import UserError, not_allowed
from fedfade.storage import read_npz

_CENTRE, _AVERAGE = "small_scale_gain", "small_scale_gain_bandavg"


def read_gains(path: Path | str, average: bool = False) -> np.ndarray:
    """Gains of one file, divided by `xpr_gain` where it has one: [drop, slot, band] float32.

    With `average`, sub-band averages are preferred where the file keeps both.
    """
    arrays = read_npz(path, (_CENTRE, _AVERAGE, "xpr_gain"))
    wanted = _AVERAGE if average and _AVERAGE in arrays else _CENTRE
    if wanted not in arrays:
        raise UserError(f"{str(path)!r} has no array {wanted!r}.")
    mean = arrays.pop("xpr_gain", None)
    _check_shapes(arrays, path)
    return {name: _checked(name, gain, mean, path) for name, gain in arrays.items()}[wanted]


def _check_shapes(gains: dict[str, np.ndarray], path: Path | str) -> None:
    for name, gain in gains.items():
        if gain.ndim != 3 or 0 in gain.shape or gain.dtype.kind not in "fiu":
            raise UserError(
                f"{name!r} in {str(path)!r} has shape {list(gain.shape)} and type {gain.dtype}: "
                "real numbers [drop, slot, band] are needed."
            )
    if len({gain.shape for gain in gains.values()}) > 1:
        centre, averaged = list(gains[_CENTRE].shape), list(gains[_AVERAGE].shape)
        raise UserError(
            f"{_CENTRE!r} in {str(path)!r} has shape {centre} and {_AVERAGE!r} {averaged}: they "
            "must be of the same drops, slots and sub-bands."
        )


def _checked(name: str, gain: np.ndarray, mean: np.ndarray | None, path: Path | str) -> np.ndarray:
    """Gains as float32, divided by their mean power where it is given."""
    with np.errstate(all="ignore"):  # what overflows is found below
        gain = gain.astype(np.float32)
    if mean is not None:
        gain = _divided(gain, mean, path)
    if not np.all(np.isfinite(gain)):
        drop = int(np.argwhere(~np.isfinite(gain))[0, 0])
        raise UserError(f"{name!r} in {str(path)!r} holds NaN or infinity (first in drop {drop}).")
    if np.any(gain < 0):
        raise UserError(f"{name!r} in {str(path)!r} holds negative power gains.")
    return gain


def _divided(gain: np.ndarray, mean: np.ndarray, path: Path | str) -> np.ndarray:
    """Gains over the mean power of their drop."""
    right = mean.shape == gain.shape[:1] and mean.dtype.kind in "fiu"
    if not right or not np.all(np.isfinite(mean)) or np.any(mean <= 0):
        raise UserError(f"'xpr_gain' in {str(path)!r} must be one positive number a drop.")
    with np.errstate(all="ignore"):
        divided: np.ndarray = gain / mean.astype(np.float32)[:, None, None]
    return divided


def load_traces(radio: RadioConfig, device: torch.device | str = "cpu") -> Tensor:
    """Every drop of the file or folder `radio.traces`: [drop, slot, band], as many as asked for."""
    path = Path(str(radio.traces))
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise not_allowed("radio.traces", str(path), "a .npz file or a folder of them")
    parts = []
    for file in files:
        gain = read_gains(file, average=radio.subband_gain == "average")
        _, slots, bands = gain.shape
        if slots < radio.slots:
            raise UserError(
                f"radio.slots = {radio.slots} is not allowed with {str(file)!r}: "
                f"it holds {slots} slots a drop."
            )
        if bands < radio.subbands:
            raise UserError(
                f"radio.subbands = {radio.subbands} is not allowed with {str(file)!r}: "
                f"it holds {bands} sub-bands."
            )
        parts.append(torch.from_numpy(gain[:, : radio.slots, : radio.subbands]))
    return torch.cat(parts).to(device)
