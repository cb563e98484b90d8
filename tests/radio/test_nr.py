"""The NR link: schemes, block errors against the formula by hand and measured codes, HARQ against a
plain-Python process and its own expectation, bad input."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfade.config import NrConfig, load_config
from fedfade.errors import UserError
from fedfade.graphs import fuse, record
from fedfade.radio import Cell, Channel, load_link
from fedfade.radio.nr import Scheme, block_error, grid_db, information, read_schemes, tables
from fedfade.randomness import fold, uniform
from fedfade.uplink import (
    Action,
    draw_chance,
    plain_round,
    play_slot,
    scenario_from_config,
    slot_air,
    start_round,
)
from fedfade.uplink.plan import planned_rate

SLOT_SYMBOLS = 10_000.0  # 5 MHz for 2 ms


def nr_link(*changes: str) -> Any:
    return load_link(load_config("paper", ["radio.link=nr", *changes]).radio)


def at(curve: np.ndarray, snr_db: float) -> float:
    return float(np.interp(snr_db, grid_db(), curve))


def needed_db(error: np.ndarray, target: float = 0.1) -> float:
    return float(np.interp(-target, -error, grid_db()))


# --- schemes and block errors ----------------------------------------------------------------


def test_the_tables_of_the_standard() -> None:
    """TS 38.214: sizes, ends and where the modulation changes."""
    low, high = read_schemes("64qam"), read_schemes("256qam")
    assert (len(low), len(high)) == (29, 28)
    assert [low[m].bits_per_symbol for m in (9, 10, 16, 17, 28)] == [2, 4, 4, 6, 6]
    assert [high[m].bits_per_symbol for m in (4, 5, 10, 11, 19, 20)] == [2, 4, 4, 6, 6, 8]
    found = [scheme.efficiency for scheme in (low[0], low[28], high[0], high[27])]
    assert found == pytest.approx([0.2344, 5.5547, 0.2344, 7.4063], abs=1e-4)
    for table in (low, high):  # but for one step, 16QAM to 64QAM, each carries more than the last
        steps = np.diff([scheme.efficiency for scheme in table])
        assert (steps > -0.004).all()
        assert (steps > 0).sum() >= len(steps) - 1


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize("snr_db", [-5.0, 3.0, 12.0])
def test_information_against_drawn_noise(bits: int, snr_db: float) -> None:
    """200,000 symbols: errors of mean and variance about 0.003 and 0.01 of the variance's scale."""
    rng = np.random.default_rng(0)
    levels = 2.0 * np.arange(2 ** (bits // 2)) + 1.0 - 2 ** (bits // 2)
    points = (levels[:, None] + 1j * levels).ravel()
    points /= np.sqrt((abs(points) ** 2).mean())
    sent = rng.choice(points, 50_000)
    noise = 10 ** (-snr_db / 10)
    heard = sent + np.sqrt(noise / 2) * (rng.normal(size=50_000) + 1j * rng.normal(size=50_000))
    likely = np.exp(-(abs(heard[:, None] - points) ** 2) / noise).mean(-1)
    density = -(abs(heard - sent) ** 2) / noise / math.log(2) - np.log2(likely)
    mean, variance = information(bits)
    assert at(mean, snr_db) == pytest.approx(density.mean(), abs=0.025)
    assert at(variance, snr_db) == pytest.approx(density.var(), abs=0.06)


def test_the_normal_approximation_by_hand() -> None:
    """QPSK below -10 dB is as good as Gaussian signals, of which mean and variance are known:
    C = log2(1 + g) and V = g (g + 2) / (g + 1)^2 log2(e)^2."""
    scheme, g = Scheme(2, 0.05), 10 ** (-1.15)
    capacity, dispersion = math.log2(1 + g), g * (g + 2) / (g + 1) ** 2 / math.log(2) ** 2
    mean, variance = information(2)
    assert at(mean, -11.5) == pytest.approx(capacity, rel=0.005)
    assert at(variance, -11.5) == pytest.approx(dispersion, rel=0.1)
    n, k = 5_000.0, 5_000 * 0.1
    spare = n * at(mean, -11.5) - k + 0.5 * math.log2(n)
    by_hand = 0.5 * math.erfc(spare / math.sqrt(2 * n * at(variance, -11.5)))
    assert 0.01 < by_hand < 0.99
    assert at(block_error(scheme, n, 8448, 0.0), -11.5) == pytest.approx(by_hand, rel=1e-3)
    # Two code blocks of half the length each, and one decibel more.
    half = 0.5 * math.erfc(
        (n / 2 * at(mean, -11.5) - k / 2 + 0.5 * math.log2(n / 2))
        / math.sqrt(n * at(variance, -11.5))
    )
    assert at(block_error(scheme, n, k / 2, 1.0), -10.5) == pytest.approx(
        1 - (1 - half) ** 2, rel=1e-2
    )


# SNRs at which a code block of 1000 bits is lost with probability 0.1, measured by simulation of
# NR's LDPC codes in white noise, from the tables of Sionna 2.2 (PDSCH, tables 1 and 2).
MEASURED = {
    "64qam": {4: -2.06, 9: 2.76, 12: 4.70, 16: 8.19, 20: 11.55, 24: 15.25, 28: 19.25},
    "256qam": {3: 0.05, 8: 6.69, 15: 13.52, 22: 20.20, 26: 24.15},
}


@pytest.mark.parametrize("table", MEASURED)
def test_ten_percent_error_is_within_a_decibel_of_measured_codes(table: str) -> None:
    gap_db = NrConfig().gap_db
    for index, snr_db in MEASURED[table].items():
        scheme = read_schemes(table)[index]
        error = block_error(scheme, 1000 / scheme.efficiency, 8448, gap_db)
        assert needed_db(error) == pytest.approx(snr_db, abs=1.0), index


@pytest.mark.parametrize(("table", "number"), [("64qam", 1), ("256qam", 2)])
def test_sionnas_tables(table: str, number: int) -> None:
    """The tables `PHYAbstraction` interpolates, every scheme and block of 1000 bits or more."""
    found = importlib.util.find_spec("sionna")
    if found is None or found.origin is None:
        pytest.skip("needs the extra sionna")
    file = Path(found.origin).parent / "sys" / "bler_tables" / f"PDSCH_table{number}.json"
    measured = json.loads(file.read_text())["category"]["1"]["index"][str(number)]["MCS"]
    checked = 0
    for index, curves in measured.items():
        scheme = read_schemes(table)[int(index)]
        snr_db = np.array(curves.get("SNR_db", curves.get("EbNo_db")))
        for bits, one in curves["CBS"].items():
            error = np.maximum(one["BLER"], 1e-5)
            if int(bits) < 1000 or error[-1] > 0.05:
                continue
            theirs = np.interp(-math.log(0.1), -np.log(error), snr_db)
            ours = block_error(scheme, int(bits) / scheme.efficiency, 8448, NrConfig().gap_db)
            assert needed_db(ours) == pytest.approx(theirs, abs=1.0), (index, bits)
            checked += 1
    assert checked > 30


def test_rates_end_where_the_schemes_do() -> None:
    """64QAM at 948/1024 from about 19 dB on, 17 % below Shannon at 20 dB and 33 % at 25 dB."""
    link = nr_link()
    snr = 10 ** (torch.tensor([18.5, 20.0, 25.0, 40.0]) / 10)
    found = link.efficiency(snr)
    assert found[1:].tolist() == pytest.approx([5.5547] * 3, rel=1e-3)
    assert 4.9 < float(found[0]) < 5.45
    lacks = 1 - found / torch.log2(1 + snr)
    assert lacks[1:3].tolist() == pytest.approx([0.17, 0.33], abs=0.01)
    everywhere = link.efficiency(10 ** (torch.linspace(-40, 60, 3001) / 10))
    assert bool((everywhere.diff() >= 0).all())
    assert float(everywhere[0]) == 0.0
    half = nr_link("radio.link_overhead=0.5").efficiency(torch.tensor(1e4))
    assert float(half) == pytest.approx(5.5547 / 2, rel=1e-3)


# --- HARQ -------------------------------------------------------------------------------------


def ratios(slots: int, episodes: int = 1, seed: int = 0, mean_db: float = 8.0) -> Tensor:
    """SINRs that fade: [slot, episode, 1]; in some slots a client is silent."""
    keys = fold(seed, torch.arange(slots))
    fading = -uniform(fold(keys, 1), (1,)).log() * 10 ** (mean_db / 10)
    silent = uniform(fold(keys, 2), (1,)) < 0.15
    return torch.where(silent, 0.0, fading)[:, None].expand(-1, episodes, -1)


def plain_harq(nr: NrConfig, ratio: list[float], chance: list[float]) -> list[float]:
    """bit/s/Hz of every slot: one client, one block at a time, written as a story."""
    errors, from_db, _ = tables(nr, SLOT_SYMBOLS)
    schemes, offset = read_schemes(nr.table), 0.0
    block: tuple[int, float, float, int] | None = None  # scheme, SINR so far, luck, copies
    found, known = [], 1e-30

    def error(scheme: int, snr: float) -> float:
        place = round((10 * math.log10(max(snr, 1e-30)) - grid_db()[0]) / 0.02)
        return float(errors[scheme][min(max(place, 0), errors.shape[1] - 1)])

    for snr, drawn in zip(ratio, chance, strict=True):
        if snr > 0:
            wanted = 10 * math.log10(known) + offset
            picked = sum(wanted >= start for start in from_db)
            scheme, heard, luck, copies = block or (picked, 0.0, drawn, 0)
            heard, copies = heard + snr, copies + 1
            lost = luck < error(scheme, heard)
            found.append(0.0 if lost else schemes[scheme].efficiency)
            again = lost and copies <= nr.retransmissions
            block = (scheme, heard, luck, copies) if again else None
            target = nr.target_error
            offset += nr.step_db * (target - error(picked, snr)) / (1 - target)
        else:
            found.append(0.0)
        known = snr or 1e-30
    return found


@pytest.mark.parametrize(
    "changes",
    [[], ["radio.nr.retransmissions=0"], ["radio.nr.retransmissions=1", "radio.nr.step_db=2"]],
)
def test_the_process_in_plain_python(changes: list[str]) -> None:
    """Slot by slot the same bits; rounding to the grid may differ where an SINR lies between."""
    slots, link = 400, nr_link(*changes)
    nr = load_config("paper", ["radio.link=nr", *changes]).radio.nr
    ratio, chance = ratios(slots), uniform(torch.tensor(7), (slots, 1, 1))
    state, found, known = link.initial.repeat(1, 1, 1), [], torch.full((1, 1), 1e-30)
    for now, luck in zip(ratio, chance, strict=True):
        state, rate = link.send(state, now, known, luck)
        found.append(float(rate) / 5e6)
        known = now
    wanted = plain_harq(nr, ratio[:, 0, 0].tolist(), chance[:, 0, 0].tolist())
    same = np.isclose(found, wanted, rtol=1e-4)
    assert same[:100].all()
    assert same.mean() > 0.97
    assert len(set(np.round(found, 3))) > 8  # many schemes


def test_expected_goodput_is_the_mean_of_drawn_rounds() -> None:
    """10,000 rounds drawn: within three standard errors, slot for slot and in all."""
    slots, episodes = 60, 10_000
    ratio, chance = ratios(slots, episodes), uniform(torch.arange(episodes), (slots, 1))
    rates = {}
    for feedback in ("sampled", "expected"):
        link = nr_link(f"radio.nr.feedback={feedback}")
        rows = episodes if feedback == "sampled" else 1
        state, found = link.initial.repeat(rows, 1, 1), []
        for slot in range(slots):
            known = ratio[max(slot - 1, 0), :rows]
            state, rate = link.send(state, ratio[slot, :rows], known, chance[:rows, slot])
            found.append(rate[:, 0].double() / 5e6)
        rates[feedback] = torch.stack(found, 1)  # [round, slot]
    drawn, expected = rates["sampled"], rates["expected"][0]
    round_error = float(drawn.sum(1).std()) / math.sqrt(episodes)
    assert abs(float(drawn.sum(1).mean() - expected.sum())) < 3 * round_error
    slot_error = drawn.std(0) / math.sqrt(episodes) + 1e-4
    assert float(((drawn.mean(0) - expected).abs() / slot_error).max()) < 4.5
    assert float(drawn.sum(1).std()) > 0.3  # there is something to draw


def test_the_outer_loop_reaches_its_target() -> None:
    """With an SINR that is a slot old and fades independently, about one in ten first
    transmissions fails once the loop has settled: it moves by step (target - error)/(1 - target),
    and in the end it does not move."""
    slots, episodes, step = 400, 50, 0.3
    fading = -uniform(torch.arange(episodes), (slots, 1)).log() * 10**1.5
    link = nr_link("radio.nr.feedback=expected", f"radio.nr.step_db={step}")
    state, errors = link.initial.repeat(episodes, 1, 1), []
    for slot in range(1, slots):
        before = state[..., 0]
        state, _ = link.send(state, fading[:, slot], fading[:, slot - 1], fading[:, slot])
        moved_db = (state[..., 0] - before) * 10 / math.log(10)
        errors.append(0.1 - moved_db * 0.9 / step)
    assert float(torch.stack(errors[:20]).mean()) > 0.2
    assert float(torch.stack(errors[200:]).mean()) == pytest.approx(0.1, abs=0.02)


def test_an_episode_alone_and_in_a_batch(make_round: Any) -> None:
    """The same bits, whatever else is played."""
    scenario, round_ = make_round(12.0, 8.0, 5, overrides=("radio.link=nr", "radio.slots=40"))

    def played(some: Any) -> Tensor:
        progress = start_round(scenario, len(some.alpha))
        band = torch.arange(scenario.clients).expand(len(some.alpha), -1) % scenario.bands
        for slot in range(scenario.slots):
            air = slot_air(scenario, some, slot)
            progress, _ = play_slot(scenario, progress, air, Action(band, torch.zeros_like(band)))
        return torch.cat([progress.remaining_bits[..., None], progress.link_state], -1)

    alone = played(type(round_)(*(part[2:3] for part in round_)))
    assert torch.equal(played(round_)[2:3], alone)


def test_a_planned_rate_is_what_the_link_carries() -> None:
    """Over fading that the table has not seen: 40 client-rounds, whose mean rates spread by 4 %."""
    config = load_config("paper", ["radio.link=nr", "cell.mobility=ring", "learning.clients=4"])
    scenario = scenario_from_config(config, 1e12)
    walk = Cell(config.cell, config.radio, 4).trajectory([5], rounds=1)
    fading = Channel(config.radio, config.cell, 4).small_scale_gain([5], 0, range(10), walk)[0]
    for snr_db in (5.0, 15.0, 22.0):
        snr = torch.full((10, 4), 10 ** (snr_db / 10))
        alpha = snr * scenario.noise_w / scenario.full_power_w
        nothing = torch.zeros(10)
        chance = draw_chance(scenario, torch.arange(10))
        round_ = plain_round(alpha, fading, torch.eye(4).expand(10, 4, 4), nothing, alpha, chance)
        progress, band = start_round(scenario, 10), torch.arange(4).expand(10, 4)
        for slot in range(scenario.slots):
            action = Action((band + slot) % 4, torch.zeros_like(band))
            progress, _ = play_slot(scenario, progress, slot_air(scenario, round_, slot), action)
        sent = (1e12 - progress.remaining_bits).mean() / (scenario.slots * 1e4)
        assert float(planned_rate(scenario, snr[:1, :1])) == pytest.approx(float(sent), rel=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("feedback", ["sampled", "expected"])
def test_a_gpu_carries_the_same(feedback: str) -> None:
    """Up to SINRs between two places of the table, which rounding may move."""
    radio = load_config("paper", ["radio.link=nr", f"radio.nr.feedback={feedback}"]).radio
    ratio, chance = ratios(100, 20), uniform(torch.arange(20), (100, 1))
    found = []
    for device in ("cpu", "cuda"):
        link = load_link(radio, device)
        state, rates = link.initial.repeat(20, 1, 1), []
        for slot in range(100):
            now, known = (ratio[max(s, 0)].to(device) for s in (slot, slot - 1))
            state, rate = link.send(state, now, known, chance[:, slot].to(device))
            rates.append(rate.cpu())
        found.append(torch.stack(rates))
    assert torch.isclose(*found, rtol=1e-3).float().mean() > 0.97


def sent_by_recorded_steps(feedback: str, device: torch.device) -> Tensor:
    """Bits of 20 episodes in 60 slots, as trainings play them on a GPU."""
    changes = ["radio.link=nr", f"radio.nr.feedback={feedback}", "radio.slots=60"]
    scenario = scenario_from_config(load_config("paper", changes), 1e9, device)
    keys = torch.arange(20, device=device)
    fading = -uniform(keys, (60, scenario.clients, scenario.bands)).log()
    alpha = torch.full_like(fading[:, 0, :, 0], 30 * scenario.noise_w / scenario.full_power_w)
    chance = draw_chance(scenario, fold(keys, 1))
    inner = torch.eye(scenario.clients, device=device).expand(20, -1, -1)
    round_ = plain_round(alpha, fading, inner, alpha[:, 0], alpha, chance)
    band = torch.arange(scenario.clients, device=device).expand(20, -1) % scenario.bands
    action = Action(band, torch.full_like(band, scenario.full_level))
    progress, slot = start_round(scenario, 20), torch.zeros(1, dtype=torch.int64, device=device)

    def step() -> None:
        after, _ = play_slot(scenario, progress, slot_air(scenario, round_, slot), action)
        for place, value in zip(progress, after, strict=True):
            place.copy_(value)
        slot.add_(1)

    play = record(fuse(step, device), [*progress, slot], device)
    for _ in range(60):
        play()
    return 1e9 - progress.remaining_bits.cpu()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("feedback", ["sampled", "expected"])
def test_a_recorded_step_on_a_gpu(feedback: str) -> None:
    """Compiled and recorded: the bits that the CPU counts, up to SINRs between two places."""
    here, there = (sent_by_recorded_steps(feedback, torch.device(d)) for d in ("cpu", "cuda"))
    assert float(here.min()) > 0
    assert float(((here - there).abs() / here).mean()) < 0.01


# --- bad input --------------------------------------------------------------------------------

SCHEMES = [[0, 2, 120], [1, 2, 500], [2, 4, 600]]
GOOD = {"snr_db": [-5.0, 5.0, 15.0], "block_error": [[1, 0, 0], [1, 0.5, 0], [1, 1, 0]]}
BAD_TABLES = [
    ({"schemes": [SCHEMES[0], SCHEMES[2]]}, "has scheme 2 where 1 is expected: .* without holes"),
    ({"schemes": []}, "has no list 'schemes'"),
    ([1, 2], "has no list 'schemes'"),
    ({"schemes": [[0, 3, 120]]}, "scheme 0 has 3 and 120, which must be 2, 4, 6, 8 or 10 bits"),
    ({"schemes": [[0, 2, 0]]}, "scheme 0 has 2 and 0"),
    ({"schemes": [[0, 2, 1024]]}, "a rate between 0 and 1024"),
    ({"schemes": [[0, 2]]}, r"scheme 0 is \[0, 2\], which must be \[index, bits_per_symbol"),
    ({"schemes": [[0, 2, math.nan]]}, "scheme 0 is"),
]
BAD_CURVES = [
    ({"snr_db": [0.0]}, "must hold lists of numbers 'snr_db'"),
    (GOOD | {"block_error": [[1, 0, 0]]}, r"'block_error' of shape \[1, 3\]: .*3 schemes"),
    (GOOD | {"snr_db": [1.0, 1.0, 2.0]}, "'snr_db' must grow"),
    (GOOD | {"block_error": [[1, 0, 0.5]] * 3}, "fall as the SNR grows"),
    (GOOD | {"block_error": [[2, 0, 0]] * 3}, "between 0 and 1"),
    (GOOD | {"block_error": [[math.nan, 0, 0]] * 3}, "between 0 and 1"),
]


@pytest.mark.parametrize(("content", "sentence"), BAD_TABLES)
def test_a_table_of_schemes_that_is_none(content: Any, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        nr_link(f"radio.nr.table={tmp_path / 'own.json'}")


@pytest.mark.parametrize(("content", "sentence"), BAD_CURVES)
def test_curves_that_are_none(content: Any, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({"schemes": SCHEMES}))
    (tmp_path / "curves.json").write_text(json.dumps(content))
    words = [
        f"radio.nr.table={tmp_path / 'own.json'}",
        f"radio.nr.curves={tmp_path / 'curves.json'}",
    ]
    with pytest.raises(UserError, match=sentence):
        nr_link(*words)


def test_measured_curves_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({"schemes": SCHEMES}))
    (tmp_path / "good.json").write_text(json.dumps(GOOD))
    words = [f"radio.nr.table={tmp_path / 'own.json'}", f"radio.nr.curves={tmp_path / 'good.json'}"]
    link = nr_link(*words, "radio.nr.retransmissions=0", "radio.nr.target_error=0.6")
    snr = 10 ** (torch.tensor([-6.0, 0.0, 5.0, 20.0]) / 10)
    wanted = [0.0, 0.5 * 240 / 1024, 0.5 * 1000 / 1024, 2400 / 1024]
    assert link.efficiency(snr).tolist() == pytest.approx(wanted, abs=0.003)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "radio.nr.block_bits=0",
            "radio.nr.block_bits = 0 is not allowed: it must be at least 24.",
        ),
        ("radio.nr.target_error=0", "radio.nr.target_error = 0 is not allowed: it must be greater"),
        ("radio.nr.target_error=1", "radio.nr.target_error = 1 is not allowed: it must be less th"),
        ("radio.nr.retransmissions=-1", "radio.nr.retransmissions = -1 is not allowed: it must"),
        ("radio.nr.gap_db=-1", "radio.nr.gap_db = -1 is not allowed: it must be at least 0."),
        ("radio.nr.table=qpsk", "radio.nr.table = 'qpsk' is not allowed: it must be one of 64qam"),
        ("radio.nr.table=no.json", "'no.json' cannot be read"),
        ("radio.nr.curves=no.json", "'no.json' cannot be read"),
        ("radio.link=lte", "radio.link = 'lte' is not allowed: it must be one of shannon, capped"),
        ("radio.link_overhead=1", "radio.link_overhead = 1 is not allowed: it must be less than 1"),
        ("radio.link_delay_slots=-1", "radio.link_delay_slots = -1 is not allowed: it must be at"),
        ("radio.capped.ceiling_bps_hz=0", "radio.capped.ceiling_bps_hz = 0 is not allowed: it mu"),
    ],
)
def test_bad_numbers_end_in_a_sentence(change: str, sentence: str, fedfade, tmp_path: Path) -> None:
    words = ("--set", "radio.link=nr", "--set", change, "--out", tmp_path / "run")
    answer = fedfade("compare", "small-cell", "--seeds", 1, "--rounds", 1, *words)
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.err.count("\n") <= 2, answer.err
