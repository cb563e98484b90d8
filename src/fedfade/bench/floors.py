"""Floors: the matrix products a figure cannot do without, alone, in its shapes and precision, one
after the other by PyTorch's library. Work of several layers in one launch may be below it."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.agents import Learner, MonotonicMixer, Trainer
from fedfade.config import RadioConfig
from fedfade.graphs import Work, record
from fedfade.learning.batched import ALIGNED, groups_of_samples
from fedfade.radio import subcluster_sizes


class Layer(NamedTuple):
    """A layer of many copies of a network, and which of its products are made."""

    weight: tuple[int, ...]  # its shape [copy, in, out]
    rows: int
    forward: int = 1  # passes forward
    learns: bool = False  # the gradient of the weight is made
    passes_on: bool = False  # the gradient of the input is made

    @property
    def flop(self) -> float:
        """Operations of all its products."""
        copies, fan_in, fan_out = self.weight
        passes = self.forward + self.learns + self.passes_on
        return 2.0 * self.rows * copies * fan_in * fan_out * passes


def products(layers: list[Layer], device: torch.device, dtype: torch.dtype = torch.float32) -> Work:
    """The layers' matrix products alone, recorded; of noise: zeros would spare the card power."""
    source = torch.Generator(device).manual_seed(0)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype, generator=source)

    given, made = [], []
    for layer in layers:
        copies, fan_in, fan_out = layer.weight
        x, weight = noise(copies, layer.rows, fan_in), noise(copies, fan_in, fan_out)
        given.append((x, weight, noise(copies, layer.rows, fan_out)))  # d loss / d output
        made.append([torch.empty_like(part) for part in given[-1]])

    @torch.no_grad()
    def run() -> None:
        for layer, (x, weight, slope), (dx, dw, y) in zip(layers, given, made, strict=True):
            for _ in range(layer.forward):
                torch.bmm(x, weight, out=y)
            if layer.learns:
                torch.bmm(x.mT, slope, out=dw)
            if layer.passes_on:
                torch.bmm(slope, weight.mT, out=dx)

    replay = record(run, [tensor for part in made for tensor in part], device)

    def again(kept: object = (given, made)) -> None:  # a recording knows addresses only
        replay()

    return again


def update_layers(trainer: Trainer) -> list[Layer]:
    """An update of QMIX. Agents: online on s, online on s' and target on s'; the mixer online and
    target. Backward: the gradient of every weight, and of every input but observation and state."""
    rows, learner = trainer.config.qmix.batch_size, trainer.learner
    assert isinstance(learner, Learner)
    assert isinstance(learner.mixer, MonotonicMixer)
    mixer = learner.mixer
    mixing = [part.weight for part in (mixer.enter, mixer.first, mixer.second, mixer.value)]
    return [
        Layer(weight.shape, rows, forward, learns=True, passes_on=place > 0)
        for forward, weights in ((3, [*trainer.learner.agents.weights]), (2, mixing))
        for place, weight in enumerate(weights)
    ]


def slot_layers(trainer: Trainer) -> list[Layer]:
    """A slot of all parallel episodes: every agent looks once."""
    rows = trainer.config.qmix.parallel_episodes
    return [Layer(weight.shape, rows) for weight in trainer.learner.agents.weights]


def local_layers(
    image: tuple[int, int, int], clients: int, images: int, dtype: torch.dtype
) -> list[Layer]:
    """A step of local training of the paper's CNN: convolutions as products of unfolded images,
    rows filled up and long sums split as the engine does, which is faster than without."""
    channels, rows, columns = image
    layers = []
    for place, after in enumerate((32, 64, 128)):
        kernel = (-(-9 * channels // ALIGNED) * ALIGNED, after)
        groups = groups_of_samples(images, rows * columns, kernel, dtype)
        pixels = images * rows * columns // groups
        shape = (clients * groups, *kernel)
        layers.append(Layer(shape, pixels, learns=True, passes_on=place > 0))
        channels, rows, columns = after, rows // 2, columns // 2
    shape = (clients, channels * rows * columns, 10)
    return [*layers, Layer(shape, images, learns=True, passes_on=True)]


def fading_layers(radio: RadioConfig, client_rounds: int) -> list[Layer]:
    """Paths summed at every frequency and slot, as a product of real matrices. Sines, random
    numbers and the mean over subcarriers come on top. Writing the gains, 4 kB a client-round, would
    be no floor at all."""
    paths = (radio.clusters - 1) * len(subcluster_sizes())
    frequencies = radio.subbands * radio.subcarriers
    slots = -(-radio.slots // 8) * 8  # as radio/response.py fills up rows
    return [Layer((client_rounds, 2 * paths, slots), 2 * frequencies)]
