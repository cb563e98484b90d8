"""Captured graphs give the numbers of plain calls."""

from functools import partial

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.config import Config


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_seeds_side_by_side_on_cuda(tiny: Config) -> None:
    both, alone = Trainer(tiny, "cuda", seeds=[0, 1]), Trainer(tiny, "cuda", seeds=[1])
    for _ in range(3):
        ours, theirs = both.play_batch()[1], alone.play_batch()[0]
        assert ours[:3] == pytest.approx(theirs[:3], rel=0.02, nan_ok=True)
