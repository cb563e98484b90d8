"""`fedfade compare` and `fedfade replay` as a user runs them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfade.agents.checkpoint import load_checkpoint
from fedfade.config import load_config
from fedfade.experiments import RunFolder, compare_many, compared_names, read_rows, series
from fedfade.experiments.metrics import Row, summarise
from fedfade.experiments.report import level_with_best, verdict
from fedfade.experiments.run_folder import commit_of
from fedfade.learning import Updates, gradient_bias
from fedfade.storage import read_npz, write_npz
from tests.conftest import TINY

SETTINGS = [word for override in TINY for word in ("--set", override)]
ALL = (
    "random,max-individual-rate,max-sum-rate,block-fading-schedule,"
    "block-fading-schedule-feedback,shortest-remaining-first,perfect,genie"
)


def test_a_run_leaves_a_report_and_is_recognised_when_finished(fedfade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = fedfade("compare", "paper", "--policies", ALL, "--out", out, *SETTINGS)
    assert answer.code == 0, answer.err
    assert "perfect" in answer.out
    assert "playing 3 rounds x 2 seeds at a time; 14 models trained side by side" in answer.err
    assert f"report: {out}" in answer.out.replace("\n", "")
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r'(src|href)="(?!data:)', page)  # nothing from outside
    record = json.loads((out / "run.json").read_text())
    assert record["finished"]
    assert record["command"].startswith("fedfade compare paper")
    rows = read_rows(out / "metrics.csv")
    assert len(rows) == 8 * 2 * 3  # policies x seeds x rounds
    assert (series(rows, "perfect", "delivered") == 4).all()
    assert (series(rows, "perfect", "gradient_bias") < 1e-10).all()
    for policy in ALL.split(",")[:-2]:
        sent, wasted = series(rows, policy, "bits_sent"), series(rows, policy, "bits_wasted")
        assert (wasted <= sent + 1).all()
        bound = series(rows, "genie", "delivered")
        assert (series(rows, policy, "delivered") <= bound).all()
    before = (out / "metrics.csv").stat().st_mtime_ns
    again = fedfade("compare", "paper", "--policies", ALL, "--out", out, *SETTINGS)
    assert again.code == 0
    assert "already finished" in again.err
    assert (out / "metrics.csv").stat().st_mtime_ns == before


def test_policies_of_a_seed_share_channel_and_data(fedfade, tmp_path: Path) -> None:
    """A policy's results do not depend on which others run beside it."""
    results = []
    for policies in ("max-sum-rate,random", "random,perfect,max-sum-rate"):
        out = tmp_path / str(len(policies))
        answer = fedfade("compare", "paper", "--policies", policies, "--out", out, *SETTINGS)
        assert answer.code == 0, answer.err
        rows = read_rows(out / "metrics.csv")
        results.append({(r.policy, r.seed, r.round): r for r in rows})
    shared = results[0].keys() & results[1].keys()
    assert len(shared) == 2 * 2 * 3
    assert all(results[0][key] == results[1][key] for key in shared)


@pytest.mark.parametrize(("clients", "bands"), [(2, 1), (2, 16), (10, 4), (40, 1), (40, 16)])
def test_every_policy_runs_at_every_size(clients: int, bands: int, fedfade, tmp_path) -> None:
    settings = [
        *SETTINGS,
        *("--set", f"learning.clients={clients}", "--set", f"radio.subbands={bands}"),
        *("--set", "run.rounds=2", "--set", "run.seeds=1", "--set", "learning.batch_size=5"),
    ]
    answer = fedfade("compare", "paper", "--policies", ALL, "--out", tmp_path / "run", *settings)
    assert answer.code == 0, answer.err


def test_one_policy_alone_and_one_client(fedfade, tmp_path: Path) -> None:
    settings = [*SETTINGS, "--set", "learning.clients=1", "--set", "radio.subbands=1"]
    answer = fedfade(
        "compare", "paper", "--policies", "random", "--out", tmp_path / "run", *settings
    )
    assert answer.code == 0, answer.err


def test_an_interrupted_run_continues_to_the_same_numbers(tiny, tmp_path: Path) -> None:
    device = torch.device("cpu")

    def run(folder: RunFolder, stop_at: int | None = None) -> None:
        def progress(done: int, doing: str) -> None:
            if stop_at is not None and done == stop_at and doing == "evaluation":
                raise KeyboardInterrupt

        compare_many([tiny], [folder.path], device, progress)

    whole = RunFolder(tmp_path / "whole", tiny, device)
    run(whole)
    broken = RunFolder(tmp_path / "broken", tiny, device)
    for stop_at in (0, 1, 2):
        with pytest.raises(KeyboardInterrupt):
            run(broken, stop_at)
        assert not broken.finished
    run(broken)
    assert broken.metrics.read_text() == whole.metrics.read_text()
    one = np.load(tmp_path / "whole" / "gradients.npz")["inner"]
    assert np.array_equal(one, np.load(tmp_path / "broken" / "gradients.npz")["inner"])
    assert not broken.checkpoint.exists()


def test_sigterm_stops_cleanly(tmp_path: Path) -> None:
    """A real process, a real signal: one sentence, exit code 130, and it goes on afterwards."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedfade.cli", "compare", "paper", "--out", str(out)]
    command += ["--policies", "random,perfect", *SETTINGS, "--set", "run.rounds=2000"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 60
    while not (out / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3.0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command continues" in errors
    config = load_config(out / "config.yaml")
    stored = RunFolder(out, config, torch.device("cpu")).load_checkpoint()
    if stored is not None:
        assert len(read_rows(out / "metrics.csv")) == 4 * stored[0]  # 2 policies x 2 seeds


def test_a_folder_of_another_config_is_refused(fedfade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    base = ["compare", "paper", "--policies", "random", "--out", out, *SETTINGS]
    assert fedfade(*base).code == 0
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir() if p.is_file()}
    answer = fedfade(*base, "--set", "radio.clusters=5")
    assert answer.code == 2
    assert "radio.clusters" in answer.err
    assert before == {p.name: p.stat().st_mtime_ns for p in out.iterdir() if p.is_file()}


BAD = [
    (["--policies", "magic"], "policy = 'magic' is not allowed"),
    (["--policies", "qmix-plus-plus"], "qmix, qmix-hold, qmix-plus, or module:factory"),
    (["--policies", "genie"], "it needs a policy"),
    (["--policies", ""], "allocation.policies"),
    (["--set", "learning.clients=0"], "learning.clients = 0"),
    (["--rounds", "0"], "run.rounds = 0"),
    (["--policies", "tests.experiments.test_compare:WrongShape"], "shape"),
    (["--policies", "tests.experiments.test_compare:WrongBand"], "band 7"),
    (["--policies", "tests.experiments.test_compare:Needy"], "cannot be made: Needy.__init__()"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_bad_input_is_one_sentence(words, sentence: str, fedfade, tmp_path: Path) -> None:
    answer = fedfade("compare", "paper", "--out", tmp_path / "run", *SETTINGS, *words)
    assert answer.code == 2
    assert sentence in answer.err.replace("\n", " ")
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()  # the corrected command may have the folder


def test_a_mistake_takes_nothing_from_a_folder_that_was_there(fedfade, tmp_path: Path) -> None:
    words = ["compare", "paper", *SETTINGS, "--out", tmp_path]
    assert fedfade(*words, "--policies", "magic").code == 2
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]
    assert fedfade(*words, "--policies", "random").code == 0
    (tmp_path / "metrics.csv").write_text("damaged")
    before = {p.name for p in tmp_path.iterdir()}
    assert fedfade(*words, "--policies", "random").code == 2
    assert {p.name for p in tmp_path.iterdir()} == before


def test_comparisons_and_trainings_keep_apart(fedfade, tmp_path: Path) -> None:
    words = [*SETTINGS, "--set", "qmix.hidden=[4]", "--out", tmp_path / "seed-1"]
    assert fedfade("compare", "paper", *words, "--policies", "random").code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    one = ["--episodes", 20, "--out", tmp_path / "seed-1"]
    for where in (one, ["--episodes", 20, "--out", tmp_path, "--seeds", 2]):
        answer = fedfade("train", "paper", *words, *where)
        assert answer.code == 2
        assert "seed-1' holds a run of fedfade compare" in answer.err
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    words[-1] = tmp_path / "agents"
    assert fedfade("train", "paper", *words, "--episodes", 20).code == 0
    same = ["--set", "qmix.episodes=20", "--set", "allocation.policies=[random]"]
    answer = fedfade("compare", "paper", *words, *same)
    assert answer.code == 2
    assert "holds other things" in answer.err


def test_a_foreign_folder_is_left_alone(fedfade, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    answer = fedfade("compare", "paper", "--out", tmp_path, *SETTINGS)
    assert answer.code == 2
    assert "thesis.tex" in answer.err
    assert (tmp_path / "thesis.tex").read_text() == "precious"


class WrongShape:
    name, scope, gradient_aware = "wrong", "local", False

    def begin(self, view):
        return None

    def act(self, view, memory):
        from fedfade.allocation import full_power

        return full_power(view, torch.zeros(3, dtype=torch.int64))


class WrongBand(WrongShape):
    def act(self, view, memory):
        from fedfade.allocation import full_power

        return full_power(view, torch.full_like(view.active, 7, dtype=torch.int64))


class Needy(WrongShape):
    def __init__(self, something) -> None:
        pass


class Curious(WrongShape):
    """Looks at gradients, so every round waits for the learning."""

    gradient_aware = True

    def act(self, view, memory):
        from fedfade.allocation import full_power

        best = view.deviation == view.deviation.amin(-1, keepdim=True)
        return full_power(view, torch.where(best, view.fading.argmax(-1), -1))


def test_replay_shows_the_round_that_was_run(fedfade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    policies = "tests.experiments.test_compare:Curious,max-sum-rate,perfect"
    base = ["compare", "paper", "--policies", policies, "--out", out, *SETTINGS]
    assert fedfade(*base).code == 0
    rows = read_rows(out / "metrics.csv")
    from fedfade.experiments.replay import replay_figure

    for policy in policies.split(",")[:2]:
        for seed in (0, 1):
            figure = replay_figure(out, policy, seed, 2)
            row = next(r for r in rows if (r.policy, r.seed, r.round) == (policy, seed, 2))
            assert f"{int(row.delivered)} of 4 clients delivered" in figure.axes[1].get_title(
                "left"
            )
    picture = tmp_path / "round.png"
    answer = fedfade("replay", out, "--policy", "max-sum-rate", "--round", 1, "--out", picture)
    assert answer.code == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    for words, sentence in (
        (["--policy", "perfect"], "is a bound"),
        (["--policy", "random"], "--policy = 'random'"),
        (["--policy", "max-sum-rate", "--round", 3], "between 0 and 2"),
        (["--policy", "max-sum-rate", "--seed", 9], "--seed = 9"),
        (["--policy", "max-sum-rate", "--out", tmp_path / "x.xyz"], ".png, .pdf or .svg"),
        (["--policy", "max-sum-rate", "--out", picture / "x.png"], "is a file"),
    ):
        answer = fedfade("replay", out, *words)
        assert answer.code == 2
        assert sentence in answer.err


def test_a_run_is_known_by_its_agents_and_not_by_their_folder(fedfade, tmp_path: Path) -> None:
    agents, out = tmp_path / "agents", tmp_path / "run"
    small = [*SETTINGS, "--set", "qmix.hidden=[4]", "--set", "qmix.gradients=synthetic"]
    train = ["train", "paper", *small, "--out", agents]
    words = ["compare", "paper", *small, "--policies", "random", "--checkpoint", agents]
    assert fedfade(*train, "--episodes", 20).code == 0
    assert fedfade(*words, "--out", out).code == 0
    record = json.loads((out / "run.json").read_text())
    assert record["agents"] == load_checkpoint(agents).files["agents"]["sha256"]
    assert fedfade(*words, "--out", out).code == 0

    assert fedfade(*train, "--episodes", 40).code == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    picture = ["--out", tmp_path / "round.png"]
    refused = [[*words, "--out", out], ["verify", out], ["replay", out, "--policy", "qmix"]]
    for command in refused:
        answer = fedfade(*command)
        assert answer.code == 2
        assert "are not those of the run" in answer.err
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert fedfade("replay", out, "--policy", "random", *picture).code == 0
    # Half way they are refused as well; records of old do not say; who is gone cannot be asked.
    (out / "run.json").write_text(json.dumps(record | {"finished": None}))
    assert fedfade(*words, "--out", out).code == 2
    (out / "run.json").write_text(json.dumps({n: v for n, v in record.items() if n != "agents"}))
    assert fedfade(*words, "--out", out).code == 0
    (out / "run.json").write_text(json.dumps(record))
    shutil.rmtree(agents)
    assert fedfade(*words, "--out", out).code == 0


def test_code_and_files_that_changed_are_not_the_run_s(
    fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a run of the old and half of the new would pass as one."""
    monkeypatch.chdir(tmp_path)
    code = Path("mine.py")
    code.write_text(
        "from fedfade.allocation import load_policy\n\nmake = lambda: load_policy('random')\n"
    )
    assert fedfade("channel", "sample", "--drops", 20, "--out", "drops.npz").code == 0
    traces = ["--set", "radio.source=traces", "--set", "radio.traces=drops.npz"]
    words = ["compare", "paper", *SETTINGS, *traces, "--policies", "mine:make", "--out", "run"]
    assert fedfade(*words).code == 0
    plain = [*words[:-3], "random", "--out", "other"]
    assert fedfade(*plain).code == 0
    assert set(json.loads(Path("run/run.json").read_text())["inputs"]) == {"mine:make", "drops.npz"}
    assert fedfade(*words).code == 0
    code.write_text(code.read_text() + "# another\n")
    for command in (words, ["verify", "run"], ["replay", "run", "--policy", "mine:make"]):
        answer = fedfade(*command)
        assert answer.code == 2
        assert "'mine:make' has changed since the run in 'run' began" in answer.err
    code.unlink()
    sample = ["channel", "sample", "--drops", 20, "--seed", 5, "--out", "drops.npz"]
    assert fedfade(*sample).code == 0
    for command in (words, ["replay", "other", "--policy", "random"]):
        assert "'drops.npz' has changed" in fedfade(*command).err


def test_a_file_of_ones_own_is_run_as_it_stands(fedfade, tmp_path: Path) -> None:
    """A run's stored configuration would otherwise be another run."""
    first = ["compare", "ring", *SETTINGS, "--policies", "random", "--out", tmp_path / "one"]
    assert fedfade(*first).code == 0
    again = ["compare", tmp_path / "one" / "config.yaml", "--out", tmp_path / "two"]
    assert fedfade(*again).code == 0
    stored = [(tmp_path / run / "metrics.csv").read_bytes() for run in ("one", "two")]
    assert stored[0] == stored[1]


def test_agents_that_do_not_fit_are_said_to_be_left_out(fedfade, tmp_path: Path) -> None:
    few = ["--set", "run.rounds=1", "--set", "run.seeds=1", "--set", "radio.slots=5"]
    answer = fedfade("compare", "small-cell", *few, "--out", tmp_path / "run")
    assert answer.code == 0
    assert "left out, being trained for another scenario: qmix, qmix-hold, qmix-plus" in answer.err


def test_agents_named_twice_are_compared_once() -> None:
    given = ["allocation.checkpoint=[a/seed-0, a/seed-1]"]
    config = load_config("ring", ["allocation.policies=[random, qmix, qmix-seed-0]", *given])
    assert compared_names(config) == ["random", "qmix-seed-0", "qmix-seed-1"]


def test_all_trained_seeds_of_a_folder_are_compared_each_by_its_name(
    fedfade, tmp_path: Path
) -> None:
    small = [*SETTINGS, "--set", "qmix.hidden=[4]", "--set", "qmix.gradients=synthetic"]
    train = ["train", "paper", *small, "--episodes", 20]
    assert fedfade(*train, "--seeds", 2, "--out", tmp_path / "two").code == 0
    assert fedfade(*train, "--out", tmp_path / "one").code == 0

    def rows(*folders: str) -> dict[str, list[float]]:
        given = [word for name in folders for word in ("--checkpoint", tmp_path / name)]
        out = tmp_path / "-".join(["run", *(name.replace("/", "-") for name in folders)])
        words = ["compare", "paper", *small, "--policies", "random", *given, "--out", out]
        assert fedfade(*words).code == 0
        assert fedfade(*words).code == 0  # the same run again, read from its folder
        found: dict[str, list[float]] = {}
        for row in read_rows(out / "metrics.csv"):
            found.setdefault(row.policy, []).append(row.reward)
        return found

    three = rows("two", "one")
    assert list(three) == ["random", "qmix-seed-0", "qmix-seed-1", "qmix-one"]
    assert three["qmix-seed-1"] == rows("two/seed-1")["qmix"] != three["qmix-seed-0"]
    shutil.copytree(tmp_path / "two", tmp_path / "other")
    assert list(rows("two/seed-0", "other/seed-0")) == [
        "random",
        "qmix-two-seed-0",
        "qmix-other-seed-0",
    ]
    twice = ["--checkpoint", tmp_path / "one"] * 2
    answer = fedfade("compare", "paper", *small, *twice, "--out", tmp_path / "refused")
    assert answer.code == 2
    assert "it must be folders of different names." in answer.err
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("damage", ["policies", "rounds", "kind", "payload_bits", "inner"])
def test_replay_of_other_gradients_is_one_sentence(damage: str, fedfade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert fedfade("compare", "paper", "--policies", "random", "--out", out, *SETTINGS).code == 0
    stored = read_npz(out / "gradients.npz")
    if damage == "policies":
        stored["inner"] = stored["inner"][:1]
    elif damage == "rounds":
        stored["inner"] = stored["inner"][:, :1]
    elif damage == "kind":
        stored["inner"] = stored["inner"].astype(str)
    else:
        del stored[damage]
    write_npz(out / "gradients.npz", stored)
    answer = fedfade("replay", out, "--policy", "random", "--round", 2, "--seed", 1)
    assert answer.code == 2
    assert "does not belong to this run" in answer.err


def test_strings_from_the_config_are_escaped(fedfade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    plug_in = "tests.experiments.test_compare:Curious"
    answer = fedfade(
        *("compare", "paper", "--policies", plug_in, "--out", out, *SETTINGS),
        *("--set", "learning.data_dir=<script>alert(1)</script>"),
    )
    assert answer.code == 0, answer.err
    page = (out / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_verdict_says_what_was_measured() -> None:
    def row(policy: str, accuracy: float, delivered: float) -> Row:
        blank = dict.fromkeys(Row._fields, 0.0)
        return Row(**blank | {"policy": policy, "accuracy": accuracy, "delivered": delivered})

    rows = [row("random", 0.503, 0.0), row("perfect", 0.5, 4.0)]
    text = verdict(rows, 4)
    assert "Perfect upload reaches 50.0%, 0.3 points less." in text
    assert text.endswith("fewer than one upload in two rounds: random.")  # why, it cannot know
    rows[1] = row("perfect", 0.6, 4.0)
    assert "9.7 points more" in verdict(rows, 4)
    assert verdict(rows, 4).startswith("random ends highest in the one seed that was run: ")
    assert verdict([*rows, rows[0]._replace(seed=1)], 4).startswith("random wins: ")


def made_up_rows(policy: str, accuracy: list[list[float]], **rest: list[list[float]]) -> list[Row]:
    """Rows of one policy from fields [seed][round]; the others are zero."""
    blank = dict.fromkeys(Row._fields, 0.0) | {"policy": policy}
    columns = {"accuracy": accuracy, **rest}
    return [
        Row(**blank | {"seed": s, "round": r} | {name: c[s][r] for name, c in columns.items()})
        for s in range(len(accuracy))
        for r in range(len(accuracy[0]))
    ]


def test_a_summary_by_hand() -> None:
    """Final accuracies .2, .4 and .9, whatever the rounds before: a tenth of the way from the
    lowest to the highest, counted in seeds, is .24."""
    rows = made_up_rows(
        "random",
        [[0.95, 0.5, 0.4], [0.1, 0.1, 0.9], [0.7, 0.6, 0.2]],
        delivered=[[0, 1, 2], [0, 0, 3], [1, 1, 1]],
        bits_sent=[[10.0, 20.0, 30.0], [0.0, 0.0, 40.0], [0.0, 0.0, 100.0]],
        bits_wasted=[[10.0, 0.0, 10.0], [0.0, 0.0, 0.0], [0.0, 0.0, 30.0]],
        fairness=[[math.nan, 0.25, 0.5], [math.nan, math.nan, 0.75], [0.25, 0.25, 0.25]],
        sum_rate_bps=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]],
    )
    found = summarise(rows[::-1], "random")
    assert found.accuracy == pytest.approx(0.4)
    assert found.band == pytest.approx((0.24, 0.8))
    assert (found.uploads, found.empty_rounds) == pytest.approx((1.0, 3 / 9))
    assert (found.wasted, found.sum_rate_bps, found.fairness) == pytest.approx((0.25, 5.0, 0.5))
    assert list(found.cells()) == ["40.0", "24.0-80.0", "1.00", "33", "25", "0.0", "0.50"]


def test_who_is_level_with_the_best_by_hand() -> None:
    """Behind the best by m +- d in four seeds: the standard error is d sqrt(4/3) / sqrt(4), so m
    may be 1.155 d. The seeds themselves differ by far more, and first rounds say nothing."""
    final = [0.2, 0.4, 0.6, 0.8]

    def behind(mean: float, spread: float = 0.01) -> list[list[float]]:
        signs = (1, -1, -1, 1)
        gaps = [mean + sign * spread for sign in signs]
        return [[0.1 + mean, high - gap] for high, gap in zip(final, gaps, strict=True)]

    rows = [
        *made_up_rows("perfect", behind(-0.1)),
        *made_up_rows("beaten", behind(0.012)),
        *made_up_rows("level", behind(0.011)),
        *made_up_rows("best", behind(0.0, 0.0)),
        *made_up_rows("far", behind(0.05)),
    ]
    assert level_with_best(rows) == ["best", "level"]
    one_seed = [row for row in rows if row.seed == 0]  # which shows no noise
    assert level_with_best(one_seed) == ["best"]


def test_gradient_bias_is_the_distance_of_two_means() -> None:
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(2, 5, 50, generator=generator)
    updates = Updates(
        parameters=g,
        buffers=torch.zeros(2, 5, 0),
        finite=torch.ones(2, 5, dtype=torch.bool),
        loss=torch.zeros(2, 5),
        samples=torch.ones(2, 5),
    )
    delivered = torch.tensor([[True, True, False, False, True], [False] * 5])
    bias = gradient_bias(updates, delivered)
    expected = (g[0].mean(0) - g[0][[0, 1, 4]].mean(0)).square().sum()
    assert torch.allclose(bias[0], expected, rtol=1e-5)
    assert torch.allclose(bias[1], g[1].mean(0).square().sum(), rtol=1e-5)


def test_the_commit_is_that_of_the_source_tree_alone(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        command = ["git", *name, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    ours, installed = tmp_path / "ours.py", tmp_path / "installed.py"
    ours.touch()
    installed.touch()
    assert commit_of(ours) is None
    git("add", "ours.py")
    git("commit", "-q", "-m", "one")
    assert commit_of(ours) == git("rev-parse", "HEAD")
    assert commit_of(installed) is None
    assert commit_of(tmp_path / "nowhere" / "file.py") is None
