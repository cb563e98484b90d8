"""Clients, sub-bands and rounds are counted from 0: on the screen, in pictures and in files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from fedfade.experiments.figures import accuracy_figure
from fedfade.experiments.metrics import bound_row
from fedfade.learning.estimation import BoundRow
from fedfade.learning.plots import bound_terms, class_distribution
from fedfade.radio import Recording
from fedfade.radio.channel_figure import channel_figure


def first_words(text: str, count: int) -> list[str]:
    """The first column of a table below its heading."""
    lines = text.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.split()[:1] in (["round"], ["client"]))
    return [line.split()[0] for line in lines[heading + 1 : heading + 1 + count]]


def test_sub_bands_in_the_picture_of_a_channel() -> None:
    gain = np.random.default_rng(0).exponential(size=(3, 20, 4))
    figure = channel_figure([Recording("a", gain, None, None, {})])
    legend = figure.subfigs[0].axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"sub-band {b}" for b in range(4)]


def test_rounds_in_the_picture_of_a_comparison() -> None:
    """Those in which the models were tested, here the second and the fourth, by their numbers."""
    rows = [bound_row(0, "random", number, 1.0) for number in range(4)]
    rows = [row._replace(accuracy=0.5) if row.round % 2 else row for row in rows]
    (axes,) = accuracy_figure(rows).axes
    assert axes.lines[0].get_xdata().tolist() == [1, 3]


def test_clients_of_a_partition(fedfade) -> None:
    answer = fedfade("partition", "--data", "digits", "--clients", 3)
    assert first_words(answer.out, 3) == ["0", "1", "2"]
    panel = class_distribution({0.5: np.ones((3, 2), dtype=np.int64)}, ["a", "b"], "").axes[0]
    assert panel.get_xticks().tolist() == [0, 1, 2]


def test_rounds_of_the_bound(fedfade, tmp_path: Path) -> None:
    answer = fedfade(
        "bound", "quickstart", "--rounds", 2, "--draws", 2, "--json", "--table", tmp_path / "b.csv",
        "--set", "learning.clients=2", "--set", "learning.batch_size=10",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out.splitlines()[-1])["rounds"]
    assert [row["round"] for row in rows] == [0, 1]
    assert first_words(answer.out, 2) == ["0", "1"]
    with (tmp_path / "b.csv").open() as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "1"]
    (above, _) = bound_terms([BoundRow(**row) for row in rows], "").axes
    assert above.lines[0].get_xdata().tolist() == [0, 1]
