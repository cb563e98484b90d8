"""What the source may not contain: anything that runs what a file says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fedfade

ROOT = Path(fedfade.__file__).parent
REPOSITORY = Path(__file__).parents[2]

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "torch.load",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "numpy.load",
    "np.load",
    "scipy.io.loadmat",
    "loadmat",
    "pandas.read_pickle",
    "eval",
    "exec",
    "compile",
    "os.system",
    "os.popen",
    "onnx.load",
}
# Code a user brings along by name, and says so (docs/explanation/reliability.md); benchmarks.
IMPORTS_BY_NAME = {"seams.py", "bench/command.py"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


# Who reads by other means than storage.py: what the package or the program itself has written.
READ_THEMSELVES = {
    "config/files.py",
    "experiments/workers.py",
    "pages/__init__.py",
    "radio/microcell.py",
    "studies/levers/plan.py",
    "studies/reproduction.py",
    "bench/channel_speed.py",
    "bench/timing.py",
}


def test_files_of_others_are_opened_in_one_place() -> None:
    """`storage.py` refuses pipes, devices and what is too large before it reads."""
    for name, tree in sources():
        for call in map(called, ast.walk(tree)):
            method = call.rpartition(".")[2]
            assert (
                method not in ("read_text", "read_bytes")
                or "." not in call
                or (name in READ_THEMSELVES or call == "storage.read_bytes")
            ), (name, call)
            assert call not in ("open", "zipfile.ZipFile") or name == "storage.py", (name, call)


def test_terminals_are_written_to_in_one_place() -> None:
    """`commands/options.py` spells control characters out and takes no brackets for markup."""
    for name, tree in sources():
        if name.startswith("bench/") or name in ("commands/options.py", "agents/reference.py"):
            continue  # numbers of our own
        for call in map(called, ast.walk(tree)):
            assert call not in ("print", "typer.echo", "click.echo", "Console"), (name, call)


def test_nothing_unpickles_or_executes_what_it_reads() -> None:
    for name, tree in sources():
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            assert not FORBIDDEN_MODULES & {module.split(".")[0] for module in modules}, name
            assert called(node) not in FORBIDDEN_CALLS, (name, called(node))
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell"):
                assert isinstance(node.value, ast.Constant), name
                assert node.value.value is False, name


def test_only_dotted_paths_import_by_name() -> None:
    for name, tree in sources():
        for node in ast.walk(tree):
            by_name = called(node).rpartition(".")[2] in (
                "import_module",
                "__import__",
                "resolve_name",
            )
            by_name |= called(node).endswith(".load") and "entry" in called(node)
            assert not by_name or name in IMPORTS_BY_NAME, name


def test_yaml_is_read_in_one_place() -> None:
    """Where aliases are refused and every fault is caught."""
    loaders = [name for name, tree in sources() if "_PlainLoader" in ast.unparse(tree)]
    assert loaders == ["config/files.py"]
    for name, tree in sources():
        for node in ast.walk(tree):
            assert not re.match(r"yaml\.(safe_)?load", called(node)), name


def test_files_that_matter_are_written_in_one_place() -> None:
    """`open(..., "w")` and the like only where a temporary file takes the final one's place."""
    allowed = {
        "storage.py",  # is that place
    }
    for name, tree in sources():
        if name in allowed:
            continue
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.Call) else ""
            through_storage = text.startswith("storage.") or "temporary" in text
            if re.match(r".*\.write_(text|bytes)\(", text) and not through_storage:
                raise AssertionError(f"{name}: {text[:80]}")
            if not isinstance(node, ast.Call) or called(node).rpartition(".")[2] != "open":
                continue
            modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if any(isinstance(m, str) and set(m) & set("wax") for m in modes):
                assert "temporary" in text, f"{name}: {text[:80]}"


def test_versions_are_locked_for_ci() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 30
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", pin), pin
