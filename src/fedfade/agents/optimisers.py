"""Steps of optimisers on flat vectors, in place; all a step needs to know may be a tensor.

So a step can be recorded once and replayed with another rate. A rate is one number, or one for each
parameter. The gradient is used up: it is 0 afterwards.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedfade.graphs import fused


@fused
def rmsprop_step(
    values: Tensor,
    gradient: Tensor,
    square: Tensor,
    rate: Tensor | float,
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
    rate: Tensor | float,
    step: Tensor,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> None:
    """Adam (Kingma and Ba 2015): with running means m of g and v of g^2, both corrected for their
    start at 0,  p <- p - rate m / (sqrt(v) + epsilon);  g <- 0.  `step` counts from 1."""
    mean.lerp_(gradient, 1.0 - betas[0])
    square.mul_(betas[1]).addcmul_(gradient, gradient, value=1.0 - betas[1])
    # 1 - beta^step, which for small steps would be a difference of near equals
    of_mean, of_square = (-torch.expm1(step * math.log(beta)) for beta in betas)
    size = (square / of_square).sqrt_().add_(epsilon)
    values.addcdiv_(mean * (rate / of_mean), size, value=-1.0)
    gradient.zero_()


def cut_gradients(parameters: Iterable[nn.Parameter], runs: int, longest: float) -> Tensor:
    """Shorten the gradient of each run to `longest` where it is longer; its length before: [run].

    A parameter's first axis holds the same number of rows for every run.
    """
    gradients = [p.grad.view(runs, -1) for p in parameters if p.grad is not None]
    length = torch.stack([g.square().sum(1) for g in gradients]).sum(0).sqrt()
    scale = (longest / (length + 1e-6)).clamp(max=1.0)[:, None]
    for gradient in gradients:
        gradient.mul_(scale)
    return length
