"""Statistics of small-scale gains, the same for ours, QuaDRiGa's and anybody's traces.

All are taken over the pooled set of drops: correlations are correlation coefficients of power
about the overall mean, so that drops that are lucky as a whole count as correlated in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PERCENTS = (1, 10, 50, 90, 99)
LAGS = (1, 2, 5, 10)


@dataclass(frozen=True)
class GainStatistics:
    """What two sets of gains are compared by."""

    mean: float
    std_db: float
    percentiles_db: dict[int, float]
    autocorrelation: dict[int, float]
    """Of power, by lag in slots."""
    band_correlation: dict[int, float]
    """Of power, by distance in sub-bands."""


def gain_statistics(gain: np.ndarray, lags: tuple[int, ...] = LAGS) -> GainStatistics:
    """Statistics of gains [drop, slot, band].

    >>> import numpy as np
    >>> gain = np.random.default_rng(0).exponential(size=(400, 50, 4))       # Rayleigh, no memory
    >>> found = gain_statistics(gain)
    >>> round(found.std_db, 1), abs(found.autocorrelation[1]) < 0.02
    (5.6, True)
    """
    power = gain.astype(np.float64)
    db = 10.0 * np.log10(np.maximum(power, 1e-30))
    centred = power - power.mean()
    variance = max(float(np.mean(centred**2)), 1e-30)
    lags = tuple(lag for lag in lags if lag < gain.shape[1])
    return GainStatistics(
        mean=float(power.mean()),
        std_db=float(db.std()),
        percentiles_db=dict(zip(PERCENTS, np.percentile(db, PERCENTS).tolist(), strict=True)),
        autocorrelation={
            lag: float(np.mean(centred[:, lag:] * centred[:, : gain.shape[1] - lag])) / variance
            for lag in lags
        },
        band_correlation={
            step: float(np.mean(centred[..., step:] * centred[..., : gain.shape[2] - step]))
            / variance
            for step in range(1, gain.shape[2])
        },
    )
