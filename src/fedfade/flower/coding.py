"""Updates in Flower messages as `learning.codec` sends them: clients encode, the server decodes.

An encoded record holds the codec's tensors, the running statistics, and the model's other arrays
(whole numbers) as they are. What a client has left (error feedback) lies in its own context; with
the next model the server says in which round an update of the client's counted last, and how much
of it.
"""

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from torch import Tensor

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.flower import records
from fedfade.learning import Encoded, Layout, Updates, Wire, codec_keys

COUNTED, NUMBER = "fedfade.counted", "round"
"""ConfigRecord beside a model: the round, and by partition the last one that counted and the share
of the upload that arrived then."""
_LEFT, _SENT = "fedfade.left", "fedfade.sent"  # records of a client's context
_PART, _STATISTICS = "fedfade.part-", "fedfade.statistics"


class ModelCoding:
    """How the updates of a model travel."""

    def __init__(self, config: Config, model: ArrayRecord) -> None:
        self._seed, self._model = config.run.seed, model
        floats = records.trained_names(model, lambda name: False)
        self._trained = records.trained_names(model, records.is_running_statistic)
        self._averaged = [name for name in floats if name not in self._trained]
        self._rest = [name for name in model if name not in floats]
        self.wire = Wire(config.learning, self._layout(self._trained), self._layout(self._averaged))

    def _layout(self, names: list[str]) -> Layout:
        return Layout({name: torch.Size(self._model[name].shape) for name in names})

    def encode(
        self, trained: ArrayRecord, number: int, client: int, left: Tensor
    ) -> tuple[ArrayRecord, Tensor, Tensor]:
        """What a client sends, with what it had left [D]; the update that the server will read,
        and what the client had to say, [D] both."""
        update = records.flat(self._model, self._trained) - records.flat(trained, self._trained)
        updates = _of_one(update + left, records.flat(trained, self._averaged))
        sent = self._coded(updates, number, client)
        arrays = {f"{_PART}{n}": part[0, 0] for n, part in enumerate(sent.values)}
        record = records.pack(arrays | {_STATISTICS: sent.statistics[0, 0]})
        record.update({name: trained[name] for name in self._rest})
        received = self.wire.decode(updates, sent, updates.finite)
        return record, received.parameters[0, 0], update + left

    def left(self, said: Tensor, number: int, client: int, share: float) -> Tensor:
        """What the server has not got, [D], of what a client had to say in a round."""
        updates = _of_one(said, torch.zeros(self.wire.statistics))
        sent = self._coded(updates, number, client)
        return said - self.wire.decode(updates, sent, torch.tensor([[share]])).parameters[0, 0]

    def _coded(self, updates: Updates, number: int, client: int) -> Encoded:
        keys = codec_keys([self._seed], number, [client], torch.device("cpu"))
        return self.wire.encode(updates, None, keys)

    def decode(self, record: ArrayRecord, share: float = 1.0) -> ArrayRecord:
        """The client's model as the server reads it from what arrived, or a ValueError."""
        found = records.unpack(record)
        values = [found[name] for name in found if name.startswith(_PART)]
        kinds = tuple((value.shape, value.dtype) for value in values)
        statistics = found.get(_STATISTICS, torch.zeros(0))
        wanted = ((self.wire.statistics,), self.wire.statistics_type)
        if kinds != self.wire.form or (statistics.shape, statistics.dtype) != wanted:
            why = f"it is not encoded by learning.codec = {self.wire.config.codec}"
            raise ValueError(f"{why}: has its UplinkMod the same configuration?")
        if missing := [name for name in self._rest if name not in found]:
            raise ValueError(f"its array {missing[0]!r} is missing")
        sent = Encoded(tuple(value[None, None] for value in values), statistics[None, None])
        nothing = _of_one(torch.zeros(self.wire.parameters), torch.zeros(self.wire.statistics))
        received = self.wire.decode(nothing, sent, torch.tensor([[share]]))
        model = records.flat(self._model, self._trained) - received.parameters[0, 0]
        arrays = self._layout(self._trained).views(model)
        arrays |= self._layout(self._averaged).views(received.buffers[0, 0])
        arrays |= {name: found[name] for name in self._rest}
        return records.pack({name: arrays[name] for name in self._model})


def is_coded(config: Config) -> bool:
    """Whether updates travel as something else than they are."""
    return config.learning.codec not in ("none", "float32")


def _of_one(values: Tensor, statistics: Tensor) -> Updates:
    """The update of one client."""
    nothing, finite = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    return Updates(values[None, None], statistics[None, None], finite, nothing, nothing)


def encode_reply(
    config: Config, content: RecordDict, reply: RecordDict, context: Context, client: int
) -> float:
    """Put the encoded update in the place of the trained model; the norm the server will find."""
    counted = content.get(COUNTED)
    pairs = [
        (name, model, found)
        for model in content.array_records.values()
        for name, found in reply.array_records.items()
        if found is records.matching(reply, model)
    ]
    if not pairs or not isinstance(counted, ConfigRecord):
        wanted = "a model of a WirelessStrategy with this configuration, and arrays like it"
        raise UserError(f"learning.codec = {config.learning.codec!r} needs {wanted} in the reply.")
    name, model, trained = pairs[0]
    coding, number = ModelCoding(config, model), records.entry(counted, NUMBER, int)
    had = _had(context, coding, client, counted.get(str(client)))
    record, update, said = coding.encode(trained, number, client, had)
    reply[name] = record
    if coding.wire.feeds_back:
        context.state[_LEFT] = records.pack({"before": had, "said": said})
        context.state[_SENT] = ConfigRecord({NUMBER: number})
    return float(torch.linalg.vector_norm(update))


def _had(context: Context, coding: ModelCoding, client: int, counted: object) -> Tensor:
    """What is left of a client's updates: [D]; of the last one, if it counted, what it lost."""
    kept, sent = context.state.get(_LEFT), context.state.get(_SENT)
    if not isinstance(kept, ArrayRecord) or not isinstance(sent, ConfigRecord):
        return torch.zeros(coding.wire.parameters)
    last, number = records.unpack(kept), records.entry(sent, NUMBER, int)
    if not isinstance(counted, list) or counted[0] != number:
        return last["before"]
    return coding.left(last["said"], number, client, float(counted[1]))


def decode_reply(coding: ModelCoding | None, reply: RecordDict) -> Callable[[float], None]:
    """Put the client's model in the place of what it sent, or raise a ValueError. Answers what does
    the same again for a share of the upload."""
    arrays = reply.array_records.items()
    encoded = {name: record for name, record in arrays if _STATISTICS in record}
    if coding is None:
        if encoded:
            raise ValueError("it is encoded, but the strategy's learning.codec is not")
        return lambda share: None
    if not encoded:
        raise ValueError("it is not encoded: UplinkMod(uplink=...) needs the configuration")
    name, record = next(iter(encoded.items()))

    def put(share: float) -> None:
        reply[name] = coding.decode(record, share)

    put(1.0)
    return put
