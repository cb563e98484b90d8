"""Where every measured number of the pages comes from: `make numbers` writes data/results.json.

A line of that file is a block of a page (a table, a paragraph, an item of a list) with its command,
its seeds, the tables in docs/data it follows from, and its values in the order of the page. How
they follow is in docs/sources.py. What no table was kept for is recorded as it stands on the page,
`"table": null`. Agents that come with the package and stand in these tables are named with the
digest of their weights, which is kept until the values change. CONTRIBUTING.md, "Make results",
says what counts as a measured number.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sources import SOURCES, Source, read

from fedfade import __version__
from fedfade.agents import agents_folder, load_checkpoint, shipped_policies

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "docs" / "data" / "results.json"
PAGES = [
    *(ROOT / name for name in ("README.md", "docs/faq.md")),
    *sorted((ROOT / "docs" / "explanation").glob("packing*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
_FIGURE = r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?"
_MORE = rf"(?:(?:,? (?:to|and|or|against) |, ?| ?/ ?|-| ± )[-+]?{_FIGURE})*"  # ... 5 to 12 %
_NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z][-+])"  # not in a word, nor in ring-20-3 or 1e-4
    r"((?:(?<!\d)[-+])?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)))"
    rf"(?!\w|[.,]\d)(?={_MORE}( %| points?\b| x\b)?)"
)
_UNITS = "dBi?m?|m/s|km/h|[GM]Hz|Mbit|degrees"
_NAMES = "[Aa]lpha|trust|entropy|gamma|P?y?[Tt]orch|Python|BenchMARL|TorchRL|Sionna|TR|TS|arXiv:"
_SETTING = re.compile(
    rf"[-+]?\b{_FIGURE}{_MORE}(?= ?(?:{_UNITS})\b)|\b(?:{_NAMES}) ?{_FIGURE}{_MORE}"
)
"""With the unit of a setting behind it, or its name, or that of a program, before it."""
_SETTINGS = {
    *("alpha", "alpha, n_c", "n_c", "m/s", "speed", "seed", "mean SNR", "spread", "wavelengths"),
    *("slots old", "antennas", "neighbours", "clients, sub-bands", "what", "change", "start"),
}
"""Headings of columns that hold settings."""


class Block(NamedTuple):
    """A table, a paragraph or an item of a list, and what it was made with by the page."""

    page: str
    heading: str
    text: str
    command: str | None
    seeds: str | None

    @property
    def start(self) -> str:
        return " ".join(self.text.split())[:70]


class Quote(NamedTuple):
    """A measured number as a page writes it."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text.replace(",", ""))

    def is_of(self, value: float) -> bool:
        """Whether a value, rounded to the digits that are quoted, is this number."""
        digits = len(self.text.partition(".")[2])
        if "," in self.text:  # 1,260 of 1,262.3
            digits = len(self.text.rstrip("0")) - len(self.text)
        return abs(self.value - value) <= 0.5 * 10.0**-digits * (1 + 1e-4)  # ties either way


def blocks(path: Path) -> Iterator[Block]:
    """What a page says. A command is that of the section, else the page's first. The paragraph
    right above a command belongs to it, and what is printed belongs to the section's first. Where a
    page quotes results, it is that of the results."""
    page, results = path.relative_to(ROOT).as_posix(), path.parent.name == "results"
    heading, first, command, seeds, opening = "", None, None, None, None
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    parts = re.split(r"\n(?:[ \t]*\n)+|\n(?=- |\d\. |#)", text)
    for part, behind in pairwise([*parts, ""]):
        if part.startswith("#"):
            heading, command, opening = part.lstrip("# "), first, None
        elif found := part.startswith("    ") and _commands(part):
            command, first = found, (first or found) if results else None
            opening = opening or command
        elif part.strip():
            command = opening if opening and part.startswith("    ") else command
            told = re.findall(r"(?:[^.;:()|\n]|\.\d)*\bseeds?\b[^.;:()|\n]*", part)
            seeds = told[-1].strip() if told else seeds
            linked = () if results else re.findall(r"\]\([^)]*?(results/[\w-]+\.md)", part)
            opens = behind.startswith("    ") and _commands(behind)
            made = f"see {', '.join(linked)}" if linked else opens or command
            yield Block(page, heading, part.strip(), made, seeds)


def _commands(code: str) -> str:
    lines = (line.partition("  #")[0].split() for line in code.replace("\\\n", " ").splitlines())
    return "; ".join(" ".join(words) for words in lines if words[:1] in (["fedfade"], ["python"]))


def _commands_of_tables() -> dict[str, str]:
    """Which command left a table: that of the block of a results page that links to it."""
    found: dict[str, str] = {}
    for path in PAGES:
        for block in blocks(path) if path.parent.name == "results" else ():
            for name in re.findall(r"\]\(\.\./data/([\w-]+)\.csv\)", block.text):
                found.setdefault(name, block.command or "")
    return {name: command for name, command in found.items() if command}


def quotes(text: str) -> list[Quote]:
    """The measured numbers of a block, in order."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text).replace("*", "").replace("\u2212", "-")
    if not text.startswith("|"):
        return _of_text(text)
    head, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines())
    found = []
    for row in rows:
        for name, cell in zip(head, row, strict=True):
            if name not in _SETTINGS:
                alone = re.fullmatch(r"[-+]?[\d,.]*\d", cell)
                found += [Quote(cell)] if alone else _of_text(cell)
    return found


def _of_text(text: str) -> list[Quote]:
    every = _NUMBER.findall(_SETTING.sub(" ", text))
    return [Quote(number) for number, unit in every if unit or re.search(r"[.+-]", number)]


def flat(values: Any) -> list[float]:
    """All numbers of nested lists and tables, in order."""
    if not isinstance(values, Iterable):
        return [float(values)]
    return [number for value in values for number in flat(value)]


def make() -> tuple[list[dict[str, Any]], list[str]]:
    """The ledger, and where pages and tables disagree."""
    known: dict[Any, list[dict[str, Any]]] = {}  # blocks that begin alike, in their order
    commands = _commands_of_tables()
    for line in stored():
        known.setdefault((line["page"], line["heading"], line["block"]), []).append(line)
    ledger, faults = [], []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        waiting = list(SOURCES[page]()) if page in SOURCES else []
        for block in blocks(path):
            source = next((one for one in waiting if block.start.startswith(one[0])), None)
            if source is not None:
                waiting.remove(source)
            if quoted := quotes(block.text):
                line, wrong = _line(block, quoted, source, commands)
                alike = known.get((page, block.heading, block.start))
                before = alike.pop(0) if alike else {}
                made: dict[str, Any] = {"version": __version__}
                if shipped := _shipped(line["table"]):
                    made["agents"] = shipped
                if before.get("values") == line["values"]:
                    made |= {key: before[key] for key in made.keys() & before.keys()}
                ledger.append(line | made)
                faults += wrong
                if made.get("agents", {}) != shipped:
                    faults.append(f"{page}, {block.start!r}: other agents come with the package")
        faults += [f"{page} has no block that starts with {one[0]!r}" for one in waiting]
    return ledger, faults


def _line(
    block: Block, quoted: list[Quote], source: Source | None, commands: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    worked = [math.nan] * len(quoted) if source is None else flat(source[2:])
    known = [not math.isnan(value) for value in worked]
    faults = [
        f"{block.page}, {block.start!r}: says {quote.text}, its tables {value:.6g}"
        for quote, value, is_known in zip(quoted, worked, known, strict=False)
        if is_known and not quote.is_of(value)
    ]
    if len(quoted) != len(worked):
        faults = [f"{block.page}, {block.start!r}: {len(quoted)} numbers, of tables {len(worked)}"]
    pairs = zip(quoted, worked, known, strict=False)
    values = [
        float(f"{value if is_known else quote.value:.6g}") for quote, value, is_known in pairs
    ]
    line = {"page": block.page, "heading": block.heading, "block": block.start}
    tables = None if source is None else source[1]
    left_by = dict.fromkeys(commands[name] for name in tables or () if name in commands)
    line |= {"command": block.command or "; ".join(left_by) or None}
    line |= {"seeds": _seeds(tables) or block.seeds, "table": tables}
    return line | {"by_hand": known.count(False), "values": values}, faults


def _seeds(tables: list[str] | None) -> str | None:
    """Evaluation seeds, where a table has a line for each."""
    found = [read(name)["seed"] for name in tables or () if "seed" in read(name)]
    return f"{found[0].min():.0f} to {found[0].max():.0f}" if found else None


def _shipped(tables: list[str] | None) -> dict[str, str]:
    """Agents that come with the package and have lines in these tables, with their digests."""
    found = {(table, name) for table in tables or () for name in read(table).get("policy", ())}
    # In all other tables `qmix` is trained anew.
    named = {name for table, name in found if name != "qmix" or table == "ladder-agents"}
    ours = sorted(named & {*shipped_policies()})
    return {
        name: load_checkpoint(agents_folder(Path(name))).files["agents"]["sha256"] for name in ours
    }


def stored() -> list[dict[str, Any]]:
    return json.loads(LEDGER.read_text()) if LEDGER.exists() else []


def counted(ledger: list[dict[str, Any]]) -> str:
    every, by_hand = (
        sum(len(line["values"]) for line in ledger),
        sum(line["by_hand"] for line in ledger),
    )
    share = f"{every - by_hand} from tables, {by_hand} by hand"
    return f"{every} numbers in {len(ledger)} blocks: {share}"


if __name__ == "__main__":
    made, wrong = make()
    lines = ",\n".join(json.dumps(line, ensure_ascii=False) for line in made)
    LEDGER.write_text(f"[\n{lines}\n]\n")
    sys.stdout.write("\n".join([*wrong, counted(made), ""]))
    sys.exit(bool(wrong))
