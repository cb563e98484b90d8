"""What a bit of channel knowledge buys: uploads per round, rung by rung.

A rung is what clients may know; its policies use no more than that. In every cell (mean SNR x
spread of gains on a ring, and the preset's own) and at every speed all policies play the same
rounds, without learning; agents that look at gradients see invented ones.

    OUT/runs/CELL-SPEED-DIGEST.csv   uploads of every policy and seed; what is there is not redone
    OUT/policies.csv                 means over seeds
    OUT/ladder.csv                   the best policy of every rung, and what the rung adds
    OUT/ladder.png, OUT/ladder.md    the same to look at
    OUT/accuracy/, OUT/accuracy.csv  federated runs in two of the cells, where asked for
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedfade.allocation import GENIE, PERFECT, genie_bound, load_policy, play_round
from fedfade.config import Config, load_config
from fedfade.device import one_thread, pick_device
from fedfade.errors import UserError, not_allowed
from fedfade.experiments.comparison import QMIX, compare_many
from fedfade.experiments.metrics import series
from fedfade.experiments.reproduce import setting
from fedfade.experiments.reproduce.regimes import ring
from fedfade.experiments.reproduce.setting import changed, cycle_seeds
from fedfade.experiments.reproduce.tables import Line, matching, read_table, write_table
from fedfade.experiments.uploads import Uplink
from fedfade.qmix import load_policy_checkpoint
from fedfade.qmix.checkpoint import Checkpoint, has_checkpoint, load_checkpoint
from fedfade.radio.statistics import gain_statistics
from fedfade.uplink import Round, scenario_from_config
from fedfade.uplink.gradients import SyntheticGradients

FIRST_SEED = 2000
"""Settings of the schedules were chosen on seeds 1000 to 1004; no training uses either."""

AGES = (20, 5, 1)
"""Slots after which everybody's fading is known, on the rungs between none and fresh."""

SPEEDS_MPS = (0.83, 7.67, 18.12)
OWN = "own"
"""The preset's own cell."""


class Rung(NamedTuple):
    """What clients may know, everything below included."""

    name: str
    knows: str
    policies: tuple[str, ...]


def rungs(slots: int, ages: Sequence[int] = AGES) -> list[Rung]:
    """The ladder, bottom first.

    >>> [rung.name for rung in rungs(250, [5])]
    ['gains', 'own fading', 'finished', 'progress', 'CSI 5 old', 'CSI fresh', 'bound']
    """
    csi = [
        Rung(
            f"CSI {age} old",
            f"everybody's fading of {age} slot{'s' if age > 1 else ''} ago",
            (f"shortest-remaining-first@{age}", f"deadline-matching@{age}"),
        )
        for age in ages
    ]
    return [
        Rung(
            "gains",
            "large-scale gains of all, once a round",
            ("block-fading-schedule", "wrap-around-schedule"),
        ),
        Rung("own fading", "own fading on every sub-band", ("wrap-around-choice",)),
        Rung(
            "finished",
            "who has finished, a bit a client and slot",
            ("block-fading-schedule-feedback", "deadline-feedback"),
        ),
        # Fading that is a round old never arrives.
        Rung("progress", "how much everybody has left", (f"deadline-matching@{slots}",)),
        *csi,
        Rung(
            "CSI fresh",
            "everybody's fading of this slot",
            ("shortest-remaining-first", "max-sum-rate", "deadline-matching"),
        ),
        Rung("bound", "all of the round in advance (bound)", (GENIE,)),
    ]


@dataclass(frozen=True)
class Scale:
    """How much is played."""

    overrides: tuple[str, ...]
    snrs_db: tuple[float, ...]
    spreads_db: tuple[float, ...]
    speeds_mps: tuple[float, ...]
    seeds: int
    rounds: int


SCALES = {
    "full": Scale((), (15.0, 20.0, 25.0), (0.0, 3.0, 10.85), SPEEDS_MPS, 20, 5),
    # Checks the code, not the channel.
    "small": Scale(
        (*setting.SCALES["small"].overrides, "run.rounds=2"),
        (20.0,),
        (0.0, 3.0),
        (0.83, 18.12),
        2,
        2,
    ),
}


@dataclass(frozen=True)
class Agents:
    """A training to be placed on the ladder."""

    name: str
    folders: tuple[Path, ...]  # one a trained seed
    checkpoints: tuple[Checkpoint, ...]

    @property
    def config(self) -> Config:
        """How the first of them was trained."""
        return self.checkpoints[0].config

    @property
    def age(self) -> int | None:
        """How old everybody's fading is when they see it, None if they do not."""
        from fedfade.qmix.policy import scope_of

        if scope_of(self.config) != "csi":
            return None
        return self.config.allocation.csi_delay_slots

    @property
    def rung(self) -> str:
        """The lowest rung with all they observe."""
        allocation = self.config.allocation
        if self.age is not None:
            return f"CSI {self.age} old" if self.age else "CSI fresh"
        if "finished" in allocation.observe:
            return "finished"
        sees = {"fading", "reservation"} & {*allocation.observe} and "fading" not in allocation.hide
        return "own fading" if sees else "gains"

    @property
    def digests(self) -> list[str]:
        """Of the networks."""
        return [checkpoint.files["agents"]["sha256"] for checkpoint in self.checkpoints]


def load_agents(asked: Sequence[str]) -> list[Agents]:
    """Trainings from NAME=FOLDER; a folder of several seeds is all of them."""
    found: dict[str, Agents] = {}
    for text in asked:
        name, equals, folder = text.partition("=")
        if not (equals and folder and re.fullmatch(r"[A-Za-z0-9 .+_-]{1,40}", name)):
            raise not_allowed("--checkpoint", text, "NAME=FOLDER with a folder of fedfade train")
        if name in found:
            raise UserError(f"--checkpoint {name!r} is given twice: choose another name.")
        place = Path(folder)
        several = sorted(p.parent for p in place.glob("seed-*/checkpoint.json"))
        folders = (place,) if has_checkpoint(place) or not several else tuple(several)
        found[name] = Agents(name, folders, tuple(map(load_checkpoint, folders)))
    return list(found.values())


@dataclass(frozen=True)
class Place:
    """A cell at a speed."""

    cell: str
    speed_mps: float
    config: Config
    rounds: tuple[int, ...]  # of the run, those that are played


@dataclass(frozen=True)
class Ladder:
    """What is to be played where."""

    base: Config
    rungs: tuple[Rung, ...]
    places: tuple[Place, ...]
    agents: tuple[Agents, ...]
    policies: tuple[str, ...]  # those without learning
    ages: tuple[int, ...]  # slots, of everybody's fading where it is not fresh

    @property
    def cells(self) -> list[str]:
        """In the order of the figure."""
        return list(dict.fromkeys(place.cell for place in self.places))

    @property
    def speeds_mps(self) -> list[float]:
        """Slowest first."""
        return list(dict.fromkeys(place.speed_mps for place in self.places))


def make_ladder(
    preset: str,
    scale: str = "full",
    seeds: int | None = None,
    rounds: int | None = None,
    checkpoints: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Ladder:
    """The ladder as the command line asks for it, checked before anything runs."""
    if scale not in SCALES:
        raise not_allowed("--scale", scale, f"one of {', '.join(SCALES)}")
    size = SCALES[scale]
    base = load_config(preset, [*size.overrides, *overrides])
    if base.learning.payload_bits == "auto":
        raise not_allowed("learning.payload_bits", "auto", "a number, as nothing is learned")
    agents = load_agents(checkpoints)
    ages = sorted({*AGES, *(a.age for a in agents if a.age)}, reverse=True)
    ladder = rungs(base.radio.slots, ages)
    run = {"run.seed": FIRST_SEED, "run.seeds": size.seeds if seeds is None else seeds}
    played = _spread_out(size.rounds if rounds is None else rounds, base.run.rounds)
    cells: dict[str, dict[str, Any]] = {
        f"{snr:g} dB, spread {spread:g} dB": ring(snr, spread)
        for snr in size.snrs_db
        for spread in size.spreads_db
    }
    places = [
        Place(name, speed, changed(base, {**fields, **run, "radio.speed_mps": speed}), played)
        for name, fields in {**cells, OWN: {}}.items()
        for speed in size.speeds_mps
    ]
    for some in agents:
        _check_unseen(some, places[0].config)
        for place in places:
            load_policy_checkpoint(some.folders[0], as_trained(place.config, some))
    policies = [name for rung in ladder for name in rung.policies]
    return Ladder(base, tuple(ladder), tuple(places), tuple(agents), tuple(policies), tuple(ages))


def _spread_out(count: int, rounds: int) -> tuple[int, ...]:
    """Rounds evenly spread over a run, because clients walk on from one to the next.

    >>> _spread_out(4, 100)
    (0, 25, 50, 75)
    """
    if not 1 <= count <= rounds:
        raise not_allowed("--rounds", count, f"between 1 and run.rounds = {rounds}")
    return tuple(place * rounds // count for place in range(count))


def as_trained(config: Config, agents: Agents) -> Config:
    """A cell as these agents observe it."""
    allocation = agents.config.allocation
    seen = ("observe", "hide", "csi_delay_slots")
    fields: dict[str, Any] = {f"allocation.{name}": getattr(allocation, name) for name in seen}
    return changed(config, {**fields, "run.rounds": agents.config.run.rounds})


def _check_unseen(agents: Agents, config: Config) -> None:
    tested = range(config.run.seed, config.run.seed + config.run.seeds)
    for checkpoint in agents.checkpoints:
        own = checkpoint.config
        if not set(tested).isdisjoint({own.run.seed, *cycle_seeds(own, own.run.seed)}):
            raise UserError(f"--checkpoint {agents.name!r} was trained on the seeds it would play.")


# --- playing -----------------------------------------------------------------------------------


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
    path = out / "runs" / f"{_file_name(place, name, content)}.csv"
    if not path.is_file():
        with one_thread():
            write_table(path, compute())
    lines = read_table(path)
    numbers = ("seed", "uploads")
    if not all(isinstance(line.get(name), float) for line in lines for name in numbers):
        raise UserError(f"{str(path)!r} is damaged: remove it to play these rounds again.")
    return [{"cell": place.cell, "speed": place.speed_mps, **line} for line in lines]


def _file_name(place: Place, name: str, content: Sequence[str]) -> str:
    """A name a person can read, and a digest of all that decides the numbers."""
    tree = place.config.model_dump(include={"radio", "cell", "run"})
    for field in ("device", "checkpoint_s", "precision", "evaluate_every"):
        del tree["run"][field]
    learning = place.config.learning
    key = [tree, place.rounds, learning.clients, learning.payload_bits, name, list(content)]
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=4).hexdigest()
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


# --- what came out -----------------------------------------------------------------------------


def mean_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value.

    >>> mean_error([1.0, 3.0])
    (2.0, 1.0)
    """
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    square = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(square / len(values))


def by_seed(lines: Sequence[Line], policy: str) -> list[float]:
    """Uploads of a policy seed by seed, trainings averaged."""
    found: dict[float, list[float]] = {}
    for line in lines:
        if line["policy"] == policy:
            found.setdefault(line["seed"], []).append(line["uploads"])
    return [sum(values) / len(values) for _, values in sorted(found.items())]


def policy_table(ladder: Ladder, lines: Sequence[Line]) -> list[Line]:
    """A line a place and policy: where it stands and what it delivers."""
    rung = {name: rung.name for rung in ladder.rungs for name in rung.policies}
    rung |= {agents.name: agents.rung for agents in ladder.agents}
    learned = {agents.name for agents in ladder.agents}
    table: list[Line] = []
    for place in ladder.places:
        own = matching(lines, cell=place.cell, speed=place.speed_mps)
        for policy in [*ladder.policies, *(agents.name for agents in ladder.agents)]:
            mean, error = mean_error(by_seed(own, policy))
            table.append(
                {
                    "cell": place.cell,
                    "speed": place.speed_mps,
                    "rung": rung[policy],
                    "policy": policy,
                    "learned": "yes" if policy in learned else "no",
                    "uploads": mean,
                    "error": error,
                }
            )
    return table


def ladder_table(ladder: Ladder, lines: Sequence[Line]) -> list[Line]:
    """The best policy without learning of every rung, those below it included.

    Policies of a place play the same rounds, so what a rung adds is a mean of differences.
    """
    table: list[Line] = []
    for place in ladder.places:
        own = matching(lines, cell=place.cell, speed=place.speed_mps)
        scores = {policy: by_seed(own, policy) for policy in ladder.policies}
        best, below = "", ""
        for rung in ladder.rungs:
            for policy in rung.policies:
                if not best or sum(scores[policy]) > sum(scores[best]):
                    best = policy
            differences = [a - b for a, b in zip(scores[best], scores[below or best], strict=True)]
            mean, error = mean_error(scores[best])
            gain, gain_error = mean_error(differences)
            table.append(
                {
                    "cell": place.cell,
                    "speed": place.speed_mps,
                    "rung": rung.name,
                    "policy": best,
                    "uploads": mean,
                    "error": error,
                    "gain": gain,
                    "gain_error": gain_error,
                }
            )
            below = best
    return table


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


# --- accuracy ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """One comparison, and whose lines it gives."""

    place: Place
    config: Config
    folder: Path
    rung_of: dict[str, list[str]]  # policy -> rungs
    agents: Agents | None


def accuracy(
    ladder: Ladder, out: Path, table: Sequence[Line], tell: Callable[[int, str], None]
) -> list[Line]:
    """Final accuracy of the best policy of every rung, in the middle of the map and at home.

    As many rounds and seeds as the preset says, all comparisons side by side.
    """
    jobs = [job for place in accuracy_places(ladder) for job in _jobs(ladder, out, table, place)]
    device = pick_device(ladder.base.run.device)
    found = compare_many([j.config for j in jobs], [j.folder for j in jobs], device, tell)
    lines: dict[tuple[str, float, str, str], tuple[list[float], list[float]]] = {}
    for job, rows in zip(jobs, found, strict=True):
        for policy, names in job.rung_of.items():
            shown = job.agents.name if job.agents else policy
            final = series(rows, policy, "accuracy")[:, -1].tolist()
            uploads = series(rows, policy, "delivered").mean(-1).tolist()
            for rung in names:
                key = (job.place.cell, job.place.speed_mps, rung, shown)
                one = lines.setdefault(key, ([], []))
                one[0].extend(final)
                one[1].extend(uploads)
    learned = {agents.name for agents in ladder.agents}
    return [
        {
            "cell": cell,
            "speed": speed,
            "rung": rung,
            "policy": policy,
            "learned": "yes" if policy in learned else "no",
            "accuracy": mean_error(final)[0],
            "error": mean_error(final)[1],
            "uploads": mean_error(uploads)[0],
            "seeds": len(final),
        }
        for (cell, speed, rung, policy), (final, uploads) in lines.items()
    ]


def accuracy_places(ladder: Ladder) -> list[Place]:
    """The cell in the middle of the map, and the preset's own."""
    on_the_ring = ladder.cells[:-1]
    chosen = (on_the_ring[len(on_the_ring) // 2], OWN)
    return [place for place in ladder.places if place.cell in chosen]


def accuracy_rounds(ladder: Ladder, out: Path, table: Sequence[Line]) -> int:
    """Federated rounds of all comparisons together."""
    places = accuracy_places(ladder)
    return sum(
        job.config.run.rounds for place in places for job in _jobs(ladder, out, table, place)
    )


def _jobs(ladder: Ladder, out: Path, table: Sequence[Line], place: Place) -> list[_Job]:
    """The policies without learning together, every training by itself."""
    own = matching(table, cell=place.cell, speed=place.speed_mps)
    rung_of: dict[str, list[str]] = {}
    for line in own:
        if line["policy"] != GENIE:
            rung_of.setdefault(line["policy"], []).append(line["rung"])
    rung_of[PERFECT] = ["bound"]
    run = ladder.base.run
    asked: dict[str, Any] = {"run.seeds": run.seeds, "allocation.policies": list(rung_of)}
    config = changed(place.config, asked)
    folder = out / "accuracy" / _file_name(place, "", list(rung_of))
    jobs = [_Job(place, config, folder, rung_of, None)]
    for agents in ladder.agents:
        for number in range(run.seeds):  # evaluation seed i with the agents of training i
            trained = number % len(agents.folders)
            fields = {
                "run.seed": FIRST_SEED + number,
                "run.seeds": 1,
                "allocation.policies": [QMIX],
                "allocation.checkpoint": str(agents.folders[trained]),
            }
            config = changed(as_trained(place.config, agents), {**fields, "run.rounds": run.rounds})
            mark = [agents.digests[trained], str(number)]
            folder = out / "accuracy" / _file_name(place, agents.name, mark)
            jobs.append(_Job(place, config, folder, {QMIX: [agents.rung]}, agents))
    return jobs
