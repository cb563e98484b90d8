"""What the site adds to the pages: home from the README, generated reference, links that work.

A hook of MkDocs (mkdocs.yml). The pages stay readable where they are; the site is built from them.
"""

import base64
import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import click
import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedfade.app import app
from fedfade.config import Config, render_config
from fedfade.experiments.metrics import Row, Shown

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages of the site that lie beside docs/, not in it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, name in OUTSIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    for notebook in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        for name, content in as_page(notebook).items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def as_page(notebook: Path) -> dict[str, str | bytes]:
    """A tutorial as Markdown, and its pictures, by file name. The notebook is there to download."""
    name, files, text = notebook.stem, {}, []
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source.rstrip(';')}\n```")
        for part, output in enumerate(cell["outputs"]):
            data = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
            if "image/png" in data:
                picture = f"{name}-{number}-{part}.png"
                files[picture] = base64.b64decode(data["image/png"])
                text.append(f"![what the cell draws]({picture})")
            elif "text/html" in data:  # a table
                text.append(re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.S))
            else:
                shown = data.get("text/plain") or "".join(output["text"])
                text.append(f"```text\n{shown.rstrip()}\n```")
    title, *rest = text[0].split("\n", 1)
    link = f'<a href="{notebook.name}" download>Download this notebook</a>'
    return {f"{name}.md": "\n\n".join([title, link, *rest, *text[1:]]), **files}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    made = {"configuration": fields, "commands": commands, "metrics": columns}
    for mark, lines in made.items():
        marked = f"<!-- generated: {mark} -->"
        if marked in markdown:
            markdown = markdown.replace(marked, "\n".join(lines()))
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lambda link: _link(page, link), markdown)


def _link(page: Page, link: re.Match[str]) -> str:
    """A link of the page, as the site has it; what the site does not have becomes plain text."""
    image, text, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link.group()
    uri = page.file.src_uri
    here = ROOT if uri in OUTSIDE else (ROOT / "docs" / uri).parent
    path, hash_, anchor = target.partition("#")
    found = Path(os.path.normpath(here / path)).relative_to(ROOT).as_posix()
    moved = {name: place for place, name in OUTSIDE.items()}
    if found in moved:
        found = moved[found]
    elif found.startswith("docs/"):
        found = found.removeprefix("docs/")
        found = re.sub(r"\.ipynb$", ".md", found)  # as `as_page` makes it
    else:
        return text
    relative = os.path.relpath(found, os.path.dirname(uri) or ".")
    return f"{image}[{text}]({relative}{hash_}{anchor})"


class Docstrings(griffe.Extension):
    """The source as the page on Python shows it."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """An example becomes a block of code; Markdown would read `>>>` as a quotation."""
        if obj.docstring is not None:
            example = re.compile(r"^(>>> (?:.+\n?)+)", re.M)
            obj.docstring.value = example.sub(r"```pycon\n\1\n```\n", obj.docstring.value)

    def on_module(self, *, mod: griffe.Module, **_: object) -> None:
        """What a package's front door imports is its public face."""
        if mod.is_init_module and mod.exports is None:
            mod.exports = [name for name, member in mod.members.items() if member.is_alias]


def fields() -> Iterator[str]:
    """Every field of the configuration, as `fedfade config` prints it: a table for each branch."""
    path: list[str] = []
    for line in render_config(Config()).splitlines():
        indent, name, value, meaning = _FIELD.fullmatch(line).groups()  # type: ignore[union-attr]
        path = [*path[: len(indent) // 2], name]
        if value is None:
            yield f"\n## `{'.'.join(path)}`\n\n{meaning.capitalize()}.\n"
            yield "| field | default | meaning |\n|---|---|---|"
        else:
            yield f"| `{'.'.join(path)}` | `{_cell(value)}` | {_cell(meaning)} |"


_FIELD = re.compile(r"( *)(\w+):(?: (.+?))?  # (.*)")


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def columns() -> Iterator[str]:
    """Every column of metrics.csv: what it is by the comment in the source, and what tables and
    the report make of it."""
    yield "| column | what | in tables |\n|---|---|---|"
    about = {
        name: (above or behind).replace("    #", "").strip(" #")
        for above, name, behind in _COLUMN.findall(inspect.getsource(Row))
    }
    about |= dict.fromkeys(("seed", "policy", "round"), "which line it is")
    for name, hint in get_type_hints(Row, include_extras=True).items():
        notes = getattr(hint, "__metadata__", ())
        text = about[name] or next((one.label for one in notes if hasattr(one, "label")), "")
        text = text or ("their numbers" if name.endswith("_clients") else "")
        if not text and (of_all := name.removeprefix("client_")) in Row._fields:
            text = f"`{of_all}` of client 0, 1, ..."
        if not text:
            raise ValueError(f"{name} of experiments/metrics.py: Row needs a comment")
        shown = ", ".join(f"`{one.heading}`" for one in notes if isinstance(one, Shown))
        yield f"| `{name}` | {_cell(text)} | {shown} |"


_COLUMN = re.compile(r"^((?:    # .*\n)*)    (\w+): (?:[^#\n]*)(#.*)?$", re.M)


def commands() -> Iterator[str]:
    """Every command with its options, groups before their members."""
    yield from _command(typer.main.get_command(app), "fedfade")


def _command(command: click.Command, name: str) -> Iterator[str]:
    if name != "fedfade":
        context = click.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"\n## `{name}`\n\n{_help(command.help)}\n\n    {name} {usage}\n"
        rows = [_parameter(parameter, context) for parameter in command.params]
        if rows:
            yield "| option | default | meaning |\n|---|---|---|"
            yield from rows
    if isinstance(command, click.Group):
        for member in command.commands.values():
            yield from _command(member, f"{name} {member.name}")


def _parameter(parameter: click.Parameter, context: click.Context) -> str:
    names = parameter.human_readable_name
    if isinstance(parameter, click.Option):
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.get_default(context)
    unset = default is None or default is False or default in ((), []) or callable(default)
    told = getattr(parameter, "show_default", None)  # in words, where it depends
    shown = (told if isinstance(told, str) else "") if unset else f"`{_cell(default)}`"
    about = getattr(parameter, "help", None) or getattr(parameter, "_purpose", "")
    return f"| `{names}` | {shown} | {_cell(about)} |"


def _help(text: str | None) -> str:
    """Paragraphs of a command's help; what is indented there is an example."""
    return (text or "").replace("\b", "").strip()
