"""What the pictures of a run say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedfade.experiments.figures import share_map
from tests.conftest import TINY


def test_replay_begins_at_the_first_seed_of_the_run(
    fedfade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [word for change in TINY for word in ("--set", change)]
    settings += ["--set", "run.seed=5", "--rounds", 1]
    out, drawn = tmp_path / "run", []
    assert fedfade("compare", "paper", "--policies", "random", "--out", out, *settings).code == 0
    monkeypatch.setattr(
        "fedfade.commands.compare.save_figure", lambda figure, path: drawn.append(figure)
    )
    for words in ([], ["--seed", 6]):
        answer = fedfade("replay", out, "--policy", "random", "--out", tmp_path / "x.png", *words)
        assert answer.code == 0, answer.err
    titles = [figure.axes[0].get_title("left") + str(figure.get_suptitle()) for figure in drawn]
    assert "seed 5, round 0" in titles[0]
    assert "seed 6, round 0" in titles[1]


def test_the_map_of_who_is_served_has_one_unit() -> None:
    """Numbers in the cells, colours and the bar beside them are all per cent."""
    figure = share_map({"random": np.array([0.75, 0.25]), "genie": np.array([1.0, 0.0])})
    cells, bar = figure.axes
    assert [text.get_text() for text in cells.texts] == ["75", "25", "100", "0"]
    assert cells.images[0].get_clim() == (0, 100)
    assert bar.get_ylim() == (0, 100)
    assert bar.get_ylabel() == "% of rounds"
