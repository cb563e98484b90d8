"""How fast agents are trained at the paper's sizes, and how near to the bare matrix products.

The peer is BenchMARL's QMIX on the same environment with the same sizes: as many episodes side by
side, the same layers, batch size and updates a transition; the median of a few iterations after one
to warm up. It plays PettingZoo environments one by one, as it would anybody's; on the held
environment also our batched one, and ours and BenchMARL's take turns.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from statistics import median

import torch

from fedfade.agents import Trainer
from fedfade.bench.floors import products, update_layers
from fedfade.bench.timing import Figures, in_turns, machine, seconds
from fedfade.config import Config, load_config, parse_yaml

EPISODES, UPDATES = 30_000, 250_000
WARM_UP = 11  # updates, to let the allocator settle
PEER = parse_yaml("""
    {prefer_continuous_actions: false, off_policy_init_random_frames: 0, soft_target_update: false,
    max_n_frames: null, evaluation: false, render: false, loggers: [], create_json: false}
""")
PEER_ITERATIONS, PEER_WARM_UP = 5, 1
PARTS = ("collection", "training", "iteration")
NO_PEER = "not installed: pip install 'fedfade[peers]'"


def train(
    repeats: int, threads: int, episodes: int, device: torch.device | str, paper: bool
) -> Figures:
    """The figures of the paper's sizes, where wanted, and of held decisions."""
    torch.set_num_threads(threads)
    return (measure(repeats, threads) if paper else machine()) | held(episodes, device)


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
        **(beside_benchmarl(config, rate, collecting) if peers else {}),
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
    size = trainer.config.qmix.batch_size
    trainer.replay.draw_ahead(trainer.learner.updates, WARM_UP + updates, size)
    for _ in range(WARM_UP - 1):  # timing in turns begins with another
        trainer.update()
    return median(times)


def beside_benchmarl(config: Config, transitions_per_s: float, collecting_per_s: float) -> Figures:
    """BenchMARL's transitions a second where it is installed, and how many times as many ours
    are."""
    iteration = 30 * config.qmix.parallel_episodes  # transitions
    timed = peer_timers(config, iteration, batched=False)
    if timed is None:
        return {"peer": NO_PEER}
    theirs, theirs_collecting = (
        iteration / median(t[f"timers/{part}_time"] for t in timed)
        for part in ("iteration", "collection")
    )
    return {
        "peer": peer_name(),
        "peer_transitions_per_s": theirs,
        "peer_collecting_transitions_per_s": theirs_collecting,
        "ratio": transitions_per_s / theirs,
        "collecting_ratio": collecting_per_s / theirs_collecting,
    }


def held(episodes: int = 100, device: torch.device | str = "cpu") -> Figures:
    """Ours and BenchMARL's QMIX on the environment of preset `qmix-hold`, in turns: rounds are
    drawn and `episodes` of them played, then the updates that are due are made. Decisions while
    playing, updates while updating, and decisions with both, a second; a decision is one of all
    clients of an episode."""
    sizes = [f"qmix.parallel_episodes={episodes}", f"qmix.layouts={episodes}"]
    config = load_config("qmix-hold", [*sizes, "qmix.replay_size=20000"])
    trainer = Trainer(config, device)
    decisions = episodes * trainer.scenario.decisions
    updates = decisions // config.qmix.update_every
    spent: list[tuple[float, float]] = []

    def collect() -> None:
        begun = trainer.rounds.round(trainer.batch)
        trainer.rollout.begin(begun, 0.5, trainer.batch, trainer.memory)
        for _ in range(trainer.scenario.decisions):
            trainer.step()
        trainer.batch += 1

    def learn() -> None:
        trainer.replay.draw_ahead(trainer.learner.updates, updates, config.qmix.batch_size)
        for _ in range(updates):
            trainer.update()

    def turn() -> None:
        spent.append((seconds(collect), seconds(learn)))

    turn()  # warms up
    found: Figures = {"held_device": str(device), "held_episodes": episodes}
    peers = {
        name: peer_timers(config, decisions, batched, device, turn)
        for name, batched in (("batched_peer", True), ("pettingzoo_peer", False))
    }
    if None in peers.values():
        for _ in range(PEER_ITERATIONS):
            turn()
    parts = [median(part) for part in zip(*spent[1:], strict=True)]
    ours = [*parts, sum(parts)]
    work = {"decisions": decisions, "updates": updates, "trained_decisions": decisions}
    found |= {f"held_{n}_per_s": work[n] / s for n, s in zip(work, ours, strict=True)}
    for name, timed in peers.items():
        if timed is None:
            found[f"held_{name}"] = NO_PEER
            continue
        theirs = [median(t[f"timers/{part}_time"] for t in timed) for part in PARTS]
        for what, own, other in zip(work, ours, theirs, strict=True):
            found[f"held_{name}_{what}_per_s"] = work[what] / other
            found[f"held_{name}_{what}_ratio"] = other / own
    return found


def peer_name() -> str:
    return f"BenchMARL {version('benchmarl')}, TorchRL {version('torchrl')}"


def peer_timers(
    config: Config,
    frames: int,
    batched: bool,
    device: torch.device | str = "cpu",
    turn: Callable[[], None] = lambda: None,
) -> list[dict[str, float]] | None:
    """What BenchMARL's timers say of iterations of so many transitions with our sizes, after each
    of which it is another's turn; nothing where it is not installed."""
    try:
        from benchmarl.algorithms import QmixConfig
        from benchmarl.experiment import Experiment, ExperimentConfig
        from benchmarl.models.mlp import MlpConfig

        from fedfade.uplink.benchmarl import UplinkTask
    except ImportError:
        return None
    qmix, timers = config.qmix, []

    def log(values: dict[str, float], step: int) -> None:
        if "timers/iteration_time" in values:
            timers.append(values)
            turn()

    with tempfile.TemporaryDirectory() as folder:
        settings = replace(
            ExperimentConfig.get_from_yaml(),
            **PEER,
            **dict.fromkeys(("train_device", "buffer_device"), str(device)),
            sampling_device=str(device) if batched else "cpu",
            share_policy_params=qmix.share_parameters,
            gamma=qmix.gamma,
            lr=qmix.agent_rate,
            off_policy_n_envs_per_worker=qmix.parallel_episodes,
            off_policy_collected_frames_per_batch=frames,
            off_policy_n_optimizer_steps=frames // qmix.update_every,
            off_policy_train_batch_size=qmix.batch_size,
            off_policy_memory_size=qmix.replay_size,
            hard_target_update_frequency=qmix.target_every // qmix.update_every,
            max_n_iters=PEER_WARM_UP + PEER_ITERATIONS,
            save_folder=folder,
        )
        relu, linear = torch.nn.ReLU, torch.nn.Linear
        model = MlpConfig(num_cells=qmix.hidden, activation_class=relu, layer_class=linear)
        task = UplinkTask("uplink", {"preset": config, "batched": batched})
        experiment = Experiment(task, QmixConfig.get_from_yaml(), model, seed=0, config=settings)
        experiment.logger.log = log
        experiment.run()
    return timers[PEER_WARM_UP:]
