"""The page that follows a training, and a sweep on a page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedfade.agents import Report, live
from fedfade.agents.live import LivePage
from fedfade.config import load_config
from fedfade.experiments.report import write_joint_report

Open = Callable[..., Any]
CONFIG = load_config("small-cell", ["qmix.episodes=400"])


def curve(batches: int) -> list[Report]:
    """A training that delivers one client more every five batches."""
    return [
        Report(20 * n, n / 10, n / 5, 1 / n, n / 4, 1 - n / 25, 0.5) for n in range(1, batches + 1)
    ]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a sweep over a number and a name."""
    folder = tmp_path_factory.mktemp("sweep") / "load"
    folder.mkdir()
    lines = ["point,radio.clusters,cell.mobility,seed,status,policy,accuracy,uploads"]
    for seed in (0, 1):
        for clusters in (14, 21, 28):
            for place in ("ring", "fixed"):
                head = f"p,{clusters},{place},{seed},done"
                lines.append(f"{head},random,{0.3 + clusters / 100 + seed / 50},{clusters / 10}")
                lines.append(f"{head},perfect,0.9,4")
    (folder / "sweep.csv").write_text("\n".join(lines) + "\n")
    return write_joint_report([folder], folder / "report.html")


def number(page: Any, what: str) -> str:
    """What a card says."""
    return page.locator(f'.card:has(.what:text-is("{what}")) .number').inner_text()


def test_the_page_follows_while_it_runs_and_then_stays(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser reads it again by itself; numbers now, curves, and the time that is left."""
    monkeypatch.setattr(live, "REFRESH_S", 1)
    page = LivePage(tmp_path, CONFIG, "Training small")
    page.write([curve(5)])
    seen = opened(tmp_path / live.PAGE)
    assert number(seen, "Episodes") == "100 of 400"
    assert seen.locator("polyline").count() == 6
    page._due = 0.0
    page.write([curve(10)])
    seen.get_by_text("200 of 400").wait_for()  # nobody has touched it
    assert number(seen, "Time left").split()[-1] in ("s", "min", "h")
    page.write([curve(20)], ended=True)
    seen.get_by_text("Finished.").wait_for()
    assert seen.locator('meta[http-equiv="refresh"]').count() == 0
    assert number(seen, "Uploads a round") == "4.00 of 4"


def test_a_sweep_is_lines_against_the_field(swept: Path, opened: Open) -> None:
    page = opened(swept)
    assert page.locator("section.part").count() == 2 + 3  # a panel for each value of the other
    first = page.locator("section.part").first
    assert first.locator('[data-line="random"] polyline').count() == 1
    assert "radio.clusters" in first.inner_text()
    named = page.locator("section.part").nth(2)
    assert "fixed" in named.locator(".plot").inner_text()
    first.locator("select").first.select_option(label="uploads")
    first.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    assert "1.40" in first.locator(".tip").inner_text()  # at 14 clusters


@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_all_is_accessible(
    width: int, scheme: str, swept: Path, opened: Open, tmp_path: Path
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    live.write_training_page(tmp_path, CONFIG, [curve(20), curve(18)], "Training small")
    for path in (tmp_path / live.PAGE, swept):
        page = opened(path, width, color_scheme=scheme)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 800:
            continue
        found = axe.run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
