"""The pictures of the docs can be drawn again from the tables that are kept."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_drawn_and_shown(pictures: ModuleType) -> None:
    shown = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    for name, draw in pictures.PICTURES.items():
        assert (DOCS / "images" / f"{name}.png").is_file()
        assert f"images/{name}.png)" in shown
        assert draw().axes


def test_every_picture_has_its_origin(pictures: ModuleType) -> None:
    """A table from which it is drawn, or a command that a page names."""
    there = {path.name for path in (DOCS / "images").iterdir() if path.suffix in (".png", ".gif")}
    tables = {f"{name}.png" for name in pictures.PICTURES}
    assert tables.isdisjoint(pictures.COMMANDS)
    assert there == tables | {*pictures.COMMANDS}
    pages = [path.read_text() for path in DOCS.rglob("*.md")]
    for name, command in pictures.COMMANDS.items():
        assert any(f"images/{name})" in page and command in page for page in pages), name


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert {name: size for name, size in sizes.items() if size > 250_000} == {}


def test_a_turn_is_drawn_where_a_client_sends(pictures: ModuleType) -> None:
    """Six clients deliver under the plan, two of them in two turns each."""
    schedule, plan = pictures.turns("ring", 1000, "block-fading-schedule", "qmix-plus").axes
    assert [len(axes.patches) for axes in (schedule, plan)] == [4, 8]
    assert sorted(text.get_text() for text in plan.texts) == list("01123445")
