"""Comparisons boiled down to small tables: how runs ended, and curves over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfade.experiments.metrics import Row, policies_of, series, served
from fedfade.studies.paper.tables import Line, columns, distinct, matching


def final_lines(rows: Sequence[Row], clients: int, head: Line) -> list[Line]:
    """How each run ended: a line per seed and policy."""
    lines = []
    for policy in policies_of(rows):
        for seed in sorted({row.seed for row in rows}):
            own = [row for row in rows if row.seed == seed and row.policy == policy]
            delivered = series(own, policy, "delivered")
            sent = series(own, policy, "bits_sent").sum()
            line: Line = {
                **head,
                "policy": policy,
                "seed": seed,
                "accuracy": float(series(own, policy, "accuracy")[0, -1]),
                "uploads": float(delivered.mean()),
                "empty_rounds": float((delivered == 0).mean()),
                "wasted": float(series(own, policy, "bits_wasted").sum() / sent)
                if sent > 0
                else math.nan,
                "fairness": float(series(own, policy, "fairness")[0, -1]),
                "bias": float(series(own, policy, "gradient_bias").mean()),
            }
            shares = served(own, policy, clients)
            lines.append(line | {f"client_{n}": float(share) for n, share in enumerate(shares)})
    return lines


def band(values: NDArray[np.float64]) -> dict[str, float]:
    """Median and 10-90 % band over the first axis of one point."""
    low, middle, high = np.percentile(values, [10, 50, 90])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def curve_lines(rows: Sequence[Row], field: str, head: Line) -> list[Line]:
    """A field against rounds: median and band over seeds, a line per policy and round."""
    lines = []
    for policy in policies_of(rows):
        values = series(rows, policy, field)  # [seed, round]
        for number in np.flatnonzero(~np.isnan(values).any(0)):
            place: Line = {**head, "policy": policy, "round": float(number + 1)}
            lines.append(place | band(values[:, number]))
    return lines


def paired(
    lines: Iterable[Line], one: dict[str, Any], other: dict[str, Any], field: str = "accuracy"
) -> tuple[float, float]:
    """Mean difference of two sets of runs, seed by seed, and its standard error.

    >>> lines = [{"seed": s, "policy": p, "accuracy": a} for s, p, a in
    ...     [(0, "x", 0.5), (1, "x", 0.7), (0, "y", 0.4), (1, "y", 0.4)]]
    >>> [round(value, 3) for value in paired(lines, {"policy": "x"}, {"policy": "y"})]
    [0.2, 0.1]
    """
    lines = list(lines)
    sides = []
    for where in (one, other):
        seeds, values = columns(lines, "seed", field, **where)
        sides.append(dict(zip(seeds, values, strict=True)))
    shared = sorted(sides[0].keys() & sides[1].keys())
    gap = np.array([sides[0][seed] - sides[1][seed] for seed in shared], float)
    if not len(gap):
        return math.nan, math.nan
    error = gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
    return float(gap.mean()), float(error)


def means(lines: Sequence[Line], group: str, field: str) -> dict[Any, float]:
    """Mean of a field for each value of a column."""
    return {
        value: float(np.mean([line[field] for line in matching(lines, **{group: value})]))
        for value in distinct(lines, group)
    }
