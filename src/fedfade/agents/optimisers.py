"""Optimisers on flat parameters of many runs, each with learning rates of its own."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.config import QmixConfig
from fedfade.graphs import fused

_ALIGN = 16  # floats: every parameter starts on a cache line, so products add up the same way


class Flat:
    """Parameters of a module and their gradients, each as one vector with views into it.

    A parameter's first axis holds the same number of rows for every run, so a run's part can be
    taken out, and looks like the vector of a module that has this run alone.
    """

    def __init__(self, module: nn.Module, runs: int) -> None:
        parameters = list(module.parameters())
        self.runs = runs
        self._shapes = [p.shape for p in parameters]
        device = parameters[0].device if parameters else torch.device("cpu")
        self.values = torch.zeros(sum(_aligned(p.numel()) for p in parameters), device=device)
        self.gradient = torch.zeros_like(self.values)
        views = zip(parameters, self.views(self.values), self.views(self.gradient), strict=True)
        for parameter, view, gradient in views:
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = gradient

    def views(self, vector: Tensor) -> list[Tensor]:
        """A vector of this kind, parameter by parameter."""
        pieces = torch.split(vector, [_aligned(shape.numel()) for shape in self._shapes])
        shaped = zip(pieces, self._shapes, strict=True)
        return [piece[: shape.numel()].view(shape) for piece, shape in shaped]

    def by_run(self, vector: Tensor) -> list[Tensor]:
        """The parts of all parameters: [run, number] each."""
        return [view.reshape(self.runs, -1) for view in self.views(vector)]

    def spread(self, each: Tensor, out: Tensor | None = None) -> Tensor:
        """A number of every run, `each` [run], for every one of its parameters."""
        out = torch.zeros_like(self.values) if out is None else out
        for view in self.views(out):
            view.view(self.runs, -1).copy_(each[:, None])
        return out

    def take(self, vector: Tensor, run: int) -> Tensor:
        """The part of one run, laid out as if it were alone."""
        parts = [view.chunk(self.runs)[run].flatten() for view in self.views(vector)]
        return torch.cat([F.pad(p, (0, _aligned(p.numel()) - p.numel())) for p in parts])

    def put(self, vector: Tensor, run: int, alone: Tensor) -> None:
        """The reverse of `take`."""
        parts = [view.chunk(self.runs)[run] for view in self.views(vector)]
        pieces = torch.split(alone, [_aligned(part.numel()) for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece[: part.numel()].view(part.shape))


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


def clip(flats: Sequence[Flat], longest: Tensor) -> None:
    """Shorten the gradient of every run, all its parameters together, to `longest` [run] or [];
    0: do not."""
    squares = [part.square().sum(-1) for flat in flats for part in flat.by_run(flat.gradient)]
    length = torch.stack(squares).sum(0).sqrt()  # [run]
    shorter = (longest / length.clamp(min=1e-12)).clamp(max=1.0)
    factor = torch.where(longest > 0, shorter, 1.0)
    for flat in flats:
        for part in flat.by_run(flat.gradient):
            part.mul_(factor[:, None])


class Optimiser:
    """RMSProp, or Adam, on one flat vector; a step uses up the gradient."""

    def __init__(self, configs: Sequence[QmixConfig], flat: Flat, rates: Sequence[float]) -> None:
        self.flat, self._config = flat, configs[0]
        device = flat.values.device
        self._first = torch.tensor(rates, device=device)  # [run]
        self.rate = flat.spread(self._first)
        self.square = torch.zeros_like(flat.values)
        adam = configs[0].optimiser == "adam"
        self.mean = torch.zeros_like(flat.values) if adam else None

    def fall(self, share: float) -> None:
        """Rates become this share of the first ones."""
        self.flat.spread(self._first * share, self.rate)

    def step(self, updates: Tensor) -> None:
        """One step; `updates` [] were taken before."""
        values, gradient = self.flat.values, self.flat.gradient
        if self.mean is None:
            how = (self._config.rmsprop_decay, self._config.rmsprop_epsilon)
            rmsprop_step(values, gradient, self.square, self.rate, *how)
        else:
            adam_step(values, gradient, self.mean, self.square, self.rate, updates + 1)

    def moments(self) -> dict[str, Tensor]:
        """What is remembered from step to step."""
        return {"square": self.square} | ({} if self.mean is None else {"mean": self.mean})


@fused
def rmsprop_step(
    values: Tensor,
    gradient: Tensor,
    square: Tensor,
    rate: Tensor,
    decay: float = 0.99,
    epsilon: float = 1e-8,
) -> None:
    """v <- decay v + (1 - decay) g^2;  p <- p - rate g / (sqrt(v) + epsilon);  g <- 0."""
    square.mul_(decay).addcmul_(gradient, gradient, value=1.0 - decay)
    values.addcdiv_(gradient * rate, square.sqrt().add_(epsilon), value=-1.0)
    gradient.zero_()


@fused
def adam_step(
    values: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: Tensor,
    step: Tensor,
    decays: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> None:
    """Adam (Kingma and Ba 2015): with running means m of g and v of g^2, both corrected for their
    start at 0,  p <- p - rate m / (sqrt(v) + epsilon);  g <- 0.  `step` counts from 1."""
    mean.lerp_(gradient, 1.0 - decays[0])
    square.mul_(decays[1]).addcmul_(gradient, gradient, value=1.0 - decays[1])
    # 1 - decay^step, which for small steps would be a difference of near equals
    of_mean, of_square = (-torch.expm1(step * math.log(decay)) for decay in decays)
    size = (square / of_square).sqrt_().add_(epsilon)
    values.addcdiv_(mean * (rate / of_mean), size, value=-1.0)
    gradient.zero_()
