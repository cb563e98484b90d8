"""Who computes the points of a sweep: processes on this machine, or a Ray cluster.

Both take tasks and yield each task once, with its failure or None. A worker that dies (killed,
out of memory, its machine gone) is replaced and the task tried again; what a task itself refuses
(a `UserError`) is not tried twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedfade import __version__
from fedfade.config import Config, config_from_tree
from fedfade.errors import UserError
from fedfade.experiments.points import KINDS, Tell
from fedfade.storage import InUse, make_folder, writing

_PATIENCE_S = 60.0  # for a worker that was asked to stop
_MARKERS = (
    "run.json",
    "checkpoint.json",
    "claims.md",
)  # say that a folder is whole, so they are written last


@dataclass(frozen=True)
class Task:
    """One point to compute."""

    name: str
    command: str
    config: Config
    folder: Path


@dataclass(frozen=True)
class Resources:
    """What one task gets."""

    cpus: int = 1
    gpus: float = 0.0
    custom: dict[str, float] = field(default_factory=dict)
    retries: int = 3


Share = Callable[[str, float], None]
"""Told a running task's name and which part of it is done."""


# --- processes on this machine -----------------------------------------------------------------


@dataclass
class _Running:
    task: Task
    attempt: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes]


def on_this_machine(
    tasks: Sequence[Task], workers: int, resources: Resources, share: Share
) -> Iterator[tuple[Task, str | None]]:
    """At most `workers` tasks at a time, each in a process of its own."""
    waiting = deque((task, 1) for task in tasks)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_begin(*waiting.popleft(), resources.cpus))
            for one in list(running):
                _listen(one, share)
                code = one.process.poll()
                if code is None:
                    continue
                running.remove(one)
                failure = _failure(one, code)
                if failure and code != 2 and one.attempt <= resources.retries:
                    waiting.append((one.task, one.attempt + 1))
                else:
                    yield one.task, failure
            time.sleep(0.05)
    finally:
        _stop(running)


def _begin(task: Task, attempt: int, threads: int) -> _Running:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
    process = subprocess.Popen(
        [sys.executable, "-m", "fedfade.experiments.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        process_group=0,  # Ctrl-C is for us; workers are told in _stop
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    job = {
        "command": task.command,
        "config": task.config.model_dump(),
        "folder": str(task.folder),
        "threads": threads,
    }
    with suppress(BrokenPipeError):  # it died at once; its exit code says so
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()  # and stays open: the worker stops when we are gone
    os.set_blocking(process.stdout.fileno(), False)
    return _Running(task, attempt, process, errors)


def _listen(one: _Running, share: Share) -> None:
    """The last part a worker reported."""
    assert one.process.stdout is not None
    lines = (one.process.stdout.read() or b"").split()
    if lines:
        with suppress(ValueError):
            share(one.task.name, float(lines[-1]))


def _failure(one: _Running, code: int) -> str | None:
    """Why a worker ended, None if it did its work."""
    with one.errors:
        one.errors.seek(0)
        said = one.errors.read().decode(errors="replace").strip().splitlines()
    if code == 0:
        return None
    last = said[-1] if said else "no word"
    if code == 2:
        return last
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the worker died {one.attempt} time(s), the last by {how}: {last}"


def _stop(running: Sequence[_Running]) -> None:
    """Let running points save where they are, then end them."""
    for one in running:
        assert one.process.stdin is not None
        with suppress(OSError):
            one.process.stdin.close()  # see _stop_without_parent
    deadline = time.monotonic() + _PATIENCE_S
    for one in running:
        try:
            one.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        one.errors.close()


def main() -> None:
    """A worker process: one task from standard input, parts done to standard output."""
    import torch

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    torch.set_num_threads(job["threads"])

    def tell(done: int, total: int) -> None:
        sys.stdout.write(f"{done / max(1, total)}\n")
        sys.stdout.flush()

    try:
        config = config_from_tree(job["config"])
        _run_when_free(job["command"], config, Path(job["folder"]), tell)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _stop_without_parent() -> None:
    """End of input means that the sweep stops or was killed: save, so that another can go on."""
    while os.read(0, 1024):  # not sys.stdin: its lock must be free when the process ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _run_when_free(command: str, config: Config, folder: Path, tell: Tell) -> None:
    """Run a point, waiting for a worker of a killed sweep to let go of its folder."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            KINDS[command].run(config, folder, tell)
        except InUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


# --- a Ray cluster -----------------------------------------------------------------------------


def on_ray(
    tasks: Sequence[Task], address: str, resources: Resources
) -> Iterator[tuple[Task, str | None]]:
    """All tasks on a cluster; results travel back, so machines need no folder in common."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _import_ray()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--ray = {address!r}: no cluster there ({sentence}).") from None
    compute = ray.remote(_compute).options(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        resources=resources.custom or None,
        max_retries=resources.retries,
    )
    try:
        waiting = {
            compute.remote(
                task.command, task.config.model_dump_json(), resources.cpus, __version__
            ): task
            for task in tasks
        }
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for reference in done:
                yield _collect(ray, reference, waiting.pop(reference))
    finally:
        ray.shutdown()  # tasks still running end with their driver


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError(
            "--ray needs Ray, which is not installed: pip install 'fedfade[ray]'."
        ) from None
    return ray


def _compute(
    command: str, config_json: str, threads: int, version: str
) -> tuple[dict[str, bytes], str | None]:
    """On a machine of the cluster: run a point in a folder of its own, return its files."""
    import torch

    torch.set_num_threads(threads)
    if version != __version__:
        return {}, f"this machine has fedfade {__version__}, the sweep was started by {version}"
    with tempfile.TemporaryDirectory(prefix="fedfade-") as name:
        folder = Path(name) / "point"
        try:
            config = config_from_tree(json.loads(config_json))
            KINDS[command].run(config, folder, lambda done, total: None)
        except UserError as error:
            return {}, str(error)
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}, None


def _collect(ray: Any, reference: Any, task: Task) -> tuple[Task, str | None]:
    """Write a result's files, those that make the folder whole last."""
    try:
        files, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()
        return task, f"lost with its worker: {reason[0] if reason else type(error).__name__}"
    make_folder(task.folder)
    for name in sorted(files, key=lambda name: name in _MARKERS):
        with writing(task.folder / name) as temporary:
            temporary.write_bytes(files[name])
    return task, failure


if __name__ == "__main__":
    main()
