"""The way from a command to SINR is the one docs/architecture.md tells, hop by hop."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedfade
from fedfade.uplink import slot as uplink_slot
from tests.conftest import TINY

SOURCE = Path(fedfade.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
SMALL = ["qmix.hidden=[8]", "qmix.batch_size=16", "qmix.replay_size=400", "qmix.episodes=20"]
WALKS = {
    "compare": ("--seeds", 1, "--rounds", 1, "--policies", "random"),
    "train": ("--gradients", "synthetic", *(word for one in SMALL for word in ("--set", one))),
}


def told(command: str) -> list[str]:
    """Second column of the table after "From `fedfade COMMAND`", on the page on architecture."""
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    (page,) = (text for text in pages if text.startswith("# Architecture\n"))
    _, found, after = page.partition(f"**From `fedfade {command}`")
    assert found, f"no walk of fedfade {command}"
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None
    assert "file: function" in table[0]
    return re.findall(r"^\| \d+ \| `(.+?)` \|", table[0], re.MULTILINE)


def frames(first: str) -> list[str]:
    """Functions of fedfade that are being run, from one on; not the wrapper of `@fused`."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE) and path.name != "graphs.py":
            found.append(f"{path.relative_to(SOURCE).as_posix()}: {code.co_qualname}")
        frame = frame.f_back
    found.reverse()
    return found[found.index(first) :]


@pytest.mark.parametrize("command", WALKS)
def test_the_walk_is_as_told(
    command: str, fedfade: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, ...]] = set()
    real = uplink_slot.sinr
    last = f"{real.__module__.removeprefix('fedfade.').replace('.', '/')}.py: {real.__qualname__}"

    def spy(*given: object) -> object:
        walk = frames(f"commands/{command}.py: {command}")
        if "experiments/report.py: write_report" not in walk:  # a round played again, to look at
            seen.add((*walk, last))
        return real(*given)

    monkeypatch.setattr(uplink_slot, "sinr", spy)
    tiny = [word for one in TINY for word in ("--set", one)]
    answer = fedfade(command, "paper", *tiny, *WALKS[command], "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    (walk,) = seen
    assert list(walk) == told(command)
    assert len(walk) <= 9
