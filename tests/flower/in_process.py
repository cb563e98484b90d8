"""A Flower grid in this process: every message is handed straight to a ClientApp."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# Messages take their sender from here; Flower's own runtimes set it.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class InProcessGrid(Grid):
    """Nodes 700, 699, ... hold partitions 0, 1, ...; `lost` nodes never answer."""

    def __init__(self, app: ClientApp, clients: int, run_config: dict[str, Any] | None = None):
        self.app = app
        self.contexts = {
            700 - n: Context(
                run_id=1,
                node_id=700 - n,
                node_config={"partition-id": n, "num-partitions": clients},
                state=RecordDict(),
                run_config=run_config or {},
            )
            for n in range(clients)
        }
        self.lost: set[int] = set()
        self.tamper: Callable[[Message], Message] = lambda reply: reply
        self.messages = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            self.messages += 1
            node = message.metadata.dst_node_id
            if node in self.lost:
                continue
            try:
                reply = self.app(message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(code=2, reason=str(error)), reply_to=message)
            replies.append(self.tamper(reply))
        return replies

    # Not used by strategies.
    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...
