"""The networks of QMIX: one small MLP an agent, and what combines their values.

All agents are computed at once: their weights are stacked, [agent, in, out], and a layer is one
batched matrix product over [agent, batch, features].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedfade.config import QmixConfig


class AgentNetworks(nn.Module):
    """Q_n(z_n, .) of every agent: observations [agent, batch, width] to [agent, batch, action].

    With `share`, one network serves all agents and is told by a one-hot id which one it is.

    >>> networks = AgentNetworks(10, 18, [250, 120, 120], 16, torch.Generator().manual_seed(0))
    >>> networks(torch.zeros(10, 512, 18)).shape
    torch.Size([10, 512, 16])
    """

    def __init__(
        self,
        agents: int,
        width: int,
        hidden: Sequence[int],
        actions: int,
        generator: torch.Generator,
        share: bool = False,
    ) -> None:
        super().__init__()
        self.agents = agents
        self.share = share
        sizes = [width + agents if share else width, *hidden, actions]
        copies = 1 if share else agents
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            bound = 1.0 / math.sqrt(fan_in)  # as torch.nn.Linear
            self.weights.append(_uniform((copies, fan_in, fan_out), bound, generator))
            self.biases.append(_uniform((copies, 1, fan_out), bound, generator))

    def forward(self, observation: Tensor) -> Tensor:
        """Values of every action for every agent."""
        return self.layers(observation)[-1]

    def layers(self, observation: Tensor, room: list[Tensor] | None = None) -> list[Tensor]:
        """What each layer reads, and at the end the values: what `backward` needs.

        `room` (from `make_room`) is written to instead of new memory; not under autograd.
        """
        tape = [self._with_id(observation) if self.share else observation]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = None if room is None else room[layer]
            x = torch.baddbmm(bias, tape[-1], weight, out=out)
            tape.append(x.relu_() if layer < last else x)
        if self.share:
            tape[-1] = tape[-1].view(self.agents, -1, tape[-1].shape[-1])
        return tape

    def make_room(self, batch: int) -> list[Tensor]:
        """Memory for the outputs of all layers. Getting 40 MB from the system and giving it back
        in every update costs as much as a matrix product."""
        rows = batch * self.agents if self.share else batch
        return [weight.new_empty(len(weight), rows, weight.shape[2]) for weight in self.weights]

    @torch.no_grad()
    def backward(
        self, tape: list[Tensor], choice: Tensor, slope: Tensor, room: list[Tensor]
    ) -> None:
        """Write the gradient of every parameter from d loss / d Q(chosen): both [agent, batch].

        By hand, because autograd would spend a tenth of an update on copies between the matrix
        products; the tests compare it with autograd.
        """
        g = torch.zeros_like(tape[-1]).scatter_(-1, choice[..., None], slope[..., None])
        g = g.flatten(0, 1)[None] if self.share else g
        for layer in reversed(range(len(self.weights))):
            weight, bias, x = self.weights[layer], self.biases[layer], tape[layer]
            torch.bmm(x.mT, g, out=weight.grad)
            torch.sum(g, 1, keepdim=True, out=bias.grad)
            if layer:
                g = torch.bmm(g, weight.mT, out=room[layer - 1])
                torch.ops.aten.threshold_backward.grad_input(g, x, 0, grad_input=g)

    def _with_id(self, observation: Tensor) -> Tensor:
        """[agent, batch, width] -> [1, agent * batch, width + agent]."""
        who = torch.eye(self.agents, device=observation.device)[:, None, :]
        who = who.expand(-1, observation.shape[1], -1)
        return torch.cat([observation, who], dim=-1).flatten(0, 1)[None]


class MonotonicMixer(nn.Module):
    """Q_tot from Q_1 ... Q_N with weights made from the state, none of them negative.

    QMIX (Rashid et al. 2018): two layers, ELU between, the last bias a small network of the
    state. The hypernetworks' first layers read the same state and are one matrix.
    """

    def __init__(
        self, agents: int, state: int, width: int, hypernet: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.agents = agents
        self.width = width
        self.enter = _linear(state, 2 * hypernet + 2 * width, generator)
        self.first = _linear(hypernet, agents * width, generator)  # weights of layer 1
        self.second = _linear(hypernet, width, generator)  # weights of layer 2
        self.value = _linear(width, 1, generator)  # bias of layer 2
        self.parts = (hypernet, hypernet, width, width)

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """q [agent, batch], state [batch, width] -> Q_tot [1, batch]."""
        for_first, for_second, for_value, bias = self.enter(state).split(self.parts, dim=-1)
        first = self.first(for_first.relu()).abs().view(-1, self.agents, self.width)
        second = self.second(for_second.relu()).abs()  # [batch, width]
        # A weighted sum over ten agents: cheaper as multiply and add than as 512 tiny products.
        hidden = nn.functional.elu((q.T[:, :, None] * first).sum(1) + bias)
        total: Tensor = (hidden * second).sum(-1) + self.value(for_value.relu())[:, 0]
        return total[None]


class SumMixer(nn.Module):
    """VDN: Q_tot is the sum."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """q [agent, batch] -> [1, batch]."""
        return q.sum(0, keepdim=True)


class NoMixer(nn.Module):
    """Independent DQN: every agent learns from the common reward by itself."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """q [agent, batch] -> the same."""
        return q


def make_mixer(
    config: QmixConfig, agents: int, state: int, generator: torch.Generator
) -> nn.Module:
    """The mixer `qmix.mixer` names."""
    if config.mixer == "vdn":
        return SumMixer()
    if config.mixer == "independent":
        return NoMixer()
    return MonotonicMixer(agents, state, config.mixing_width, config.hypernet_width, generator)


def _uniform(shape: Sequence[int], bound: float, generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))


def _linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer whose initial weights come from `generator`, not from the global one."""
    layer = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
