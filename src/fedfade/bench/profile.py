"""Where the time of a slot step, an update and a federated round goes, kernel by kernel."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from fedfade.agents.trainer import Trainer
from fedfade.bench import machine, median_ms
from fedfade.bench.stage import Stage
from fedfade.bench.targets import federated_round
from fedfade.config import Precision
from fedfade.device import matrix_products
from fedfade.learning import Federation

CALLS, TOP = 20, 5
_KINDS = {
    "matrix products": ("gemm", "cutlass", "nvjet", "xmma", "bmm", "addmm", "aten::mm", "conv"),
    "fused": ("triton",),
    "copies": ("memcpy", "memset", "copy", "fill", "zero"),
}


def kind(kernel: str) -> str:
    """What a kernel does, by its name.

    >>> [kind(name) for name in ("sm90_xmma_gemm_f32f32", "triton_poi_fused_add_0", "sum")]
    ['matrix products', 'fused', 'other']
    """
    low = kernel.lower()
    return next((k for k, words in _KINDS.items() if any(w in low for w in words)), "other")


class Profile(NamedTuple):
    """One call of something."""

    us: float  # until the device has done it
    kernels: float  # launched, alone or in a recording
    busy_us: dict[str, float]  # time of the kernels, by kind
    top: list[tuple[str, float]]  # the dearest, us each


def look(work: Callable[[], object], device: torch.device) -> Profile:
    """Time a call, then watch its kernels; on the CPU, its operations."""
    us = 1e3 * median_ms(work, 5, device, times=CALLS)
    cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as watch:
        for _ in range(CALLS):
            work()
        if cuda:
            torch.cuda.synchronize(device)
    busy: dict[str, float] = {}
    each: dict[str, float] = {}
    kernels = 0
    for event in watch.key_averages():
        if event.device_type.name != ("CUDA" if cuda else "CPU"):
            continue
        spent = (event.self_device_time_total if cuda else event.self_cpu_time_total) / CALLS
        each[event.key[:60]] = each.get(event.key[:60], 0.0) + spent
        busy[kind(event.key)] = busy.get(kind(event.key), 0.0) + spent
        kernels += event.count
    top = sorted(each.items(), key=lambda item: -item[1])[:TOP]
    return Profile(us, kernels / CALLS, busy, top)


def measure(device: torch.device, precision: Precision = "tf32") -> dict[str, object]:
    """All three, at the paper's sizes on CUDA and at small ones on a CPU."""
    with tempfile.TemporaryDirectory() as folder, matrix_products(precision):
        stage = Stage(device, precision, Path(folder), full=device.type == "cuda")
        trainer = Trainer(stage.config("qmix.gradients=synthetic"), device)
        trainer.play_batch()
        trainer.rollout.begin(trainer.rounds.round(1), 0.1, 1, trainer.replay)
        trainer.replay.draw_ahead(
            trainer.updates, trainer._most_updates, trainer.config.qmix.batch_size
        )
        first = trainer.updates.clone()

        def update() -> None:
            trainer.updates.copy_(first)  # random numbers are drawn ahead for a batch only
            trainer.update()

        learning = stage.config().learning
        federation = Federation(learning, stage.dataset, device=device, precision=precision)
        found = {
            "slot step": look(trainer.step, device),
            "update": look(update, device),
            "federated round": look(federated_round(federation, [0]), device),
        }
    return {
        "profiles": {name: one._asdict() for name, one in found.items()},
        "device": device.type,
        "full_size": stage.full,
        "precision": precision,
    } | machine()
