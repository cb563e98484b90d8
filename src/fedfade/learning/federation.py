"""The clients of one federated task: their data, the model, local training and the server's step.

A run is one seed under one allocation policy. Runs with the same seed start from the same
weights, own the same data and draw the same mini-batches, whatever was delivered before.
`round.py` puts the steps together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedfade.config import LearningConfig, Precision
from fedfade.errors import UserError, not_allowed
from fedfade.learning.averaging import ServerState, Updates, is_finite, mean_of_arrived
from fedfade.learning.data import Dataset
from fedfade.learning.local import ClientLoop, LocalEngine, LocalWork, Trained
from fedfade.learning.model import buffer_layout, build_model, check_training, parameter_layout
from fedfade.learning.partition import Indices, deal
from fedfade.learning.server_rules import AskedRule
from fedfade.learning.wire import ERROR_FEEDBACK, Payload, Wire, codec_keys, payload_bits
from fedfade.randomness import numpy_generator

_MEANS = ("mean_parameters", "mean_buffers")
_MODELS = "mean_models"
"""In the server's memory: the mean of the global models and their summed weight [run, 1]."""


class Federation:
    """N clients with their data, one model, one way of local training."""

    def __init__(
        self,
        config: LearningConfig,
        dataset: Dataset,
        partition: Mapping[int, Sequence[Indices]] | Sequence[Indices] | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        threads: int | None = None,
        engine: LocalEngine | Literal["auto", "loop", "vmap"] = "auto",
    ) -> None:
        """`partition`: one for all seeds, one by seed, or (None) what the config says; `engine`:
        auto is the fastest on the device, and one for the same model, data and precision will do
        again."""
        self.config, self.precision = config, precision
        self.device = torch.device(device)
        self.dataset = dataset.to(self.device)
        self._given = partition
        self._parts: dict[int, list[Indices]] = {}
        # Mini-batches of this round and the next, by (round, batch size, batches) and by seed.
        self._drawn: dict[tuple[int, int, int], dict[int, Indices]] = {}
        self._labels = dataset.train_labels.numpy(force=True)
        shape, classes = dataset.shape, len(dataset.classes)
        model = build_model(config.model, shape, classes, seed=0)
        if config.model != "cnn":
            check_training(config.model, model, shape, classes)
        self.parameter_layout = parameter_layout(model)
        self.buffer_layout = buffer_layout(model)
        self.engine: LocalEngine
        if not isinstance(engine, str):
            self.engine = engine
        elif engine == "loop" or (engine == "auto" and self.device.type == "cpu"):
            self.engine = ClientLoop(model, self.dataset, precision, threads)
        else:
            from fedfade.learning.batched import ClientBatch

            self.engine = ClientBatch(model, self.dataset, precision)
        self.wire = Wire(config, self.parameter_layout, self.buffer_layout)
        momentum = config.server == "mean" and config.server_momentum > 0
        self.rule = AskedRule("momentum" if momentum else config.server, config)

    @property
    def values_sent(self) -> int:
        """Values a client sends: parameters and running statistics."""
        return self.parameter_layout.total + self.buffer_layout.total

    @property
    def payload_bits(self) -> Payload:
        """Bits each client must deliver (paper: S)."""
        return payload_bits(self.config, self.wire)

    def partition(self, seed: int) -> list[Indices]:
        """The clients' training samples in runs of this seed."""
        if seed not in self._parts:
            given = self._given
            if given is None:
                given = deal(self.config, self._labels, seed)
            parts = list(given[seed] if isinstance(given, Mapping) else given)
            if (clients := self.config.clients) != len(parts):
                wanted = f"{len(parts)}, as many as the partition"
                raise not_allowed("learning.clients", clients, wanted)
            for client, part in enumerate(parts):
                whose = f"client {client} of the partition has"
                if len(part) == 0:
                    raise UserError(f"{whose} no samples.")
                if part.min() < 0 or part.max() >= len(self._labels):
                    raise UserError(f"{whose} samples beyond the data set.")
            self._parts[seed] = parts
        return self._parts[seed]

    def start(self, seeds: Sequence[int]) -> ServerState:
        """Initial weights, a function of each run's seed alone."""
        shape, classes = self.dataset.shape, len(self.dataset.classes)
        rows = {}
        for seed in set(seeds):
            model = build_model(self.config.model, shape, classes, seed)
            tensors = dict(model.named_parameters()) | dict(model.named_buffers())
            rows[seed] = self.parameter_layout.flatten(tensors), self.buffer_layout.flatten(tensors)
        both = zip(*(rows[seed] for seed in seeds), strict=True)
        parameters, buffers = (torch.stack(part).to(self.device) for part in both)
        nothing = torch.zeros_like(parameters)
        memory = self.rule.init(parameters)
        if self.config.average_models:
            memory |= {_MEANS[0]: parameters, _MEANS[1]: buffers, _MODELS: nothing[:, :1]}
        if self.wire.feeds_back:
            clients = parameters.new_zeros(len(seeds), self.config.clients, parameters.shape[1])
            memory[ERROR_FEEDBACK] = clients
        return ServerState(parameters, buffers, nothing, memory)

    def mini_batches(self, seeds: Sequence[int], round: int) -> Tensor:
        """Training samples of every local step: [run, client, step, sample].

        They depend on (seed, round, client) only. A batch is drawn without replacement; in epoch
        mode the shuffled data are cut into whole batches and the rest waits for the next pass. A
        client with fewer samples than a batch sets the batch size of all, so that they stack.
        """
        drawn = self.draw(seeds, round)
        stacked = torch.from_numpy(np.stack([drawn[seed] for seed in seeds]))
        return stacked.to(self.device, non_blocking=True)

    def draw(self, seeds: Sequence[int], round: int) -> dict[int, Indices]:
        """Mini-batches by seed, each drawn once: [client, step, sample]."""
        counts = [len(part) for seed in set(seeds) for part in self.partition(seed)]
        size = min([self.config.batch_size, *counts])
        epoch = min(counts) // size  # whole batches in a pass over the smallest client's data
        drawn = self._drawn.setdefault((round, size, epoch), {})
        while len(self._drawn) > 2:
            del self._drawn[next(iter(self._drawn))]
        in_epochs, work = self.config.local_unit == "epoch", range(self.config.local_work)
        for seed in set(seeds) - drawn.keys():
            clients = []
            for number, part in enumerate(self.partition(seed)):
                generator = numpy_generator(seed, "mini-batch", round, number)
                if in_epochs:
                    draws = [generator.permutation(part)[: epoch * size] for _ in work]
                else:
                    draws = [part[generator.choice(len(part), size, replace=False)] for _ in work]
                clients.append(np.concatenate(draws).reshape(-1, size))
            drawn[seed] = np.stack(clients)
        return drawn

    def train(
        self,
        state: ServerState,
        seeds: Sequence[int],
        round: int,
        clients: Sequence[int] | None = None,
    ) -> Updates:
        """Updates of all clients of every run, or of some: who else is trained changes nothing."""
        return Models([(self, seeds)]).train(state, round, clients)

    def gradients(self, state: ServerState, samples: Tensor) -> Trained:
        """Gradients [run, draw, D] and losses at samples [run, draw, sample]: a step at rate 1."""
        seeds = [0] * len(samples)
        work = LocalWork(samples[:, :, None], rate=1.0, proximal=0.0, seeds=seeds, round=0)
        return self.engine.train(state, work)

    def average(self, state: ServerState, updates: Updates, delivered: Tensor) -> ServerState:
        """The server's step from the clients that delivered [run, client]; if nobody did, or nobody
        whose update is finite, the model stays. Running statistics are averaged like updates."""
        weight = delivered.to(self.device, torch.float32)
        if self.config.weighting == "samples":
            weight = weight * updates.samples
        arrived = mean_of_arrived(updates, weight)
        step, memory = self.rule.apply(state.memory, arrived)
        # After a round without uploads clients compare two equal broadcast models: g_{t-1} = 0.
        nothing = state.previous if self.config.previous_update == "last" else 0.0
        previous = torch.where(arrived.anyone, arrived.mean, nothing)
        buffers = torch.where(arrived.anyone, arrived.buffers, state.buffers)
        after = ServerState(state.parameters - step, buffers, previous, memory)
        if keep := self.config.average_models:
            # Weights of all models so far: of the newest 1, of the one before `keep`, ...
            models = keep * state.memory[_MODELS] + 1.0
            both = zip(_MEANS, (after.parameters, after.buffers), strict=True)
            means = {name: _towards(state.memory[name], new, models) for name, new in both}
            after = replace(after, memory={**memory, **means, _MODELS: models})
        return after

    def averaged(self, state: ServerState) -> ServerState | None:
        """The mean of the global models so far, if one is kept (`average_models`)."""
        if not self.config.average_models:
            return None
        parameters, buffers = (state.memory[name] for name in _MEANS)
        return ServerState(parameters, buffers, state.previous)

    def evaluate(self, state: ServerState) -> tuple[Tensor, Tensor]:
        """Accuracy and mean loss of every run on the test set: [run], [run]."""
        labels = self.dataset.test_labels
        correct, loss = self.engine.evaluate(state, self.dataset.test_images, labels)
        return correct / len(labels), loss / len(labels)


class Models:
    """Global models trained in one batch, one a run: each a federation's, with a seed.

    Federations of one batch differ at most in how they deal their data (`batch_key`), for a step
    of local training does not care whose run a client belongs to. The first does the work.
    """

    def __init__(self, tasks: Sequence[tuple[Federation, Sequence[int]]]) -> None:
        self.tasks = tasks
        self.lead = tasks[0][0]

    def start(self) -> ServerState:
        """Before the first round: [run, ...]."""
        states = [federation.start(seeds).tensors() for federation, seeds in self.tasks]
        return ServerState.of({n: torch.cat([s[n] for s in states]) for n in states[0]})

    @property
    def seeds(self) -> list[int]:
        """Of every run."""
        return [seed for _, seeds in self.tasks for seed in seeds]

    def codec_keys(self, number: int) -> Tensor:
        """Keys of the codec's random numbers in a round: [run, client]."""
        everybody = range(self.lead.config.clients)
        return codec_keys(self.seeds, number, everybody, self.lead.device)

    def train(
        self,
        state: ServerState,
        number: int,
        clients: Sequence[int] | None = None,
        who: Tensor | None = None,
    ) -> Updates:
        """Every client's update in every run, or only some clients', or 0 for all but `who`
        [run, client]."""
        config = self.lead.config
        parts = [one.mini_batches(seeds, number) for one, seeds in self.tasks]
        drawn = torch.cat(parts) if len(parts) > 1 else parts[0]
        if clients is None:
            clients = range(config.clients)
        else:
            drawn = drawn[:, list(clients)]
        correction = self.lead.rule.correction(state)
        if correction is not None:
            correction = correction[:, list(clients)]
        given = (config.local_rate, config.proximal, self.seeds, number, clients, correction, who)
        work = LocalWork(drawn, *given)
        trained = self.lead.engine.train(state, work)
        if self.lead.device.type == "cuda":  # drawn while the GPU trains: half its wait
            for federation, seeds in self.tasks:
                federation.draw(seeds, number + 1)
        dealt = [one.partition(seed) for one, seeds in self.tasks for seed in seeds]
        counts = torch.tensor([[float(len(part[n])) for n in clients] for part in dealt])
        samples = counts.to(self.lead.device, non_blocking=True)
        finite = is_finite(trained.parameters, trained.buffers)
        return Updates(trained.parameters, trained.buffers, finite, trained.loss, samples)


def batch_key(federation: Federation, seeds: Sequence[int]) -> tuple[object, ...]:
    """Equal for federations that can be trained in one batch: they agree in all but how data are
    dealt, and their mini-batches have one shape."""
    free = {"partition", "alpha", "shards_per_client", "payload_bits", "payload_factors"}
    same = federation.config.model_dump(exclude=free)
    steps = federation.mini_batches(seeds, 0).shape[1:]
    return (*same.items(), federation.precision, steps)


def _towards(mean: Tensor, new: Tensor, weight: Tensor) -> Tensor:
    """A mean of total weight `weight`, `new` with a weight of 1 included."""
    return mean + (new - mean) / weight
