"""How fast agents are trained at the paper's sizes, and how near to the bare matrix products.

The peer is BenchMARL's QMIX on the same environment with the same sizes: twenty environments side
by side through the PettingZoo face, separate 250-120-120 agents, batch 512, one update every 30
transitions; the median of a few iterations after one to warm up.
"""

import tempfile
from dataclasses import replace
from importlib.metadata import version
from statistics import median

import torch

from fedfade.agents import Trainer
from fedfade.bench.floors import products, update_layers
from fedfade.bench.timing import Figures, in_turns, machine, seconds
from fedfade.config import load_config, parse_yaml

EPISODES, UPDATES = 30_000, 250_000
WARM_UP = 11  # updates, to let the allocator settle
PEER = parse_yaml("""
    {sampling_device: cpu, train_device: cpu, buffer_device: cpu, share_policy_params: false,
    prefer_continuous_actions: false, gamma: 0.95, lr: 1.0e-5, off_policy_n_envs_per_worker: 20,
    off_policy_collected_frames_per_batch: 600, off_policy_n_optimizer_steps: 20,
    off_policy_train_batch_size: 512, off_policy_memory_size: 10000,
    off_policy_init_random_frames: 0, soft_target_update: false, hard_target_update_frequency: 7,
    max_n_iters: 6, max_n_frames: null, evaluation: false, render: false, loggers: [],
    create_json: false}
""")
PEER_FRAMES, PEER_WARM_UP = PEER["off_policy_collected_frames_per_batch"], 1


def measure(repeats: int = 40, threads: int = 2, peers: bool = True) -> Figures:
    """Median times of a slot, an update, its matrix products alone, forward and backward (whose
    share of the update is `floor_fraction`), and a round's channel."""
    torch.set_num_threads(threads)
    config = load_config("paper", ["qmix.gradients=synthetic", "run.device=cpu"])
    trainer, qmix = Trainer(config), config.qmix
    prepare_s = _fill(trainer, repeats)
    layers = update_layers(trainer)
    floor = products(layers, trainer.scenario.device)
    spent = in_turns([floor, trainer.update, trainer.step], repeats)
    floor_s, update_s, slot_s = (median(wall) for wall, _ in spent)
    batches = EPISODES // qmix.parallel_episodes
    whole_s = UPDATES * update_s + batches * (config.radio.slots * slot_s + prepare_s)
    rate, collecting = EPISODES * config.radio.slots / whole_s, qmix.parallel_episodes / slot_s
    return {
        "clients": config.learning.clients,
        "parallel_episodes": qmix.parallel_episodes,
        "batch_size": qmix.batch_size,
        "update_ms": 1e3 * update_s,
        "floor_ms": 1e3 * floor_s,
        "floor_fraction": floor_s / update_s,
        "floor_gflops": 1e-9 * sum(layer.flop for layer in layers) / floor_s,
        "slot_ms": 1e3 * slot_s,
        "prepare_batch_ms": 1e3 * prepare_s,
        "transitions_per_s": rate,
        "collecting_transitions_per_s": collecting,
        "updates_per_s": 1.0 / update_s,
        "projected_hours": whole_s / 3600.0,
        **(beside_benchmarl(rate, collecting) if peers else {}),
        **machine(),
    }


def _fill(trainer: Trainer, updates: int) -> float:
    """Fill the replay memory; the seconds one batch of episodes takes to prepare."""
    times = []

    def prepare() -> None:
        made = trainer.rounds.round(trainer.batch)
        trainer.rollout.begin(made, 0.5, trainer.batch, trainer.replay)

    while int(trainer.replay.stored) < trainer.replay.rows:
        times.append(seconds(prepare))
        for _ in range(trainer.scenario.slots - 1):
            trainer.step()
        trainer.batch += 1
    prepare()
    trainer.replay.draw_ahead(
        trainer.learner.updates, WARM_UP + updates, trainer.config.qmix.batch_size
    )
    for _ in range(WARM_UP - 1):  # timing in turns begins with another
        trainer.update()
    return median(times)


def beside_benchmarl(transitions_per_s: float, collecting_per_s: float) -> Figures:
    """BenchMARL's transitions a second where it is installed, by the timers it hands to its logger
    after each iteration, and how many times as many ours are."""
    try:
        from benchmarl.algorithms import QmixConfig
        from benchmarl.experiment import Experiment, ExperimentConfig
        from benchmarl.models.mlp import MlpConfig

        from fedfade.uplink.benchmarl import UplinkTask
    except ImportError:
        return {"peer": "not installed: pip install 'fedfade[peers]'"}
    timers: list[dict[str, float]] = []
    relu, linear = torch.nn.ReLU, torch.nn.Linear
    with tempfile.TemporaryDirectory() as folder:
        config = replace(ExperimentConfig.get_from_yaml(), **PEER, save_folder=folder)
        model = MlpConfig(num_cells=[250, 120, 120], activation_class=relu, layer_class=linear)
        task, algorithm = UplinkTask("paper", {}), QmixConfig.get_from_yaml()
        experiment = Experiment(task, algorithm, model, seed=0, config=config)
        experiment.logger.log = lambda values, step: timers.append(values)
        experiment.run()
    timed = [t for t in timers if "timers/iteration_time" in t][PEER_WARM_UP:]
    theirs, theirs_collecting = (
        PEER_FRAMES / median(t[f"timers/{part}_time"] for t in timed)
        for part in ("iteration", "collection")
    )
    return {
        "peer": f"BenchMARL {version('benchmarl')}, TorchRL {version('torchrl')}",
        "peer_transitions_per_s": theirs,
        "peer_collecting_transitions_per_s": theirs_collecting,
        "ratio": transitions_per_s / theirs,
        "collecting_ratio": collecting_per_s / theirs_collecting,
    }
