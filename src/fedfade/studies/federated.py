"""Federated comparisons of a study: what is run where, and the rows boiled down to tables."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame

from fedfade.config import Config
from fedfade.experiments import Row
from fedfade.studies.frames import in_order


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
    """How each run ended: a line per value of `by`, policy and seed."""
    keys = [*by, "policy", "seed"]
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
    return in_order(table.join(shares).reset_index(), by, ["policy"], ["seed"])


def curve_table(rows: DataFrame, by: Sequence[str], field: str) -> DataFrame:
    """A field against rounds: median and 10-90 % band over seeds, where all were measured."""
    keys = [*by, "policy", "round"]
    table = rows.groupby(keys, sort=False)[field].agg(
        median="median",
        low=lambda values: values.quantile(0.1),
        high=lambda values: values.quantile(0.9),
        gap=lambda values: values.isna().any(),
    )
    table = table[~table.pop("gap").astype(bool)].reset_index()
    return in_order(table.assign(round=table["round"] + 1), by, ["policy"], ["round"])
