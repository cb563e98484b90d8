"""`fedfade export`: trained agents for devices without PyTorch."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    folder: Annotated[
        Path,
        typer.Argument(help="folder of a training, or agents that come along, such as qmix-plus"),
    ],
    onnx: Annotated[Path, typer.Option(help="folder to write the ONNX files to")],
) -> None:
    """Write one small ONNX file per client and the normalisation of its inputs."""
    from fedfade.agents import agents_folder
    from fedfade.agents.export import decision_us, export_agents

    files = export_agents(agents_folder(folder), onnx)
    size = sum(path.stat().st_size for path in files) // len(files)
    speed = decision_us(files[0])
    if speed is not None:
        typer.echo(f"one decision under ONNX Runtime: {speed:.0f} microseconds")
    typer.echo(f"{len(files)} clients, {size // 1024} KiB each, and normalisation.json: {onnx}")
