"""Does memory stay flat? Thousands of small federated rounds, thousands of small training batches.

Small in size so that a leak of any kind shows: nothing here should hold more after the last step
than after the first hundreds, except one line of metrics a round and policy.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import torch

from fedfade.bench import machine
from fedfade.config import load_config

SMALL = [
    "learning.data=digits",
    "learning.clients=2",
    "learning.local_work=1",
    "learning.batch_size=8",
    "learning.payload_bits=200000",
    "radio.source=rayleigh",
    "radio.subbands=2",
    "radio.slots=6",
    "run.seeds=1",
    "run.device=cpu",
    "run.evaluate_every=100",
]
QMIX = [
    "qmix.gradients=synthetic",
    "qmix.hidden=[8]",
    "qmix.mixing_width=4",
    "qmix.hypernet_width=4",
    "qmix.batch_size=16",
    "qmix.replay_size=500",
    "qmix.update_every=60",
    "qmix.target_every=240",
]
_WARM = 0.2  # share of the steps before memory is first measured


class Memory:
    """Resident memory at about fifty moments of a run."""

    def __init__(self, steps: int) -> None:
        self._every = max(1, steps // 50)
        self._seen: list[tuple[int, float]] = []

    def look(self, step: int) -> None:
        """Note the memory now and then."""
        if step % self._every == 0:
            self._seen.append((step, resident_mb()))

    def figures(self, name: str) -> dict[str, object]:
        """First and last memory after warming up, and growth by a straight line through all."""
        warm = self._seen[int(_WARM * len(self._seen)) :]
        x = torch.tensor([float(step) for step, _ in warm])
        y = torch.tensor([memory for _, memory in warm])
        spread = (x - x.mean()).square().sum().clamp(min=1.0)
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
        return {
            f"{name}_mb_warm": round(warm[0][1], 1),
            f"{name}_mb_end": round(warm[-1][1], 1),
            f"{name}_kb_per_step": round(1024 * slope, 3),
        }


def resident_mb() -> float:
    """Memory this process holds in RAM.

    >>> resident_mb() > 10
    True
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measure(rounds: int = 2000, batches: int = 2000) -> dict[str, object]:
    """Memory along a comparison of so many rounds and a training of so many batches."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="fedfade-soak-") as name:
            figures = _compare(rounds, Path(name)) | _train(batches, Path(name))
    finally:
        torch.set_num_threads(before)
    return {"rounds": rounds, "batches": batches, **figures, **machine()}


def _compare(rounds: int, folder: Path) -> dict[str, object]:
    from fedfade.experiments import compare_many

    policies = "allocation.policies=[max-sum-rate]"
    config = load_config("paper", [*SMALL, policies, f"run.rounds={rounds}"])
    device, memory, start = torch.device("cpu"), Memory(rounds), time.perf_counter()

    def progress(done: int, doing: str) -> None:
        if doing == "evaluation":
            memory.look(done)

    compare_many([config], [folder / "compare"], device, progress)
    return {"compare_s": time.perf_counter() - start, **memory.figures("compare")}


def _train(batches: int, folder: Path) -> dict[str, object]:
    from fedfade.agents import Report, Trainer, train

    config = load_config("paper", [*SMALL, *QMIX, "run.rounds=10", "qmix.parallel_episodes=20"])
    qmix = config.qmix.model_copy(update={"episodes": batches * config.qmix.parallel_episodes})
    memory, start = Memory(batches), time.perf_counter()

    def look(trainer: Trainer, reports: list[Report]) -> None:
        memory.look(trainer.batch)

    train(config.model_copy(update={"qmix": qmix}), folder / "train", look)
    return {"train_s": time.perf_counter() - start, **memory.figures("train")}
