"""`fedfade verify`: the same numbers, or which of them are not."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from fedfade.agents import train
from fedfade.agents.checkpoint import load_checkpoint, prepare_checkpoint, take_prepared
from fedfade.config import Config, changed, load_config
from fedfade.errors import UserError
from fedfade.experiments.metrics import (
    Row,
    RunRound,
    check_complete,
    measured_row,
    read_rows,
    rows_text,
)
from fedfade.storage import read_npz, write_npz
from tests.conftest import TINY
from tests.reliability.kills import SMALL_CELL

SETTINGS = [word for override in TINY for word in ("--set", override)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "run"


@pytest.fixture
def compared(fedfade, kept: Path, tmp_path: Path) -> Path:
    """A comparison to be changed; made once, by the first who asks."""
    if not kept.exists():
        words = ["--policies", "random,max-sum-rate,perfect,genie", "--out", kept, *SETTINGS]
        assert fedfade("compare", "paper", *words, "--set", "run.evaluate_every=2").code == 0
    return Path(shutil.copytree(kept, tmp_path / "run"))


def test_a_comparison_is_the_same_again(compared: Path, fedfade) -> None:
    before = {p: p.stat().st_mtime_ns for p in compared.rglob("*")}
    for rounds in (1, 2, 100):
        answer = fedfade("verify", compared, "--rounds", rounds)
        assert answer.code == 0, answer.err
        assert f"same: {min(rounds, 3)} of 3 rounds" in answer.out
    assert before == {p: p.stat().st_mtime_ns for p in compared.rglob("*")}  # only read


def test_a_changed_number_is_found(compared: Path, fedfade) -> None:
    path = compared / "metrics.csv"
    first = read_rows(path)
    first[1] = first[1]._replace(train_loss=first[1].train_loss * (1 + 1e-15))
    path.write_text(rows_text(first))
    answer = fedfade("verify", compared, "--rounds", 1)
    assert answer.code == 1
    assert "different:" in answer.out
    assert "max-sum-rate, seed 0, round 0: train_loss was" in answer.out


def test_a_changed_gradient_and_a_changed_machine_are_found(compared: Path, fedfade) -> None:
    arrays = read_npz(compared / "gradients.npz")
    arrays["inner"][0, 1, 0, 0] *= 1.0000001
    write_npz(compared / "gradients.npz", arrays)
    record = json.loads((compared / "run.json").read_text())
    (compared / "run.json").write_text(json.dumps(record | {"torch": "1.0\x1b[2J"}))
    assert "gradients.npz: SHA-256 was" in fedfade("verify", compared, "--rounds", 1).out
    answer = fedfade("verify", compared, "--rounds", 2)
    assert answer.code == 1
    assert "round 1: Gram matrices" in answer.out
    assert r"torch was 1.0\x1b[2J, is" in answer.err
    assert "\x1b" not in answer.err + answer.out


def forge(folder: Path, **fields: object) -> None:
    """Change the last round of a comparison."""
    rows = read_rows(folder / "metrics.csv")
    last = max(i for i, row in enumerate(rows) if row.policy == "random")
    rows[last] = rows[last]._replace(**fields)
    (folder / "metrics.csv").write_text(rows_text(rows))


def test_the_last_round_is_checked_whatever_is_run_again(compared: Path, fedfade) -> None:
    words = ["--policies", "random,max-sum-rate,perfect,genie", "--out", compared, *SETTINGS]
    again = ["compare", "paper", *words, "--set", "run.evaluate_every=2"]
    forge(compared, accuracy=0.99)
    answer = fedfade("verify", compared, "--rounds", 1)
    assert answer.code == 1
    assert "metrics.csv: SHA-256 was" in answer.out
    answer = fedfade(*again)
    assert answer.code == 2
    assert "metrics.csv in" in answer.err
    assert "99.0" not in answer.out
    # Whoever hides that is found where all rounds are run again; until then it is said.
    record = json.loads((compared / "run.json").read_text())
    del record["left"]
    (compared / "run.json").write_text(json.dumps(record))
    answer = fedfade("verify", compared, "--rounds", 2)
    assert answer.code == 0
    assert "rounds not run again are not checked" in answer.err
    assert fedfade("verify", compared, "--rounds", 3).code == 1


@pytest.mark.parametrize(
    "fields",
    [
        *({"accuracy": value} for value in (math.inf, -5.0, 1e308, 1.001)),
        *({"delivered": 5.0}, {"fairness": -0.1}, {"bits_sent": math.inf}, {"bits_wasted": 1e30}),
        *({"seconds": -1.0}, {"joules": math.inf}),
        *({"sum_rate_bps": -1.0}, {"reward": math.inf}, {"not_finite": 9}),
    ],
)
def test_impossible_numbers_are_refused(fields: dict[str, float], make_rows) -> None:
    config, rows = make_rows
    path = Path("metrics.csv")
    check_complete(rows, path, ["random"], config, 1)
    with pytest.raises(UserError, match="was changed or is damaged"):
        check_complete([rows[0]._replace(**fields)], path, ["random"], config, 1)


@pytest.fixture
def make_rows(tiny: Config) -> tuple[Config, list[Row]]:
    run = RunRound(
        payload_bits=1e5,
        delivered=torch.tensor([True, False, True, False]),
        finite=torch.ones(4, dtype=torch.bool),
        uploads=torch.tensor([1, 0, 1, 0]),
        outcome=None,
        **dict.fromkeys(
            ("accuracy", "loss", "train_loss", "bias", "accuracy_averaged"), torch.tensor(0.5)
        ),
    )
    return changed(tiny, {"run.seeds": 1}), [measured_row(0, "random", 0, run)]


def test_models_are_compared_where_all_rounds_are(compared: Path, fedfade) -> None:
    path = compared / "run.json"
    record = json.loads(path.read_text())
    record["models"] = dict.fromkeys(record["models"], "0" * 64)
    path.write_text(json.dumps(record))
    answer = fedfade("verify", compared, "--rounds", 1)
    assert answer.code == 1
    assert "models: SHA-256 was" in answer.out
    del record["left"]
    path.write_text(json.dumps(record))
    answer = fedfade("verify", compared)
    assert answer.code == 1
    assert "the end: random, seed 0 was 0000" in answer.out


def test_nothing_to_compare_is_not_the_same(fedfade, tmp_path: Path) -> None:
    """A training whose curve is emptied, digests and all."""
    changes = [*SMALL_CELL, "qmix.episodes=20", "run.device=cpu"]
    train(load_config("small-cell", changes), tmp_path)
    stored = load_checkpoint(tmp_path)
    parts = {part: stored.tensors(part) for part in ("agents", "training")}
    parts["training"]["curve"] = torch.zeros(0, dtype=torch.float64)
    prepare_checkpoint(tmp_path, stored.config, stored.batch, stored.episodes, parts, {})
    take_prepared([tmp_path])
    answer = fedfade("verify", tmp_path)
    assert answer.code == 2
    assert "holds 0 reports of 1 batches" in answer.err


def test_a_training_is_the_same_again(fedfade, tmp_path: Path) -> None:
    changes = [*SMALL_CELL, "qmix.episodes=60", "run.device=cpu"]
    train(load_config("small-cell", changes), tmp_path / "run")
    for rounds in (1, 10):
        answer = fedfade("verify", tmp_path / "run", "--rounds", rounds)
        assert answer.code == 0, answer.out
        assert f"same: {min(3, rounds)} of 3 batches" in answer.out
    # Another seed than the one it was trained with: nothing is the same.
    index = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    index["config"]["run"]["seed"] = 5
    (tmp_path / "run" / "checkpoint.json").write_text(json.dumps(index))
    assert fedfade("verify", tmp_path / "run").code == 1


def test_seeds_trained_side_by_side_are_the_same_again(fedfade, tmp_path: Path) -> None:
    changes = [*SMALL_CELL, "qmix.episodes=60", "run.device=cpu"]
    train(load_config("small-cell", changes), tmp_path, seeds=[3, 4])
    for rounds in (2, 10):
        answer = fedfade("verify", tmp_path, "--rounds", rounds)
        assert answer.code == 0, answer.out
        again = min(3, rounds)
        numbers = 2 * (7 * again + (again == 3))  # and whether the agents are the same in the end
        assert f"same: {again} of 3 batches of episodes run again, {numbers} numbers" in answer.out
    index = tmp_path / "seed-4" / "checkpoint.json"
    record = json.loads(index.read_text())
    record["config"]["run"]["seed"] = 5
    index.write_text(json.dumps(record))
    answer = fedfade("verify", tmp_path)
    assert answer.code == 1
    assert "seed 5, episode 20: reward was" in answer.out
    assert "seed 3" not in answer.out
    answer = fedfade("verify", tmp_path / "seed-4")
    assert answer.code == 1
    assert "side by side" in answer.err
    record["config"]["radio"]["clusters"] = 9
    index.write_text(json.dumps(record))
    answer = fedfade("verify", tmp_path)
    assert answer.code == 2
    assert "radio.clusters is 9 there" in answer.err


def test_the_bar_goes_as_far_as_there_is_something(compared: Path, fedfade) -> None:
    changes = [*SMALL_CELL, "qmix.episodes=40", "run.device=cpu"]
    trained = compared.parent / "trained"
    train(load_config("small-cell", changes), trained)
    for folder, there in ((compared, 3), (trained, 2)):
        answer = fedfade("verify", folder, "--rounds", 100_000)
        assert answer.code == 0
        assert f"{there}/{there} steps" in answer.err
        assert "100000" not in answer.err


def test_the_data_may_lie_elsewhere(compared: Path, fedfade, tmp_path: Path) -> None:
    """CIFAR-10 is asked for in the folder that is named; the digits lie nowhere."""
    assert fedfade("verify", compared, "--rounds", 1, "--data-dir", tmp_path / "x").code == 0
    path = compared / "config.yaml"
    path.write_text(path.read_text().replace('data: "digits"', 'data: "cifar10"'))
    trained = tmp_path / "trained"
    train(load_config("small-cell", [*SMALL_CELL, "qmix.episodes=20", "run.device=cpu"]), trained)
    index = trained / "checkpoint.json"
    index.write_text(index.read_text().replace('"digits"', '"cifar10"'))
    for folder in (compared, trained):
        answer = fedfade("verify", folder, "--data-dir", tmp_path / "elsewhere")
        assert answer.code == 2
        assert f"CIFAR-10 is not in '{tmp_path / 'elsewhere'}'" in answer.err.replace("\n", " ")


def test_other_folders_are_refused(compared: Path, fedfade, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = fedfade("verify", tmp_path / "empty")
    assert answer.code == 2
    assert "is not a run folder" in answer.err
    record = json.loads((compared / "run.json").read_text())
    (compared / "run.json").write_text(json.dumps(record | {"finished": None}))
    assert fedfade("verify", compared).code == 2
    shutil.rmtree(tmp_path / "empty")


@pytest.mark.parametrize("damage", ["rows", "clients", "record", "scopes"])
def test_a_finished_folder_that_was_changed(damage: str, compared: Path, fedfade) -> None:
    """`compare` in a finished folder draws its report again: from whole files only."""
    path, record = compared / "metrics.csv", json.loads((compared / "run.json").read_text())
    text = path.read_text()
    if damage == "rows":
        path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    elif damage == "clients":
        path.write_text(text.replace("0 1 2 3", "0 1 2 999999999"))
    elif damage == "record":
        (compared / "run.json").write_text("[1]")
    else:
        (compared / "run.json").write_text(json.dumps(record | {"scopes": {"random": 3}}))
    words = ["--policies", "random,max-sum-rate,perfect,genie", "--out", compared, *SETTINGS]
    answer = fedfade("compare", "paper", *words, "--set", "run.evaluate_every=2")
    assert answer.code == 2
    assert "Traceback" not in answer.err
