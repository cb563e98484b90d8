"""Steps on flat vectors against torch's optimisers, and gradients cut run by run."""

import torch
from torch import nn

from fedfade.agents.optimisers import Flat, adam_step, clip, rmsprop_step

SIZES = (0.1, 1.0, 1e-4, 30.0, 0.0, 1.0)  # of successive gradients


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [size * torch.randn(40, generator=generator) for size in SIZES]


def test_adam_is_torchs() -> None:
    theirs = nn.Parameter(torch.linspace(-1, 1, 40))
    ours, moments = theirs.detach().clone(), (torch.zeros(40), torch.zeros(40))
    optimiser = torch.optim.Adam([theirs], lr=1.0)
    for before, gradient in enumerate(gradients()):
        optimiser.param_groups[0]["lr"] = 0.1 / (before + 1)
        theirs.grad, given = gradient, gradient.clone()
        optimiser.step()
        adam_step(ours, given, *moments, torch.tensor(0.1 / (before + 1)), torch.tensor(before))
        # 1 - 0.999 in float32 is right to 6e-5
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)
        assert not given.any()


def test_rmsprop_is_torchs() -> None:
    theirs = nn.Parameter(torch.linspace(-1, 1, 40))
    ours, square = theirs.detach().clone(), torch.zeros(40)
    optimiser = torch.optim.RMSprop([theirs], lr=1e-3, alpha=0.9, eps=1e-6)
    for gradient in gradients():
        theirs.grad, given = gradient, gradient.clone()
        optimiser.step()
        rmsprop_step(ours, given, square, torch.tensor(1e-3), 0.9, 1e-6)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
        assert not given.any()


def test_every_run_has_its_own_length() -> None:
    """Three runs, one with a short gradient, one that is not cut: as torch cuts each alone."""
    generator = torch.Generator().manual_seed(0)
    module = nn.ParameterList([torch.zeros(3, 3, 4), torch.zeros(6, 5)])  # one and two rows a run
    flat, alone = Flat(module, 3), [[], [], []]
    for parameter in module:
        parameter.grad.normal_(generator=generator).view(3, -1)[1] *= 1e-3
        for run, part in enumerate(parameter.grad.clone().chunk(3)):
            alone[run].append(nn.Parameter(torch.zeros_like(part)))
            alone[run][-1].grad = part
    lengths = [nn.utils.clip_grad_norm_(one, 0.5) for one in alone[:2]]
    assert lengths[0] > 0.5 > lengths[1]
    clip([flat], torch.tensor([0.5, 0.5, 0.0]))
    for place, parameter in enumerate(module):
        wanted = torch.cat([one[place].grad for one in alone])
        torch.testing.assert_close(parameter.grad, wanted)
