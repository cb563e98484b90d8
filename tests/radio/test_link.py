"""SINR and rate against a plain loop, silence, and the rounding of strong neighbours."""

from __future__ import annotations

import math

import pytest
import torch

from fedfade.config import RadioConfig
from fedfade.radio import db_to_linear, dbm_to_w, delivered_bits, noise_w, rate_bps, sinr


def looped(
    gain: torch.Tensor, band: torch.Tensor, power: torch.Tensor, noise: float
) -> list[float]:
    """The definition, one client at a time, in double precision."""
    ratios = []
    for n in range(len(band)):
        own = float(power[n]) * float(gain[n, band[n]])
        others = sum(
            float(power[m]) * float(gain[m, band[n]])
            for m in range(len(band))
            if m != n and band[m] == band[n]
        )
        ratios.append(own / (noise + others))
    return ratios


@pytest.mark.parametrize("clients", [1, 2, 10])
@pytest.mark.parametrize("bands", [1, 4])
def test_sinr_is_the_definition(clients: int, bands: int) -> None:
    generator = torch.Generator().manual_seed(clients * 10 + bands)
    gain = torch.rand(3, 5, clients, bands, generator=generator) * 1e-10
    band = torch.randint(bands, (3, 5, clients), generator=generator)
    power = torch.rand(3, 5, clients, generator=generator)
    power[torch.rand(3, 5, clients, generator=generator) < 0.3] = 0.0
    found = sinr(gain, band, power, 6e-14)
    for i in range(3):
        for j in range(5):
            expected = looped(gain[i, j], band[i, j], power[i, j], 6e-14)
            assert found[i, j].tolist() == pytest.approx(expected, rel=1e-5)


def test_silent_clients_neither_send_nor_disturb() -> None:
    gain = torch.ones(3, 2)
    alone = sinr(gain, torch.tensor([0, 1, 1]), dbm_to_w(torch.tensor([23.0, 0.0, 0.0])), 1e-3)
    crowded = sinr(
        gain,
        torch.zeros(3, dtype=torch.int64),
        dbm_to_w(torch.tensor([23.0, -100.0, -100.0])),
        1e-3,
    )
    assert crowded[0] == alone[0]
    assert crowded[1:].tolist() == [0.0, 0.0]


def test_delivered_bits_leave_what_a_clamped_difference_leaves() -> None:
    """To the last bit, also where the slot brings more than is left, or nothing."""
    generator = torch.Generator().manual_seed(3)
    rate = torch.rand(100, 7, 10, generator=generator) * 1e8
    left = torch.rand(100, 7, 10, generator=generator) * 4e5
    rate[torch.rand(rate.shape, generator=generator) < 0.2] = 0.0
    left[torch.rand(left.shape, generator=generator) < 0.2] = 0.0
    bits = delivered_bits(rate, 0.002, left)
    assert torch.equal(left - bits, (left - rate * 0.002).clamp(min=0.0))
    assert bits.shape == left.shape
    assert bool((bits >= 0).all() and (bits <= left).all())
    assert bool((bits == left).any() and ((bits > 0) & (bits < left)).any())


def test_weak_neighbour_of_a_strong_client_keeps_its_weight() -> None:
    """80 dB apart: a sum minus the strong signal would lose the weak one in float32."""
    gain = torch.tensor([[1e-4], [1e-12]])
    found = sinr(gain, torch.tensor([0, 0]), torch.tensor([0.2, 0.2]), 1e-14)
    assert float(found[0]) == pytest.approx(2e-5 / (2e-13 + 1e-14), rel=1e-5)


def test_levels_and_rates() -> None:
    assert dbm_to_w(-100.0).item() == 0.0
    assert noise_w(RadioConfig()) == pytest.approx(10 ** ((-174 + 66.99 + 5 - 30) / 10), rel=1e-3)
    assert dbm_to_w(-99.0).item() > 0.0
    assert dbm_to_w(23.0).item() == pytest.approx(0.1995, rel=1e-3)
    assert db_to_linear(torch.tensor(3.0)).item() == pytest.approx(10**0.3, rel=1e-6)
    ratio = torch.tensor([0.0, 1e-6, 1.0, 1e6])
    expected = [5e6 * math.log2(1 + float(r)) for r in ratio]
    assert rate_bps(ratio, 5e6).tolist() == pytest.approx(expected, rel=1e-5)
    alone = sinr(torch.tensor([[3.0]]), torch.tensor([0]), torch.tensor([1.0]), 1.0)
    assert (2e-3 * rate_bps(alone, 5e6)).tolist() == pytest.approx([20_000.0])  # bits of a slot


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_sinr_can_be_captured_in_a_cuda_graph() -> None:
    gain = torch.rand(20, 10, 4, device="cuda")
    band = torch.randint(4, (20, 10), device="cuda")
    power = torch.rand(20, 10, device="cuda")
    expected = sinr(gain, band, power, 1e-3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = sinr(gain, band, power, 1e-3)
    graph.replay()
    assert torch.equal(found, expected)
