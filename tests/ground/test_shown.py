"""Names from strangers: on a terminal, in a figure, in CSV and in Markdown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.table import Table

from fedfade.agents.curve import curve_figure
from fedfade.agents.trainer import Report
from fedfade.commands.options import PlainConsole
from fedfade.experiments.figures import accuracy_figure, served_figure
from fedfade.experiments.metrics import bound_row, read_rows, rows_text
from fedfade.learning.plots import class_distribution
from fedfade.shown import drawn, plain
from fedfade.storage import save_figure
from fedfade.studies.frames import markdown, read_frame, write_frame

NASTY = ["[/x]", "[bold]b", ":warning:", "\x1b[31mred", "\x9b31m"]
NASTY += ["$x", "$a^b^c$", "_a", "\\$", "é"]


def test_a_terminal_shows_names_as_they_are() -> None:
    """Markup neither ends in a traceback nor vanishes, and nothing steers the terminal."""
    for name in NASTY:
        out = io.StringIO()
        table = Table(name, title=name)
        table.add_row(name)
        console = PlainConsole(file=out, width=200, color_system=None)
        console.print(table)
        console.print(name)
        assert out.getvalue().count(plain(name)) == 4, name
        assert all(c.isprintable() or c == "\n" for c in out.getvalue())


def test_figures_draw_names_as_they_are(tmp_path: Path) -> None:
    """No formulas, which may not parse, and no label left out of a legend."""
    path = tmp_path / "a.svg"
    rows = [
        bound_row(0, name, 0, 1.0)._replace(accuracy=0.5, bits_sent=1.0, bits_wasted=0.0)
        for name in NASTY
    ]
    counts = {1.0: np.ones((3, len(NASTY)), dtype=np.int64)}
    report = Report(20, *np.ones(len(Report._fields) - 1))
    for figure in (
        accuracy_figure(rows),
        served_figure(rows, 4),
        class_distribution(counts, NASTY, "$x^y^z$"),
        curve_figure([[report, report]], 4, "$x^y^z$"),
    ):
        save_figure(figure, path)
    axes = accuracy_figure(rows).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [*map(drawn, NASTY)]


def test_tables_hold_no_formulas_and_no_html(tmp_path: Path) -> None:
    """And they are read back as they were."""
    rows = [bound_row(0, name, 0, 1.0) for name in ("=1+1", "+x:y", "@x", "-x", "'x", "plain")]
    text = rows_text(rows)
    assert not any(line.split(",")[1].startswith(("=", "+", "-", "@")) for line in text.split()[1:])
    (tmp_path / "metrics.csv").write_text(text)
    assert [row.policy for row in read_rows(tmp_path / "metrics.csv")] == [r.policy for r in rows]
    table = pd.DataFrame(rows)[["policy", "delivered"]]
    write_frame(tmp_path / "a.csv", table)
    assert "'=1+1,1" in (tmp_path / "a.csv").read_text()
    assert list(read_frame(tmp_path / "a.csv")["policy"]) == list(table["policy"])
    page = markdown(["a"], [["<script>alert(1)</script>"], ["a | b"]])
    assert "<script" not in page
    assert r"| a \| b |" in page


@pytest.mark.parametrize("name", ["[x]", "$x^y^z$"])
def test_presets_and_files_by_any_name(
    name: str, fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also class names with markup and control characters."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        arrays = {"images": np.zeros((40, 8, 8), np.uint8), "labels": np.arange(40) % 2}
        np.savez(tmp_path / f"{part}.npz", **arrays)
    (tmp_path / "classes.json").write_text(json.dumps(["\x1b[31m", name]))
    learning = {"clients": 2, "data": str(tmp_path), "partition": "iid"}
    (tmp_path / f"{name}.yaml").write_text(json.dumps({"learning": learning}))
    answer = fedfade("partition", "--preset", f"{name}.yaml", "--figure", f"{name}.png")
    assert answer.code == 0
    assert name in answer.out
    assert "\x1b[31m" not in answer.out
    assert fedfade("channel", "sample", "--drops", 3, "--out", f"{name}.npz").code == 0
    answer = fedfade("channel", "show", f"{name}.npz", "--out", "b.png")
    assert answer.code == 0
    assert name in answer.out
