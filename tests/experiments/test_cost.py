"""Seconds and joules of whole comparisons: the books, resuming, verifying, older files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfade.config import Config, changed, load_config
from fedfade.experiments import RunFolder, Uplink, compare_many, compared_policy, read_rows
from fedfade.experiments.figures import accuracy_figure
from fedfade.experiments.metrics import Row, columns, rows_text
from fedfade.uplink import client_speeds, ready_slots
from tests.conftest import TINY

CPU = torch.device("cpu")
NAMES = ["random", "block-fading-schedule", "wrap-around-age", "perfect", "genie"]
LATE = {"cost.speed_spread": 0.03}  # of a second, in rounds of 40 ms
EARLY = {"run.deadline": "adaptive", "run.deadline_clients": 2}


@pytest.fixture
def short(tiny: Config) -> Config:
    """Payloads that some deliver in time."""
    return changed(tiny, {"learning.payload_bits": 1e5, "allocation.policies": NAMES})


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


@pytest.mark.parametrize("changes", [{}, LATE | EARLY])
def test_the_books_balance(changes: dict[str, object], short: Config, tmp_path: Path) -> None:
    """The joules of a row are those of every slot and client, added up again from powers."""
    config = changed(short, changes)
    (rows,) = compare_many([config], [tmp_path], CPU)
    inner = torch.from_numpy(np.load(tmp_path / "gradients.npz")["inner"])
    uplink = Uplink(config, 1e5, CPU)
    scenario, cost = uplink.scenario, config.cost
    down_s = 1e5 / cost.downlink_bps
    for policy in NAMES[:2]:  # which look at no earlier round
        place = NAMES.index(policy)
        for number in range(config.run.rounds):
            gram = inner[place :: len(NAMES) - 1, number]
            history = uplink.play(compared_policy(config, policy), number, gram, True).history
            for episode, seed in enumerate(uplink.seeds):
                row = next(r for r in rows if r[:3] == (seed, policy, number))
                each = numbers(row.client_joules)
                power = scenario.power_w[history.level[:, episode]].double()  # [slot, client]
                slots = (power / cost.amplifier_efficiency + cost.circuit_w * (power > 0)).sum()
                others = len(each) * cost.circuit_w * down_s
                trained = _trained_seconds(config, seed, row.seconds - down_s)
                total = float(slots * scenario.slot_s) + others + cost.compute_w * trained
                # Powers are summed in float32 and written with seven digits.
                assert row.joules == pytest.approx(total, rel=1e-6)
                assert sum(each) == pytest.approx(row.joules, rel=1e-6)
                assert max(numbers(row.client_seconds)) == pytest.approx(row.seconds, rel=1e-6)
    assert any(row.delivered for row in rows if row.policy in NAMES[:3])
    for row in rows:
        if row.policy in ("perfect", "genie"):
            assert math.isnan(row.seconds)
            assert math.isnan(row.joules)
            assert row.client_joules == row.client_seconds == ""


def _trained_seconds(config: Config, seed: int, until_s: float) -> float:
    speeds = client_speeds(config.cost, [seed], config.learning.clients)[0]
    work = config.learning.local_work * config.learning.batch_size
    return sum(min(work / float(speed), until_s) for speed in speeds)


def test_what_costs_changes_nothing_else(short: Config, tmp_path: Path) -> None:
    """Prices, an equal speed for all and the clock of a fixed deadline move no other number."""
    dear = {"cost.compute_w": 9.0, "cost.samples_per_s": 10.0, "cost.downlink_bps": 1e3}
    configs = [short, changed(short, dear), changed(short, LATE)]  # side by side, late ones too
    plain, other, late = compare_many(configs, [tmp_path / name for name in "abc"], CPU)
    assert str(late) != str(plain)
    blank = {"seconds": 0.0, "joules": 0.0, "client_seconds": "", "client_joules": ""}
    assert [r._replace(**blank) for r in plain] != plain
    assert str([r._replace(**blank) for r in plain]) == str([r._replace(**blank) for r in other])
    sending = [(a, b) for a, b in zip(plain, other, strict=True) if a.policy == "random"]
    assert all(b.seconds > a.seconds and b.joules > a.joules for a, b in sending)


def test_an_interrupted_run_continues_to_the_same_bill(short: Config, tmp_path: Path) -> None:
    config = changed(short, LATE | EARLY)
    (whole,) = compare_many([config], [tmp_path / "whole"], CPU)

    def stop(done: int, doing: str) -> None:
        if done == 1 and doing == "evaluation":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_many([config], [tmp_path / "broken"], CPU, stop)
    (again,) = compare_many([config], [tmp_path / "broken"], CPU)
    assert str(again) == str(whole)


def test_verify_knows_late_clients_and_an_older_file(short, fedfade, tmp_path: Path) -> None:
    speeds = tmp_path / "speeds.txt"
    speeds.write_text("150 149 140 15")
    config = changed(short, EARLY | {"cost.speeds": str(speeds)})
    out = tmp_path / "run"
    (rows,) = compare_many([config], [out], CPU)
    assert fedfade("verify", out).code == 0
    assert fedfade("replay", out, "--policy", "random", "--out", tmp_path / "r.png").code == 0
    speeds.write_text("150 149 140 16")
    answer = fedfade("verify", out)
    assert answer.code == 2
    assert f"'{speeds}' has changed since the run" in answer.err
    speeds.write_text("150 149 140 15")
    # A file of a version that knew no costs: they are not missed.
    without = {"seconds": math.nan, "joules": math.nan, "client_seconds": "", "client_joules": ""}
    folder = RunFolder(out, config, CPU)
    folder.metrics.write_text(rows_text(row._replace(**without) for row in rows))
    folder.finish(folder.record["models"])
    assert "seconds" not in folder.metrics.read_text().partition("\n")[0]
    answer = fedfade("verify", out)
    assert answer.code == 0, answer.out


def test_columns_that_hold_nothing_are_left_out(tmp_path: Path) -> None:
    blank = dict.fromkeys(Row._fields, 0.5) | {"seed": 0, "policy": "random", "round": 0}
    blank |= {"delivered_clients": "0", "not_finite": 0, "not_finite_clients": ""}
    row = Row(**blank | {"client_seconds": "1 2", "client_joules": "3 4"})  # type: ignore[arg-type]
    for some in (row, row._replace(seconds=math.nan), row._replace(accuracy_averaged=math.nan)):
        (tmp_path / "m.csv").write_text(rows_text([some]))
        assert str(read_rows(tmp_path / "m.csv")) == str([some])
    assert "seconds" not in columns([row._replace(seconds=math.nan)])


def test_accuracy_against_what_it_cost(short: Config, tmp_path: Path) -> None:
    (rows,) = compare_many([short], [tmp_path], CPU)
    for what in ("seconds", "joules"):
        (axes,) = accuracy_figure(rows, what).axes
        lines = {line.get_label(): line.get_xdata() for line in axes.lines}
        assert list(lines) == ["random", "block-fading-schedule", "wrap-around-age"]
        total = sum(getattr(r, what) for r in rows if r.policy == "random")
        assert lines["random"][-1] == pytest.approx(total / short.run.seeds)


def test_a_preset_with_speeds_that_do_not_fit_is_one_sentence(fedfade, tmp_path: Path) -> None:
    (tmp_path / "speeds.txt").write_text("1 2 nan 4")
    words = [word for change in TINY for word in ("--set", change)]
    words += ["--set", f'cost.speeds="{tmp_path / "speeds.txt"}"', "--out", tmp_path / "run"]
    answer = fedfade("compare", "paper", "--policies", "random", *words)
    assert answer.code == 2
    assert "that of client 2 is 'nan'." in answer.err
    assert not (tmp_path / "run" / "run.json").exists()
    spread = fedfade("compare", "paper", *words, "--set", "cost.speed_spread=1")
    assert "cost.speed_spread has no effect while cost.speeds is" in spread.err


def test_a_late_client_of_epochs_is_late_in_training_too() -> None:
    """No data set is counted for steps; for epochs it is."""
    steps = load_config("small-cell", ["cost.speed_spread=0.5"])
    epochs = changed(steps, {"learning.local_unit": "epoch"})
    few, many = (ready_slots(config, range(50)).sum() for config in (steps, epochs))
    assert few < many  # 3 x 50 samples, and 3 x 350
