"""What neighbouring cells add to the noise: its mean, its keys, its switches."""

import math

import numpy as np
import pytest
import torch

from fedfade.config import CellConfig, RadioConfig
from fedfade.radio import OtherCells

RADIO = RadioConfig(slots=50)


def levels(cell: CellConfig, radio: RadioConfig = RADIO, seeds: int = 60) -> torch.Tensor:
    runs = list(range(seeds))
    return OtherCells(cell, radio, clients=10).levels_w(runs, runs, [0, 1], [0])


def monte_carlo_w(
    cell: CellConfig, radio: RadioConfig, count: int = 200_000
) -> tuple[float, float]:
    """Mean power from one cell and its standard error, written down again in plain numpy."""
    random = np.random.default_rng(1)
    points = cell.side_m * (2 * random.random((3 * count, 2)) - 1)
    x, y = np.abs(points).T
    inside = (y < cell.side_m * math.sqrt(3) / 2) & (
        math.sqrt(3) * x + y < math.sqrt(3) * cell.side_m
    )
    inside &= np.hypot(x, y) >= cell.min_distance_m
    own = points[inside][:count]
    # The nearest cells lie across the edges, whose middles are at 30, 90, ... degrees.
    centre = math.sqrt(3) * cell.side_m * np.array([math.cos(math.pi / 6), math.sin(math.pi / 6)])
    distance = np.hypot(np.hypot(*(own + centre).T), cell.bs_height_m - cell.client_height_m)
    loss_db = 35.3 * np.log10(distance) + 22.4 + 21.3 * math.log10(radio.carrier_hz / 1e9)
    gain_db = radio.antennas_dbi - loss_db + cell.shadowing_db * random.standard_normal(len(own))
    power_w = 10 ** ((gain_db + 23.0 - 30.0) / 10) * random.exponential(size=len(own))
    return float(power_w.mean()), float(power_w.std() / math.sqrt(len(own)))


@pytest.mark.parametrize(("cells", "activity"), [(1, 1.0), (6, 1.0), (6, 0.3)])
def test_the_mean_level_is_that_of_an_independent_monte_carlo(cells: int, activity: float) -> None:
    cell = CellConfig(interference_cells=cells, interference_activity=activity, shadowing_db=3.0)
    found = levels(cell).mean((1, 2, 3, 4)).double()  # [seed]: what is drawn together
    expected, error = monte_carlo_w(cell, RADIO)
    expected, error = cells * activity * expected, cells * activity * error
    error = math.hypot(error, float(found.std()) / math.sqrt(len(found)))
    assert float(found.mean()) == pytest.approx(expected, abs=3.5 * error)
    assert error < 0.06 * expected


def test_levels_fade_and_their_clients_change_from_slot_to_slot() -> None:
    heard = levels(CellConfig(interference_cells=6))[:, :, 0]  # [run, round, slot, band]
    assert heard.shape == (60, 2, 50, 4)
    assert bool((heard > 0).all())
    spread_db = (10 * torch.log10(heard)).std((2, 3)).mean()
    assert 2.0 < spread_db < 8.0


def test_nobody_sends_without_neighbours_or_activity() -> None:
    assert levels(CellConfig()).shape == (60, 2, 1, 0, 4)
    assert not levels(CellConfig(interference_cells=6, interference_activity=0.0)).any()
    some = levels(CellConfig(interference_cells=1, interference_activity=0.3))
    assert float((some > 0).float().mean()) == pytest.approx(0.3, abs=0.01)


def test_a_level_does_not_depend_on_what_else_is_asked_for() -> None:
    other = OtherCells(CellConfig(interference_cells=3), RADIO, clients=4)
    many = other.levels_w([5, 6, 7], [1, 2, 3], [0, 1, 2], [0, 1])
    assert torch.equal(other.levels_w([6], [2], [2], [1]), many[1:2, 2:, 1:])
    # Episodes of a round differ in who sends and fades, seeds `places` in where they are.
    assert not torch.equal(many[:, :, 0], many[:, :, 1])
    assert not torch.equal(other.levels_w([9], [2], [2], [1]), many[1:2, 2:, 1:])
    assert torch.equal(other.gains([5], [1]), other.gains([5, 8], [0, 1])[:1, 1:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_draws_the_same_levels() -> None:
    cell, given = CellConfig(interference_cells=6), ([1, 2], [1, 2], [0, 3], [0, 1])
    here, there = (
        OtherCells(cell, RADIO, 4, device).levels_w(*given) for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(here, there.cpu(), rtol=1e-3, atol=1e-18)
