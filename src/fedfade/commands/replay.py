"""`fedfade replay`: a picture of one round of a finished comparison, slot by slot."""

from pathlib import Path
from typing import Annotated

import typer


def replay(
    folder: Annotated[Path, typer.Argument(help="run folder of fedfade compare")],
    policy: Annotated[str, typer.Option(help="policy to show")],
    seed: Annotated[
        int | None, typer.Option(help="seed of the run; its first if not given")
    ] = None,
    round_number: Annotated[int, typer.Option("--round", help="round, counted from 0")] = 0,
    out: Annotated[Path, typer.Option(help="picture, .png .pdf or .svg")] = Path("round.png"),
) -> None:
    """Draw who was on which sub-band at which power, and whose bits ran out in time."""
    from fedfade.commands.options import PICTURES, check_output
    from fedfade.experiments.replay import replay_figure
    from fedfade.storage import save_figure

    check_output("--out", out, *PICTURES)
    save_figure(replay_figure(folder, policy, seed, round_number), out)
    typer.echo(f"picture: {out}")
