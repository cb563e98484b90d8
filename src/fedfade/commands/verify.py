"""`fedfade verify`: does a stored run still come out the same?"""

from pathlib import Path
from typing import Annotated

import typer

from fedfade.commands import options
from fedfade.errors import not_allowed

_SHOWN = 5
_ROUNDS = "rounds to run again; for a training: batches of episodes"


def verify(
    folder: Annotated[Path, typer.Argument(help="folder of fedfade compare or fedfade train")],
    rounds: Annotated[int, typer.Option(min=1, help=_ROUNDS)] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int | None, options.threads_option(show_default="the run's")] = None,
    data_dir: options.DataDirOption = None,
) -> None:
    """Run the first rounds again from the stored configuration; exit code 1 if a number differs."""
    from fedfade.device import pick_device
    from fedfade.experiments.verification import stored_steps
    from fedfade.experiments.verification import verify as run_again

    if device not in ("auto", "cpu", "cuda"):
        raise not_allowed("--device", device, "auto, cpu or cuda")
    total = min(rounds, stored_steps(folder))
    if threads is None:
        options.use_threads(None)  # where the folder does not say
    with options.running("steps", total, "nothing was changed") as tell:
        found = run_again(folder, total, pick_device(device), tell, data_dir, threads)
    for note in found.notes:
        options.say(f"note: {note}")
    scope = f"{found.again} of {found.stored} {found.what} run again, {found.numbers} numbers"
    if not found.differences:
        options.echo(f"same: {scope}, all equal to the last bit.")
        return
    options.echo(f"different: {scope}, {len(found.differences)} differ.")
    for line in found.differences[:_SHOWN]:
        options.echo(f"  {line}")
    raise typer.Exit(1)
