"""Floors: the matrix products a figure cannot do without, alone, in its shapes and precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.agents.networks import MonotonicMixer
from fedfade.agents.trainer import Trainer
from fedfade.config import Precision, RadioConfig
from fedfade.graphs import Work, record
from fedfade.learning.batched import ALIGNED, groups_of_samples
from fedfade.radio import subcluster_sizes


class Layer(NamedTuple):
    """A layer of many copies of a network, and which of its products are made."""

    x: Tensor  # [copy, row, in]
    weight: Tensor  # [copy, in, out]
    slope: Tensor  # [copy, row, out] d loss / d output
    forward: int  # passes forward
    learns: bool  # the gradient of the weight is made
    passes_on: bool  # the gradient of the input is made

    @property
    def flop(self) -> float:
        """Operations of all its products."""
        passes = self.forward + self.learns + self.passes_on
        return 2.0 * self.x.shape[1] * self.weight.numel() * passes


def make_layer(
    shape: Sequence[int],
    rows: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    forward: int = 1,
    learns: bool = False,
    passes_on: bool = False,
) -> Layer:
    """A layer whose weight has this shape, filled with noise (zeros would spare the card power).

    >>> make_layer((2, 3, 4), rows=5, device=torch.device("cpu"), learns=True).flop
    480.0
    """
    copies, fan_in, fan_out = shape
    source = torch.Generator(device).manual_seed(0)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype, generator=source)

    x, weight = noise(copies, rows, fan_in), noise(copies, fan_in, fan_out)
    return Layer(x, weight, noise(copies, rows, fan_out), forward, learns, passes_on)


def products(layers: list[Layer]) -> Work:
    """The layers' matrix products and nothing else, recorded."""
    room = [tuple(torch.empty_like(part) for part in layer[:3]) for layer in layers]

    @torch.no_grad()
    def run() -> None:
        for layer, (dx, dw, y) in zip(layers, room, strict=True):
            for _ in range(layer.forward):
                torch.bmm(layer.x, layer.weight, out=y)
            if layer.learns:
                torch.bmm(layer.x.mT, layer.slope, out=dw)
            if layer.passes_on:
                torch.bmm(layer.slope, layer.weight.mT, out=dx)

    written = [tensor for part in room for tensor in part]
    return record(run, written, layers[0].weight.device)


def update_layers(trainer: Trainer) -> list[Layer]:
    """An update of QMIX.

    Agents: online on s, online on s' and target on s'; the mixer online and target. Backward:
    the gradient of every weight, and of every input but the observation and the state.
    """
    rows, device = trainer.config.qmix.batch_size, trainer.scenario.device
    mixer = trainer.learner.mixer
    assert isinstance(mixer, MonotonicMixer)
    mixing = [part.weight for part in (mixer.enter, mixer.first, mixer.second, mixer.value)]
    layers = []
    for forward, weights in ((3, [*trainer.learner.agents.weights]), (2, mixing)):
        for place, weight in enumerate(weights):
            first = place == 0
            layers.append(
                make_layer(
                    weight.shape, rows, device, forward=forward, learns=True, passes_on=not first
                )
            )
    return layers


def slot_layers(trainer: Trainer) -> list[Layer]:
    """A slot of all parallel episodes: every agent looks once."""
    rows, device = trainer.config.qmix.parallel_episodes, trainer.scenario.device
    return [make_layer(weight.shape, rows, device) for weight in trainer.learner.agents.weights]


def local_layers(
    image: tuple[int, int, int],
    clients: int,
    images: int,
    precision: Precision,
    device: torch.device,
) -> list[Layer]:
    """A step of local training of the paper's CNN: convolutions as products of unfolded images.

    Rows are filled up and long sums split as the engine does, which is faster than without.
    """
    channels, rows, columns = image
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = []
    for place, after in enumerate((32, 64, 128)):
        kernel = (-(-9 * channels // ALIGNED) * ALIGNED, after)
        groups = groups_of_samples(images, rows * columns, kernel, dtype)
        shape = (clients * groups, *kernel)
        pixels = images * rows * columns // groups
        layers.append(make_layer(shape, pixels, device, dtype, learns=True, passes_on=place > 0))
        channels, rows, columns = after, rows // 2, columns // 2
    shape = (clients, channels * rows * columns, 10)
    return [*layers, make_layer(shape, images, device, dtype, learns=True, passes_on=True)]


def fading_layers(radio: RadioConfig, client_rounds: int, device: torch.device) -> list[Layer]:
    """Paths summed at every frequency and slot, as a product of real matrices.

    Sines, random numbers and the mean over subcarriers come on top. Writing the gains, 4 kB a
    client-round, would be no floor at all.
    """
    paths = (radio.clusters - 1) * len(subcluster_sizes())
    frequencies = radio.subbands * radio.subcarriers
    slots = -(-radio.slots // 8) * 8  # as radio/response.py fills up rows
    return [make_layer((client_rounds, 2 * paths, slots), 2 * frequencies, device)]
