"""What travels from a client to the server, in bits: the codec's tensors, and beside them the
running statistics, which are few and would not bear rounding; error feedback; the payload."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfade.config import LearningConfig
from fedfade.device import one_thread
from fedfade.errors import UserError, not_allowed
from fedfade.learning.averaging import Updates, is_finite
from fedfade.learning.codecs import AsTrained, Codec
from fedfade.learning.data import load_data
from fedfade.learning.model import Layout, buffer_layout, build_model, parameter_layout
from fedfade.randomness import fold, streams
from fedfade.seams import CODECS, ask

ERROR_FEEDBACK = "codec.error_feedback"
"""What is left of each client's updates, [run, client, D], among what the server's state holds."""

Payload = float | Tensor
"""Bits every client has to deliver: one number, or [client]."""

Form = tuple[tuple[torch.Size, torch.dtype], ...]


class Encoded(NamedTuple):
    """What is on the air."""

    values: tuple[Tensor, ...]  # [run, client, ...] in the codec's own form
    statistics: Tensor  # [run, client, B]


class Wire:
    """How the updates of one model travel."""

    def __init__(self, config: LearningConfig, parameters: Layout, buffers: Layout) -> None:
        self.config = config
        shapes = [shape for shape in parameters.shapes.values() if shape.numel()]
        self.parameters, self.statistics = parameters.total, buffers.total
        sizes = [shape.numel() for shape in shapes]
        self.codec: Codec = CODECS.make(config.codec, config, sizes)
        self._who = f"learning.codec = {config.codec!r}"
        self._ours = config.codec in CODECS.built_in
        if hasattr(self.codec, "shaped"):
            self._ask("shaped", shapes)
        self.lossless = type(self.codec) is AsTrained
        self.feeds_back = config.error_feedback and not self.lossless
        self.statistics_type = getattr(self.codec, "statistics", torch.float32)
        if self.statistics_type not in (torch.float32, torch.float16, torch.bfloat16):
            wanted = "torch.float32, torch.float16 or torch.bfloat16"
            raise self._refused(f"has statistics = {self.statistics_type}: it must be {wanted}")
        progressive = hasattr(self.codec, "decode_part") and hasattr(self.codec, "least_bits")
        if config.count_partial and not progressive:
            allowed = f"false with codec {config.codec!r}, of whose bits a part is of no use"
            raise not_allowed("learning.count_partial", True, allowed)

    @property
    def bits(self) -> int:
        """Bits of one client's upload, everything counted that is really sent."""
        return _bits(self.form) + self._statistics_bits

    @cached_property
    def form(self) -> Form:
        """Shapes and types of what a client sends, the same in every round."""
        keys = torch.zeros(1, 1, dtype=torch.int64)
        nothing = torch.zeros(1, 1, self.parameters)
        form = self._form(self._ask("encode", nothing, keys), keys.shape)
        if not _bits(form):
            raise self._refused("sends nothing of an update")
        return form

    @property
    def _statistics_bits(self) -> int:
        return 8 * self.statistics_type.itemsize * self.statistics

    @property
    def share(self) -> float:
        """Of the bits of the same model in float32."""
        return self.bits / (32.0 * (self.parameters + self.statistics))

    def encode(self, updates: Updates, residual: Tensor | None, keys: Tensor | None) -> Encoded:
        """What the clients send; with error feedback, of what was left of earlier updates too. No
        keys are needed for what is sent as it is."""
        values = updates.parameters
        if keys is None:
            return Encoded((values,), updates.buffers)
        if residual is None:
            sent = _by_run(self._encode, values, keys)
        else:
            sent = _by_run(lambda v, e, k: self._encode(v + e, k), values, residual, keys)
        return Encoded(sent, updates.buffers.to(self.statistics_type))

    def counted(self, delivered: Tensor) -> Tensor:
        """Who counts, [run, client] bool, given the share of its bits each client delivered."""
        if not self.config.count_partial:
            return delivered >= 1
        least: int = self.codec.least_bits  # type: ignore[attr-defined]
        return self._arrived(delivered) >= least

    def decode(self, updates: Updates, sent: Encoded, delivered: Tensor) -> Updates:
        """The updates as the server receives them; what is no longer finite does not count."""
        if self.lossless:
            return updates
        if self.config.count_partial:
            (found,) = _by_run(self._decode_part, *sent.values, self._arrived(delivered))
        else:
            (found,) = _by_run(self._decode, *sent.values)
        buffers = sent.statistics.to(torch.float32)
        finite = updates.finite & is_finite(found, buffers)
        return replace(updates, parameters=found, buffers=buffers, finite=finite)

    def _arrived(self, share: Tensor) -> Tensor:
        """Bits of the codec's own that arrived, the statistics having gone first: [run, client]."""
        bits = (share.double() * self.bits).long()
        return torch.where(share >= 1, self.bits, bits) - self._statistics_bits

    def _encode(self, values: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        sent = self._ask("encode", values, keys)
        if (form := self._form(sent, keys.shape)) != self.form:
            wanted = f"{_bits(self.form)} in the same tensors as of an update of zeros"
            raise self._refused(f"sends {_bits(form)} bits of an update: it must be {wanted}")
        return tuple(sent)

    def _form(self, sent: object, batch: torch.Size) -> Form:
        wanted = f"a tuple of tensors [{batch[0]}, {batch[1]}, ...]"
        if not isinstance(sent, tuple | list):
            raise self._refused(f"encoded {_shape(sent)}: it must be {wanted}")
        for tensor in sent:
            if not isinstance(tensor, Tensor) or tensor.shape[:2] != batch:
                raise self._refused(f"encoded {_shape(tensor)}: it must be {wanted}")
        return tuple((tensor.shape[2:], tensor.dtype) for tensor in sent)

    def _decode(self, *sent: Tensor) -> tuple[Tensor]:
        return (self._checked(self._ask("decode", sent), sent),)

    def _decode_part(self, *sent: Tensor) -> tuple[Tensor]:
        *values, bits = sent
        return (self._checked(self._ask("decode_part", tuple(values), bits), sent),)

    def _checked(self, found: object, sent: Sequence[Tensor]) -> Tensor:
        wanted = [*sent[0].shape[:2], self.parameters]
        if not isinstance(found, Tensor) or list(found.shape) != wanted:
            raise self._refused(f"decoded {_shape(found)}: it must be {wanted}, as encoded")
        return found.to(torch.float32)

    def _ask(self, question: str, *given: object) -> Any:
        """What the codec answers. A user's may add up what it likes: on one thread, so that it is
        the same on any machine."""
        with nullcontext() if self._ours else one_thread():
            return ask(self._who, self.codec, question, *given)

    def _refused(self, reason: str) -> UserError:
        return UserError(f"{self._who} {reason}.")


def left_over(residual: Tensor, updates: Updates, received: Updates, arrived: Tensor) -> Tensor:
    """What is left of each client's updates, [run, client, D]: what an update that arrived has
    lost; a client that did not get through keeps what it had, and its round is lost."""

    def left(had: Tensor, values: Tensor, found: Tensor, arrived: Tensor) -> tuple[Tensor]:
        return (torch.where(arrived[..., None], had + values - found, had),)

    return _by_run(left, residual, updates.parameters, received.parameters, arrived)[0]


def codec_keys(
    seeds: Sequence[int], number: int, clients: Sequence[int], device: torch.device
) -> Tensor:
    """Keys of the codec's random numbers in a round: [run, client]; so few that they are made on
    the CPU, where a GPU would be asked thirty times."""
    keys = fold(fold(streams(seeds, "codec"), number)[:, None], torch.tensor(list(clients)))
    return keys.to(device, non_blocking=True)


def plain_payload(payload: Payload) -> float | list[float]:
    """As plain data."""
    return payload.tolist() if isinstance(payload, Tensor) else payload


def payload_bits(config: LearningConfig, wire: Wire | None = None) -> Payload:
    """Bits that every client has to deliver in a round (paper: S).

    With `auto` what is really sent; of a number given, the share that the codec leaves of it.
    `learning.payload_factors` multiplies it. Without `wire`, a model is made where it matters.
    """
    auto = config.payload_bits == "auto"
    if wire is None and (auto or config.codec not in ("none", "float32")):
        data = load_data(config)
        model = build_model(config.model, data.shape, len(data.classes), seed=0)
        wire = Wire(config, parameter_layout(model), buffer_layout(model))
    share = 1.0 if wire is None else wire.share
    bits = float(wire.bits) if wire and auto else float(config.payload_bits) * share
    bits, factors = bits * config.vectors_sent, config.payload_factors
    return torch.tensor(factors) * bits if isinstance(factors, list) else factors * bits


def _by_run(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """One run after the other on the CPU, for the reason that `averaging.by_run` gives; nothing is
    summed here that threads could sum in another order."""
    if tensors[0].device.type != "cpu" or len(tensors[0]) == 1:
        return function(*tensors)
    runs = zip(*(torch.split(tensor, 1) for tensor in tensors), strict=True)
    found = zip(*(function(*run) for run in runs), strict=True)
    return tuple(torch.cat(part) for part in found)


def _bits(form: Form) -> int:
    return sum(8 * kind.itemsize * shape.numel() for shape, kind in form)


def _shape(found: object) -> str:
    return str(list(found.shape)) if isinstance(found, Tensor) else type(found).__name__
