"""Who computes the points of a sweep: processes on this machine, or a Ray cluster.

Both take tasks and yield each task once, with its failure or None. A worker that dies (killed,
out of memory, its machine gone) is replaced and the task tried again; what a task itself refuses
(a `UserError`) is not tried twice.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedfade import __version__
from fedfade.config import Config, config_from_tree
from fedfade.errors import UserError
from fedfade.experiments.sweep_commands import OnSteps
from fedfade.seams import SWEEP_COMMANDS
from fedfade.storage import InUse, make_folder, staying, writing

_PATIENCE_S = 60.0  # for a worker that was asked to stop
_REFUSED = 2  # exit code of a worker whose task refused its input


class Task(NamedTuple):
    """One point to compute."""

    name: str
    command: str
    config: Config
    folder: Path


class Resources(BaseModel):
    """What one task gets; processes on one machine look at `cpus` only."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpus: int = Field(1, ge=1, description="cores, and threads of PyTorch")
    gpus: float = Field(0.0, ge=0, description="Ray: GPUs, or a share of one")
    custom: dict[str, float] = Field({}, description="Ray: other resources of the cluster")


OnShare = Callable[[str, float], None]
"""Told a running task's name and which part of it is done."""


# --- processes on this machine -----------------------------------------------------------------


class _Worker:
    """A process that computes one task. It saves and stops when its input ends."""

    def __init__(self, task: Task, attempt: int, threads: int) -> None:
        self.task, self.attempt = task, attempt
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        # -P: modules in the working folder are not imported in place of ours. A process group of
        # its own: Ctrl-C is for us, and we ask workers to stop.
        words = [sys.executable, "-P", "-m", "fedfade.experiments.workers"]
        given = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._process = Popen(
            words, stdin=PIPE, stdout=PIPE, stderr=self._errors, process_group=0, env=given
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        job = [task.command, task.config.model_dump(), str(task.folder), threads]
        with suppress(BrokenPipeError):  # it died at once; its exit code says so
            self._input.write(json.dumps(job).encode() + b"\n")
            self._input.flush()

    def listen(self, share: OnShare) -> int | None:
        """Pass on the last part that was reported; returns the exit code once there is one."""
        code = self._process.poll()
        if said := (self._output.read() or b"").split():
            with suppress(ValueError):
                share(self.task.name, float(said[-1]))
        return code

    def failure(self, code: int) -> str | None:
        """Why the process ended, None if it did its work."""
        with self._errors:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = said[-1] if said else "no word"
        if code in (0, _REFUSED):
            return last if code else None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the worker died {self.attempt} time(s), the last by {how}: {last}"

    def ask_to_stop(self) -> None:
        with suppress(OSError):
            self._input.close()

    def end(self, deadline: float) -> None:
        try:
            self._process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def on_this_machine(
    tasks: Sequence[Task], share: OnShare, workers: int, resources: Resources, retries: int
) -> Iterator[tuple[Task, str | None]]:
    """At most `workers` tasks at a time, each in a process of its own."""
    waiting = deque((task, 1) for task in tasks)
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Worker(*waiting.popleft(), resources.cpus))
            for worker in list(running):
                code = worker.listen(share)
                if code is None:
                    continue
                running.remove(worker)
                failure = worker.failure(code)
                if failure and code != _REFUSED and worker.attempt <= retries:
                    waiting.append((worker.task, worker.attempt + 1))
                else:
                    yield worker.task, failure
            time.sleep(0.05)
    finally:
        for worker in running:
            worker.ask_to_stop()
        deadline = time.monotonic() + _PATIENCE_S
        for worker in running:
            worker.end(deadline)


def main() -> None:
    """A worker process: one task from standard input, parts done to standard output."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command, tree, folder, threads = json.loads(sys.stdin.readline())

    def tell(done: int, total: int) -> None:
        with suppress(OSError):  # who listened is gone, and the end of input says so
            os.write(1, f"{done / max(1, total)}\n".encode())

    def stop_without_parent() -> None:
        """End of input means that the sweep stops or was killed: save, so another can go on."""
        while os.read(0, 1024):  # not sys.stdin: its lock must be free when the process ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_without_parent, daemon=True).start()
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                with staying(Path(folder).parent):  # else a moved sweep comes back by its old name
                    return _run(command, tree, Path(folder), threads, tell)
            except InUse:  # a worker of a killed sweep has not let go of the folder yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(command: str, tree: object, folder: Path, threads: int, tell: OnSteps) -> None:
    torch.set_num_threads(threads)
    SWEEP_COMMANDS.make(command).run(config_from_tree(tree), folder, tell)


# --- a Ray cluster -----------------------------------------------------------------------------


def on_ray(
    tasks: Sequence[Task],
    share: OnShare,
    address: str,
    resources: Resources,
    retries: int,
    patience_s: float = 5 * _PATIENCE_S,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[tuple[Task, str | None]]:
    """All tasks on a cluster; results travel back, so machines need no folder in common.

    Tasks on a cluster report no parts, so `share` is not called. A cluster may still grow: only
    after `patience_s` without any node that a task fits on is it given up.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        needed = "Ray, which is not installed: pip install 'fedfade[ray]'"
        raise UserError(f"--ray needs {needed}.") from None
    here = os.getcwd()
    try:
        with chdir("/"):  # Ray lets its workers import from the folder it is started in
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--ray = {address!r}: no cluster there ({sentence}).") from None
    given = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_retries": retries}
    compute = ray.remote(_compute).options(resources=resources.custom or None, **given)
    try:
        waiting = {}
        for task in tasks:
            job = (task.command, task.config.model_dump(), resources.cpus, here, __version__)
            waiting[compute.remote(*job)] = task
        fitting, told = time.monotonic(), ""  # when a node with these resources was last there
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for reference in done:
                yield _collect(ray, reference, waiting.pop(reference))
            if not (missing := _missing(resources, ray.nodes())):
                fitting = time.monotonic()
            elif time.monotonic() - fitting > patience_s:
                waited = f"after {patience_s:.0f} s of waiting for one"
                raise UserError(f"sweep field resources: no node has {missing}, {waited}.")
            elif missing != told:
                say(f"no node of the cluster has {missing}: waiting for one")
            told = missing
    finally:
        ray.shutdown()  # tasks still running end with their driver


def _missing(resources: Resources, nodes: Sequence[Mapping[str, Any]]) -> str:
    """What of the resources of a task the best node lacks; nothing where one has them all."""
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, **resources.custom}
    lacking = [
        [f"{need:g} {name}" for name, need in wanted.items() if has.get(name, 0) < need]
        for has in (node["Resources"] for node in nodes if node["Alive"])
    ]
    fewest: list[str] = min(lacking, key=len, default=["any resources"])
    return ", ".join(fewest)


def _compute(
    command: str, tree: object, threads: int, here: str, version: str
) -> tuple[dict[str, bytes], str | None]:
    """On a machine of the cluster: run a point in a folder of its own, return its files."""
    if version != __version__:
        return {}, f"this machine has fedfade {__version__}, the sweep was started by {version}"
    with suppress(OSError):  # a user's own code and files lie here, where machines share folders
        os.chdir(here)
    with tempfile.TemporaryDirectory(prefix="fedfade-") as name:
        folder = Path(name) / "point"
        try:
            _run(command, tree, folder, threads, lambda done, total: None)
        except UserError as error:
            return {}, str(error)
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}, None


def _collect(ray: Any, reference: Any, task: Task) -> tuple[Task, str | None]:
    """Write a result's files, the one that makes the folder whole last."""
    try:
        files, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()
        return task, f"lost with its worker: {reason[0] if reason else type(error).__name__}"
    make_folder(task.folder)
    marker = SWEEP_COMMANDS.make(task.command).marker
    for name in sorted(files, key=lambda name: name == marker):
        with writing(task.folder / name) as temporary:
            temporary.write_bytes(files[name])
    return task, failure


if __name__ == "__main__":
    main()
