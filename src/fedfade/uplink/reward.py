"""What a slot is worth (paper: section IV-D).

The convergence part of a round is lambda_1 |N_t| - lambda_2 |sum of d_n over N_t|^2, the
numerator of the bound's second term. Written as a difference before and after each slot it
telescopes, so the slot rewards of a round add up to the round's exactly, whatever the order in
which clients finish.
"""

import torch
from torch import Tensor

from fedfade.uplink.slot import Progress, Scenario, SlotResult


def normalised_inner(inner: Tensor) -> Tensor:
    """The Gram matrix in units of the round's mean squared deviation: [..., client, client].

    Gradients shrink as a model converges; the reward of a delivered client should not.
    """
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(-1)
    return inner / scale.clamp(min=torch.finfo(inner.dtype).tiny)[..., None, None]


def round_reward(scenario: Scenario, inner: Tensor, delivered: Tensor) -> Tensor:
    """Convergence reward of a whole round (paper: eq. 29): [episode].

    The bias is |sum of d_n over who delivered|^2, from the Gram matrix (paper: eq. 28).
    """
    weights = scenario.reward
    count = delivered.sum(-1).to(inner.dtype)
    member = delivered.to(inner.dtype)
    bias = torch.einsum("...n,...nm,...m->...", member, normalised_inner(inner), member)
    return weights.delivered * count - weights.deviation * bias


def slot_reward(
    scenario: Scenario, normalised: Tensor, before: Progress, after: Progress, result: SlotResult
) -> Tensor:
    """Reward of one slot (paper: eq. 30 and 31): [episode].

    `normalised` is `normalised_inner(round_.inner)`, the same in all slots of a round. The
    bracket over the clients that finish now is |sum over D and D-|^2 - |sum over D-|^2. With a
    symmetric matrix G and 0/1 vectors a, b of those sets it is (a - b)' G (a + b).
    """
    weights = scenario.reward
    done, done_before = after.finished, before.finished
    now = (done ^ done_before).to(normalised.dtype)  # [episode, client]
    both = done.to(normalised.dtype) + done_before.to(normalised.dtype)
    bias = (torch.bmm(normalised, both[:, :, None])[:, :, 0] * now).sum(-1)
    convergence = weights.delivered * now.sum(-1) - weights.deviation * bias
    # One payload through every sub-band in a round counts 1, so both parts are of order 1.
    scale = weights.rate * scenario.slot_s / (scenario.bands * scenario.payload_bits)
    reward = weights.convergence * convergence + scale * result.rate_bps.sum(-1)
    if isinstance(weights.finished, Tensor) or weights.finished:
        reward = reward + weights.finished * done.sum(-1)
    return reward
