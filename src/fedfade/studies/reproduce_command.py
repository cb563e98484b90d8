"""`fedfade reproduce`: every figure of the paper, and its claims judged."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedfade.commands.options import SetOption, stopping_cleanly, with_fields


def reproduce(
    part: Annotated[str, typer.Argument(help="what to make; all in order if not given")] = "all",
    scale: Annotated[str, typer.Option(help="paper, or small: minutes on two cores")] = "paper",
    out: Annotated[
        Path | None, typer.Option(help="folder; runs/reproduce-SCALE if not given")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="the training cell: paper, ring, or a .yaml")
    ] = "paper",
    seeds: Annotated[int | None, typer.Option(help="training and evaluation seeds")] = None,
    rounds: Annotated[int | None, typer.Option(help="federated rounds")] = None,
    episodes: Annotated[int | None, typer.Option(help="training episodes")] = None,
    epoch_rounds: Annotated[
        int | None, typer.Option(min=1, help="federated rounds of part epochs")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 (CUDA) or bf16 (local training)")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder data sets are kept in")] = None,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="only figures and tables, from the CSV files")
    ] = False,
    overrides: SetOption = None,
) -> None:
    """Train, compare and draw what is missing; interrupted anywhere, the same command goes on.

    PART is partition, reward, accuracy, epochs, ablation, bound, regimes, or all in this order.
    """
    from fedfade.studies.paper import all_parts, make_setting
    from fedfade.studies.paper import reproduce as run

    parts = all_parts(part)
    fields = {
        "learning.data_dir": data_dir,
        "run.seeds": seeds,
        "run.rounds": rounds,
        "qmix.episodes": episodes,
        "run.device": device,
        "run.precision": precision,
    }
    changes = with_fields(overrides, fields)
    begin = time.monotonic()

    def say(text: str) -> None:
        typer.echo(f"{time.monotonic() - begin:6.0f} s  {text}")

    folder = out or Path("runs") / f"reproduce-{scale}"
    setting = make_setting(folder, scale, preset, changes, {"epoch_rounds": epoch_rounds}, say)
    with stopping_cleanly(f"the same command continues in {folder}"):
        page = run(setting, parts, redraw)
    typer.echo(page)
    typer.echo(f"claims: {folder / 'claims.md'}")
