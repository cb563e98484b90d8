"""The clients of one federated task: their data, the model, local training and the server's step.

A run is one seed under one allocation policy. Runs with the same seed start from the same
weights, own the same data and draw the same mini-batches, whatever was delivered before.
`round.py` puts the steps together.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedfade.config import LearningConfig, Precision
from fedfade.errors import UserError, not_allowed
from fedfade.learning.averaging import ServerState, Updates, is_finite, mean_of_arrived
from fedfade.learning.codecs import Codec
from fedfade.learning.data import Dataset
from fedfade.learning.local import LocalWork, Trained, make_engine
from fedfade.learning.model import Layout, buffer_layout, build_model, parameter_layout
from fedfade.learning.partition import Indices, deal
from fedfade.learning.server_rules import ServerRule
from fedfade.randomness import numpy_generator
from fedfade.seams import CODECS, SERVER_RULES


class Federation:
    """N clients with their data, one model, one way of local training.

    >>> from fedfade.learning import load_data
    >>> config = LearningConfig(data="digits", clients=4)
    >>> federation = Federation(config, load_data(config))
    >>> state = federation.start(seeds=[0, 1])
    >>> updates = federation.train(state, seeds=[0, 1], round=0)
    >>> updates.parameters.shape                                 # [run, client, D]
    torch.Size([2, 4, 94410])
    >>> nobody = torch.zeros(2, 4, dtype=torch.bool)
    >>> torch.equal(federation.average(state, updates, nobody).parameters, state.parameters)
    True
    """

    def __init__(
        self,
        config: LearningConfig,
        dataset: Dataset,
        partition: Mapping[int, Sequence[Indices]] | Sequence[Indices] | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        threads: int | None = None,
        engine: Literal["auto", "loop", "vmap"] = "auto",
    ) -> None:
        """`partition`: one for all seeds, one by seed, or (None) what the config says."""
        self.config = config
        self.precision = precision
        self.device = torch.device(device)
        self.dataset = dataset.to(self.device)
        self._given = partition
        self._parts: dict[int, list[Indices]] = {}
        # Mini-batches of this round and the next, by (round, batch size, batches) and by seed.
        self._drawn: dict[tuple[int, int, int], dict[int, Indices]] = {}
        self._labels = dataset.train_labels.numpy(force=True)
        model = build_model(config.model, dataset.shape, len(dataset.classes), seed=0)
        self.parameter_layout: Layout = parameter_layout(model)
        self.buffer_layout: Layout = buffer_layout(model)
        self.engine = make_engine(engine, model, self.dataset, precision, threads)
        self.codec: Codec = CODECS.make(config.codec, config)
        with_momentum = config.server == "mean" and config.server_momentum > 0
        rule = "momentum" if with_momentum else config.server
        self.rule: ServerRule = SERVER_RULES.make(rule, config)

    @property
    def values_sent(self) -> int:
        """Values a client sends: parameters and running statistics."""
        return self.parameter_layout.total + self.buffer_layout.total

    @property
    def payload_bits(self) -> float:
        """Bits a client must deliver (paper: S): what the codec sends, or (a number given) what
        it leaves of that."""
        sent = float(self.codec.bits(self.values_sent))
        if not 0 < sent < float("inf"):
            raise not_allowed(f"bits of codec {self.config.codec!r}", sent, "above 0 and finite")
        if self.config.payload_bits == "auto":
            return sent
        return float(self.config.payload_bits) * (sent / (32.0 * self.values_sent))

    def partition(self, seed: int) -> list[Indices]:
        """The clients' training samples in runs of this seed."""
        if seed not in self._parts:
            given = self._given
            if given is None:
                parts = deal(self.config, self._labels, seed)
            else:
                parts = list(given[seed] if isinstance(given, Mapping) else given)
            _check_partition(parts, self.config.clients, len(self._labels))
            self._parts[seed] = parts
        return self._parts[seed]

    def start(self, seeds: Sequence[int]) -> ServerState:
        """Initial weights, a function of each run's seed alone."""
        rows = {seed: self._initial(seed) for seed in set(seeds)}
        parameters = torch.stack([rows[seed][0] for seed in seeds]).to(self.device)
        buffers = torch.stack([rows[seed][1] for seed in seeds]).to(self.device)
        nothing = torch.zeros_like(parameters)
        return ServerState(parameters, buffers, nothing, self.rule.init(parameters))

    def _initial(self, seed: int) -> tuple[Tensor, Tensor]:
        dataset = self.dataset
        model = build_model(self.config.model, dataset.shape, len(dataset.classes), seed)
        return (
            self.parameter_layout.flatten(dict(model.named_parameters())),
            self.buffer_layout.flatten(dict(model.named_buffers())),
        )

    def mini_batches(self, seeds: Sequence[int], round: int) -> Tensor:
        """Training samples of every local step: [run, client, step, sample].

        They depend on (seed, round, client) only. A batch is drawn without replacement; in epoch
        mode the shuffled data are cut into whole batches and the rest waits for the next pass. A
        client with fewer samples than a batch sets the batch size of all, so that they stack.
        """
        drawn = self._draw(seeds, round)
        stacked = torch.from_numpy(np.stack([drawn[seed] for seed in seeds]))
        return stacked.to(self.device, non_blocking=True)

    def draw_ahead(self, seeds: Sequence[int], round: int) -> None:
        """Draw a round's mini-batches while a GPU trains the one before: half its wait."""
        if self.device.type == "cuda":
            self._draw(seeds, round)

    def _draw(self, seeds: Sequence[int], round: int) -> dict[int, Indices]:
        """Mini-batches by seed, each drawn once: [client, step, sample]."""
        counts = [len(part) for seed in set(seeds) for part in self.partition(seed)]
        size = min([self.config.batch_size, *counts])
        epoch = min(counts) // size  # whole batches in a pass over the smallest client's data
        drawn = self._drawn.setdefault((round, size, epoch), {})
        while len(self._drawn) > 2:
            del self._drawn[next(iter(self._drawn))]
        for seed in set(seeds) - drawn.keys():
            drawn[seed] = np.stack(
                [
                    self._client_batches(seed, round, client, part, size, epoch)
                    for client, part in enumerate(self.partition(seed))
                ]
            )
        return drawn

    def _client_batches(
        self, seed: int, round: int, client: int, part: Indices, size: int, epoch: int
    ) -> Indices:
        generator = numpy_generator(seed, "mini-batch", round, client)
        work = self.config.local_work
        if self.config.local_unit == "epoch":
            passes = [generator.permutation(part)[: epoch * size] for _ in range(work)]
            return np.concatenate(passes).reshape(-1, size)
        draws = [generator.choice(len(part), size, replace=False) for _ in range(work)]
        return part[np.stack(draws)]

    def train(
        self,
        state: ServerState,
        seeds: Sequence[int],
        round: int,
        clients: Sequence[int] | None = None,
    ) -> Updates:
        """Local training from the broadcast model: every client of every run, or only some.

        A client's update does not depend on which others are trained beside it.
        """
        work = self.local_work(seeds, round, clients)
        trained = self.engine.train(state, work)
        self.draw_ahead(seeds, round + 1)
        return self.updates(trained, self.sample_counts(seeds, work.clients))

    def local_work(
        self, seeds: Sequence[int], round: int, clients: Sequence[int] | None = None
    ) -> LocalWork:
        """What the engine has to do in a round."""
        samples = self.mini_batches(seeds, round)
        return LocalWork(
            samples=samples if clients is None else samples[:, list(clients)],
            rate=self.config.local_rate,
            proximal=self.config.proximal,
            seeds=tuple(seeds),
            round=round,
            clients=tuple(range(self.config.clients) if clients is None else clients),
        )

    def sample_counts(self, seeds: Sequence[int], clients: Sequence[int] | None = None) -> Tensor:
        """Training samples of every client, or some: [run, client]."""
        numbers = range(self.config.clients) if clients is None else clients
        by_seed = {s: [float(len(self.partition(s)[n])) for n in numbers] for s in set(seeds)}
        counts = torch.tensor([by_seed[seed] for seed in seeds])
        return counts.to(self.device, non_blocking=True)

    def updates(self, trained: Trained, samples: Tensor) -> Updates:
        """What the clients would send; `samples` [run, client] is how many each has."""
        return Updates(
            parameters=trained.parameters,
            buffers=trained.buffers,
            finite=is_finite(trained.parameters, trained.buffers),
            loss=trained.loss,
            samples=samples,
        )

    def gradients(self, state: ServerState, samples: Tensor) -> Trained:
        """Stochastic gradients at the broadcast model, one for each row of samples.

        samples [run, draw, sample]; `parameters` of the result is [run, draw, D], `loss` the
        mini-batch losses. One step at rate 1 is the gradient.
        """
        work = LocalWork(
            samples[:, :, None], rate=1.0, proximal=0.0, seeds=[0] * len(samples), round=0
        )
        return self.engine.train(state, work)

    def average(self, state: ServerState, updates: Updates, delivered: Tensor) -> ServerState:
        """The server's step from the clients that delivered: [run, client] bool.

        A client whose update is not finite counts as not delivered; nobody delivered: the state
        stays. Batch-norm statistics are averaged like the updates.
        """
        weight = delivered.to(self.device, torch.float32)
        if self.config.weighting == "samples":
            weight = weight * updates.samples
        arrived = mean_of_arrived(updates, weight)
        step, memory = self.rule.apply(state.memory, arrived)
        # After a round without uploads clients compare two equal broadcast models: g_{t-1} = 0.
        nothing = state.previous if self.config.previous_update == "last" else 0.0
        return ServerState(
            parameters=state.parameters - step,
            buffers=torch.where(arrived.anyone, arrived.buffers, state.buffers),
            previous=torch.where(arrived.anyone, arrived.mean, nothing),
            memory=memory,
        )

    def evaluate(self, state: ServerState) -> tuple[Tensor, Tensor]:
        """Accuracy and mean loss of every run on the test set: [run], [run]."""
        images, labels = self.dataset.test_images, self.dataset.test_labels
        correct, loss = self.engine.evaluate(state, images, labels)
        return correct / len(labels), loss / len(labels)


def _check_partition(parts: Sequence[Indices], clients: int, samples: int) -> None:
    if len(parts) != clients:
        raise not_allowed("learning.clients", clients, f"{len(parts)}, as many as the partition")
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise UserError(f"client {client} of the partition has no samples.")
        if part.min() < 0 or part.max() >= samples:
            raise UserError(f"client {client} of the partition has samples beyond the data set.")
