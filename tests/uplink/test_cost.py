"""Seconds and joules: device speeds, who is late, and books that balance."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.uplink.cost import Bill, client_speeds, local_samples, ready_slots

SPREAD = "cost.speed_spread=0.5"


def config(*overrides: str) -> Config:
    return load_config("paper", list(overrides))


def test_equal_speeds_make_nobody_late() -> None:
    assert ready_slots(config(), [0, 1]).shape == (2, 0)
    assert (client_speeds(config().cost, [0, 1], 4) == 150.0).all()


def test_a_spread_is_lognormal_and_keyed_by_seed_and_client() -> None:
    cost = config(SPREAD).cost
    speeds = client_speeds(cost, range(2000), 10)
    logarithm = (speeds / cost.samples_per_s).log()
    # 20,000 draws: standard errors 0.0035 of the mean, 0.0025 of the deviation; five of each.
    assert abs(float(logarithm.mean())) < 0.018
    assert abs(float(logarithm.std()) - 0.5) < 0.013
    assert torch.equal(client_speeds(cost, [7], 3), speeds[7:8, :3])
    assert not torch.equal(speeds[0], speeds[1])


def test_who_is_late_by_hand(tmp_path: Path) -> None:
    """150 samples take 1 s, 1.004 s, 1.0045 s and 10 s; slots of 2 ms."""
    times = [1.0, 1.004, 1.0045, 10.0]
    (tmp_path / "speeds.txt").write_text(", ".join(str(150 / t) for t in times))
    four = config("learning.clients=4", f'cost.speeds="{tmp_path / "speeds.txt"}"')
    assert ready_slots(four, [0, 5]).tolist() == [[0, 2, 3, 250]] * 2


def test_epochs_are_passes_over_whole_batches() -> None:
    learning = config("learning.local_unit=epoch", "learning.local_work=2").learning
    assert local_samples(learning, dealt=130) == 2 * 100  # batches of 50
    assert local_samples(learning, dealt=20) == 2 * 20  # fewer than a batch set its size
    assert local_samples(config().learning) == 3 * 50
    digits = config("learning.local_unit=epoch", "learning.data=digits").learning
    assert local_samples(digits) == 3 * 100  # 1,437 samples dealt to 10


def test_a_bill_by_hand() -> None:
    """Two clients at 150 samples/s, 1 Mbit at 10 Mbit/s, 50 slots: 0.1 + 1 + 0.1 s."""
    setting = config(
        "learning.clients=2", "learning.payload_bits=1e6", "cost.downlink_bps=1e7",
        "cost.amplifier_efficiency=0.5", "cost.circuit_w=0.1", "cost.compute_w=2",
    )  # fmt: skip
    bill = Bill(setting, [3], model_values=0)
    slots, finish = torch.tensor(50.0), torch.tensor([20.0, 250.0])
    spent = bill.spent(3, slots, finish, torch.tensor([20.0, 40.0]), torch.tensor([4.0, 1.0]))
    assert float(bill.seconds(3, slots)) == pytest.approx(1.2)
    assert spent.seconds.tolist() == pytest.approx([1.14, 1.2])
    assert spent.received_j.tolist() == pytest.approx([0.01, 0.01])
    assert spent.trained_j.tolist() == pytest.approx([2.0, 2.0])
    # Amplifier 4 W / 0.5 and 1 W / 0.5 for a slot of 2 ms, circuits 0.1 W for 20 and 40 slots.
    assert spent.sent_j.tolist() == pytest.approx([0.016 + 0.004, 0.004 + 0.008])
    assert spent.joules.tolist() == pytest.approx([2.03, 2.022])


def test_who_still_trains_when_the_round_is_over_stops(tmp_path: Path) -> None:
    (tmp_path / "speeds.txt").write_text("150\n15")
    setting = config("learning.clients=2", f'cost.speeds="{tmp_path / "speeds.txt"}"')
    bill = Bill(setting, [0], model_values=0)
    nothing = torch.zeros(2)
    spent = bill.spent(0, torch.tensor(250.0), torch.full((2,), 250.0), nothing, nothing)
    assert spent.trained_j.tolist() == pytest.approx([3.0 * 1.0, 3.0 * 1.5])  # not 10 s
    assert spent.seconds.tolist() == pytest.approx([bill.downlink_s + 1.5] * 2)


def test_scaffold_sends_a_control_beside_the_model() -> None:
    plain, scaffold = (config(f"learning.server={rule}") for rule in ("mean", "scaffold"))
    assert Bill(scaffold, [0], 0).downlink_s == 2 * Bill(plain, [0], 0).downlink_s
    auto = Bill(config("learning.payload_bits=auto"), [0], model_values=1000)
    assert auto.downlink_s == pytest.approx(32_000 / 1e8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1 2 3", "learning.clients = 4 numbers, not of 3."),
        ("1 2 3 4 5", "not of 5."),
        ("", "not of 0."),
        ("1 2 nan 4", "that of client 2 is 'nan'."),
        ("1 -2 3 4", "that of client 1 is '-2'."),
        ("0,1,2,3", "between 1e-06 and 1e+15, and that of client 0 is '0'."),
        ("1 2 3 inf", "that of client 3 is 'inf'."),
        ("1 2 3 fast", "that of client 3 is 'fast'."),
        ("1 2 3 \x1b[31m", "that of client 3 is"),
        (b"\xff\xfe1 2 3 4", "cost.speeds"),
        ("1 " * 100_000, "is larger than"),
    ],
)
def test_a_bad_file_of_speeds_is_one_sentence(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    path = tmp_path / "speeds.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        ready_slots(config("learning.clients=4", f'cost.speeds="{path}"'), [0])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "a pipe or a device"), ("", "directory"), ("no", "no such file")):
        with pytest.raises(UserError, match=said):
            ready_slots(config(f'cost.speeds="{tmp_path / name}"'), [0])
