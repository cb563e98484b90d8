"""Train another library's QMIX on the small cell: BenchMARL on top of TorchRL.

    pip install 'fedfade[peers]'
    python examples/benchmarl_qmix.py --iterations 20

The environment comes through its PettingZoo face; nothing of fedfade.agents is used.
"""

import argparse
import tempfile

import torch
from benchmarl.algorithms import QmixConfig
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

from fedfade.uplink.benchmarl import UplinkTask


def main() -> None:
    """Train, and print the mean return of every iteration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    config.share_policy_params = False
    config.prefer_continuous_actions = False
    config.lr = 5e-4
    config.max_n_iters, config.max_n_frames = arguments.iterations, None
    config.off_policy_n_envs_per_worker = 10
    config.off_policy_collected_frames_per_batch = 1000  # two episodes of each environment
    config.off_policy_n_optimizer_steps = 50
    config.evaluation = config.render = config.create_json = False
    config.loggers = []
    model = MlpConfig(
        num_cells=[64, 64], activation_class=torch.nn.ReLU, layer_class=torch.nn.Linear
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_folder = folder
        task = UplinkTask("small-cell", {})
        algorithm = QmixConfig.get_from_yaml()
        experiment = Experiment(task, algorithm, model, seed=0, config=config)
        experiment.run()
    print(f"mean return of the last iteration: {float(experiment.mean_return):.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
