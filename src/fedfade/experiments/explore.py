"""What the page of a comparison shows: a card per number that matters, a ranked line per policy;
and what its scripts are given: curves, columns, who was served where."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config
from fedfade.experiments import metrics
from fedfade.experiments.findings import Place
from fedfade.experiments.metrics import Row, Shown, Summary, policies_of, series, shown, spent
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
        name: [series(rows, policy, name) for policy in order]
        for name in (*metrics.CURVES, *spent(rows))
    }
    y = [
        {
            "name": name,
            "label": curve.label,
            "digits": curve.digits,
            "values": [_short(curve.scale * one[:, kept]) for one in measured[name]],
        }
        for name, curve in metrics.CURVES.items()
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
    whole = [metrics.summarise(rows, policy) for policy in policies]
    each = [[metrics.summarise(own, policy) for own in by_seed] for policy in policies]
    return [
        {
            "name": one.name,
            "label": one.label,
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

    def percent(policy: str, seed: int) -> list[float]:
        shares = metrics.served(by_run[policy, seed], policy, clients)
        return [round(100 * float(share), 1) for share in shares]

    def delivered(policy: str, seed: int) -> list[list[int]]:
        by_round = {row.round: row.delivered_clients for row in by_run[policy, seed]}
        return [[int(client) for client in by_round[step].split()] for step in steps]

    return {
        "policies": policies,
        "shares": [[percent(policy, seed) for seed in seeds] for policy in policies],
        "rounds": steps,
        "walk": walk.position[:, steps].round().int().tolist(),  # [seed, step, client, (x, y)]
        "delivered": [[delivered(policy, seed) for seed in walking] for policy in policies],
        "side": config.cell.side_m,
    }


def _rounds(rows: Sequence[Row]) -> int:
    return int(max(row.round for row in rows)) + 1


# --- cards and ranking ---------------------------------------------------------------------------


def cards(rows: Sequence[Row], order: Sequence[Place], clients: int) -> list[dict[str, Any]]:
    """What the best policy reached, where all others are, and the bound."""
    lines = [place.line for place in order]
    titled = [one for one in shown(rows) if one.title]
    bounds = {one.name: "" for one in titled}
    if lines[-1].policy == PERFECT:
        bounds["accuracy"] = f"perfect upload {lines[-1].text('accuracy')}"
    if GENIE in policies_of(rows):
        bounds["uploads"] = f"at most {series(rows, GENIE, 'delivered').mean():.2f}"
    return [
        {
            "title": one.title,
            "about": one.about,
            "policy": lines[0].policy,
            "number": lines[0].text(one.name),
            "unit": one.unit.format(clients=clients),
            "beside": [text for text in (_others(one, lines), bounds[one.name]) if text],
            "strip": _strip(one, lines),
        }
        for one in titled
        if not math.isnan(getattr(lines[0], one.name))
    ]


def _others(one: Shown, lines: Sequence[Summary]) -> str:
    """Who has the best of a number, if it is not the first of these."""
    sending = [line for line in lines if line.policy != PERFECT]
    first = max(sending, key=lambda line: (_worth(one, line), line is lines[0]))
    if len(sending) > 1 and len({line.text(one.name) for line in sending}) == 1:
        return f"the same for all {len(sending)}"
    if len(sending) < 2 or first is lines[0]:
        return f"the best of {len(sending)}" if len(sending) > 1 else ""
    return f"best: {first.policy} {first.text(one.name)}"


def _worth(one: Shown, line: Summary) -> float:
    value = one.better * getattr(line, one.name)
    return -math.inf if math.isnan(value) else value


def _strip(one: Shown, lines: Sequence[Summary]) -> list[dict[str, Any]]:
    """Every policy's place between the least and the most, from 0 to 100; the first on top."""
    known = [line for line in reversed(lines) if not math.isnan(getattr(line, one.name))]
    least = min(getattr(line, one.name) for line in known)
    wide = max(getattr(line, one.name) for line in known) - least or 1.0
    return [
        {
            "at": round(100 * (getattr(line, one.name) - least) / wide, 1),
            "kind": "own" if line is lines[0] else "bound" if line.policy == PERFECT else "other",
            "name": f"{line.policy} {line.text(one.name)}",
        }
        for line in known
    ]


def ranking(
    rows: Sequence[Row], order: Sequence[Place], scopes: Mapping[str, str], about: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A line per policy, best first; those that noise does not tell from the best are marked."""
    columns = [column.name for column in shown(rows)]
    # Final accuracy over seeds: low, high, median.
    ranges = [(*place.line.band, place.line.accuracy) for place in order]
    ends = [end for own in ranges for end in own if not math.isnan(end)]
    low, wide = min(ends, default=0.0), (max(ends, default=0.0) - min(ends, default=0.0)) or 1.0
    return [
        {
            "rank": "" if place.policy == PERFECT else number,
            "policy": place.policy,
            "about": about[place.policy],
            "knows": scopes.get(place.policy, "bound"),
            **_mark(place, order),
            "cells": cells(place.line, columns),
            "range": [round(100 * (end - low) / wide, 1) for end in own],
        }
        for number, (place, own) in enumerate(zip(order, ranges, strict=True), 1)
    ]


def _mark(place: Place, order: Sequence[Place]) -> dict[str, str]:
    """Whether a policy is the best, or level with it, and by what."""
    if place.behind is None or sum(one.policy != PERFECT for one in order) == 1:
        return {"mark": "", "hint": ""}  # of one alone there is no best
    hint = f"{place.behind.text(1, 100)} points below the highest mean: within the noise"
    return {
        "mark": "best" if place is order[0] else "level",
        "hint": hint if place.behind.mean else "the highest mean of final accuracies",
    }


def cells(line: Summary, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Texts, and numbers to sort by; a dash and none for what was not measured."""
    found = []
    for name in columns:
        value = float(np.atleast_1d(getattr(line, name, math.nan))[0])
        missing = math.isnan(value)
        text = "-" if missing else line.text(name)
        found.append({"text": text, "value": "" if missing else f"{value:.6g}"})
    return found
