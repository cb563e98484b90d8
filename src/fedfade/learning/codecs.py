"""What clients put on the air: an update becomes bits and comes back as an update.

A codec is made from the learning configuration (`learning.codec`). It encodes trained parameters
and running statistics alike, batched over runs and clients.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedfade.config import LearningConfig
from fedfade.errors import UserError
from fedfade.learning.averaging import Updates, is_finite
from fedfade.seams import one_line


class Codec(Protocol):
    """How an update travels."""

    def bits(self, values: int) -> float:
        """Bits of an update of so many values, everything counted that is really sent."""

    def encode(self, values: Tensor) -> Any:
        """What is sent of values [run, client, value]."""

    def decode(self, sent: Any) -> Tensor:
        """What the server makes of it: float32 [run, client, value]."""


class AsTrained:
    """Every value as float32, as it was trained."""

    def __init__(self, config: LearningConfig) -> None:
        del config  # nothing to set

    def bits(self, values: int) -> float:
        return 32.0 * values

    def encode(self, values: Tensor) -> Tensor:
        return values

    def decode(self, sent: Tensor) -> Tensor:
        return sent


class Float16(AsTrained):
    """Every value rounded to half precision; beyond 65,504 it is infinite and does not count."""

    def bits(self, values: int) -> float:
        return 16.0 * values

    def encode(self, values: Tensor) -> Tensor:
        return values.half()

    def decode(self, sent: Tensor) -> Tensor:
        return sent.float()


def encoded(codec: Codec, name: str, updates: Updates) -> tuple[Any, Any]:
    """What the clients send: parameters and running statistics."""
    return tuple(_asked(codec.encode, name, v) for v in (updates.parameters, updates.buffers))


def decoded(codec: Codec, name: str, updates: Updates, sent: tuple[Any, Any]) -> Updates:
    """The updates as the server receives them; what is no longer finite does not count."""
    parameters, buffers = (_asked(codec.decode, name, part) for part in sent)
    for found, trained in ((parameters, updates.parameters), (buffers, updates.buffers)):
        if not isinstance(found, Tensor) or found.shape != trained.shape:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            wanted = f"{list(trained.shape)}, as encoded"
            raise UserError(f"learning.codec = {name!r} decoded {shape}: it must be {wanted}.")
    if parameters is updates.parameters and buffers is updates.buffers:
        return updates
    parameters, buffers = parameters.to(torch.float32), buffers.to(torch.float32)
    finite = updates.finite & is_finite(parameters, buffers)
    return replace(updates, parameters=parameters, buffers=buffers, finite=finite)


def _asked(method: Callable[[Any], Any], name: str, given: Any) -> Any:
    """What a codec answers; whatever a user's raises becomes one sentence."""
    try:
        return method(given)
    except Exception as error:
        if isinstance(error, UserError) or method.__module__.startswith("fedfade."):
            raise
        raise UserError(f"learning.codec = {name!r} failed: {one_line(error)}.") from error
