"""How fast agents are trained at the paper's sizes, and how near to the bare matrix products."""

from __future__ import annotations

import statistics
import time

import torch

from fedfade.agents.trainer import Trainer
from fedfade.bench import machine, seconds
from fedfade.bench.floors import products, update_layers
from fedfade.config import load_config

EPISODES, UPDATES = 30_000, 250_000


def measure(repeats: int = 40, threads: int = 2, peers: bool = True) -> dict[str, object]:
    """Times of a slot, an update, its matrix products alone, a round's channel.

    `floor_fraction` is the time of the bare matrix products of one update, forward and backward,
    over the time of the update; both are taken in turns, so a busy machine disturbs them alike.
    Times are medians of the repeats; other work on the same cores shows in them.
    """
    torch.set_num_threads(threads)
    config = load_config("paper", ["qmix.gradients=synthetic", "run.device=cpu"])
    trainer = Trainer(config)
    device = trainer.scenario.device
    prepare_s = _fill(trainer, repeats)
    floor = products(update_layers(trainer))
    updates, floors, slots = [], [], []
    for _ in range(repeats):
        floors.append(seconds(floor, device))
        updates.append(seconds(trainer.update, device))
        slots += [seconds(trainer.step, device) for _ in range(3)]
    update_s, floor_s, slot_s = map(statistics.median, (updates, floors, slots))
    qmix = config.qmix
    batches = EPISODES // qmix.parallel_episodes
    whole_s = UPDATES * update_s + batches * (config.radio.slots * slot_s + prepare_s)
    figures: dict[str, object] = {
        "clients": config.learning.clients,
        "parallel_episodes": qmix.parallel_episodes,
        "batch_size": qmix.batch_size,
        "update_ms": 1e3 * update_s,
        "floor_ms": 1e3 * floor_s,
        "floor_fraction": floor_s / update_s,
        "floor_gflops": 1e-9 * _flop(trainer) / floor_s,
        "slot_ms": 1e3 * slot_s,
        "prepare_batch_ms": 1e3 * prepare_s,
        "transitions_per_s": EPISODES * config.radio.slots / whole_s,
        "collecting_transitions_per_s": qmix.parallel_episodes / slot_s,
        "updates_per_s": 1.0 / update_s,
        "projected_hours": whole_s / 3600.0,
    }
    if peers:
        figures |= _beside_benchmarl(figures)
    return figures | machine()


def _fill(trainer: Trainer, updates: int) -> float:
    """Fill the replay memory; the seconds one batch of episodes takes to prepare."""
    warm_up = 10  # updates, to let the allocator settle
    times = []
    while int(trainer.replay.stored) < trainer.replay.rows:
        start = time.perf_counter()
        round_ = trainer.rounds.round(trainer.batch)
        trainer.rollout.begin(round_, 0.5, trainer.batch, trainer.replay)
        times.append(time.perf_counter() - start)
        for _ in range(trainer.scenario.slots - 1):
            trainer.step()
        trainer.batch += 1
    trainer.rollout.begin(round_, 0.5, trainer.batch, trainer.replay)
    trainer.replay.draw_ahead(trainer.updates, warm_up + updates, trainer.config.qmix.batch_size)
    for _ in range(warm_up):
        trainer.update()
    return statistics.median(times)


def _flop(trainer: Trainer) -> float:
    return sum(layer.flop for layer in update_layers(trainer))


def _beside_benchmarl(ours: dict[str, object]) -> dict[str, object]:
    """The same environment trained by BenchMARL's QMIX, where the `peers` extra is installed."""
    try:
        from fedfade.bench.benchmarl_qmix import measure as measure_peer
    except ImportError:
        return {"peer": "not installed: pip install 'fedfade[peers]'"}
    return measure_peer(ours)
