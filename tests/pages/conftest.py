"""A real browser, and a real comparison to look at with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfade.config import load_config
from fedfade.device import pick_device
from fedfade.experiments import RunFolder, compare_many, stored_rows, write_report
from tests.conftest import TINY

POLICIES = "random, max-individual-rate, max-sum-rate, block-fading-schedule, perfect, genie"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small comparison with its report."""
    folder = tmp_path_factory.mktemp("pages") / "run"
    more = [f"allocation.policies=[{POLICIES}]", "run.rounds=6", "run.evaluate_every=1"]
    config = load_config("paper", [*TINY, *more])
    compare_many([config], [folder], pick_device("cpu"), lambda done, doing: None)
    place = RunFolder(folder, config, pick_device("cpu"))
    write_report(folder, config, place.record, stored_rows(place))
    return folder


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file in a window of its own; a test fails if the page complains or asks for more."""
    contexts, faults = [], []

    def open_page(path: Path, width: int = 1400, **how: Any) -> Any:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, **{"color_scheme": "light"} | how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        own = path.resolve().as_uri()
        page.on("request", lambda asked: faults.extend(_foreign(asked.url, own)))
        page.goto(own)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _foreign(url: str, own: str) -> list[str]:
    """The address, if it is not that of the page or of what is in it."""
    return [] if url.partition("#")[0] == own or url.startswith(("data:", "blob:")) else [url]
