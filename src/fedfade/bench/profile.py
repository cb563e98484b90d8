"""Where the time of a slot step, an update and a federated round goes, kernel by kernel."""

from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fedfade.agents import Trainer
from fedfade.bench.federated_round import one_after_another
from fedfade.bench.stage import Stage, updates
from fedfade.bench.timing import Call, Figures, median_ms, wall_clock
from fedfade.config import Precision
from fedfade.learning import Federation

CALLS, TOP = 20, 5
KINDS = {
    "fused": ("triton",),  # first: such a name lists all that was fused, products beside it too
    "matrix products": ("gemm", "cutlass", "nvjet", "xmma", "bmm", "addmm", "aten::mm", "conv"),
    "copies": ("memcpy", "memset", "copy", "fill", "zero"),
}


def kind(kernel: str) -> str:
    """What a kernel does, by its name; only ours begin like names that nobody else uses.

    >>> [kind(name) for name in ("sm90_xmma_gemm_f32f32", "triton_poi_fused_bmm_0", "sum")]
    ['matrix products', 'fused', 'other']
    >>> kind("_convolve")
    'networks, convolutions'
    """
    if kernel.startswith("_"):
        return "networks, convolutions"
    low = kernel.lower()
    return next((k for k, words in KINDS.items() if any(w in low for w in words)), "other")


def look(work: Call, device: torch.device) -> dict[str, Any]:
    """Time a call, then watch its kernels; on the CPU, its operations: `us` until the device has
    done it, `kernels` launched, alone or in a recording, `busy_us` by kind, and the `top` ones."""
    us = 1e3 * median_ms(work, 5, calls=CALLS)
    cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as watch:
        for _ in range(CALLS):
            work()
        wall_clock()  # waits for the device
    busy: dict[str, float] = defaultdict(float)
    each: dict[str, float] = defaultdict(float)
    kernels = 0
    for event in watch.key_averages():
        if event.device_type.name != ("CUDA" if cuda else "CPU"):
            continue
        spent = (event.self_device_time_total if cuda else event.self_cpu_time_total) / CALLS
        each[event.key[:60]] += spent
        busy[kind(event.key)] += spent
        kernels += event.count
    top = sorted(each.items(), key=lambda item: -item[1])[:TOP]
    return {"us": us, "kernels": kernels / CALLS, "busy_us": busy, "top": top}


def measure(device: torch.device, precision: Precision = "tf32") -> Figures:
    """All three, at the paper's sizes on CUDA and at small ones on a CPU."""
    with Stage.open(device, precision) as stage:
        trainer = Trainer(stage.config("qmix.gradients=synthetic"), device)
        trainer.play_batch()
        trainer.rollout.begin(trainer.rounds.round(1), 0.1, 1, trainer.replay)
        learning = stage.config().learning
        federation = Federation(learning, stage.dataset, device=device, precision=precision)
        works = {
            "slot step": trainer.step,
            "update": updates(trainer, 1),
            "federated round": one_after_another(federation, [0]),
        }
        found = {name: look(work, device) for name, work in works.items()}
        return {"profiles": found} | stage.about()
