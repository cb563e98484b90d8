"""A picture of recorded gains: one file, or two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedfade.radio.recording import Recording
from fedfade.radio.scenario import LIGHT_MPS, path_loss_db
from fedfade.radio.statistics import gain_statistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILES = ("#2471a3", "#c0392b")
_BANDS = ("#1b4f72", "#e67e22", "#17a589", "#c0392b", "#8e44ad", "#7f8c8d")
_MAX_LAG = 30
_SHOWN_SLOTS = 120


def channel_figure(recordings: Sequence[Recording], drop: int = 0) -> Figure:
    """Gain over time, correlations, distribution and the cell, for one or two recordings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 11), layout="constrained")
    rows: Any = figure.subfigures(3, 1, height_ratios=[1.0, 1.0, 1.15])
    colours = _FILES[: len(recordings)]
    time = rows[0].subplots(1, len(recordings), sharey=True, squeeze=False)[0]
    for axes, recording in zip(time, recordings, strict=True):
        _gain_over_time(axes, recording, drop)
    across = rows[1].subplots(1, 3)
    _autocorrelation(across[0], recordings, colours)
    _band_correlation(across[1], recordings, colours)
    _distribution(across[2], recordings, colours)
    below = rows[2].subplots(1, len(recordings) + 1, squeeze=False)[0]
    _maps(rows[2], below[:-1], recordings)
    _gain_over_distance(below[-1], recordings, colours)
    return figure


def _gain_over_time(axes: Any, recording: Recording, drop: int) -> None:
    """The gain of each sub-band in one drop."""
    slot_ms = 1e3 * _slot_s(recording)
    gain = recording.gain[drop][:_SHOWN_SLOTS]
    for band in range(gain.shape[1]):
        axes.plot(
            np.arange(len(gain)) * slot_ms,
            _db(gain[:, band]),
            color=_BANDS[band % len(_BANDS)],
            linewidth=1.1,
            label=f"sub-band {band}",
        )
    axes.axhline(0, color="0.4", linewidth=0.8, linestyle=":")
    axes.set(title=f"{recording.name}: drop {drop}", xlabel="time (ms)", ylabel="gain (dB)")
    axes.set_xlim(0, len(gain) * slot_ms)
    axes.set_ylim(-32, 10)
    axes.legend(ncols=4, loc="lower center", frameon=True, framealpha=0.9, fontsize="small")
    _tidy(axes)


def _autocorrelation(axes: Any, recordings: Sequence[Recording], colours: Sequence[str]) -> None:
    from scipy.special import j0

    longest = 0.0
    for recording, colour in zip(recordings, colours, strict=True):
        lags = range(min(_MAX_LAG, recording.gain.shape[1] - 1) + 1)
        found = gain_statistics(recording.gain, tuple(lags[1:])).autocorrelation
        ms = np.array(lags) * 1e3 * _slot_s(recording)
        axes.plot(
            ms, [1.0, *found.values()], "o-", color=colour, markersize=3.5, label=recording.name
        )
        longest = max(longest, float(ms[-1]))
    speed, carrier = (recordings[0].metadata.get(k) for k in ("speed_mps", "carrier_hz"))
    if isinstance(speed, int | float) and isinstance(carrier, int | float):
        ms = np.linspace(0, longest, 600)
        clarke = j0(2 * np.pi * speed * carrier / LIGHT_MPS * ms / 1e3) ** 2
        axes.plot(ms, clarke, color="0.55", linewidth=1, linestyle="--", label="Clarke, $J_0^2$")
    axes.set(title="correlation between slots", xlabel="lag (ms)", ylabel="correlation of power")
    axes.set_ylim(-0.05, 1.02)
    axes.set_xlim(0, max(longest, 1e-9))
    axes.legend(frameon=False, fontsize="small")
    _tidy(axes)


def _band_correlation(axes: Any, recordings: Sequence[Recording], colours: Sequence[str]) -> None:
    width = 0.8 / len(recordings)
    most = 0
    for i, (recording, colour) in enumerate(zip(recordings, colours, strict=True)):
        found = gain_statistics(recording.gain).band_correlation
        steps = np.array([0, *found])
        values = [1.0, *found.values()]
        bars = axes.bar(
            steps + (i - (len(recordings) - 1) / 2) * width,
            values,
            width * 0.92,
            color=colour,
            label=recording.name,
        )
        axes.bar_label(bars, [f"{v:.2f}" for v in values], fontsize="small", padding=2)
        most = max(most, int(steps[-1]))
    axes.set(title="correlation between sub-bands", xlabel="sub-bands apart")
    axes.set_xticks(range(most + 1))
    axes.set_ylim(0, 1.15)
    axes.legend(frameon=False, fontsize="small")
    _tidy(axes)


def _distribution(axes: Any, recordings: Sequence[Recording], colours: Sequence[str]) -> None:
    levels = np.linspace(-30, 12, 400)
    for recording, colour in zip(recordings, colours, strict=True):
        sorted_db = np.sort(_db(recording.gain).ravel())
        below = np.searchsorted(sorted_db, levels, side="right") / len(sorted_db)
        axes.semilogy(levels, np.where(below > 0, below, np.nan), color=colour, linewidth=1.8)
    rayleigh = -np.expm1(-(10.0 ** (levels / 10)))
    axes.semilogy(levels, rayleigh, color="0.2", linewidth=1, linestyle="--")
    labels = [*(recording.name for recording in recordings), "Rayleigh"]
    axes.legend(axes.lines, labels, frameon=False, fontsize="small", loc="lower right")
    axes.set(title="distribution", xlabel="gain (dB)", ylabel="share of gains below")
    axes.set_xlim(-30, 12)
    axes.set_ylim(1e-3, 1.3)
    _tidy(axes)


def _maps(figure: Any, panels: Sequence[Any], recordings: Sequence[Recording]) -> None:
    """Where the drops are; colour is large-scale gain on one scale for all files."""
    known = [r.large_scale_gain_db for r in recordings if r.large_scale_gain_db is not None]
    low, high = np.percentile(np.concatenate(known), [2, 98]) if known else (-1.0, 1.0)
    shown = None
    for axes, recording in zip(panels, recordings, strict=True):
        axes.set_title(f"{recording.name}: the cell")
        if recording.position is None or recording.large_scale_gain_db is None:
            axes.text(0.5, 0.5, "no positions in this file", ha="center", transform=axes.transAxes)
            axes.set_axis_off()
            continue
        shown = axes.scatter(
            *recording.position.T,
            c=recording.large_scale_gain_db,
            s=10,
            cmap="viridis",
            vmin=low,
            vmax=high,
        )
        axes.plot(0, 0, marker="^", color="#c0392b", markersize=10, markeredgecolor="white")
        side = _side_m(recording)
        corner = np.arange(7) * np.pi / 3
        axes.plot(side * np.cos(corner), side * np.sin(corner), color="0.3", linewidth=1)
        axes.set(aspect="equal", xlabel="x (m)", ylabel="y (m)")
    if shown is not None:
        figure.colorbar(shown, ax=list(panels), label="large-scale gain (dB)", shrink=0.85)


def _gain_over_distance(axes: Any, recordings: Sequence[Recording], colours: Sequence[str]) -> None:
    for recording, colour in zip(recordings, colours, strict=True):
        if recording.position is None or recording.large_scale_gain_db is None:
            continue
        distance = np.hypot(*recording.position.T)
        gain = recording.large_scale_gain_db
        axes.scatter(distance, gain, s=8, alpha=0.5, color=colour, label=recording.name)
    axes.set(
        title="large-scale gain", xlabel="distance to the base station (m)", ylabel="gain (dB)"
    )
    carrier = recordings[0].metadata.get("carrier_hz")
    if axes.collections and isinstance(carrier, int | float):
        distance = np.geomspace(10, 500, 100)
        loss = path_loss_db(torch.from_numpy(distance), float(carrier), 10.0, 1.5).numpy()
        axes.plot(distance, -loss, color="0.2", linewidth=1.2, label="path loss alone")
    if axes.collections:
        ticks = [10, 20, 50, 100, 200, 500]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.legend(frameon=True, framealpha=0.9, edgecolor="none", fontsize="small")
    _tidy(axes)


def _db(gain: np.ndarray) -> np.ndarray:
    return np.asarray(10.0 * np.log10(np.maximum(gain, 1e-12)))


def _slot_s(recording: Recording) -> float:
    value = recording.metadata.get("slot_s")
    return float(value) if isinstance(value, int | float) and value > 0 else 0.002


def _side_m(recording: Recording) -> float:
    """The hexagon the drops lie in: from the metadata, else the smallest round one."""
    cell = recording.metadata.get("cell")
    side = cell.get("side_m") if isinstance(cell, dict) else None
    if isinstance(side, int | float) and side > 0:
        return float(side)
    assert recording.position is not None
    reach = float(np.hypot(*recording.position.T).max())
    return 50.0 * float(np.ceil(reach / 50.0))


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
