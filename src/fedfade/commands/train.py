"""`fedfade train`: train QMIX agents on the uplink."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedfade.commands.options import (
    PresetArgument,
    SetOption,
    stopping_cleanly,
    time_left,
    with_fields,
)

if TYPE_CHECKING:
    from fedfade.qmix import Report, Trainer


def train(
    preset: PresetArgument,
    out: Annotated[Path, typer.Option(help="folder of the training; continued if it has begun")],
    episodes: Annotated[int | None, typer.Option(help="training episodes")] = None,
    seed: Annotated[int | None, typer.Option(help="seed")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="policies trained side by side, from seed on")
    ] = 1,
    gradients: Annotated[
        str | None, typer.Option(help="learning, synthetic, or a recording (.npz)")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    precision: Annotated[str | None, typer.Option(help="on CUDA: fp32, tf32 or bf16")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder of the data sets")] = None,
    overrides: SetOption = None,
) -> None:
    """Train agents; interrupted anywhere, the same command continues to the same result."""
    import torch

    from fedfade.config import load_config
    from fedfade.qmix import train as run
    from fedfade.qmix.run import seed_folder

    fields = {
        "learning.data_dir": data_dir,
        "qmix.episodes": episodes,
        "run.seed": seed,
        "qmix.gradients": gradients,
        "run.device": device,
        "run.precision": precision,
    }
    config = load_config(preset, with_fields(overrides, fields))
    if threads is not None:
        torch.set_num_threads(threads)
    advice = f"the same command continues in {out}"
    with stopping_cleanly(advice), time_left("episodes", config.qmix.episodes) as progress:

        def tell(trainer: Trainer, reports: list[Report]) -> None:
            uploads = sum(report.uploads for report in reports) / len(reports)
            progress(reports[0].episodes, f"{uploads:.2f} uploads")

        numbers = range(config.run.seed, config.run.seed + seeds)
        trainer = run(config, out, tell, seeds=numbers)
    clients, name = config.learning.clients, Path(preset).stem
    for number in numbers:
        _finish(out if seeds == 1 else seed_folder(out, number), clients, name, trainer)


def _finish(out: Path, clients: int, name: str, trainer: Trainer) -> None:
    """Last figures and the curve of one seed."""
    from fedfade.qmix.run import saved_curve
    from fedfade.storage import writing

    curve = saved_curve(out)
    last = curve[-max(1, len(curve) // 20) :]
    uploads = sum(report.uploads for report in last) / len(last)
    typer.echo(
        f"{curve[-1].episodes} episodes, {trainer.learned} updates; uploads per round in the "
        f"last {len(last) * trainer.rollout.episodes} episodes: {uploads:.2f} of {clients}"
    )
    try:
        from fedfade.qmix.curve import curve_figure

        figure = curve_figure(curve, clients, f"QMIX on {name}")
        with writing(out / "curve.png") as temporary:
            figure.savefig(temporary, dpi=120)
        typer.echo(f"curve: {out / 'curve.png'}")
    except ImportError:
        Console(stderr=True).print("no curve.png: Matplotlib is not installed.", highlight=False)
