"""What the figures of one GPU are measured on: sizes, data, and how a figure is told."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from fedfade.bench import median_ms
from fedfade.bench.floors import Layer, products
from fedfade.bench.learning import random_images
from fedfade.config import Config, Precision, load_config
from fedfade.learning import Dataset, load_data
from fedfade.learning.data import find_cifar10
from fedfade.storage import write_npz

if TYPE_CHECKING:
    from fedfade.bench.whole_training import Training

REDUCED = [
    "learning.data=digits",
    "learning.clients=4",
    "learning.batch_size=20",
    "learning.local_work=1",
    "learning.payload_bits=400000",
    "radio.slots=12",
    "radio.subbands=2",
    "radio.clusters=4",
    "radio.subcarriers=4",
    "qmix.hidden=[16, 8]",
    "qmix.batch_size=32",
    "qmix.replay_size=500",
    "qmix.evaluate_every=2",
    "run.rounds=6",
    "run.evaluate_every=3",
]


@dataclass(frozen=True)
class Figure:
    """One measured thing.

    >>> Figure("update", "us", 200.0, floor=50.0).share_of_floor
    0.25
    >>> Figure("channel", "1/s", 5.0, wanted=4.0, floor=20.0, more=True).reached
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


class Sizes(NamedTuple):
    """How much is measured."""

    blocks: int  # of training batches
    batches: int  # in a block: one evaluation and one drawing of fading among them
    stretch: int  # calls timed together where one is too short
    repeats: int
    channel_rounds: int  # of 20 episodes
    slots: int  # of max sum rate
    grid_rounds: int  # of which one ends with a test
    many_clients: int
    epochs: int
    seeds: int
    cells: int  # along a side of the grid


FULL = Sizes(
    blocks=3,
    batches=20,
    stretch=100,
    repeats=20,
    channel_rounds=50,
    slots=10_000,
    grid_rounds=5,
    many_clients=50,
    epochs=3,
    seeds=5,
    cells=3,
)
SMALL = Sizes(
    blocks=1,
    batches=2,
    stretch=3,
    repeats=1,
    channel_rounds=2,
    slots=30,
    grid_rounds=3,
    many_clients=5,
    epochs=1,
    seeds=2,
    cells=1,
)


@dataclass
class Stage:
    """What all figures are measured on."""

    device: torch.device
    precision: Precision
    folder: Path  # for what a figure has to write down
    full: bool = True
    trainings: dict[int, Training] = field(default_factory=dict)
    """Those measured already, by the number of seeds."""

    @property
    def sizes(self) -> Sizes:
        """Those of the device."""
        return FULL if self.full else SMALL

    def wanted(self, value: float) -> float | None:
        """Small sizes are not what anything is wanted of."""
        return value if self.full else None

    @cached_property
    def data(self) -> str:
        """CIFAR-10, or where it is missing noise of its shape, which is the same work."""
        if not self.full:
            return "digits"
        if find_cifar10() is not None:
            return "cifar10"
        noise = random_images(60_000)
        path = self.folder / "noise.npz"
        parts = {"images": noise.train_images[:50_000], "labels": noise.train_labels[:50_000]}
        parts |= {"test_images": noise.train_images[50_000:]}
        parts |= {"test_labels": noise.train_labels[50_000:]}
        write_npz(path, {name: part.numpy() for name, part in parts.items()})
        return str(path)

    @cached_property
    def dataset(self) -> Dataset:
        """Of the federated task."""
        return load_data(self.config().learning).to(self.device)

    def config(self, *overrides: str) -> Config:
        """The paper's, or a small one."""
        changes = [] if self.full else list(REDUCED)
        changes += [f"learning.data={json.dumps(self.data)}", f"run.precision={self.precision}"]
        return load_config("paper", [*changes, *overrides])

    def milliseconds(self, work: Callable[[], object], repeats: int = 0, times: int = 1) -> float:
        """Median time of a call."""
        return median_ms(work, repeats or self.sizes.repeats, self.device, times)

    def floor_ms(self, layers: list[Layer]) -> float:
        """Time of bare matrix products."""
        return self.milliseconds(products(layers), times=self.sizes.stretch)


def forget(device: torch.device) -> None:
    """Leave the device's memory to what comes next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
