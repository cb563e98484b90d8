"""Train another library's agents on the held uplink: BenchMARL's QMIX, on top of TorchRL.

    pip install 'fedfade[peers]'
    python examples/benchmarl_qmix.py

This uses nothing of fedfade.agents, and changes nothing in BenchMARL's algorithm. A client observes
its rank in the order of expected times, it holds a decision for 50 slots, and an upload pays 1.
Agents train on fading that is cheap to draw, in cells that are better than the paper's on average:
there they find out sooner that taking turns pays. At the end the example counts uploads on unseen
rounds of the `paper` cell, beside the block-fading schedule.
"""

import argparse
import tempfile
import time
import warnings

import torch
from benchmarl.algorithms import QmixConfig, VdnConfig
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from torchrl.envs import ExplorationType, set_exploration_type
from typer import echo

from fedfade.allocation import load_policy, play_round
from fedfade.uplink import uplink_config
from fedfade.uplink.benchmarl import UplinkTask
from fedfade.uplink.torchrl import BatchedUplink

ALGORITHMS = {"qmix": QmixConfig, "vdn": VdnConfig}
UNSEEN = 1_000_000  # a seed of no training
RIVALS = ("block-fading-schedule", "wrap-around-schedule", "random")


class Course(Callback):
    """Lowers the learning rate to almost nothing, and reports progress."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.given, self.start = given, time.perf_counter()

    def on_train_end(self, training_td: object, group: str) -> None:
        given, done = self.given, self.experiment.n_iters_performed + 1
        for optimiser in self.experiment.optimizers[group].values():
            left = max(1.0 - done / given.iterations, 0.02)
            optimiser.param_groups[0]["lr"] = given.rate * left
        if done % given.every == 0:
            found = uploads(self.experiment, given, "gamma", rounds=1)
            shown = ", ".join(f"{name} {count.mean():.2f}" for name, count in found.items())
            exploring = float(self.experiment.mean_return)
            minutes = (time.perf_counter() - self.start) / 60
            echo(f"{done:5d}  {minutes:5.1f} min  exploring {exploring:.2f}, {shown}")


def uploads(
    experiment: Experiment, given: argparse.Namespace, fading: str, rounds: int
) -> dict[str, torch.Tensor]:
    """Mean uploads a round in each layout: greedy agents, and schedules in the same rounds."""
    cell = {"radio.source": fading, "qmix.gain_spread_db": 0.0}  # the paper's, nothing else
    config = uplink_config("qmix-hold", hold_slots=given.hold_slots, **cell)
    env = BatchedUplink(config, given.layouts, UNSEEN, given.device)
    delivered = {name: torch.zeros(given.layouts) for name in ("agents", *RIVALS)}
    keys = torch.arange(given.layouts, device=env.device)
    for _ in range(rounds):
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            env.rollout(env.scenario.decisions, experiment.policy, break_when_any_done=False)
        played = {"agents": env.episodes.progress.finished}
        for name in RIVALS:
            outcome = play_round(load_policy(name), env.scenario, env.episodes.round, keys)
            played[name] = outcome.delivered
        for name, who in played.items():
            delivered[name] += who.sum(-1).float().cpu() / rounds
    return delivered


def main() -> None:
    """Train, and print uploads per round on the way and at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="qmix")
    parser.add_argument("--iterations", type=int, default=900)
    parser.add_argument("--episodes", type=int, default=500, help="in an iteration, side by side")
    parser.add_argument("--hold-slots", type=int, default=50)
    parser.add_argument("--spread-db", type=float, default=8.0, help="of gains between layouts")
    parser.add_argument("--better-db", type=float, default=4.0, help="than the paper's, on average")
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=75, help="iterations between reports")
    parser.add_argument("--layouts", type=int, default=200, help="on which uploads are counted")
    parser.add_argument("--rounds", type=int, default=10, help="in each layout, at the end")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")

    antenna_gain_dbi = uplink_config("qmix-hold").radio.antenna_gain_dbi + given.better_db
    cells = {"radio.source": "gamma", "radio.antenna_gain_dbi": antenna_gain_dbi}
    cells |= {"qmix.gain_spread_db": given.spread_db, "qmix.state": "client"}  # as agents stand
    task = UplinkTask("qmix-hold", {"hold_slots": given.hold_slots, **cells})
    decisions = task.max_steps(task.get_env_fun(1, False, None, "cpu")())
    config = ExperimentConfig.get_from_yaml()
    config.sampling_device = config.train_device = config.buffer_device = given.device
    config.prefer_continuous_actions = False
    config.gamma, config.lr, config.clip_grad_val = 0.99, given.rate, 10.0
    config.max_n_iters, config.max_n_frames = given.iterations, None
    config.exploration_eps_init, config.exploration_eps_end = 1.0, 0.03
    config.exploration_anneal_frames = given.iterations * given.episodes * decisions // 3
    config.off_policy_n_envs_per_worker = given.episodes
    config.off_policy_collected_frames_per_batch = given.episodes * decisions
    config.off_policy_n_optimizer_steps = max(given.episodes * decisions // 64, 1)
    config.off_policy_train_batch_size, config.off_policy_memory_size = 128, 200_000
    config.evaluation = config.render = config.create_json = False
    config.loggers = []
    algorithm = ALGORITHMS[given.algorithm].get_from_yaml()
    algorithm.loss_function = "smooth_l1"
    model = MlpConfig(
        num_cells=[128, 128], activation_class=torch.nn.ReLU, layer_class=torch.nn.Linear
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_folder = folder
        parts = (task, algorithm, model, given.seed, config)
        experiment = Experiment(*parts, callbacks=[Course(given)])
        experiment.run()
    found = uploads(experiment, given, "clustered", given.rounds)
    for name, count in found.items():
        echo(f"{name:24s} {count.mean():.2f}")
    apart = found["agents"] - found[RIVALS[0]]
    error = apart.std() / len(apart) ** 0.5
    echo(f"agents - {RIVALS[0]}: {apart.mean():+.3f} +- {error:.3f} over layouts")


if __name__ == "__main__":
    main()
