"""What a slot is worth (paper: section IV-D).

The convergence part of a round is lambda_1 |N_t| - lambda_2 |sum of d_n over N_t|^2, the
numerator of the bound's second term. Written as a difference before and after each slot it
telescopes, so the slot rewards of a round add up to the round's exactly, whatever the order in
which clients finish.

Where the server remembers the last update y_n of those who do not deliver, the bias of a round is
|sum of g_n - y_n over the *absent*|^2 / N^2. Then d_n = y_n - g_n, and |sum of d_n over the
absent|^2 counts in place of the above, from its value before the first slot on.
"""

import torch
from torch import Tensor

from fedfade.uplink.scenario import Scenario
from fedfade.uplink.slot import Progress, SlotResult, arrived


def normalised_inner(inner: Tensor) -> Tensor:
    """The Gram matrix in units of the round's mean squared deviation: [..., client, client].

    Gradients shrink as a model converges; the reward of a delivered client should not.
    """
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(-1)
    return inner / scale.clamp(min=torch.finfo(inner.dtype).tiny)[..., None, None]


def round_reward(scenario: Scenario, inner: Tensor, delivered: Tensor) -> Tensor:
    """Convergence reward of a whole round (paper: eq. 29): [episode].

    The bias is |sum of d_n over who delivered|^2, from the Gram matrix (paper: eq. 28). Where a
    part of an upload counts, `delivered` is the share, and clients count by it.
    """
    weights = scenario.reward
    count = delivered.sum(-1).to(inner.dtype)
    member, normalised = delivered.to(inner.dtype), normalised_inner(inner)
    if scenario.remembers:  # |sum over the absent|^2 - |sum over all|^2
        bias = torch.einsum("...n,...nm,...m->...", member, normalised, member - 2.0)
    else:
        bias = torch.einsum("...n,...nm,...m->...", member, normalised, member)
    return weights.delivered * count - weights.deviation * bias


def slot_reward(
    scenario: Scenario, normalised: Tensor, before: Progress, after: Progress, result: SlotResult
) -> Tensor:
    """Reward of one slot (paper: eq. 30 and 31): [episode].

    `normalised` is `normalised_inner(round_.inner)`, the same in all slots of a round. The
    bracket over the clients that finish now is |sum over D and D-|^2 - |sum over D-|^2. With a
    symmetric matrix G and 0/1 vectors a, b of those sets it is (a - b)' G (a + b); over the absent,
    1 - a and 1 - b, it is (a - b)' G (a + b - 2). Where a part of an upload counts, these are
    shares.
    """
    weights = scenario.reward
    done, done_before = (arrived(scenario, p).to(normalised.dtype) for p in (after, before))
    now, both = done - done_before, done + done_before  # [episode, client]
    if scenario.remembers:
        both = both - 2.0
    bias = (torch.bmm(normalised, both[:, :, None])[:, :, 0] * now).sum(-1)
    convergence = weights.delivered * now.sum(-1) - weights.deviation * bias
    # One payload through every sub-band in a round counts 1, so both parts are of order 1.
    scale = weights.rate * scenario.slot_s / (scenario.bands * scenario.mean_payload_bits)
    # In a slot nobody has a use for a rate that sends more than a whole payload.
    rates = result.rate_bps.clamp(max=scenario.payload_bits / scenario.slot_s)
    reward = weights.convergence * convergence + scale * rates.sum(-1)
    if isinstance(weights.finished, Tensor) or weights.finished:
        reward = reward + weights.finished * after.finished.sum(-1)
    return reward
