"""A user's own model: every client starts from its initial state, and only what is kept is sent."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.config import LearningConfig
from fedfade.errors import UserError
from fedfade.learning import Dataset, Federation, build_model, load_data

DIGITS = LearningConfig(data="digits", clients=4, batch_size=20)
Shape = tuple[int, int, int]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(DIGITS)


def federation(digits: Dataset, model: str, engine: str = "loop", threads: int = 1) -> Federation:
    config = DIGITS.model_copy(update={"model": f"{__name__}:{model}", "payload_bits": "auto"})
    return Federation(config, digits, engine=engine, threads=threads)  # type: ignore[arg-type]


def mean_norm(shape: Shape, classes: int) -> nn.Module:
    """Running statistics that are means over all steps: the step counter decides them."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=None),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.BatchNorm1d(16, momentum=None),
        nn.Linear(16, classes),
    )


class Counting(nn.Module):
    """Buffers of every kind, each of which changes the gradient."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[1] * shape[2], classes)
        self.register_buffer("count", torch.tensor(1))
        self.register_buffer("flip", torch.zeros(classes, dtype=torch.bool))
        self.register_buffer("recent", torch.ones(2), persistent=False)
        self.register_buffer("replaced", torch.tensor(0.5))
        self.register_buffer("cache", torch.zeros(0), persistent=False)
        self.register_buffer("empty", None, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.flip.logical_not_()
            self.recent.mul_(0.5).add_(images.mean())
            self.replaced = self.replaced * 0.9 + images.mean()
        if self.empty is None:
            self.empty = torch.ones(1, device=images.device)
        self.cache = images.flatten(1).mean(1)
        logits = self.linear(images.flatten(1)) / self.count * self.recent.mean() * self.empty
        return logits * self.replaced + torch.where(self.flip, 1.0, 0.0) * self.linear.bias


def by_hand(federation: Federation, digits: Dataset, client: int) -> tuple[Tensor, list[Tensor]]:
    """One client's update and running statistics by nn.Module and torch.optim."""
    config = federation.config
    model = build_model(config.model, digits.shape, len(digits.classes), seed=0).train()
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    optimiser = torch.optim.SGD(model.parameters(), lr=config.local_rate)
    for batch in federation.mini_batches([0], round=0)[0, client]:
        optimiser.zero_grad()
        images = digits.normalised(digits.train_images[batch])
        F.cross_entropy(model(images), digits.train_labels[batch]).backward()
        optimiser.step()
    kept = model.state_dict()
    buffers = [b for n, b in model.named_buffers() if n in kept and b.is_floating_point()]
    return start - nn.utils.parameters_to_vector(model.parameters()).detach(), buffers


@pytest.mark.parametrize("model", ["mean_norm", "Counting"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_every_client_starts_from_the_initial_buffers(
    digits: Dataset, engine: str, model: str
) -> None:
    """Each client, in each of two rounds, is a client that is trained alone."""
    ours = federation(digits, model, engine)
    state = ours.start([0])
    first, again = ours.train(state, [0], 0), ours.train(state, [0], 0)
    assert torch.equal(first.parameters, again.parameters)
    assert torch.equal(first.buffers, again.buffers)
    for client in range(4):
        update, buffers = by_hand(ours, digits, client)
        # float32 sums in another order, over three steps.
        torch.testing.assert_close(first.parameters[0, client], update, rtol=1e-4, atol=1e-6)
        wanted = torch.cat([buffer.flatten() for buffer in buffers])
        torch.testing.assert_close(first.buffers[0, client], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["mean_norm", "Counting"])
def test_threads_do_not_matter(digits: Dataset, model: str) -> None:
    found = []
    for threads in (1, 3):
        ours = federation(digits, model, threads=threads)
        state = ours.start([0, 1])
        ours.train(state, [0, 1], 0)
        updates = ours.train(state, [0, 1], 1)
        found.append((updates.parameters, updates.buffers, ours.evaluate(state)[1]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_looking_at_a_model_does_not_change_it(digits: Dataset) -> None:
    model = build_model(f"{__name__}:Counting", digits.shape, 10, seed=0)
    assert model.count == 1
    assert model.empty is None
    assert len(model.cache) == 0


def test_only_what_a_model_keeps_is_sent(digits: Dataset) -> None:
    ours = federation(digits, "Counting")
    assert list(ours.buffer_layout.shapes) == ["replaced"]
    assert ours.payload_bits == 32 * (64 * 10 + 10 + 1)


# --- lazy layers -------------------------------------------------------------------------------


def lazy(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(classes)
    )


class Unused(nn.Module):
    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(64, classes), nn.LazyLinear(3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits


def test_lazy_layers_take_the_images_shape(digits: Dataset) -> None:
    ours = federation(digits, "lazy")
    assert ours.parameter_layout.total == 4 * 9 + 4 + 8 + 4 * 36 * 10 + 10
    one, two = ours.start([0, 1]).parameters
    assert torch.equal(one, ours.start([0]).parameters[0])
    assert not torch.equal(one, two)
    assert ours.train(ours.start([0]), [0], 0).finite.all()


def test_a_lazy_layer_no_image_reaches_is_refused(digits: Dataset) -> None:
    with pytest.raises(UserError, match="lazy layer that no image passes through"):
        federation(digits, "Unused")
