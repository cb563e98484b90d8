"""`fedfade learn`: FedAvg without a radio, every upload delivered."""

from __future__ import annotations

import csv
import io
import json as json_format
import time
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
    from collections.abc import Sequence

    from fedfade.learning.round import CurvePoint


def learn(
    preset: PresetArgument,
    rounds: Annotated[int | None, typer.Option(help="federated rounds")] = None,
    seeds: Annotated[int | None, typer.Option(help="independent repetitions")] = None,
    delivered: Annotated[
        int | None, typer.Option(help="clients that deliver each round, drawn at random; all")
    ] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="rounds between evaluations")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder data sets are kept in")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 (CUDA) or bf16 (local training)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for curve.csv and accuracy.png")] = None,
    json: Annotated[bool, typer.Option("--json", help="end with one JSON object")] = False,
    overrides: SetOption = None,
) -> None:
    """Train with perfect uploads (or a random few) and report the test accuracy."""
    from fedfade.config import load_config
    from fedfade.device import pick_device
    from fedfade.learning import Federation, learning_curve, load_data
    from fedfade.storage import check_folder

    if out is not None:
        check_folder(out)
    fields = {
        "learning.data_dir": data_dir,
        "run.rounds": rounds,
        "run.seeds": seeds,
        "run.evaluate_every": evaluate_every,
        "run.device": device,
        "run.precision": precision,
    }
    config = load_config(preset, with_fields(overrides, fields))
    run = config.run
    all_seeds = [run.seed + i for i in range(run.seeds)]
    federation = Federation(
        config.learning,
        load_data(config.learning),
        device=pick_device(run.device),
        precision=run.precision,
    )
    begin = time.perf_counter()
    with stopping_cleanly("nothing was written"), time_left("rounds", run.rounds) as tell:
        points = learning_curve(
            federation, all_seeds, run.rounds, run.evaluate_every, delivered, tell
        )
    seconds = time.perf_counter() - begin
    final = points[-1].accuracy
    mean = sum(final) / len(final)
    if out is not None:
        _write(out, points, all_seeds, f"{config.learning.data}, FedAvg, {Path(preset).stem}")
    each = ", ".join(f"{100 * value:.1f}" for value in final)
    Console().print(
        f"after {run.rounds} rounds: {100 * mean:.1f} % mean test accuracy over {len(final)} "
        f"seed(s) ({each}), {seconds:.0f} s on {federation.device.type}",
        highlight=False,
        soft_wrap=True,
    )
    if json:
        typer.echo(
            json_format.dumps(
                {
                    "rounds": run.rounds,
                    "seeds": all_seeds,
                    "accuracy": final,
                    "mean_accuracy": mean,
                    "loss": points[-1].loss,
                    "seconds": seconds,
                    "device": str(federation.device),
                    "precision": run.precision,
                }
            )
        )


def _write(out: Path, points: Sequence[CurvePoint], seeds: Sequence[int], title: str) -> None:
    from fedfade.learning.figures import learning_curves, save
    from fedfade.storage import write_text

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", "seed", "accuracy", "loss"])
    for point in points:
        for seed, accuracy, loss in zip(seeds, point.accuracy, point.loss, strict=True):
            writer.writerow([point.rounds, seed, f"{accuracy:.6f}", f"{loss:.6f}"])
    write_text(out / "curve.csv", text.getvalue())
    try:
        save(learning_curves(points, seeds, title), out / "accuracy.png")
    except ImportError:  # a machine that only trains need not have Matplotlib
        Console(stderr=True).print("Matplotlib is not installed: no picture.", highlight=False)
