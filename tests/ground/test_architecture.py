"""Imports point along the arrow and never back (docs/architecture.md)."""

from __future__ import annotations

import ast
import itertools
import re
import sys
import tomllib
from pathlib import Path

import fedfade

ROOT = Path(fedfade.__file__).parent

# What each room may import of the others; ground-floor modules are open to all.
ALLOWED = {
    "radio": set(),
    "learning": set(),
    "uplink": {"radio", "learning"},
    "allocation": {"radio", "uplink"},
    "agents": {"radio", "learning", "uplink", "allocation"},
    "experiments": {"radio", "learning", "uplink", "allocation", "agents"},
    "flower": {"radio", "learning", "uplink", "allocation", "agents", "experiments"},
    "commands": {"radio", "learning", "uplink", "allocation", "agents", "experiments"},
}
CORE = {*ALLOWED}
# The top floor: nothing below imports it, and a study nothing of the benchmarks.
ALLOWED |= {"studies": CORE, "bench": {*CORE, "studies"}}
ROOMS = set(ALLOWED)

MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}
"""Packages whose module has another name."""


def package(requirement: str) -> str:
    """`PyYAML>=6.0` is about pyyaml."""
    return re.split(r"[^A-Za-z0-9-]", requirement)[0].lower()


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_imports_follow_the_data() -> None:
    for room, allowed in ALLOWED.items():
        for path in (ROOT / room).rglob("*.py"):
            rooms = {
                name.split(".")[1] for name in imported(path) if name.startswith("fedfade.")
            } & ROOMS
            assert rooms <= {room, *allowed}, f"{path.relative_to(ROOT)} imports {rooms}"


def test_what_is_imported_is_listed() -> None:
    """Also what another dependency would bring along: one day it may not."""
    project = Path(__file__).parents[2]
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    needed, extras = about["dependencies"], about["optional-dependencies"].values()
    listed = {package(one) for one in [*needed, *itertools.chain(*extras)]}
    known = {MODULES.get(name, name) for name in listed} | {"fedfade", "pydantic_core"}
    for path in ROOT.rglob("*.py"):
        modules = {name.partition(".")[0] for name in imported(path)}
        assert modules <= known | sys.stdlib_module_names, path.relative_to(ROOT)
    page = (project / "docs" / "dependencies.md").read_text().lower()
    assert [package(one) for one in needed if package(one) not in page] == []


def test_the_ground_floor_stands_alone() -> None:
    ground = {"config", "randomness", "storage", "errors", "seams", "device", "graphs"}
    for name in ground:
        inner = {n.split(".")[1] for n in imported(ROOT / f"{name}.py") if n.startswith("fedfade.")}
        assert inner <= ground


def test_library_code_does_not_print() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            assert not (called and node.func.id == "print"), path
