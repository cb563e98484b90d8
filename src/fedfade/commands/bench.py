"""`fedfade bench X`: how fast things are on this machine."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="Measure speed and memory on this machine.", no_args_is_help=True, rich_markup_mode=None
)

JsonOption = Annotated[
    bool, typer.Option("--json", help="end with one line holding one JSON object")
]


def report(figures: Mapping[str, object], json: bool) -> None:
    """Print figures as a table; with `json`, also as one JSON object on the last line."""
    table = Table("figure", "value", box=None)
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)
    if json:
        typer.echo(json_format.dumps(dict(figures), allow_nan=False))


@app.command()
def channel(
    json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed batches")] = 15,
    clusters: Annotated[int, typer.Option(min=2, max=200, help="clusters")] = 21,
) -> None:
    """CPU time of a client-round of fading on one thread; beside Sionna where it is installed."""
    from fedfade.bench.channel import measure

    report(measure(repeats=repeats, clusters=clusters), json)


@app.command()
def schedule(json: JsonOption = False) -> None:
    """Exact max sum rate: milliseconds a slot on one thread, and the ratio to enumeration."""
    from fedfade.bench.schedule import measure

    report(measure(), json)


@app.command()
def round(json: JsonOption = False) -> None:
    """One round of 10 clients x 250 slots for 20 episodes under each policy: slots a second."""
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
    """Seconds per federated round beside a textbook PyTorch loop, and Flower if installed."""
    from fedfade.bench.learning import measure
    from fedfade.device import pick_device
    from fedfade.errors import not_allowed

    if device not in ("cpu", "cuda"):
        raise not_allowed("--device", device, "cpu or cuda")
    report(measure(repeats, pick_device(device).type, flower, threads), json)


@app.command()
def train(
    json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed updates")] = 40,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
) -> None:
    """QMIX at the paper's sizes: updates a second, share of the bare matrix products, hours."""
    from fedfade.bench.train import measure

    report(measure(repeats=repeats, threads=threads), json)


@app.command()
def scale(json: JsonOption = False) -> None:
    """CPU time of fading, slots and Gram matrix from 10 to 10,000 clients, on one thread."""
    from fedfade.bench.scale import measure

    report(measure(), json)


@app.command()
def flower(
    json: JsonOption = False,
    rounds: Annotated[int, typer.Option(min=2, help="timed rounds of each")] = 5,
) -> None:
    """Seconds per round of Flower's simulation: bare FedAvg, and behind the uplink."""
    from fedfade.bench.flower import measure

    report(measure(rounds), json)


@app.command()
def soak(
    json: JsonOption = False,
    rounds: Annotated[int, typer.Option(min=50, help="federated rounds")] = 2000,
    batches: Annotated[int, typer.Option(min=50, help="batches of training episodes")] = 2000,
) -> None:
    """Memory along a long comparison and a long training of small size: it must stay flat."""
    from fedfade.bench.soak import measure

    report(measure(rounds, batches), json)
