"""The tutorials run from the first cell to the last, and show what is kept of them."""

import re
from pathlib import Path

import pytest

from tests.tutorials.notebooks import TUTORIALS, cleaned, read, run, shape


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_shows_what_it_did(path: Path, tmp_path: Path, ray_home: Path) -> None:
    """Numbers may differ in their last bits; texts, tables and pictures are there. If they have
    changed for a reason, `make tutorials` keeps the new ones."""
    if "flwr" in path.read_text():
        pytest.importorskip("flwr")
    assert shape(cleaned(run(read(path), tmp_path))) == shape(read(path))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_what_is_kept_is_clean_and_whole(path: Path) -> None:
    kept, text = read(path), path.read_text()
    assert cleaned(read(path)) == kept
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert "you will be able to" in kept.cells[0].source
    assert "## Exercises" in kept.cells[-1].source
    assert text.count('"image/png"') >= 3
    assert len(text) < 500_000


def test_there_are_four() -> None:
    assert [path.stem[:2] for path in TUTORIALS] == ["1-", "2-", "3-", "4-"]
