"""Several receive antennas: their statistics, their geometry, and what they hear together."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig, load_config
from fedfade.errors import UserError
from fedfade.radio import Cell, Channel, LargeScale, SmallScale, coupling, sinr
from fedfade.radio.fading import ClusteredFading
from fedfade.radio.link import kept_by_elimination, kept_by_solving
from fedfade.radio.microcell import table
from fedfade.radio.rays import angle_spread, draw_departures, draw_quadriga
from fedfade.randomness import fold, stream


def drawn(radio: RadioConfig, clients: int = 2, seeds: Sequence[int] = range(4)) -> SmallScale:
    cell = CellConfig()
    walk = Cell(cell, radio, clients).trajectory(seeds, rounds=1)
    return Channel(radio, cell, clients).small_scale(seeds, [0], [0], walk)


def at_broadside(count: int, departure_spread_deg: float) -> tuple[Tensor, LargeScale]:
    """Clients 200 m to the east, where the line of antennas along y stands across."""
    one = torch.ones(count)
    place = LargeScale(
        position=torch.stack([200.0 * one, 0.0 * one], dim=-1),
        distance_m=200.0 * one,
        heading_rad=0.0 * one,
        shadowing=0.0 * one,
        delay_spread_s=1e-7 * one,
        azimuth_spread_deg=50.0 * one,
        zenith_spread_deg=5.0 * one,
        departure_spread_deg=departure_spread_deg * one,
        gain_db=0.0 * one,
        announced_db=0.0 * one,
    )
    return fold(stream(1, "place"), torch.arange(count)), place


# --- the distribution -----------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "shape"), [("rayleigh", 4.0), ("gamma", 8.0)])
def test_independent_antennas_add_up_to_the_gamma_distribution_they_should(
    source: str, shape: float
) -> None:
    """Four antennas of unit mean, each a gamma variable of shape 1 or 2; one slot of every drop,
    because slots of Rayleigh fading are alike."""
    radio = RadioConfig(source=source, receive_antennas=4, slots=1)
    gain = drawn(radio, clients=10, seeds=range(100)).gain.flatten().double()
    test = stats.kstest(gain.numpy(), stats.gamma(shape, scale=4.0 / shape).cdf)
    assert test.pvalue > 0.01
    assert len(gain) == 4000


@pytest.mark.parametrize("source", ["rayleigh", "gamma"])
def test_directions_of_independent_antennas_are_uniform_on_the_sphere(source: str) -> None:
    """Then |u_n^H u_k|^2 of two clients is a beta variable (1, M - 1)."""
    unit = drawn(RadioConfig(source=source, receive_antennas=4, slots=1), 2, range(500)).direction
    overlap = coupling(unit[:, 0, 0, 0].transpose(1, 2).flatten(-2))[..., 0, 1].flatten()
    assert stats.kstest(overlap.double().numpy(), stats.beta(1, 3).cdf).pvalue > 0.01


@pytest.mark.parametrize("source", ["clustered", "rayleigh", "gamma"])
def test_an_array_gathers_as_much_as_its_antennas_and_points_somewhere(source: str) -> None:
    found = drawn(RadioConfig(source=source, receive_antennas=3, slots=40), 5, range(20))
    assert found.gain.shape == (20, 1, 1, 40, 5, 4)
    assert found.direction.shape == (20, 1, 1, 40, 5, 4, 3, 2)
    assert float(found.gain.mean()) == pytest.approx(3.0, rel=0.05)
    length = torch.linalg.vector_norm(found.direction, dim=(-2, -1))
    torch.testing.assert_close(length, torch.ones_like(length))


@pytest.mark.parametrize("source", ["clustered", "rayleigh", "gamma"])
def test_one_antenna_is_the_channel_without_a_direction(source: str) -> None:
    radio, cell = RadioConfig(source=source, slots=9), CellConfig()
    channel, walk = Channel(radio, cell, 2), Cell(cell, radio, 2).trajectory([3], rounds=1)
    found = channel.small_scale([3], [0], [0], walk)
    assert torch.equal(found.gain, channel.small_scale_gains([3], [0], [0], walk))
    assert found.direction.shape == (1, 1, 1, 9, 2, 4, 0, 2)


def test_no_array_depends_on_its_batch() -> None:
    radio, cell = RadioConfig(receive_antennas=2, slots=20), CellConfig()
    channel, cells = Channel(radio, cell, 3), Cell(cell, radio, 3)
    many = channel.small_scale(range(8), [0, 1], [0, 1], cells.trajectory(range(8), rounds=2))
    one = channel.small_scale([5], [1], [1], cells.trajectory([5], rounds=2))
    for part, alone in zip(many, one, strict=True):
        assert torch.equal(part[5:6, 1:, 1:], alone)


# --- geometry -------------------------------------------------------------------------------------


def correlation(field: Tensor) -> np.ndarray:
    """E[h_0^* h_k] / E|h|^2 over drops of fields [drop, antenna, band, slot]."""
    product = (field[:, :1].conj() * field).mean((0, 2, 3))
    return np.asarray(product / field.abs().square().mean())


def fields(clusters: int, count: int, departure_spread_deg: float) -> Tensor:
    radio = RadioConfig(
        clusters=clusters, receive_antennas=4, slots=4, subband_gain="centre",
        cluster_draw="tr38901",
    )  # fmt: skip
    source = ClusteredFading(radio, CellConfig(), 1, torch.device("cpu"))
    _, field = source.draw_array(*at_broadside(count, departure_spread_deg))
    return field


def within_cluster() -> np.ndarray:
    """The correlation by the rays of one cluster, from the first antenna to each."""
    angle = math.radians(10.0) * np.array(table()["rays"]["offsets"])
    turns = 0.5 * 200.0 / math.hypot(200.0, 8.5) * np.sin(angle)
    return np.asarray(np.exp(2j * np.pi * np.arange(4)[:, None] * turns).mean(-1))


def test_a_cluster_is_correlated_over_the_array_as_its_rays_say() -> None:
    """One cluster straight ahead: the sum over the 20 rays of Table 7.5-3. They sample a Laplacian
    of 10 degrees, whose closed form is 1 / (1 + (pi k sigma)^2 / 2); without its tails, which
    tell two antennas apart that stand farther from each other."""
    found = correlation(fields(clusters=2, count=3000, departure_spread_deg=0.0))
    error = 3.0 / math.sqrt(3000 * 4)  # 4 nearly independent sub-bands
    assert np.abs(found - within_cluster()).max() < error
    laplacian = 1.0 / (1.0 + (np.pi * math.radians(10.0)) ** 2 / 2.0)
    assert found[1].real == pytest.approx(laplacian, abs=error + 0.01)


def test_many_clusters_are_correlated_as_a_gaussian_of_their_spread_says() -> None:
    """Eq. 7.5-9 places clusters so that their power falls as a Gaussian in angle. For small
    spreads the correlation is exp(-(pi k sigma)^2 / 2), times the cluster's own."""
    sigma = 8.0
    found = np.abs(correlation(fields(clusters=41, count=1500, departure_spread_deg=sigma)))
    gaussian = np.exp(-((np.pi * np.arange(4) * math.radians(sigma)) ** 2) / 2.0)
    assert np.abs(found - gaussian * within_cluster().real).max() < 0.05


def test_quadriga_draw_meets_the_departure_spread_of_every_drop() -> None:
    keys, at = at_broadside(500, 15.0)
    clusters = draw_quadriga(keys, at, 20)
    found = angle_spread(draw_departures(keys, at, clusters, "quadriga"), clusters.power)
    assert ((torch.rad2deg(found) - 15.0).abs() < 0.2).float().mean() > 0.99


def test_a_wider_spread_decorrelates_and_the_first_antenna_is_the_single_one() -> None:
    near, far = (
        np.abs(correlation(fields(clusters=21, count=600, departure_spread_deg=s)))[1]
        for s in (2.0, 40.0)
    )
    assert near > 0.8 > far + 0.3
    radio = RadioConfig(receive_antennas=2, slots=8, subband_gain="centre")
    source = ClusteredFading(radio, CellConfig(), 1, torch.device("cpu"))
    keys, at = at_broadside(5, 20.0)
    _, field = source.draw_array(keys, at)
    torch.testing.assert_close(field[:, 0].abs().square(), source.draw(keys, at))


# --- what is heard --------------------------------------------------------------------------------


def a_slot(clients: int, antennas: int, spread_db: float = 40.0) -> dict[str, Tensor]:
    """Many slots of strong and weak clients who crowd on two sub-bands."""
    random = torch.Generator().manual_seed(clients * antennas)
    shape = (50, clients, 2)
    unit = torch.randn(*shape, antennas, 2, generator=random)
    return {
        "gain": 10.0 ** (spread_db / 10.0 * torch.rand(shape, generator=random) - 1.0),
        "direction": unit / torch.linalg.vector_norm(unit, dim=(-2, -1), keepdim=True),
        "band": torch.randint(2, shape[:2], generator=random),
        "power_w": torch.randint(3, shape[:2], generator=random).float(),  # silent ones too
    }


@pytest.mark.parametrize(("clients", "antennas"), [(2, 2), (6, 4), (9, 3)])
def test_mmse_is_what_a_plain_solve_says(clients: int, antennas: int) -> None:
    slot, noise = a_slot(clients, antennas), 0.5
    found = sinr(**slot, noise_w=noise, receiver="mmse")
    gain, pairs, band, power = (value.numpy() for value in slot.values())
    unit = pairs.astype(float).view(complex)[..., 0]
    for e, n in np.ndindex(found.shape):

        def arrives(k: int, e: int = e, on: int = band[e, n]) -> np.ndarray:
            strength = np.sqrt(float(power[e, k]) * float(gain[e, k, on]))
            return np.asarray(strength * unit[e, k, on])

        others = [k for k in range(clients) if k != n and band[e, k] == band[e, n]]
        covariance = noise * np.eye(antennas, dtype=complex)
        for k in others:
            covariance += np.outer(arrives(k), arrives(k).conj())
        own = arrives(n)
        expected = (own.conj() @ np.linalg.solve(covariance, own)).real
        assert float(found[e, n]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("clients", "antennas"), [(2, 2), (6, 4), (9, 3), (12, 8)])
def test_mmse_hears_no_less_than_mrc_and_no_more_than_silence_around(
    clients: int, antennas: int
) -> None:
    slot = a_slot(clients, antennas)
    mrc, mmse = (sinr(**slot, noise_w=1.0, receiver=r) for r in ("mrc", "mmse"))
    alone = slot["power_w"] * slot["gain"].gather(-1, slot["band"][..., None])[..., 0]
    assert (mmse >= mrc * (1 - 1e-5)).all()
    assert (mmse <= alone * (1 + 1e-5)).all()
    assert float((mmse / mrc.clamp(min=1e-9)).amax()) > 2.0  # and does make a difference


def test_mrc_is_heard_in_its_own_direction() -> None:
    slot = a_slot(4, 3)
    found = sinr(**slot, noise_w=2.0, receiver="mrc")
    place = slot["band"][..., None]
    heard = slot["power_w"] * slot["gain"].gather(-1, place)[..., 0]
    unit = torch.view_as_complex(slot["direction"])
    unit = unit.gather(-2, place[..., None].expand(-1, -1, 1, 3))[..., 0, :]
    for n in range(4):
        total = torch.full((50,), 2.0)
        for k in range(4):
            inner = (unit[:, n].conj() * unit[:, k]).sum(-1).abs() ** 2
            if k != n:
                total += heard[:, k] * inner * (slot["band"][:, k] == slot["band"][:, n])
        torch.testing.assert_close(found[:, n], heard[:, n] / total)


@pytest.mark.parametrize("receiver", ["mrc", "mmse"])
def test_from_one_direction_several_antennas_hear_as_one_does(receiver: str) -> None:
    """With all in one direction nothing can be told apart; 60 dB stress the elimination."""
    slot = a_slot(5, 4, spread_db=60.0)
    slot["direction"] = slot["direction"][:, :1, :1].expand_as(slot["direction"])
    found = sinr(**slot, noise_w=1.0, receiver=receiver)
    one = sinr(slot["gain"], slot["band"], slot["power_w"], 1.0)
    torch.testing.assert_close(found, one, rtol=1e-3, atol=1e-6)


def test_both_ways_to_mmse_agree() -> None:
    slot = a_slot(6, 4, spread_db=70.0)
    unit = slot["direction"][:, :, 0].flatten(-2).double()
    others = slot["gain"][:, :, 0].double().unsqueeze(-2) * (1.0 - torch.eye(6))
    one, other = kept_by_solving(unit, others), kept_by_elimination(unit, others)
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_hears_the_same() -> None:
    slot = a_slot(6, 4)
    there = {name: value.cuda() for name, value in slot.items()}
    for receiver in ("mrc", "mmse"):
        one, other = (sinr(**s, noise_w=1.0, receiver=receiver) for s in (slot, there))
        torch.testing.assert_close(one, other.cpu(), rtol=1e-4, atol=1e-6)
    radio, cell = RadioConfig(receive_antennas=2, slots=20), CellConfig()
    found = []
    for device in ("cpu", "cuda"):
        walk = Cell(cell, radio, 2).trajectory([1], rounds=1, device=device)
        found.append(Channel(radio, cell, 2, device).small_scale([1], [0], [0], walk))
    torch.testing.assert_close(found[0].gain, found[1].gain.cpu(), atol=1e-2, rtol=1e-2)


# --- bad input ------------------------------------------------------------------------------------


class OneAntenna:
    """A source of a user's that knows no antennas."""

    def __init__(self, *given: object) -> None: ...

    def gains(self, keys: Tensor, at: LargeScale) -> Tensor:
        return torch.ones(*keys.shape, 250, 4)


class Careless(OneAntenna):
    """One that forgets to normalise."""

    def array(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        unit = torch.ones(*keys.shape, 250, 4, 2, dtype=torch.complex64)
        return 2.0 * self.gains(keys, at), unit


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("radio.receive_antennas=0", "radio.receive_antennas = 0 is not allowed"),
        ("radio.receive_antennas=65", "radio.receive_antennas = 65 is not allowed"),
        ("radio.receive_antennas=2.5", "radio.receive_antennas = 2.5 is not allowed"),
        ("radio.receiver=zf", "radio.receiver = 'zf' is not allowed"),
        ("cell.interference_cells=7", "cell.interference_cells = 7 is not allowed"),
        ("cell.interference_cells=-1", "cell.interference_cells = -1 is not allowed"),
        ("cell.interference_activity=1.5", "cell.interference_activity = 1.5 is not allowed"),
        ("cell.interference_activity=-0.1", "cell.interference_activity = -0.1 is not allowed"),
    ],
)
def test_what_is_not_allowed_is_said_in_a_sentence(given: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_config("paper", [given])


def test_recorded_gains_are_those_of_one_antenna() -> None:
    with pytest.raises(UserError, match=r"receive_antennas = 2 .* 1 when radio.source is 'traces'"):
        load_config(
            "paper", ["radio.source=traces", "radio.traces=x.npz", "radio.receive_antennas=2"]
        )


def test_a_source_of_ones_own_must_draw_antennas_to_have_them() -> None:
    def channel(name: str) -> Channel:
        source = f"tests.radio.test_antennas:{name}"
        return Channel(RadioConfig(source=source, receive_antennas=2), CellConfig(), 2)

    with pytest.raises(UserError, match=r"receive_antennas = 2 is not allowed.*has no 'array'"):
        channel("OneAntenna")
    walk = Cell(CellConfig(), RadioConfig(), 2).trajectory([0], rounds=1)
    with pytest.raises(UserError, match="returned directions whose length is not 1"):
        channel("Careless").small_scale_gain([0], 0, [0], walk)
