"""A user's own model: every client starts from its initial state, and only what is kept is sent."""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedfade.config import LearningConfig
from fedfade.errors import UserError
from fedfade.learning import Dataset, Federation, build_model, load_data
from fedfade.learning.local import LocalWork, dropout_of

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


class Frozen(nn.Module):
    """A teacher that follows the model: parameters without gradient, written in the pass."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, classes)
        self.teacher = nn.Linear(64, classes).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        weight, x = self.teacher.weight, images.flatten(1)
        if self.training:
            weight.data = weight.data * 0.5 + 0.5 * self.linear.weight.data
        logits: Tensor = self.linear(x) + self.teacher(x)
        return logits


class UnitRows(nn.Module):
    """Trained parameters that the pass writes to as well."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.div_(self.linear.weight.norm(dim=1, keepdim=True))
        logits: Tensor = self.linear(images.flatten(1))
        return logits


class CountsAlways(nn.Module):
    """A counter that goes on when the model is tested."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, classes)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        self.count += 1
        return torch.roll(self.linear(images.flatten(1)), int(self.count), 1)


class Tied(nn.Module):
    """A matrix under two names, and a norm that two layers share."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, classes)
        self.two.weight = self.one.weight
        self.norm = self.same = nn.BatchNorm1d(64)

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm(self.two(self.same(self.one(images.flatten(1)))))
        logits: Tensor = self.out(x)
        return logits


def two_layers(shape: Shape, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))


def spectral(shape: Shape, classes: int) -> nn.Module:
    model = two_layers(shape, classes)
    parametrizations.spectral_norm(model[1])
    nn.utils.spectral_norm(model[3])  # the old one: hooks
    return model


def reparametrised(shape: Shape, classes: int) -> nn.Module:
    model = two_layers(shape, classes)
    parametrizations.weight_norm(model[1])
    parametrizations.orthogonal(model[3])
    return model


def hooked(shape: Shape, classes: int) -> nn.Module:
    model = two_layers(shape, classes)
    model[1].register_forward_pre_hook(lambda module, images: (2.0 * images[0],))
    model[1].register_forward_hook(lambda module, images, out: 1.0 + 0.5 * out)
    model[3].register_full_backward_hook(lambda module, into, out: (0.1 * into[0],))
    return model


def dropout(shape: Shape, classes: int) -> nn.Module:
    return two_layers(shape, classes).insert(3, nn.Dropout(0.5))


STATES = [
    "mean_norm", "Counting", "CountsAlways", "Frozen", "UnitRows", "Tied", "spectral",
    "reparametrised", "hooked", "dropout", "lazy",
]  # fmt: skip


def plain_fedavg(ours: Federation, digits: Dataset, rounds: int) -> tuple[Tensor, Tensor]:
    """FedAvg by nn.Module, torch.optim and state_dict: every client a model made anew."""

    def fresh() -> nn.Module:
        model = build_model(ours.config.model, digits.shape, len(digits.classes), seed=0)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    trained, averaged = list(ours.parameter_layout.shapes), list(ours.buffer_layout.shapes)
    sent = {name: fresh().state_dict()[name] for name in trained + averaged}
    for number in range(rounds):
        arrived = []
        for client, batches in enumerate(ours.mini_batches([0], number)[0]):
            model = fresh().train()
            model.load_state_dict(sent, strict=False)
            optimiser = torch.optim.SGD(model.parameters(), lr=ours.config.local_rate)
            with dropout_of(LocalWork(batches[None], 0.1, 0.0, [0], number, [client]), 0, 0):
                for batch in batches:
                    optimiser.zero_grad()
                    images = digits.normalised(digits.train_images[batch])
                    F.cross_entropy(model(images), digits.train_labels[batch]).backward()
                    optimiser.step()
            arrived.append({name: model.state_dict()[name].clone() for name in sent})
        after = {name: torch.stack([one[name] for one in arrived]) for name in sent}
        sent |= {name: sent[name] - (sent[name] - after[name]).mean(0) for name in trained}
        sent |= {name: after[name].mean(0) for name in averaged}
    return ours.parameter_layout.flatten(sent), ours.buffer_layout.flatten(sent)


@pytest.fixture
def _one_core() -> Iterator[None]:
    """Sums of the plain loop in the order of ours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model", STATES)
@pytest.mark.usefixtures("_one_core")
def test_every_kind_of_state_is_as_in_a_plain_loop(digits: Dataset, model: str) -> None:
    """Bit by bit with one thread and with two; mapped over clients up to rounding."""
    losses = []
    for engine, threads in (("loop", 1), ("loop", 2), ("vmap", 1)):
        ours = federation(digits, model, engine, threads)
        state, everybody = ours.start([0]), torch.ones(1, 4, dtype=torch.bool)
        for number in range(2):
            state = ours.average(state, ours.train(state, [0], number), everybody)
        found, wanted = (state.parameters[0], state.buffers[0]), plain_fedavg(ours, digits, 2)
        losses.append(ours.evaluate(state)[1])
        if engine == "loop":
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        for a, b in zip(found, wanted, strict=True):  # float32 sums in another order, six steps
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    assert torch.equal(losses[0], losses[1])
    torch.testing.assert_close(losses[0], losses[2], rtol=1e-4, atol=1e-5)


class Hidden(nn.Module):
    """State that is no buffer: a number, a list, a tensor, somebody else's random numbers."""

    def __init__(self, kind: str, classes: int) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(64, classes), kind
        self.number, self.list, self.tensor = 1.0, [1.0], torch.ones(())

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.number += 1.0
            self.list.append(1.0)
            self.tensor.add_(1.0)
        kept = {"number": self.number, "list": sum(self.list), "tensor": self.tensor}
        scale = kept[self.kind] if self.kind in kept else random.random()
        logits: Tensor = self.linear(images.flatten(1)) / scale
        return logits


class ItsOwnFunction(nn.Module):
    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, classes)
        self.function = lambda images: self.linear(images.flatten(1))  # the original's for ever

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.function(images)
        return logits


class Odd(nn.Module):
    """What goes wrong in training alone."""

    def __init__(self, kind: str, classes: int) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(64, classes), kind
        self.register_buffer("history", torch.zeros(1))
        if kind == "complex":
            self.register_buffer("phase", torch.ones(1, dtype=torch.complex64))
        if kind == "gradient":
            self.linear.weight.register_hook(lambda gradient: 0.1 * gradient)
        if kind == "lock":
            self.lock = threading.Lock()

    def forward(self, images: Tensor) -> Any:
        logits = self.linear(images.flatten(1))
        if not self.training:
            return logits
        if self.kind == "history":
            self.history = torch.cat([self.history, logits.detach().mean()[None]])
        if self.kind == "fails":
            raise ValueError("not today")
        return {"pair": (logits, logits), "constant": logits.detach()}.get(self.kind, logits)


NOT_TAKEN: dict[str, tuple[Callable[[Shape, int], nn.Module], str]] = {
    "number": (lambda _, n: Hidden("number", n), "must be in buffers"),
    "list": (lambda _, n: Hidden("list", n), "must be in buffers"),
    "tensor": (lambda _, n: Hidden("tensor", n), "must be in buffers"),
    "random": (lambda _, n: Hidden("random", n), "random numbers must be PyTorch's"),
    "function": (ItsOwnFunction, "refers to itself in a function"),
    "history": (lambda _, n: Odd("history", n), "changes the shape of a buffer"),
    "complex": (lambda _, n: Odd("complex", n), "complex numbers in 'phase'"),
    "gradient": (lambda _, n: Odd("gradient", n), "hooks into the gradient of 'linear.weight'"),
    "lock": (lambda _, n: Odd("lock", n), "cannot be copied"),
    "fails": (lambda _, n: Odd("fails", n), "fails in training mode: not today"),
    "pair": (lambda _, n: Odd("pair", n), "in training mode maps 2 images to tuple"),
    "constant": (lambda _, n: Odd("constant", n), "gives no gradient"),
}


@pytest.mark.parametrize("kind", NOT_TAKEN)
def test_state_that_cannot_be_kept_apart_is_refused(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    factory, sentence = NOT_TAKEN[kind]
    monkeypatch.setitem(globals(), "refused_model", factory)
    with pytest.raises(UserError, match=rf"^learning.model = .*:refused_model' .*{sentence}"):
        federation(digits, "refused_model")


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
