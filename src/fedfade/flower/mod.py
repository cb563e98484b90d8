"""The client's side: say who sent a reply, and decide where that is the client's own business."""

import json
from functools import lru_cache

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fedfade.allocation import PERFECT, Policy
from fedfade.config import Config, config_from_tree
from fedfade.device import one_thread
from fedfade.errors import UserError, not_allowed
from fedfade.flower import records
from fedfade.flower.coding import encode_reply, is_coded
from fedfade.flower.decisions import decide, policy_of_client
from fedfade.uplink import scenario_from_config


class UplinkMod:
    """Flower client mod: `ClientApp(mods=[UplinkMod()])`.

    To every training reply it adds the client's partition id (node ids change from run to run,
    channels must not) and the norm of its update. When the strategy leaves the decisions to the
    clients it answers the server's questions with the policy named here or, if none is, by
    `policy` in the run configuration. Given the configuration, it encodes updates by
    `learning.codec`. These alone name code to run: nothing the server sends does.
    """

    def __init__(self, policy: str | Policy | None = None, uplink: Config | None = None) -> None:
        """`uplink`: the strategy's configuration, if updates are to be encoded by its codec."""
        self._policy = policy
        self._coded = uplink if uplink and is_coded(uplink) else None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a question, or let the app train and sign its reply."""
        if records.QUESTION in message.content:
            return self._answer(message, context)
        reply = call_next(message, context)
        if message.metadata.message_type.partition(".")[0] == "train" and not reply.has_error():
            client, given = partition_id(context), (message.content, reply.content)
            if self._coded is None:
                norm = records.update_norm(*given)
            else:
                norm = encode_reply(self._coded, *given, context, client)
            report = {records.PARTITION: client, records.NORM: norm}
            reply.content[records.REPORT] = ConfigRecord(report)
        return reply

    def _answer(self, message: Message, context: Context) -> Message:
        config, payload, seen = records.read_question(message.content, partition_id(context))
        policy = self._choose(context, config)
        if policy.scope in ("csi", "central"):
            raise not_allowed("policy", policy.name, "local or feedback where clients decide")
        scenario = scenario_from_config(config, payload)
        with one_thread():
            decisions = decide(policy, scenario, seen)
        return Message(records.answer_content(seen.client, decisions), reply_to=message)

    def _choose(self, context: Context, config: Config) -> Policy:
        chosen = self._policy
        if chosen is None:
            chosen = str(context.run_config.get("policy", PERFECT))
        if not isinstance(chosen, str):
            return chosen
        return _load(chosen, config.model_dump_json(), partition_id(context))


@lru_cache(maxsize=64)  # a simulation plays many clients in one process
def _load(name: str, tree: str, client: int) -> Policy:
    """A checkpoint is read once in a process, not once in a message."""
    policy = policy_of_client(name, config_from_tree(json.loads(tree)), client)
    if policy is None:
        raise not_allowed("policy", name, "a policy that sends where clients decide")
    return policy


def partition_id(context: Context) -> int:
    """The client's number; SuperNodes get theirs by --node-config 'partition-id=3'."""
    value = context.node_config.get(records.PARTITION)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(
            "node-config has no whole number 'partition-id': start the SuperNode with "
            "--node-config 'partition-id=N'."
        )
    return value
