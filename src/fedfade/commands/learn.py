"""`fedfade learn`: FedAvg without a radio, every upload delivered."""

import json as json_format
import time
from pathlib import Path
from typing import Annotated

import typer

from fedfade.commands.options import (
    PresetArgument,
    SetOption,
    stopping_cleanly,
    time_left,
    with_fields,
)


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
    from fedfade.storage import check_folder, save_figure, write_text

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
    learning, run = config.learning, config.run
    federation = Federation(
        learning, load_data(learning), device=pick_device(run.device), precision=run.precision
    )
    numbers = list(range(run.seed, run.seed + run.seeds))
    begin = time.perf_counter()
    with stopping_cleanly("nothing was written"), time_left("rounds", run.rounds) as tell:
        points = learning_curve(
            federation, numbers, run.rounds, run.evaluate_every, delivered, tell
        )
    seconds = time.perf_counter() - begin
    if out is not None:
        lines = ["round,seed,accuracy,loss"]
        for point in points:
            rows = zip(numbers, point.accuracy, point.loss, strict=True)
            lines += [f"{point.rounds - 1},{s},{right:.6f},{loss:.6f}" for s, right, loss in rows]
        write_text(out / "curve.csv", "\n".join(lines) + "\n")
        try:
            from fedfade.learning.plots import learning_curves

            title = f"{learning.data}, FedAvg, {Path(preset).stem}"
            accuracies = [point.accuracy for point in points]
            figure = learning_curves([point.rounds for point in points], accuracies, title)
            save_figure(figure, out / "accuracy.png")
        except ImportError:  # a machine that only trains need not have Matplotlib
            typer.echo("Matplotlib is not installed: no picture.", err=True)
    final = points[-1].accuracy
    mean = sum(final) / len(final)
    each = ", ".join(f"{100 * value:.1f}" for value in final)
    typer.echo(
        f"after {run.rounds} rounds: {100 * mean:.1f} % mean test accuracy over {len(final)} "
        f"seed(s) ({each}), {seconds:.0f} s on {federation.device.type}"
    )
    if json:
        summary = {
            "rounds": run.rounds,
            "seeds": numbers,
            "accuracy": final,
            "mean_accuracy": mean,
            "loss": points[-1].loss,
            "seconds": seconds,
            "device": str(federation.device),
            "precision": run.precision,
        }
        typer.echo(json_format.dumps(summary))
