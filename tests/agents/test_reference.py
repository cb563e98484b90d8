"""The fast learner and trainer against the reference: same weights in, same weights out."""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.agents import Trainer
from fedfade.agents.learner import Learner
from fedfade.agents.networks import AgentNetworks, MonotonicMixer
from fedfade.agents.reference import ReferenceLearner, Transition, train_reference
from fedfade.agents.transitions import Batch
from fedfade.config import QmixConfig, load_config
from fedfade.uplink import Scenario

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


class WithOptions(ReferenceLearner):
    """The reference with the options beyond the paper's QMIX, each as torch has it."""

    def __init__(self, scenario: Scenario, config: QmixConfig) -> None:
        super().__init__(scenario, config)
        self.config, groups = config, self.optimiser.param_groups
        self.rates = [group["lr"] for group in groups]
        if config.optimiser == "adam":
            self.optimiser = torch.optim.Adam([{k: g[k] for k in ("params", "lr")} for g in groups])
        for group in self.optimiser.param_groups:
            if config.optimiser == "rmsprop":
                group |= {"alpha": config.rmsprop_decay, "eps": config.rmsprop_epsilon}
        self.average: dict[str, Tensor] = {}
        self.updates = 0

    def fall(self, share: float) -> None:
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = share * rate

    def update(
        self, batch: Transition, finished: Tensor | None = None, next_finished: Tensor | None = None
    ) -> float:
        """Masks are [batch, agent]."""
        config, nobody = self.config, torch.zeros_like(batch.choice, dtype=torch.bool)
        if not self.average:
            self.average = {k: v.clone() for k, v in self.online.agents.state_dict().items()}
        reward = batch.reward
        if config.standardise_rewards:
            reward = (reward - reward.mean()) / (reward.std() + 1e-5)
        with torch.no_grad():
            best = self.online.values(batch.next_observation).argmax(-1, keepdim=True)
            q = self.target.values(batch.next_observation).gather(-1, best).squeeze(-1)
            q[nobody if next_finished is None else next_finished] = 0.0
            target = reward + batch.discount * self.target.mixer(q, batch.next_state)
        taken = self.online.values(batch.observation).gather(-1, batch.choice[..., None])
        taken = taken.squeeze(-1).masked_fill(nobody if finished is None else finished, 0.0)
        error = {"squared": F.mse_loss, "huber": F.huber_loss}[config.loss]
        loss = error(self.online.mixer(taken, batch.state), target)
        self.optimiser.zero_grad()
        loss.backward()
        if config.clip_gradient:
            nn.utils.clip_grad_norm_(self.online.parameters(), config.clip_gradient)
        self.optimiser.step()
        weight = max(1 - config.average_weights, 10 / (self.updates + 10))
        for name, now in self.online.agents.state_dict().items():
            self.average[name] += weight * (now - self.average[name])
        self.updates += 1
        return loss.item()


def reference_of(
    trainer: Trainer, run: int = 0, kind: type[ReferenceLearner] = ReferenceLearner
) -> ReferenceLearner:
    """A reference that starts with the weights of a fast learner."""
    reference = kind(trainer.scenario, trainer.configs[run].qmix)
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


def laid_out(learner: Learner, like: Learner, name: str, run: int = 0) -> dict[str, Tensor]:
    """What a learner has for each weight, such as RMSProp's mean square, named as weights."""
    found = learner.take(run)
    mixer = found.get(f"{name} mixer", found["online mixer"])
    like.put(run, found | {"online": found[name], "online mixer": mixer})
    return named_as_in_the_reference(like.agents, like.mixer, run)


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
    found = laid_out(trainer.learner, other.learner, "square")
    for name, parameter in reference.online.named_parameters():
        wanted = 0.01 * parameter.grad.square()
        assert float(wanted.max()) > 0
        torch.testing.assert_close(found[name], wanted, atol=1e-10, rtol=1e-3)


OPTIONS = {
    "rmsprop_decay": "rmsprop_decay=0.9",
    "rmsprop_epsilon": "rmsprop_epsilon=0.01",
    "adam": "optimiser=adam",
    "clip_gradient": "clip_gradient=0.05",
    "huber": "loss=huber",
    "standardise_rewards": "standardise_rewards=true",
    "mask_finished": "mask_finished=true",
    "average_weights": "average_weights=0.2",
    "all": "optimiser=adam clip_gradient=2 loss=huber standardise_rewards=true mask_finished=true "
    "average_weights=0.2",
}
MAY_DIFFER = ("clip_gradient", "standardise_rewards")


@pytest.mark.parametrize("option", OPTIONS)
def test_options_on_the_same_batches(overrides: list[str], option: str) -> None:
    """Loss, weights and their mean after several updates at falling rates; beside it a run that
    has the option too or, where runs may differ in it, has not."""
    changes = [*overrides, "qmix.hidden=[7]", "qmix.agent_rate=1e-3", "qmix.mixer_rate=1e-3"]
    changes += ["qmix.rmsprop_epsilon=1e-5"]  # so that a gradient that is but rounding is no step
    own = [*changes, *(f"qmix.{change}" for change in OPTIONS[option].split())]
    beside = changes if option in MAY_DIFFER else own
    both = [load_config("small-cell", beside), load_config("small-cell", [*own, "run.seed=1"])]
    trainer, other = Trainer(both), Trainer(both)
    references = [reference_of(trainer, run, WithOptions) for run in range(2)]
    plain = Trainer(load_config("small-cell", [*changes, "run.seed=1"]))
    without = reference_of(plain, 0, WithOptions)
    learner = trainer.learner
    for update in range(UPDATES):
        batch, g = random_batch(trainer, 16, seed=update), torch.Generator().manual_seed(update)
        masks = torch.rand(2, *batch.choice.shape, generator=g) < 0.4
        scaled = 1.5**update * batch.reward  # longer and longer gradients
        batch = batch._replace(reward=scaled, finished=masks[0], next_finished=masks[1])
        found, _ = learner.update(batch)
        for run, reference in enumerate(references):
            masked = masks.chunk(2, 1)[run].mT if reference.config.mask_finished else ()
            wanted = reference.update(of_run(batch, run), *masked)
            assert float(found[run]) == pytest.approx(wanted, rel=2e-5, abs=1e-6)
        without.update(of_run(batch, 1))
        if update == 2:
            for one in (learner, *references, without):
                one.fall(0.5)
    for run, reference in enumerate(references):
        check(learner, reference, run)
        if reference.config.average_weights:
            found = laid_out(learner, other.learner, "average", run)
            for name, tensor in reference.average.items():
                torch.testing.assert_close(found[f"agents.{name}"], tensor, atol=1e-4, rtol=1e-4)
            other.learner.put(run, learner.take(run) | {"online": learner.take(run)["average"]})
            kept = learner.kept.of(run)
            for name, tensor in other.learner.agents.named_parameters():
                assert torch.equal(tensor.chunk(2)[run], kept[name])
    ours, theirs = references[1].online.state_dict(), without.online.state_dict()
    apart = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert (apart > 2e-3) == (option != "average_weights")  # a fifth of a first step


def test_options_in_a_short_training(overrides: list[str]) -> None:
    """Rates that fall from batch to batch, and the mean of the weights, to the end."""
    options = ["clip_gradient=0.5", "loss=huber", "standardise_rewards=true", "final_rate=0.2"]
    options += ["rmsprop_decay=0.95", "rmsprop_epsilon=1e-5", "average_weights=0.6"]
    changes = [f"qmix.{option}" for option in (*options, "episodes=80")]
    config = load_config("small-cell", [*overrides, *changes, "learning.payload_bits=2e5"])
    trainer, other = Trainer(config), Trainer(config)
    reference = reference_of(trainer, 0, WithOptions)
    for batch, (reward, uploads, losses) in enumerate(train_reference(config, reference), 1):
        (report,) = trainer.play_batch()
        assert (report.uploads, report.reward) == (uploads, pytest.approx(reward, rel=1e-5))
        assert report.loss == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        reference.fall(1 - 0.8 * batch / 4)
    check(trainer.learner, reference)
    found = laid_out(trainer.learner, other.learner, "average")
    for name, tensor in reference.average.items():
        torch.testing.assert_close(found[f"agents.{name}"], tensor, atol=1e-5, rtol=1e-3)


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
