"""The rounds agents are trained on: restarts, layouts, spread gains, several trainings."""

import pytest
import torch

from fedfade.config import Config, load_config
from fedfade.experiments.uploads import Uplink
from fedfade.radio import Cell, noise_w
from fedfade.uplink import (
    ManyRounds,
    Rounds,
    gradient_source,
    layout_seeds,
    mean_snr,
    noise_rise_db,
)
from fedfade.uplink.rounds import cycle_seed

ROUNDS = 2  # of a cycle


def small(*changes: str) -> Config:
    common = ["radio.slots=3", f"run.rounds={ROUNDS}", "cell.mobility=reflect"]
    return load_config("small-cell", [*common, *changes])


def gains_db(config: Config, seed: int, number: int) -> torch.Tensor:
    """Large-scale gains of a seed's own walk: [client]."""
    cell = Cell(config.cell, config.radio, config.learning.clients)
    return cell.trajectory([seed], ROUNDS).at(number).gain_db[0]


@pytest.mark.parametrize("mobility", ["reflect", "redraw", "fixed", "ring"])
@pytest.mark.parametrize("repeat", [False, True])
def test_a_restart_may_be_the_same(mobility: str, repeat: bool) -> None:
    """Layout, walk and data are those of the run's own seed in every cycle; fading is new, or the
    same where it repeats."""
    changes = [f"run.repeat_fading={repeat}", f"cell.mobility={mobility}", "cell.ring_spread_db=2"]
    config = small("run.restart=same", "run.seed=7", *changes)
    source = gradient_source(config)
    rounds = Rounds(config, source, 20, [7])
    cycles = [[rounds.round(ROUNDS * cycle + n) for n in range(ROUNDS)] for cycle in range(3)]
    for number in range(ROUNDS):
        first, *later = (cycle[number] for cycle in cycles)
        torch.testing.assert_close(first.alpha[0].log10() * 10, gains_db(config, 7, number))
        assert torch.equal(first.inner[0], source.inner([7], number)[0])
        for again in later:
            assert torch.equal(again.alpha, first.alpha)
            assert torch.equal(again.inner, first.inner)
            assert torch.equal(again.fading, first.fading) == repeat
            assert torch.equal(again.fading[0], again.fading[1]) == repeat
    walked = not torch.equal(cycles[0][0].alpha, cycles[0][1].alpha)
    assert walked == (mobility != "fixed")
    assert not torch.equal(cycles[0][0].inner, cycles[0][1].inner)


def test_rounds_may_be_those_of_a_comparison() -> None:
    """With `restart: same` and `repeat_fading` a seed plays what `fedfade compare` plays with it,
    bit by bit; without, neither its walk nor its fading."""
    same = ["run.restart=same", "run.repeat_fading=true"]
    for changes in (same, []):
        config = small("run.seed=7", *changes)
        rounds = Rounds(config, gradient_source(config), 20, [7])
        played = Uplink(config, rounds.gradients.payload_bits, torch.device("cpu"))
        for number in range(ROUNDS):
            ours, theirs = rounds.round(number), played.round(number)
            alike = [torch.equal(ours.alpha[:1], theirs.alpha[:1])]
            alike.append(torch.equal(ours.fading[:1], theirs.fading[:1]))
            assert alike == [bool(changes)] * 2


def test_a_new_start_is_that_of_another_seed() -> None:
    config = small("run.seed=7")
    source = gradient_source(config)
    rounds = Rounds(config, source, 20, [7])
    for cycle in range(3):
        seed, found = cycle_seed(7, cycle), rounds.round(ROUNDS * cycle)
        assert seed != 7
        torch.testing.assert_close(found.alpha[0].log10() * 10, gains_db(config, seed, 0))
        assert torch.equal(found.inner[0], source.inner([seed], 0)[0])


@pytest.mark.parametrize("restart", ["new", "same"])
def test_gains_are_spread_with_the_layout(restart: str) -> None:
    """All clients of a layout by the same dB in all its rounds, uniform over layouts, one shift for
    ever where the layout is one. Fading and gradients stay what they were."""
    seeds = range(300)
    each = [small(f"run.restart={restart}", f"qmix.gain_spread_db={db}") for db in (0, 6)]
    plain, spread = (Rounds(config, gradient_source(config), 1, seeds) for config in each)
    shifts = []
    for cycle in range(2):
        by_round = []
        for number in range(ROUNDS):
            batch = 20 * (ROUNDS * cycle + number)
            one, other = plain.round(batch), spread.round(batch)
            assert torch.equal(one.fading, other.fading)
            assert torch.equal(one.inner, other.inner)
            by_round.append(10 * (other.alpha / one.alpha).log10())  # [task, client]
        shift = torch.stack(by_round)  # [round, task, client]
        torch.testing.assert_close(shift, shift[:1, :, :1].expand_as(shift), atol=1e-4, rtol=0)
        shifts.append(shift[0, :, 0])
    first, second = shifts
    assert torch.allclose(first, second, atol=1e-4) == (restart == "same")
    assert float(first.abs().max()) <= 6.0
    # uniform: mean 0, deviation 12 / sqrt(12); over 300, five standard errors
    assert float(first.mean()) == pytest.approx(0.0, abs=1.0)
    assert float(first.std()) == pytest.approx(3.46, abs=0.5)


@pytest.mark.parametrize(
    "air", [[], ["radio.receive_antennas=2", "cell.interference_cells=3", "radio.source=gamma"]]
)
def test_layouts_are_tasks_side_by_side(air: list[str]) -> None:
    """Episodes are dealt in blocks to tasks with seeds of their own, the first with the run's;
    other runs have others."""
    config = small("qmix.layouts=4", "run.seed=3", *air)
    other = small("qmix.layouts=4", "run.seed=8", *air)
    seeds = [layout_seeds(seed, 4) for seed in (3, 8)]
    assert [own[0] for own in seeds] == [3, 8]
    assert len({*seeds[0], *seeds[1]}) == 8
    assert layout_seeds(3, 2) == seeds[0][:2]
    many = ManyRounds([config, other])
    for batch in (0, 1, 4, 9):  # 4 batches of 5 episodes are a round of a task
        found = many.round(batch)
        for place, task in enumerate([*seeds[0], *seeds[1]]):
            alone = Rounds(config, gradient_source(config), 5, [task])
            for ours, theirs in zip(found, alone.round(batch), strict=True):
                torch.testing.assert_close(ours[5 * place : 5 * place + 5], theirs)
        assert int(found.number[0]) == batch // 4 % ROUNDS


@pytest.mark.parametrize("cells", [0, 6])
def test_a_run_has_the_snr_of_its_own_link(cells: int) -> None:
    """Gains are told in units of the first run's noise; what is sent at is the ratio."""
    links = [
        [],
        ["radio.noise_figure_db=2", "radio.antenna_gain_dbi=8"],
        ["radio.noise_density_dbm_hz=-160", "radio.client_antenna_gain_dbi=3", "run.seed=4"],
    ]
    configs = [small(*changes, f"cell.interference_cells={cells}") for changes in links]
    many = ManyRounds(configs)
    for batch in range(3):
        snr = mean_snr(many.scenario, many.round(batch)).split(20)
        for config, found in zip(configs, snr, strict=True):
            rounds = Rounds(config, gradient_source(config), 20, [config.run.seed])
            alone = rounds.round(batch)
            rise = 10 ** (noise_rise_db(rounds.scenario, alone)[:, None] / 10)
            assert bool((rise > 1).all()) == (cells > 0)
            wanted = alone.alpha * rounds.scenario.full_power_w / (noise_w(config.radio) * rise)
            torch.testing.assert_close(found, wanted)
