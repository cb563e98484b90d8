"""`fedfade bench X`: how fast things are on this machine."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedfade.errors import not_allowed

if TYPE_CHECKING:
    import torch

    from fedfade.bench.stage import Figure
    from fedfade.config import Precision

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

JsonOption = Annotated[
    bool, typer.Option("--json", help="end with one line holding one JSON object")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda; small sizes on a CPU")]
PrecisionOption = Annotated[str, typer.Option(help="fp32, tf32 (CUDA) or bf16 (local training)")]


def report(figures: Mapping[str, object], json: bool) -> None:
    """Print figures as a table; with `json`, also as one JSON object on the last line."""
    table = Table("figure", "value", box=None)
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)
    if json:
        typer.echo(json_format.dumps(dict(figures), allow_nan=False))


@app.callback(invoke_without_command=True)
def wanted(
    context: typer.Context,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "tf32",
    only: Annotated[
        str | None,
        typer.Option(help="training, seeds, round, channel, max-sum-rate, grid: some of them"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure speed and memory on this machine.

    Without a command: the figures wanted of one GPU, each with the floor it stands on.
    """
    if context.invoked_subcommand is not None:
        _nothing_given(context)
        return
    from fedfade.bench.targets import measure

    columns = ("figure", "unit", "measured", "wanted", "floor", "share of floor", "")
    table = Table(*(Column(name, no_wrap=True) for name in columns), box=None)
    at_once = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def tell(name: str, figures: list[Figure], fault: str) -> None:
        for figure in figures:
            table.add_row(*_row(figure))
            at_once.print("  ".join(_row(figure)))  # a run cut short has shown what it had
        if fault:
            at_once.print(f"{name} failed: {fault}")

    found = measure(_device(device), _precision(precision), only, tell)
    Console(width=max(130, Console().width), highlight=False).print(table)
    if json:
        typer.echo(json_format.dumps(found, allow_nan=False))


def _nothing_given(context: typer.Context) -> None:
    """Options before a command would be lost on it."""
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise not_allowed(f"--{name}", value, f"after the command {context.invoked_subcommand}")


def _row(figure: Figure) -> list[str]:
    numbers = (figure.measured, figure.wanted, figure.floor, figure.share_of_floor)
    shown = ["-" if number is None else _number(number) for number in numbers]
    verdict = {True: "reached", False: "missed", None: ""}[figure.reached]
    words = ", ".join(filter(None, (verdict, figure.note)))
    return [figure.name, figure.unit, *shown, words]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _device(name: str) -> torch.device:
    from fedfade.device import pick_device

    if name not in ("auto", "cpu", "cuda"):
        raise not_allowed("--device", name, "auto, cpu or cuda")
    return pick_device(name)


def _precision(name: str) -> Precision:
    from typing import get_args

    from fedfade.config import Precision

    known: tuple[Precision, ...] = get_args(Precision)
    for precision in known:
        if name == precision:
            return precision
    raise not_allowed("--precision", name, f"one of {', '.join(known)}")


@app.command()
def channel(
    json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed batches")] = 15,
    clusters: Annotated[int, typer.Option(min=2, max=200, help="clusters")] = 21,
) -> None:
    """Fading, one thread, beside Sionna.

    CPU time of a client-round; Sionna where it is installed.
    """
    from fedfade.bench.channel import measure

    report(measure(repeats=repeats, clusters=clusters), json)


@app.command()
def schedule(json: JsonOption = False) -> None:
    """Exact max sum rate, one thread.

    Milliseconds a slot, and the ratio to enumeration.
    """
    from fedfade.bench.schedule import measure

    report(measure(), json)


@app.command()
def round(json: JsonOption = False) -> None:
    """Slots a second under each policy.

    One round of 10 clients x 250 slots for 20 episodes.
    """
    from fedfade.bench.uploads import measure

    report(measure(), json)


@app.command()
def learning(
    json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed rounds of each")] = 7,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of both")] = None,
    flower: Annotated[bool, typer.Option(help="also Flower's simulation, if installed")] = True,
) -> None:
    """A federated round beside a plain loop.

    Seconds, beside a textbook PyTorch loop, and Flower if installed.
    """
    from fedfade.bench.learning import measure

    report(measure(repeats, _device(device).type, flower, threads), json)


@app.command()
def train(
    json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed updates")] = 40,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
) -> None:
    """QMIX at the paper's sizes on the CPU.

    Updates a second, share of the bare matrix products, hours for the paper's training.
    """
    from fedfade.bench.train import measure

    report(measure(repeats=repeats, threads=threads), json)


@app.command()
def scale(json: JsonOption = False) -> None:
    """From 10 to 10,000 clients, one thread.

    CPU time of fading, slots and Gram matrix.
    """
    from fedfade.bench.scale import measure

    report(measure(), json)


@app.command()
def flower(
    json: JsonOption = False,
    rounds: Annotated[int, typer.Option(min=2, help="timed rounds of each")] = 5,
) -> None:
    """Flower's simulation, bare and behind us.

    Seconds per round of bare FedAvg, and with the uplink in between.
    """
    from fedfade.bench.flower import measure

    report(measure(rounds), json)


@app.command()
def soak(
    json: JsonOption = False,
    rounds: Annotated[int, typer.Option(min=50, help="federated rounds")] = 2000,
    batches: Annotated[int, typer.Option(min=50, help="batches of training episodes")] = 2000,
) -> None:
    """Memory along long runs: must stay flat.

    A long comparison and a long training of small size.
    """
    from fedfade.bench.soak import measure

    report(measure(rounds, batches), json)


@app.command()
def growth(
    json: JsonOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "tf32",
    out: Annotated[Path | None, typer.Option(help="folder for growth.csv and growth.png")] = None,
) -> None:
    """How cost grows with every size.

    Against clients, sub-bands, slots and trainings at once: curves, CSV, picture.
    """
    from fedfade.bench.growth import measure

    found = measure(_device(device), _precision(precision), out)
    points, failed = found["points"], found["failed"]
    assert isinstance(points, list)
    assert isinstance(failed, list)
    lines: dict[tuple[str, str], list[str]] = {}
    for work, axis, size, ms in points:
        lines.setdefault((work, axis), []).append(f"{size}: {ms:.3g}")
    table = Table("work", "grows with", "size: ms", box=None)
    for line, costs in lines.items():
        table.add_row(*line, ", ".join(costs))
    Console().print(table)
    for fault in failed:
        Console(stderr=True, soft_wrap=True, markup=False).print(fault)
    if json:
        typer.echo(json_format.dumps(found, allow_nan=False))


@app.command()
def precision(
    json: JsonOption = False,
    device: DeviceOption = "auto",
    rounds: Annotated[int | None, typer.Option(min=1, help="federated rounds")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="repetitions")] = 5,
) -> None:
    """What fp32, tf32 and bf16 do to results.

    To the accuracy of the model and to the values of agents.
    """
    from fedfade.bench.precision import measure

    found = measure(_device(device), rounds, seeds)
    rows, values = found["accuracy"], found["q_values"]
    assert isinstance(rows, list)
    assert isinstance(values, dict)
    table = Table("precision", "accuracy", "between seeds", "minus fp32", "seconds", box=None)
    for row in rows:
        table.add_row(
            row["precision"],
            f"{100 * row['accuracy']:.2f} %",
            f"{100 * row['between_seeds']:.2f}",
            f"{100 * row['difference']:+.2f} +- {100 * row['difference_error']:.2f}",
            f"{row['s']:.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"Q-values in tf32: at most {values['largest_difference']:.1e} of the largest away from "
        f"fp32, the same action in {100 * values['same_action']:.2f} % of observations"
    )
    if json:
        typer.echo(json_format.dumps(found, allow_nan=False))


@app.command()
def profile(
    json: JsonOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "tf32",
) -> None:
    """Where the time goes, kernel by kernel.

    A slot step, an update and a federated round.
    """
    from fedfade.bench.profile import measure

    found = measure(_device(device), _precision(precision))
    profiles = found["profiles"]
    assert isinstance(profiles, dict)
    table = Table("work", "us a call", "kernels", "us in them", "", box=None)
    for name, one in profiles.items():
        busy = ", ".join(f"{kind} {_number(us)}" for kind, us in one["busy_us"].items())
        whole = sum(one["busy_us"].values())
        table.add_row(name, _number(one["us"]), _number(one["kernels"]), _number(whole), busy)
        for kernel, us in one["top"]:
            table.add_row("", "", "", _number(us), f"  {kernel}")
    Console(width=max(110, Console().width), highlight=False, markup=False).print(table)
    if json:
        typer.echo(json_format.dumps(found, allow_nan=False))
