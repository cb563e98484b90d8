"""`fedfade train`: train QMIX agents on the uplink."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedfade.commands.options import (
    PresetArgument,
    SetOption,
    stopping_cleanly,
    time_left,
    with_fields,
)

MIXER_NAMES = {
    "qmix": "QMIX",
    "qplex": "QPLEX",
    "vdn": "VDN",
    "independent": "independent agents",
}
"""What a training is called, by its `qmix.mixer`."""


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
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 (CUDA) or bf16 (local training)")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder of the data sets")] = None,
    overrides: SetOption = None,
) -> None:
    """Train agents; interrupted anywhere, the same command continues to the same result."""
    import torch

    from fedfade.agents import saved_curve, seed_folder, tensorboard_installed
    from fedfade.agents import train as run
    from fedfade.config import load_config

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
    side_by_side = config.qmix.parallel_episodes
    total = -(-config.qmix.episodes // side_by_side) * side_by_side  # whole batches are played
    asked = total == config.qmix.episodes
    unit = "episodes" if asked else f"episodes: batches of {side_by_side}"
    begun = False
    with stopping_cleanly(advice), time_left(unit, total) as progress:

        def tell(_: object, reports: Sequence[Any]) -> None:
            nonlocal begun
            if not begun and not tensorboard_installed():
                _say("no TensorBoard files: pip install 'fedfade[tensorboard]' for them.")
            begun = True
            uploads = sum(report.uploads for report in reports) / len(reports)
            progress(reports[0].episodes, f"{uploads:.2f} uploads")

        numbers = range(config.run.seed, config.run.seed + seeds)
        trainer = run(config, out, tell, seeds=numbers)
    if not begun:
        _say(f"already finished: {out}")
    folders = [out] if seeds == 1 else [seed_folder(out, number) for number in numbers]
    curves = [saved_curve(folder) for folder in folders]
    clients = config.learning.clients
    title = f"{MIXER_NAMES[config.qmix.mixer]} on {Path(preset).stem}"
    for folder, curve in zip(folders, curves, strict=True):
        last = curve[-max(1, len(curve) // 20) :]
        uploads = sum(report.uploads for report in last) / len(last)
        which = "" if folder == out else f"{folder.name}: "
        typer.echo(
            f"{which}{curve[-1].episodes} episodes, {trainer.learned} updates; uploads per round "
            f"in the last {len(last) * side_by_side} episodes: {uploads:.2f} of {clients}"
        )
    pictures = [([curve], folder) for folder, curve in zip(folders, curves, strict=True)]
    if folders != [out]:
        pictures.append((curves, out))
    try:
        for shown, folder in pictures:
            _draw(shown, folder / "curve.png", clients, title)
        typer.echo(f"curve: {out / 'curve.png'}")
    except ImportError:
        _say("no curve.png: Matplotlib is not installed.")


def _say(sentence: str) -> None:
    Console(stderr=True).print(sentence, highlight=False, markup=False)


def _draw(curves: Sequence[Sequence[Any]], path: Path, clients: int, title: str) -> None:
    from fedfade.agents.curve import curve_figure
    from fedfade.storage import writing

    with writing(path) as temporary:
        curve_figure(curves, clients, title).savefig(temporary, dpi=120)
