"""The networks of QMIX: one small MLP per agent, and what combines their values.

All agents of all runs are computed at once: their weights are stacked, [run x agent, in, out], and
a layer is one batched matrix product over [run x agent, batch, features]. A run is one training
seed; runs share no number.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused, kernels_run_on
from fedfade.randomness import uniform
from fedfade.uplink import ranked_clients

Tensors = list[Tensor]  # one per layer
Generators = Sequence[torch.Generator]  # of initial weights, one per run


class AgentNetworks(nn.Module):
    """Q_n(z_n, .) of every agent of every run (paper: eq. 32).

    Observations [run x agent, batch, width] become values [run x agent, batch, action]. There are
    as many runs as generators of initial weights. With `share`, one network serves all agents of
    a run and, with `client_id`, is told by a one-hot id which one it is. With `dueling` the last
    layer has one output more, added to all the others. `preference` (matrix [width, action], vector
    [action]) is a linear map of the observation that counts when an action is chosen and is not
    learned.

    >>> networks = AgentNetworks(10, 18, [250, 120, 120], 16, [torch.Generator().manual_seed(0)])
    >>> networks(torch.zeros(10, 512, 18)).shape
    torch.Size([10, 512, 16])
    """

    prefer: Tensor | None
    prefer_bias: Tensor | None

    def __init__(
        self,
        agents: int,
        width: int,
        hidden: Sequence[int],
        actions: int,
        generators: Generators,
        share: bool = False,
        dueling: bool = False,
        preference: tuple[Tensor, Tensor] | None = None,
        client_id: bool = True,
    ) -> None:
        super().__init__()
        self.agents, self.runs, self.width = agents, len(generators), width
        self.share, self.dueling, self.client_id = share, dueling, share and client_id
        matrix, vector = preference or (None, None)
        self.register_buffer("prefer", matrix, persistent=False)
        self.register_buffer("prefer_bias", vector, persistent=False)
        self.sizes = [width + agents if self.client_id else width, *hidden, actions + dueling]
        """Features between the layers; the weights have room for more, see `padded`."""
        copies = 1 if share else agents
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            weight = _initial((copies, fan_in, fan_out), fan_in, generators)
            bias = _initial((copies, 1, fan_out), fan_in, generators)
            more = padded(fan_out) - fan_out if layer < len(hidden) else 0
            rows = padded(fan_in) - fan_in
            self.weights.append(nn.Parameter(F.pad(weight, (0, more, 0, rows))))
            self.biases.append(nn.Parameter(F.pad(bias, (0, more))))
        if dueling:
            nn.init.zeros_(self.weights[-1])
            nn.init.zeros_(self.biases[-1])

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation, keep=False)[-1]

    def choose(self, observation: Tensor, values: Tensor) -> Tensor:
        """The action each agent takes: [run x agent, batch]."""
        return self.preferred(observation, values).argmax(-1)

    def draw(self, observation: Tensor, values: Tensor, keys: Tensor) -> Tensor:
        """An action of each agent from softmax(values), by Gumbel's rule: the largest of values
        with noise; `keys` [run]: [run x agent, batch]."""
        noise = -(-uniform(keys, (self.agents, *values.shape[1:])).flatten(0, 1).log()).log()
        return (self.preferred(observation, values) + noise).argmax(-1)

    def preferred(self, observation: Tensor, values: Tensor) -> Tensor:
        """Values and head starts: what an agent goes by."""
        if self.prefer is None or self.prefer_bias is None:
            return values
        return values + (observation[..., : self.width] @ self.prefer + self.prefer_bias)

    def layers(
        self, observation: Tensor, room: Tensors | None = None, keep: bool = True
    ) -> Tensors:
        """What each layer reads, and at the end the values: what `descend` needs. Without `keep`
        only the values are asked for.

        `room` (from `make_room`) is written to instead of new memory; not under autograd.
        """
        x = observation
        if self.client_id:
            who = torch.eye(self.agents, device=x.device)[:, None].repeat(self.runs, 1, 1)
            x = torch.cat([x[..., : self.width], who.expand(-1, x.shape[1], -1)], dim=-1)
        if self.share:  # [run x agent, batch, features] -> [run, agent x batch, features]
            x = x.reshape(self.runs, -1, x.shape[-1])
        missing = self.weights[0].shape[1] - x.shape[-1]
        tape = [F.pad(x, (0, missing)) if missing else x]
        last = len(self.weights) - 1
        if kernels := self._kernels():
            tape += self._memory(tape[0].shape[1]) if room is None else room
            kernels.forward(tape[0], self.weights, self.biases, tape[1:], keep)
        else:
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                out = None if room is None else room[layer]
                tape.append(_finish_layer(torch.bmm(tape[-1], weight, out=out), bias, layer < last))
        if self.share:
            tape[-1] = tape[-1].view(self.runs * self.agents, -1, tape[-1].shape[-1])
        if self.dueling:
            tape[-1] = tape[-1][..., :-1] + tape[-1][..., -1:]
        return tape

    def make_room(self, batch: int) -> Tensors:
        """Memory for the outputs of all layers. Getting 40 MB from the system and giving it back
        in every update costs as much as a matrix product."""
        return self._memory(batch * self.agents if self.share else batch)

    def _memory(self, rows: int) -> Tensors:
        return [weight.new_empty(len(weight), rows, weight.shape[2]) for weight in self.weights]

    def _kernels(self) -> ModuleType | None:
        """All layers in one launch, where that can be done."""
        exact = torch.get_float32_matmul_precision() == "highest"
        if exact or torch.is_grad_enabled() or not kernels_run_on(self.weights[0].device):
            return None
        from fedfade.agents import network_kernels

        sizes = [self.weights[0].shape[1], *(weight.shape[2] for weight in self.weights)]
        return network_kernels if network_kernels.fit(sizes) else None

    @torch.no_grad()
    def descend(self, tape: Tensors, g: Tensor, room: Tensors, sides: Sequence[SideStream]) -> None:
        """Write the gradient of every parameter from that of all values: [run x agent, batch,
        action].

        By hand, because autograd would spend a tenth of an update on copies between the matrix
        products; the tests hold it to the reference, which uses autograd. Nothing waits for the
        gradients of a layer's parameters, so they are worked out beside the way down.
        """
        g = torch.cat([g, g.sum(-1, keepdim=True)], dim=-1) if self.dueling else g
        g = g.view(self.runs, -1, g.shape[-1]) if self.share else g
        kernels, last = self._kernels(), len(self.weights) - 1
        for layer in reversed(range(last + 1)):
            weight, bias, x = self.weights[layer], self.biases[layer], tape[layer]
            assert bias.grad is not None
            with sides[layer % len(sides)].work():
                torch.bmm(x.mT, g, out=weight.grad)
                _add_up(g, bias.grad)
            if kernels and layer == last:
                kernels.backward(g, self.weights, tape[1:-1], room[:-1])
            if layer and kernels:
                g = room[layer - 1]
            elif layer:
                g = torch.bmm(g, weight.mT, out=room[layer - 1])
                torch.ops.aten.threshold_backward.grad_input(g, x, 0, grad_input=g)
        for side in sides:
            side.join()


# The operations between the matrix products, each one kernel on CUDA.


@fused
def _finish_layer(x: Tensor, bias: Tensor, relu: bool) -> Tensor:
    x = x.add_(bias)
    return x.relu_() if relu else x


@fused
def spread(slope: Tensor, choice: Tensor, actions: int) -> Tensor:
    """Slopes of the values chosen [part, batch] as those of all: [part, batch, action]."""
    action = torch.arange(actions, device=slope.device)
    return torch.where(choice[..., None] == action, slope[..., None], 0.0)


@fused
def _add_up(g: Tensor, out: Tensor) -> None:
    out.copy_(g.sum(1, keepdim=True))


def padded(count: int) -> int:
    """Whole quadruples: only rows that start on 16 bytes get the fast kernels of a GPU. What is
    added is zero and stays zero, forwards and backwards."""
    return -(-count // 4) * 4


class StackedLinear(nn.Module):
    """One linear layer per run: [run, batch, in] -> [run, batch, out]."""

    def __init__(self, fan_in: int, fan_out: int, generators: Generators) -> None:
        super().__init__()
        weight = _initial((1, fan_out, fan_in), fan_in, generators)
        self.weight = nn.Parameter(weight.mT.contiguous())
        self.bias = nn.Parameter(_initial((1, 1, fan_out), fan_in, generators))

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight) + self.bias


def stacked_layers(generators: Generators, *sizes: int) -> nn.ModuleList:
    """Linear layers from each size to the next."""
    return nn.ModuleList(StackedLinear(*size, generators) for size in pairwise(sizes))


def through_layers(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """What comes out of linear layers with ReLU between them."""
    for layer in layers[:-1]:
        x = layer(x).relu()
    out: Tensor = layers[-1](x)
    return out


class ValueMixer(nn.Module, ABC):
    """Q_tot of all agents' values, in two steps: a learner takes the first beside the agents'
    passes, which it does not need."""

    def weights(self, state: Tensor) -> Tensors:
        """What is made from the state [run, batch, width] alone."""
        return []

    @abstractmethod
    def combine(
        self, weights: Tensors, q: Tensor, state: Tensor, values: Tensor, choice: Tensor
    ) -> Tensor:
        """q [run x agent, batch] of `choice`, among `values` [run x agent, batch, action], to Q_tot
        [run, k, batch]: k is 1, or an agent."""

    def forward(self, q: Tensor, state: Tensor, values: Tensor, choice: Tensor) -> Tensor:
        return self.combine(self.weights(state), q, state, values, choice)


class MonotonicMixer(ValueMixer):
    """Q_tot from Q_1 ... Q_N with weights made from the state, none of them negative.

    QMIX (Rashid et al. 2018; paper: eq. 33): two layers, ELU between, the last bias a small network
    of the state. The first layers of the hypernetworks read the same state and are one matrix.
    """

    def __init__(
        self, agents: int, state: int, width: int, hypernet: int, generators: Generators
    ) -> None:
        super().__init__()
        self.agents, self.width = agents, width
        self.enter = StackedLinear(state, 2 * hypernet + 2 * width, generators)
        self.first = StackedLinear(hypernet, agents * width, generators)  # weights of layer 1
        self.second = StackedLinear(hypernet, width, generators)  # weights of layer 2
        self.value = StackedLinear(width, 1, generators)  # bias of layer 2
        self.parts = (hypernet, hypernet, width, width)

    def weights(self, state: Tensor) -> Tensors:
        """Both layers: [run, batch, agent, width], [run, batch, width] twice, [run, batch]."""
        for_first, for_second, for_value, bias = self.enter(state).split(self.parts, dim=-1)
        first = self.first(for_first.relu()).abs().unflatten(-1, (self.agents, self.width))
        second = self.second(for_second.relu()).abs()
        return [first, bias, second, self.value(for_value.relu())[..., 0]]

    def combine(
        self, weights: Tensors, q: Tensor, state: Tensor, values: Tensor, choice: Tensor
    ) -> Tensor:
        first, bias, second, value = weights
        # A weighted sum over ten agents: cheaper as multiply and add than as 512 tiny products.
        by_sample = _by_run(q, state).mT[..., None]  # [run, batch, agent, 1]
        hidden = nn.functional.elu((by_sample * first).sum(2) + bias)
        total: Tensor = (hidden * second).sum(-1) + value
        return total[:, None]


def _by_run(q: Tensor, state: Tensor) -> Tensor:
    """[run x agent, batch] -> [run, agent, batch]; the state has the runs in front."""
    return q.view(len(state), -1, q.shape[-1])


class DuplexMixer(ValueMixer):
    """QPLEX (Wang et al. 2021): any Q_tot whose best joint action is everybody's own best one.

    Q_tot = b(s) + sum of w_n(s) max Q_n + sum of lambda_n(s, a) w_n(s) (Q_n - max Q_n), where no w
    and no lambda is negative. An agent that takes its best action adds nothing to the second sum;
    any other takes away, by as much as the joint action says. As in its authors' code, agents learn
    as if every lambda were 1, which is VDN and where training starts; what a sum cannot say is left
    to lambda. It is one network of state and joint action in place of their attention heads.
    """

    def __init__(
        self, agents: int, state: int, actions: int, hypernet: int, generators: Generators
    ) -> None:
        super().__init__()
        self.actions = actions
        self.enter = StackedLinear(state, 2 * hypernet, generators)
        self.weight = StackedLinear(hypernet, agents, generators)
        self.value = StackedLinear(hypernet, 1, generators)
        self.meet = StackedLinear(state + agents * actions, hypernet, generators)
        self.importance = StackedLinear(hypernet, agents, generators)

    def weights(self, state: Tensor) -> Tensors:
        """w [run, batch, agent] and b [run, batch]."""
        for_weight, for_value = self.enter(state).relu().chunk(2, dim=-1)
        return [_positive(self.weight(for_weight)), self.value(for_value)[..., 0]]

    def combine(
        self, weights: Tensors, q: Tensor, state: Tensor, values: Tensor, choice: Tensor
    ) -> Tensor:
        weight, value = weights
        own = _by_run(q, state).mT
        behind = own.detach() - _by_run(values.detach().amax(-1), state).mT  # never positive
        weighted = weight.detach() * behind * (self.importances(state, choice) - 1.0)
        total: Tensor = (weight * own + weighted).sum(-1) + value
        return total[:, None]

    def importances(self, state: Tensor, choice: Tensor) -> Tensor:
        """lambda of every agent under a joint action: [run, batch, agent]."""
        action = torch.arange(self.actions, device=choice.device)
        taken = (_by_run(choice, state).mT[..., None] == action).flatten(2).to(state.dtype)
        met = self.meet(torch.cat([state, taken], dim=-1)).relu()
        return _positive(self.importance(met))


def _positive(x: Tensor) -> Tensor:
    """e to the x between 1/150 and 150, 1 at 0: near a tie of two actions only a large lambda tells
    them apart, and a boundless one would throw the values out when the tie breaks."""
    return (5.0 * torch.tanh(x / 5.0)).exp()


class RankedMixer(ValueMixer):
    """A mixer whose first agent is the client of rank 0, wherever it stands: its weights belong to
    ranks. The state is in the order of rank and ends in who has which (`uplink.ranked_clients`)."""

    def __init__(self, mixer: ValueMixer, agents: int) -> None:
        super().__init__()
        self.mixer, self.agents = mixer, agents

    def weights(self, state: Tensor) -> Tensors:
        return self.mixer.weights(state[..., : -self.agents])

    def combine(
        self, weights: Tensors, q: Tensor, state: Tensor, values: Tensor, choice: Tensor
    ) -> Tensor:
        clients = ranked_clients(state, self.agents).mT  # [run, place, batch]

        def ranked(x: Tensor) -> Tensor:  # [run x agent, batch, ...]
            by_run = x.view(len(state), self.agents, *x.shape[1:])
            place = clients if x.ndim == 2 else clients[..., None].expand(by_run.shape)
            return by_run.gather(1, place).flatten(0, 1)

        by_rank = (ranked(x) for x in (values, choice))
        return self.mixer.combine(weights, ranked(q), state[..., : -self.agents], *by_rank)


class SumMixer(ValueMixer):
    """VDN: Q_tot [run, 1, batch] is the sum."""

    def combine(self, weights: Tensors, q: Tensor, state: Tensor, *_: Tensor) -> Tensor:
        return _by_run(q, state).sum(1, keepdim=True)


class NoMixer(ValueMixer):
    """Independent DQN: every agent learns from the common reward by itself: [run, agent, batch]."""

    def combine(self, weights: Tensors, q: Tensor, state: Tensor, *_: Tensor) -> Tensor:
        return _by_run(q, state)


def make_mixer(
    config: QmixConfig, agents: int, state: int, actions: int, generators: Generators
) -> ValueMixer:
    """The mixer `qmix.mixer` names: (values of the actions taken, state, values of all actions,
    actions taken) to Q_tot."""
    if config.mixer == "vdn":
        return SumMixer()
    if config.mixer == "independent":
        return NoMixer()
    ranked = config.state == "order"
    state -= agents if ranked else 0  # its end is for the wrapper
    mixer: ValueMixer
    if config.mixer == "qplex":
        mixer = DuplexMixer(agents, state, actions, config.hypernet_width, generators)
    else:
        sizes = (config.mixing_width, config.hypernet_width)
        mixer = MonotonicMixer(agents, state, *sizes, generators)
    return RankedMixer(mixer, agents) if ranked else mixer


def _initial(shape: Sequence[int], fan_in: int, generators: Generators) -> Tensor:
    """Weights as torch.nn.Linear has them, a block of `shape` from the generator of each run:
    [run x shape[0], ...]."""
    bound = 1.0 / math.sqrt(fan_in)
    return torch.cat([torch.empty(*shape).uniform_(-bound, bound, generator=g) for g in generators])
