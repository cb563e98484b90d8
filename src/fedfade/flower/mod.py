"""The client's side: say who sent a reply, and decide where that is the client's own business."""

import json
from dataclasses import fields
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedfade.allocation import PERFECT, Policy
from fedfade.config import Config, config_from_tree
from fedfade.device import one_thread
from fedfade.errors import UserError, not_allowed
from fedfade.flower.decisions import Decisions, Seen, decide
from fedfade.flower.policies import policy_of_client
from fedfade.flower.records import (
    DECISIONS,
    NORM,
    PARTITION,
    QUESTION,
    REPORT,
    SEEN,
    pack,
    text,
    unpack,
    update_norm,
    whole,
)
from fedfade.uplink import Scenario, scenario_from_config


class UplinkMod:
    """Flower client mod: `ClientApp(mods=[UplinkMod()])`.

    To every training reply it adds the client's partition id (node ids change from run to run,
    channels must not) and the norm of its update. When the strategy leaves the decisions to the
    clients it answers the server's questions with the policy named here or, if none is, by
    `policy` in the run configuration. That is the only thing that names code to run: nothing the
    server sends does.
    """

    def __init__(self, policy: str | Policy | None = None) -> None:
        self._policy = policy

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a question, or let the app train and sign its reply."""
        if QUESTION in message.content:
            return self._answer(message, context)
        reply = call_next(message, context)
        if message.metadata.message_type.partition(".")[0] == "train" and not reply.has_error():
            norm = update_norm(message.content, reply.content)
            report = {PARTITION: partition_id(context), NORM: norm}
            reply.content[REPORT] = ConfigRecord(report)
        return reply

    def _answer(self, message: Message, context: Context) -> Message:
        question = message.content[QUESTION]
        seen = read_seen(message.content, partition_id(context))
        config = config_from_tree(json.loads(text(question, "config")))
        payload = float(text(question, "payload-bits"))
        policy = self._choose(context, config)
        if policy.scope in ("csi", "central"):
            raise not_allowed("policy", policy.name, "local or feedback where clients decide")
        scenario = scenario_from_config(config, payload)
        with one_thread():
            decisions = decide(policy, scenario, seen)
        content = RecordDict(
            {
                REPORT: ConfigRecord({PARTITION: seen.client}),
                DECISIONS: pack({"band": decisions.band, "level": decisions.level}),
            }
        )
        return Message(content, reply_to=message)

    def _choose(self, context: Context, config: Config) -> Policy:
        chosen = self._policy
        if chosen is None:
            chosen = str(context.run_config.get("policy", PERFECT))
        if isinstance(chosen, str):
            return _load(chosen, config.model_dump_json(), partition_id(context))
        return chosen


@lru_cache(maxsize=64)  # a simulation plays many clients in one process
def _load(name: str, tree: str, client: int) -> Policy:
    """A checkpoint is read once in a process, not once in a message."""
    policy = policy_of_client(name, config_from_tree(json.loads(tree)), client)
    if policy is None:
        raise not_allowed("policy", name, "a policy that sends where clients decide")
    return policy


def partition_id(context: Context) -> int:
    """The client's number; SuperNodes get theirs by --node-config 'partition-id=3'."""
    value = context.node_config.get(PARTITION)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(
            "node-config has no whole number 'partition-id': start the SuperNode with "
            "--node-config 'partition-id=N'."
        )
    return value


# --- questions and answers as records --------------------------------------------------------


def question_content(config_json: str, payload_bits: float, seen: Seen) -> RecordDict:
    """A message to one client."""
    tensors = {f.name: getattr(seen, f.name) for f in fields(Seen) if f.name != "client"}
    question = {"config": config_json, "payload-bits": repr(payload_bits), PARTITION: seen.client}
    return RecordDict({QUESTION: ConfigRecord(question), SEEN: pack(tensors)})


def read_seen(content: RecordDict, own: int) -> Seen:
    """What a question tells the client; it must be meant for this one."""
    meant = whole(content[QUESTION], PARTITION)
    if meant != own:
        raise UserError(f"a question for client {meant} reached client {own}.")
    return Seen(client=own, **unpack(content[SEEN]))


def read_decisions(content: RecordDict, scenario: Scenario) -> tuple[int, Decisions]:
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
    return whole(report, PARTITION), Decisions(found["band"], found["level"])
