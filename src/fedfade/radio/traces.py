"""Recorded gains: `.npz` files with `small_scale_gain` [drop, slot, band].

Optional beside it: `small_scale_gain_bandavg` (the sub-band averages of the same drops) and
`xpr_gain` [drop] (the mean power the gains are divided by). Other arrays are ignored. Both kinds of
gains are checked whichever is used: a file that is half broken is not to be trusted.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import UserError, not_allowed
from fedfade.radio.cell import LargeScale
from fedfade.randomness import fold, integers
from fedfade.storage import read_npz

MAX_GAIN = 1e10
"""No fading is 100 dB above its mean, and sums of such gains stay within what float32 can hold."""

_LEAST_MEAN = 0.5  # far beyond the chance of a few drops
_CENTRE, _AVERAGE = "small_scale_gain", "small_scale_gain_bandavg"


class TraceFading:
    """Plays recorded drops, each chosen by keyed chance; no two clients of an episode share one."""

    def __init__(
        self, radio: RadioConfig, cell: CellConfig, clients: int, device: torch.device
    ) -> None:
        self._drops = load_traces(radio).to(device)
        count = len(self._drops)
        if count < clients:
            few = f"{count} drops, fewer than the {clients} clients that fade independently"
            raise UserError(f"radio.traces = {radio.traces!r} is not allowed: it holds {few}.")
        # Steps that come back to a drop only when all have been passed.
        steps = [step for step in range(1, count + 1) if math.gcd(step, count) == 1]
        self._strides = torch.tensor(steps, device=device)

    def gains(self, keys: Tensor, at: LargeScale) -> Tensor:
        count, first = len(self._drops), keys[:, :1]
        start = integers(fold(first, 0), count, ())
        stride = self._strides[integers(fold(first, 1), len(self._strides), ())]
        client = torch.arange(keys.shape[1], device=keys.device)
        return self._drops[(start + stride * client) % count]


def load_traces(radio: RadioConfig) -> Tensor:
    """Every drop of the file or folder `radio.traces`: [drop, slot, band], as many as asked for."""
    path = Path(str(radio.traces))
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise not_allowed("radio.traces", str(path), "a .npz file or a folder of them")
    parts = []
    for file in files:
        gain = read_gains(file, average=radio.subband_gain == "average")
        _, slots, bands = gain.shape
        holds = {"slots": (slots, "slots a drop"), "subbands": (bands, "sub-bands")}
        for field, (held, what) in holds.items():
            if held < (wanted := getattr(radio, field)):
                asked = f"radio.{field} = {wanted} is not allowed with {str(file)!r}"
                raise UserError(f"{asked}: it holds {held} {what}.")
        # Large-scale gains come from the cell: what else is in the file would count twice.
        if not _LEAST_MEAN <= (mean := float(gain.mean(dtype=np.float64))) <= 1 / _LEAST_MEAN:
            wanted = "small-scale gains have one of 1 (an array 'xpr_gain' [drop] divides them)"
            why = f"its gains have a mean of {mean:.3g}, but {wanted}"
            raise UserError(f"radio.traces = {str(file)!r} is not allowed: {why}.")
        parts.append(torch.from_numpy(gain[:, : radio.slots, : radio.subbands]))
    return torch.cat(parts)


def read_gains(path: Path | str, average: bool = False) -> np.ndarray:
    """Gains of one file, divided by `xpr_gain` where it has one: [drop, slot, band] float32.

    With `average`, sub-band averages are preferred where the file keeps both.
    """
    arrays = read_npz(path, (_CENTRE, _AVERAGE, "xpr_gain"))
    wanted = _AVERAGE if average and _AVERAGE in arrays else _CENTRE
    if wanted not in arrays:
        raise UserError(f"{str(path)!r} has no array {wanted!r}.")
    mean = arrays.pop("xpr_gain", None)
    for name, gain in arrays.items():
        if gain.ndim != 3 or 0 in gain.shape or gain.dtype.kind not in "fiu":
            found = f"{name!r} in {str(path)!r} has shape {list(gain.shape)} and type {gain.dtype}"
            raise UserError(f"{found}: real numbers [drop, slot, band] are needed.")
    if len({gain.shape for gain in arrays.values()}) > 1:
        centre, averaged = list(arrays[_CENTRE].shape), list(arrays[_AVERAGE].shape)
        raise UserError(
            f"{_CENTRE!r} in {str(path)!r} has shape {centre} and {_AVERAGE!r} {averaged}: they "
            "must be of the same drops, slots and sub-bands."
        )
    if mean is not None and not (
        mean.shape == arrays[wanted].shape[:1]
        and mean.dtype.kind in "fiu"
        and np.all(np.isfinite(mean) & (mean > 0))
    ):
        raise UserError(f"'xpr_gain' in {str(path)!r} must be one positive number a drop.")
    with np.errstate(all="ignore"):  # what overflows is found below
        unit = 1.0 if mean is None else mean.astype(np.float32)[:, None, None]
        arrays = {name: gain.astype(np.float32) / unit for name, gain in arrays.items()}
    for name, gain in arrays.items():
        found = f"{name!r} in {str(path)!r} holds"
        if not np.all(np.isfinite(gain)):
            drop = int(np.argwhere(~np.isfinite(gain))[0, 0])
            raise UserError(f"{found} NaN or infinity (first in drop {drop}).")
        if np.any(gain < 0):
            raise UserError(f"{found} negative power gains.")
        if np.any(gain > MAX_GAIN):
            raise UserError(f"{found} power gains above {MAX_GAIN:g}, and their mean is to be 1.")
    return arrays[wanted]
