"""Where every measured number of the pages comes from: `make numbers` writes docs/data/results.json.

A line of the file is a block of a page (a table, a paragraph, an item of a list) with its command,
its seeds, the tables of docs/data it is worked out from, and its values in the order of the page.
docs/sources.py works values out of tables. What no table was kept for is recorded as it stands on
the page, `"table": null`. CONTRIBUTING.md, "Make results", says what counts as a measured number.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfade import __version__

sys.path.insert(0, str(Path(__file__).parent))
from sources import SOURCES  # noqa: E402

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "docs" / "data" / "results.json"
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "faq.md",
    *sorted((ROOT / "docs" / "explanation").glob("packing*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]

_FIGURE = r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?"
_MORE = rf"(?:(?:,? (?:to|and|or|against) |, ?| ?/ ?|-| ± )[-+−]?{_FIGURE})*"
_NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z][-+])"  # not in a word, a version, 1e-4
    rf"((?:(?<!\d)[-+−])?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)?(?:(?<!\d\.\d)\.\d+|(?<=\d)))"
    rf"(?![\w]|[.,]\d)(?={_MORE}( %| points?\b| x\b)?)"
)
_SETTING = re.compile(
    # with the unit of a setting, or behind its name
    rf"[-+−]?\b{_FIGURE}{_MORE}(?=\*{{0,2}} ?(?:dBi?m?|m/s|km/h|[GM]Hz|degrees)\b)"
    rf"|(?:\balpha|α =|PyTorch|torch|TR|TS|BenchMARL|TorchRL|Sionna|trust|entropy|gamma) {_FIGURE}{_MORE}"
)
_SETTINGS = {
    *("alpha", "alpha, n_c", "n_c", "m/s", "seed", "mean SNR", "spread", "speed", "wavelengths"),
    *("slots old", "antennas", "neighbours", "clients, sub-bands", "what", "change", "start"),
}
"""Headings of columns that hold settings."""


class Block(NamedTuple):
    """A table, a paragraph or an item of a list, with what stands above it."""

    page: str
    heading: str
    text: str
    command: str | None
    seeds: str | None

    @property
    def start(self) -> str:
        return " ".join(self.text.split())[:70]


class Quote(NamedTuple):
    """A measured number as the page writes it."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text.replace(",", "").replace("−", "-"))

    def is_of(self, value: float) -> bool:
        """Whether a value, rounded to the digits of the quote, is what it says."""
        digits = len(self.text.partition(".")[2])
        if "," in self.text:  # 1,260 of 1,262.3
            digits = len(self.text.rstrip("0")) - len(self.text)
        return abs(self.value - value) <= 0.5 * 10.0**-digits * (1 + 1e-4)


def blocks(path: Path, text: str | None = None) -> Iterator[Block]:
    """What a page says, without its code."""
    heading, first, command, seeds = "", None, None, None
    page = path.relative_to(ROOT).as_posix()
    fenced = re.sub(r"```.*?```", "", path.read_text() if text is None else text, flags=re.S)
    for part in re.split(r"\n(?:[ \t]*\n)+|\n(?=- |\d\. |#)", fenced):
        if part.startswith("#"):
            heading, command = part.lstrip("# "), first
        elif part.startswith("    "):
            command = _commands(part) or command
            first = first or command
        elif part.strip():
            found = re.findall(r"[^.;:()|\n]*\bseeds?\b[^.;:()|\n]*", part)
            seeds = found[-1].strip() if found else seeds
            yield Block(page, heading, part.strip(), command, seeds)


def _commands(code: str) -> str:
    lines = [" ".join(line.split("  #")[0].split()) for line in code.replace("\\\n", " ").splitlines()]
    return "; ".join(line for line in lines if line.startswith(("fedfade ", "python ")))


def quotes(text: str) -> list[Quote]:
    """The measured numbers of a block, in order."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|~", " ", text).replace("*", "")
    if not text.startswith("|"):
        return _of_text(text)
    head, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines())
    found = []
    for row in rows:
        for name, cell in zip(head, row, strict=True):
            if name not in _SETTINGS:
                alone = re.fullmatch(r"[-+−]?[\d,.]*\d", cell)
                found += [Quote(cell)] if alone else _of_text(cell)
    return found


def _of_text(text: str) -> list[Quote]:
    """Numbers with a decimal point, a sign, or behind which `%`, `points` or `x` stands."""
    told = _SETTING.sub(" ", text)
    every = [(found[1], found[2]) for found in _NUMBER.finditer(told) if found[1].strip("+-−")]
    return [Quote(number) for number, unit in every if unit or re.search(r"[.+−-]", number)]


def make() -> tuple[list[dict[str, Any]], list[str]]:
    """The ledger, and what pages say that their tables do not."""
    known = {line["page"] + line["block"]: line for line in read()}
    ledger, faults = [], []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        wanted = list(SOURCES[page]()) if page in SOURCES else []
        for block in blocks(path):
            if not (quoted := quotes(block.text)):
                continue
            line = {"page": page, "heading": block.heading, "block": block.start}
            line |= {"command": block.command, "seeds": block.seeds, "table": None}
            values = [one.value for one in quoted]
            source = next((one for one in wanted if block.start.startswith(one[0])), None)
            if source is not None:
                wanted.remove(source)
                line["table"], worked = source[1], flat(source[2:])
                faults += compare(block, quoted, worked)
                values = [v if np.isnan(w) else w for v, w in zip(values, worked, strict=False)]
                if by_hand := sum(value != value for value in worked):
                    line["by_hand"] = by_hand
            line["values"] = [float(f"{value:.6g}") for value in values]
            before = known.get(page + block.start, {})
            same = before.get("values") == line["values"]
            line["version"] = before["version"] if same else __version__
            ledger.append(line)
        faults += [f"{page} has no block that starts with {one[0]!r}" for one in wanted]
    return ledger, faults


def flat(values: Any) -> list[float]:
    """All numbers of nested lists and arrays in order; None, a value no table has, is NaN."""
    if values is None or isinstance(values, int | float):
        return [np.nan if values is None else float(values)]
    return [number for value in values for number in flat(value)]


def compare(block: Block, quoted: list[Quote], worked: list[float]) -> list[str]:
    place = f"{block.page}, {block.start!r}"
    if len(quoted) != len(worked):
        return [f"{place} has {len(quoted)} numbers, its tables give {len(worked)}"]
    return [
        f"{place} says {quote.text}, its tables {value:.6g}"
        for quote, value in zip(quoted, worked, strict=True)
        if not np.isnan(value) and not quote.is_of(value)
    ]


def read() -> list[dict[str, Any]]:
    return json.loads(LEDGER.read_text()) if LEDGER.exists() else []


def counted(ledger: list[dict[str, Any]]) -> str:
    every = sum(len(line["values"]) for line in ledger)
    hand = sum(line.get("by_hand", 0) if line["table"] else len(line["values"]) for line in ledger)
    return f"{every} numbers in {len(ledger)} blocks: {every - hand} from tables, {hand} by hand"


if __name__ == "__main__":
    made, wrong = make()
    lines = ",\n".join(json.dumps(line, ensure_ascii=False) for line in made)
    LEDGER.write_text(f"[\n{lines}\n]\n")
    print(*wrong, counted(made), sep="\n")
    sys.exit(1 if wrong else 0)
