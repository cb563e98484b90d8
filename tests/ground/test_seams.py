"""What users can replace is found by name, and what is wrong with it is one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedfade import seams
from fedfade.errors import UserError
from fedfade.seams import Seam, load_dotted, source_file

HERE = __name__

SPEAKERS = Seam(
    "test.speaker",
    "fedfade.test_speakers",
    "fedfade.test.Speaker",
    ("say",),
    {"polite": f"{HERE}:Speaker", "ours": f"{HERE}:raises"},
)
ALL = [one for one in vars(seams).values() if isinstance(one, Seam)]


class Speaker:
    """An implementation that says what it was given."""

    def __init__(self, *given: object) -> None:
        self.given = given

    def say(self) -> tuple[object, ...]:
        return self.given


SILENT = SimpleNamespace()


def raises(*given: object) -> None:
    raise ZeroDivisionError("division\nby zero.")


def refuses(*given: object) -> None:
    raise UserError("its own sentence.")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that a package with these entry points is installed."""

    def install(**values: str) -> None:
        points = [EntryPoint(name, value, SPEAKERS.group) for name, value in values.items()]
        monkeypatch.setattr(
            seams, "entries", lambda group: [one for one in points if one.group == group]
        )

    return install


@pytest.mark.parametrize("name", ["polite", "loud", f"{HERE}:Speaker"])
def test_by_table_by_entry_point_or_by_dotted_path(name: str, installed) -> None:
    installed(loud=f"{HERE}:Speaker")
    assert SPEAKERS.make(name, 1, "two").say() == (1, "two")
    assert SPEAKERS.names() == ["polite", "ours", "loud"]


def test_an_object_may_stand_for_its_factory() -> None:
    assert replace(SPEAKERS, members=()).make(f"{HERE}:SILENT", 1) is SILENT


def test_a_module_in_the_working_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "speakers_of_mine.py").write_text("class Own:\n    def say(self): return 'mine'\n")
    monkeypatch.chdir(tmp_path)
    assert SPEAKERS.make("speakers_of_mine:Own").say() == "mine"
    assert source_file("speakers_of_mine:Own") == tmp_path / "speakers_of_mine.py"


WRONG = [
    ("rude", "test.speaker = 'rude' is not allowed: it must be one of polite, ours, broken, "),
    ("", "test.speaker = '' is not allowed: it must be one of polite, "),
    (":", "test.speaker = ':' is not allowed: it must be a built-in name or of the form module:"),
    ("no.such:thing", "test.speaker = 'no.such:thing' cannot be loaded: No module named 'no'."),
    (f"{HERE}:nobody", f"nobody' cannot be loaded: module '{HERE}' has no attribute 'nobody'."),
    ("broken", "test.speaker = 'broken' cannot be loaded: No module named 'tomorrow'."),
    (f"{HERE}:raises", f"test.speaker '{HERE}:raises' cannot be made: division by zero."),
    (f"{HERE}:refuses", "its own sentence."),
    (f"{HERE}:SILENT", "has no 'say': fedfade.test.Speaker says what is needed."),
]


@pytest.mark.parametrize(("name", "sentence"), WRONG)
def test_what_is_wrong_is_one_sentence(name: str, sentence: str, installed) -> None:
    installed(broken="tomorrow:Speaker")
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        SPEAKERS.make(name)
    assert "\n" not in str(caught.value)


def test_a_fault_of_our_own_keeps_its_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        SPEAKERS.make("ours")


def test_the_caller_may_know_more_names() -> None:
    assert SPEAKERS.check("house-band", others=["house-band"]) == "house-band"
    with pytest.raises(UserError, match="polite, ours, house-band, or module:factory"):
        SPEAKERS.check("rude", others=["house-band"])


@pytest.mark.parametrize(
    ("seam", "name"),
    [pytest.param(seam, name, id=f"{seam.field}-{name}") for seam in ALL for name in seam.built_in],
)
def test_everything_in_the_tables_loads(seam: Seam, name: str) -> None:
    found = load_dotted(seam.field, seam.built_in[name])
    assert callable(found) or all(hasattr(found, member) for member in seam.members)


@pytest.mark.parametrize("seam", ALL, ids=lambda seam: seam.field)
def test_the_protocol_a_sentence_names_is_there(seam: Seam) -> None:
    """And has what every implementation is asked for."""
    module, _, name = seam.protocol.rpartition(".")
    protocol = load_dotted(seam.field, f"{module}:{name}")
    declared = {*dir(protocol), *getattr(protocol, "__annotations__", {})}
    assert set(seam.members) <= declared
