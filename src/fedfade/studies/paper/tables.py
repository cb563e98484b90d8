"""Small tables: CSV files that figures and claims are made from, and Markdown to paste."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedfade.errors import UserError
from fedfade.storage import read_bytes, write_text

Line = dict[str, Any]
"""One line of a table: numbers as float, the rest as text."""

_NAMES = {"policy", "winner", "next", "training", "cell", "rung", "learned", "hidden"}
"""Columns of text, also where it looks like a number."""

_MAX_BYTES = 64 * 2**20


def write_table(path: Path, lines: Sequence[Line]) -> None:
    """Write lines with the same columns, whole or not at all; fractions to six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _cell(value) for name, value in line.items()})
    write_text(path, text.getvalue())


def read_table(path: Path) -> list[Line]:
    """Lines that `write_table` wrote; an empty cell of a number is NaN."""
    if not path.is_file():
        raise UserError(f"{str(path)!r} is not there: run this part of fedfade reproduce first.")
    try:
        reader = csv.DictReader(io.StringIO(read_bytes(path, _MAX_BYTES).decode("utf-8")))
        return [{name: _value(name, cell) for name, cell in line.items()} for line in reader]
    except (ValueError, csv.Error, AttributeError, TypeError):
        raise UserError(f"{str(path)!r} is not a table of fedfade reproduce.") from None


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        whole = value.is_integer() and abs(value) < 2**53  # seeds have more than six digits
        return f"{value:.0f}" if whole else f"{value:.6g}"
    return value


def _value(name: str, cell: str) -> float | str:
    if name in _NAMES and cell is not None:  # None: the line is short, which float refuses
        return cell
    if cell == "":
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return cell


def columns(lines: Iterable[Line], *wanted: str, **where: Any) -> list[list[Any]]:
    """Columns of the lines that match.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}], "b", a=3)
    [[4]]
    """
    found = matching(lines, **where)
    return [[line[name] for line in found] for name in wanted]


def matching(lines: Iterable[Line], **where: Any) -> list[Line]:
    """The lines with these values."""
    return [line for line in lines if all(line[name] == value for name, value in where.items())]


def distinct(lines: Iterable[Line], name: str) -> list[Any]:
    """Values of a column in order of first appearance."""
    return list(dict.fromkeys(line[name] for line in lines))


def markdown(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table.

    >>> print(markdown(["policy", "uploads"], [["random", 1.25]]))
    | policy | uploads |
    |---|---|
    | random | 1.25 |
    """
    lines = [headings, ["---"] * len(headings)]
    text = [f"| {' | '.join(map(str, headings))} |", f"|{'|'.join(lines[1])}|"]
    text += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(text)
