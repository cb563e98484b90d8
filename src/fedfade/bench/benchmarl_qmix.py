"""BenchMARL's QMIX on the same environment with the same sizes: the peer of `bench train`.

Twenty environments side by side through the PettingZoo face, separate 250-120-120 agents, batch
512, one update every 30 transitions; the median of a few iterations after one to warm up.
"""

from __future__ import annotations

import statistics
import tempfile
from importlib.metadata import version

import torch
from benchmarl.algorithms import QmixConfig
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

from fedfade.uplink.benchmarl import UplinkTask

FRAMES, WARM_UP, TIMED = 600, 1, 5


def _configuration(folder: str) -> ExperimentConfig:
    config = ExperimentConfig.get_from_yaml()
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    config.share_policy_params = False
    config.prefer_continuous_actions = False
    config.gamma = 0.95
    config.lr = 1e-5
    config.off_policy_n_envs_per_worker = 20
    config.off_policy_collected_frames_per_batch = FRAMES
    config.off_policy_n_optimizer_steps = FRAMES // 30
    config.off_policy_train_batch_size = 512
    config.off_policy_memory_size = 10_000
    config.off_policy_init_random_frames = 0
    config.soft_target_update = False
    config.hard_target_update_frequency = 7
    config.max_n_iters = WARM_UP + TIMED
    config.max_n_frames = None
    config.evaluation = config.render = False
    config.loggers = []
    config.create_json = False
    config.save_folder = folder
    return config


def run() -> tuple[float, float]:
    """Seconds of an iteration of FRAMES transitions with its updates, and of its collecting."""
    timers: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=UplinkTask("paper", {}),
            algorithm_config=QmixConfig.get_from_yaml(),
            model_config=MlpConfig(
                num_cells=[250, 120, 120],
                activation_class=torch.nn.ReLU,
                layer_class=torch.nn.Linear,
            ),
            seed=0,
            config=_configuration(folder),
        )
        # Its own timers, which it hands to its logger after each iteration.
        experiment.logger.log = lambda values, step: timers.append(values)
        experiment.run()
    timed = [t for t in timers if "timers/iteration_time" in t][WARM_UP:]
    iteration = statistics.median(t["timers/iteration_time"] for t in timed)
    return iteration, statistics.median(t["timers/collection_time"] for t in timed)


def measure(ours: dict[str, object]) -> dict[str, object]:
    """Its transitions a second, and how many times as many ours are."""
    iteration_s, collecting_s = run()
    theirs, collecting = FRAMES / iteration_s, FRAMES / collecting_s
    own, own_collecting = ours["transitions_per_s"], ours["collecting_transitions_per_s"]
    assert isinstance(own, float)
    assert isinstance(own_collecting, float)
    return {
        "peer": f"BenchMARL {version('benchmarl')}, TorchRL {version('torchrl')}",
        "peer_transitions_per_s": theirs,
        "peer_collecting_transitions_per_s": collecting,
        "ratio": own / theirs,
        "collecting_ratio": own_collecting / collecting,
    }
