"""The picture of a training: reward, uploads and loss against episodes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedfade.agents.trainer import Report
from fedfade.shown import drawn
from fedfade.style import panels, shade


def curve_figure(curves: Sequence[Sequence[Report]], clients: int, title: str = "") -> Figure:
    """Reward of an episode, uploads a round and TD loss.

    One seed raw and smoothed; several smoothed, with their median, as far as all have come.
    """
    length = min(len(curve) for curve in curves)
    table = np.array([curve[:length] for curve in curves], dtype=float)  # [seed, batch, figure]
    table = table.reshape(len(curves), -1, len(Report._fields))
    episodes = table[0, :, 0]
    figure: Figure
    figure, grid = panels(8, 7, 3, 1, sharex=True)
    axes = grid.flat
    shown = (
        ("reward of an episode", 1, shade(0)),
        (f"uploads a round, of {clients}", 2, shade(2)),
        ("squared error of values", 3, shade(1)),
    )
    for axis, (label, field, colour) in zip(axes, shown, strict=True):
        raw = table[:, :, field]
        smooth = np.array([smoothed(values) for values in raw])
        thin, thick = (raw, smooth[0]) if len(curves) == 1 else (smooth, np.median(smooth, 0))
        axis.plot(episodes, thin.T, color=colour, alpha=0.35, linewidth=0.8)
        axis.plot(episodes, thick, color=colour, linewidth=1.8)
        axis.set_ylabel(label)
    if np.nanmin(table[:, :, 3], initial=np.inf) > 0:
        axes[2].set_yscale("log")
    axes[1].set_ylim(0, None)
    if table[0, :, 5].any():
        exploring = axes[0].twinx()
        exploring.plot(episodes, table[0, :, 5], color="0.5", linestyle="--", linewidth=1)
        exploring.set_ylabel("exploration ε (dashed)", color="0.4")
        exploring.set_ylim(0, 1.02)
        exploring.spines[["top"]].set_visible(False)
    if len(curves) > 1:
        title = f"{title or 'training'}: median of {len(curves)} seeds, thin: each"
    axes[0].set_title(drawn(title or "training"), loc="left")
    axes[-1].set_xlabel("training episodes")
    return figure


def smoothed(values: np.ndarray) -> np.ndarray:
    """Mean over a window of a fiftieth of the curve, gaps left out.

    >>> smoothed(np.array([1.0, 2.0, np.nan]))
    array([1., 2., 2.])
    """
    windows = pd.Series(values).rolling(2 * (len(values) // 100) + 1, min_periods=1, center=True)
    return np.asarray(windows.mean().ffill())
