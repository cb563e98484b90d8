"""Exact max sum rate against enumeration, the certificate behind its shortcut, and its limits."""

from __future__ import annotations

import itertools
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfade.allocation import max_sum_rate, sum_rate_nats
from fedfade.allocation.assignment import assign_by_table
from fedfade.allocation.max_sum_rate import _local_search
from fedfade.errors import UserError

module = sys.modules["fedfade.allocation.max_sum_rate"]  # its function has the same name


def enumerate_best(snr: Tensor, levels: tuple[float, ...] = (1.0,)) -> float:
    """The best of all choices of sub-band and power, in plain loops over clients."""
    clients, bands = snr.shape
    choices = [(-1, 0.0), *itertools.product(range(bands), levels)]
    best = 0.0
    table = snr.double().tolist()
    for joint in itertools.product(choices, repeat=clients):
        heard = [0.0 if b < 0 else p * table[n][b] for n, (b, p) in enumerate(joint)]
        total = 0.0
        for n, (band, _) in enumerate(joint):
            if band >= 0:
                others = sum(heard[m] for m in range(clients) if m != n and joint[m][0] == band)
                total += math.log1p(heard[n] / (1.0 + others))
        best = max(best, total)
    return best


def instance(snr_db: float, clients: int, bands: int, seed: int, spread_db: float = 5.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    level = snr_db + spread_db * torch.randn(clients, 1, generator=generator)
    fading = -torch.log1p(-torch.rand(clients, bands, generator=generator))
    return 10 ** (level / 10) * fading


def everybody(snr: Tensor) -> Tensor:
    return torch.arange(snr.shape[1]).expand(len(snr), -1)


@pytest.mark.parametrize("snr_db", range(-10, 45, 5))
def test_equals_enumeration_at_every_snr(snr_db: int) -> None:
    for seed in range(4):
        for clients, bands in ((4, 2), (5, 1), (3, 4), (1, 3)):
            snr = instance(snr_db, clients, bands, seed)
            value = float(sum_rate_nats(snr.double(), max_sum_rate(snr, 1.0)))
            # float32 tables: relative rounding of a few 1e-7 per term.
            assert value == pytest.approx(enumerate_best(snr), rel=2e-6)


@pytest.mark.parametrize("snr_db", [-5, 3, 12])
def test_intermediate_power_levels_never_help(snr_db: int) -> None:
    """Binary power control is optimal: the paper's 10 and 5 dBm levels (of 23) add nothing."""
    levels = (1.0, 10**-1.3, 10**-1.8)
    for seed in range(3):
        snr = instance(snr_db, 3, 2, seed, spread_db=3.0)
        value = float(sum_rate_nats(snr.double(), max_sum_rate(snr, 1.0)))
        assert value == pytest.approx(enumerate_best(snr, levels), rel=2e-6)


def test_a_shared_sub_band_carries_at_most_the_larger_of_one_nat_and_its_strongest() -> None:
    """The inequality that lets the assignment stand as optimal."""
    generator = torch.Generator().manual_seed(0)
    for clients in range(2, 12):
        power = 10 ** (torch.rand(20_000, clients, 1, generator=generator, dtype=torch.float64) - 1)
        power *= torch.rand(20_000, clients, 1, generator=generator, dtype=torch.float64)
        together = sum_rate_nats(power, torch.zeros(20_000, clients, dtype=torch.int64))
        strongest = torch.log1p(power.amax((1, 2)))
        assert (together <= strongest.clamp(min=1.0) + 1e-12).all()


def test_batches_give_what_single_instances_give() -> None:
    snr = torch.stack([instance(db, 10, 4, seed) for db in (-8, 0, 8, 20) for seed in range(20)])
    together = max_sum_rate(snr, 1.0)
    for row, answer in zip(snr, together, strict=True):
        alone = max_sum_rate(row, 1.0)
        assert float(sum_rate_nats(row, alone)) == pytest.approx(
            float(sum_rate_nats(row, answer)), rel=1e-6
        )


def test_the_way_of_a_gpu_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assignment by table, few clients looped over, large blocks: all of it runs anywhere."""
    snr = torch.stack([instance(db, 10, 4, seed) for db in (-8, 0, 5, 20) for seed in range(40)])
    here = sum_rate_nats(snr, max_sum_rate(snr, 1.0))
    monkeypatch.setattr(module, "assign", lambda value: (assign_by_table(value), None))
    monkeypatch.setattr(module, "_looped", lambda clients, device: 3)
    monkeypatch.setattr(module, "_slots_at_a_time", lambda *sizes: 1000)
    there = sum_rate_nats(snr, max_sum_rate(snr, 1.0))
    assert torch.allclose(there, here, rtol=2e-6)


def test_noise_scales_out_and_done_clients_stay_silent() -> None:
    snr = instance(5, 8, 3, 1)
    assert torch.equal(max_sum_rate(snr, 1.0), max_sum_rate(snr * 4.0, 4.0))
    snr[[2, 5]] = 0.0
    band = max_sum_rate(snr, 1.0)
    assert (band[[2, 5]] == -1).all()
    kept = [0, 1, 3, 4, 6, 7]
    alone = max_sum_rate(snr[kept], 1.0)
    assert float(sum_rate_nats(snr, band)) == pytest.approx(
        float(sum_rate_nats(snr[kept], alone)), rel=1e-6
    )
    assert (max_sum_rate(torch.zeros(4, 2), 1.0) == -1).all()


@pytest.mark.parametrize(("clients", "bands"), [(10, 4), (6, 8), (16, 20), (25, 5)])
@pytest.mark.parametrize("faded", [True, False])
def test_done_clients_drop_out_of_the_search(
    monkeypatch: pytest.MonkeyPatch, clients: int, bands: int, faded: bool
) -> None:
    """The answer is that of the whole problem, where many choices are as good too (no fading)."""
    snr = torch.stack([instance(3, clients, bands, seed) for seed in range(clients + 1)])
    snr = snr if faded else snr[..., :1].repeat(1, 1, bands)
    for count, slot in enumerate(snr):
        slot[torch.randperm(clients, generator=torch.Generator().manual_seed(count))[count:]] = 0.0
    name = "_subset_convolution" if clients <= 12 else "_local_search"
    search, searched = getattr(module, name), []

    def counted(snr: Tensor, who: Tensor, antennas: None) -> Tensor:
        searched.append((len(snr), who.shape[1]))
        answer: Tensor = search(snr, who, antennas)
        return answer

    monkeypatch.setattr(module, name, counted)
    monkeypatch.setattr(module, "_MOVES", 1)  # a slot at a time: as few clients as are left
    together = max_sum_rate(snr, 1.0)
    for count, slot in enumerate(snr):
        searched.clear()
        alone = max_sum_rate(slot, 1.0)
        assert torch.equal(alone, together[count])
        room = (
            count if clients > 12 else (clients + 1) // 2 if 2 * count <= clients + 1 else clients
        )
        assert searched in ([], [(1, room)] if count else [])
        if searched:
            whole = search(slot[None], everybody(slot[None]))[0]
            sends = slot.gather(-1, whole.clamp(min=0)[:, None]).squeeze(-1) > 0
            assert torch.equal(alone, torch.where(sends, whole, -1))


def test_twelve_clients_and_sixteen_sub_bands() -> None:
    snr = torch.stack([instance(-3, 12, 16, seed, spread_db=1.0) for seed in range(2)])
    band = max_sum_rate(snr, 1.0)
    assert band.shape == (2, 12)
    assert (
        sum_rate_nats(snr, band)
        >= sum_rate_nats(snr, _local_search(snr, everybody(snr))) * (1 - 1e-6)
    ).all()


def test_local_search_is_close_to_exact() -> None:
    """Above 12 clients local search stands in; at 10 clients its gap can be seen."""
    for snr_db in (-10, -5, 0, 5):
        snr = torch.stack([instance(snr_db, 10, 4, seed) for seed in range(60)])
        exact = sum_rate_nats(snr, max_sum_rate(snr, 1.0))
        found = sum_rate_nats(snr, _local_search(snr, everybody(snr)))
        assert (found <= exact * (1 + 1e-6)).all()
        assert float((found / exact).mean()) > 0.99


@pytest.mark.parametrize("shape", [(3,), (0, 4), (4, 0)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="received_power"):
        max_sum_rate(torch.ones(shape), 1.0)


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf, None, "much"])
def test_noise_must_be_positive(noise: object) -> None:
    with pytest.raises(UserError, match=r"^noise = .* a finite number greater than 0\.$"):
        max_sum_rate(torch.ones(2, 2), noise)  # type: ignore[arg-type]


def test_arrays_and_lists_are_taken() -> None:
    received = torch.stack([instance(3, 5, 3, seed) for seed in range(4)]).double()
    wanted = max_sum_rate(received, 1.0)
    array = received.numpy()
    readonly = np.broadcast_to(array, array.shape)
    backwards = array[::-1].copy()[::-1]  # negative strides
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (array, readonly, backwards, array.tolist()):
            assert torch.equal(max_sum_rate(given, 1.0), wanted)
    assert max_sum_rate([[8, 6], [7, 1]], 1).tolist() == [1, 0]
    assert max_sum_rate(torch.zeros(0, 4, 2), 1.0).shape == (0, 4)


@pytest.mark.parametrize("worst", [-1e-30, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_values_that_are_no_power_are_refused(worst: float, kind: type) -> None:
    received = np.ones((3, 4, 2), kind)
    received[1, 2, 0] = worst
    with pytest.raises(UserError, match=r"^received_power = .* finite and at least 0 everywhere"):
        max_sum_rate(received, 1.0)
    with pytest.raises(UserError, match=r"^received_power = "):
        max_sum_rate(torch.from_numpy(received), 1.0)


def test_what_overflows_over_the_noise_is_refused() -> None:
    with pytest.raises(UserError, match=r"^noise = 1e-30 .* received_power / noise to be finite"):
        max_sum_rate(torch.full((2, 2), 1e20), 1e-30)


@pytest.mark.parametrize(
    "given",
    [[["a", "b"]], [[1.0, 2.0], [3.0]], np.ones((2, 2), object), None, np.ones((2, 2)) * 1j],
)
def test_what_is_no_number_is_refused(given: object) -> None:
    with pytest.raises(UserError, match=r"^received_power = .* numbers"):
        max_sum_rate(given, 1.0)  # type: ignore[arg-type]
