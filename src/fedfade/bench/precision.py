"""What reduced precision does to results: accuracy of the model, values of the agents."""

from typing import get_args

import pandas as pd
import torch
from torch import Tensor

from fedfade.agents import Trainer
from fedfade.bench.stage import REDUCED, forget
from fedfade.bench.timing import Figures, machine, wall_clock, without_compiling
from fedfade.config import Config, Precision, load_config
from fedfade.device import matrix_products
from fedfade.learning import Federation, learning_curve, load_data

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def measure(
    device: torch.device, rounds: int | None = None, seeds: int = 5, batches: int = 20
) -> Figures:
    """Accuracy after perfect uploads, and Q-values of one batch of observations. On the CPU sizes
    are small and tf32 is float32."""
    full = device.type == "cuda"
    config = load_config("paper", [] if full else REDUCED.split())
    rounds = rounds or config.run.rounds
    return {
        "accuracy": accuracy(config, device, rounds, seeds).to_dict("records"),
        "q_values": q_values(config, device, batches),
        "rounds": rounds,
        "seeds": seeds,
        "data": config.learning.data,
        "device": device.type,
        "full_size": full,
    } | machine()


def accuracy(config: Config, device: torch.device, rounds: int, seeds: int) -> pd.DataFrame:
    """Test accuracy in every precision from the same weights, data and mini-batches; its standard
    deviation between seeds; and the mean over seeds of (this - fp32), with its standard error."""
    dataset = load_data(config.learning)
    final: dict[Precision, list[float]] = {}
    spent_s = []
    for precision in PRECISIONS:
        forget()
        begin = wall_clock()
        federation = Federation(config.learning, dataset, device=device, precision=precision)
        curve = learning_curve(federation, range(seeds), rounds, evaluate_every=rounds)
        final[precision] = curve[-1].accuracy
        spent_s.append(wall_clock() - begin)
    found = pd.DataFrame(final)  # [seed, precision]
    difference = found.sub(found["fp32"], axis=0)
    columns = {
        "accuracy": found.mean(),
        "between_seeds": found.std(),
        "difference": difference.mean(),
        "difference_error": difference.sem(),
    }
    # One seed has no deviation.
    return pd.DataFrame(columns).fillna(0.0).assign(s=spent_s).reset_index(names="precision")


def q_values(config: Config, device: torch.device, batches: int) -> dict[str, float]:
    """Values of agents that have learned for a few batches, in float32 and in TensorFloat-32, which
    they compute in under `bf16` too: that is for local training."""
    changes = {"gradients": "synthetic"}
    config = config.model_copy(update={"qmix": config.qmix.model_copy(update=changes)})
    with matrix_products("fp32"), without_compiling():
        trainer = Trainer(config, device)
        for _ in range(batches):
            trainer.play_batch()
    seen = trainer.replay.observation[..., : config.qmix.batch_size, :].contiguous()

    @torch.no_grad()
    def values(precision: Precision) -> Tensor:
        with matrix_products(precision):
            found: Tensor = trainer.learner.agents(seen)
        return found

    exact, quick = values("fp32"), values("tf32")
    return {
        "largest_difference": float((exact - quick).abs().max() / exact.abs().max()),
        "same_action": float((exact.argmax(-1) == quick.argmax(-1)).float().mean()),
        "batches": float(batches),
    }
