"""Does memory stay flat? Thousands of federated rounds and of training batches, small in size so
that a leak of any kind shows: nothing here should hold more after the last step than after the
first hundreds, except one line of metrics a round and policy."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from fedfade.agents import Report, Trainer, train
from fedfade.bench.channel_speed import memory_mb
from fedfade.bench.timing import Figures, machine, seconds
from fedfade.config import load_config
from fedfade.device import one_thread
from fedfade.experiments import compare_many

SMALL = """
    learning.data=digits learning.clients=2 learning.local_work=1 learning.batch_size=8
    learning.payload_bits=200000 radio.source=rayleigh radio.subbands=2 radio.slots=6
    run.seeds=1 run.device=cpu run.evaluate_every=100 allocation.policies=[max-sum-rate]
"""
QMIX = """
    qmix.gradients=synthetic qmix.hidden=[8] qmix.mixing_width=4 qmix.hypernet_width=4
    qmix.batch_size=16 qmix.replay_size=500 qmix.update_every=60 qmix.target_every=240
    qmix.parallel_episodes=20 run.rounds=10
"""
WARM = 0.2  # share of the steps before memory is first measured


@one_thread()
def measure(rounds: int = 2000, batches: int = 2000) -> Figures:
    """Memory along a comparison of so many rounds and a training of so many batches."""
    compared_mb, trained_mb = np.zeros(rounds + 1), np.zeros(batches + 1)  # [steps done]
    device = torch.device("cpu")
    config = load_config("paper", [*SMALL.split(), f"run.rounds={rounds}"])
    episodes = f"qmix.episodes={20 * batches}"
    agents = load_config("paper", [*SMALL.split(), *QMIX.split(), episodes])

    def progress(done: int, doing: str) -> None:
        compared_mb[done] = memory_mb()

    def look(trainer: Trainer, reports: list[Report]) -> None:
        trained_mb[trainer.batch] = memory_mb()

    with tempfile.TemporaryDirectory(prefix="fedfade-soak-") as name:
        out = Path(name)
        compare_s = seconds(lambda: compare_many([config], [out / "compare"], device, progress))
        train_s = seconds(lambda: train(agents, out / "train", look))
    return {
        "rounds": rounds,
        "batches": batches,
        "compare_s": compare_s,
        **_growth("compare", compared_mb),
        "train_s": train_s,
        **_growth("train", trained_mb),
        **machine(),
    }


def _growth(name: str, held_mb: np.ndarray) -> Figures:
    """First and last memory after warming up, and growth by a straight line through all."""
    steps = np.flatnonzero(held_mb)
    steps = steps[int(WARM * len(steps)) :]
    slope_mb = np.polyfit(steps, held_mb[steps], 1)[0]
    return {
        f"{name}_mb_warm": round(float(held_mb[steps[0]]), 1),
        f"{name}_mb_end": round(float(held_mb[steps[-1]]), 1),
        f"{name}_kb_per_step": round(1024 * float(slope_mb), 3),
    }
