"""`fedfade sweep`: nothing lost, nothing twice, whatever dies on the way."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fedfade.errors import UserError
from fedfade.experiments import read_rows
from fedfade.experiments.sweep import (
    Sweep,
    SweepProgress,
    load_sweep,
    run_sweep,
    seed_means,
    sweep_table,
)
from fedfade.experiments.sweep_figures import (
    read_sweep,
    sweep_figure,
    sweep_parts,
    swept_panels,
)
from fedfade.experiments.workers import Resources, on_ray, on_this_machine
from tests.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]
SLOW = "tests.experiments.slow_policy:Slow"


def sweep_file(folder: Path, **fields: object) -> Path:
    settings = dict(override.split("=", 1) for override in TINY if "run.seeds" not in override)
    tree = {
        "command": "compare",
        "preset": "paper",
        "set": {name: yaml.safe_load(value) for name, value in settings.items()},
    }
    tree["set"]["allocation.policies"] = ["random", "perfect"]
    extra = fields.pop("set", {})
    tree |= fields
    tree["set"] |= extra
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_grid_times_seeds_in_one_table_and_again_for_nothing(fedfade, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, grid={"learning.alpha": [0.5]}, seeds=[0, 3])
    out = tmp_path / "out"
    answer = fedfade("sweep", path, "--out", out, "--workers", 2)
    assert answer.code == 0, answer.err
    table = read_table(out / "sweep.csv")
    keys = {(line["learning.alpha"], line["seed"], line["policy"]) for line in table}
    assert len(table) == len(keys) == 2 * 2
    assert all(line["status"] == "done" for line in table)
    # On the screen as compare shows it: the same headings, units and digits, a dash for nothing.
    shown = [line.split() for line in answer.out.splitlines()]
    assert " ".join(shown[0]).endswith("acc. % uploads empty % wasted % Mbit/s fair s J")
    for line in shown[1:3]:
        own = [one for one in table if one["policy"] == line[1]]
        accuracy = sum(float(one["accuracy"]) for one in own) / 2
        assert line[3] == f"{100 * accuracy:.1f}"
    assert shown[2][-4:] == ["-", "1.00", "-", "-"]  # perfect sends nothing
    # A point is the run `fedfade compare` makes of the same configuration.
    point = next(line["point"] for line in table if line["seed"] == "3")
    words = [w for o in TINY if "run.seeds" not in o for w in ("--set", o)]
    alone = tmp_path / "alone"
    answer = fedfade(
        *("compare", "paper", "--out", alone, "--seeds", 1, *words, "--set", "run.seed=3"),
        *("--policies", "random,perfect", "--set", "learning.alpha=0.5"),
    )
    assert answer.code == 0, answer.err
    assert read_rows(alone / "metrics.csv") == read_rows(out / "points" / point / "metrics.csv")
    # Once more: nothing runs; a grown sweep runs only what is new.
    times = {p: p.stat().st_mtime_ns for p in out.glob("points/*/metrics.csv")}
    assert fedfade("sweep", path, "--out", out).code == 0
    sweep_file(tmp_path, grid={"learning.alpha": [0.5, 50]}, seeds=[0, 3])
    assert fedfade("sweep", path, "--out", out, "--workers", 2).code == 0
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert len(read_table(out / "sweep.csv")) == 2 * 2 * 2
    for name in ("alpha-accuracy.png", "alpha-uploads.png"):
        assert (out / "figures" / name).read_bytes()[:4] == b"\x89PNG"
    (out / "notes.txt").write_text("mine")
    sweep_file(tmp_path, grid={"learning.alpha": [5]}, seeds=[0])
    assert fedfade("sweep", path, "--out", out, "--workers", 2, "--overwrite").code == 0
    assert len(list(out.glob("points/*"))) == 1
    assert not (out / "figures").exists()  # nothing varies
    assert (out / "notes.txt").exists()


def test_pictures_of_a_table_by_hand(tmp_path: Path) -> None:
    """Means over seeds at every value of a field, the other field fixed; and on a page."""
    lines = ["point,radio.clusters,cell.mobility,seed,status,policy,accuracy,uploads,error"]
    for seed in (0, 1):
        for clusters in (28, 14):
            for mobility in ("ring", "fixed"):
                accuracy = 0.5 + clusters / 100 + seed / 10
                place = f"p,{clusters},{mobility},{seed}"
                lines.append(f"{place},done,random,{accuracy},{seed + 1},")
                lines.append(f"{place},done,perfect,,4,")
    lines.append("p,28,walk,0,failed,,,,no luck")
    (tmp_path / "sweep.csv").write_text("\n".join(lines) + "\n")
    fields, done = read_sweep(tmp_path)
    assert fields == ["radio.clusters", "cell.mobility"]
    assert len(done) == 16
    first, second, *rest = swept_panels(fields, done)
    assert len(rest) == 2
    assert (first.field, first.others) == ("radio.clusters", "cell.mobility = ring")
    assert (first.x, first.places) == (["14", "28"], [14.0, 28.0])  # in order
    assert (rest[0].x, rest[0].places) == (["ring", "fixed"], None)  # as asked for
    assert first.metrics["accuracy"]["random"].tolist() == pytest.approx(
        np.array([[0.64, 0.78], [0.74, 0.88]])
    )
    assert np.isnan(second.metrics["accuracy"]["perfect"]).all()
    figure = sweep_figure([first, second], "accuracy")
    left = figure.axes[0]
    assert left.containers[0].lines[0].get_ydata() == pytest.approx([69.0, 83.0])
    assert left.get_ylabel() == "final accuracy in %"
    chart = sweep_parts(tmp_path)[0].data
    assert chart["x"][0]["values"] == [14.0, 28.0]
    assert chart["y"][0]["values"][0] == [pytest.approx([64, 78]), pytest.approx([74, 88])]
    (tmp_path / "sweep.csv").write_text("something else\n")
    with pytest.raises(UserError, match="not a table of fedfade sweep"):
        read_sweep(tmp_path)


def test_trainings(fedfade, tmp_path: Path) -> None:
    small = {
        "qmix.episodes": 4,
        "qmix.parallel_episodes": 2,
        "qmix.hidden": [8],
        "qmix.batch_size": 16,
        "qmix.replay_size": 64,
        "qmix.gradients": "synthetic",
        "run.episodes_per_round": 2,
    }
    rates = [{"qmix.agent_rate": 1e-5}, {"qmix.agent_rate": 1e-4, "qmix.mixer": "vdn"}]
    path = sweep_file(tmp_path, command="train", set=small, list=rates)
    answer = fedfade("sweep", path, "--out", tmp_path / "out", "--workers", 1)
    assert answer.code == 0, answer.err
    table = read_table(tmp_path / "out" / "sweep.csv")
    assert [line["episodes"] for line in table] == ["4", "4"]
    assert [line["qmix.mixer"] for line in table] == ["", "vdn"]
    folder = tmp_path / "out" / "points" / table[0]["point"]
    assert (folder / "checkpoint.json").exists()


def test_a_killed_worker_is_replaced(tmp_path: Path, monkeypatch) -> None:
    """SIGKILL, as the kernel does when memory runs out: the point is continued or run again."""
    trace = tmp_path / "trace"
    monkeypatch.setenv("FEDFADE_TRACE", str(trace))
    monkeypatch.setenv("FEDFADE_PAUSE_S", "0.3")
    monkeypatch.chdir(ROOT)
    sweep = load_sweep(sweep_file(tmp_path, set={"allocation.policies": [SLOW]}, seeds=2))
    killed = []

    compute = partial(on_this_machine, workers=1, resources=Resources(), retries=3)

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not trace.exists():
            time.sleep(0.02)
        killed.append(int(trace.read_text().split()[0]))
        os.kill(killed[0], signal.SIGKILL)

    watcher = threading.Thread(target=watch)
    watcher.start()
    failures = run_sweep(sweep, tmp_path / "out", compute, lambda progress: None)
    watcher.join()
    assert not failures
    begun = {line.split()[0] for line in trace.read_text().splitlines()}
    assert len(begun) == 3  # two points, one of them by two workers
    assert list(sweep_table(sweep, tmp_path / "out", {})["status"]) == ["done", "done"]


def test_a_worker_nobody_listens_to_does_its_work(tmp_path: Path, monkeypatch) -> None:
    """Its sweep was killed: what it had to tell must not keep it from saving."""
    monkeypatch.setenv("FEDFADE_TRACE", str(tmp_path / "trace"))
    point = load_sweep(sweep_file(tmp_path, set={"allocation.policies": [SLOW]})).points[0]
    words = [sys.executable, "-P", "-m", "fedfade.experiments.workers"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=ROOT, **pipes) as worker:
        worker.stdout.close()
        job = ["compare", point.config.model_dump(), str(tmp_path / "point"), 1]
        worker.stdin.write(json.dumps(job).encode() + b"\n")
        worker.stdin.flush()
        assert worker.wait(120) == 0, worker.stderr.read()


def test_a_sweep_moved_away_does_not_come_back(tmp_path: Path, monkeypatch) -> None:
    out, elsewhere, trace = tmp_path / "out", tmp_path / "elsewhere", tmp_path / "trace"
    monkeypatch.setenv("FEDFADE_TRACE", str(trace))
    monkeypatch.setenv("FEDFADE_PAUSE_S", "0.3")
    monkeypatch.chdir(ROOT)
    sweep = load_sweep(sweep_file(tmp_path, set={"allocation.policies": [SLOW]}, seeds=3))
    compute = partial(on_this_machine, workers=1, resources=Resources(), retries=3)

    def move(progress: object) -> None:
        if trace.exists() and out.exists():
            out.rename(elsewhere)

    with pytest.raises(UserError, match="was moved or removed while in use"):
        run_sweep(sweep, out, compute, move)
    assert elsewhere.exists()
    assert not out.exists()


def working_folder(tmp_path: Path) -> Path:
    """With modules that nobody is to import, and one that a configuration names."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("torch", "numpy", "queue", "scipy", "fedfade"):
        (here / f"{name}.py").write_text("raise SystemExit(f'imported {__file__}')\n")
    slow = ROOT / "tests" / "experiments" / "slow_policy.py"
    (here / "own_policy.py").write_text(slow.read_text())
    return here


def test_modules_in_the_working_folder_stay_out_of_workers(tmp_path: Path, monkeypatch) -> None:
    """A stray torch.py is not imported; what the configuration names by its path is."""
    here = working_folder(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("FEDFADE_TRACE", str(tmp_path / "trace"))
    policies = {"allocation.policies": ["max-sum-rate", "own_policy:Slow"]}
    sweep = load_sweep(sweep_file(tmp_path, set=policies))
    monkeypatch.chdir(here)
    compute = partial(on_this_machine, workers=1, resources=Resources(), retries=0)
    assert run_sweep(sweep, tmp_path / "out", compute, lambda progress: None) == {}
    assert (tmp_path / "trace").exists()


OWN_COMMAND = """
class Count:
    marker = "clients.txt"

    def run(self, config, folder, tell):
        folder.mkdir(parents=True)
        tell(1, 2)
        (folder / self.marker).write_text(str(config.learning.clients))

    def lines(self, config, folder):
        path = folder / self.marker
        return [{"policy": "none", "clients": int(path.read_text())}] if path.exists() else None
"""


def test_a_command_of_the_users_own(fedfade, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_command.py").write_text(OWN_COMMAND)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(tmp_path)
    path = sweep_file(tmp_path, command="own_command:Count", grid={"learning.clients": [3, 4]})
    answer = fedfade("sweep", path, "--out", "out", "--workers", 2)
    assert answer.code == 0, answer.err
    assert [line["clients"] for line in read_table(tmp_path / "out" / "sweep.csv")] == ["3", "4"]
    path = sweep_file(tmp_path, command="own_command:Missing")
    answer = fedfade("sweep", path, "--out", "none")
    assert answer.code == 2
    assert "'own_command:Missing' cannot be loaded" in answer.err.replace("\n", " ")
    assert not (tmp_path / "none").exists()


def test_means_over_seeds(tmp_path: Path) -> None:
    """Points whose values are lists, and points that lack a field of others, each on its own."""
    listed = [{"qmix.hidden": [4]}, {"learning.alpha": 50}]
    sweep = load_sweep(sweep_file(tmp_path, list=listed, seeds=2))
    values = {"status": "done", "policy": "random", "episodes": 3}
    lines = [
        {"point": point.name, **point.varied, "seed": point.seed, **values, "accuracy": accuracy}
        for point, accuracy in zip(sweep.points, [0.25, 0.75, 0.5, math.nan], strict=True)
    ]
    means = seed_means(sweep, pd.DataFrame([*lines, {"status": "waiting"}], dtype=object))
    assert means.to_dict("list") == {
        "qmix.hidden": [[4], ""],
        "learning.alpha": ["", 50],
        "policy": ["random", "random"],
        "seeds": [2, 2],
        "accuracy": [0.5, 0.5],
    }


def test_what_a_point_refuses_is_reported_and_the_rest_goes_on(fedfade, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, grid={"learning.data": ["digits", "nowhere.npz"]})
    out = tmp_path / "out"
    answer = fedfade("sweep", path, "--out", out, "--workers", 2)
    assert answer.code == 1
    assert "1 of 2 points failed" in answer.err
    table = read_table(out / "sweep.csv")
    assert {line["status"] for line in table} == {"done", "failed"}
    error = next(line["error"] for line in table if line["status"] == "failed")
    assert "learning.data = 'nowhere.npz'" in error


def test_a_value_that_yaml_takes_for_a_date(fedfade, tmp_path: Path) -> None:
    path, out = tmp_path / "sweep.yaml", tmp_path / "out"
    path.write_text("preset: paper\nset: {run.rounds: 1}\ngrid: {learning.data: [2024-01-01]}\n")
    assert load_sweep(path).points[0].config.learning.data == "2024-01-01"
    answer = fedfade("sweep", path, "--out", out, "--workers", 1)
    assert answer.code == 1
    assert "learning.data = '2024-01-01'" in read_table(out / "sweep.csv")[0]["error"]


def test_a_damaged_point_is_reported_and_the_rest_goes_on(fedfade, tmp_path: Path) -> None:
    path, out = sweep_file(tmp_path, seeds=2), tmp_path / "out"
    assert fedfade("sweep", path, "--out", out, "--workers", 2).code == 0
    whole = {line["point"]: line for line in read_table(out / "sweep.csv")}
    damaged, other = whole
    metrics = out / "points" / damaged / "metrics.csv"
    for text in ("damaged", "".join(metrics.read_text().splitlines(keepends=True)[:-1])):
        metrics.write_text(text)
        answer = fedfade("sweep", path, "--out", out, "--workers", 2)
        assert answer.code == 1
        assert "metrics.csv" in answer.err
        lines = {line["point"]: line for line in read_table(out / "sweep.csv")}
        assert lines[damaged]["status"] == "failed"
        assert lines[other]["accuracy"] == whole[other]["accuracy"]


def test_points_of_agents_that_were_trained_on_are_refused(fedfade, tmp_path: Path) -> None:
    agents, out = tmp_path / "agents", tmp_path / "out"
    words = [w for o in [*TINY, "qmix.hidden=[4]"] for w in ("--set", o)]
    train = ["train", "paper", *words, "--set", "qmix.gradients=synthetic", "--out", agents]
    assert fedfade(*train, "--episodes", 20).code == 0
    path = sweep_file(tmp_path, set={"allocation.checkpoint": str(agents)})
    assert fedfade("sweep", path, "--out", out, "--workers", 1).code == 0
    assert fedfade(*train, "--episodes", 40).code == 0
    answer = fedfade("sweep", path, "--out", out, "--workers", 1)
    assert answer.code == 1
    (line,) = read_table(out / "sweep.csv")
    assert "are not those of the run" in line["error"]


def test_how_often_a_point_is_saved_does_not_make_it_another(tmp_path: Path) -> None:
    names = [
        load_sweep(sweep_file(tmp_path, set={"run.checkpoint_s": s})).points[0].name
        for s in (5, 500)
    ]
    assert names[0] == names[1]


def test_points_of_the_last_version_are_found_again(tmp_path: Path) -> None:
    """Fields that a configuration gained since then do not make it another."""
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "preset: quickstart\ngrid: {learning.alpha: [5]}\n"
        "set: {run.rounds: 1, allocation.policies: [random, perfect], "
        "learning.previous_update: last, cell.placement: waypoint, run.evaluate_every: 1}\n"
    )
    assert load_sweep(path).points[0].name == "alpha=5_seed=0-71b97187"


def test_sigterm_stops_cleanly_and_the_sweep_goes_on(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, set={"allocation.policies": [SLOW]}, seeds=2)
    out, trace = tmp_path / "out", tmp_path / "trace"
    words = [sys.executable, "-m", "fedfade", "sweep", str(path), "--out", str(out)]
    environment = os.environ | {"FEDFADE_TRACE": str(trace), "FEDFADE_PAUSE_S": "0.5"}
    options = {"cwd": ROOT, "env": environment, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*words, "--workers", "1"], **options)
    deadline = time.monotonic() + 120
    while not trace.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command continues" in errors
    environment["FEDFADE_PAUSE_S"] = "0"
    again = subprocess.run([*words, "--workers", "1"], check=False, **options)
    assert again.returncode == 0, again.stderr
    assert all(line["status"] == "done" for line in read_table(out / "sweep.csv"))


BAD = [
    ({"command": "dance"}, "command"),
    ({"grid": {"radio.clusters": []}}, "0 points"),
    ({"grid": {"radio.clusters": [14, 1]}}, "radio.clusters = 1"),
    ({"grid": {"radio.nonsense": [14]}}, "radio.nonsense"),
    ({"speed": 3}, "'speed' is not known"),
    ({"seeds": 0}, "seeds"),
    ({"seeds": [1, 1]}, "asks twice"),
    ({"grid": {"run.rounds": list(range(1, 2001))}, "seeds": 1000}, "2000000 points"),
    ({"set": {"run.seeds": 5}}, "'run.seeds' is not allowed: the sweep's own 'seeds'"),
    ({"grid": {"run.seed": [1, 2, 3]}}, "'run.seed' is not allowed: the sweep's own 'seeds'"),
    ({"list": [{"run": {"seed": 7}}]}, "'run' is not allowed: the sweep's own 'seeds'"),
    ({"grid": {"radio.clusters": [14]}, "list": [{"radio.clusters": 3}]}, "both in grid"),
]


@pytest.mark.parametrize(("fields", "sentence"), BAD)
def test_bad_sweeps_are_one_sentence(fields, sentence: str, fedfade, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, **fields)
    answer = fedfade("sweep", path, "--out", tmp_path / "out")
    assert answer.code == 2
    assert sentence in answer.err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_no_ray_and_no_file_are_one_sentence(fedfade, tmp_path: Path) -> None:
    assert fedfade("sweep", tmp_path / "none.yaml").code == 2
    path = sweep_file(tmp_path)
    answer = fedfade("sweep", path, "--ray", "auto", "--workers", 2)
    assert answer.code == 2
    assert "exclude each other" in answer.err


def begun(trace: Path, parent: int | None = None) -> list[str]:
    """Points begun, by all processes or by the children of one."""
    lines = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    wanted = [line for line in lines if parent is None or int(line[1]) == parent]
    return [snr for _, _, number, snr in wanted if number == "0"]


def gives_up_what_no_node_has(sweep: Sweep, out: Path, address: str) -> None:
    """Says what is missing, and does not wait for ever."""
    told: list[str] = []
    how = {"retries": 0, "patience_s": 2, "say": told.append}
    compute = partial(on_ray, address=address, resources=Resources(custom={"TPU": 2}), **how)
    with pytest.raises(UserError, match="no node has 2 TPU, after 2 s"):
        run_sweep(sweep, out, compute, lambda progress: None)
    assert told == ["no node of the cluster has 2 TPU: waiting for one"]


def test_a_ray_cluster_that_loses_a_node(tmp_path: Path, monkeypatch, ray_home) -> None:
    """Two nodes, one killed half way: every point once in the results, none missing."""
    pytest.importorskip("ray", reason="needs fedfade[ray]")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(working_folder(tmp_path))  # what lies there stays out of these workers too
    trace = tmp_path / "trace"
    monkeypatch.setenv("FEDFADE_TRACE", str(trace))
    monkeypatch.setenv("FEDFADE_PAUSE_S", "0.7")
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        node = cluster.add_node(num_cpus=1)
        own = {"allocation.policies": ["own_policy:Slow"]}
        sweep = load_sweep(sweep_file(tmp_path, set=own, seeds=8))
        out = tmp_path / "out"
        gives_up_what_no_node_has(sweep, out, cluster.address)
        progress: list[SweepProgress] = []
        raylet = node.all_processes["raylet"][0].process.pid

        def kill_while_it_works() -> None:
            """Half way, as soon as the second node begins a point."""
            while not (progress and progress[-1].done >= 3):
                time.sleep(0.05)
            before = len(begun(trace, raylet))
            while len(begun(trace, raylet)) == before:
                time.sleep(0.02)
            cluster.remove_node(node, allow_graceful=False)

        killer = threading.Thread(target=kill_while_it_works, daemon=True)
        killer.start()

        compute = partial(on_ray, address=cluster.address, resources=Resources(cpus=1), retries=3)
        failures = run_sweep(sweep, out, compute, progress.append)
        killer.join(30)
        assert not killer.is_alive()
    finally:
        cluster.shutdown()
    assert not failures
    assert progress[-1].done == 8
    table = sweep_table(sweep, out, {})
    assert list(table["seed"]) == list(range(8))
    assert set(table["status"]) == {"done"}
    # The node really worked and really died: the point it had begun was begun again.
    starts = Counter(begun(trace))
    assert len(starts) == 8
    assert sum(starts.values()) == 9
    for point in sweep.points:
        record = json.loads((out / "points" / point.name / "run.json").read_text())
        assert record["finished"]
        rows = read_rows(out / "points" / point.name / "metrics.csv")
        assert [row.round for row in rows] == [0, 1, 2]


def test_the_sweep_in_the_docs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "sweep.md").read_text()
    path = tmp_path / "sweep.yaml"
    path.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    sweep = load_sweep(path)
    assert len(sweep.points) == 3 * 3 * 2 * 5
    assert sweep.asked.resources == Resources(cpus=2, gpus=0.25)
    assert sweep.asked.retries == 3
