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
    optimiser = torch.optim.Adam([theirs], lr=1.0, betas=(0.8, 0.99), eps=1e-5)
    for number, gradient in enumerate(gradients(), start=1):
        optimiser.param_groups[0]["lr"] = 0.1 / number
        theirs.grad, given = gradient, gradient.clone()
        optimiser.step()
        rate, step = torch.tensor(0.1 / number), torch.tensor(number)
        adam_step(ours, given, *moments, rate, step, decays=(0.8, 0.99), epsilon=1e-5)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
        assert not given.any()


def test_rmsprop_is_torchs() -> None:
    theirs = nn.Parameter(torch.linspace(-1, 1, 40))
    ours, square = theirs.detach().clone(), torch.zeros(40)
    optimiser = torch.optim.RMSprop([theirs], lr=1e-3, alpha=0.99, eps=1e-8)
    for gradient in gradients():
        theirs.grad, given = gradient, gradient.clone()
        optimiser.step()
        rmsprop_step(ours, given, square, torch.tensor(1e-3))
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
        assert not given.any()


def test_a_rate_is_one_or_one_for_each_parameter() -> None:
    def moved(rate: torch.Tensor, adam: bool) -> torch.Tensor:
        values, moments = torch.zeros(40), (torch.zeros(40), torch.zeros(40))
        for number, gradient in enumerate(gradients(), start=1):
            if adam:
                adam_step(values, gradient, *moments, rate, torch.tensor(number))
            else:
                rmsprop_step(values, gradient, moments[0], rate)
        return values

    for adam in (False, True):
        plain = moved(torch.tensor(0.01), adam)
        assert plain.abs().min() > 0
        rates = torch.cat([torch.full((20,), 0.01), torch.zeros(20)])
        wanted = torch.cat([plain[:20], torch.zeros(20)])
        torch.testing.assert_close(moved(rates, adam), wanted)


def test_every_run_has_its_own_length() -> None:
    """Two runs, one with a short gradient: each is cut as torch cuts it alone, or not at all."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 4), (6, 5))  # the first axis holds one and three rows a run
    module = nn.ParameterList(torch.zeros(shape) for shape in shapes)
    flat = Flat(module, runs=2)
    alone: list[list[nn.Parameter]] = [[], []]
    for parameter in module:
        parameter.grad.copy_(torch.randn(parameter.shape, generator=generator))
        parameter.grad.view(2, -1)[1] *= 1e-3
        for run, part in enumerate(parameter.grad.clone().chunk(2)):
            alone[run].append(nn.Parameter(torch.zeros_like(part)))
            alone[run][-1].grad = part
    before = flat.gradient.clone()
    clip([flat], torch.zeros(2))
    assert torch.equal(flat.gradient, before)
    lengths = [nn.utils.clip_grad_norm_(one, 0.5) for one in alone]
    assert lengths[0] > 0.5 > lengths[1]
    clip([flat], torch.tensor([0.5, 0.5]))
    for place, parameter in enumerate(module):
        parts = torch.cat([one[place].grad for one in alone])
        torch.testing.assert_close(parameter.grad, parts)
