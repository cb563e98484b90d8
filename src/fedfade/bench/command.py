"""`fedfade bench X`: how fast things are on this machine."""

import json as json_format
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from fedfade.config import Precision
from fedfade.errors import not_allowed

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_ONLY = "training, seeds, round, channel, max-sum-rate, grid: some of them"
_EPISODES = "held environment: episodes side by side"
Json = Annotated[bool, typer.Option("--json", help="end with one line holding one JSON object")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda; small sizes on a CPU")]
BenchPrecision = Annotated[str, typer.Option(help="fp32, tf32 (CUDA) or bf16 (local training)")]


def measure(bench: str, **options: Any) -> dict[str, Any]:
    """What `module.function` of this room finds; modules are heavy, so only when asked for."""
    from fedfade.device import pick_device

    known, given = get_args(Precision), options.get("precision")
    if given not in (None, *known):
        raise not_allowed("--precision", given, f"one of {', '.join(known)}")
    if "device" in options:
        if options["device"] not in ("auto", "cpu", "cuda"):
            raise not_allowed("--device", options["device"], "auto, cpu or cuda")
        options["device"] = pick_device(options["device"])
    module, _, function = bench.partition(".")
    found: dict[str, Any] = getattr(import_module(f"fedfade.bench.{module}"), function)(**options)
    return found


def show(found: Any, json: bool, columns: Sequence[str], rows: Iterable[Any]) -> None:
    """Print a table, uncut at usual sizes; with `json`, end with one object on one line."""
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=max(130, Console().width), highlight=False, markup=False).print(table)
    if json:
        typer.echo(json_format.dumps(found, allow_nan=False))


def report(bench: str, json: bool, **options: Any) -> None:
    """Measure figures that have names, and print them."""
    found = measure(bench, **options)
    words = {n: f"{v:.4g}" if isinstance(v, float) else str(v) for n, v in found.items()}
    show(found, json, ("figure", "value"), words.items())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@app.callback(invoke_without_command=True)
def wanted(
    context: typer.Context,
    device: Device = "auto",
    precision: BenchPrecision = "tf32",
    only: Annotated[str | None, typer.Option(help=_ONLY)] = None,
    json: Json = False,
) -> None:
    """Measure speed and memory on this machine.

    Without a command: the figures wanted of one GPU, each with the floor it stands on.
    """
    if context.invoked_subcommand is not None:
        for name, value in context.params.items():  # it would be lost on the command
            if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
                where = f"after the command {context.invoked_subcommand}"
                raise not_allowed(f"--{name}", value, where)
        return
    rows: list[list[str]] = []

    def tell(one: Any) -> None:  # at once: a run cut short has shown what it had
        if not isinstance(one, str):
            numbers = (one.measured, one.wanted, one.floor, one.share_of_floor)
            verdict = {True: "reached", False: "missed", None: ""}[one.reached]
            words = ", ".join(filter(None, (verdict, one.note)))
            rows.append([one.name, one.unit, *map(_number, numbers), words])
            one = "  ".join(rows[-1])
        typer.echo(one, err=True)

    found = measure("targets.measure", device=device, precision=precision, only=only, tell=tell)
    show(found, json, ("figure", "unit", "measured", "wanted", "floor", "share of floor", ""), rows)


@app.command()
def channel(
    json: Json = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed batches")] = 15,
    clusters: Annotated[int, typer.Option(min=2, max=200, help="clusters")] = 21,
) -> None:
    """Fading, one thread, beside Sionna.
    CPU time of a client-round; Sionna where it is installed."""
    report("channel_speed.measure", json, repeats=repeats, clusters=clusters)


@app.command()
def schedule(json: Json = False) -> None:
    """Exact max sum rate, one thread. Milliseconds a slot, and the ratio to enumeration."""
    report("slot_speed.schedule", json)


@app.command()
def round(
    json: Json = False,
    episodes: Annotated[int, typer.Option(min=1, help="played side by side")] = 20,
    device: Annotated[str, typer.Option(help="of the slot step: auto, cpu or cuda")] = "cpu",
) -> None:
    """Slots a second under each policy. One round of 10 clients x 250 slots for 20 episodes, and
    the slot step under each link beside Shannon's; on a GPU the slot step alone."""
    report("slot_speed.rounds", json, episodes=episodes, device=device)


@app.command()
def learning(
    json: Json = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed rounds of each")] = 7,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of both")] = None,
    flower: Annotated[bool, typer.Option(help="also Flower's simulation, if installed")] = True,
) -> None:
    """A federated round beside a plain loop.
    Seconds, beside a textbook PyTorch loop, and Flower if installed."""
    how = {"repeats": repeats, "device": device, "threads": threads, "flower": flower}
    report("federated_round.measure", json, **how)


@app.command()
def train(
    json: Json = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed updates")] = 40,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
    episodes: Annotated[int, typer.Option(min=7, help=_EPISODES)] = 100,
    device: Annotated[str, typer.Option(help="held environment: auto, cpu or cuda")] = "cpu",
    paper: Annotated[bool, typer.Option(help="measure the paper's sizes too")] = True,
) -> None:
    """QMIX at the paper's sizes and with held decisions.
    Updates a second, share of the bare matrix products, hours for the paper's training, on the CPU;
    decisions and updates a second on the environment of preset qmix-hold. Beside BenchMARL's, if
    installed."""
    options = {"episodes": episodes, "device": device, "paper": paper}
    report("qmix_speed.train", json, repeats=repeats, threads=threads, **options)


@app.command()
def scale(json: Json = False) -> None:
    """From 10 to 10,000 clients, one thread. CPU time of fading, slots and Gram matrix."""
    report("slot_speed.scale", json)


@app.command()
def flower(
    json: Json = False, rounds: Annotated[int, typer.Option(min=2, help="timed rounds of each")] = 5
) -> None:
    """Flower's simulation, bare and behind us.
    Seconds per round of bare FedAvg, and with the uplink in between."""
    report("flower_speed.measure", json, rounds=rounds)


@app.command()
def peers(
    json: Json = False,
    repeats: Annotated[int, typer.Option(min=1, help="timed batches and rounds")] = 15,
    rounds: Annotated[int, typer.Option(min=2, help="timed rounds of Flower's")] = 5,
    episodes: Annotated[int, typer.Option(min=7, help=_EPISODES)] = 100,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of both")] = 1,
    paper: Annotated[bool, typer.Option(help="QMIX at the paper's sizes too")] = False,
) -> None:
    """What other libraries do as well, in one table.
    Fading beside Sionna, rounds beside a plain PyTorch loop and Flower, QMIX beside BenchMARL, on
    the CPU; whoever is not installed is named. Flower's simulation takes all cores."""
    sizes = {"repeats": repeats, "rounds": rounds, "episodes": episodes, "threads": threads}
    rows: list[list[str]] = []

    def tell(row: Any) -> None:  # at once: a run cut short has shown what it had
        numbers = map(_number, (row.ours, row.peer, row.ratio))
        rows.append([row.measured, row.unit, *numbers, row.who])
        typer.echo("  ".join(rows[-1]), err=True)

    found = measure("peers.measure", **sizes, paper=paper, tell=tell)
    cores = f"{found['cpu_count']} cores, --threads {threads}"
    typer.echo(f"{found['cpu']}, {cores}, fedfade {found['fedfade']}, PyTorch {found['torch']}")
    show(found, json, ("measured", "unit", "fedfade", "peer", "times as fast", "the peer"), rows)


@app.command()
def soak(
    json: Json = False,
    rounds: Annotated[int, typer.Option(min=50, help="federated rounds")] = 2000,
    batches: Annotated[int, typer.Option(min=50, help="batches of training episodes")] = 2000,
) -> None:
    """Memory along long runs: must stay flat.
    A long comparison and a long training of small size."""
    report("soak.measure", json, rounds=rounds, batches=batches)


@app.command()
def growth(
    json: Json = False,
    device: Device = "auto",
    precision: BenchPrecision = "tf32",
    out: Annotated[Path | None, typer.Option(help="folder for growth.csv and growth.png")] = None,
) -> None:
    """How cost grows with every size.
    Against clients, sub-bands, slots and trainings at once: curves, CSV, picture."""
    found = measure("growth.measure", device=device, precision=precision, out=out)
    lines: dict[tuple[str, str], list[str]] = {}
    for work, axis, size, ms in found["points"]:
        lines.setdefault((work, axis), []).append(f"{size}: {ms:.3g}")
    rows = [(*line, ", ".join(costs)) for line, costs in lines.items()]
    for fault in found["failed"]:
        typer.echo(fault, err=True)
    show(found, json, ("work", "grows with", "size: ms"), rows)


@app.command()
def precision(
    json: Json = False,
    device: Device = "auto",
    rounds: Annotated[int | None, typer.Option(min=1, help="federated rounds")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="repetitions")] = 5,
) -> None:
    """What fp32, tf32 and bf16 do to results.
    To the accuracy of the model and to the values of agents."""
    found = measure("precision.measure", device=device, rounds=rounds, seeds=seeds)
    values = found["q_values"]
    rows = [
        (
            one["precision"],
            f"{100 * one['accuracy']:.2f} %",
            f"{100 * one['between_seeds']:.2f}",
            f"{100 * one['difference']:+.2f} +- {100 * one['difference_error']:.2f}",
            f"{one['s']:.1f}",
        )
        for one in found["accuracy"]
    ]
    typer.echo(
        f"Q-values in tf32: at most {values['largest_difference']:.1e} of the largest away from "
        f"fp32, the same action in {100 * values['same_action']:.2f} % of observations"
    )
    show(found, json, ("precision", "accuracy", "between seeds", "minus fp32", "seconds"), rows)


@app.command()
def profile(
    json: Json = False, device: Device = "auto", precision: BenchPrecision = "tf32"
) -> None:
    """Where the time goes, kernel by kernel. A slot step, an update and a federated round."""
    found = measure("profile.measure", device=device, precision=precision)
    rows: list[Any] = []
    for name, one in found["profiles"].items():
        busy = ", ".join(f"{kind} {_number(us)}" for kind, us in one["busy_us"].items())
        whole = sum(one["busy_us"].values())
        rows.append((name, *map(_number, (one["us"], one["kernels"], whole)), busy))
        rows += [("", "", "", _number(us), f"  {kernel}") for kernel, us in one["top"]]
    show(found, json, ("work", "us a call", "kernels", "us in them", ""), rows)
