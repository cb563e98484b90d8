"""The learning step: double-DQN targets through the mixer, RMSProp on flat parameters.

`reference.py` has the same step without the tricks that make this one fast.
"""

import copy
from collections.abc import Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.agents.networks import AgentNetworks, make_mixer
from fedfade.agents.transitions import Batch
from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused
from fedfade.randomness import torch_generator

DECAY, EPSILON = 0.99, 1e-8  # of RMSProp
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
        views = zip(parameters, self._views(self.values), self._views(self.gradient), strict=True)
        for parameter, view, gradient in views:
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = gradient

    def _views(self, vector: Tensor) -> list[Tensor]:
        pieces = torch.split(vector, [_aligned(shape.numel()) for shape in self._shapes])
        shaped = zip(pieces, self._shapes, strict=True)
        return [piece[: shape.numel()].view(shape) for piece, shape in shaped]

    def take(self, vector: Tensor, run: int) -> Tensor:
        """The part of one run, laid out as if it were alone."""
        parts = [view.chunk(self.runs)[run].flatten() for view in self._views(vector)]
        return torch.cat([F.pad(p, (0, _aligned(p.numel()) - p.numel())) for p in parts])

    def put(self, vector: Tensor, run: int, alone: Tensor) -> None:
        """The reverse of `take`."""
        parts = [view.chunk(self.runs)[run] for view in self._views(vector)]
        pieces = torch.split(alone, [_aligned(part.numel()) for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece[: part.numel()].view(part.shape))


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


@fused
def _rmsprop(values: Tensor, gradient: Tensor, square: Tensor, rate: float) -> None:
    """v <- decay v + (1 - decay) g^2;  p <- p - rate g / (sqrt(v) + epsilon);  g <- 0."""
    square.mul_(DECAY).addcmul_(gradient, gradient, value=1.0 - DECAY)
    values.addcdiv_(gradient, square.sqrt().add_(EPSILON), value=-rate)
    gradient.zero_()


@fused
def _value_of(choice: Tensor, values: Tensor) -> Tensor:
    return values.gather(-1, choice[..., None]).squeeze(-1)


class _Room:
    """Memory of one batch size: what the backward pass needs, and what is soon forgotten."""

    def __init__(self, agents: AgentNetworks, batch: int) -> None:
        self.kept, self.spare = agents.make_room(batch), agents.make_room(batch)
        # Side by side two passes need two rooms; in turn the second finds the first's in cache,
        # but for the values, which are used together.
        self.target = agents.make_room(batch)
        if self.target[0].device.type == "cpu":
            self.target[:-1] = self.spare[:-1]


class Learner:
    """Online and target networks of every run, and how the online ones learn.

    Nothing here knows of slots or sub-bands: agents, observations, a state, actions. Runs, one per
    seed, lie side by side and share nothing: the loss is a sum over runs.
    """

    def __init__(
        self,
        config: QmixConfig,
        agents: int,
        width: int,
        state_width: int,
        actions: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        preference: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.config, self.runs = config, len(seeds)
        drawn = [torch_generator(seed, "agent networks") for seed in seeds]
        options = (config.share_parameters, config.dueling, preference)
        self.agents = AgentNetworks(agents, width, config.hidden, actions, drawn, *options)
        drawn = [torch_generator(seed, "mixer") for seed in seeds]
        self.mixer = make_mixer(config, agents, state_width, actions, drawn)
        self.agents.to(device), self.mixer.to(device)
        self.target_agents, self.target_mixer = copy.deepcopy((self.agents, self.mixer))
        self._online = (Flat(self.agents, self.runs), Flat(self.mixer, self.runs))
        self._target = (Flat(self.target_agents, self.runs), Flat(self.target_mixer, self.runs))
        self._square = [torch.zeros_like(flat.values) for flat in self._online]
        self._room = cache(partial(_Room, self.agents))
        place = self._online[0].values.device
        self._side = [SideStream(place), SideStream(place)]

    # Matrix products stay library calls; the small operations between them are fused.

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y = r + gamma Q_tot(z', a', s'; target) (paper: eq. 35): [run, k, batch].

        The online networks choose a'. Without a mixer k is the agent, else there is one.
        """
        room = self._room(batch.reward.shape[-1])
        with self._side[0].work():
            values = self.target_agents.layers(batch.next_observation, room.target)[-1]
        online = self.agents.layers(batch.next_observation, room.spare)[-1]
        self._side[0].join()
        return self._bootstrap(values, online, batch)

    @fused
    def _bootstrap(self, values: Tensor, online: Tensor, batch: Batch) -> Tensor:
        best = self.agents.choose(batch.next_observation, online)
        value = values.gather(-1, best[..., None]).squeeze(-1)
        following: Tensor = self.target_mixer(value, batch.next_state, values, best)
        return batch.reward[:, None] + batch.discount[:, None] * following

    def update(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One step on the squared TD error of a batch (paper: eq. 34); its mean, and that of Q_tot:
        [run]."""
        room = self._room(batch.reward.shape[-1])
        with torch.no_grad(), self._side[1].work():
            tape = self.agents.layers(batch.observation, room.kept)
        target = self.target(batch)
        self._side[1].join()
        q = _value_of(batch.choice, tape[-1]).requires_grad_()
        loss, total = self._loss(q, batch, tape[-1], target)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        assert q.grad is not None
        self.agents.backward(tape, batch.choice, q.grad, room.spare, self._side[0])
        rates = (self.config.agent_rate, self.config.mixer_rate)
        for flat, square, rate in zip(self._online, self._square, rates, strict=True):
            _rmsprop(flat.values, flat.gradient, square, rate)
        return loss.detach(), total

    @fused
    def _loss(
        self, q: Tensor, batch: Batch, values: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean squared TD error and mean Q_tot of chosen values q [run x agent, batch]: [run]."""
        total = self.mixer(q, batch.state, values, batch.choice)
        return (total - target).square().mean((1, 2)), total.detach().mean((1, 2))

    def copy_target(self) -> None:
        """The target networks become the online ones."""
        for online, target in zip(self._online, self._target, strict=True):
            target.values.copy_(online.values)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that learning changes, by name."""
        return {name: tensor for name, (_, tensor) in self._parts().items()}

    def take(self, run: int) -> dict[str, Tensor]:
        """What an exact continuation of one run needs, as if it had been trained alone."""
        return {name: flat.take(tensor, run) for name, (flat, tensor) in self._parts().items()}

    def put(self, run: int, found: dict[str, Tensor]) -> None:
        """The reverse of `take`."""
        for name, (flat, tensor) in self._parts().items():
            flat.put(tensor, run, found[name])

    def agents_of(self, run: int) -> dict[str, Tensor]:
        """The agent networks of one run: all that execution needs."""
        parameters = self.agents.state_dict()
        return {name: value.chunk(self.runs)[run] for name, value in parameters.items()}

    def _parts(self) -> dict[str, tuple[Flat, Tensor]]:
        parts = {}
        for place, name in enumerate(("", " mixer")):
            online, target = self._online[place], self._target[place]
            parts[f"online{name}"] = (online, online.values)
            parts[f"target{name}"] = (target, target.values)
            parts[f"square{name}"] = (online, self._square[place])
        return {name: part for name, part in parts.items() if part[1].numel()}
