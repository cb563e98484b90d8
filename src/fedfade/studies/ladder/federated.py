"""Federated runs with the best policy of every rung, in two of the cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config, changed
from fedfade.device import pick_device
from fedfade.experiments import QMIX, compare_many
from fedfade.experiments.metrics import series
from fedfade.studies.ladder.rungs import FIRST_SEED, OWN, Agents, Ladder, Place, as_trained
from fedfade.studies.ladder.tables import mean_error
from fedfade.studies.ladder.uploads import file_name
from fedfade.studies.paper.tables import Line, matching


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
    folder = out / "accuracy" / file_name(place, "", list(rung_of))
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
            folder = out / "accuracy" / file_name(place, agents.name, mark)
            jobs.append(_Job(place, config, folder, {QMIX: [agents.rung]}, agents))
    return jobs
