"""Impulse responses from elsewhere (QuaDRiGa, Sionna, a channel sounder) as traces.

A file holds `coefficients`, complex [drop, path, slot], and `delays` in seconds, [drop, path, slot]
or [drop, path]. The names the tools themselves use are understood too (see `_NAMES`), antenna
axes of length one are dropped, and a single drop may leave out its axis.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedfade.config import RadioConfig
from fedfade.errors import UserError
from fedfade.radio.matfile import BrokenMat, TooLarge, read_mat
from fedfade.radio.response import frequency_offsets
from fedfade.storage import read_bytes, read_npz

MAX_BYTES = 4 * 2**30
"""No array of an impulse-response file may be larger."""

_NAMES = {
    "coefficients": ("coefficients", "coeff", "coeffs", "h", "a"),
    "delays": ("delays", "delay", "tau", "taus"),
}
_KNOWN = tuple(name for names in _NAMES.values() for name in names)


def read_impulse_responses(path: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients [drop, path, slot] and delays in seconds of a `.mat` (up to version 7) or
    `.npz`; delays that stay are [drop, path, 1]."""
    path = Path(path)
    if path.suffix == ".mat":
        arrays = _read_mat(path)
    elif path.suffix == ".npz":
        arrays = read_npz(path, _KNOWN, MAX_BYTES)
    else:
        raise UserError(f"{str(path)!r} is neither a .mat nor a .npz file.")
    coefficients = _drop_path_slot(_pick(arrays, "coefficients", path), path)
    delays = _matching_delays(_pick(arrays, "delays", path), coefficients.shape, path)
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


def _drop_path_slot(array: np.ndarray, path: Path) -> np.ndarray:
    """Coefficients as [drop, path, slot]: other axes, of antennas, must have length one."""
    drops = [extent for extent in array.shape[:-2] if extent != 1]
    if array.ndim < 2 or len(drops) > 1 or 0 in array.shape:
        found = f"'coefficients' in {str(path)!r} has shape {list(array.shape)}"
        raise UserError(f"{found}: [drop, path, slot] is needed.")
    return array.reshape(math.prod(drops), *array.shape[-2:])


def _matching_delays(delays: np.ndarray, shape: tuple[int, ...], path: Path) -> np.ndarray:
    """Delays as [drop, path, slot] or [drop, path, 1]."""
    if delays.dtype.kind == "c":
        raise UserError(f"'delays' in {str(path)!r} are complex; real seconds are needed.")
    squeezed, drop_path = delays.squeeze(), shape[:2]
    for allowed in (shape, (*drop_path, 1)):
        if squeezed.shape == tuple(extent for extent in allowed if extent != 1):
            return squeezed.reshape(allowed)
    found = f"'delays' in {str(path)!r} have shape {list(delays.shape)}"
    raise UserError(f"{found}: {list(shape)} or {list(drop_path)} belongs to these coefficients.")


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    """Numeric arrays of a .mat by the names we know; nothing else in it is touched."""
    content, file = read_bytes(path, MAX_BYTES), repr(str(path))
    if content.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise UserError(f"{file} is a MATLAB 7.3 (HDF5) file, which is not read: save it with -v7.")
    try:
        arrays, names = read_mat(content, set(_KNOWN), MAX_BYTES)
    except TooLarge as error:
        large = f"{str(error)!r} in {file} is too large"
        raise UserError(f"{large}: at most {MAX_BYTES} bytes are read.") from None
    except BrokenMat as error:
        broken = f"{file} is not an intact .mat file of versions 5 to 7 ({error})."
        raise UserError(broken) from None
    # Names of the rest are only to say what is in there instead.
    return arrays or {name: np.array("") for name in names}
