"""Statistics of small-scale gains, the same for ours, QuaDRiGa's and anybody's traces.

All are taken over the pooled set of drops: correlations are correlation coefficients of power
about the overall mean, so that drops that are lucky as a whole count as correlated in time.
"""

import math
from collections.abc import Iterable
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
    autocorrelation: dict[int, float]  # of power, by lag in slots
    band_correlation: dict[int, float]  # of power, by distance in sub-bands


RAYLEIGH = GainStatistics(
    mean=1.0,
    std_db=10 / math.log(10) * math.pi / math.sqrt(6),
    percentiles_db={p: 10 * math.log10(-math.log1p(-p / 100)) for p in PERCENTS},
    autocorrelation={},
    band_correlation={},
)
"""Of exponential power; its correlations depend on speed and bandwidth."""


def gain_statistics(gain: np.ndarray, lags: tuple[int, ...] = LAGS) -> GainStatistics:
    """Statistics of gains [drop, slot, band]."""
    power = gain.astype(np.float64)
    db = 10.0 * np.log10(np.maximum(power, 1e-30))
    centred = power - power.mean()
    variance = max(float(np.mean(centred**2)), 1e-30)

    def correlation(axis: int, steps: Iterable[int]) -> dict[int, float]:
        along = np.moveaxis(centred, axis, 0)
        many = len(along)
        pairs = ((n, along[n:] * along[: many - n]) for n in steps if n < many)
        return {n: float(np.mean(pair)) / variance for n, pair in pairs}

    return GainStatistics(
        mean=float(power.mean()),
        std_db=float(db.std()),
        percentiles_db=dict(zip(PERCENTS, np.percentile(db, PERCENTS).tolist(), strict=True)),
        autocorrelation=correlation(1, lags),
        band_correlation=correlation(2, range(1, gain.shape[2])),
    )
