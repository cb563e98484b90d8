"""The ladder: what clients may know, who uses it, and the cells it is tried in."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedfade.agents import (
    agents_folder,
    load_checkpoint,
    load_policy_checkpoint,
    scope_of,
    trained_folders,
)
from fedfade.allocation import GENIE, policy_names
from fedfade.config import Config, changed, load_config
from fedfade.errors import UserError, not_allowed
from fedfade.studies.paper import SCALES as PAPER_SCALES
from fedfade.studies.paper.regimes import FEEDBACK, ONCE_A_ROUND, ring
from fedfade.studies.paper.setting import seeds_used, spread_out

FIRST_SEED = 2000
"""Settings of the deadline policies were chosen on seeds 1000 to 1004; agents trained on those
played here are refused."""

AGES = (20, 5, 1)
"""Slots after which everybody's fading is known, on the rungs between none and fresh."""

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
    central = ("shortest-remaining-first", "max-sum-rate", "deadline-matching")
    old = []
    for age in ages:
        knows = f"everybody's fading of {age} slot{'s' if age > 1 else ''} ago"
        policies = (f"shortest-remaining-first@{age}", f"deadline-matching@{age}")
        old.append(Rung(f"CSI {age} old", knows, policies))
    return [
        Rung("gains", "large-scale gains of all, once a round", ONCE_A_ROUND),
        Rung("own fading", "own fading on every sub-band", ("wrap-around-choice",)),
        Rung("finished", "who has finished, a bit a client and slot", FEEDBACK),
        # Fading that is a round old never arrives.
        Rung(
            "progress",
            "how much everybody has left",
            (f"deadline-matching@{slots}", "deadline-progress"),
        ),
        *old,
        Rung("CSI fresh", "everybody's fading of this slot", central),
        Rung("bound", "all of the round in advance (bound)", (GENIE,)),
    ]


class LadderScale(NamedTuple):
    """How much is played."""

    overrides: list[str]
    snrs_db: tuple[float, ...]
    spreads_db: tuple[float, ...]
    speeds_mps: tuple[float, ...]
    seeds: int
    rounds: int


_SMALL = [*PAPER_SCALES["small"].overrides, "run.rounds=2"]  # checks the code, not the channel
SCALES = {
    "paper": LadderScale([], (15.0, 20.0, 25.0), (0.0, 3.0, 10.85), (0.83, 7.67, 18.12), 20, 5),
    "small": LadderScale(_SMALL, (20.0,), (0.0, 3.0), (0.83, 18.12), 2, 2),
}
SCALES["full"] = SCALES["paper"]  # its name before


class Agents(NamedTuple):
    """A training to be placed on the ladder: folder, configuration and digest by seed."""

    name: str
    folders: list[Path]
    configs: list[Config]
    digests: list[str]

    @property
    def age(self) -> int | None:
        """How old everybody's fading is when they see it, None if they do not."""
        config = self.configs[0]
        return config.allocation.csi_delay_slots if scope_of(config) == "csi" else None

    @property
    def rung(self) -> str:
        """The lowest rung with all they observe."""
        allocation = self.configs[0].allocation
        if self.age is not None:
            return f"CSI {self.age} old" if self.age else "CSI fresh"
        if scope_of(self.configs[0]) == "feedback":
            return "finished"
        sees = {"fading", "reservation"} & {*allocation.observe} and "fading" not in allocation.hide
        return "own fading" if sees else "gains"


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
        folders = [*trained_folders(agents_folder(Path(folder)))]
        stored = [*map(load_checkpoint, folders)]
        digests = [one.files["agents"]["sha256"] for one in stored]
        found[name] = Agents(name, folders, [one.config for one in stored], digests)
    return list(found.values())


class LadderCell(NamedTuple):
    """A cell at a speed."""

    name: str
    speed_mps: float
    config: Config
    rounds: tuple[int, ...]  # of the run, those that are played

    @property
    def labels(self) -> dict[str, Any]:
        """What tells it apart in tables."""
        return {"cell": self.name, "speed": self.speed_mps}


class Ladder(NamedTuple):
    """What is to be played where."""

    base: Config
    rungs: list[Rung]
    cells: list[LadderCell]
    agents: list[Agents]
    ages: list[int]  # slots, of everybody's fading where it is not fresh

    @property
    def policies(self) -> list[str]:
        """Those without learning."""
        return [name for rung in self.rungs for name in rung.policies]

    @property
    def names(self) -> list[str]:
        """Of the cells, in the order of the figure."""
        return list(dict.fromkeys(cell.name for cell in self.cells))

    @property
    def speeds_mps(self) -> list[float]:
        """Slowest first."""
        return list(dict.fromkeys(cell.speed_mps for cell in self.cells))

    @property
    def accuracy_cells(self) -> list[LadderCell]:
        """The cell in the middle of the map, and the preset's own."""
        on_the_ring = self.names[:-1]
        chosen = (on_the_ring[len(on_the_ring) // 2], OWN)
        return [cell for cell in self.cells if cell.name in chosen]


def make_ladder(
    preset: str,
    scale: str = "paper",
    seeds: int | None = None,
    rounds: int | None = None,
    checkpoints: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Ladder:
    """The ladder as the command line asks for it, checked before anything runs."""
    if scale not in SCALES:
        raise not_allowed("--scale", scale, "paper or small")
    size = SCALES[scale]
    base = load_config(preset, [*size.overrides, *overrides])
    if base.learning.payload_bits == "auto":
        raise not_allowed("learning.payload_bits", "auto", "a number, as nothing is learned")
    agents = load_agents(checkpoints)
    ages = sorted({*AGES, *(a.age for a in agents if a.age)}, reverse=True)
    run = {"run.seed": FIRST_SEED, "run.seeds": size.seeds if seeds is None else seeds}
    played = spread_out(size.rounds if rounds is None else rounds, base.run.rounds)
    fields_of: dict[str, dict[str, Any]] = {
        f"{snr:g} dB, spread {spread:g} dB": ring(snr, spread)
        for snr in size.snrs_db
        for spread in size.spreads_db
    }
    cells = [
        LadderCell(name, speed, changed(base, {**fields, **run, "radio.speed_mps": speed}), played)
        for name, fields in {**fields_of, OWN: {}}.items()
        for speed in size.speeds_mps
    ]
    for some in agents:
        check_unseen(some, cells[0].config)
        for cell in cells:
            load_policy_checkpoint(some.folders[0], as_trained(cell.config, some))
    return Ladder(base, rungs(base.radio.slots, ages), cells, agents, ages)


def as_trained(config: Config, agents: Agents) -> Config:
    """A cell as these agents observe it."""
    trained = agents.configs[0]
    seen = ("observe", "hide", "csi_delay_slots")
    fields: dict[str, Any] = {f"allocation.{f}": getattr(trained.allocation, f) for f in seen}
    return changed(config, {**fields, "run.rounds": trained.run.rounds})


def check_unseen(agents: Agents, config: Config) -> None:
    """Refuse agents that were trained on seeds they would play."""
    played = set(range(config.run.seed, config.run.seed + config.run.seeds))
    for own in agents.configs:
        if played & seeds_used(own, own.run.seed):
            raise UserError(f"--checkpoint {agents.name!r} was trained on the seeds it would play.")
