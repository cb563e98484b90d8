"""Policies for uploads that count in part (`learning.count_partial`): nobody's slot is wasted.

The first bits of an upload are worth more than its last, so time is shared by all instead of being
kept for those who can finish.
"""

import torch
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.deadline import bits_per_slot
from fedfade.allocation.policy import BuiltInPolicy, View, full_power, own_best
from fedfade.uplink import Action, plan


def equal_time(needed: Tensor, slots: float) -> Tensor:
    """`slots` shared out so that all get as many, or as they need [episode, client], if fewer.

    >>> equal_time(torch.tensor([[1.0, 9.0, 2.0, 9.0]]), 11.0)
    tensor([[1., 4., 2., 4.]])
    """
    shortest = needed.sort(-1).values
    before = torch.nn.functional.pad(shortest.cumsum(-1)[..., :-1], (1, 0))
    left = torch.arange(needed.shape[-1], 0, -1, device=needed.device)
    level = (slots - before) / left  # if all before a place get what they need
    # The level of the first who needs more than it; no other is as high as that one's.
    reached = torch.where(shortest >= level, level, -torch.inf).amax(-1, keepdim=True)
    return needed.minimum(torch.where(reached.isfinite(), reached, torch.inf))


class ProgressiveSchedule(BuiltInPolicy):
    """Decide once a round from the large-scale gains alone: the same time for every client, less
    for those who need less. Turns are those of the wrap-around schedule."""

    name = "progressive-schedule"
    PLANNED = 0.9  # of all slots; the rest makes up for bad ones

    def begin(self, view: View) -> Tensor:
        scenario, bits = view.scenario, bits_per_slot(view)
        needed = (view.remaining_bits / bits).clamp(min=1, max=scenario.slots) * view.active
        part = bits * equal_time(needed, self.PLANNED * scenario.bands * scenario.slots)
        given = (scenario, view.snr, view.round_index, part)
        return plan.reserve(*given, ready=view.ready_slot).bands

    def act(self, view: View, memory: Tensor) -> Action:
        mine = memory[:, :, view.slot]  # [episode, client, band]
        return own_best(view, mine)


class ProgressiveMatching(BuiltInPolicy):
    """Centralised: everybody matched to sub-bands by everybody's fading, those first who have the
    greatest share of their upload before them."""

    name = "progressive-matching"
    scope = "central"

    def act(self, view: View, memory: None) -> Action:
        scenario, own = view.scenario, view.scenario.payload_bits
        worth = view.remaining_bits / own * (scenario.mean_payload_bits / own)  # of a bit
        worth = worth * view.can_send
        band, _ = assign(worth[..., None] * scenario.link.efficiency(view.received_snr))
        return full_power(view, band.masked_fill(~view.can_send, -1))
