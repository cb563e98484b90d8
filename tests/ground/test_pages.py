"""What the pages tell a reader to type runs: Python blocks, commands, files they name."""

import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fedfade import __version__
from fedfade.app import app
from fedfade.config import Config, load_config, parse_yaml
from fedfade.experiments import Row
from fedfade.studies.paper.plan import load_plan
from fedfade.uplink import parallel_env

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")),
]
SMALLER = {  # the same calls without a download, and fewer of them
    'config = load_config("paper")\nfor source': (
        'config = load_config("paper", ["learning.data=digits"])\nfor source'
    ),
    "range(31)": "range(2)",
}


def place(page: Path) -> str:
    """A page's path in the project, as a test's name."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def text_of(page: Path) -> str:
    """Of a notebook, what is not code: tests/tutorials runs it."""
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def blocks() -> Iterator[object]:
    """All but Flower's, which tests/flower runs as an app."""
    for page in PAGES:
        for number, text in enumerate(re.findall(r"```python\n(.*?)```", text_of(page), re.S)):
            if page.stem != "flower":
                yield pytest.param(text, id=f"{place(page)}-{number}")


def commands() -> Iterator[object]:
    """Indented lines that start with `fedfade`, continued lines joined."""
    for page in PAGES:
        text = text_of(page).replace("\\\n", " ")
        for line in re.findall(r"^ {4}(fedfade .*)$", text, re.M):
            for part in re.split(r"&&", line.split(" #")[0]):
                yield pytest.param(part.strip(), id=f"{place(page)}: {part.strip()[:60]}")


def quick_commands() -> Iterator[object]:
    """Those that take seconds by the comment beside them, page by page."""
    for page in PAGES:
        text = text_of(page).replace("\\\n", " ")
        if lines := re.findall(r"^ {4}(fedfade .*) # seconds$", text, re.M):
            yield pytest.param(lines, id=place(page))


@pytest.mark.parametrize("text", list(blocks()))
def test_a_python_block_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a block may write a file
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    exec(compile(text, "page", "exec"), {"__name__": "page"})


def test_the_gymnasium_of_the_page_plays_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """What EPyMARL is given: a tuple of observations, a reward for each, the end with the last."""
    page = (ROOT / "docs" / "how-to" / "pettingzoo.md").read_text()
    (text,) = re.findall(r"```python\n(import gymnasium\n.*?)```", page, re.S)
    made: dict[str, Any] = {}
    monkeypatch.setattr("gymnasium.register", lambda *given, **named: None)
    exec(compile(text, "page", "exec"), made)
    ours, theirs = made["Uplink"](preset="small-cell"), parallel_env("small-cell")
    seen, _ = ours.reset(seed=3)
    same, _ = theirs.reset(seed=3)
    for step in range(50):
        assert ours.observation_space.contains(seen)
        assert all((a == b).all() for a, b in zip(seen, same.values(), strict=True))
        choices = [(step + client) % 8 for client in range(4)]
        seen, rewards, done, stopped, _ = ours.step(choices)
        same, wanted, *_ = theirs.step(dict(zip(theirs.possible_agents, choices, strict=True)))
        assert rewards == list(wanted.values())
        assert (done, stopped) == (step == 49, False)


def test_a_rank_tells_clients_of_a_shared_network_apart() -> None:
    """As the page advises; without it, two clients of the same gain and fading look alike."""
    observe = ["order", "fading", "remaining", "slots_left"]
    seen, _ = parallel_env("small-cell", allocation={"observe": observe}).reset(seed=0)
    ranks = [tuple(own[:4]) for own in seen.values()]
    assert sorted(ranks) == sorted(tuple(float(n == m) for n in range(4)) for m in range(4))


@pytest.mark.parametrize("line", list(commands()))
def test_a_command_is_understood(line: str) -> None:
    """Its options exist, and its overrides are fields with allowed values."""
    command: click.Command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    used = [word for word in words if re.fullmatch(r"-{1,2}[a-z][a-z-]*", word)]
    assert set(used) <= known | {"--help"}
    overrides = [after for word, after in pairwise(words) if word == "--set" and after != "..."]
    preset = words[0] if words and not words[0].startswith("-") else "paper"
    if overrides and command.name not in {"reproduce"}:
        load_config(preset, overrides)


@pytest.mark.parametrize("lines", list(quick_commands()))
def test_commands_that_take_seconds_run(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedfade: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in lines:
        answer = fedfade(*shlex.split(line)[1:])
        assert answer.code == 0, f"{line}: {answer.err}"


def test_the_list_of_readings_on_its_page_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "search-readings.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (tmp_path / "mine.yaml").write_text(text)
    names = {reading.name for reading in load_plan(tmp_path / "mine.yaml", Config()).readings}
    assert {*re.findall(r"--only ([a-z][\w+-]*)", page)} < names


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_files_a_page_names_are_there(page: Path) -> None:
    text = text_of(page)
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    named = re.findall(r"`((?:docs|tests|examples|src)/[\w./-]+\.\w+)`", text)
    missing = [name for name in links if not (page.parent / name).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    title, first, *_ = (line for line in text_of(page).splitlines() if line.strip())
    assert title.startswith("# ")
    assert re.match(r"\*?For \w", first), first


def test_files_name_pages_that_are_there() -> None:
    """Comments and messages that send a reader to docs/."""
    named = re.compile(r"\bdocs/[\w./-]+\.md\b")
    files = [ROOT / "Makefile", ROOT / "pyproject.toml"]
    for folder in ("src", "tests", "examples"):
        files += [f for f in (ROOT / folder).rglob("*") if f.suffix in {".py", ".toml", ".yaml"}]
    missing = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in named.findall(file.read_text())
        if not (ROOT / name).exists()
    }
    assert missing == set()


def test_every_page_is_in_the_menu_of_the_site() -> None:
    """mkdocs.yml lists the pages; a strict build would say so too, but is not run here."""
    menu = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    pages = [p.relative_to(docs).with_suffix(".md").as_posix() for p in PAGES if docs in p.parents]
    assert [page for page in pages if f": {page}\n" not in menu] == []


def test_every_column_of_a_run_is_explained() -> None:
    """The page on files gets its table from the code when the site is built."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("griffe")
    spec = spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    rows = "\n".join(hooks.columns()).splitlines()[2:]
    assert [re.findall(r"`(\w+)` \| \S", row)[0] for row in rows] == list(Row._fields)


def test_the_version_is_the_same_everywhere() -> None:
    cited = parse_yaml((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
