"""Tables of a study: data frames, kept as CSV files and shown in Markdown."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from fedfade.errors import UserError
from fedfade.storage import read_bytes, write_text

_TEXT = ("policy", "winner", "next", "training", "cell", "rung", "learned", "hidden")
"""Columns of text, even where it looks like a number."""

_MAX_BYTES = 64 * 2**20


def write_frame(path: Path, frame: DataFrame) -> None:
    """Write a table whole or not at all: fractions to six digits, NaN as an empty cell."""

    def digits(value: float) -> str:
        whole = value.is_integer() and abs(value) < 2**53  # seeds have more than six digits
        return f"{value:.0f}" if whole else f"{value:.6g}"

    write_text(path, frame.to_csv(index=False, lineterminator="\n", float_format=digits))


def read_frame(path: Path) -> DataFrame:
    """A table that `write_frame` wrote: all numbers as float, an empty cell of them as NaN."""
    if not path.is_file():
        raise UserError(f"{str(path)!r} is not there: run this part of fedfade reproduce first.")
    try:
        names, *cells = csv.reader(io.StringIO(read_bytes(path, _MAX_BYTES).decode("utf-8")))
        if any(len(row) != len(names) for row in cells):
            raise ValueError("a line is too short or too long")
    except (ValueError, csv.Error):
        raise UserError(f"{str(path)!r} is not a table of fedfade reproduce.") from None
    return DataFrame(cells, columns=names, dtype=object).apply(_parsed)


def _parsed(column: Series) -> Series:
    try:
        return column if column.name in _TEXT else column.replace("", "nan").astype(float)
    except ValueError:
        return column


def kept(path: Path, compute: Callable[[], DataFrame]) -> DataFrame:
    """A table from its file, computed and written first if the file is not there."""
    if not path.is_file():
        write_frame(path, compute())
    return read_frame(path)


def matching(frame: DataFrame, **where: Any) -> DataFrame:
    """The lines with these values.

    >>> matching(DataFrame({"a": [1, 3], "b": [2, 4]}), a=3).b.tolist()
    [4]
    """
    return frame[(frame[list(where)] == Series(where)).all(axis=1)]


def in_order(frame: DataFrame, *keys: Sequence[str]) -> DataFrame:
    """Sorted by keys of one or more columns, each in the order in which its values appear."""
    ranks = [frame.groupby(list(key), sort=False).ngroup() for key in keys]
    return frame.iloc[np.lexsort(ranks[::-1])]


def means(frame: DataFrame, group: str, field: str) -> Series:
    """Mean of a field for each value of a column, in order of appearance."""
    return frame.groupby(group, sort=False)[field].agg(lambda values: values.mean())


def mean_error(values: Series) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value.

    >>> mean_error(Series([1.0, 3.0]))
    (2.0, 1.0)
    """
    return float(values.mean()), float(values.sem())


def paired(
    frame: DataFrame, one: dict[str, Any], other: dict[str, Any], field: str = "accuracy"
) -> tuple[float, float]:
    """Mean difference of two sets of runs, seed by seed, and its standard error.

    >>> frame = DataFrame({"policy": [*"xxyy"], "seed": [0, 1, 0, 1], "accuracy": [5, 7, 4, 4]})
    >>> paired(frame, {"policy": "x"}, {"policy": "y"})
    (2.0, 1.0)
    """
    ours, theirs = (matching(frame, **where).set_index("seed")[field] for where in (one, other))
    return mean_error((ours - theirs).dropna())


def markdown(headings: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table.

    >>> print(markdown(["policy", "uploads"], [["random", 1.25]]))
    | policy | uploads |
    |---|---|
    | random | 1.25 |
    """
    head, *lines = (f"| {' | '.join(map(str, row))} |" for row in (headings, *rows))
    return "\n".join([head, f"|{'---|' * len(headings)}", *lines])
