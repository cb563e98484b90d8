"""`fedfade verify`: does a stored run still come out the same?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfade.commands.options import stopping_cleanly, time_left

_SHOWN = 5


def verify(
    folder: Annotated[Path, typer.Argument(help="folder of fedfade compare or fedfade train")],
    rounds: Annotated[
        int, typer.Option(min=1, help="rounds to run again; for a training: batches of episodes")
    ] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    data_dir: Annotated[str | None, typer.Option(help="folder of the data sets")] = None,
) -> None:
    """Run the first rounds again from the stored configuration; exit code 1 if a number differs."""
    from fedfade.device import pick_device
    from fedfade.errors import not_allowed
    from fedfade.experiments.verification import stored_steps
    from fedfade.experiments.verification import verify as run_again

    if device not in ("auto", "cpu", "cuda"):
        raise not_allowed("--device", device, "auto, cpu or cuda")
    total = min(rounds, stored_steps(folder))
    with stopping_cleanly("nothing was changed"), time_left("steps", total) as tell:
        found = run_again(folder, total, pick_device(device), tell, data_dir)
    for note in found.notes:
        Console(stderr=True).print(f"note: {note}", highlight=False, markup=False)
    scope = f"{found.again} of {found.stored} {found.what} run again, {found.numbers} numbers"
    if not found.differences:
        typer.echo(f"same: {scope}, all equal to the last bit.")
        return
    typer.echo(f"different: {scope}, {len(found.differences)} differ.")
    for line in found.differences[:_SHOWN]:
        typer.echo(f"  {line}")
    raise typer.Exit(1)
