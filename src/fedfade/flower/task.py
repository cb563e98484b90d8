"""fedfade's own learning task as the two halves of a Flower app."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from functools import cache, lru_cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedfade.config import Config, load_config
from fedfade.errors import not_allowed
from fedfade.flower.mod import partition_id
from fedfade.flower.records import pack, unpack
from fedfade.learning import Federation, ServerState, load_data

log = logging.getLogger("flwr")

_KNOWN = {"server-round", "proximal-mu", "clipping_norm"}  # the last is for Flower's own mods


class FederatedTask:
    """The model, data and local training a configuration describes, one client at a time.

    Mini-batches depend on (seed, round, client) alone, so a client trains here as it does in
    `fedfade compare`.
    """

    def __init__(self, config: Config) -> None:
        # What Flower does by itself must not look as if it were set here.
        for field, usual in (("server", "mean"), ("average_models", 0)):
            if (given := getattr(config.learning, field)) != usual:
                why = f"{usual} under Flower, whose strategies average"
                raise not_allowed(f"learning.{field}", given, why)
        self.config = config
        self.federation = Federation(config.learning, load_data(config.learning), threads=1)

    @staticmethod
    def from_run_config(run_config: Mapping[str, object]) -> FederatedTask:
        """The task `preset` and `set` (overrides separated by blanks) name; made once a process."""
        preset, changes = run_config.get("preset", "quickstart"), run_config.get("set", "")
        for name, value in (("preset", preset), ("set", changes)):
            if not isinstance(value, str):
                raise not_allowed(f"run config {name}", value, "text")
        return _made(str(preset), str(changes))

    def initial_arrays(self) -> ArrayRecord:
        """The first global model."""
        return self._arrays(self.federation.start([self.config.run.seed]))

    def train(self, message: Message, context: Context) -> Message:
        """Local training of one client in one round: the body of `@app.train()`."""
        torch.set_num_threads(1)
        model = next(iter(message.content.array_records.values()))
        config = next(iter(message.content.config_records.values()))
        client, number = partition_id(context), int(config["server-round"]) - 1
        state, seeds = self.state(model), [self.config.run.seed]
        updates = self._as_asked(config).train(state, seeds, number, clients=[client])
        trained = state.parameters - updates.parameters[:, 0]
        after = ServerState(trained, updates.buffers[:, 0], state.previous)
        weighted = self.config.learning.weighting == "samples"
        examples, loss = int(updates.samples[0, 0]) if weighted else 1, float(updates.loss[0, 0])
        metrics = MetricRecord({"num-examples": examples, "train-loss": loss})
        content = RecordDict({"arrays": self._arrays(after), "metrics": metrics})
        return Message(content, reply_to=message)

    def _as_asked(self, config: ConfigRecord) -> Federation:
        """Local training with what the strategy says of it: FedProx sends its own strength."""
        for name in config.keys() - _KNOWN:
            _warn_once(name)
        if "proximal-mu" not in config:
            return self.federation
        strength = config["proximal-mu"]
        if not isinstance(strength, int | float) or not 0 <= strength < math.inf:
            raise not_allowed("proximal-mu", strength, "a number of at least 0")
        asked = copy.copy(self.federation)
        asked.config = asked.config.model_copy(update={"proximal": float(strength)})
        return asked

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Test accuracy and loss of a global model: `evaluate_fn` of `Strategy.start`."""
        accuracy, loss = self.federation.evaluate(self.state(arrays))
        return MetricRecord({"accuracy": float(accuracy[0]), "loss": float(loss[0])})

    def state(self, arrays: ArrayRecord) -> ServerState:
        """A global model as fedfade holds it."""
        tensors = unpack(arrays)
        parameters = self.federation.parameter_layout.flatten(tensors)[None]
        buffers = self.federation.buffer_layout.flatten(tensors)[None]
        return ServerState(parameters, buffers, previous=torch.zeros_like(parameters))

    def _arrays(self, state: ServerState) -> ArrayRecord:
        """A global model as Flower sends it: what is trained and what is averaged beside it."""
        found = self.federation.parameter_layout.views(state.parameters[0])
        found |= self.federation.buffer_layout.views(state.buffers[0])
        return pack(found)


@cache
def _warn_once(name: str) -> None:
    log.warning("FederatedTask takes no %r from a strategy: set its own configuration.", name)


@lru_cache(maxsize=4)
def _made(preset: str, changes: str) -> FederatedTask:
    return FederatedTask(load_config(preset, changes.split()))
