"""The pictures of the results pages can be drawn again from the tables that are kept."""

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


def test_a_turn_is_drawn_where_a_client_sends(pictures: ModuleType) -> None:
    """Six clients deliver under the plan, two of them in two turns each."""
    schedule, plan = pictures.turns("ring", 1000, "block-fading-schedule", "qmix-plus").axes
    assert [len(axes.patches) for axes in (schedule, plan)] == [4, 8]
    assert sorted(text.get_text() for text in plan.texts) == list("01123445")
