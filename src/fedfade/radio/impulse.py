"""Impulse responses from elsewhere (QuaDRiGa, Sionna, a channel sounder) as traces.

A file holds `coefficients`, complex [drop, path, slot], and `delays` in seconds, [drop, path, slot]
or [drop, path]. The names and layouts of the tools themselves are understood too (see `_NAMES` and
`_LAYOUTS`); where a shape could mean several things, the user has to say which.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedfade.config import RadioConfig
from fedfade.errors import UserError, not_allowed
from fedfade.radio.matfile import BrokenMat, TooLarge, read_mat
from fedfade.radio.response import frequency_offsets
from fedfade.storage import most_unpacked, read_bytes, read_npz

MAX_BYTES = 4 * 2**30
"""No array of an impulse-response file may be larger."""

_NAMES = {
    "coefficients": ("coefficients", "coeff", "coeffs", "h", "a"),
    "delays": ("delays", "delay", "tau", "taus"),
}
_AXES = ("drop", "path", "slot", "antenna")
_LAYOUTS = {
    3: ("drop", "path", "slot"),
    4: ("antenna", "antenna", "path", "slot"),  # QuaDRiGa
    # Sionna: batch, receivers and transmitters, each with antennas.
    7: ("drop", "drop", "antenna", "drop", "antenna", "path", "slot"),
}
_KNOWN = tuple(name for names in _NAMES.values() for name in names)


def read_impulse_responses(
    path: Path | str, axes: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients [drop, path, slot] and delays in seconds of a `.mat` (up to version 7) or
    `.npz`; delays that stay are [drop, path, 1]. `axes` names those of the file's coefficients."""
    path = Path(path)
    if path.suffix == ".mat":
        arrays = _read_mat(path)
    elif path.suffix == ".npz":
        arrays = read_npz(path, _KNOWN, MAX_BYTES)
    else:
        raise UserError(f"{str(path)!r} is neither a .mat nor a .npz file.")
    coefficients, delays = (_pick(arrays, wanted, path) for wanted in _NAMES)
    if 0 in coefficients.shape:
        raise UserError(f"'coefficients' in {str(path)!r} has shape {list(coefficients.shape)}.")
    named = _axes(axes, coefficients, delays, path)
    delays = _matching_delays(delays, coefficients.shape, named, path)
    coefficients = _drop_path_slot(coefficients, named)
    if not (np.all(np.isfinite(coefficients)) and np.all(np.isfinite(delays))):
        raise UserError(f"{str(path)!r} holds NaN or infinity in its coefficients or delays.")
    if np.any(delays < 0) or np.any(delays > 1e-3):
        found = f"'delays' in {str(path)!r} lie between {delays.min():g} and {delays.max():g}"
        raise UserError(f"{found}: seconds between 0 and 0.001 are needed.")
    with np.errstate(over="ignore"):
        coefficients = coefficients.astype(np.complex64)
        power = np.mean(np.abs(coefficients) ** 2, axis=(1, 2))
    unfit = {"more power than float32 holds": ~np.isfinite(power), "no power at all": power == 0}
    for has, wrong in unfit.items():
        if wrong.any():
            raise UserError(f"drop {int(wrong.argmax())} in {str(path)!r} has {has}.")
    return coefficients, delays.astype(np.float64)


def sampled_gains(
    coefficients: np.ndarray, delays_s: np.ndarray, radio: RadioConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Sub-band gains [drop, slot, band] of unit mean, and the mean power of each drop [drop]."""
    offsets = frequency_offsets(radio).numpy()
    drops, _, slots = coefficients.shape
    gain = np.empty((drops, slots, radio.subbands), dtype=np.float32)
    mean = np.empty(drops)
    # One drop at a time: delays may differ in every slot.
    for drop, (paths, delays) in enumerate(zip(coefficients, delays_s, strict=True)):
        mean[drop] = np.mean(np.abs(paths) ** 2, axis=1).sum()
        for band, frequencies in enumerate(offsets):
            gain[drop, :, band] = _mean_power(paths, delays, frequencies) / mean[drop]
    return gain, mean


def _mean_power(paths: np.ndarray, delays_s: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Mean over equidistant frequencies of |sum over paths|^2: [path, slot] -> [slot]."""
    turned = paths * np.exp(-2j * np.pi * frequencies[0] * delays_s)
    total = np.abs(turned.sum(axis=0)) ** 2
    step = np.exp(-2j * np.pi * np.diff(frequencies[:2]).sum() * delays_s)  # 1 if there is one
    for _ in frequencies[1:]:
        turned = turned * step
        total += np.abs(turned.sum(axis=0)) ** 2
    return np.asarray(total / len(frequencies))


def _pick(arrays: Mapping[str, np.ndarray], wanted: str, path: Path) -> np.ndarray:
    """The array under any of its names."""
    for name in _NAMES[wanted]:
        if name in arrays and arrays[name].dtype.kind in "fiuc":
            return arrays[name]
    found = f", only {', '.join(sorted(arrays))[:200]}" if arrays else ""
    missing = f"it has no {wanted!r} (also read: {', '.join(_NAMES[wanted][1:])}){found}"
    raise UserError(f"{str(path)!r} is no impulse response: {missing}.")


def _axes(given: str | None, coefficients: np.ndarray, delays: np.ndarray, path: Path) -> list[str]:
    """What each axis of the coefficients is: as told, or by a layout that leaves no doubt."""
    shape = coefficients.shape
    if given is not None:
        axes = [name.strip() for name in given.split(",")]
        once = axes.count("path") == 1 and axes.count("slot") <= 1
        if not once or not set(axes) <= set(_AXES) or len(axes) != len(shape):
            of = f"of {', '.join(_AXES)}: path once and slot at most once"
            each = f"a name for each of the {len(shape)} axes {list(shape)}"
            raise not_allowed("--axes", given, f"{each}, {of}")
        return axes
    axes = ["antenna"] * (len(shape) - 2) + ["path", "slot"]
    if len(shape) in _LAYOUTS:
        axes = list(_LAYOUTS[len(shape)])
    several = (n > 1 for n, name in zip(shape, axes, strict=False) if name == "antenna")
    # Two axes may as well be drops and paths, unless there is one delay a path.
    if len(shape) < 2 or any(several) or (len(shape) == 2 and delays.size != shape[0]):
        found = f"'coefficients' in {str(path)!r} has shape {list(shape)}"
        raise UserError(f"{found}: [drop, path, slot], or say what is what with --axes.")
    return axes


def _drop_path_slot(array: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Drops of all kinds one after the other, the first antenna; a slot if there is no axis."""
    array = array[tuple(0 if name == "antenna" else slice(None) for name in axes)]
    left = [name for name in axes if name != "antenna"]
    array = array.transpose(sorted(range(len(left)), key=lambda axis: _AXES.index(left[axis])))
    drops = left.count("drop")
    paths = array.shape[drops]
    return array.reshape(math.prod(array.shape[:drops]), paths, math.prod(array.shape[drops + 1 :]))


def _matching_delays(
    delays: np.ndarray, shape: tuple[int, ...], axes: Sequence[str], path: Path
) -> np.ndarray:
    """Delays as [drop, path, slot] or [drop, path, 1]: they may lack the axes of slots, antennas or
    both, and any of length one."""
    if delays.dtype.kind == "c":
        raise UserError(f"'delays' in {str(path)!r} are complex; real seconds are needed.")
    extents = list(zip(axes, shape, strict=True))
    allowed = []
    for lacking in ((), ("slot",), ("antenna",), ("antenna", "slot")):
        names, sizes = zip(*((name, n) for name, n in extents if name not in lacking), strict=True)
        if delays.squeeze().shape == tuple(n for n in sizes if n != 1):
            return _drop_path_slot(delays.reshape(sizes), names)
        allowed += [str(list(sizes))] * (str(list(sizes)) not in allowed)
    found = f"'delays' in {str(path)!r} have shape {list(delays.shape)}"
    raise UserError(f"{found}: {' or '.join(allowed)} belongs to these coefficients.")


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    """Numeric arrays of a .mat by the names we know; nothing else in it is touched."""
    content, file = read_bytes(path, MAX_BYTES), repr(str(path))
    if content.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise UserError(f"{file} is a MATLAB 7.3 (HDF5) file, which is not read: save it with -v7.")
    try:
        arrays, names = read_mat(content, set(_KNOWN), MAX_BYTES)
    except TooLarge as error:
        large = f"{str(error)!r} in {file} is too large"
        most = min(MAX_BYTES, most_unpacked(len(content)))
        raise UserError(f"{large}: at most {most} bytes of this file are read.") from None
    except BrokenMat as error:
        broken = f"{file} is not an intact .mat file of versions 4 to 7 ({error})."
        raise UserError(broken) from None
    # Names of the rest are only to say what is in there instead.
    return arrays or {name: np.array("") for name in names}
