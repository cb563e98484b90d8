"""The cell: uniform places, movement, path loss, shadowing in space."""

from __future__ import annotations

import cmath
import itertools

import numpy as np
import pytest
import torch

from fedfade.config import CellConfig, RadioConfig, load_config
from fedfade.errors import UserError
from fedfade.radio import Cell, path_loss_db
from fedfade.radio.cell import gaussian_field
from fedfade.radio.microcell import angle_scaling, log_normal_spread, table
from fedfade.randomness import streams

RADIO = RadioConfig()


def inside_hexagon(position: torch.Tensor, side: float) -> torch.Tensor:
    x, y = position.abs().unbind(-1)
    reach = side * (1 + 1e-5)
    return (y <= reach * 3**0.5 / 2) & (3**0.5 * x + y <= 3**0.5 * reach)


@pytest.mark.parametrize("nearest", [10.0, 300.0])
def test_clients_are_uniform_in_the_hexagon(nearest: float) -> None:
    cell = Cell(CellConfig(mobility="redraw", min_distance_m=nearest), RADIO, clients=200)
    position = cell.trajectory([0], rounds=200).position.reshape(-1, 2)  # 40,000 places
    distance = torch.linalg.vector_norm(position, dim=-1)
    assert bool(inside_hexagon(position, 500.0).all())
    assert float(distance.min()) >= nearest
    # Equal shares in the six sectors: 40,000 places, standard error 0.0019.
    sector = torch.floor(torch.atan2(position[:, 1], position[:, 0]) / (torch.pi / 3)).long()
    shares = torch.bincount(sector + 3, minlength=6)[:6] / len(position)
    assert torch.allclose(shares, torch.full((6,), 1 / 6), atol=0.008)
    # Mean squared radius of a hexagon is 5/12 side^2; the disc left out is taken off.
    area, hole = 1.5 * 3**0.5 * 500.0**2, np.pi * nearest**2
    expected = (area * 5 / 12 * 500.0**2 - hole * nearest**2 / 2) / (area - hole)
    assert float((distance**2).mean()) == pytest.approx(expected, rel=0.01)


def test_large_scale_gain_over_the_hexagon_is_the_formula() -> None:
    """Mean and standard deviation against an independent draw of the written-out formula."""
    generator = np.random.default_rng(0)
    place = generator.uniform(-500, 500, (400_000, 2))
    x, y = np.abs(place.T)
    distance = np.hypot(x, y)
    kept = (y <= 433.0127) & (3**0.5 * x + y <= 3**0.5 * 500) & (distance >= 10)
    d = np.sqrt(distance[kept] ** 2 + 8.5**2)
    far = 32.4 + 40 * np.log10(d) + 20 * np.log10(3.5)
    breakpoint_m = 4 * 9 * 0.5 * 3.5e9 / 299_792_458
    far -= 9.5 * np.log10(breakpoint_m**2 + 8.5**2)
    near = 32.4 + 21 * np.log10(d) + 20 * np.log10(3.5)
    los = np.where(distance[kept] <= breakpoint_m, near, far)
    loss = np.maximum(los, 22.4 + 35.3 * np.log10(d) + 21.3 * np.log10(3.5))
    cell = Cell(CellConfig(mobility="redraw"), RADIO, clients=50)
    gain = cell.trajectory(range(400), rounds=1).gain_db  # standard error of the mean 0.08 dB
    assert float(gain.mean()) == pytest.approx(8.0 - loss.mean(), abs=0.3)
    assert float(gain.std()) == pytest.approx(np.sqrt(loss.var() + 7.82**2), abs=0.2)


def test_path_loss_by_hand() -> None:
    d3 = np.hypot(200.0, 8.5)
    expected = 35.3 * np.log10(d3) + 22.4 + 21.3 * np.log10(3.5)
    found = path_loss_db(torch.tensor([200.0]), 3.5e9, 10.0, 1.5)
    assert float(found) == pytest.approx(expected, abs=1e-3)
    # A higher client gains 0.3 dB a metre.
    higher = path_loss_db(torch.tensor([200.0]), 3.5e9, 10.0, 2.5)
    assert float(higher) == pytest.approx(
        35.3 * np.log10(np.hypot(200.0, 7.5)) + 22.4 + 21.3 * np.log10(3.5) - 0.3, abs=1e-3
    )


@pytest.mark.parametrize("metres", [0.0, 2.0, 13.0, 40.0])
def test_shadowing_decorrelates_exponentially(metres: float) -> None:
    """5000 fields, two places each: the product's standard error is at most 0.02."""
    keys = streams(range(5000), "test field")
    here = torch.tensor([[120.0, -80.0], [120.0 + metres * 0.6, -80.0 + metres * 0.8]])
    value = gaussian_field(keys, here.expand(5000, 2, 2), 13.0)
    assert float(value.std()) == pytest.approx(1.0, abs=0.03)
    correlation = float((value[:, 0] * value[:, 1]).mean())
    assert correlation == pytest.approx(np.exp(-metres / 13.0), abs=0.06)
    assert torch.equal(value[:, 0], value[:, 1]) == (metres == 0.0)


def test_shadowing_is_shared_by_place_and_spreads_follow_it() -> None:
    cell = Cell(CellConfig(mobility="redraw"), RADIO, clients=50)
    places = cell.trajectory(range(400), rounds=1)
    shadowing = places.shadowing.flatten()

    def correlation(value: torch.Tensor) -> float:
        return float(torch.corrcoef(torch.stack([shadowing, value.flatten()]))[0, 1])

    assert correlation(torch.log(places.delay_spread_s)) == pytest.approx(-0.7, abs=0.02)
    # The limit of 104 degrees cuts the upper tail, which costs a little correlation.
    assert correlation(torch.log(places.azimuth_spread_deg)) == pytest.approx(-0.4, abs=0.04)
    assert correlation(torch.log(places.zenith_spread_deg)) == pytest.approx(0.0, abs=0.03)
    lg = torch.log10(places.delay_spread_s)
    below, mean = torch.log10(
        log_normal_spread("delay_spread", 3.5e9, torch.tensor([-1.0, 0.0]))
    ).tolist()
    assert float(lg.mean()) == pytest.approx(mean, abs=0.01)
    assert float(lg.std()) == pytest.approx(mean - below, abs=0.01)


@pytest.mark.parametrize("mobility", ["reflect", "waypoint"])
def test_clients_walk_at_their_speed_where_they_head(mobility: str) -> None:
    settings = CellConfig.model_validate({"mobility": mobility, "min_distance_m": 0.0})
    cell = Cell(settings, RADIO, clients=50)
    walk = cell.trajectory([0, 1], rounds=200)
    assert bool(inside_hexagon(walk.position, 500.0).all())
    step = torch.linalg.vector_norm(walk.position.diff(dim=1), dim=-1)
    assert float(step.max()) <= 18.12 + 1e-2
    # Only a turn makes the straight distance shorter.
    straight = (step - 18.12).abs() < 1e-2
    assert float(straight.float().mean()) > 0.9
    moved = walk.position.diff(dim=1)
    heading = torch.atan2(moved[..., 1], moved[..., 0])
    turn = torch.remainder(heading - walk.heading_rad[:, :-1] + torch.pi, 2 * torch.pi) - torch.pi
    # A turn so slight that it does not shorten the step is the exception.
    assert float((turn[straight].abs() < 1e-3).float().mean()) > 0.99


def test_who_walks_past_the_antenna_keeps_off() -> None:
    """The straight walk, but never nearer than the minimum distance; waypoints have it anyway."""
    walks = [
        Cell(CellConfig(mobility="waypoint", min_distance_m=nearest), RADIO, clients=50).trajectory(
            [0], rounds=60
        )
        for nearest in (200.0, 0.0)
    ]
    assert float(walks[0].distance_m.min()) >= 200.0 * (1 - 1e-6)
    assert bool((walks[0].distance_m < 200.0 * (1 + 1e-6)).any())  # somebody walked around
    assert float(walks[1].distance_m.min()) < 100.0


@pytest.mark.parametrize("mobility", ["redraw", "ring"])
def test_nothing_arrives_stronger_than_it_was_sent(mobility: str) -> None:
    settings = CellConfig.model_validate(
        {"mobility": mobility, "shadowing_db": 60.0, "ring_snr_db": 100.0, "ring_spread_db": 30.0}
    )
    gain = Cell(settings, RADIO, clients=50).trajectory([0], rounds=20).gain_db
    assert float(gain.max()) == 0.0
    assert 0.0 < float((gain == 0.0).float().mean()) < 0.9


def mirrored_walk(place: complex, way: complex, metres: float, nearest: float) -> complex:
    """Where a client is after a walk in the hexagon of 500 m; segment by segment, one client."""
    corners = [500 * cmath.exp(1j * cmath.pi / 3 * k) for k in range(7)]
    while True:
        met = [(metres, 0j)]  # how far away, and the direction of what it mirrors in
        for start, end in itertools.pairwise(corners):
            along = (end - start) / abs(end - start)
            slope = (way * along.conjugate()).imag
            gap = ((place - start) * along.conjugate()).imag  # positive inside
            if slope < 0:
                met.append((gap / -slope, along))
        there = np.roots([1, 2 * (place * way.conjugate()).real, abs(place) ** 2 - nearest**2])
        if nearest and np.isreal(there).all() and there.real.min() > 1e-6:
            hit = float(there.real.min())
            met.append((hit, 1j * (place + hit * way) / nearest))
        far, mirror = min(met, key=lambda one: one[0])
        place, metres = place + far * way, metres - far
        if not mirror:
            return place
        way = mirror**2 * way.conjugate()


@pytest.mark.parametrize("nearest", [0.0, 60.0, 200.0])
def test_clients_are_mirrored_at_the_edges(nearest: float) -> None:
    """Against a walk written out client by client, from the first round's place and heading."""
    cell = Cell(CellConfig(min_distance_m=nearest), RADIO, clients=30)
    walk = cell.trajectory([5], rounds=80)[0]
    assert bool(inside_hexagon(walk.position, 500.0).all())
    assert float(walk.distance_m.min()) >= nearest * (1 - 1e-6)
    places = torch.view_as_complex(walk.position.to(torch.float64))  # [round, client]
    for client, (first, heading) in enumerate(zip(places[0], walk.heading_rad[0], strict=True)):
        for round in (1, 20, 79):
            way = cmath.exp(1j * float(heading))
            expected = mirrored_walk(complex(first), way, 18.12 * round, nearest)
            # float32 in the heading, and a circle spreads what is not quite the same way.
            assert abs(expected - complex(places[round, client])) < 0.05


def test_reflected_clients_stay_uniform_and_waypoints_drift_inwards() -> None:
    """Mean SNR and radii of rounds 0 and 99 over 200 seeds: 2000 clients each."""

    def first_and_last(mobility: str) -> tuple[float, float]:
        """Difference of mean SNR over its standard error, greatest difference of shares."""
        cell = Cell(CellConfig.model_validate({"mobility": mobility}), RADIO, clients=10)
        first, last = (cell.trajectory(range(200), rounds=1, first_round=r) for r in (0, 99))
        gains = first.gain_db.flatten(), last.gain_db.flatten()
        error = torch.sqrt(gains[0].var() / 2000 + gains[1].var() / 2000)
        radii = torch.linspace(0, 500, 200)
        shares = [
            (at.distance_m.flatten() <= radii[:, None]).double().mean(1) for at in (first, last)
        ]
        return float((gains[1].mean() - gains[0].mean()) / error), float(
            (shares[1] - shares[0]).abs().max()
        )

    critical = 1.63 * (2 / 2000) ** 0.5  # Kolmogorov and Smirnov, 1 %
    snr, radius = first_and_last("reflect")
    assert abs(snr) < 2.6
    assert radius < critical
    snr, radius = first_and_last("waypoint")
    assert snr > 10  # 4 dB
    assert radius > 3 * critical


def test_reflected_clients_stay_uniform_around_a_wide_circle() -> None:
    cell = Cell(CellConfig(min_distance_m=300.0), RADIO, clients=50)
    distance = cell.trajectory(range(200), rounds=1, first_round=60).distance_m
    area, hole = 1.5 * 3**0.5 * 500.0**2, np.pi * 300.0**2
    expected = (area * 5 / 12 * 500.0**2 - hole * 300.0**2 / 2) / (area - hole)
    assert float((distance**2).mean()) == pytest.approx(expected, rel=0.01)  # 4 standard errors


def test_walking_shadowing_decorrelates_over_a_round() -> None:
    """18.12 m a round: exp(-18.12 / 13) = 0.25."""
    walk = Cell(CellConfig(), RADIO, clients=40).trajectory(range(30), rounds=20)
    product = walk.shadowing[:, 1:] * walk.shadowing[:, :-1]
    assert float(product.mean()) == pytest.approx(np.exp(-18.12 / 13), abs=0.06)


def test_mobilities() -> None:
    def trajectory(mobility: str, **more: float) -> torch.Tensor:
        settings = CellConfig.model_validate({"mobility": mobility, **more})
        return Cell(settings, RADIO, clients=5).trajectory([3], rounds=4).gain_db[0]

    fixed = trajectory("fixed")
    assert torch.equal(fixed, fixed[:1].expand(4, 5))
    redraw = trajectory("redraw")
    assert not torch.equal(redraw[0], redraw[1])
    ring = trajectory("ring", ring_snr_db=20.0)
    full_dbm, noise_dbm = 23.0, -174.0 + 10 * np.log10(5e6) + 5.0
    assert torch.allclose(ring + full_dbm - noise_dbm, torch.tensor(20.0), atol=1e-3)
    spread = Cell(CellConfig(mobility="ring", ring_spread_db=3.0), RADIO, clients=100).trajectory(
        [0], rounds=100
    )
    assert float(spread.gain_db.std()) == pytest.approx(3.0, abs=0.1)


def test_v2x_is_ten_decibels_better() -> None:
    """Noise -114 dBm + 5 dB against -174 dBm/Hz in 5 MHz + 5 dB; 8 + 3 dBi against 8."""
    snr_db = []
    for preset in ("paper", "paper-v2x"):
        config = load_config(preset)
        gain_db = (
            Cell(config.cell, config.radio, clients=10).trajectory(range(5), rounds=10).gain_db
        )
        snr_db.append(float(23.0 + gain_db.mean() - config.radio.noise_dbm))
    thermal_dbm = 10 * np.log10(1.380649e-23 * 290 * 5e6 * 1e3)
    assert snr_db[1] - snr_db[0] == pytest.approx(thermal_dbm + 114.0 + 3.0, abs=0.05)  # 10.0
    assert config.radio.noise_dbm == pytest.approx(-109.0, abs=1e-3)


def test_a_round_can_be_asked_for_alone() -> None:
    for mobility in ("reflect", "waypoint", "fixed", "redraw", "ring"):
        cell = Cell(CellConfig(mobility=mobility, ring_spread_db=3.0), RADIO, clients=7)
        together = cell.trajectory(range(100), rounds=9, first_round=90).at(96)
        alone = cell.trajectory([2], rounds=1, first_round=96).at(96)
        assert torch.equal(together.gain_db[2], alone.gain_db[0])
        assert torch.equal(together.position[2], alone.position[0])
        assert torch.equal(together.heading_rad[2], alone.heading_rad[0])
    with pytest.raises(UserError, match="round = 5"):
        cell.trajectory([2], rounds=1, first_round=6).at(5)


def test_tables_say_what_the_standard_says() -> None:
    """Spot checks against TR 38.901: unit-spread offsets, positive definite correlations."""
    offsets = np.array(table()["rays"]["offsets"])
    # Rays are placed for rms spread 1 of a Laplacian; 20 rays reach it within 5 %.
    assert offsets.mean() == pytest.approx(0.0, abs=1e-9)
    assert np.sqrt((offsets**2).mean()) == pytest.approx(1.0, abs=0.05)
    rays = sorted(r for row in table()["rays"]["subclusters"] for r in row["rays"])
    assert rays == list(range(1, 21))
    matrix = np.array(table()["large_scale"]["correlation"]["matrix"])
    assert np.all(np.linalg.eigvalsh(matrix) > 0)
    assert np.array_equal(matrix, matrix.T)
    constants = [angle_scaling("azimuth", n) for n in range(1, 200)]
    assert constants[0] > 0
    assert all(a < b for a, b in itertools.pairwise(constants))
