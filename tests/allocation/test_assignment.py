"""The assignment problem by table, as on a GPU, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedfade.allocation import assignment
from fedfade.allocation.assignment import assign, assign_by_table

SHAPES = [(10, 4), (14, 4), (4, 4), (1, 1), (1, 5), (5, 1), (3, 6), (2, 16), (7, 6), (9, 8)]


def totals(value: Tensor, column: Tensor) -> Tensor:
    """Sums of a matching, after checking that it is one: every column at most once."""
    rows, columns = value.shape[1:]
    pairs = (column >= 0).sum(-1)
    assert (pairs == min(rows, columns)).all()
    for row in column.tolist():
        taken = [c for c in row if c >= 0]
        assert len(set(taken)) == len(taken)
    chosen = value.double().gather(-1, column.clamp(min=0)[..., None])[..., 0]
    return (chosen * (column >= 0)).sum(-1)


def scipy_totals(value: Tensor) -> Tensor:
    best = [linear_sum_assignment(m, maximize=True) for m in value.double().numpy()]
    return torch.tensor([m[b].sum() for m, b in zip(value.double().numpy(), best, strict=True)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["plain", "ties", "signs", "wide"])
def test_as_good_as_scipy(shape: tuple[int, int], kind: str) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    value = torch.rand(300, *shape, generator=generator)
    if kind == "ties":
        value = (3 * value).round()  # 0 ... 3: most instances have many optima
    elif kind == "signs":
        value = value - 0.7  # a pair too many would cost
    elif kind == "wide":
        value = torch.log1p(1e6 ** (2 * value - 1))
    column = assign_by_table(value)
    # float32 sums of at most 8 values, so a choice may be 8 roundings of 6e-8 below the best.
    assert torch.allclose(totals(value, column), scipy_totals(value), rtol=1e-6, atol=1e-6)


def test_forbidden_pairs_are_avoided_where_they_can_be() -> None:
    """Max sum rate's imaginary clients may use one sub-band each, written as -1e9 elsewhere."""
    generator = torch.Generator().manual_seed(0)
    value = torch.rand(500, 6, 4, generator=generator) * 2
    imaginary = torch.eye(4).log().clamp(min=-1e9) + 1.0
    augmented = torch.cat([value, imaginary.expand(500, 4, 4)], dim=1)
    best = totals(augmented, assign_by_table(augmented))
    assert torch.allclose(best, scipy_totals(augmented), rtol=1e-6)
    for hole in (-torch.inf, torch.nan):
        spoiled = value.clone()
        spoiled[:, :2] = hole  # four rows are left for four columns
        column = assign_by_table(spoiled)
        assert (column[:, :2] == -1).all()
        assert torch.allclose(totals(value, column), scipy_totals(value[:, 2:]), rtol=1e-6)
    # Nothing but nonsense: some matching all the same.
    totals(value, assign_by_table(torch.full_like(value, torch.nan)))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.rand(100, 10, 4, generator=torch.Generator().manual_seed(1))
    whole = assign_by_table(value)
    monkeypatch.setattr(assignment, "_BLOCK", 7 * 16 * 8 * 15)
    assert torch.equal(assign_by_table(value), whole)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3, 2), (5, 3), (2, 3, 4, 2)])
def test_any_batch_shape(shape: tuple[int, ...]) -> None:
    value = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    column, total = assign(value)
    assert column.shape == shape[:-1]
    assert total.shape == shape[:-2]
    flat = value.reshape(-1, *shape[-2:])
    assert torch.equal(assign_by_table(flat).reshape(shape[:-1]), column)
    assert np.allclose(total.reshape(-1), scipy_totals(flat))
