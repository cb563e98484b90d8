"""`fedfade reproduce`: every figure of the paper, and its claims judged. `fedfade ladder`: what is
a bit of channel knowledge worth? `fedfade levers`: allocation, compression or aggregation?"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfade.commands import options
from fedfade.config import Config

_PLACES = ("learning.data_dir", "run.device")  # where a run is made is not in its folder's name
_ROUNDS = "rounds played of each, spread over run.rounds"
_CELL = "its cell is played besides the ring; name or .yaml"
_AGENTS = "NAME=FOLDER of fedfade train, or of shipped agents (repeatable)"
_RUNS = "federated runs too, run.rounds and run.seeds of them"
_LINE = "this line of the list alone, 'random int8 mean' (repeatable)"
_PART = "this part alone (repeatable); all if not given"
_EPOCHS = "federated rounds of part epochs"
_TRAINED = "the training cell: paper, ring, or a .yaml"
_LIST = "part readings: a list of your own, .yaml"
_SOME = "part readings: these alone (repeatable)"
_TOGETHER = "part readings: trainings in one program, at most"
_REDRAW = "only figures and tables, from the CSV files"
_scaled = partial(typer.Option, show_default="the scale's")
_Names = list[str] | None
_Tables = Mapping[str, Any]  # data frames, whose library starts slowly


def _folder(name: str) -> Any:
    return typer.Option(help="folder", show_default=f"runs/{name}, and what was asked for besides")


def _own_folder(name: str, overrides: _Names, fields: Mapping[str, object]) -> Path:
    from fedfade.experiments.run_folder import default_folder

    kept = {field: value for field, value in fields.items() if field not in _PLACES}
    return default_folder(name, options.given_fields(overrides, kept))


def reproduce(
    part: Annotated[str, typer.Argument(help="what to make; all in order if not given")] = "all",
    scale: Annotated[str, typer.Option(help="paper, or small: minutes on two cores")] = "paper",
    out: Annotated[Path | None, _folder("reproduce-SCALE")] = None,
    preset: Annotated[str, typer.Option(help=_TRAINED)] = "paper",
    seeds: Annotated[int | None, _scaled(help="training and evaluation seeds")] = None,
    rounds: Annotated[int | None, _scaled(help="federated rounds")] = None,
    episodes: Annotated[int | None, _scaled(help="training episodes")] = None,
    epoch_rounds: Annotated[int | None, _scaled(min=1, help=_EPOCHS)] = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    threads: options.ThreadsOption = None,
    data_dir: options.DataDirOption = None,
    readings: Annotated[Path | None, typer.Option(help=_LIST)] = None,
    only: Annotated[_Names, typer.Option(help=_SOME)] = None,
    together: Annotated[int, typer.Option(min=1, help=_TOGETHER)] = 15,
    redraw: Annotated[bool, typer.Option("--redraw", help=_REDRAW)] = False,
    overwrite: options.OverwriteOption = False,
    overrides: options.SetOption = None,
) -> None:
    """Train, compare and draw what is missing; interrupted anywhere, the same command goes on.

    PART is partition, reward, accuracy, epochs, ablation, bound or regimes, which are the paper
    together; ladder (with accuracy), levers, link or policies, which go on from it; readings, which
    searches what it leaves open; or all in this order.
    """
    from fedfade.config import load_config
    from fedfade.storage import begin_anew
    from fedfade.studies import paper, reproduction

    _check_asked(part, scale, {"--readings": readings, "--only": only})
    fields: dict[str, object] = {"learning.data_dir": data_dir, "run.seeds": seeds}
    fields |= {"run.rounds": rounds, "qmix.episodes": episodes}
    fields |= {"run.device": device, "run.precision": precision}
    given = options.with_fields(overrides, fields)
    changes = [*paper.SCALES[scale].overrides, *given]
    options.use_threads(threads)
    begin = time.monotonic()

    def say(text: str) -> None:
        options.echo(f"{time.monotonic() - begin:6.0f} s  {text}")

    preset_given = None if preset == "paper" else preset
    cell = {"preset": preset_given, **fields, "epoch_rounds": epoch_rounds}
    folder = out or _own_folder(f"reproduce-{scale}", overrides, cell)
    some = reproduction.REHEARSED_READINGS if part == "all" and scale == "small" else ()
    search = paper.Search(readings, tuple(only or some), together)
    base = load_config(preset, changes)
    # Trainings of many readings are fewer, unless a user says how many.
    default = paper.SCALES[scale].grid.reading_trainings
    trainings = load_config(preset, [*changes, f"run.seeds={default}", *given]).run.seeds
    grid = {"epoch_rounds": epoch_rounds, "reading_trainings": trainings}
    options.tell_idle(preset, load_config(preset, given))
    with options.running("%", 100, f"the same command continues in {folder}") as tell:
        work = paper.WorkDone(lambda share, doing: tell(100 * share, doing))
        chat = (lambda line: None) if options.watched() else say  # who sees a bar needs no lines
        asked = paper.Asked(preset, tuple(given))
        setting = paper.checked_setting(folder, base, scale, grid, say, search, chat, work, asked)
        if overwrite:
            begin_anew(folder, "reproduce.json", ["claims.md", "results.*", *reproduction.PARTS])
        parts = reproduction.WORDS.get(part, (part,))
        judged = reproduction.reproduce(setting, parts, redraw)
    if parts[0] not in reproduction.PAPER:
        options.echo(f"tables: {folder / part / f'{part}.md'}")
        return
    shown = Table("claim", "verdict", box=None, header_style="bold")
    for claim in judged:
        between = " " if claim.verdict.endswith("when") else ": "
        shown.add_row(claim.says, between.join(filter(None, (claim.verdict, claim.when))))
    console = options.console_of_width(100)
    console.print(shown)
    if setting.rehearsal:
        console.print("A rehearsal: this checks the code, not the paper.")
    options.echo(f"claims, with what was measured: {folder / 'claims.md'}")
    options.echo(f"all results: {folder / 'results.md'}")


def _check_asked(part: str, scale: str, for_readings: Mapping[str, object]) -> None:
    from fedfade.errors import UserError, not_allowed
    from fedfade.studies import paper, reproduction

    if part not in {*reproduction.PARTS, *reproduction.WORDS}:
        *names, last = *reproduction.PARTS, *reproduction.WORDS
        raise not_allowed("part", part, f"one of {', '.join(names)} or {last}")
    if scale not in paper.SCALES:
        raise not_allowed("--scale", scale, f"one of {', '.join(paper.SCALES)}")
    for option, given in for_readings.items():
        if given and part != "readings":
            raise UserError(f"{option} belongs to part readings: leave it out of part {part}.")


@contextmanager
def _study(folder: Path, name: str, base: Config) -> Iterator[Callable[[_Tables, Any], None]]:
    """The folder of a study of its own, held, with who made it; yields what leaves results there:
    a function of the tables computed and what was drawn from them."""
    from fedfade.device import pick_device
    from fedfade.experiments.run_folder import ended, provenance
    from fedfade.storage import folder_lock, write_json, write_text
    from fedfade.studies.frames import Drawn, write_figures, write_tables

    def leave(tables: _Tables, drawn: Drawn) -> None:
        write_tables(folder, {**tables, **drawn.tables})
        write_figures(folder, drawn.figures)
        write_text(folder / f"{name}.md", f"{drawn.text}\n")
        write_json(folder / f"{name}.json", ended(made_by))

    with options.stopping_cleanly(f"the same command continues in {folder}"), folder_lock(folder):
        made_by = provenance(base, pick_device(base.run.device))
        write_json(folder / f"{name}.json", made_by)
        yield leave


def ladder(
    preset: Annotated[str, typer.Argument(help=_CELL)] = "paper",
    out: Annotated[Path | None, _folder("ladder-PRESET")] = None,
    seeds: Annotated[int | None, _scaled(min=1, help="seeds played in every cell")] = None,
    rounds: Annotated[int | None, _scaled(min=1, help=_ROUNDS)] = None,
    checkpoint: Annotated[_Names, typer.Option(help=_AGENTS)] = None,
    scale: Annotated[str, typer.Option(help="paper, or small: a look at the code")] = "paper",
    accuracy: Annotated[bool, typer.Option("--accuracy", help=_RUNS)] = False,
    device: options.DeviceOption = None,
    threads: options.ThreadsOption = None,
    data_dir: options.DataDirOption = None,
    overwrite: options.OverwriteOption = False,
    overrides: options.SetOption = None,
) -> None:
    """Uploads per round against what clients know, over SNR, spread of gains and speed."""
    from fedfade.storage import begin_anew
    from fedfade.studies.ladder import page, played, rungs

    options.use_threads(threads)
    changes = options.with_fields(overrides, {"learning.data_dir": data_dir, "run.device": device})
    asked = rungs.make_ladder(preset, scale, seeds, rounds, checkpoint or (), changes)
    counts: dict[str, object] = {"seeds": seeds, "rounds": rounds, "checkpoint": checkpoint}
    counts |= {"scale": None if scale in ("paper", "full") else scale}
    folder = out or _own_folder(f"ladder-{Path(preset).stem}", overrides, counts)
    if overwrite:
        begin_anew(folder, "ladder.json", ["runs", "accuracy", "*.csv", "*.png", "ladder.md"])
    with _study(folder, "ladder", asked.base) as leave:
        tables = played.compute(asked, folder, options.time_left, accuracy)
        drawn = page.draw(asked, tables)
        leave(
            tables, drawn._replace(text=f"# What a bit of channel knowledge buys\n\n{drawn.text}")
        )

    table = tables["ladder"]
    over_cells = table.pivot_table(index="speed", columns="rung", values="uploads", sort=False)
    shown = Table("m/s", *over_cells.columns, box=None, header_style="bold")
    for speed, uploads in over_cells.iterrows():
        shown.add_row(f"{speed:g}", *(f"{value:.2f}" for value in uploads))
    console = options.console_of_width(130)
    console.print("uploads per round, mean over cells, best policy without learning on each rung:")
    console.print(shown)
    options.echo(f"tables: {folder / 'ladder.md'}")


def levers(
    scale: Annotated[str, typer.Option(help="paper, or small: minutes on two cores")] = "paper",
    only: Annotated[_Names, typer.Option(help=_PART)] = None,
    line: Annotated[_Names, typer.Option(help=_LINE)] = None,
    out: Annotated[Path | None, _folder("levers-SCALE")] = None,
    seeds: Annotated[int | None, _scaled(help="seeds of every run")] = None,
    rounds: Annotated[int | None, _scaled(help="federated rounds")] = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    threads: options.ThreadsOption = None,
    data_dir: options.DataDirOption = None,
    overwrite: options.OverwriteOption = False,
    overrides: options.SetOption = None,
) -> None:
    """Allocation, codec and server rule over the load; the same command goes on where it stopped.

    Parts are paper, heavy, payload, clients and order.
    """
    from fedfade.storage import begin_anew
    from fedfade.studies.levers import page, plan, runs

    options.use_threads(threads)
    fields = {"learning.data_dir": data_dir, "run.seeds": seeds, "run.rounds": rounds}
    fields |= {"run.device": device, "run.precision": precision}
    asked = plan.load_levers(scale, only or (), options.with_fields(overrides, fields), line or ())
    folder = out or _own_folder(f"levers-{scale}", overrides, fields)
    if overwrite:
        begin_anew(folder, "levers.json", ["runs", "*.csv", "*.png", "levers.md"])
    with _study(folder, "levers", asked.parts[0].base) as leave:
        tables = runs.compute(asked, folder, options.time_left)
        drawn = page.draw(asked, tables)
        leave(tables, drawn)
    options.echo(drawn.text)
    options.echo(f"tables: {folder / 'levers.md'}")
