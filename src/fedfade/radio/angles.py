"""Angles: a direction from its coordinates, the spread of many."""

import math

import torch
from torch import Tensor


def direction(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y) in rad, like atan2, but the same bits alone and in a batch.

    torch's atan2 takes another routine for the elements that do not fill a vector register, so
    that a batch of 7 and a batch of 600 would differ in the last bit.

    >>> direction(torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0.0, -1.0, -1.0]))
    tensor([ 1.5708,  2.3562, -2.3562])
    """
    length = torch.sqrt(x.square() + y.square())
    # Half the angle, from whichever of two forms does not cancel.
    right = torch.atan(y / (length + x).clamp_min(1e-30))
    left = math.pi / 2 - torch.atan((length + x) / y.abs().clamp_min(1e-30))
    left = torch.where(y < 0, -left, left)
    return 2.0 * torch.where(x >= 0, right, left)


def angle_spread(angle_rad: Tensor, power: Tensor) -> Tensor:
    """Root mean square angle about the mean direction, weighted by power: [..., path] -> [...].

    >>> angle_spread(torch.tensor([3.1, -3.1]), torch.tensor([0.5, 0.5]))    # across the wrap
    tensor(0.0416)
    """
    cos, sin = (power * torch.cos(angle_rad)).sum(-1), (power * torch.sin(angle_rad)).sum(-1)
    turned = angle_rad - direction(sin, cos)[..., None]
    turned = turned - 2 * math.pi * torch.round(turned / (2 * math.pi))
    turned = turned - (power * turned).sum(-1, keepdim=True)
    return torch.sqrt((power * turned.square()).sum(-1))
