"""`fedfade sweep`: many configurations on many processes or machines, one table."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfade.commands import options
from fedfade.errors import UserError
from fedfade.storage import begin_anew
from fedfade.wording import counted

_SHOWN = 40  # lines of the table on the terminal; the file has all
_FILE = "what to run; docs/how-to/sweep.md"
_WORKERS = "processes on this machine; one a core if not given"
_THREADS = "CPU threads of a point; resources.cpus if not given"
_OWN = "runs/sweep-NAME; sweep-FOLDER-NAME for one of another folder"
_RAY = "address of a Ray cluster, or auto for the one here"


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help=_FILE)],
    workers: Annotated[int | None, typer.Option(min=1, help=_WORKERS)] = None,
    ray: Annotated[str | None, typer.Option(help=_RAY)] = None,
    out: Annotated[Path | None, typer.Option(help="folder", show_default=_OWN)] = None,
    overwrite: options.OverwriteOption = False,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help=_THREADS)] = None,
    data_dir: options.DataDirOption = None,
) -> None:
    """Run a grid or list of configurations; finished points are skipped."""
    from fedfade.device import usable_cores
    from fedfade.experiments import sweep as sweeps
    from fedfade.experiments.workers import on_ray, on_this_machine

    if ray is not None and workers is not None:
        raise UserError("--workers and --ray exclude each other: choose one.")
    asked = sweeps.load_sweep(file, options.with_fields(None, data_dir=data_dir))
    options.tell_idle(asked.asked.preset, *(point.config for point in asked.points))
    folder = out or Path("runs") / f"sweep-{_name(file)}"
    if overwrite:
        begin_anew(folder, "sweep.yaml", ["points", "figures", "sweep.csv"])
    resources = asked.asked.resources
    if threads is not None:
        resources = resources.model_copy(update={"cpus": threads})
    count = workers or max(1, usable_cores() // resources.cpus)
    how = partial(on_this_machine, workers=count)
    if ray is not None:
        how = partial(on_ray, address=ray, say=options.say)
    compute = partial(how, resources=resources, retries=asked.asked.retries)
    total = len(asked.points)
    with options.running("points", total, f"the same command continues in {folder}") as bar:

        def tell(progress: sweeps.SweepProgress) -> None:
            running = f"{len(progress.parts)} running, " if progress.parts else ""
            bar(progress.points, f"{running}{progress.failed} failed")

        failures = sweeps.run_sweep(asked, folder, compute, tell)
    _print_table(sweeps.seed_means(asked, sweeps.sweep_table(asked, folder, {})))
    options.echo(f"table: {folder / 'sweep.csv'}")
    try:
        from fedfade.experiments.sweep_figures import save_sweep_figures

        if save_sweep_figures(folder):
            options.echo(f"pictures: {folder / 'figures'}")
    except ImportError:  # a machine that only computes need not have Matplotlib
        options.say("Matplotlib is not installed: no pictures.")
    if failures:
        name, reason = next(iter(failures.items()))
        failed = f"{len(failures)} of {counted(total, 'point')} failed, the first, {name}: {reason}"
        options.say(failed, style="bold red")
        raise typer.Exit(1)


def _name(file: Path) -> str:
    """What a sweep is called: its file and the folders on the way to it from here.

    >>> _name(Path("load.yaml")), _name(Path("./grids/load.yaml"))
    ('load', 'grids-load')
    """
    path = file.absolute()
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return "-".join(part for part in near.with_suffix("").parts if part not in ("/", ".."))


def _print_table(means: Any) -> None:
    """Means over seeds of every point and policy, a data frame."""
    from fedfade.experiments.metrics import as_text, column

    headings = (column(name).heading for name in means)
    table = Table(*headings, box=None, header_style="bold")
    for line in means.head(_SHOWN).itertuples(index=False):
        table.add_row(*(as_text(*cell) for cell in zip(means, line, strict=True)))
    console = options.console_of_width(140)
    console.print(table)
    if len(means) > _SHOWN:
        console.print(f"... and {counted(len(means) - _SHOWN, 'more line')}", highlight=False)
