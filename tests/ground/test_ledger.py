"""Numbers of the pages are those of docs/data/results.json, and these follow from the tables."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def ledger() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import ledger

        yield ledger
        for name in ("ledger", "sources"):
            sys.modules.pop(name)


def test_pages_tables_and_ledger_agree(ledger: ModuleType) -> None:
    """Where this fails, `make numbers` says what differs and writes the ledger anew."""
    made, faults = ledger.make()
    assert faults == []
    assert made == ledger.stored()


def test_every_table_of_a_page_is_kept(ledger: ModuleType) -> None:
    named = {name for line in ledger.stored() for name in line["table"] or ()}
    assert all((DOCS / "data" / f"{name}.csv").is_file() for name in named)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It delivers 4.5 of 10: 5 to 12 % more, +2 at best.", "4.5 5 12 +2"),
        ("At 0.83 and 18.12 m/s, alpha 0.5, 250 slots of 2 ms, PyTorch 2.13, `a=0.3`.", ""),
        (
            "In ring-20-3+1e-4 of 0.1.0 it was 36.8 (29.9-40.0), \u22120.28 ± 0.08.",
            "36.8 29.9 40.0 -0.28 0.08",
        ),
        ("| m/s | n | % |\n|---|---|---|\n| 0.83 | 1,260 | 20 of 20 |", "1,260"),
    ],
)
def test_what_counts_as_measured(ledger: ModuleType, text: str, found: str) -> None:
    assert [quote.text for quote in ledger.quotes(text)] == found.split()


def test_a_changed_digit_is_told(
    ledger: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a block that follows from a table, and in one that was recorded by hand."""
    page = tmp_path / "docs" / "results" / "ladder.md"
    page.parent.mkdir(parents=True)
    text = (DOCS / "results" / "ladder.md").read_text()
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "PAGES", [page])
    row = re.search(r"\n\| 0\.83 \| (\d\.\d)\d \|", text)
    assert row is not None
    page.write_text(text.replace(row[0], f"\n| 0.83 | {row[1]}99 |", 1))
    (fault,) = ledger.make()[1]
    assert f"says {row[1]}99, its tables {row[1]}" in fault
    page.write_text(text.replace("+1.0 (0.5)", "+1.1 (0.5)"))
    made, faults = ledger.make()
    own = [line for line in ledger.stored() if line["page"] == "docs/results/ladder.md"]
    assert faults == []
    assert [new["block"][:6] for new, old in zip(made, own, strict=True) if new != old] == [
        "| cell"
    ]
    page.write_text(text.replace("**Planning", "Planning"))
    assert ["'**Planning is worth more'" in fault for fault in ledger.make()[1]] == [True]


def test_agents_that_were_replaced_are_told(
    ledger: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tables have to be made again."""
    named = [line for line in ledger.stored() if "agents" in line]
    assert len(named) > 10
    replaced = SimpleNamespace(files={"agents": {"sha256": "0" * 64}})
    monkeypatch.setattr(ledger, "load_checkpoint", lambda folder: replaced)
    faults = ledger.make()[1]
    assert len(faults) == len(named)
    assert all(fault.endswith("other agents come with the package") for fault in faults)
