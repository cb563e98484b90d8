"""The learning step: double-DQN targets through the mixer, RMSProp on flat parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedfade.config import QmixConfig
from fedfade.graphs import fuse
from fedfade.qmix.networks import AgentNetworks, make_mixer
from fedfade.qmix.replay import Batch
from fedfade.randomness import torch_generator

RMSPROP_DECAY = 0.99
RMSPROP_EPSILON = 1e-8
_ALIGN = 16  # floats: every parameter starts on a cache line, so products add up the same way


class Update(NamedTuple):
    """What an update saw."""

    loss: Tensor  # scalar, mean squared TD error
    q: Tensor  # scalar, mean Q_tot of the batch


class Flat:
    """Parameters of a module and their gradients, each as one vector with views into it."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        sizes = [-(-p.numel() // _ALIGN) * _ALIGN for p in parameters]
        device = parameters[0].device if parameters else torch.device("cpu")
        self.values = torch.zeros(sum(sizes), device=device)
        self.gradient = torch.zeros_like(self.values)
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            stop = start + parameter.numel()
            view = self.values[start:stop].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start += size


class RmsProp:
    """v <- decay v + (1 - decay) g^2;  p <- p - rate g / (sqrt(v) + epsilon)."""

    def __init__(self, flat: Flat, rate: float) -> None:
        self.flat = flat
        self.rate = rate
        self.square = torch.zeros_like(flat.values)
        self.step = fuse(self._step, flat.values.device)

    def _step(self) -> None:
        """Apply the gradient and clear it."""
        gradient = self.flat.gradient
        self.square.mul_(RMSPROP_DECAY).addcmul_(gradient, gradient, value=1.0 - RMSPROP_DECAY)
        scale = self.square.sqrt().add_(RMSPROP_EPSILON)
        self.flat.values.addcdiv_(gradient, scale, value=-self.rate)
        gradient.zero_()


class Learner:
    """Online and target networks, and how the online ones learn.

    Nothing here knows of slots or sub-bands: agents, observations, a state, actions.
    """

    def __init__(
        self,
        config: QmixConfig,
        agents: int,
        width: int,
        state_width: int,
        actions: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.agents = self._networks(agents, width, actions, seed).to(device)
        self.mixer = self._mixer(agents, state_width, seed).to(device)
        self.target_agents = self._networks(agents, width, actions, seed).to(device)
        self.target_mixer = self._mixer(agents, state_width, seed).to(device)
        self._online = (Flat(self.agents), Flat(self.mixer))
        self._target = (Flat(self.target_agents), Flat(self.target_mixer))
        self._rooms: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        rates = (config.agent_rate, config.mixer_rate)
        self.optimisers = [RmsProp(f, r) for f, r in zip(self._online, rates, strict=True)]
        # Matrix products stay library calls; the small operations between them are fused.
        place = self._online[0].values.device
        self._bootstrap = fuse(self._target_value, place)
        self._loss = fuse(self._mixed_loss, place)

    def _networks(self, agents: int, width: int, actions: int, seed: int) -> AgentNetworks:
        generator = torch_generator(seed, "agent networks")
        hidden, share = self.config.hidden, self.config.share_parameters
        return AgentNetworks(agents, width, hidden, actions, generator, share)

    def _mixer(self, agents: int, state_width: int, seed: int) -> nn.Module:
        return make_mixer(self.config, agents, state_width, torch_generator(seed, "mixer"))

    def _room(self, batch: int) -> tuple[list[Tensor], list[Tensor]]:
        """Memory for what the backward pass needs, and for what is soon forgotten."""
        if batch not in self._rooms:
            self._rooms[batch] = (self.agents.make_room(batch), self.agents.make_room(batch))
        return self._rooms[batch]

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y = r + gamma Q_tot(z', a', s'; target), a' the online networks' choice: [k, batch]."""
        room = self._room(len(batch.reward))[1]
        best = self.agents.layers(batch.next_observation, room)[-1].argmax(-1, keepdim=True)
        values = self.target_agents.layers(batch.next_observation, room)[-1]
        return self._bootstrap(values, best, batch)

    def _target_value(self, values: Tensor, best: Tensor, batch: Batch) -> Tensor:
        value = values.gather(-1, best).squeeze(-1)
        following: Tensor = self.target_mixer(value, batch.next_state)
        return batch.reward + batch.discount * following

    def update(self, batch: Batch) -> Update:
        """One step on the squared TD error of a batch (paper: eq. 34)."""
        target = self.target(batch)
        kept, spare = self._room(len(batch.reward))
        with torch.no_grad():
            tape = self.agents.layers(batch.observation, kept)
            q = tape[-1].gather(-1, batch.choice[..., None]).squeeze(-1)
        q.requires_grad_()
        loss, total = self._loss(q, batch.state, target)
        loss.backward()  # type: ignore[no-untyped-call]
        assert q.grad is not None
        self.agents.backward(tape, batch.choice, q.grad, spare)
        for optimiser in self.optimisers:
            optimiser.step()
        return Update(loss.detach(), total)

    def _mixed_loss(self, q: Tensor, state: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Mean squared TD error and mean Q_tot of chosen values q [agent, batch]."""
        total = self.mixer(q, state)
        return nn.functional.mse_loss(total, target), total.detach().mean()

    def copy_target(self) -> None:
        """The target networks become the online ones."""
        for online, target in zip(self._online, self._target, strict=True):
            target.values.copy_(online.values)

    def tensors(self) -> dict[str, Tensor]:
        """Everything an exact continuation needs, by name."""
        parts = {
            "online": self._online[0].values,
            "online mixer": self._online[1].values,
            "target": self._target[0].values,
            "target mixer": self._target[1].values,
            "square": self.optimisers[0].square,
            "square mixer": self.optimisers[1].square,
        }
        return {name: tensor for name, tensor in parts.items() if tensor.numel()}


def copy_into(tensors: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Fill `tensors` in place with the values of the same name."""
    for name, tensor in tensors.items():
        tensor.copy_(found[name])


def finite(values: Iterable[Tensor]) -> bool:
    """Whether every number is finite (waits for the device)."""
    return all(bool(torch.isfinite(value).all()) for value in values)
