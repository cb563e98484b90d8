"""`fedfade compare`: which allocation policy gives the best model?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedfade.commands.options import (
    PresetArgument,
    SetOption,
    stopping_cleanly,
    time_left,
    with_fields,
)
from fedfade.config import Config, load_config, preset_names


def compare(
    preset: PresetArgument,
    policies: Annotated[
        str | None, typer.Option(help="comma-separated policies; names or module:factory")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="first seed")] = None,
    seeds: Annotated[int | None, typer.Option(help="independent repetitions")] = None,
    rounds: Annotated[int | None, typer.Option(help="federated rounds")] = None,
    out: Annotated[
        Path | None, typer.Option(help="run folder; runs/compare-PRESET if not given")
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="folder of fedfade train; adds its agents as qmix (repeatable)"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 (CUDA) or bf16 (local training)")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder of the data sets")] = None,
    overrides: SetOption = None,
) -> None:
    """Run every policy on the same channel and data; write a report with pictures."""
    from fedfade.device import pick_device
    from fedfade.experiments import RunFolder, batches, stored_rows, write_report
    from fedfade.experiments.report import genie_line, left_out_lines, summary_table, verdict

    fields = {
        "allocation.policies": None if policies is None else _listed(policies),
        "allocation.checkpoint": _folders(checkpoint or []),
        "run.seed": seed,
        "run.seeds": seeds,
        "run.rounds": rounds,
        "run.device": device,
        "run.precision": precision,
        "learning.data_dir": data_dir,
    }
    changes = with_fields(overrides, fields)
    config = load_config(preset, changes)
    console = Console(stderr=True)
    named = any(change.startswith("allocation.policies") for change in changes)
    if preset in preset_names() and not named:  # a file of the user's says what it wants
        config = load_config(preset, with_fields(changes, _with_shipped(config, console)))
    chosen = pick_device(config.run.device)
    folder = RunFolder(out or Path("runs") / f"compare-{Path(preset).stem}", config, chosen)
    with stopping_cleanly(f"the same command continues in {folder.path}"), folder.open():
        if folder.finished:
            console.print(f"already finished: {folder.path}", highlight=False)
        else:
            (batch,) = batches([folder], chosen)
            console.print(batch.plan, highlight=False)
            with time_left("rounds", config.run.rounds) as tell:
                batch.run(tell)
        rows = stored_rows(folder)
        record = folder.record
        report = write_report(folder.path, config, record, rows)
    summary = summary_table(rows, record.get("scopes", {}))
    _print_summary(summary, verdict(rows, config.learning.clients), genie_line(rows) or "")
    for line in left_out_lines(rows):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    typer.echo(f"report: {report}")


def _folders(asked: Sequence[Path]) -> Path | list[Path] | None:
    """One training, or several: those of all seeds of a folder, and of all folders."""
    from fedfade.agents.checkpoint import trained_folders

    found = [place for folder in asked for place in trained_folders(folder)]
    return found if len(found) > 1 else next(iter(found), None)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _with_shipped(config: Config, console: Console) -> dict[str, list[str]]:
    """Whoever names no policies sees the agents that come with the package as well."""
    from fedfade.agents import shipped_policies, shipped_policies_for

    names, fitting = list(config.allocation.policies), shipped_policies_for(config)
    if missing := [name for name in shipped_policies() if name not in fitting]:
        line = f"left out, being trained for another scenario: {', '.join(missing)}"
        console.print(line, highlight=False)
    names += [name for name in fitting if name not in names]
    return {"allocation.policies": names}


def _print_summary(summary: Sequence[Sequence[str]], *sentences: str) -> None:
    """A table, names to the left and numbers to the right, and what follows from it."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    headings, *lines = summary
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 2 else "right", no_wrap=place > 0)
    for line in lines:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:
        console.width = 110  # a file or pipe has no width of its own
    console.print(table)
    console.print(*sentences, highlight=False, markup=False)
