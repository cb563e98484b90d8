"""The model: the paper's CNN or a user's own, and its tensors as flat vectors."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedfade.errors import UserError, not_allowed
from fedfade.randomness import stream
from fedfade.seams import load_dotted, one_line

ImageShape = tuple[int, int, int]  # channels, rows, columns


class PaperCNN(nn.Module):
    """Three 3x3 convolutions (32, 64, 128 channels), batch norm, ReLU, 2x2 max pooling; linear
    (paper: section V-A)."""

    def __init__(self, shape: ImageShape, classes: int) -> None:
        super().__init__()
        channels, rows, columns = shape
        if min(rows, columns) < 8:
            small = f"images of {rows} x {columns} pixels"
            enough = "at least 8 x 8 for learning.model = cnn, which halves them three times"
            raise not_allowed("learning.data", small, f"images of {enough}")
        layers: list[nn.Module] = []
        for width in (32, 64, 128):
            # ReLU after pooling gives the same values and gradients as before it (both pick the
            # largest of four) on a quarter of the elements.
            convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1)
            layers += [convolution, nn.BatchNorm2d(width), nn.MaxPool2d(2), nn.ReLU()]
            channels = width
        self.features = nn.Sequential(*layers)
        self.classify = nn.Linear(channels * (rows // 8) * (columns // 8), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images [sample, channel, row, column] to logits [sample, class]."""
        logits: Tensor = self.classify(self.features(images).flatten(1))
        return logits


def build_model(name: str, shape: ImageShape, classes: int, seed: int) -> nn.Module:
    """The model `learning.model` names, its initial weights a function of the seed alone.

    A user's `module:factory` is called as `factory(shape, classes)` with shape = (channels, rows,
    columns) and must return an `nn.Module` that maps images to one logit per class.
    """
    with torch.random.fork_rng(devices=[]):  # nn.init knows only the global generator
        torch.manual_seed(stream(seed, "weights") & (2**63 - 1))
        return PaperCNN(shape, classes) if name == "cnn" else _users_model(name, shape, classes)


def _refused(name: str, reason: str) -> UserError:
    return UserError(f"learning.model = {name!r} {reason}.")


def _users_model(name: str, shape: ImageShape, classes: int) -> nn.Module:
    """It must map two images to [2, classes]; lazy layers learn their sizes here."""
    refused = partial(_refused, name)
    factory = load_dotted("learning.model", name)
    if not callable(factory):
        raise not_allowed("learning.model", name, "cnn or module:factory naming a function")
    try:
        model = cast(Callable[..., object], factory)(shape, classes)
    except UserError:
        raise
    except Exception as error:
        raise refused(f"failed when called: {one_line(error)}") from None
    if not isinstance(model, nn.Module):
        raise refused(f"returned {type(model).__name__}: it must return a torch.nn.Module")
    model.float().eval()
    initial = InitialState(model)
    try:
        with torch.no_grad():
            found = model(torch.zeros(2, *shape))
    except Exception as error:
        raise refused(f"does not accept images of shape {shape}: {one_line(error)}") from None
    initial.restore()
    _check_logits(name, "maps", found, classes)
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise refused("has a lazy layer that no image passes through")
    if not any(p.numel() for p in model.parameters()):
        raise refused("returned a module without parameters")
    return model


def _check_logits(name: str, maps: str, found: object, classes: int) -> None:
    if not isinstance(found, Tensor) or found.shape != (2, classes):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise _refused(name, f"{maps} 2 images to {got}: it must give (2, {classes})")


def check_training(name: str, model: nn.Module, shape: ImageShape, classes: int) -> None:
    """Refuse a model that could not be trained as it is meant to be.

    Clients train on copies, many on each, so nothing may pass from one to the next but what is
    sent: a copy must depend on nothing outside itself, and start anew from `InitialState`.
    """
    refused = partial(_refused, name)
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_complex():
            raise refused(f"has complex numbers in {key!r}: they must be real")
        # Copies of a parameter are without them.
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise refused(f"hooks into the gradient of {key!r}: only hooks of modules are called")
    try:
        copied = copy.deepcopy(model).train()
    except Exception as error:
        raise refused(f"cannot be copied, and every client has a copy: {one_line(error)}") from None
    initial, images = InitialState(copied), _two_images(shape)

    def logits() -> Any:
        torch.manual_seed(0)
        return copied(images)

    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            found = logits()
        except Exception as error:
            raise refused(f"fails in training mode: {one_line(error)}") from None
        _check_logits(name, "in training mode maps", found, classes)
        if buffer_layout(copied) != buffer_layout(model):
            raise refused("changes the shape of a buffer, which is sent: make it not persistent")
        if not found.requires_grad:
            raise refused("gives no gradient to train by")
        far, near = ([p for p in m.parameters() if p.requires_grad] for m in (model, copied))
        slopes = torch.autograd.grad(found.sum(), [*far, *near], allow_unused=True)
        pairs = zip(slopes[: len(far)], slopes[len(far) :], strict=True)
        if any(there is not None and here is None for there, here in pairs):
            raise refused("refers to itself in a function of its own: copies would train it")
        initial.restore()
        with torch.no_grad():
            torch._foreach_copy_(list(copied.parameters()), list(model.parameters()))
        if not torch.allclose(found, logits(), rtol=0.0, atol=0.0, equal_nan=True):
            raise refused(
                "maps the same images to something else in the next pass: what it keeps must be "
                "in buffers, and random numbers must be PyTorch's"
            )


def _two_images(shape: ImageShape) -> Tensor:
    return torch.linspace(-1.0, 1.0, 2 * math.prod(shape)).view(2, *shape)


class InitialState:
    """Whatever of a model is not trained, as it is now: buffers of every kind and frozen
    parameters. `restore` undoes what forward passes did, which may count in them, flip them, or
    put other tensors in their place."""

    def __init__(self, model: nn.Module) -> None:
        places: list[dict[str, Any]] = []
        for module in model.modules():
            places += module._buffers, module._parameters
        self._found = [
            (place, name, tensor, None if tensor is None else tensor.detach().clone())
            for place in places
            for name, tensor in place.items()
            if tensor is None or not (tensor.requires_grad or is_lazy(tensor))
        ]

    @torch.no_grad()
    def restore(self, values: bool = True) -> None:
        """Put the same tensors back in their places, with the same values if wanted."""
        for place, name, tensor, value in self._found:
            place[name] = tensor
            if values and tensor is not None and value is not None:
                tensor.copy_(value)


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in a flat vector: one after the other."""

    shapes: dict[str, torch.Size]

    @property
    def total(self) -> int:
        """Length of the flat vector."""
        return sum(shape.numel() for shape in self.shapes.values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views into flat[..., D], each [..., *shape]; writing to them writes to `flat`."""
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=-1)
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.view(flat.shape[:-1] + shape) for (name, shape), piece in named}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of named tensors: [D]."""
        pieces = [tensors[name].detach().reshape(-1).float() for name in self.shapes]
        return torch.cat(pieces) if pieces else torch.zeros(0)


def parameter_layout(model: nn.Module) -> Layout:
    """Layout of what is trained."""
    return Layout({n: p.shape for n, p in model.named_parameters() if p.requires_grad})


def buffer_layout(model: nn.Module) -> Layout:
    """Layout of what is averaged without gradients: batch-norm running statistics.

    Whole numbers and booleans (batch norm's step counter) are not sent, nor are buffers that are
    not part of the model's `state_dict`; every client starts from their initial values.
    """
    kept = model.state_dict()
    floats = ((n, b) for n, b in model.named_buffers() if b.is_floating_point())
    return Layout({name: buffer.shape for name, buffer in floats if name in kept})


def pass_changes(model: nn.Module, shape: ImageShape, training: bool) -> bool:
    """Whether a forward pass changes parameters, or in testing mode anything, by trying."""
    copied = copy.deepcopy(model).train(training)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        copied(_two_images(shape))
    both = model, copied
    before, after = ([*m.parameters(), *([] if training else m.buffers())] for m in both)
    return len(before) != len(after) or not all(map(torch.equal, before, after))


def has_dropout(model: nn.Module, shape: ImageShape) -> bool:
    """Whether a forward pass in training mode draws random numbers, in whatever layer: whether two
    blank images through a copy of the model move the generator."""
    model = copy.deepcopy(model).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        model(torch.zeros(2, *shape))
        return not torch.equal(before, torch.random.get_rng_state())
