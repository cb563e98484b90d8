"""What commands share: options, progress with time left, stopping cleanly."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PresetArgument = Annotated[str, typer.Argument(help="preset name or path of a .yaml file")]

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a field, e.g. --set radio.clusters=28 (repeatable)"),
]


def with_fields(overrides: list[str] | None, fields: Mapping[str, object]) -> list[str]:
    """Overrides plus the fields that options gave; quoted, for a path may look like anything.

    >>> with_fields(["run.seed=1"], {"run.rounds": 5, "run.seeds": None, "learning.data": "5"})
    ['run.seed=1', 'run.rounds=5', 'learning.data="5"']
    """
    given = {name: value for name, value in fields.items() if value is not None}
    return [
        *(overrides or ()),
        *(f"{n}={json.dumps(v, ensure_ascii=False, default=str)}" for n, v in given.items()),
    ]


PICTURES = (".png", ".pdf", ".svg")


def check_output(option: str, path: Path, *suffixes: str) -> None:
    """Refuse a wrong ending, or a place that cannot be written, before hours of work."""
    from fedfade.errors import not_allowed
    from fedfade.storage import check_folder

    if path.suffix.lower() not in suffixes:
        *most, last = suffixes
        endings = f"{', '.join(most)} or {last}" if most else last
        raise not_allowed(option, str(path), f"a file ending in {endings}")
    if path.is_dir():
        raise not_allowed(option, str(path), "a file, and this is a folder")
    check_folder(path.parent)


@contextmanager
def time_left(unit: str, total: int) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on standard error; yields a function of (done, what is being done).

    The last line stays, unless nothing was done: a user who is refused sees the reason alone.
    """
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[doing]:<15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(unit, total=total, doing="starting")
    bar.live.transient = True

    def tell(done: float, doing: str) -> None:
        bar.live.transient = False
        bar.start()
        bar.update(task, completed=done, doing=doing)

    if bar.console.is_interactive:  # a file or pipe is given the last line only
        bar.start()
    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def stopping_cleanly(advice: str) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a clean stop with one sentence and exit code 130."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; {advice}.", highlight=False)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
