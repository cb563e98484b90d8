"""Tables of a study: what its federated runs leave, kept as CSV files and shown in Markdown."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, Series

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.experiments import Row
from fedfade.shown import cell, from_cell, marked
from fedfade.storage import read_bytes, save_figure, write_text

_TEXT = {"policy", "winner", "next", "training", "cell", "rung", "learned", "hidden", "reading"}
_TEXT |= {"point"}
"""Columns of text, even where it looks like a number."""


def write_frame(path: Path, frame: DataFrame) -> None:
    """Write a table whole or not at all: fractions to six digits, NaN as an empty cell."""

    def digits(value: float) -> str:
        whole = value.is_integer() and abs(value) < 2**53  # seeds have more than six digits
        return f"{value:.0f}" if whole else f"{value:.6g}"

    write_text(path, frame.map(cell).to_csv(index=False, lineterminator="\n", float_format=digits))


def read_frame(path: Path) -> DataFrame:
    """A table that `write_frame` wrote: all numbers as float, an empty cell of them as NaN."""
    if not path.is_file():
        raise UserError(f"{str(path)!r} is not there: run this part of fedfade reproduce first.")
    try:
        names, *cells = csv.reader(io.StringIO(read_bytes(path, 64 * 2**20).decode("utf-8")))
        if any(len(row) != len(names) for row in cells):
            raise ValueError("a line is too short or too long")
    except (ValueError, csv.Error):
        raise UserError(f"{str(path)!r} is not a table of fedfade reproduce.") from None
    return DataFrame(cells, columns=names, dtype=object).apply(_parsed)


def _parsed(column: Series) -> Series:
    try:
        if column.name not in _TEXT:
            return column.replace("", "nan").astype(float)
    except ValueError:
        pass
    return column.map(from_cell)


def kept(path: Path, compute: Callable[[], DataFrame]) -> DataFrame:
    """A table from its file, computed and written first if the file is not there."""
    if not path.is_file():
        write_frame(path, compute())
    return read_frame(path)


def matching(frame: DataFrame, **where: Any) -> DataFrame:
    """The lines with these values."""
    return frame[(frame[list(where)] == Series(where)).all(axis=1)]


def in_order(frame: DataFrame, *keys: Sequence[str]) -> DataFrame:
    """Sorted by keys of one or more columns, each in the order in which its values appear."""
    ranks = [frame.groupby(list(key), sort=False).ngroup() for key in keys]
    return frame.iloc[np.lexsort(ranks[::-1])]


def means(frame: DataFrame, group: str, field: str) -> Series:
    """Mean of a field for each value of a column, in order of appearance."""
    return frame.groupby(group, sort=False)[field].agg(lambda values: values.mean())


def markdown(headings: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""

    def line(row: Iterable[object]) -> str:
        cells = (marked(str(value)).replace("|", r"\|") for value in row)
        return f"| {' | '.join(cells)} |"

    head, *lines = map(line, (headings, *rows))
    return "\n".join([head, f"|{'---|' * len(headings)}", *lines])


Figure = Any
"""Matplotlib's, which need not be installed: without it tables must do."""


class Drawn(NamedTuple):
    """What a part or a study makes of its tables."""

    facts: dict[str, Any]  # what claims are judged by
    text: str  # Markdown
    figures: Mapping[str, Callable[[], Figure]]  # by file name
    tables: Mapping[str, DataFrame] = {}  # those made from other tables, likewise


def write_tables(folder: Path, tables: Mapping[str, DataFrame]) -> None:
    """Each in a file of its name."""
    for name, table in tables.items():
        write_frame(folder / f"{name}.csv", table)


def write_figures(folder: Path, figures: Mapping[str, Callable[[], Figure]]) -> None:
    """Each in a file of its name, where Matplotlib is installed."""
    for name, figure in figures.items():
        with suppress(ImportError):  # a machine that only computes need not have it
            save_figure(figure(), folder / f"{name}.png")


Bar = Callable[[str, int], AbstractContextManager[Callable[[float, str], None]]]
"""A progress bar of (unit, total) that yields a function of (done, what is being done)."""


class StudyRun(NamedTuple):
    """One comparison: what tells it apart in tables, its configuration and its folder."""

    labels: Mapping[str, Any]
    config: Config
    folder: Path


def labelled(runs: Iterable[StudyRun], rows: Iterable[Iterable[Row]]) -> DataFrame:
    """The rows of every run in one table, with the labels of the run as further columns."""
    each = zip(runs, rows, strict=True)
    lines = [{**run.labels, **row._asdict()} for run, own in each for row in own]
    return DataFrame(lines).sort_values("round", kind="stable", ignore_index=True)


def final_table(rows: DataFrame, by: Sequence[str], clients: int) -> DataFrame:
    """How each run ended: a line per value of `by`, policy, training and seed."""
    keys = [*by, "policy", "training", "seed"]
    runs = rows.assign(empty=rows["delivered"] == 0).groupby(keys, sort=False)
    table = runs.agg(
        accuracy=("accuracy", "last"),
        uploads=("delivered", "mean"),
        empty_rounds=("empty", "mean"),
        wasted=("bits_wasted", "sum"),
        fairness=("fairness", "last"),
        bias=("gradient_bias", lambda bias: bias.mean(skipna=False)),
    )
    table["wasted"] /= runs["bits_sent"].sum()  # NaN where nothing was sent
    served = rows["delivered_clients"].str.get_dummies(" ")  # 1 in rounds a client delivered
    served = served.reindex(columns=[str(n) for n in range(clients)], fill_value=0)
    shares = served.groupby([rows[key] for key in keys], sort=False).mean().add_prefix("client_")
    return in_order(table.join(shares).reset_index(), by, ["policy"], ["training"], ["seed"])


def curve_table(rows: DataFrame, by: Sequence[str], field: str) -> DataFrame:
    """A field against rounds: median and 10-90 % band over seeds and trainings, where all
    were measured."""
    keys = [*by, "policy", "round"]
    table = rows.groupby(keys, sort=False)[field].agg(
        median="median",
        low=lambda values: values.quantile(0.1),
        high=lambda values: values.quantile(0.9),
        gap=lambda values: values.isna().any(),
    )
    table = table[~table.pop("gap").astype(bool)].reset_index()
    return in_order(table, by, ["policy"], ["round"])
