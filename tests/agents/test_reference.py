"""The fast learner and trainer against the reference: same weights in, same weights out."""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedfade.agents import Trainer
from fedfade.agents.learner import Learner
from fedfade.agents.networks import AgentNetworks, MonotonicMixer
from fedfade.agents.reference import ReferenceLearner, Transition, train_reference
from fedfade.agents.transitions import Batch
from fedfade.config import load_config

UPDATES = 6


def named_as_in_the_reference(
    agents: AgentNetworks, mixer: MonotonicMixer, run: int = 0
) -> dict[str, Tensor]:
    """The weights of one run as the state dict of the reference's `Networks`."""
    found = {}
    layers = zip(agents.weights, agents.biases, pairwise(agents.sizes), strict=True)
    for layer, (weight, bias, (fan_in, fan_out)) in enumerate(layers):
        for agent in range(agents.agents):
            row, place = run * agents.agents + agent, f"agents.{agent}.{2 * layer}"
            found[f"{place}.weight"] = weight[row, :fan_in, :fan_out].T
            found[f"{place}.bias"] = bias[row, 0, :fan_out]
    enter = zip(
        ("first_weight.0", "second_weight.0", "second_bias.0", "first_bias"),
        mixer.enter.weight[run].split(mixer.parts, dim=-1),
        mixer.enter.bias[run, 0].split(mixer.parts),
        strict=True,
    )
    for place, weight, bias in enter:
        found |= {f"mixer.{place}.weight": weight.T, f"mixer.{place}.bias": bias}
    second = {"first_weight.2": mixer.first, "second_weight.2": mixer.second}
    for place, layer in (second | {"second_bias.2": mixer.value}).items():
        found |= {f"mixer.{place}.weight": layer.weight[run].T}
        found |= {f"mixer.{place}.bias": layer.bias[run, 0]}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def reference_of(trainer: Trainer, run: int = 0) -> ReferenceLearner:
    """A reference that starts with the weights of a fast learner."""
    reference = ReferenceLearner(trainer.scenario, trainer.config.qmix)
    learner = trainer.learner
    for networks, fast in (
        (reference.online, (learner.agents, learner.mixer)),
        (reference.target, (learner.target_agents, learner.target_mixer)),
    ):
        networks.load_state_dict(named_as_in_the_reference(*fast, run))
    return reference


def check(learner: Learner, reference: ReferenceLearner, run: int = 0) -> None:
    """Weights after a few updates. RMSProp's first step is ten times the rate whatever the gradient
    is, so that float32 rounding of gradients near zero can cost a few weights part of a step; not
    more than a hundredth of it, and a ten thousandth in the mean."""
    step = 10 * max(learner.config.agent_rate, learner.config.mixer_rate)
    for networks, fast in (
        (reference.online, (learner.agents, learner.mixer)),
        (reference.target, (learner.target_agents, learner.target_mixer)),
    ):
        wanted, found = networks.state_dict(), named_as_in_the_reference(*fast, run)
        assert wanted.keys() == found.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-2 * step, rtol=1e-4)
            assert float((found[name] - tensor).abs().mean()) < 1e-4 * step


def squared_gradients(learner: Learner, like: Learner) -> dict[str, Tensor]:
    """RMSProp's mean square of each gradient, laid out as weights."""
    found = learner.take(0)
    like.put(0, found | {"online": found["square"], "online mixer": found["square mixer"]})
    return named_as_in_the_reference(like.agents, like.mixer)


def random_batch(trainer: Trainer, size: int, seed: int) -> Batch:
    sizes, g = trainer.learner.agents, torch.Generator().manual_seed(seed)
    runs, agents, actions = sizes.runs, sizes.agents, sizes.sizes[-1]
    state = trainer.learner.mixer.enter.weight.shape[1]
    return Batch(
        observation=torch.randn(runs * agents, size, sizes.width, generator=g),
        state=torch.randn(runs, size, state, generator=g),
        choice=torch.randint(actions, (runs * agents, size), generator=g),
        reward=torch.randn(runs, size, generator=g),
        next_observation=torch.randn(runs * agents, size, sizes.width, generator=g),
        next_state=torch.randn(runs, size, state, generator=g),
        discount=torch.where(torch.rand(runs, size, generator=g) < 0.3, 0.0, 0.95),
    )


def of_run(batch: Batch, run: int) -> Transition:
    """One run of a fast batch, with the batch in front."""
    runs = len(batch.state)
    alone = {}
    for name in Transition._fields:
        tensor = getattr(batch, name)
        of_agents = len(tensor) != runs  # [run x agent, batch, ...], else [run, batch, ...]
        alone[name] = tensor.chunk(runs)[run].transpose(0, 1) if of_agents else tensor[run]
    return Transition(**alone)


@pytest.mark.parametrize("hidden", ["[16, 8]", "[7]"])  # the fast layers are padded to fours
@pytest.mark.parametrize("seeds", [[0], [3, 4]])
def test_updates_on_the_same_batches(overrides: list[str], hidden: str, seeds: list[int]) -> None:
    """Loss and gradients of each update, and the weights after several and a copied target."""
    changes = [*overrides, f"qmix.hidden={hidden}", "qmix.agent_rate=0.01", "qmix.mixer_rate=0.01"]
    trainer = Trainer(load_config("small-cell", changes), seeds=seeds)
    references = [reference_of(trainer, run) for run in range(len(seeds))]
    for update in range(UPDATES):
        batch = random_batch(trainer, 16, seed=update)
        found, _ = trainer.learner.update(batch)
        wanted = [r.update(of_run(batch, run)) for run, r in enumerate(references)]
        torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-6, rtol=2e-5)
        if update == 2:
            trainer.learner.copy_target()
            for reference in references:
                reference.target.load_state_dict(reference.online.state_dict())
    for run, reference in enumerate(references):
        check(trainer.learner, reference, run)


def test_gradients_of_one_update(overrides: list[str]) -> None:
    """After one step RMSProp's mean square is a hundredth of the squared gradient."""
    trainer, other = (Trainer(load_config("small-cell", overrides)) for _ in range(2))
    reference = reference_of(trainer)
    batch = random_batch(trainer, 64, seed=1)
    trainer.learner.update(batch)
    reference.update(of_run(batch, 0))
    found = squared_gradients(trainer.learner, other.learner)
    for name, parameter in reference.online.named_parameters():
        wanted = 0.01 * parameter.grad.square()
        assert float(wanted.max()) > 0
        torch.testing.assert_close(found[name], wanted, atol=1e-10, rtol=1e-3)


@pytest.mark.parametrize("gradients", ["synthetic", "learning"])
def test_a_short_training(overrides: list[str], gradients: str) -> None:
    """Rewards, uploads, losses and weights of five batches of episodes, the memory overflowing on
    the way, with targets copied and federated rounds in the loop."""
    changes = [
        f"qmix.gradients={gradients}",
        "learning.local_work=1",
        "learning.payload_bits=2e5",  # so that some deliver
        "qmix.episodes=100",
    ]
    config = load_config("small-cell", [*overrides, *changes])
    trainer = Trainer(config)
    reference = reference_of(trainer)
    delivered = 0.0
    for reward, uploads, losses in train_reference(config, reference):
        (report,) = trainer.play_batch()
        assert report.uploads == uploads
        assert report.reward == pytest.approx(reward, rel=1e-5)
        assert report.loss == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        delivered += uploads
    assert trainer.batch == trainer.batches == 5
    assert delivered > 0
    assert int(trainer.replay.stored) > trainer.replay.rows
    check(trainer.learner, reference)


def test_the_reference_learns_as_a_program() -> None:
    command = [sys.executable, "-m", "fedfade.agents.reference"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    uploads = [float(line.split()[5]) for line in answer.stdout.splitlines()]
    assert len(uploads) == 25
    assert sum(uploads[-5:]) > 3 * sum(uploads[:5])
