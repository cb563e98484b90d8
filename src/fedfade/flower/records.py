"""What travels in Flower messages, and what of it the uplink needs to know.

Everything of fedfade's own lies in records whose names begin with `fedfade.`; the strategy takes
them out again before the wrapped one sees a reply.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedfade.config import Config, config_from_tree
from fedfade.errors import UserError
from fedfade.flower.decisions import Decisions, Seen
from fedfade.learning import Payload, plain_payload
from fedfade.uplink import Scenario

T = TypeVar("T")

REPORT = "fedfade.report"  # ConfigRecord of a reply: who sent it and how far the model moved
QUESTION = "fedfade.question"  # ConfigRecord that asks for decisions; its numbers are in SEEN
SEEN, DECISIONS = "fedfade.seen", "fedfade.decisions"  # ArrayRecords
PARTITION, NORM = "partition-id", "update-norm"


def is_running_statistic(name: str) -> bool:
    """Whether an array is averaged but not trained (batch norm), by PyTorch's names.

    >>> is_running_statistic("features.1.running_var"), is_running_statistic("features.1.weight")
    (True, False)
    """
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def payload_bits(content: RecordDict) -> float:
    """Bits of all array values in a reply, 8 for each byte of their own type.

    Headers of the transport are not counted, so a float32 model counts as in fedfade itself.
    """
    arrays = [a for record in content.array_records.values() for a in record.values()]
    return float(sum(8 * math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays))


def all_finite(content: RecordDict) -> bool:
    """Whether a reply holds numbers only."""
    arrays = (a.numpy() for record in content.array_records.values() for a in record.values())
    return all(np.isfinite(values).all() for values in arrays if values.dtype.kind == "f")


def flat(record: ArrayRecord, names: Iterable[str]) -> Tensor:
    """Named arrays one after another as float32: [D]."""
    parts = [record[name].numpy().reshape(-1).astype(np.float32) for name in names]
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0)


def trained_names(record: ArrayRecord, is_buffer: Callable[[str], bool]) -> list[str]:
    """Floating-point arrays that are trained, in the record's order."""
    kinds = {name: np.dtype(array.dtype).kind for name, array in record.items()}
    return [name for name, kind in kinds.items() if kind == "f" and not is_buffer(name)]


def matching(content: RecordDict, model: ArrayRecord) -> ArrayRecord | None:
    """The reply's array record that has the model's names and shapes, if there is one."""

    def shapes(record: ArrayRecord) -> dict[str, tuple[int, ...]]:
        return {name: tuple(array.shape) for name, array in record.items()}

    alike = (r for r in content.array_records.values() if shapes(r) == shapes(model))
    return next(alike, None)


def update_norm(content: RecordDict, reply: RecordDict) -> float:
    """|w_t - w_n| over trained arrays; NaN when message and reply hold different arrays."""
    for model in content.array_records.values():
        found = matching(reply, model)
        if found is not None:
            names = trained_names(model, is_running_statistic)
            return float(torch.linalg.vector_norm(flat(model, names) - flat(found, names)))
    return math.nan


def pack(tensors: dict[str, Tensor]) -> ArrayRecord:
    """Tensors as a record."""
    return ArrayRecord({name: Array(t.numpy(force=True)) for name, t in tensors.items()})


def unpack(record: ArrayRecord) -> dict[str, Tensor]:
    """A record as tensors."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def entry(record: ConfigRecord, name: str, kind: type[T]) -> T:
    """Text or a whole number of a record, or a ValueError."""
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name!r} is missing")
    return value


def question_content(config: Config, payload: Payload, seen: Seen) -> RecordDict:
    """A message to one client."""
    tensors = {f.name: getattr(seen, f.name) for f in fields(Seen) if f.name != "client"}
    question = {
        "config": config.model_dump_json(),
        "payload-bits": json.dumps(plain_payload(payload)),
    }
    record = ConfigRecord(question | {PARTITION: seen.client})
    return RecordDict({QUESTION: record, SEEN: pack(tensors)})


def read_question(content: RecordDict, own: int) -> tuple[Config, Payload, Seen]:
    """Configuration, payload and what the client is told; it must be meant for this one."""
    question = content[QUESTION]
    meant = entry(question, PARTITION, int)
    if meant != own:
        raise UserError(f"a question for client {meant} reached client {own}.")
    seen = Seen(client=own, **unpack(content[SEEN]))
    config = config_from_tree(json.loads(entry(question, "config", str)))
    payload = json.loads(entry(question, "payload-bits", str))
    return config, torch.tensor(payload) if isinstance(payload, list) else float(payload), seen


def answer_content(client: int, decisions: Decisions) -> RecordDict:
    """A client's decisions."""
    record = pack({"band": decisions.band, "level": decisions.level})
    return RecordDict({REPORT: ConfigRecord({PARTITION: client}), DECISIONS: record})


def read_answer(content: RecordDict, scenario: Scenario) -> tuple[int, Decisions]:
    """A client's answer, or a ValueError that says what is wrong with it."""
    report, record = content.get(REPORT), content.get(DECISIONS)
    if not isinstance(report, ConfigRecord) or not isinstance(record, ArrayRecord):
        raise ValueError("it holds no decisions")
    found = unpack(record)
    for name, limit in (("band", scenario.bands), ("level", scenario.levels)):
        value = found.get(name)
        if value is None or value.dtype != torch.int64 or value.shape != (scenario.slots,):
            raise ValueError(f"its {name} is not a whole number a slot")
        if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < limit:
            raise ValueError(f"its {name} is not between 0 and {limit - 1}")
    return entry(report, PARTITION, int), Decisions(found["band"], found["level"])
