"""Rounds under every policy of the ladder, without learning; what is on disk is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from fedfade.agents import load_policy_checkpoint
from fedfade.allocation import GENIE, genie_bound, load_policy, play_round
from fedfade.device import one_thread, pick_device
from fedfade.errors import UserError
from fedfade.experiments.run_folder import mark
from fedfade.experiments.uploads import Uplink
from fedfade.radio import gain_statistics
from fedfade.studies.ladder.rungs import OWN, Agents, Ladder, Place, as_trained
from fedfade.studies.paper.tables import Line, read_table, write_table
from fedfade.uplink import Round, scenario_from_config
from fedfade.uplink.gradients import SyntheticGradients


def play(ladder: Ladder, out: Path, tell: Callable[[int, str], None]) -> list[Line]:
    """Uploads of every place, policy and seed; what is on disk is read."""
    lines: list[Line] = []
    device = pick_device(ladder.base.run.device)
    for number, place in enumerate(ladder.places):
        tell(number, f"{place.cell}, {place.speed_mps:g} m/s")
        lines += _kept(
            out, place, "", ladder.policies, partial(_played, place, ladder.policies, device)
        )
        for some in ladder.agents:
            compute = partial(_learned, place, some, device)
            lines += _kept(out, place, some.name, some.digests, compute)
    tell(len(ladder.places), "done")
    return lines


def _kept(
    out: Path, place: Place, name: str, content: Sequence[str], compute: Callable[[], list[Line]]
) -> list[Line]:
    """Lines of a file, computed if it is not there."""
    path = out / "runs" / f"{file_name(place, name, content)}.csv"
    if not path.is_file():
        with one_thread():
            write_table(path, compute())
    lines = read_table(path)
    numbers = ("seed", "uploads")
    if not all(isinstance(line.get(name), float) for line in lines for name in numbers):
        raise UserError(f"{str(path)!r} is damaged: remove it to play these rounds again.")
    return [{"cell": place.cell, "speed": place.speed_mps, **line} for line in lines]


def file_name(place: Place, name: str, content: Sequence[str]) -> str:
    """A name a person can read, and a digest of all that decides the numbers."""
    tree = place.config.model_dump(include={"radio", "cell", "run"})
    for field in ("device", "checkpoint_s", "precision", "evaluate_every"):
        del tree["run"][field]
    learning = place.config.learning
    digest = mark(tree, place.rounds, learning.clients, learning.payload_bits, name, list(content))
    words = re.sub(r"[^A-Za-z0-9.+_-]+", "-", f"{place.cell} {place.speed_mps:g} {name}".strip())
    return f"{words}-{digest}"


def _rounds(place: Place, device: torch.device) -> tuple[Uplink, Round]:
    """All rounds of a place in one batch: [(seed, round)]."""
    config = place.config
    uplink = Uplink(config, float(config.learning.payload_bits), device)
    source = SyntheticGradients(config, device)
    inner = torch.stack([source.inner(uplink.seeds, number) for number in place.rounds], 1)
    return uplink, uplink.rounds(place.rounds)._replace(inner=inner.flatten(0, 1))


def _played(place: Place, policies: Sequence[str], device: torch.device) -> list[Line]:
    uplink, rounds = _rounds(place, device)
    lines: list[Line] = []
    for name in policies:
        if name == GENIE:
            count = genie_bound(uplink.scenario, rounds)
        else:
            keys = uplink.keys(name, *place.rounds)
            count = play_round(load_policy(name), uplink.scenario, rounds, keys).delivered.sum(-1)
        lines += _lines(name, "", uplink, count)
    return lines


def _learned(place: Place, agents: Agents, device: torch.device) -> list[Line]:
    """Agents of every trained seed on all rounds."""
    config = as_trained(place.config, agents)
    uplink, rounds = _rounds(place, device)
    scenario = scenario_from_config(config, uplink.scenario.payload_bits, device)
    lines: list[Line] = []
    for number, folder in enumerate(agents.folders):
        policy = load_policy_checkpoint(folder, config)
        keys = uplink.keys(policy.name, *place.rounds)
        count = play_round(policy, scenario, rounds, keys).delivered.sum(-1)
        lines += _lines(agents.name, f"training {number}", uplink, count)
    return lines


def _lines(policy: str, training: str, uplink: Uplink, count: torch.Tensor) -> list[Line]:
    means = count.float().reshape(len(uplink.seeds), -1).mean(-1).tolist()
    return [
        {"policy": policy, "training": training, "seed": float(seed), "uploads": mean}
        for seed, mean in zip(uplink.seeds, means, strict=True)
    ]


def fading_memory(ladder: Ladder) -> dict[tuple[float, int], float]:
    """Autocorrelation of the fading's power, by speed and age, in the preset's own cell."""
    device = pick_device(ladder.base.run.device)
    found: dict[tuple[float, int], float] = {}
    for place in ladder.places:
        if place.cell == OWN:
            gain = _rounds(place, device)[1].fading  # [(seed, round), slot, client, band]
            drops = gain.transpose(1, 2).flatten(0, 1).numpy(force=True)
            memory = gain_statistics(drops, ladder.ages).autocorrelation
            found |= {(place.speed_mps, age): memory[age] for age in memory}
    return found
