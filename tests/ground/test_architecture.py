"""Imports point along the arrow, go through front doors, and never back (docs/architecture.md)."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedfade
from tests.conftest import QUICK_IN_THEM, SLOW_FOLDERS, SLOW_TESTS

ROOT = Path(fedfade.__file__).parent

GROUND = {"config", "device", "errors", "graphs", "interrupts", "randomness", "seams", "shown"}
GROUND |= {"pages", "storage", "style", "wording"}
"""Modules open to all, which know nothing of the rooms."""

ALLOWED: dict[str, set[str]] = {
    "radio": set(),
    "learning": set(),
    "uplink": {"radio", "learning"},
    "allocation": {"radio", "uplink"},
    "agents": {"radio", "learning", "uplink", "allocation"},
    "experiments": {"radio", "learning", "uplink", "allocation", "agents"},
    "flower": {"radio", "learning", "uplink", "allocation", "agents", "experiments"},
    "commands": {"radio", "learning", "uplink", "allocation", "agents", "experiments"},
}
"""What each room of the core may import of the others."""
CORE = set(ALLOWED)
# The top floor: nothing below imports it, and a study nothing of the benchmarks.
ALLOWED |= {"studies": CORE, "bench": CORE | {"studies"}}

ANY_DOOR = {"commands", "studies", "bench"}
"""May import a room's modules one by one: a command starts without what it does not need."""

SIDE_DOORS = {
    "fedfade.learning.plots",  # imports Matplotlib, which takes a second
    "fedfade.experiments.figures",
    "fedfade.uplink.benchmarl",  # imports an extra
    "fedfade.uplink.torchrl",  # likewise
    "fedfade.uplink.plan",  # what schedules are made of, for policies alone
}
"""Modules a front door leaves out, because most users of the room do without them."""

MODULES = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
"""Packages whose module has another name."""


@cache
def source(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_import(child)


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """(module, name) of every import; no name for `import module`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written out in full"
            yield from ((node.module or "", alias.name) for alias in node.names)


def imported(path: Path) -> set[str]:
    return {module for module, _ in imports(ast.walk(source(path)))}


def room_of(module: str) -> str:
    """`radio` of `fedfade.radio.link`; nothing for a package of others."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "fedfade" else ""


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_follow_the_data(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        rooms = {room_of(module) for module in imported(path)} & set(ALLOWED)
        assert rooms <= {room, *ALLOWED[room]}, f"{path.relative_to(ROOT)} imports {rooms}"


@pytest.mark.parametrize("name", sorted(GROUND))
def test_the_ground_floor_stands_alone(name: str) -> None:
    for module, path in FILES.items():
        if room_of(module) == name:
            assert {room_of(inner) for inner in imported(path)} <= {*GROUND, ""}, module


@pytest.mark.parametrize("room", sorted({*ALLOWED} - ANY_DOOR))
def test_rooms_are_entered_by_their_front_door(room: str) -> None:
    """`from fedfade.radio import sinr`, not from the module it happens to stand in."""
    found = [
        f"{path.relative_to(ROOT)}: from {module} import {name}"
        for path in (ROOT / room).rglob("*.py")
        for module, name in imports(ast.walk(source(path)))
        if room_of(module) in {*ALLOWED, "config"} - {room}
        if module.count(".") > 1 and module not in SIDE_DOORS
    ]
    assert found == []
    assert set(FILES) >= SIDE_DOORS


def test_private_names_stay_in_their_module() -> None:
    for module, path in FILES.items():
        for other, name in imports(ast.walk(source(path))):
            if other.startswith("fedfade"):
                hidden = [part for part in [*other.split("."), name] if re.match("_(?!_)", part)]
                assert not hidden, f"{module} imports {name} of {other}"


def test_no_import_cycle() -> None:
    """What a module imports is complete by then, in whatever order modules are imported."""
    graph: dict[str, set[str]] = {}
    for module, path in FILES.items():
        needed = set()
        for other, name in imports(at_import(source(path))):
            target = f"{other}.{name}" if f"{other}.{name}" in FILES else other
            folders = itertools.accumulate(target.split("."), "{}.{}".format)
            # Folders run before what is in them; those a module is in are being imported anyway.
            needed |= {one for one in folders if not f"{module}.".startswith(f"{one}.")} | {target}
        graph[module] = needed & set(FILES)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_import_only_for_types() -> None:
    """Whoever needs it hides a cycle, or a start that is too slow."""
    found = [module for module, path in FILES.items() if "TYPE_CHECKING" in path.read_text()]
    assert found == []


def names_of_types(path: Path) -> Iterator[str]:
    """Classes of a module and aliases of types: what is assigned to a name like a class's."""
    for node in source(path).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (name.id for name in node.targets if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_one_name_is_one_thing() -> None:
    places = defaultdict(list)
    for module, path in FILES.items():
        for name in names_of_types(path):
            if re.match("[A-Z]+[a-z]", name):
                places[name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def package(requirement: str) -> str:
    """`PyYAML>=6.0` is about pyyaml."""
    return re.split(r"[^A-Za-z0-9-]", requirement)[0].lower()


def test_what_is_imported_is_listed() -> None:
    """Also what another dependency would bring along: one day it may not."""
    project = Path(__file__).parents[2]
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    needed, extras = about["dependencies"], about["optional-dependencies"].values()
    listed = {package(one) for one in [*needed, *itertools.chain(*extras)]}
    known = {MODULES.get(name, name) for name in listed} | {"fedfade", "pydantic_core"}
    for path in FILES.values():
        modules = {name.partition(".")[0] for name in imported(path)}
        assert modules <= known | sys.stdlib_module_names, path.relative_to(ROOT)
    page = (project / "docs" / "explanation" / "dependencies.md").read_text().lower()
    assert [package(one) for one in needed if package(one) not in page] == []


def test_a_command_does_not_wait_for_what_it_does_not_use() -> None:
    """Each of these takes about a second to import: a compiler, and those of some commands."""
    late = ["torch._dynamo", "sklearn", "scipy", "matplotlib", "pandas", "ray", "flwr"]
    doors = "fedfade.app, fedfade.experiments, fedfade.agents.run"
    code = f"import sys, {doors}\nfrom fedfade.learning import load_data\n"
    code += "from fedfade.config import LearningConfig\nload_data(LearningConfig(data='digits'))\n"
    code += f"assert not set({late}) & set(sys.modules), set({late}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_library_code_does_not_print() -> None:
    for path in FILES.values():
        for node in ast.walk(source(path)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            assert not (called and node.func.id == "print"), path


def test_the_tests_called_slow_are_there() -> None:
    tests = Path(__file__).parents[1]
    assert all((tests / folder).is_dir() for folder in SLOW_FOLDERS)
    known = [path.name + path.read_text() for path in tests.rglob("test_*.py")]
    gone = [
        name
        for name in (*SLOW_TESTS, *QUICK_IN_THEM)
        if not any(re.search(rf"^(def )?{name}", text, re.M) for text in known)
    ]
    assert gone == []


def test_an_installed_package_has_every_file() -> None:
    """What is no module travels only where pyproject.toml says so."""
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["fedfade"]
    packed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    there = {path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".py"}
    assert not {path for path in there - packed if "__pycache__" not in path.parts}
