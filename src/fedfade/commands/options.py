"""What commands share: options, the fields they stand for, progress, stopping cleanly."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import rich.progress as bars
import typer
from rich.console import Console
from rich.text import Text

from fedfade.config import Config, differences, idle, load_config, preset_names
from fedfade.errors import not_allowed
from fedfade.shown import plain
from fedfade.storage import check_folder

field = partial(typer.Option, show_default="the preset's")
"""An option without a default of its own: it is whatever the preset says."""
_PRESET = f"{', '.join(preset_names())}, or the path of a .yaml file"
PresetArgument = Annotated[str, typer.Argument(help=_PRESET)]
RoundsOption = Annotated[int | None, field(help="federated rounds")]
SeedsOption = Annotated[int | None, field(help="independent repetitions")]
_DELIVERED = "clients that deliver each round, drawn at random"
DeliveredOption = Annotated[int | None, typer.Option(help=_DELIVERED, show_default="all")]
_DATA_DIR = "folder of the data sets"
DataDirOption = Annotated[str | None, typer.Option(help=_DATA_DIR, show_default="FEDFADE_DATA")]
DeviceOption = Annotated[str | None, field(help="auto, cpu or cuda")]
threads_option = partial(typer.Option, min=1, max=1024, help="CPU threads")
ThreadsOption = Annotated[int | None, threads_option(show_default="one a free core")]
PrecisionOption = Annotated[str | None, field(help="fp32, tf32 (CUDA) or bf16 (local training)")]
GainOption = Annotated[str | None, field(help="average or centre")]
FigureOption = Annotated[Path | None, typer.Option(help="picture, .png .pdf or .svg")]
JsonOption = Annotated[bool, typer.Option("--json", help="end with one JSON object")]
_ANEW = "start anew if the folder holds results"
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help=_ANEW)]
_SET = "override a field, e.g. --set radio.clusters=28 (repeatable)"
SetOption = Annotated[list[str] | None, typer.Option("--set", help=_SET)]

_FIELDS = {
    "allocation": ("policies", "checkpoint"),
    "learning": ("data", "data_dir", "clients"),
    "qmix": ("episodes", "gradients"),
    "radio": ("clusters", "subband_gain"),
    "run": ("rounds", "seed", "seeds", "evaluate_every", "device", "precision"),
}
"""Options that stand for the field of their name, by section."""


def with_fields(
    overrides: list[str] | None, fields: Mapping[str, object] | None = None, /, **options: object
) -> list[str]:
    """Overrides plus the fields that options gave; quoted, for a path may look like anything.

    >>> with_fields(["run.seed=1"], {"cell.side_m": 5, "run.seeds": None}, data="5")
    ['run.seed=1', 'cell.side_m=5', 'learning.data="5"']
    """
    section = {name: section for section, names in _FIELDS.items() for name in names}
    given = {**(fields or {}), **{f"{section[name]}.{name}": v for name, v in options.items()}}
    quoted = partial(json.dumps, ensure_ascii=False, default=str)
    return [*(overrides or ()), *(f"{n}={quoted(v)}" for n, v in given.items() if v is not None)]


def asked_config(preset: str, overrides: list[str] | None, **options: object) -> Config:
    """The configuration a user asks for by preset, `--set` and options of a field's name."""
    config = load_config(preset, with_fields(overrides, **options))
    tell_idle(preset, config)
    return config


def tell_idle(preset: str, *configs: Config) -> None:
    """Name what a user has given, and other settings make idle, once for all configurations."""
    default = load_config(preset) if preset in preset_names() else Config()
    given = ((config, differences(config, default)) for config in configs)
    for sentence in dict.fromkeys(line for one, fields in given for line in idle(one, fields)):
        say(f"{sentence}.")


def use_threads(threads: int | None) -> None:
    """Compute on so many threads of the CPU, or on as many as there are free cores."""
    from fedfade import device  # imports torch

    device.use_threads(threads)


def given_fields(overrides: list[str] | None, fields: Mapping[str, object]) -> dict[str, object]:
    """What a user asked for by `--set` and by options, for the name of a folder."""
    pairs = (override.partition("=") for override in overrides or ())
    return {name.strip(): value.strip() for name, _, value in pairs} | dict(fields)


PICTURES = (".png", ".pdf", ".svg")


def check_output(option: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a wrong ending, or a place that cannot be written, before hours of work."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        *most, last = suffixes
        endings = f"{', '.join(most)} or {last}" if most else last
        raise not_allowed(option, str(path), f"a file ending in {endings}")
    if path.is_dir():
        raise not_allowed(option, str(path), "a file, and this is a folder")
    check_folder(path.parent)


class PlainConsole(Console):
    """Shows every string as it is, in tables too: brackets are no markup, colons no emoji, and
    control characters are spelled out."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(plain(text), **how | {"markup": False, "emoji": False})


def echo(text: str) -> None:
    """A line on standard output."""
    typer.echo(plain(text))


def say(sentence: str, style: str | None = None) -> None:
    """A line on standard error, as it is, however long."""
    console = PlainConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(sentence, style=style)


def console_of_width(columns: int) -> PlainConsole:
    """For tables: a file or pipe has no width of its own."""
    console = PlainConsole()
    if not console.is_terminal:
        console.width = columns
    return console


def watched() -> bool:
    """Whether a progress bar moves before somebody's eyes; a file is given its last line only."""
    return Console(stderr=True).is_interactive


@contextmanager
def time_left(unit: str, total: int) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on standard error; yields a function of (done, what is being done).

    The last line stays, unless nothing was done: a user who is refused sees the reason alone.
    """
    bar = bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.fields[doing]:<15}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn(unit),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(unit, total=total, doing="starting")
    bar.live.transient = True

    def tell(done: float, doing: str) -> None:
        bar.live.transient = False
        bar.start()
        bar.update(task, completed=done, doing=doing)

    if watched():
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
        say(f"stopped; {advice}.")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def running(unit: str, total: int, advice: str) -> Iterator[Callable[[float, str], None]]:
    """`time_left`, stopping cleanly."""
    with stopping_cleanly(advice), time_left(unit, total) as tell:
        yield tell
