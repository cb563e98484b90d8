"""Captured graphs give the numbers of plain calls."""

from functools import partial

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.config import Config, load_config, preset_names
from fedfade.uplink import Round

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@NO_CUDA
@pytest.mark.parametrize("mixer", ["qmix", "qplex"])
def test_graphs_equal_plain_calls(mixer: str, tiny: Config, tiny_qplex: Config) -> None:
    config = tiny if mixer == "qmix" else tiny_qplex
    captured, plain = Trainer(config, "cuda"), Trainer(config, "cuda")
    step = partial(plain.rollout.step, plain.learner.agents, plain.replay)
    plain._recorded = {0: (step, plain._update)}
    for _ in range(3):
        assert captured.play_batch()[0][:6] == plain.play_batch()[0][:6]
    for name, tensor in captured.snapshot().items():
        assert torch.equal(tensor, plain.snapshot()[name]), name


@NO_CUDA
def test_the_first_episodes_are_those_of_the_cpu(tiny_federated: Config) -> None:
    """Same channel, mini-batches and actions; where two actions are worth the same to seven
    digits, rounding decides, and what follows in that episode differs."""
    host, device = Trainer(tiny_federated, "cpu"), Trainer(tiny_federated, "cuda")
    fading = [trainer.rounds.round(0).fading.cpu() for trainer in (host, device)]
    torch.testing.assert_close(*fading, rtol=1e-3, atol=4e-3)  # sums of a thousand sines
    tasks = [trainer.rounds.groups[0].gradients._federation for trainer in (host, device)]
    batches = [task.mini_batches([3], 1).cpu() for task in tasks]
    assert torch.equal(*batches)
    for _ in range(3):
        host.play_batch(), device.play_batch()
    choices = [trainer.replay.choice.cpu() for trainer in (host, device)]
    assert float((choices[0] == choices[1]).float().mean()) > 0.99


@NO_CUDA
def test_seeds_side_by_side_on_cuda(tiny: Config) -> None:
    both, alone = Trainer(tiny, "cuda", seeds=[0, 1]), Trainer(tiny, "cuda", seeds=[1])
    for _ in range(3):
        ours, theirs = both.play_batch()[1], alone.play_batch()[0]
        assert ours[:3] == pytest.approx(theirs[:3], rel=0.02, nan_ok=True)


def by_rank(device: str) -> Trainer:
    """`qmix-hold` in small, all choices random, so that all devices play the same."""
    few = ["qmix.parallel_episodes=40", "qmix.layouts=40", "qmix.replay_size=2000"]
    few += ["qmix.batch_size=64", "qmix.epsilon_end=1", "run.precision=fp32"]
    return Trainer(load_config("qmix-hold", few), device, seeds=[0, 1])


@NO_CUDA
@pytest.mark.parametrize("preset", preset_names())
def test_rounds_are_laid_out_as_on_the_cpu(preset: str) -> None:
    """Compiled once, the order of clients was read from memory that nobody had written: where a
    layer of what is observed was longer than 1024 numbers, and no multiple of 32."""
    few = ["qmix.parallel_episodes=20", "qmix.layouts=20", "run.episodes_per_round=1"]
    few += ["qmix.gradients=synthetic", "qmix.replay_size=2000", "qmix.mappo.minibatches=1"]
    config = load_config(preset, [*few, "learning.data=digits"])
    places = [Trainer(config, device, seeds=[0, 1])._places[0] for device in ("cpu", "cuda")]
    round_ = places[0].rounds.round(0)
    for rounds, rollout, memory in places:
        rollout.begin(Round(*(part.to(rounds.device) for part in round_)), 1.0, 0, memory)
    host, there = (place.rollout for place in places)
    torch.testing.assert_close(there._static.cpu(), host._static, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(there._state.cpu(), host._state, rtol=1e-3, atol=1e-3)


@NO_CUDA
def test_agents_by_rank_see_play_and_learn_as_on_the_cpu() -> None:
    """What agents by rank observe, what comes of their choices, and what they learn from it."""
    host, there = by_rank("cpu"), by_rank("cuda")
    start = host.learner.tensors()["online"].clone()
    for _ in range(3):
        ours, theirs = host.play_batch(), there.play_batch()
        assert [one.uploads for one in ours] == pytest.approx([one.uploads for one in theirs])
    for ours, theirs in (
        (host.rollout._static, there.rollout._static),
        (host.rollout._state, there.rollout._state),
        (host.replay.observation, there.replay.observation),
        (host.replay.state, there.replay.state),
        (host.replay.reward, there.replay.reward),
    ):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-3, atol=1e-3)
    assert torch.equal(there.replay.choice.cpu(), host.replay.choice)
    assert host.replay.finished is not None
    assert there.replay.finished is not None
    assert torch.equal(there.replay.finished.cpu(), host.replay.finished)
    ours, theirs = (one.learner.tensors()["online"].cpu() for one in (host, there))
    assert (theirs - ours).norm() < 0.05 * (ours - start).norm()
