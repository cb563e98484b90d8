"""Seconds per federated round: fedfade, a textbook PyTorch loop, and Flower where installed, all on
the same images with the paper's CNN: 10 clients, 3 mini-batch steps of 50."""

import copy
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.bench.timing import Figures, in_turns, machine
from fedfade.config import LearningConfig
from fedfade.learning import Dataset, Federation, Models, Sent, ServerState, federated_round

CLIENTS, STEPS, BATCH, RATE = 10, 3, 50, 0.01
FLOWER_ROUNDS = 4


def one_round(
    federation: Federation, state: ServerState, seeds: Sequence[int], number: int
) -> ServerState:
    """A round in which everybody delivers, over an uplink that asks for the Gram matrix."""

    def everybody(sent: Sent) -> Tensor:
        return torch.ones_like(sent.inner[..., 0], dtype=torch.bool)

    models = Models([(federation, seeds)])
    return federated_round(models, state, number, everybody, test=False).after


def one_after_another(federation: Federation, seeds: Sequence[int]) -> Callable[[], None]:
    """Rounds in which everybody delivers, one a call."""
    state, number = federation.start(seeds), 0

    def play() -> None:
        nonlocal state, number
        state = one_round(federation, state, seeds, number)
        number += 1

    return play


def measure(repeats: int, device: torch.device, flower: bool, threads: int | None) -> Figures:
    """Best of `repeats` interleaved rounds of each; ratios below 1 mean fedfade is faster. On a
    busy machine only `threads` = 1 compares fairly: the loop's operations wait for the slowest of
    their threads, which then is one that waits for a core."""
    if threads is not None:
        torch.set_num_threads(threads)
    config = LearningConfig(
        clients=CLIENTS, local_work=STEPS, batch_size=BATCH, local_rate=RATE, partition="iid"
    )
    dataset = random_images(CLIENTS * STEPS * BATCH)
    federation = Federation(config, dataset, device=device)
    state = federation.start([0])
    images = dataset.normalised(dataset.train_images).contiguous().to(device)  # NCHW
    labels = dataset.train_labels.to(device)
    samples = federation.mini_batches([0], 0)[0]
    model = textbook_cnn().to(device)
    ours = partial(one_round, federation, state, [0], 0)
    encoding = config.model_copy(update={"codec": "int8", "error_feedback": True})
    coding = Federation(encoding, dataset, device=device)
    coded = partial(one_round, coding, coding.start([0]), [0], 0)
    plain = partial(textbook_round, model, images, labels, samples)
    timed = in_turns([ours, plain, coded], repeats)
    (ours_s, ours_cpu), (plain_s, plain_cpu), (coded_s, coded_cpu) = timed
    figures: Figures = {
        "seconds_per_round": min(ours_s),
        "plain_loop_seconds_per_round": min(plain_s),
        "ratio_to_plain_loop": min(ours_s) / min(plain_s),
        "cpu_ratio_to_plain_loop": median(ours_cpu) / median(plain_cpu),
        "int8_error_feedback_seconds_per_round": min(coded_s),
        "ratio_of_int8_error_feedback": min(coded_s) / min(ours_s),
        "cpu_ratio_of_int8_error_feedback": median(coded_cpu) / median(ours_cpu),
        "clients": CLIENTS,
        "steps": STEPS,
        "batch_size": BATCH,
        "image": "3 x 32 x 32",
        "repeats": repeats,
        "device": device.type,
    }
    if flower and importlib.util.find_spec("flwr") and importlib.util.find_spec("ray"):
        seconds = flower_seconds(images.cpu(), labels.cpu(), samples.cpu())
        figures |= {"flower_seconds_per_round": seconds, "ratio_to_flower": min(ours_s) / seconds}
    return figures | machine()


def random_images(count: int, seed: int = 0, rows: int = 32) -> Dataset:
    """Noise in the shape of CIFAR-10, or with fewer rows and columns."""
    generator = np.random.default_rng(seed)
    images = torch.from_numpy(generator.integers(0, 256, (count, rows, rows, 3), dtype=np.uint8))
    labels = torch.from_numpy(generator.integers(0, 10, count))
    names = tuple(str(k) for k in range(10))
    half, spread = torch.full((3,), 127.5), torch.full((3,), 73.9)
    return Dataset("noise", names, images, labels, images, labels, half, spread)


def textbook_cnn() -> nn.Module:
    """The paper's CNN as one would write it down."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


def train_client(model: nn.Module, images: Tensor, labels: Tensor, samples: Tensor) -> None:
    """Plain SGD over samples [step, sample]."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
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
    result, names = copy.deepcopy(model), trained[0]
    mean = {name: torch.stack([own[name].float() for own in trained]).mean(0) for name in names}
    result.load_state_dict(mean)
    return result


def flower_seconds(images: Tensor, labels: Tensor, samples: Tensor) -> float:
    """Median seconds between rounds of Flower's simulation doing the same work."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from fedfade.bench.flower_speed import simulate

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = textbook_cnn()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        mine = samples[int(context.node_config["partition-id"])]
        train_client(model, images, labels, mine)
        metrics = MetricRecord({"num-examples": mine.numel()})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    client: Any = ClientApp()
    client.train()(train)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    first = ArrayRecord(textbook_cnn().state_dict())
    return simulate(strategy, client, first, CLIENTS, FLOWER_ROUNDS, lambda grid: 0.0)[0]
