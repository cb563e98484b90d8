"""What came out: a line a policy, a line a rung."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedfade.studies.ladder.rungs import Ladder
from fedfade.studies.paper.tables import Line, matching


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
