"""`fedfade compare` and `fedfade replay` as a user runs them."""

from __future__ import annotations

import json
import math
import os
import pkgutil
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

from fedfade.agents import shipped_policies
from fedfade.agents.checkpoint import load_checkpoint
from fedfade.config import load_config
from fedfade.experiments import RunFolder, compare_many, compared_names, read_rows, series
from fedfade.experiments.comparison import Comparison
from fedfade.experiments.findings import ranked, verdict
from fedfade.experiments.metrics import Row, summarise
from fedfade.experiments.replay import replayed
from fedfade.experiments.report import write_report
from fedfade.experiments.round_figures import round_figure
from fedfade.experiments.run_folder import commit_of, folder_name
from fedfade.experiments.uploads import Uplink
from fedfade.learning import Updates, gradient_bias
from fedfade.seams import POLICIES
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
    assert page.count("data:image/png;base64,") == 6
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # nothing from outside
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


@pytest.mark.usefixtures("no_pictures")
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
    command = [sys.executable, "-m", "fedfade", "compare", "paper", "--out", str(out)]
    command += ["--policies", "random,perfect", *SETTINGS, "--set", "run.rounds=2000"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 60
    while not (out / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command continues" in errors
    config = load_config(out / "config.yaml")
    stored = RunFolder(out, config, torch.device("cpu")).load_checkpoint()
    if stored is not None:
        assert len(read_rows(out / "metrics.csv")) == 4 * stored[0]  # 2 policies x 2 seeds


@pytest.mark.usefixtures("no_pictures")
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
    (["--policies", "magic"], "allocation.policies = 'magic' is not allowed: it must be one of "),
    (["--policies", "wrap-aroud-choice"], "is not allowed: did you mean wrap-around-choice? it "),
    (["--policies", "qmix-pls"], "is not allowed: did you mean qmix-plus? it must be one of "),
    (["--policies", "max-sum-rat@5"], "allocation.policies = 'max-sum-rat' is not allowed: did "),
    (["--policies", "qmix-plus-plus"], "size-free, size-free-feedback, or module:factory"),
    (["--policies", "genie"], "it needs a policy"),
    (
        ["--policies", "qmix-plus", "--set", "learning.payload_bits=auto"],
        "policy 'qmix-plus' does not fit: ",
    ),
    (["--policies", "qmix-plus"], "what does: size-free, size-free-feedback, wrap-around-"),
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


@pytest.mark.usefixtures("no_pictures")
def test_a_mistake_takes_nothing_from_a_folder_that_was_there(fedfade, tmp_path: Path) -> None:
    words = ["compare", "paper", *SETTINGS, "--out", tmp_path]
    assert fedfade(*words, "--policies", "magic").code == 2
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]
    assert fedfade(*words, "--policies", "random").code == 0
    (tmp_path / "metrics.csv").write_text("damaged")
    before = {p.name for p in tmp_path.iterdir()}
    assert fedfade(*words, "--policies", "random").code == 2
    assert {p.name for p in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("no_pictures")
def test_default_folders_do_not_collide(fedfade, tmp_path: Path, monkeypatch) -> None:
    """Every configuration has one of its own, and so have other agents and other code."""
    monkeypatch.chdir(tmp_path)
    few = [*SETTINGS, "--rounds", 1, "--seeds", 1]
    own = [*SETTINGS, "--episodes", 20, "--set", "qmix.hidden=[4]"]
    assert fedfade("train", "paper", *own, "--out", "agents").code == 0
    asked = [[], ["--set", "radio.clusters=5"], ["--checkpoint", "agents"]]
    folders = []
    for words in [*asked, asked[0]]:  # the first once more
        answer = fedfade("compare", "paper", *few, "--policies", "random", *words)
        assert answer.code == 0, answer.err
        folders.append(Path(answer.out.split("report: ")[1].replace("\n", "")).parent)
    assert "already finished" in answer.err
    assert len(set(folders)) == 3
    assert folders[0] == folders[3]
    assert "clusters=5" in folders[1].name or len(folders[1].name) > 60
    assert folder_name("ring", load_config("ring"), load_config("ring")) == "ring"
    Path("ring.yaml").write_text("run: {rounds: 7}")
    same = load_config("ring.yaml")
    assert folder_name("ring.yaml", same, same).startswith("ring-")
    # Where there are no agents, that is the mistake, whatever --out holds.
    answer = fedfade("compare", "paper", *few, "--out", folders[0], "--checkpoint", folders[1])
    assert answer.code == 2
    assert "holds no checkpoint.json" in answer.err


def test_a_run_is_overwritten_when_asked(fedfade, tmp_path: Path) -> None:
    out, fresh = tmp_path / "run", tmp_path / "fresh"
    base = ["compare", "paper", "--policies", "random", *SETTINGS, "--rounds", 1]
    other = [*base, "--set", "radio.clusters=5", "--overwrite"]
    assert fedfade(*base, "--out", out).code == 0
    (out / "notes.txt").write_text("mine")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    answer = fedfade(*base, "--out", out, "--overwrite", "--policies", "magic")
    assert answer.code == 2
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    for place in (out, fresh):
        answer = fedfade(*other, "--out", place)
        assert answer.code == 0, answer.err
        assert "already finished" not in answer.err
    assert (out / "metrics.csv").read_text() == (fresh / "metrics.csv").read_text()
    assert (out / "notes.txt").read_text() == "mine"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    assert "thesis.tex" in fedfade(*other, "--out", foreign).err
    assert [p.name for p in foreign.iterdir() if p.name != ".lock"] == ["thesis.tex"]


@pytest.mark.parametrize(
    "place", ["comparison.Comparison.finish", "report._pictures", "comparison.write_npz"]
)
def test_an_interrupt_after_the_last_round_still_leaves_a_report(
    place: str, fedfade, tmp_path: Path, monkeypatch
) -> None:
    name = f"fedfade.experiments.{place}"
    real = pkgutil.resolve_name(name)

    def interrupted(*given: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return real(*given)

    monkeypatch.setattr(name, interrupted)
    few = [*SETTINGS, "--rounds", 1, "--seeds", 1, "--policies", "random"]
    answer = fedfade("compare", "paper", *few, "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "stopped" not in answer.err
    assert (tmp_path / "report.html").exists()
    assert "playing 1 round x 1 seed at a time; 1 model trained side by side" in answer.err


def test_an_interrupt_after_the_last_round_stops_what_comes_after(
    tiny, tmp_path: Path, monkeypatch
) -> None:
    """Of several comparisons one after another: this one is finished, the next not begun."""
    real = Comparison.finish

    def interrupted(self: Comparison, folder: RunFolder) -> None:
        signal.raise_signal(signal.SIGINT)
        real(self, folder)

    monkeypatch.setattr(Comparison, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare_many([tiny], [tmp_path], torch.device("cpu"))
    assert RunFolder(tmp_path, tiny, torch.device("cpu")).finished


@pytest.mark.parametrize("bits", [2e6, 1e9])
def test_the_outlook_is_what_a_round_has_room_for(bits: float) -> None:
    """On a ring all are alike: how often the slots that one needs fit, by a plain mean of rates."""
    config = load_config("small-cell", [f"learning.payload_bits={bits}"])
    text = Uplink(config, bits, torch.device("cpu")).outlook()
    fading = np.random.default_rng(0).exponential(size=10**6)
    rate = np.log2(1 + 100 * fading).mean() * config.radio.bandwidth_hz  # at 20 dB
    needed = bits / (rate * config.radio.slot_s)
    told, fit = (float(n) for n in re.findall(r"about ([\d.e+]+) of", text))
    assert told == pytest.approx(needed, rel=0.005, abs=0.5)
    slots, clients, bands = config.radio.slots, config.learning.clients, config.radio.subbands
    assert fit == min(clients, int(bands * slots / needed)) * (needed <= slots)
    assert ("hardly anybody" in text) == (fit == 0) == (bits == 1e9)
    if fit == 0:  # what it advises helps
        advised = float(re.search(r"payload_bits below ([\d.e+]+)", text)[1])
        assert Uplink(config, 0.9 * advised, torch.device("cpu")).outlook().count("hardly") == 0


@pytest.mark.usefixtures("no_pictures")
def test_the_outlook_comes_before_a_run(fedfade, tmp_path: Path) -> None:
    few = [*SETTINGS, "--rounds", 1, "--seeds", 1, "--policies", "random"]
    answer = fedfade("compare", "paper", *few, "--out", tmp_path)
    told = answer.err.replace("\n", " ")
    assert re.match(
        r"a median client needs about \d+ of 20 slots alone on a sub-band; about ", told
    )


def test_the_help_names_every_policy_and_default(fedfade) -> None:
    told = fedfade("compare", "--help").out
    for name in (*POLICIES.built_in, *shipped_policies(), "perfect", "genie"):
        assert re.search(rf"[ ,]{name}[,\n]", told), name
    for command in ("compare", "train", "learn"):
        told = re.sub(r"\n {10,}", " ", fedfade(command, "--help").out)
        for line in re.findall(r"(?m)^  --(?:seeds?|rounds|device|episodes) .*", told):
            assert "default" in line, (command, line)


@pytest.mark.usefixtures("no_pictures")
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


@pytest.mark.usefixtures("no_pictures")
def test_replay_shows_the_round_that_was_run(fedfade, tmp_path: Path) -> None:
    out = tmp_path / "run"
    policies = "tests.experiments.test_compare:Curious,max-sum-rate,perfect"
    base = ["compare", "paper", "--policies", policies, "--out", out, *SETTINGS]
    assert fedfade(*base).code == 0
    rows = read_rows(out / "metrics.csv")
    for policy in policies.split(",")[:2]:
        for seed in (0, 1):
            figure = round_figure(replayed(out, [policy], seed, 2))
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
        (["--policy", "max-sum-rate", "--out", tmp_path / "x.xyz"], ".svg, .gif or .html"),
        (["--policy", "max-sum-rate", "--out", picture / "x.png"], "is a file"),
    ):
        answer = fedfade("replay", out, *words)
        assert answer.code == 2
        assert sentence in answer.err


@pytest.mark.usefixtures("no_pictures")
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


@pytest.mark.usefixtures("no_pictures")
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
    code.write_text(f"# A word on it.\n{code.read_text()}\n# another\n")
    assert "already finished" in fedfade(*words).err  # nothing that counts
    assert fedfade("verify", "run").code == 0
    code.write_text(code.read_text() + "another = 1\n")
    for command in (words, ["verify", "run"], ["replay", "run", "--policy", "mine:make"]):
        answer = fedfade(*command)
        assert answer.code == 2
        assert "'mine:make' has changed (more than comments) since the run in 'run'" in answer.err
        assert "--out, begin anew by --overwrite, or bring the old one back" in answer.err
    code.unlink()
    sample = ["channel", "sample", "--drops", 20, "--seed", 5, "--out", "drops.npz"]
    assert fedfade(*sample).code == 0
    for command in (words, ["replay", "other", "--policy", "random"]):
        assert "'drops.npz' has changed" in fedfade(*command).err


@pytest.mark.usefixtures("no_pictures")
def test_a_file_of_ones_own_is_run_as_it_stands(fedfade, tmp_path: Path) -> None:
    """A run's stored configuration would otherwise be another run."""
    first = ["compare", "ring", *SETTINGS, "--policies", "random", "--out", tmp_path / "one"]
    assert fedfade(*first).code == 0
    again = ["compare", tmp_path / "one" / "config.yaml", "--out", tmp_path / "two"]
    assert fedfade(*again).code == 0
    stored = [(tmp_path / run / "metrics.csv").read_bytes() for run in ("one", "two")]
    assert stored[0] == stored[1]


@pytest.mark.usefixtures("no_pictures")
def test_agents_that_do_not_fit_are_said_to_be_left_out(fedfade, tmp_path: Path) -> None:
    few = ["--set", "run.rounds=1", "--set", "run.seeds=1", "--set", "radio.slots=5"]
    answer = fedfade("compare", "small-cell", *few, "--out", tmp_path / "run")
    assert answer.code == 0
    assert (
        "left out, being trained for another scenario: mappo-hold, qmix, qmix-hold, qmix-plus"
        in answer.err
    )


def test_agents_named_twice_are_compared_once() -> None:
    given = ["allocation.checkpoint=[a/seed-0, a/seed-1]"]
    config = load_config("ring", ["allocation.policies=[random, qmix, qmix-seed-0]", *given])
    assert compared_names(config) == ["random", "qmix-seed-0", "qmix-seed-1"]


@pytest.mark.usefixtures("no_pictures")
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


@pytest.mark.usefixtures("no_pictures")
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
    replay = ["replay", out, "--policy", "random", "--round", 2, "--seed", 1]
    answer = fedfade(*replay)
    assert answer.code == 2
    assert "gradients.npz in" in answer.err
    record = json.loads((out / "run.json").read_text())
    del record["left"]  # as in a run of an older version
    (out / "run.json").write_text(json.dumps(record))
    answer = fedfade(*replay)
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


def round_of(policy: str, accuracy: float, delivered: float) -> Row:
    blank = dict.fromkeys(Row._fields, 0.0) | {"delivered_clients": "", "not_finite_clients": ""}
    return Row(**blank | {"policy": policy, "accuracy": accuracy, "delivered": delivered})


def test_the_verdict_says_what_was_measured() -> None:
    rows = [round_of("random", 0.503, 0.0), round_of("one", 0.503, 2), round_of("perfect", 0.5, 4)]
    text = verdict(rows, 4)
    assert "Perfect upload reaches 50.0 %, no more: " in text
    assert text.endswith("fewer than one upload in two rounds: random.")  # why, it cannot know
    rows[2] = round_of("perfect", 0.6, 4.0)
    assert "9.7 points more" in verdict(rows, 4)
    best = "one ends highest in the one seed that was run: final accuracy 50.3 %, "
    assert verdict(rows, 4).startswith(best + "2.00 of 4 uploads a round.")
    assert verdict([*rows, *(row._replace(seed=1) for row in rows)], 4).startswith("one wins: ")
    rows[2] = round_of("perfect", 0.503, 4.0)
    assert "Perfect upload reaches 50.3 %, as much." in verdict(rows, 4)


def test_of_one_policy_alone_nothing_is_the_best(tmp_path: Path) -> None:
    rows = [round_of("random", 0.5, 2), round_of("perfect", 0.6, 4)]
    text = verdict(rows, 4)
    assert text.startswith("random, the only policy that was run, ends at final accuracy 50.0 %")
    assert "highest" not in text
    assert 'class="best"' not in page_of(rows, tmp_path)
    assert page_of([*rows, round_of("other", 0.4, 3)], tmp_path).count('class="best"') == 1


def level_with_the_best(rows: list[Row]) -> set[str]:
    return {place.policy for place in ranked(rows) if place.behind is not None}


@pytest.mark.parametrize("delivered", [0.0, 0.05])
def test_who_starves_is_not_the_best(delivered: float, tmp_path: Path) -> None:
    rows = [round_of("a", 0.07, 0.0), round_of("b", 0.072, delivered), round_of("perfect", 0.6, 4)]
    assert level_with_the_best(rows) == set()
    text = verdict(rows, 4)
    assert "highest" not in text
    assert text.startswith("Nobody delivered" if not delivered else "No policy is best")
    assert ("learning.payload_bits" in text) == (not delivered)
    assert ("0.05 of 4 a round, has b." in text) == bool(delivered)
    assert text.endswith("Perfect upload reaches 60.0 %.")
    assert 'class="best"' not in page_of(rows, tmp_path)


def page_of(rows: list[Row], folder: Path) -> str:
    (folder / "config.yaml").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedfade.experiments.report._pictures", lambda *given: {})
        return write_report(
            folder, load_config("small-cell", ["run.seeds=1"]), {}, rows
        ).read_text()


def test_the_table_of_the_report_stays_in_the_page(tmp_path: Path) -> None:
    """Nine columns are wider than a telephone: they scroll in a box of their own."""
    page = page_of([round_of("random", 0.5, 2)], tmp_path)
    assert re.search('<div class="wide" tabindex="0" role="region" aria-label=".*"><table', page)
    assert ".wide { overflow-x: auto; }" in page
    assert "4 clients, 2 sub-bands, 50 slots a round, 10 rounds of which 1 is done, 1 seed" in page


def made_up_rows(policy: str, accuracy: list[list[float]], **rest: list[list[float]]) -> list[Row]:
    """Rows of one policy from fields [seed][round]; the rest is zero, without costs and means."""
    missing = dict.fromkeys(("accuracy_averaged", "seconds", "joules"), math.nan)
    by_client = dict.fromkeys(("client_seconds", "client_joules"), "")
    blank = dict.fromkeys(Row._fields, 0.0) | {"policy": policy} | missing | by_client
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
    alone = summarise([row for row in rows if row.seed == 0], "random")
    assert list(alone.cells())[:2] == ["40.0", "-"]  # one seed has no spread


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
    rows = [row._replace(delivered=2.0) for row in rows]
    assert level_with_the_best(rows) == {"best", "level"}
    one_seed = [row for row in rows if row.seed == 0]  # which shows no noise
    assert level_with_the_best(one_seed) == {"best"}


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
