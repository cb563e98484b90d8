"""Batch norm, 2x2 max pooling and ReLU as one operation, for local training on the CPU.

A positive scale per channel does not change which of four values is largest, so pooling can
come first and only the statistics need every element: normalising, ReLU and most of the
backward pass then work on a quarter of them. The statistics are summed pairwise; PyTorch's own
channels_last kernel sums one after the other and is 100 times less accurate, enough to flip
maxima in the pooling and with them whole gradient entries.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WORTH_IT = 2**18  # elements; below, the overhead of many small operations outweighs the saving


class _PoolThenNormalise(torch.autograd.Function):
    """relu(maxpool(batch_norm(x))) with x [sample, channel, row, column] in channels_last."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = _rows(x)
        mean = rows.sum(0) / len(rows)
        variance = (rows - mean).square_().sum(0) / len(rows)
        inverse = torch.rsqrt(variance + epsilon)
        pooled, index = F.max_pool2d(x, 2, return_indices=True)
        hat = (pooled - _wide(mean)).mul_(_wide(inverse))
        y = torch.addcmul(_wide(bias), hat, _wide(weight)).relu_()
        ctx.save_for_backward(x, weight, mean, inverse, hat, index, y)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, hat, index, y = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        g = torch.ops.aten.threshold_backward(gradient, y, 0.0)
        for_bias, for_weight = _rows(g).sum(0), _rows(g * hat).sum(0)
        scale = weight * inverse
        # d loss / d x = scale * (g - mean(g) - xhat * mean(g xhat)); the last two are affine in x.
        slope = -scale * inverse * for_weight / count
        offset = -scale * for_bias / count - slope * mean
        for_x = torch.ops.aten.max_pool2d_with_indices_backward(
            g * _wide(scale), x, [2, 2], [2, 2], [0, 0], [1, 1], False, index
        )
        for_x.addcmul_(x, _wide(slope)).add_(_wide(offset))
        return for_x, for_weight, for_bias, None


def _rows(x: Tensor) -> Tensor:
    """[sample x row x column, channel], a view in channels_last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


class NormPool(nn.BatchNorm2d):
    """`BatchNorm2d` followed by `MaxPool2d(2)` and `ReLU`, under the batch norm's names."""

    def forward(self, input: Tensor) -> Tensor:
        """Fused where it pays and is exact, layer by layer otherwise."""
        fusible = (
            self.training
            and input.numel() >= _WORTH_IT
            and input.dtype == torch.float32
            and input.is_contiguous(memory_format=torch.channels_last)
            and bool((self.weight > 0).all())
        )
        if not fusible:
            # Not `super().forward`, which counts steps that nobody reads.
            both, factor = (self.running_mean, self.running_var), self.momentum or 0.0
            affine = (input, self.weight, self.bias)
            x = torch.batch_norm(*affine, *both, self.training, factor, self.eps, False)
            return torch.max_pool2d(x, 2).relu_()
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _PoolThenNormalise.apply
        y, mean, variance = apply(input, self.weight, self.bias, self.eps)
        count = input.numel() // input.shape[1]
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        return y

    @staticmethod
    def can_replace(norm: nn.Module, *others: nn.Module) -> bool:
        """Whether these three layers are a plain batch norm, and pooling and ReLU in any order."""
        if type(norm) is not nn.BatchNorm2d or {type(x) for x in others} != {nn.MaxPool2d, nn.ReLU}:
            return False
        (pool,) = (layer for layer in others if isinstance(layer, nn.MaxPool2d))
        settings = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        pairs = [(n, n) if isinstance(n, int) else tuple(n) for n in settings]
        plain_pool = pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]
        plain_norm = norm.affine and norm.track_running_stats and norm.momentum is not None
        return plain_norm and plain_pool and not pool.ceil_mode and not pool.return_indices


def fuse_norms(model: nn.Module) -> nn.Module:
    """A copy in which every such triple inside an `nn.Sequential` is one operation; only the norm's
    class changes, so parameters and buffers keep their names."""
    model = copy.deepcopy(model)
    for part in (part for part in model.modules() if isinstance(part, nn.Sequential)):
        for first in range(len(part) - 2):
            if NormPool.can_replace(*list(part)[first : first + 3]):
                part[first].__class__ = NormPool
                part[first + 1], part[first + 2] = nn.Identity(), nn.Identity()
    return model
