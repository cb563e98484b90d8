"""What the figures of one GPU are measured on: sizes, data, and how a figure is told."""

import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch

from fedfade.agents import Trainer
from fedfade.bench.federated_round import random_images
from fedfade.bench.timing import Call, machine, median_ms, wall_clock
from fedfade.config import Config, Precision, load_config
from fedfade.device import matrix_products
from fedfade.learning import Dataset, load_data
from fedfade.learning.data import find_cifar10
from fedfade.storage import write_npz

T = TypeVar("T")
REDUCED = """
    learning.data=digits learning.clients=4 learning.batch_size=20 learning.local_work=1
    learning.payload_bits=400000 radio.slots=12 radio.subbands=2 radio.clusters=4
    radio.subcarriers=4 qmix.hidden=[16,8] qmix.batch_size=32 qmix.replay_size=500
    qmix.evaluate_every=2 run.rounds=6 run.evaluate_every=3
"""


@dataclass(frozen=True)
class Measurement:
    """One measured thing.

    >>> Measurement("update", "us", 200.0, floor=50.0).share_of_floor
    0.25
    >>> Measurement("channel", "1/s", 5.0, wanted=4.0, floor=20.0, more=True).reached
    True
    """

    name: str
    unit: str
    measured: float
    wanted: float | None = None
    floor: float | None = None
    more: bool = False  # more is better
    note: str = ""

    @property
    def share_of_floor(self) -> float | None:
        """1 where nothing but the floor's work is done."""
        if self.floor is None:
            return None
        return self.measured / self.floor if self.more else self.floor / self.measured

    @property
    def reached(self) -> bool | None:
        """Whether it is what is wanted."""
        if self.wanted is None:
            return None
        return self.measured >= self.wanted if self.more else self.measured <= self.wanted

    def plain(self) -> dict[str, object]:
        """For JSON: to four digits, and without what there is not."""
        whole = asdict(self) | {"share_of_floor": self.share_of_floor, "reached": self.reached}
        del whole["more"]
        there = {name: value for name, value in whole.items() if value not in (None, "")}
        return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in there.items()}


@dataclass(eq=False)
class Stage:
    """What all figures are measured on: the paper's sizes on CUDA, small ones on a CPU."""

    device: torch.device
    precision: Precision
    folder: Path  # for what a figure has to write down
    full: bool = True

    @classmethod
    @contextmanager
    def open(cls, device: torch.device, precision: Precision) -> Iterator["Stage"]:
        """With a folder, and matrix products in this precision."""
        with tempfile.TemporaryDirectory() as folder, matrix_products(precision):
            yield cls(device, precision, Path(folder), full=device.type == "cuda")

    def size(self, full: T, small: T) -> T:
        """How much is measured or wanted, which of small sizes is nothing."""
        return full if self.full else small

    @cached_property
    def data(self) -> str:
        """CIFAR-10, or where it is missing noise of its shape, which is the same work."""
        if not self.full:
            return "digits"
        if find_cifar10() is not None:
            return "cifar10"
        noise, path = random_images(60_000), self.folder / "noise.npz"
        images, labels = noise.train_images.numpy(), noise.train_labels.numpy()
        parts = {"images": images[:50_000], "labels": labels[:50_000]}
        write_npz(path, parts | {"test_images": images[50_000:], "test_labels": labels[50_000:]})
        return str(path)

    @cached_property
    def dataset(self) -> Dataset:
        return load_data(self.config().learning).to(self.device)

    def config(self, *overrides: str) -> Config:
        """The paper's, or a small one."""
        changes = [*self.size("", REDUCED).split(), f"learning.data={json.dumps(self.data)}"]
        return load_config("paper", [*changes, f"run.precision={self.precision}", *overrides])

    def milliseconds(self, call: Call, repeats: int = 0, calls: int = 1) -> float:
        """Median time of a call; on the CPU its own time, whatever else the machine does."""
        clock = time.process_time if self.device.type == "cpu" else wall_clock
        return median_ms(call, repeats or self.size(20, 1), calls, clock)

    def about(self) -> dict[str, object]:
        """What the figures were measured with."""
        sizes = {"device": self.device.type, "full_size": self.full, "precision": self.precision}
        return sizes | machine()


def updates(trainer: Trainer, count: int) -> Call:
    """The same updates again and again: random numbers are drawn ahead for a batch only."""
    qmix, first = trainer.config.qmix, trainer.learner.updates.clone()
    trainer.replay.draw_ahead(first, trainer._most_updates, qmix.batch_size)

    def learn() -> None:
        trainer.learner.updates.copy_(first)
        for _ in range(count):
            trainer.update()

    return learn


def forget() -> None:
    """Leave the memory to what comes next."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use


def sentence(error: Exception) -> str:
    """What went wrong, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
