"""Full disks, folders nobody may write to, folders moved away, signals, clocks that jump."""

from __future__ import annotations

import copy
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
import torch

from fedfade.agents import Trainer, train
from fedfade.agents.checkpoint import has_checkpoint
from fedfade.config import Config, changed, load_config, render_config
from fedfade.errors import UserError
from fedfade.experiments import Comparison, RunFolder, SideBySide
from fedfade.experiments.metrics import read_rows, rows_text
from fedfade.storage import read_json, write_json
from tests.conftest import TINY
from tests.reliability.kills import SMALL_CELL, overrides, train_facts, train_readable

CPU = torch.device("cpu")
SETTINGS = [word for override in TINY for word in ("--set", override)]


@pytest.fixture(scope="module")
def comparing() -> Config:
    changes = ["run.checkpoint_s=0", "run.seeds=1", "run.rounds=2"]
    changes += ["allocation.policies=[random, perfect]"]
    return load_config("paper", [*TINY, *changes])


@pytest.fixture(scope="module")
def training() -> Config:
    changes = ["qmix.episodes=60", "qmix.gradients=synthetic", "run.checkpoint_s=0"]
    return load_config("small-cell", [*SMALL_CELL, *changes, "run.device=cpu"])


class Compared:
    """A comparison that can be run in several folders; data and model are loaded once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.federation = Comparison(config, CPU).federation

    def run(self, folder: Path, progress: Callable[[int, str], None] = lambda n, d: None) -> str:
        place = RunFolder(folder, self.config, CPU)
        with place.open():
            if not place.finished:
                comparison = Comparison(self.config, CPU, federation=self.federation)
                SideBySide([comparison], [place]).run(progress)
        models = str(sorted(place.record["models"].items()))
        return place.metrics.read_text() + models


@pytest.fixture(scope="module")
def compared(comparing: Config) -> Compared:
    return Compared(comparing)


@pytest.fixture(scope="module")
def whole(compared: Compared, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed comparison leaves."""
    return compared.run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def trained(training: Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed training leaves."""
    folder = tmp_path_factory.mktemp("trained")
    train(training, folder)
    return train_facts(folder)


def no_rubbish(folder: Path) -> None:
    assert not [p for p in folder.rglob(".fedfade-*")]


# --- disks --------------------------------------------------------------------------------------


def _failing(monkeypatch: pytest.MonkeyPatch, name: str, at: int, number: int) -> list[int]:
    """Let the `at`-th call of an os function below fail, as a full or broken disk makes it."""
    original, calls = getattr(os, name), []

    def faulty(*arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == at:
            raise OSError(number, os.strerror(number))
        return original(*arguments, **named)

    monkeypatch.setattr(os, name, faulty)
    return calls


def _refusal(compared: Compared, folder: Path) -> str | None:
    """The sentence a comparison ended with, if it did not reach its end."""
    try:
        compared.run(folder)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("function", "number"),
    [
        ("fsync", errno.ENOSPC),
        ("replace", errno.EROFS),
        ("fsync", errno.EIO),
        ("open", errno.EDQUOT),
    ],
)
def test_every_write_of_a_comparison_may_fail(
    function: str, number: int, compared: Compared, whole: str, tmp_path: Path
) -> None:
    """Wherever the disk gives up: one sentence, no rubbish, and the run goes on afterwards."""
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            calls = _failing(patch, function, at, number)
            said = _refusal(compared, folder)
        if said is None and len(calls) < at:
            break
        assert said is None or re.search(r"cannot be (written|made|read)", said)
        no_rubbish(folder)
        if at % 4 == 1:  # a resumed run for some of them
            assert compared.run(folder) == whole
    assert at > 5


def test_every_write_of_a_training_may_fail(
    training: Config, trained: dict[str, str], tmp_path: Path
) -> None:
    for at in range(1, 14, 2):
        folder = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            _failing(patch, "fsync", at, errno.ENOSPC)
            with suppress(UserError):
                train(training, folder)
        no_rubbish(folder)
        train_readable(folder)
        train(training, folder)
        assert train_facts(folder) == trained


def _can_mount() -> bool:
    """Whether this user may make a small disk; the others are as good, only less real."""
    probe = Path("/tmp") / f"fedfade-probe-{os.getpid()}"
    probe.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(probe)],
            capture_output=True,
            check=False,
        )
        if mounted.returncode == 0:
            subprocess.run(["umount", str(probe)], check=True)
        return mounted.returncode == 0
    except OSError:
        return False
    finally:
        probe.rmdir()


SMALL_DISKS = ["limit", *(["tmpfs"] if os.geteuid() == 0 and _can_mount() else [])]


@pytest.fixture(params=SMALL_DISKS)
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder on 2 MB, and what to put before a command so that it has no more."""
    if request.param == "limit":
        # Every file ends at 300 KB: for a writer the same as a disk that is full.
        yield (
            tmp_path / "disk",
            ["prlimit", "--fsize=300000"]
            if shutil.which("prlimit")
            else [*("bash", "-c", 'ulimit -f 293; exec "$@"', "bash")],
        )
        return
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        yield disk, []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_ends_in_a_sentence(small_disk: tuple[Path, list[str]]) -> None:
    """The real commands on a disk too small for their checkpoints."""
    disk, before = small_disk
    commands = {
        "compare": ["compare", "paper", "--policies", "random,perfect", *overrides(TINY)],
        "train": ["train", "small-cell", *overrides([*SMALL_CELL, "qmix.replay_size=20000"])],
    }
    for name, words in commands.items():
        out = disk / name
        command = [*before, sys.executable, "-m", "fedfade", *words, "--out", str(out)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 2, answer.stderr
        assert "Traceback" not in answer.stderr
        assert re.search(r"cannot be written: (no space left|file too large)", answer.stderr)
        assert load_config(out / "config.yaml")  # what was written before is whole
        no_rubbish(out)


def read_only() -> str:
    """A folder this user may not write to: root may write anywhere but into the kernel's."""
    return "/proc/fedfade" if os.geteuid() == 0 else "/fedfade"


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "paper", *SETTINGS, "--out"],
        ["train", "small-cell", "--out"],
        ["channel", "sample", "--drops", "2", "--out"],
        ["learn", "paper", *SETTINGS, "--out"],
        ["sweep", "SWEEP", "--out"],
    ],
)
def test_a_folder_nobody_may_write_to(words: list[str], fedfade, tmp_path: Path) -> None:
    sweep = tmp_path / "s.yaml"
    sweep.write_text("preset: small-cell\nset: {learning.data: digits}\n")
    out = read_only() + ("/a.npz" if words[0] == "channel" else "/run")
    answer = fedfade(*(str(sweep) if word == "SWEEP" else word for word in words), out)
    assert answer.code == 2
    assert re.search(r"cannot be (made|written)", answer.err)
    assert "Traceback" not in answer.err


# --- folders that go away -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_run_folder_that_goes_away(
    how: str, compared: Compared, whole: str, tmp_path: Path
) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def progress(done: int, doing: str) -> None:
        if (done, doing) == (1, "evaluation"):
            if how == "removed":
                shutil.rmtree(folder)
            else:
                folder.rename(elsewhere)
            if how == "replaced":
                folder.mkdir()

    with pytest.raises(UserError, match="was moved or removed while in use"):
        compared.run(folder, progress)
    assert not folder.exists() or (how == "replaced" and not any(folder.iterdir()))
    if how != "removed":
        assert (elsewhere / "checkpoint.safetensors").exists()
        assert compared.run(elsewhere) == whole


# --- folders that are changed while nobody runs -------------------------------------------------


def stopped(compared: Compared, folder: Path) -> None:
    """A comparison that is interrupted after its first round."""

    def stop(done: int, doing: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared.run(folder, stop)


@pytest.mark.parametrize("change", ["configuration", "metrics", "checkpoint", "version"])
def test_a_checkpoint_belongs_to_its_run(
    change: str, compared: Compared, whole: str, tmp_path: Path, fedfade
) -> None:
    """What is changed between a stop and the continuation is refused, or at least told of."""
    folder = tmp_path / "run"
    stopped(compared, folder)
    alike = compared
    if change in ("configuration", "checkpoint"):
        alike = copy.copy(compared)
        alike.config = changed(compared.config, {"learning.alpha": 5.0})
    if change == "configuration":
        (folder / "config.yaml").write_text(render_config(alike.config))
        with pytest.raises(UserError, match=r"is of another configuration than config\.yaml"):
            alike.run(folder)
    elif change == "checkpoint":
        stopped(alike, tmp_path / "other")
        for name in ("checkpoint.safetensors", "metrics.csv"):
            shutil.copy(tmp_path / "other" / name, folder / name)
        with pytest.raises(UserError, match=r"is of another configuration than config\.yaml"):
            compared.run(folder)
    elif change == "metrics":
        rows = read_rows(folder / "metrics.csv")
        rows[0] = rows[0]._replace(accuracy=0.99)
        (folder / "metrics.csv").write_text(rows_text(rows))
        with pytest.raises(UserError, match=r"is not of the rounds in metrics\.csv"):
            compared.run(folder)
    else:
        record = read_json(folder / "run.json")
        write_json(folder / "run.json", record | {"torch": "1.0", "fedfade": "0.0.1"})
        answer = fedfade("compare", folder / "config.yaml", "--out", folder)
        assert answer.code == 0
        assert "note: since the run began, torch was 1.0, is" in answer.err
        assert "fedfade was 0.0.1" in answer.err


@pytest.mark.parametrize("link", [".lock", "figures", "tensorboard", "points", "seed-0", "a/b"])
def test_links_in_a_folder_are_refused(link: str, tmp_path: Path, fedfade) -> None:
    """Nothing is written or cleaned up where they lead."""
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    (elsewhere / ".fedfade-kept").write_text("of somebody else")
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(elsewhere)
    (tmp_path / "s.yaml").write_text("preset: small-cell\n")
    for words in (
        ["compare", "paper", *SETTINGS],
        ["train", "small-cell", "--seeds", 2],
        ["train", "small-cell"],
        ["sweep", tmp_path / "s.yaml"],
        ["reproduce", "regimes"],
    ):
        answer = fedfade(*words, "--out", out)
        assert answer.code == 2
        assert "is a link, which may lead out of" in answer.err, words
    assert [path.name for path in elsewhere.iterdir()] == [".fedfade-kept"]


def test_a_training_folder_moved_away(
    training: Config, trained: dict[str, str], tmp_path: Path
) -> None:
    def look(trainer: Trainer, report: object) -> None:
        if trainer.batch == 2:
            (tmp_path / "run").rename(tmp_path / "elsewhere")

    with pytest.raises(UserError, match="was moved or removed while in use"):
        train(training, tmp_path / "run", look)
    assert not (tmp_path / "run").exists()
    train(training, tmp_path / "elsewhere")
    assert train_facts(tmp_path / "elsewhere") == trained


# --- signals ------------------------------------------------------------------------------------


def test_an_interrupt_at_any_line_of_a_comparison(
    compared: Compared, whole: str, tmp_path: Path
) -> None:
    """KeyboardInterrupt before each line that the loop over rounds executes, the first time and
    the last; then it goes on."""
    own = (Comparison.add, Comparison.save_if_due, Comparison.save, Comparison.finish)
    loop = (SideBySide.run, *own)
    codes = {function.__code__ for function in loop}

    def run(folder: Path, stop_at: int) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []  # functions and lines

        def trace(frame: FrameType, event: str, argument: object):
            if frame.f_code not in codes:
                return None

            def line(frame: FrameType, event: str, argument: object):
                if event == "line":
                    seen.append((frame.f_code.co_qualname, frame.f_lineno))
                    if len(seen) == stop_at:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return line

            return line

        sys.settrace(trace)
        try:
            compared.run(folder)
        finally:
            sys.settrace(None)
        return seen

    lines = run(tmp_path / "count", stop_at=-1)
    assert len(lines) > 20
    last = {place: number for number, place in enumerate(lines, 1)}
    first = {place: number for number, place in reversed([*enumerate(lines, 1)])}
    for stop_at in sorted({*first.values(), *last.values()} - {1, 2}):
        folder = tmp_path / str(stop_at)
        with pytest.raises(KeyboardInterrupt):
            run(folder, stop_at)
        no_rubbish(folder)
        assert compared.run(folder) == whole, stop_at


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_training_with_a_checkpoint(number: int, tmp_path: Path) -> None:
    """A real process: one sentence, exit code 130, the batch that was playing is saved."""
    out = tmp_path / "run"
    words = ["train", "small-cell", "--out", str(out), "--set", "qmix.episodes=1000000"]
    changes = [change for change in SMALL_CELL if "episodes=120" not in change]
    words += [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "fedfade", *words, "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not (out / "tensorboard").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped; the same command continues in" in " ".join(errors.split())
    assert has_checkpoint(out)
    train_readable(out)


# --- clocks -------------------------------------------------------------------------------------


def test_a_clock_that_jumps(
    compared: Compared, training: Config, whole: str, trained: dict[str, str], tmp_path: Path
) -> None:
    """The time of day goes back and forth by years; results and checkpoints do not care."""
    now, jumps = time.time(), iter(range(10**9))

    def jumping() -> float:
        return now + (-1) ** next(jumps) * 3e8

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", jumping)
        patch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
        assert compared.run(tmp_path / "compare") == whole
        train(training, tmp_path / "train")
    assert train_facts(tmp_path / "train") == trained
