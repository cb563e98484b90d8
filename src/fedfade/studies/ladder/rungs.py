"""The ladder: what clients may know, who uses it, and the cells it is tried in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedfade.agents import load_policy_checkpoint
from fedfade.agents.checkpoint import Checkpoint, load_checkpoint, trained_folders
from fedfade.allocation import GENIE, policy_names
from fedfade.config import Config, changed, load_config
from fedfade.errors import UserError, not_allowed
from fedfade.studies.paper import setting
from fedfade.studies.paper.regimes import ring
from fedfade.studies.paper.setting import cycle_seeds

FIRST_SEED = 2000
"""Settings of the deadline policies were chosen on seeds 1000 to 1004; agents trained on those
played here are refused."""

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
        from fedfade.agents.trained import scope_of

        if scope_of(self.config) != "csi":
            return None
        return self.config.allocation.csi_delay_slots

    @property
    def rung(self) -> str:
        """The lowest rung with all they observe."""
        from fedfade.agents import scope_of

        allocation = self.config.allocation
        if self.age is not None:
            return f"CSI {self.age} old" if self.age else "CSI fresh"
        if scope_of(self.config) == "feedback":
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
        if name in policy_names():
            raise UserError(f"--checkpoint {name!r} is the name of a policy: choose another.")
        if name in found:
            raise UserError(f"--checkpoint {name!r} is given twice: choose another name.")
        folders = tuple(trained_folders(Path(folder)))
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
