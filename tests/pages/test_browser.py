"""The report and the player in a real browser: what a user does, and what is seen then."""

from __future__ import annotations

import csv
import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedfade.config import load_config
from fedfade.experiments import read_rows, series
from fedfade.experiments.metrics import bound_row
from fedfade.experiments.replay import replayed
from fedfade.experiments.report import write_report
from fedfade.experiments.round_figures import save_round
from tests.pages.test_pages import made_up_round

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def watched(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `fedfade replay` with two policies."""
    page = tmp_path_factory.mktemp("replay") / "round.html"
    save_round(replayed(run, ["block-fading-schedule", "random"], 1, 2), page)
    return page


def pixels(element: Any) -> np.ndarray:
    """What is seen of an element: [row, column, channel]."""
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("RGB")).astype(int)


def count_near(picture: np.ndarray, colour: str, within: int = 12) -> int:
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((np.abs(picture - wanted).max(-1) <= within).sum())


def cells(page: Any, column: int) -> list[float]:
    texts = page.locator(f"table.sorts tbody tr td:nth-child({column})").all_inner_texts()
    return [math.nan if text == "-" else float(text) for text in texts]


def column_of(page: Any, name: str) -> int:
    heads = page.locator("table.sorts thead th").all_inner_texts()
    return next(at for at, head in enumerate(heads, 1) if head.startswith(name))


def test_the_main_message_comes_first(run: Path, opened: Open) -> None:
    """Above the fold: who leads, by what, and cards for what matters."""
    page = opened(run / "report.html")
    for place in (".lead", ".card >> nth=0", ".card >> nth=3"):
        assert page.locator(place).bounding_box()["y"] < 600
    first = page.locator("table.sorts tbody tr").first
    leader = first.locator("th").inner_text().split()[0]
    assert page.locator(".lead").inner_text().startswith(leader)
    titles = page.locator(".card .what").all_inner_texts()
    assert titles[:4] == ["Final accuracy", "Uploads a round", "Bits wasted", "Fairness"]
    assert titles[4:] == ["Time a round", "Energy a round"]
    first.locator("th span").first.hover()
    assert len(page.locator(".hint-box").inner_text()) > 20  # a phrase on the policy


def test_lines_are_switched_off_and_on(run: Path, opened: Open) -> None:
    page = opened(run / "report.html")
    plot, line = page.locator(".curves .plot"), page.locator('.curves [data-line="random"]')
    key = page.locator(".curves .key button", has_text="random")
    shade = line.locator("polyline").first.get_attribute("stroke")
    assert count_near(pixels(plot), shade) > 50
    key.click()
    page.mouse.move(5, 5)
    assert line.count() == 0
    assert key.get_attribute("aria-pressed") == "false"
    assert count_near(pixels(plot), shade) == 0
    key.press("Enter")
    assert line.count() == 1


def test_values_under_pointer_and_keys_are_those_of_the_run(run: Path, opened: Open) -> None:
    page = opened(run / "report.html")
    plot, tip = page.locator(".curves .plot"), page.locator(".curves .tip")
    rows = read_rows(run / "metrics.csv")
    plot.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    median = 100 * np.median(series(rows, "random", "accuracy")[:, 2])
    assert tip.locator("li", has_text="random").locator("b").inner_text() == f"{median:.1f}"
    assert f"{median:.1f}" in page.locator(".curves [aria-live]").inner_text()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 100)
    assert tip.locator("strong").inner_text() == "federated round 0"


def test_zoom_seeds_and_other_measures(run: Path, opened: Open) -> None:
    page = opened(run / "report.html")
    labels = page.locator(".curves .plot svg text")
    line = page.locator('.curves [data-line="random"] polyline')
    plot = page.locator(".curves .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 90, steps=4)
    page.mouse.up()
    assert "5" not in labels.all_text_contents()  # the last round is out of sight
    page.locator(".curves .whole").click()
    assert "5" in labels.all_text_contents()
    assert line.count() == 1
    page.locator(".curves select").nth(2).select_option("each")
    assert line.count() == 2  # one a seed
    page.locator(".curves select").first.select_option("delivered")
    assert "uploads a round" in labels.all_text_contents()
    page.locator(".curves select").nth(1).select_option("seconds")
    assert "seconds since the start" in labels.all_text_contents()


def test_the_table_sorts(run: Path, opened: Open) -> None:
    page = opened(run / "report.html")
    at = column_of(page, "uploads")
    head = page.locator("table.sorts thead th").nth(at - 1)
    head.locator("button").click()
    found = cells(page, at)
    assert found == sorted(found, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").press("Enter")
    assert cells(page, at) == sorted(found)
    head = page.locator("table.sorts thead th").nth(column_of(page, "Mbit/s") - 1)
    head.locator("button").click()
    assert math.isnan(cells(page, column_of(page, "Mbit/s"))[-1])  # what has none is last


def test_downloads_hold_the_data(run: Path, opened: Open, tmp_path: Path) -> None:
    page, saved = opened(run / "report.html", accept_downloads=True), {}
    for kind in ("CSV", "SVG", "PNG"):
        with page.expect_download() as waiting:
            page.locator(".curves .controls button", has_text=kind).click()
        waiting.value.save_as(saved.setdefault(kind, tmp_path / kind))
    lines = list(csv.DictReader(io.StringIO(saved["CSV"].read_text())))
    rows = read_rows(run / "metrics.csv")
    wanted = 100 * series(rows, "max-sum-rate", "accuracy")[1]
    found = [float(r["accuracy"]) for r in lines if (r["line"], r["seed"]) == ("max-sum-rate", "1")]
    assert found == pytest.approx(wanted.tolist(), rel=1e-3)
    assert ET.fromstring(saved["SVG"].read_text()).tag.endswith("svg")
    picture = Image.open(saved["PNG"])
    assert picture.width > 1000


def test_who_is_served_as_matrix_and_map(run: Path, opened: Open) -> None:
    page, rows = opened(run / "report.html"), read_rows(run / "metrics.csv")
    page.locator(".matrix select").select_option("1")  # the second seed, by client
    own = [r for r in rows if (r.policy, r.seed) == ("max-sum-rate", 1)]
    share = [
        100 * sum(str(n) in r.delivered_clients.split() for r in own) / len(own) for n in range(4)
    ]
    line = page.locator(".heat tbody tr", has_text="max-sum-rate")
    assert [float(text) for text in line.locator("td").all_inner_texts()] == np.round(
        share
    ).tolist()
    page.locator(".map select").first.select_option("1")
    maps = page.locator(".map .sides > div")
    maps.nth(0).locator("select").select_option(label="max-sum-rate")
    filled = maps.nth(0).locator("svg > circle:not([fill=none])").count()
    assert filled == sum(r.delivered for r in own)


def test_the_player_plays_pauses_steps_and_scrubs(watched: Path, run: Path, opened: Open) -> None:
    page = opened(watched)
    clock, slider = page.locator(".clock"), page.locator(".player input[type=range]")
    play, lanes = page.locator(".play"), page.locator(".lanes canvas").first

    def slot() -> int:
        return int(clock.inner_text().split()[1])

    rows = read_rows(run / "metrics.csv")
    wanted = [
        next(r.delivered for r in rows if (r.policy, r.seed, r.round) == (name, 1, 2))
        for name in ("block-fading-schedule", "random")
    ]
    assert slot() == 20
    ends = pixels(lanes)
    assert page.locator(".count").all_inner_texts() == [f"{n:.0f} of 4 delivered" for n in wanted]
    assert page.locator(".cell").first.locator(".lit").count() == wanted[0]
    slider.fill("0")
    veiled = pixels(lanes)
    assert page.locator(".lit").count() == 0
    assert veiled.min(-1).mean() > ends.min(-1).mean() + 20  # bars come out of the veil
    page.locator(".player select").first.select_option("0.25")
    play.click()
    for _ in range(500):
        if slot() >= 3:
            break
        page.wait_for_timeout(20)
    assert "Pause" in play.inner_text()
    play.click()
    held = slot()
    page.wait_for_timeout(150)
    assert slot() == held >= 3
    slider.fill("7")
    page.locator(".on").click()
    assert slot() == 8
    page.locator(".back").click()
    page.locator(".back").click()
    assert slot() == 6
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slot() == 7
    assert "slot 7 of 20" in slider.get_attribute("aria-valuetext")
    page.locator(".player select").first.select_option("4")
    slider.press(" ")
    page.wait_for_selector('.player[data-slot="20"]')
    assert page.locator(".count").first.inner_text() == f"{wanted[0]:.0f} of 4 delivered"
    lanes.hover()
    assert "sub-band" in page.locator(".readout").first.inner_text()


def test_dark_mode(run: Path, opened: Open) -> None:
    page = opened(run / "report.html")
    body, button = page.locator("body"), page.locator("#theme")

    def bright() -> float:
        return float(np.median(pixels(page.locator(".lead"))))

    assert bright() > 200
    line = page.locator('.curves [data-line="perfect"] polyline').first
    before = line.get_attribute("stroke")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert bright() < 60
    assert line.get_attribute("stroke") != before  # drawn again, to be seen on dark ground
    assert body.evaluate("document.documentElement.dataset.theme") == "dark"
    assert (
        opened(run / "report.html", color_scheme="dark")
        .locator("#theme")
        .get_attribute("aria-pressed")
        == "true"
    )  # whoever prefers it need not ask


@pytest.mark.parametrize("width", [390, 800, 1400, 3840])
def test_nothing_overflows(width: int, run: Path, watched: Path, opened: Open) -> None:
    for path in (run / "report.html", watched):
        page = opened(path, width)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [panel.bounding_box() for panel in page.locator(".panel:visible").all()]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        letters = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
        assert letters >= (22 if width == 3840 else 12)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_finding(
    scheme: str, run: Path, watched: Path, opened: Open
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    for path in (run / "report.html", watched):
        page = opened(path, color_scheme=scheme)
        found = axe.run(page).response["violations"]
        bad = [
            (one["id"], node["html"][:120])
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
        assert bad == []


def test_without_javascript_the_pictures_are_shown(run: Path, watched: Path, opened: Open) -> None:
    page = opened(run / "report.html", java_script_enabled=False)
    pictures = page.locator("noscript img, img")
    assert pictures.count() == 6
    assert all(one.bounding_box()["width"] > 300 for one in pictures.all())
    assert page.locator("table.sorts tbody tr").count() == 5
    assert page.locator(".live:visible").count() == 0
    assert opened(watched, java_script_enabled=False).locator("img").bounding_box()["width"] > 300


def test_nothing_but_our_script_runs(run: Path, browser: Any, tmp_path: Path) -> None:
    """The content policy: no other script, no request, not even from a part that slipped in."""
    page = browser.new_page()
    page.goto((run / "report.html").resolve().as_uri())
    refused = page.evaluate(
        """async () => {
          const found = new Set(), add = (event) => found.add(event.effectiveDirective);
          document.addEventListener("securitypolicyviolation", add);
          const script = document.createElement("script");
          script.textContent = "window.hacked = true";
          document.body.append(script);
          const image = "<img src='http://localhost:9/x' onerror='window.hacked = true'>";
          document.body.insertAdjacentHTML("beforeend", image);
          await fetch("http://localhost:9/").catch(() => null);
          await new Promise((done) => setTimeout(done, 100));
          return [window.hacked === undefined, found.size];
        }"""
    )
    page.close()
    assert refused == [True, 4]  # script, image, its handler, fetch


def test_names_of_strangers_are_text(opened: Open, tmp_path: Path) -> None:
    """In the table, in hints, in drawings and in what scripts are given."""
    evil = [
        "<img src=x onerror=alert(1)>",
        "</script><script>alert(1)</script>",
        "=1+1",
        "\x1b[31m",
    ]
    rows = [
        bound_row(seed, name, number, 2.0)._replace(accuracy=0.5, bits_sent=1.0, bits_wasted=0.0)
        for seed in (0, 1)
        for name in evil
        for number in (0, 1)
    ]
    (tmp_path / "config.yaml").write_text(f"# {evil[1]}\n")
    config = load_config("small-cell", ["run.seeds=2", "run.rounds=2"])
    about = dict.fromkeys(evil, evil[0])
    page = opened(write_report(tmp_path, config, {"about": about, "scopes": about}, rows))
    page.on("dialog", lambda dialog: pytest.fail("a script ran"))
    names = page.locator("table.sorts tbody th span[data-hint]:first-child").all_inner_texts()
    assert sorted(names) == sorted([*evil[:3], "\\x1b[31m"])
    assert page.locator("main img").count() == 0
    assert page.locator("script").count() == 2  # data, and ours


def test_thirty_clients_have_names_not_colours_alone(opened: Open, tmp_path: Path) -> None:
    page_path = tmp_path / "many.html"
    save_round(made_up_round(clients=30, plays=1), page_path)
    page = opened(page_path)
    assert page.locator(".progress .who").all_inner_texts() == [str(n) for n in range(30)]
    assert page.locator(".spot text").all_text_contents() == [str(n) for n in range(30)]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
