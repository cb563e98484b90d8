"""One client per sub-band, for the greatest sum: the linear assignment problem, batched.

On a GPU, where one side is small, a table over its subsets is filled row by row: the most the
rows so far can bring with these columns taken. That is a handful of tensor operations a row for
any number of instances, and nothing waits for the device. On the CPU an instance at a time takes
two microseconds, which no table beats.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

TABLE_COLUMNS = 8  # up to which a table of their subsets is filled
_BLOCK = 1 << 28  # bytes of a table with its back pointers
_HUGE = 1e30  # stands for infinity: sums of it stay finite


def assign(value: Tensor) -> tuple[Tensor, Tensor]:
    """Match rows to columns of `value` [..., row, column] for the greatest total.

    As many pairs as the smaller side has. Returns the column of each row, -1 for rows left out,
    and the total. Exact, up to the rounding of the sums.
    """
    batch, (rows, columns) = value.shape[:-2], value.shape[-2:]
    flat = value.detach().reshape(-1, rows, columns)
    if value.device.type != "cpu" and min(rows, columns) <= TABLE_COLUMNS:
        column = assign_by_table(flat)
    else:
        column = _one_by_one(flat)
    chosen = flat.gather(-1, column.clamp(min=0)[..., None]).squeeze(-1)
    total = torch.where(column >= 0, chosen, 0.0).sum(-1)
    return column.reshape(*batch, rows), total.reshape(batch)


def _one_by_one(value: Tensor) -> Tensor:
    """SciPy's Jonker-Volgenant: [batch, row]."""
    from scipy.optimize import linear_sum_assignment

    column = np.full(value.shape[:2], -1, dtype=np.int64)
    for index, matrix in enumerate(value.to("cpu", torch.float64).numpy()):
        chosen, taken = linear_sum_assignment(matrix, maximize=True)
        column[index, chosen] = taken
    return torch.from_numpy(column).to(value.device)


def assign_by_table(value: Tensor) -> Tensor:
    """The column of each row, -1 for rows left out: [batch, row, column] -> [batch, row].

    Values that are no numbers count as the worst.
    """
    batch, rows, columns = value.shape
    if rows >= columns:
        each = (1 << columns) * (8 * rows + 8 * (columns + 1))
        parts = torch.split(value, max(1, _BLOCK // each))
        return torch.cat([_fill_table(part) for part in parts])
    # Columns choose rows, and the answer is turned round; those left out go to a spare place.
    row = assign_by_table(value.mT)
    row = torch.where(row < 0, rows, row)
    number = torch.arange(columns, device=value.device).expand(batch, columns)
    return row.new_full((batch, rows + 1), -1).scatter(1, row, number)[:, :rows]


@lru_cache(maxsize=32)
def _without(columns: int, device: torch.device) -> Tensor:
    """Subsets before a row took a column of it: [subset x (column or none)].

    A column that is not in the subset leads to a subset that never occurs, the last.
    """
    subset = torch.arange(1 << columns)[:, None]
    bit = 1 << torch.arange(columns)
    before = torch.where(subset & bit != 0, subset ^ bit, 1 << columns)
    return torch.cat([before, subset], dim=1).flatten().to(device)


def _fill_table(value: Tensor) -> Tensor:
    """Dynamic programming over subsets of columns, at least as many rows as columns."""
    batch, rows, columns = value.shape
    subsets = 1 << columns
    before = _without(columns, value.device)
    value = value.nan_to_num(nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE).permute(1, 2, 0)
    gain = torch.nn.functional.pad(value, (0, 0, 0, 1))  # [row, column or none, batch]
    best = value.new_full((subsets + 1, batch), -torch.inf)
    best[0] = 0.0
    choice = torch.empty(rows, subsets, batch, dtype=torch.int64, device=value.device)
    for row in range(rows):
        options = best.index_select(0, before).view(subsets, columns + 1, batch)
        options += gain[row]
        torch.max(options, dim=1, out=(best[:subsets], choice[row]))
    # Back from all columns taken: which one the last row took, the row before among the rest, ...
    subset = torch.full((batch,), subsets - 1, device=value.device)
    taken = torch.empty(rows, batch, dtype=torch.int64, device=value.device)
    for row in range(rows - 1, -1, -1):
        torch.gather(choice[row], 0, subset[None], out=taken[row, None])
        subset = before[torch.add(taken[row], subset, alpha=columns + 1)]
    return torch.where(taken < columns, taken, -1).T
