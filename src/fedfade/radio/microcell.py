"""The urban microcell of the standard: TR 38.901 UMi street canyon, NLOS, read from `tables/`.

Path loss (clause 7.4.1) is here too, because it needs nothing but the table.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIGHT_MPS = 299_792_458.0


@cache
def table(name: str = "tr38901_v16_1_umi_nlos") -> Mapping[str, Any]:
    """A parameter table shipped with the package."""
    file = resources.files("fedfade.radio") / "tables" / f"{name}.json"
    rows: Mapping[str, Any] = json.loads(file.read_text("utf-8"))
    return rows


def log_normal_spread(name: str, carrier_hz: float, standard_normal: Tensor) -> Tensor:
    """The spread (Table 7.5-6) that belongs to a standard normal draw: its logarithm is normal."""
    row = table()["large_scale"][name]
    # The table's footnote 7: below 2 GHz the UMi rows are evaluated at 2 GHz.
    lg_ghz = math.log10(1.0 + max(carrier_hz / 1e9, 2.0))
    mean, std = (row[what] + row[f"{what}_slope"] * lg_ghz for what in ("mean", "std"))
    # exp, not a power of ten: the same bits for an element alone and in a batch.
    spread = torch.exp((mean + std * standard_normal) * math.log(10.0))
    return torch.clamp(spread, max=row.get("limit_deg", math.inf))


def path_loss_db(
    distance_m: Tensor, carrier_hz: float, bs_height_m: float, client_height_m: float
) -> Tensor:
    """Table 7.4.1-1, UMi NLOS: the NLOS formula, never below the LOS one. Distance in the plane."""
    rows = table()["path_loss"]
    lg_ghz = math.log10(carrier_hz / 1e9)
    height_difference = bs_height_m - client_height_m
    # The model is meant for tens of metres; at a distance of 0 its logarithm would be -inf.
    distance_3d = torch.sqrt(distance_m**2 + height_difference**2).clamp(min=1.0)
    lg_distance = torch.log10(distance_3d)
    # Breakpoint d'_BP = 4 h'_BS h'_UT f / c with heights above the effective environment.
    effective = rows["effective_height_m"]
    breakpoint_m = 4 * (bs_height_m - effective) * (client_height_m - effective)
    breakpoint_m *= carrier_hz / LIGHT_MPS

    def line(row: Mapping[str, float]) -> Tensor:
        return row["constant_db"] + row["distance"] * lg_distance + row["frequency"] * lg_ghz

    far, nlos = rows["los_far"], rows["nlos"]
    beyond = far["breakpoint"] * math.log10(breakpoint_m**2 + height_difference**2)
    los = torch.where(distance_m <= breakpoint_m, line(rows["los_near"]), line(far) + beyond)
    height = nlos["client_height"] * (client_height_m - nlos["reference_height_m"])
    return torch.maximum(los, line(nlos) + height)


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
    known, constant = np.log(rows["clusters"]), rows["constant"]
    lg = np.log(clusters)
    if known[0] <= lg <= known[-1]:
        return float(np.interp(lg, known, constant))
    end = 0 if lg < known[0] else -1
    slope = (constant[-1] - constant[0]) / (known[-1] - known[0])
    return float(constant[end] + slope * (lg - known[end]))
