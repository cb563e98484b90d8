"""What the scripts of a comparison's page are given: curves, columns, who was served where."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config
from fedfade.experiments.metrics import CURVES, Row, series, served, shown, spent, summarise
from fedfade.radio import Cell

_POINTS = 400
"""A curve of more rounds is drawn through every so many of them."""
_STEPS, _PLACES = 100, 200_000
"""Rounds of a walk that the map shows; places to work out for it."""


def explored(
    rows: Sequence[Row],
    order: Sequence[str],
    config: Config,
    colours: Mapping[str, str],
    about: Mapping[str, str],
) -> dict[str, Any]:
    """All of it, for `comparison.js`; policies in this order."""
    lines = [
        {
            "name": policy,
            "colour": colours[policy],
            "bound": policy in (PERFECT, GENIE),
            "about": about.get(policy, ""),
        }
        for policy in order
    ]
    return {
        "lines": lines,
        "clients": config.learning.clients,
        "seeds": sorted({row.seed for row in rows}),
        "curves": {"lines": lines} | curves(rows, order, config.run.evaluate_every),
        "columns": _columns(rows, order),
        "served": _served(rows, order, config),
    }


def curves(rows: Sequence[Row], order: Sequence[str], evaluate_every: int) -> dict[str, Any]:
    """What was measured round after round, as `chart.js` wants it."""
    rounds = _rounds(rows)
    step = evaluate_every * -(-rounds // (_POINTS * evaluate_every)) if rounds > _POINTS else 1
    kept = [r for r in range(rounds) if (r + 1) % step == 0 or r + 1 == rounds]
    measured = {
        name: [series(rows, policy, name) for policy in order] for name in (*CURVES, *spent(rows))
    }
    y = [
        {
            "name": name,
            "label": curve.label,
            "digits": curve.digits,
            "values": [_short(curve.scale * one[:, kept]) for one in measured[name]],
        }
        for name, curve in CURVES.items()
        if not all(np.isnan(one).all() for one in measured[name])
    ]
    x: list[dict[str, Any]] = [{"name": "round", "label": "federated round", "values": kept}]
    x += [
        {
            "name": name,
            "label": cost.label,
            "values": [_short(one.cumsum(1)[:, kept]) for one in measured[name]],
        }
        for name, cost in spent(rows).items()
    ]
    return {"file": "curves", "kind": "seed", "x": x, "y": y}


def _short(numbers: np.ndarray) -> list[Any]:
    """Nested lists of numbers with four digits, which is what a screen shows."""
    return [[float(f"{value:.4g}") for value in line] for line in numbers]


def _columns(rows: Sequence[Row], order: Sequence[str]) -> list[dict[str, Any]]:
    """Every column of the table that is one number: of all seeds, and of each."""
    by_seed = [[r for r in rows if r.seed == seed] for seed in sorted({r.seed for r in rows})]
    policies = [policy for policy in order if policy != GENIE]
    whole = [summarise(rows, policy) for policy in policies]
    each = [[summarise(own, policy) for own in by_seed] for policy in policies]
    return [
        {
            "name": one.name,
            "label": one.title or one.heading,
            "about": one.about,
            "texts": [line.text(one.name) for line in whole],
            "values": [one.scale * getattr(line, one.name) for line in whole],
            "seeds": [[one.scale * getattr(line, one.name) for line in own] for own in each],
        }
        for one in shown(rows)
        if one.text.count("{") == 1
    ]


def _served(rows: Sequence[Row], order: Sequence[str], config: Config) -> dict[str, Any]:
    """Shares of rounds by policy, seed and client; where clients were, and who delivered there."""
    clients, rounds = config.learning.clients, _rounds(rows)
    seeds = sorted({int(row.seed) for row in rows})
    walking = seeds[: min(5, max(1, _PLACES // (rounds * clients)))]
    policies = [policy for policy in order if policy != GENIE]
    by_run: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_run.setdefault((row.policy, int(row.seed)), []).append(row)
    steps = sorted({rounds * step // _STEPS for step in range(_STEPS)})
    walk = Cell(config.cell, config.radio, clients).trajectory(walking, rounds)
    return {
        "policies": policies,
        "shares": [
            [_percent(served(by_run[policy, seed], policy, clients)) for seed in seeds]
            for policy in policies
        ],
        "rounds": steps,
        "walk": walk.position[:, steps].round().int().tolist(),  # [seed, step, client, (x, y)]
        "delivered": [
            [_deliveries(by_run[policy, seed], steps) for seed in walking] for policy in policies
        ],
        "side": config.cell.side_m,
    }


def _rounds(rows: Sequence[Row]) -> int:
    return int(max(row.round for row in rows)) + 1


def _percent(shares: np.ndarray) -> list[float]:
    return [round(100 * float(share), 1) for share in shares]


def _deliveries(own: Sequence[Row], steps: Sequence[int]) -> list[list[int]]:
    by_round = {row.round: row.delivered_clients for row in own}
    return [[int(client) for client in by_round[step].split()] for step in steps]
