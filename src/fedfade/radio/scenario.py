"""The standard's numbers: TR 38.901 UMi street canyon, NLOS, read from `tables/`.

Path loss (clause 7.4.1) is here too, because it needs nothing but the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

LIGHT_MPS = 299_792_458.0
TABLE = "tr38901_v16_1_umi_nlos"


@cache
def table(name: str = TABLE) -> Mapping[str, Any]:
    """A parameter table shipped with the package."""
    text = (resources.files("fedfade.radio") / "tables" / f"{name}.json").read_text("utf-8")
    parsed: Mapping[str, Any] = json.loads(text)
    return parsed


@dataclass(frozen=True)
class LogSpread:
    """lg of a spread is normal: this mean, this standard deviation, decorrelating over metres."""

    mean: float
    std: float
    decorrelation_m: float
    limit: float

    def value(self, standard_normal: Tensor) -> Tensor:
        """The spread that belongs to a standard normal draw."""
        # exp, not a power of ten: the same bits for an element alone and in a batch.
        lg = self.mean + self.std * standard_normal
        return torch.clamp(torch.exp(lg * math.log(10.0)), max=self.limit)


def log_spread(name: str, carrier_hz: float) -> LogSpread:
    """One row of Table 7.5-6 at a carrier frequency.

    >>> spread = log_spread("delay_spread", 3.5e9)
    >>> round(spread.mean, 3), round(spread.std, 3)
    (-6.987, 0.385)
    """
    row = table()["large_scale"][name]
    # The table's footnote 7: below 2 GHz the UMi rows are evaluated at 2 GHz.
    lg = math.log10(1.0 + max(carrier_hz / 1e9, 2.0))
    return LogSpread(
        mean=row["mean"] + row["mean_slope"] * lg,
        std=row["std"] + row["std_slope"] * lg,
        decorrelation_m=row["decorrelation_m"],
        limit=row.get("limit_deg", math.inf),
    )


def path_loss_db(
    distance_m: Tensor, carrier_hz: float, bs_height_m: float, client_height_m: float
) -> Tensor:
    """Table 7.4.1-1, UMi NLOS: the NLOS formula, never below the LOS one. Distance in the plane.

    >>> path_loss_db(torch.tensor([100.0]), 3.5e9, 10.0, 1.5)
    tensor([104.6438])
    """
    rows = table()["path_loss"]
    lg_ghz = math.log10(carrier_hz / 1e9)
    height_difference = bs_height_m - client_height_m
    # The model is of tens of metres; at none at all its logarithm would be no number.
    distance_3d = torch.sqrt(distance_m**2 + height_difference**2).clamp(min=1.0)
    lg_distance = torch.log10(distance_3d)

    # Breakpoint d'_BP = 4 h'_BS h'_UT f / c with heights above the effective environment.
    effective = rows["effective_height_m"]
    breakpoint_m = 4 * (bs_height_m - effective) * (client_height_m - effective)
    breakpoint_m *= carrier_hz / LIGHT_MPS
    near, far, nlos = rows["los_near"], rows["los_far"], rows["nlos"]
    los_near = near["constant_db"] + near["distance"] * lg_distance + near["frequency"] * lg_ghz
    los_far = far["constant_db"] + far["distance"] * lg_distance + far["frequency"] * lg_ghz
    los_far = los_far + far["breakpoint"] * math.log10(breakpoint_m**2 + height_difference**2)
    los = torch.where(distance_m <= breakpoint_m, los_near, los_far)

    height = nlos["client_height"] * (client_height_m - nlos["reference_height_m"])
    loss = nlos["constant_db"] + nlos["distance"] * lg_distance + nlos["frequency"] * lg_ghz
    return torch.maximum(los, loss + height)


def angle_scaling(kind: str, clusters: int) -> float:
    """C_phi (`azimuth`) or C_theta (`zenith`) for any number of clusters.

    The standard tabulates a few. In between the constant is interpolated in the logarithm of the
    number of clusters, in which the tables are nearly straight; beyond them the line through the
    first and the last entry is continued.

    >>> angle_scaling("azimuth", 19), round(angle_scaling("azimuth", 13), 3)
    (1.273, 1.169)
    >>> round(angle_scaling("azimuth", 27), 3), round(angle_scaling("zenith", 4), 3)
    (1.382, 0.65)
    """
    rows = table()["angle_scaling"][kind]
    return _interpolate_log(clusters, rows["clusters"], rows["constant"])


def _interpolate_log(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    if x < xs[0] or x > xs[-1]:
        slope = (ys[-1] - ys[0]) / math.log(xs[-1] / xs[0])
        end = 0 if x < xs[0] else -1
        return ys[end] + slope * math.log(x / xs[end])
    upper = next(i for i, known in enumerate(xs) if known >= x)
    if xs[upper] == x:
        return ys[upper]
    share = math.log(x / xs[upper - 1]) / math.log(xs[upper] / xs[upper - 1])
    return ys[upper - 1] + share * (ys[upper] - ys[upper - 1])
