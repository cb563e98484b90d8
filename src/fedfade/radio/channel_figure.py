"""A picture of recorded gains: one file, or two side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import j0

from fedfade.radio.microcell import LIGHT_MPS, path_loss_db
from fedfade.radio.recording import Recording
from fedfade.radio.statistics import gain_statistics
from fedfade.shown import drawn
from fedfade.style import blank, label, shade, tidy

_FILES = (shade(0), shade(1))
_BANDS = tuple(shade(band) for band in range(10))
_MAX_LAG, _SHOWN_SLOTS = 30, 120


def channel_figure(recordings: Sequence[Recording], drop: int = 0) -> Figure:
    """Gain over time, correlations, distribution and the cell, for one or two recordings."""
    figure: Figure = blank(13, 11)
    rows: Any = figure.subfigures(3, 1, height_ratios=[1.0, 1.0, 1.15])
    time = rows[0].subplots(1, len(recordings), sharey=True, squeeze=False)[0]
    for axes, recording in zip(time, recordings, strict=True):
        _gain_over_time(axes, recording, drop)
    slots, bands, levels = rows[1].subplots(1, 3)
    _slot_correlation(slots, recordings)
    _band_correlation(bands, recordings)
    _distribution(levels, recordings)
    *maps, distance = rows[2].subplots(1, len(recordings) + 1, squeeze=False)[0]
    _maps(rows[2], maps, recordings)
    _gain_over_distance(distance, recordings)
    for axes in (*time, slots, bands, levels, distance):
        tidy(axes)
    return figure


def _gain_over_time(axes: Any, recording: Recording, drop: int) -> None:
    gain = recording.gain[drop][:_SHOWN_SLOTS]  # [slot, band]
    ms = np.arange(len(gain) + 1) * 1e3 * _number(recording.metadata, "slot_s", 0.002)
    axes.set_prop_cycle(color=_BANDS)
    lines = axes.plot(ms[:-1], _db(gain), linewidth=1.1)
    axes.axhline(0, color="0.4", linewidth=0.8, linestyle=":")
    label(axes, f"{drawn(recording.name)}: drop {drop}", "time in ms", "gain in dB")
    axes.set(xlim=(0, ms[-1]), ylim=(-32, 10))
    labels = [f"sub-band {band}" for band in range(gain.shape[1])]
    axes.legend(lines, labels, ncols=4, loc="lower center", frameon=False, fontsize=9)


def _slot_correlation(axes: Any, recordings: Sequence[Recording]) -> None:
    longest_ms = 1e-9
    for recording, colour in zip(recordings, _FILES, strict=False):
        lags = range(min(_MAX_LAG, recording.gain.shape[1] - 1) + 1)
        found = gain_statistics(recording.gain, tuple(lags[1:])).autocorrelation
        ms = np.array(lags) * 1e3 * _number(recording.metadata, "slot_s", 0.002)
        values = [1.0, *found.values()]
        axes.plot(ms, values, "o-", color=colour, markersize=3.5, label=drawn(recording.name))
        longest_ms = max(longest_ms, float(ms[-1]))
    speed, carrier = (recordings[0].metadata.get(k) for k in ("speed_mps", "carrier_hz"))
    if isinstance(speed, int | float) and isinstance(carrier, int | float):
        ms = np.linspace(0, longest_ms, 600)
        clarke = j0(2 * np.pi * speed * carrier / LIGHT_MPS * ms / 1e3) ** 2
        axes.plot(ms, clarke, color="0.55", linewidth=1, linestyle="--", label="Clarke, $J_0^2$")
    label(axes, "Correlation between slots", "lag in ms", "correlation of power")
    axes.set(xlim=(0, longest_ms), ylim=(-0.05, 1.02))
    axes.legend(frameon=False, fontsize=9)


def _band_correlation(axes: Any, recordings: Sequence[Recording]) -> None:
    width, most = 0.8 / len(recordings), 0
    for i, (recording, colour) in enumerate(zip(recordings, _FILES, strict=False)):
        found = gain_statistics(recording.gain).band_correlation
        values = [1.0, *found.values()]
        steps = np.arange(len(values)) + (i - (len(recordings) - 1) / 2) * width
        bars = axes.bar(steps, values, width * 0.92, color=colour, label=drawn(recording.name))
        axes.bar_label(bars, [f"{v:.2f}" for v in values], fontsize=9, padding=2)
        most = max(most, len(found))
    label(axes, "Correlation between sub-bands", "sub-bands apart")
    axes.set(xticks=range(most + 1), ylim=(0, 1.15))
    axes.legend(frameon=False, fontsize=9)


def _distribution(axes: Any, recordings: Sequence[Recording]) -> None:
    levels = np.linspace(-30, 12, 400)
    for recording, colour in zip(recordings, _FILES, strict=False):
        sorted_db = np.sort(_db(recording.gain).ravel())
        below = np.searchsorted(sorted_db, levels, side="right") / len(sorted_db)
        below = np.where(below > 0, below, np.nan)
        axes.semilogy(levels, below, color=colour, linewidth=1.8, label=drawn(recording.name))
    rayleigh = -np.expm1(-(10.0 ** (levels / 10)))
    axes.semilogy(levels, rayleigh, color="0.2", linewidth=1, linestyle="--", label="Rayleigh")
    label(axes, "Distribution", "gain in dB", "share of gains below")
    axes.set(xlim=(-30, 12), ylim=(1e-3, 1.3))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _maps(figure: Any, panels: Sequence[Any], recordings: Sequence[Recording]) -> None:
    """Where the drops are; colour is large-scale gain on one scale for all files."""
    known = [r.large_scale_gain_db for r in recordings if r.large_scale_gain_db is not None]
    low, high = np.percentile(np.concatenate(known), [2, 98]) if known else (-1.0, 1.0)
    shown = None
    for axes, recording in zip(panels, recordings, strict=True):
        label(axes, f"{drawn(recording.name)}: the cell", "x in m", "y in m")
        position, gain_db = recording.position, recording.large_scale_gain_db
        if position is None or gain_db is None:
            axes.text(0.5, 0.5, "no positions in this file", ha="center", transform=axes.transAxes)
            axes.set_axis_off()
            continue
        shown = axes.scatter(*position.T, c=gain_db, s=10, cmap="viridis", vmin=low, vmax=high)
        axes.plot(0, 0, marker="^", color=shade(1), markersize=10, markeredgecolor="white")
        smallest_m = 50.0 * float(np.ceil(np.hypot(*position.T).max() / 50.0))
        side_m = _number(recording.metadata.get("cell"), "side_m", smallest_m)
        corner = np.arange(7) * np.pi / 3
        axes.plot(side_m * np.cos(corner), side_m * np.sin(corner), color="0.3", linewidth=1)
        axes.set_aspect("equal")
    if shown is not None:
        figure.colorbar(shown, ax=list(panels), label="large-scale gain in dB", shrink=0.85)


def _gain_over_distance(axes: Any, recordings: Sequence[Recording]) -> None:
    label(axes, "Large-scale gain", "distance to the base station in m", "gain in dB")
    for recording, colour in zip(recordings, _FILES, strict=False):
        if recording.position is not None and recording.large_scale_gain_db is not None:
            distance, gain = np.hypot(*recording.position.T), recording.large_scale_gain_db
            axes.scatter(distance, gain, s=8, alpha=0.5, color=colour, label=drawn(recording.name))
    if not axes.collections:
        return
    if carrier_hz := _number(recordings[0].metadata, "carrier_hz", 0):
        distance = np.geomspace(10, 500, 100)
        loss = path_loss_db(torch.from_numpy(distance), carrier_hz, 10.0, 1.5).numpy()
        axes.plot(distance, -loss, color="0.2", linewidth=1.2, label="path loss alone")
    ticks = [10, 20, 50, 100, 200, 500]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.legend(frameon=False, fontsize=9)


def _db(gain: np.ndarray) -> np.ndarray:
    return np.asarray(10.0 * np.log10(np.maximum(gain, 1e-12)))


def _number(metadata: object, name: str, otherwise: float) -> float:
    """A positive number of the metadata, which may come from anywhere."""
    value = metadata.get(name) if isinstance(metadata, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else otherwise
