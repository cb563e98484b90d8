"""The ranking of a comparison for its page: a card per number that matters, a line per policy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfade.allocation import GENIE, PERFECT
from fedfade.experiments.findings import Place
from fedfade.experiments.metrics import Row, Shown, Summary, policies_of, series, shown


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
    ends = [end for place in order for end in _range(place.line) if not math.isnan(end)]
    low, wide = min(ends, default=0.0), (max(ends, default=0.0) - min(ends, default=0.0)) or 1.0
    return [
        {
            "rank": "" if place.policy == PERFECT else number,
            "policy": place.policy,
            "about": about[place.policy],
            "knows": scopes.get(place.policy, "bound"),
            **_mark(place, order),
            "cells": cells(place.line, columns),
            "range": [
                round(100 * (end - low) / wide, 1)
                for end in (*place.line.band, place.line.accuracy)
            ],
        }
        for number, place in enumerate(order, 1)
    ]


def _range(line: Summary) -> tuple[float, float, float]:
    """Final accuracy over seeds: low, high, median."""
    return *line.band, line.accuracy


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
