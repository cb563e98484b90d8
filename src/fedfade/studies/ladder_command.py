"""`fedfade ladder`: what is a bit of channel knowledge worth?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedfade.commands.options import SetOption, stopping_cleanly, time_left, with_fields


def ladder(
    preset: Annotated[
        str, typer.Argument(help="its cell is played besides the ring; name or .yaml")
    ] = "paper",
    out: Annotated[
        Path | None, typer.Option(help="folder; runs/ladder-PRESET if not given")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="seeds played in every cell")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="rounds played of each, spread over run.rounds")
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER of fedfade train: agents to place on it (repeatable)"),
    ] = None,
    scale: Annotated[str, typer.Option(help="full, or small: a look at the code")] = "full",
    accuracy: Annotated[
        bool,
        typer.Option("--accuracy", help="federated runs too, run.rounds and run.seeds of them"),
    ] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder of the data sets")] = None,
    overrides: SetOption = None,
) -> None:
    """Uploads per round against what clients know, over SNR, spread of gains and speed."""
    from pandas import DataFrame

    from fedfade.device import pick_device
    from fedfade.experiments.run_folder import provenance
    from fedfade.storage import folder_lock, write_json
    from fedfade.studies import ladder as study
    from fedfade.studies.frames import write_frame

    changes = with_fields(overrides, {"learning.data_dir": data_dir, "run.device": device})
    asked = study.make_ladder(preset, scale, seeds, rounds, checkpoint or (), changes)
    folder = out or Path("runs") / f"ladder-{Path(preset).stem}"
    with stopping_cleanly(f"the same command continues in {folder}"), folder_lock(folder):
        made_by = provenance(asked.base, pick_device(asked.base.run.device))
        write_json(folder / "ladder.json", made_by)
        with time_left("cells", len(asked.cells)) as tell:
            lines = study.play(asked, folder, tell)
        table, policies = study.ladder_table(asked, lines), study.policy_table(asked, lines)
        write_frame(folder / "ladder.csv", table)
        write_frame(folder / "policies.csv", policies)
        accuracies = DataFrame()
        if accuracy:
            runs = study.accuracy_runs(asked, folder, table)
            with time_left("rounds", sum(run.config.run.rounds for run in runs)) as tell:
                accuracies = study.accuracy_table(asked, runs, table, tell)
            write_frame(folder / "accuracy.csv", accuracies)
        page = study.write_page(asked, folder, table, policies, accuracies)

    over_cells = table.pivot_table(index="speed", columns="rung", values="uploads", sort=False)
    shown = Table("m/s", *over_cells.columns, box=None, header_style="bold")
    for speed, uploads in over_cells.iterrows():
        shown.add_row(f"{speed:g}", *(f"{value:.2f}" for value in uploads))
    console = Console()
    if not console.is_terminal:
        console.width = 130  # a file or pipe has no width of its own
    console.print("uploads per round, mean over cells, best policy without learning on each rung:")
    console.print(shown)
    typer.echo(f"tables: {page}")
