"""`fedfade sweep`: many configurations on many processes or machines, one table."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedfade.commands.options import stopping_cleanly, time_left, with_fields

_SHOWN = 40  # lines of the table on the terminal; the file has all


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP.yaml", help="what to run; docs/how-to/sweep.md")
    ],
    workers: Annotated[
        int | None, typer.Option(min=1, help="processes on this machine; one a core if not given")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="address of a Ray cluster, or auto for the one here")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder; runs/sweep-NAME if not given")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder of the data sets")] = None,
) -> None:
    """Run a grid or list of configurations; finished points are skipped."""
    from fedfade.errors import UserError
    from fedfade.experiments.sweep import (
        Compute,
        SweepProgress,
        load_sweep,
        run_sweep,
        seed_means,
        sweep_table,
    )
    from fedfade.experiments.workers import on_ray, on_this_machine

    if ray is not None and workers is not None:
        raise UserError("--workers and --ray exclude each other: choose one.")
    asked = load_sweep(file, with_fields(None, {"learning.data_dir": data_dir}))
    folder = out or Path("runs") / f"sweep-{file.stem}"
    resources, retries = asked.asked.resources, asked.asked.retries
    count = workers or max(1, (os.cpu_count() or 1) // resources.cpus)
    compute: Compute = (
        partial(on_this_machine, workers=count, resources=resources, retries=retries)
        if ray is None
        else partial(on_ray, address=ray, resources=resources, retries=retries)
    )
    total = len(asked.points)
    with (
        stopping_cleanly(f"the same command continues in {folder}"),
        time_left("points", total) as bar,
    ):

        def tell(progress: SweepProgress) -> None:
            running = f"{len(progress.parts)} running, " if progress.parts else ""
            bar(progress.points, f"{running}{progress.failed} failed")

        failures = run_sweep(asked, folder, compute, tell)
    _print_table(seed_means(asked, sweep_table(asked, folder, {})))
    typer.echo(f"table: {folder / 'sweep.csv'}")
    if failures:
        name, reason = next(iter(failures.items()))
        Console(stderr=True).print(
            f"{len(failures)} of {total} points failed, the first, {name}: {reason}",
            style="bold red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)


def _print_table(means: Any) -> None:
    """Means over seeds of every point and policy, a data frame."""
    table = Table(*map(escape, means.columns), box=None, header_style="bold")
    for line in means.head(_SHOWN).itertuples(index=False):
        table.add_row(*(escape(_shown(value)) for value in line))
    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file or pipe has no width of its own
    console.print(table)
    if len(means) > _SHOWN:
        console.print(f"... and {len(means) - _SHOWN} more lines", highlight=False)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
