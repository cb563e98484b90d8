"""How fast agents are trained at the paper's sizes, and how near to the bare matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedfade.bench import machine
from fedfade.config import load_config
from fedfade.qmix.networks import MonotonicMixer
from fedfade.qmix.trainer import Trainer

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
    prepare_s = _fill(trainer, repeats)
    floor = _matmuls(trainer)
    engine = trainer.engine()
    updates, floors, slots = [], [], []
    for _ in range(repeats):
        floors.append(_seconds(floor))
        updates.append(_seconds(engine.update))
        slots += [_seconds(engine.step) for _ in range(3)]
    update_s, floor_s, slot_s = map(statistics.median, (updates, floors, slots))
    qmix = config.qmix
    batches = EPISODES // qmix.parallel_episodes
    seconds = UPDATES * update_s + batches * (config.radio.slots * slot_s + prepare_s)
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
        "transitions_per_s": EPISODES * config.radio.slots / seconds,
        "collecting_transitions_per_s": qmix.parallel_episodes / slot_s,
        "updates_per_s": 1.0 / update_s,
        "projected_hours": seconds / 3600.0,
    }
    if peers:
        figures |= _beside_benchmarl(figures)
    return figures | machine()


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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
            trainer.engine().step()
        trainer.batch += 1
    trainer.rollout.begin(round_, 0.5, trainer.batch, trainer.replay)
    trainer.replay.draw_ahead(trainer.updates, warm_up + updates, trainer.config.qmix.batch_size)
    for _ in range(warm_up):
        trainer.engine().update()
    return statistics.median(times)


def _layers(trainer: Trainer) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, weights and output gradients of every matrix product of the networks."""
    batch = trainer.config.qmix.batch_size
    found = []
    for weight in trainer.learner.agents.weights:
        agents, fan_in, fan_out = weight.shape
        x, g = torch.randn(agents, batch, fan_in), torch.randn(agents, batch, fan_out)
        found.append((x, weight.detach().clone(), g))
    mixer = trainer.learner.mixer
    assert isinstance(mixer, MonotonicMixer)
    for layer in (mixer.enter, mixer.first, mixer.second, mixer.value):
        runs, fan_in, fan_out = layer.weight.shape
        x, g = torch.randn(runs, batch, fan_in), torch.randn(runs, batch, fan_out)
        found.append((x, layer.weight.detach().clone(), g))
    return found


def _matmuls(trainer: Trainer) -> Callable[[], None]:
    """An update's matrix products and nothing else.

    Agents: online on s, online on s' and target on s'; the mixer online and target. Backward:
    the gradient of every weight, and of every input but the observation and the state.
    """
    layers = _layers(trainer)
    agent_layers = len(trainer.learner.agents.weights)
    room = [(torch.empty_like(x), torch.empty_like(w), torch.empty_like(g)) for x, w, g in layers]

    @torch.no_grad()
    def run() -> None:
        for place, ((x, weight, g), (dx, dw, y)) in enumerate(zip(layers, room, strict=True)):
            for _ in range(3 if place < agent_layers else 2):
                torch.bmm(x, weight, out=y)
            torch.bmm(x.mT, g, out=dw)
            if place not in (0, agent_layers):
                torch.bmm(g, weight.mT, out=dx)

    return run


def _flop(trainer: Trainer) -> float:
    agent_layers = len(trainer.learner.agents.weights)
    total = 0.0
    for place, (x, weight, _) in enumerate(_layers(trainer)):
        forward = 3 if place < agent_layers else 2
        backward = 1 if place in (0, agent_layers) else 2
        total += 2.0 * x.shape[1] * weight.numel() * (forward + backward)
    return total


def _beside_benchmarl(ours: dict[str, object]) -> dict[str, object]:
    """The same environment trained by BenchMARL's QMIX, where the `peers` extra is installed."""
    try:
        from fedfade.bench.benchmarl_qmix import measure as measure_peer
    except ImportError:
        return {"peer": "not installed: pip install 'fedfade[peers]'"}
    return measure_peer(ours)
