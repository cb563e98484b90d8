"""Seconds per federated round: fedfade, a textbook PyTorch loop, and Flower where installed.

All three train the paper's CNN on the same images: 10 clients, 3 mini-batch steps of 50.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.bench import machine
from fedfade.config import LearningConfig
from fedfade.learning import Dataset, Federation

_CLIENTS, _STEPS, _BATCH, _RATE = 10, 3, 50, 0.01


def measure(
    repeats: int = 7, device: str = "cpu", flower: bool = True, threads: int | None = None
) -> dict[str, object]:
    """Best of `repeats` interleaved rounds of each; ratios below 1 mean fedfade is faster.

    On a busy machine only `threads` = 1 compares fairly: the loop's operations wait for the
    slowest of their threads, which then is one that waits for a core.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    config = LearningConfig(
        clients=_CLIENTS, local_work=_STEPS, batch_size=_BATCH, local_rate=_RATE, partition="iid"
    )
    dataset = random_images(_CLIENTS * _STEPS * _BATCH)
    federation = Federation(config, dataset, device=device)
    state = federation.start([0])
    images = dataset.normalised(dataset.train_images).contiguous().to(device)  # NCHW
    labels = dataset.train_labels.to(device)
    samples = federation.mini_batches([0], 0)[0]
    model = TextbookCNN().to(device)

    def ours() -> None:
        updates = federation.train(state, [0], 0)
        federation.average(state, updates, torch.ones(1, _CLIENTS, dtype=torch.bool))

    def plain() -> None:
        textbook_round(model, images, labels, samples)

    wall, cpu = _interleaved({"fedfade": ours, "plain": plain}, repeats, device)
    figures: dict[str, object] = {
        "seconds_per_round": wall["fedfade"],
        "plain_loop_seconds_per_round": wall["plain"],
        "ratio_to_plain_loop": wall["fedfade"] / wall["plain"],
        "cpu_ratio_to_plain_loop": cpu["fedfade"] / cpu["plain"],
        "clients": _CLIENTS,
        "steps": _STEPS,
        "batch_size": _BATCH,
        "image": "3 x 32 x 32",
        "repeats": repeats,
        "device": device,
    }
    if flower and importlib.util.find_spec("flwr") and importlib.util.find_spec("ray"):
        seconds = flower_seconds(images.cpu(), labels.cpu(), samples.cpu())
        figures["flower_seconds_per_round"] = seconds
        figures["ratio_to_flower"] = wall["fedfade"] / seconds
    return figures | machine()


def _interleaved(
    rounds: dict[str, Callable[[], None]], repeats: int, device: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Smallest wall time and median CPU time of each; taking turns shares any disturbance."""
    wall: dict[str, list[float]] = {name: [] for name in rounds}
    cpu: dict[str, list[float]] = {name: [] for name in rounds}
    for turn in range(repeats + 1):
        for name, function in rounds.items():
            begin, begin_cpu = time.perf_counter(), time.process_time()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                wall[name].append(time.perf_counter() - begin)
                cpu[name].append(time.process_time() - begin_cpu)
    return {n: min(v) for n, v in wall.items()}, {n: median(v) for n, v in cpu.items()}


def random_images(count: int, seed: int = 0, rows: int = 32) -> Dataset:
    """Noise in the shape of CIFAR-10, or with fewer rows and columns."""
    generator = np.random.default_rng(seed)
    images = torch.from_numpy(generator.integers(0, 256, (count, rows, rows, 3), dtype=np.uint8))
    labels = torch.from_numpy(generator.integers(0, 10, count))
    names = tuple(str(k) for k in range(10))
    half, spread = torch.full((3,), 127.5), torch.full((3,), 73.9)
    return Dataset("noise", images, labels, images, labels, names, half, spread)


class TextbookCNN(nn.Module):
    """The paper's CNN as one would write it down."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Logits [sample, class]."""
        logits: Tensor = self.net(images)
        return logits


def train_client(model: nn.Module, images: Tensor, labels: Tensor, samples: Tensor) -> None:
    """Plain SGD over samples [step, sample]."""
    optimiser = torch.optim.SGD(model.parameters(), lr=_RATE)
    model.train()
    for batch in samples:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def textbook_round(model: nn.Module, images: Tensor, labels: Tensor, samples: Tensor) -> nn.Module:
    """One round of FedAvg: a copy of the model for each client, then the mean of all of them."""
    trained = []
    for client in samples:
        local = copy.deepcopy(model)
        train_client(local, images, labels, client)
        trained.append(local.state_dict())
    result = copy.deepcopy(model)
    mean = {
        name: torch.stack([state[name].float() for state in trained]).mean(0) for name in trained[0]
    }
    result.load_state_dict(mean)
    return result


def flower_seconds(images: Tensor, labels: Tensor, samples: Tensor, rounds: int = 4) -> float:
    """Median seconds between rounds of Flower's simulation doing the same work."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    def arrays(model: nn.Module) -> list[np.ndarray]:
        return [value.numpy() for value in model.state_dict().values()]

    class Client(NumPyClient):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            self.number = number

        def fit(
            self, parameters: list[np.ndarray], config: object
        ) -> tuple[list[np.ndarray], int, dict[str, float]]:
            torch.set_num_threads(1)
            model = TextbookCNN()
            names = model.state_dict().keys()
            model.load_state_dict(
                {k: torch.as_tensor(v) for k, v in zip(names, parameters, strict=True)}
            )
            train_client(model, images, labels, samples[self.number])
            return arrays(model), len(labels), {}

    ends: list[float] = []

    def note(server_round: int) -> dict[str, float]:
        ends.append(time.perf_counter())
        return {}

    def client(context: Context) -> object:
        return Client(int(context.node_config["partition-id"])).to_client()

    def server(context: Context) -> object:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=_CLIENTS,
            min_available_clients=_CLIENTS,
            on_fit_config_fn=note,
            initial_parameters=ndarrays_to_parameters(arrays(TextbookCNN())),
        )
        return ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=rounds + 1, round_timeout=None)
        )

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=client),
        num_supernodes=_CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return median(after - before for before, after in pairwise(ends[1:]))
