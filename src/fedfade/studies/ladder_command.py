"""`fedfade ladder`: what is a bit of channel knowledge worth?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedfade.commands.options import SetOption, stopping_cleanly, time_left, with_fields

if TYPE_CHECKING:
    from fedfade.studies.ladder import Ladder


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
    from fedfade.device import pick_device
    from fedfade.experiments.run_folder import provenance
    from fedfade.storage import folder_lock, write_json
    from fedfade.studies import ladder as steps
    from fedfade.studies.ladder.page import write_page
    from fedfade.studies.paper.tables import write_table

    changes = with_fields(overrides, {"learning.data_dir": data_dir, "run.device": device})
    asked = steps.make_ladder(preset, scale, seeds, rounds, checkpoint or (), changes)
    folder = out or Path("runs") / f"ladder-{Path(preset).stem}"
    with stopping_cleanly(f"the same command continues in {folder}"), folder_lock(folder):
        write_json(
            folder / "ladder.json", provenance(asked.base, pick_device(asked.base.run.device))
        )
        with time_left("cells", len(asked.places)) as tell:
            lines = steps.play(asked, folder, tell)
        table, policies = steps.ladder_table(asked, lines), steps.policy_table(asked, lines)
        write_table(folder / "ladder.csv", table)
        write_table(folder / "policies.csv", policies)
        accuracies = []
        if accuracy:
            with time_left("rounds", steps.accuracy_rounds(asked, folder, table)) as tell:
                accuracies = steps.accuracy(asked, folder, table, tell)
            write_table(folder / "accuracy.csv", accuracies)
        page = write_page(asked, folder, table, policies, accuracies)
    _print(asked, table)
    typer.echo(f"tables: {page}")


def _print(asked: Ladder, table: list[dict[str, object]]) -> None:
    """Means over cells."""
    shown = Table("m/s", *(rung.name for rung in asked.rungs), box=None, header_style="bold")
    for speed in asked.speeds_mps:
        cells = []
        for rung in asked.rungs:
            found = [
                float(str(line["uploads"]))
                for line in table
                if line["speed"] == speed and line["rung"] == rung.name
            ]
            cells.append(f"{sum(found) / len(found):.2f}")
        shown.add_row(f"{speed:g}", *cells)
    console = Console()
    if not console.is_terminal:
        console.width = 130  # a file or pipe has no width of its own
    console.print("uploads per round, mean over cells, best policy without learning on each rung:")
    console.print(shown)
