"""The learning step: double-DQN targets through the mixer, a step on flat parameters.

`reference.py` has the same step without the tricks that make this one fast.
"""

import copy
from collections.abc import Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfade.agents.kept import KeptAgents
from fedfade.agents.networks import AgentNetworks, Tensors, ValueMixer, make_mixer, spread
from fedfade.agents.optimisers import Flat, Optimiser, clip
from fedfade.agents.sets import SetNetworks, make_agents
from fedfade.agents.transitions import Batch
from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused
from fedfade.randomness import torch_generator


@fused
def _value_of(choice: Tensor, values: Tensor) -> Tensor:
    return values.gather(-1, choice[..., None]).squeeze(-1)


def _add_gradients(parameters: Sequence[Tensor], found: Sequence[Tensor | None]) -> None:
    """Add what was found to the gradients, in one launch."""
    pairs = [(p.grad, g) for p, g in zip(parameters, found, strict=True) if g is not None]
    if pairs:
        torch._foreach_add_(*map(list, zip(*pairs, strict=True)))


class _Room:
    """Memory of one batch size: what the backward pass needs, and what is soon forgotten."""

    def __init__(self, agents: AgentNetworks, batch: int) -> None:
        self.kept, self.spare = agents.make_room(batch), agents.make_room(batch)
        # Side by side two passes need two rooms; in turn the second finds the first's in cache,
        # but for the values, which are used together.
        self.target = agents.make_room(batch)
        if self.target[0].device.type == "cpu":
            self.target[:-1] = self.spare[:-1]


def _flags(each: Sequence[float], device: torch.device) -> Tensor | None:
    """An option of every run: [run]; None where no run has it."""
    return torch.tensor([float(one) for one in each], device=device) if any(each) else None


class Learner:
    """Online and target networks of every run, and how the online ones learn.

    Nothing here knows of slots or sub-bands: agents, observations, a state, actions. Runs, one per
    seed, lie side by side and share nothing: the loss is a sum over runs. With a configuration of
    its own a run may have other learning rates, clip, standardise rewards or mask the finished.
    """

    def __init__(
        self,
        config: QmixConfig | Sequence[QmixConfig],
        agents: int,
        width: int,
        state_width: int,
        actions: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        preference: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        configs = [config] * len(seeds) if isinstance(config, QmixConfig) else list(config)
        self.config, self.runs = (config := configs[0]), len(seeds)
        drawn = [torch_generator(seed, "agent networks") for seed in seeds]
        self.agents = make_agents(config, agents, width, actions, drawn, preference)
        drawn = [torch_generator(seed, "mixer") for seed in seeds]
        self.mixer = make_mixer(config, agents, state_width, actions, drawn)
        self.agents.to(device), self.mixer.to(device)
        self.target_agents, self.target_mixer = copy.deepcopy((self.agents, self.mixer))
        self._online = (Flat(self.agents, self.runs), Flat(self.mixer, self.runs))
        self._target = (Flat(self.target_agents, self.runs), Flat(self.target_mixer, self.runs))
        rates = ([c.agent_rate for c in configs], [c.mixer_rate for c in configs])
        pairs = zip(self._online, rates, strict=True)
        self._optimisers = [Optimiser(configs, flat, own) for flat, own in pairs]
        self._room = cache(partial(_Room, self.agents))
        place = self._online[0].values.device
        self.updates = torch.zeros((), dtype=torch.int64, device=place)
        self._ones = torch.ones(self.runs, device=place)
        self._longest = _flags([c.clip_gradient for c in configs], place)
        self._standardise = _flags([c.standardise_rewards for c in configs], place)
        self._mask = _flags([c.mask_finished for c in configs], place)
        self._due: dict[tuple[tuple[bool, ...], int], Tensor] = {}  # parameters of some runs
        self.kept = KeptAgents(configs, self.agents, self._online[0])
        # Side by side in an update: passes of the target and of the online agents, and mixers.
        self._target_pass, self._pass = SideStream(place), SideStream(place)
        self._target_mixing, self._own_mixing = SideStream(place), SideStream(place)

    def resize(self, *size: int) -> None:
        """From now on so many clients, numbers in an observation, and actions."""
        for networks in (self.agents, self.target_agents):
            assert isinstance(networks, SetNetworks)
            networks.resize(*size)

    # Matrix products stay calls of their own; the small operations between them are fused.

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y = r + gamma Q_tot(z', a', s'; target) (paper: eq. 35): [run, k, batch].

        The online networks choose a'. Without a mixer k is the agent, else there is one.
        """
        room = self._room(batch.reward.shape[-1])
        with self._target_mixing.work():
            weights = self._mixing(self.target_mixer, batch.next_state)
        with self._target_pass.work():
            values = self.target_agents.layers(batch.next_observation, room.target, keep=False)[-1]
        online = self.agents.layers(batch.next_observation, room.spare, keep=False)[-1]
        self._target_pass.join()
        self._target_mixing.join()
        return self._bootstrap(weights, values, online, batch)

    @fused
    def _mixing(self, mixer: ValueMixer, state: Tensor) -> Tensors:
        return mixer.weights(state)

    @fused
    def _bootstrap(self, weights: Tensors, values: Tensor, online: Tensor, batch: Batch) -> Tensor:
        best = self.agents.choose(batch.next_observation, online)
        value = values.gather(-1, best[..., None]).squeeze(-1)
        value, values = self._without_finished(value, values, batch.next_finished)
        mixed = (value, batch.next_state, values, best)
        following = self.target_mixer.combine(weights, *mixed)
        reward = batch.reward
        if self._standardise is not None:
            deviation, mean = torch.std_mean(reward, -1, keepdim=True)
            # One transition deviates by nothing.
            standard = (reward - mean) / (deviation.nan_to_num() + 1e-5)
            reward = torch.where(self._standardise[:, None] > 0, standard, reward)
        return reward[:, None] + batch.discount[:, None] * following

    def _without_finished(
        self, q: Tensor, values: Tensor, finished: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Values 0 where an agent has finished, in the runs that mask them."""
        if self._mask is None or finished is None:
            return q, values
        runs = (self._mask > 0).repeat_interleave(len(q) // self.runs)[:, None]
        counts = ~(finished & runs)  # [run x agent, batch]
        return q * counts, values * counts[..., None]

    def update(self, batch: Batch, lessons: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step on the squared TD error of a batch (paper: eq. 34), and with weight `lessons` []
        towards what the teacher did; mean of the former and of Q_tot: [run]."""
        room = self._room(batch.reward.shape[-1])
        with torch.no_grad(), self._pass.work():
            tape = self.agents.layers(batch.observation, room.kept)
        with self._own_mixing.work():
            made = self._mixing(self.mixer, batch.state)
        target = self.target(batch)
        self._pass.join()
        self._own_mixing.join()
        q = _value_of(batch.choice, tape[-1]).requires_grad_()
        weights = [part.detach().requires_grad_() for part in made]
        loss, total = self._loss(weights, q, batch, tape[-1], target)
        mixer = [*self.mixer.parameters()]
        slopes = torch.autograd.grad(loss, [q, *weights, *mixer], self._ones, allow_unused=True)
        by_q, by_weight = slopes[0], slopes[1 : 1 + len(made)]
        _add_gradients(mixer, slopes[1 + len(made) :])
        with self._own_mixing.work():  # the agents' way down does not wait for the mixer's
            if made:
                through = torch.autograd.grad(made, mixer, by_weight, allow_unused=True)
                _add_gradients(mixer, through)
        slope = spread(by_q, batch.choice, tape[-1].shape[-1])
        if lessons is not None:
            slope = slope + lessons * self._pull(tape[-1], batch)
        sides = [self._target_pass, self._pass, self._target_mixing]
        self.agents.descend(tape, slope, room.spare, sides)
        if self._longest is not None:
            self._own_mixing.join()
            clip(self._online, self._longest)
        for_agents, for_mixer = self._optimisers
        for_agents.step(self.updates)
        self._own_mixing.join()
        for_mixer.step(self.updates)
        self.kept.update(self.updates)
        self.updates += 1
        return loss.detach(), total

    @fused
    def _pull(self, values: Tensor, batch: Batch) -> Tensor:
        """Slope of m times the cross entropy of softmax(Q_n / m) to what the teacher did, summed
        over agents, m being `qmix.lesson_margin`: [run x agent, batch, action].

        It is smooth where the large margin of DQfD (Hester et al. 2018) has a kink, and fades once
        the teacher's choice leads by some m. Agents that have finished have nothing to learn, where
        this is known.
        """
        assert batch.lesson is not None
        odds = (values / self.config.lesson_margin).softmax(-1)
        shown = spread(torch.ones_like(odds[..., 0]), batch.lesson, odds.shape[-1])
        slope = (odds - shown) / values.shape[1]
        return slope if batch.finished is None else slope * ~batch.finished[..., None]

    @fused
    def _loss(
        self, weights: Tensors, q: Tensor, batch: Batch, values: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean loss and mean Q_tot of the values q [run x agent, batch] of choices: [run]."""
        q, values = self._without_finished(q, values, batch.finished)
        total = self.mixer.combine(weights, q, batch.state, values, batch.choice)
        loss = (total - target).square()
        if self.config.loss == "huber":
            loss = F.huber_loss(total, target, reduction="none")
        return loss.mean((1, 2)), total.detach().mean((1, 2))

    def copy_target(self, due: tuple[bool, ...] | None = None) -> None:
        """The target networks become the online ones: of all runs, or of those that are due."""
        for place, (online, target) in enumerate(zip(self._online, self._target, strict=True)):
            if due is None or all(due):
                target.values.copy_(online.values)
                continue
            if (due, place) not in self._due:
                each = torch.tensor(due, device=online.values.device)
                self._due[due, place] = online.spread(each.float()) > 0
            target.values.copy_(torch.where(self._due[due, place], online.values, target.values))

    def fall(self, share: float) -> None:
        """Learning rates become this share of the first ones."""
        for optimiser in self._optimisers:
            optimiser.fall(share)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that learning changes, by name."""
        return {name: tensor for name, (_, tensor) in self._parts().items()}

    def take(self, run: int) -> dict[str, Tensor]:
        """What an exact continuation of one run needs, as if it had been trained alone."""
        return {name: flat.take(tensor, run) for name, (flat, tensor) in self._parts(run).items()}

    def put(self, run: int, found: dict[str, Tensor]) -> None:
        """The reverse of `take`."""
        for name, (flat, tensor) in self._parts().items():
            flat.put(tensor, run, found.get(name, found["online"]))  # no mean of its own

    def _parts(self, run: int | None = None) -> dict[str, tuple[Flat, Tensor]]:
        """What is remembered of all runs, or of one."""
        parts = {}
        for place, name in enumerate(("", " mixer")):
            online, target = self._online[place], self._target[place]
            parts[f"online{name}"] = (online, online.values)
            parts[f"target{name}"] = (target, target.values)
            for kind, moment in self._optimisers[place].moments().items():
                parts[f"{kind}{name}"] = (online, moment)
        for name, vector in self.kept.parts(run).items():
            parts[name] = (self._online[0], vector)
        return {name: part for name, part in parts.items() if part[1].numel()}
