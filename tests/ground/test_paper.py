"""Pages and source agree: functions that pages name exist, equations are cited in one format."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from fedfade.config import load_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text()
SOURCE = ROOT / "src" / "fedfade"
FILES = sorted(SOURCE.rglob("*.py"))

PLACE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
"""`file: function`, as pages name code."""

NAMED = {
    place
    for page in (ROOT / "docs").rglob("*.md")  # docs/architecture.md has the walks
    for place in PLACE.findall(page.read_text())
}

CITED = re.compile(r"paper: eq\. (\d+)(?: (to|and) (\d+))?(?=[);:,.])")
"""The one format: (paper: eq. 12), (paper: eq. 4 to 6), (paper: eq. 7 and 8)."""

OTHER = re.compile(r"\b[Ee]qs?\.? ?\(?\d+|\b[Ee]quations? \(?\d+|\([Pp]aper,")
"""Ways to cite an equation that the source does not use."""


def equations() -> dict[int, str]:
    """The rows of the table of equations."""
    rows = re.findall(r"^\| (\d+) \| (.*)$", PAGE.split("## Equations")[1].split("\n## ")[0], re.M)
    return {int(number): row for number, row in rows}


@cache
def names(file: Path) -> frozenset[str]:
    """Functions and classes of a file, methods with their class."""
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    top = [node for node in tree.body if isinstance(node, kinds)]
    inner = [
        f"{node.name}.{member.name}"
        for node in top
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, kinds)
    ]
    return frozenset([*(node.name for node in top), *inner])


def citations(text: str) -> set[int]:
    """Numbers of the equations a text cites."""
    cited: set[int] = set()
    for first, joined, last in CITED.findall(" ".join(text.split())):
        end = int(last) if last else int(first)
        cited |= set(range(int(first), end + 1)) if joined == "to" else {int(first), end}
    return cited


def test_every_equation_of_the_paper_has_a_row() -> None:
    assert sorted(equations()) == list(range(1, 36))


@pytest.mark.parametrize(("file", "name"), sorted(NAMED), ids=str)
def test_a_function_a_page_names_exists(file: str, name: str) -> None:
    assert name in names(SOURCE / file)


@pytest.mark.parametrize("number", range(1, 36))
def test_an_equation_is_cited_where_the_page_says(number: int) -> None:
    """By the file itself, in the one format; an equation without a file is only in a proof."""
    files = {file for file, _ in PLACE.findall(equations()[number])}
    assert files or "proof only" in equations()[number]
    cited = {file for file in files if number in citations((SOURCE / file).read_text())}
    assert cited == files


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_equations_are_cited_in_one_format(file: Path) -> None:
    text = " ".join(file.read_text().replace("#", " ").split())
    rest = re.sub(r"\b[Ee]qs?\. \d+\.\d+-\d+\w*", "", CITED.sub("", text))  # 3GPP's, as 7.5-22
    assert OTHER.findall(rest) == []


def test_citations_name_equations_of_the_paper() -> None:
    assert set().union(*(citations(file.read_text()) for file in FILES)) <= set(range(1, 36))


def test_fields_the_page_names_exist_with_the_values_it_gives() -> None:
    """Rows of the parameter tables: a single field must hold the single number beside it."""
    tree = load_config("paper").model_dump()
    tables = PAGE.split("## Table I,")[1].split("## Figures")[0]
    checked = 0
    for row in re.findall(r"^\| (.*) \|$", tables, re.M):
        cells = row.split(" | ")
        for field in re.findall(r"`((?:radio|cell|learning|allocation|qmix|run)\.[\w.]+)`", row):
            branch, _, leaf = field.partition(".")
            assert leaf in tree[branch], field
        fields = re.findall(r"`([\w.]+)`", cells[2]) if len(cells) == 4 else []
        number = re.fullmatch(r"([\d.,e-]+)(?: (bits|MHz|ms|m))?", cells[1])
        if len(fields) == 1 and number and fields[0] != "qmix.target_every":
            branch, leaf = fields[0].split(".")
            scale = {"MHz": 1e6, "ms": 1e-3}.get(number[2], 1.0)
            value = float(number[1].replace(",", "")) * scale
            assert tree[branch][leaf] == pytest.approx(value), row
            checked += 1
    assert checked >= 18
