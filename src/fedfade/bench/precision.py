"""What reduced precision does to results: accuracy of the model, values of the agents."""

from __future__ import annotations

import time
from statistics import mean, stdev
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from fedfade.agents.trainer import Trainer
from fedfade.bench import machine, without_compiling
from fedfade.bench.stage import REDUCED, forget
from fedfade.config import Config, Precision, load_config
from fedfade.device import matrix_products
from fedfade.learning import Federation, learning_curve, load_data

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Effect(NamedTuple):
    """One precision against float32, seed by seed."""

    precision: Precision
    accuracy: float  # mean over seeds
    between_seeds: float  # standard deviation over seeds
    difference: float  # mean over seeds of (this - fp32)
    difference_error: float  # standard error of that mean
    s: float


def measure(
    device: torch.device, rounds: int | None = None, seeds: int = 5, batches: int = 20
) -> dict[str, object]:
    """Accuracy after perfect uploads, and Q-values of one batch of observations.

    On the CPU sizes are small and tf32 is float32.
    """
    full = device.type == "cuda"
    config = load_config("paper", [] if full else REDUCED)
    rounds = rounds or config.run.rounds
    effects = accuracy(config, device, rounds, seeds)
    return {
        "accuracy": [effect._asdict() for effect in effects],
        "q_values": q_values(config, device, batches),
        "rounds": rounds,
        "seeds": seeds,
        "data": config.learning.data,
        "device": device.type,
        "full_size": full,
    } | machine()


def accuracy(config: Config, device: torch.device, rounds: int, seeds: int) -> list[Effect]:
    """Test accuracy in every precision from the same weights, data and mini-batches."""
    dataset = load_data(config.learning)
    found: list[Effect] = []
    exact: list[float] = []
    for precision in PRECISIONS:
        forget(device)
        begin = time.perf_counter()
        federation = Federation(config.learning, dataset, device=device, precision=precision)
        final = learning_curve(federation, range(seeds), rounds, evaluate_every=rounds)[-1].accuracy
        exact = exact or final
        differences = [a - b for a, b in zip(final, exact, strict=True)]
        found.append(
            Effect(
                precision,
                mean(final),
                _spread(final),
                mean(differences),
                _spread(differences) / seeds**0.5,
                time.perf_counter() - begin,
            )
        )
    return found


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def q_values(config: Config, device: torch.device, batches: int) -> dict[str, float]:
    """Values of the same agents for the same observations, float32 and TensorFloat-32.

    The agents have learned for a few batches of episodes; `bf16` is for local training, so agents
    compute in TensorFloat-32 under it too.
    """
    changes = {"gradients": "synthetic"}
    config = config.model_copy(update={"qmix": config.qmix.model_copy(update=changes)})
    with matrix_products("fp32"), without_compiling():
        trainer = Trainer(config, device)
        for _ in range(batches):
            trainer.play_batch()
    seen = trainer.replay.observation[..., : config.qmix.batch_size, :]
    exact, quick = (_values(trainer, seen, precision) for precision in ("fp32", "tf32"))
    return {
        "largest_difference": float((exact - quick).abs().max() / exact.abs().max()),
        "same_action": float((exact.argmax(-1) == quick.argmax(-1)).float().mean()),
        "batches": float(batches),
    }


@torch.no_grad()
def _values(trainer: Trainer, seen: Tensor, precision: Precision) -> Tensor:
    with matrix_products(precision):
        values: Tensor = trainer.learner.agents(seen.contiguous())
    return values
