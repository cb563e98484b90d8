"""What the pictures of a run say."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedfade.experiments.figures import accuracy_figure, share_map, waste_figure
from fedfade.experiments.metrics import bound_row
from tests.conftest import TINY


def test_replay_begins_at_the_first_seed_of_the_run(
    fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [word for change in TINY for word in ("--set", change)]
    settings += ["--set", "run.seed=5", "--rounds", 1]
    out, drawn = tmp_path / "run", []
    assert fedfade("compare", "paper", "--policies", "random", "--out", out, *settings).code == 0
    monkeypatch.setattr(
        "fedfade.experiments.round_figures.save_figure", lambda figure, path: drawn.append(figure)
    )
    for words in ([], ["--seed", 6]):
        answer = fedfade("replay", out, "--policy", "random", "--out", tmp_path / "x.png", *words)
        assert answer.code == 0, answer.err
    titles = [figure.axes[0].get_title("left") + str(figure.get_suptitle()) for figure in drawn]
    assert "seed 5, round 0" in titles[0]
    assert "seed 6, round 0" in titles[1]


@pytest.mark.parametrize("clients", [1, 10, 30, 400])
def test_ranks_are_counted_from_one_and_can_be_read(clients: int) -> None:
    """Whatever their number: in the report, 9.6 inches wide, no two labels touch."""
    figure = share_map({"random": np.linspace(1, 0, clients)})
    cells = figure.axes[0]
    figure.canvas.draw()
    ranks = [int(label.get_text()) for label in cells.get_xticklabels()]
    assert ranks == [place + 1 for place in cells.get_xticks()]
    assert ranks[0] == 1
    assert len(cells.texts) == (clients if clients <= 15 else 0)
    assert figure.get_size_inches()[0] <= 9.6
    boxes = [label.get_window_extent() for label in cells.get_xticklabels()]
    assert all(one.x1 < two.x0 for one, two in pairwise(boxes))


def test_one_seed_has_no_band_and_one_round_a_dot() -> None:
    row = bound_row(0, "random", 0, 1.0)._replace(accuracy=0.5)
    one, two = (accuracy_figure(rows).axes[0] for rows in ([row], [row, row._replace(seed=1)]))
    assert (len(one.collections), len(two.collections)) == (0, 1)
    assert one.lines[0].get_marker() == "o"


def test_nothing_sent_is_not_a_share_of_it() -> None:
    row = bound_row(0, "silent", 0, 0.0)._replace(bits_sent=0.0, bits_wasted=0.0)
    texts = [text.get_text() for text in waste_figure([row]).axes[0].texts]
    assert "nan" not in str(texts)


def test_the_map_of_who_is_served_has_one_unit() -> None:
    """Numbers in the cells, colours and the bar beside them are all per cent."""
    figure = share_map({"random": np.array([0.75, 0.25]), "genie": np.array([1.0, 0.0])})
    cells, bar = figure.axes
    assert [text.get_text() for text in cells.texts] == ["75", "25", "100", "0"]
    assert cells.images[0].get_clim() == (0, 100)
    assert bar.get_ylim() == (0, 100)
    assert bar.get_ylabel() == "% of rounds"
