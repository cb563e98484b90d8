"""`fedfade learn`, `bound`, `partition`, `data`: the learning task, mostly without a radio."""

import json as json_format
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfade.commands import options
from fedfade.config import Config, LearningConfig, changed, load_config
from fedfade.errors import UserError, not_allowed
from fedfade.storage import check_folder, save_figure, write_text
from fedfade.wording import counted

_CLASSES_SHOWN = 12
_POLICY = "policy that decides who delivers, instead of --delivered; fedfade compare -h lists them"
_CHECKPOINT = "folder of fedfade train, for --policy qmix"
_DRAWS = "mini-batches per client behind each estimate"
_ALPHA = "Dirichlet concentration (repeatable)"
_DATA_DIR = "folder data sets are kept in; FEDFADE_DATA if not given"


def _federation(config: Config) -> Any:
    from fedfade.device import pick_device
    from fedfade.learning import Federation, load_data

    learning, device = config.learning, pick_device(config.run.device)
    return Federation(learning, load_data(learning), device=device, precision=config.run.precision)


def learn(
    preset: options.PresetArgument,
    rounds: options.RoundsOption = None,
    seeds: options.SeedsOption = None,
    delivered: options.DeliveredOption = None,
    evaluate_every: Annotated[int | None, options.field(help="rounds between evaluations")] = None,
    data_dir: options.DataDirOption = None,
    device: options.DeviceOption = None,
    precision: options.PrecisionOption = None,
    threads: options.ThreadsOption = None,
    out: Annotated[Path | None, typer.Option(help="folder for curve.csv and accuracy.png")] = None,
    json: options.JsonOption = False,
    overrides: options.SetOption = None,
) -> None:
    """Train with perfect uploads (or a random few) and report the test accuracy."""
    from fedfade.learning import learning_curve

    if out is not None:
        check_folder(out)
    counts = {"rounds": rounds, "seeds": seeds, "evaluate_every": evaluate_every}
    where = {"data_dir": data_dir, "device": device, "precision": precision}
    config = options.asked_config(preset, overrides, **counts, **where)
    options.use_threads(threads)
    federation, run = _federation(config), config.run
    numbers = list(range(run.seed, run.seed + run.seeds))
    begin = time.perf_counter()
    with options.running("rounds", run.rounds, "nothing was written") as tell:
        asked = (run.rounds, run.evaluate_every, delivered)
        points = learning_curve(federation, numbers, *asked, tell)
    seconds = time.perf_counter() - begin
    if out is not None:
        _write_curve(out, numbers, points, f"{config.learning.data}, FedAvg, {Path(preset).stem}")
    final = points[-1].accuracy
    mean = sum(final) / len(final)
    each = ", ".join(f"{100 * value:.1f}" for value in final)
    options.echo(
        f"after {counted(run.rounds, 'round')}: {100 * mean:.1f} % mean test accuracy over "
        f"{counted(len(final), 'seed')} ({each}), {seconds:.0f} s on {federation.device.type}"
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
        options.echo(json_format.dumps(summary))


def _write_curve(out: Path, seeds: Sequence[int], points: Sequence[Any], title: str) -> None:
    """`curve.csv` and `accuracy.png` of a `learning_curve`."""
    lines = ["round,seed,accuracy,loss"]
    for point in points:
        rows = zip(seeds, point.accuracy, point.loss, strict=True)
        lines += [f"{point.rounds - 1},{s},{right:.6f},{loss:.6f}" for s, right, loss in rows]
    write_text(out / "curve.csv", "\n".join(lines) + "\n")
    try:
        from fedfade.learning.plots import learning_curves

        accuracies = [point.accuracy for point in points]
        figure = learning_curves([point.rounds for point in points], accuracies, title)
        save_figure(figure, out / "accuracy.png")
    except ImportError:  # a machine that only trains need not have Matplotlib
        options.say("Matplotlib is not installed: no picture.")


def bound(
    preset: options.PresetArgument,
    rounds: options.RoundsOption = None,
    delivered: options.DeliveredOption = None,
    policy: Annotated[str | None, typer.Option(help=_POLICY)] = None,
    checkpoint: Annotated[Path | None, typer.Option(help=_CHECKPOINT)] = None,
    draws: Annotated[int, typer.Option(min=2, help=_DRAWS)] = 8,
    data_dir: options.DataDirOption = None,
    device: options.DeviceOption = None,
    threads: options.ThreadsOption = None,
    figure: options.FigureOption = None,
    table: Annotated[Path | None, typer.Option(help="every figure of every round, .csv")] = None,
    json: options.JsonOption = False,
    overrides: options.SetOption = None,
) -> None:
    """Estimate L and the variances along a run; print the bound's terms and the real decrease."""
    from fedfade.device import pick_device
    from fedfade.experiments.comparison import QMIX, bound_under

    options.check_output("--figure", figure, *options.PICTURES)
    options.check_output("--table", table, ".csv")
    if policy is not None and delivered is not None:
        raise UserError("--policy and --delivered exclude each other: choose one.")
    if checkpoint is not None and policy != QMIX:
        raise not_allowed("--policy", policy, "qmix where --checkpoint is given")
    fields = {"data_dir": data_dir, "checkpoint": checkpoint, "rounds": rounds, "device": device}
    config = options.asked_config(preset, overrides, **fields)
    options.use_threads(threads)
    delivering = delivered if policy is None else policy
    along_run, found = bound_under(config, delivering, pick_device(config.run.device), draws), []
    with options.running("rounds", config.run.rounds, "nothing was written") as tell:
        for row in along_run:
            found.append(row)
            tell(len(found), "measuring")
    rows = [asdict(row) for row in found]
    _print_bound(rows)
    if table is not None:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        write_text(table, "\n".join(lines) + "\n")
    if figure is not None:
        from fedfade.learning.plots import bound_terms

        who = "all of" if delivered is None else f"{delivered} random of"
        who = f"{policy} decides which of" if policy is not None else who
        who = f"{who} {counted(config.learning.clients, 'client')} deliver"
        save_figure(bound_terms(found, f"{config.learning.data}: {who}"), figure)
    if json:
        options.echo(json_format.dumps({"rounds": rows}))


def _print_bound(rows: Sequence[dict[str, Any]]) -> None:
    headings = ["round", "in", "L", "sigma_l", "sigma_g", "|∇F|²", "|ḡ-g|²"]
    headings += ["C1 term", "C2 term", "C3", "bound", "rescaled", "measured"]
    table = Table(*headings, box=None)
    every = max(1, len(rows) // 20)
    for row in rows:
        if row["round"] % every == 0 or row is rows[-1]:
            number, delivered, *values = (v for name, v in row.items() if name != "rate_allowed")
            table.add_row(str(number), str(delivered), *(f"{value:.3g}" for value in values))
    options.PlainConsole(width=max(options.PlainConsole().width, 118)).print(table)
    held = sum(row["measured"] <= row["bound"] for row in rows)
    held_rescaled = sum(row["measured"] <= row["rescaled"] for row in rows)
    empty = sum(row["bound"] >= 0 for row in rows)
    allowed = sum(row["rate_allowed"] for row in rows)
    options.echo(
        f"bound held in {held} of {counted(len(rows), 'round')} (rescaled: {held_rescaled}); in "
        f"{empty} it is not below zero, so it promises no decrease; local rate within 1/(√8 E L) "
        f"in {allowed} (L is the largest slope change seen, a lower estimate)"
    )


def partition(
    preset: Annotated[str, typer.Option(help="preset the other fields come from")] = "paper",
    data: Annotated[str | None, options.field(help="digits, cifar10 or a path")] = None,
    data_dir: options.DataDirOption = None,
    alpha: Annotated[list[float] | None, options.field(help=_ALPHA)] = None,
    clients: Annotated[int | None, options.field(help="clients")] = None,
    seed: Annotated[int, typer.Option(help="seed of the partition")] = 0,
    figure: Annotated[Path | None, typer.Option(help="stacked bars, .png .pdf or .svg")] = None,
    json: options.JsonOption = False,
    overrides: options.SetOption = None,
) -> None:
    """Count every client's samples per class, and draw the paper's picture of it."""
    from fedfade.learning import class_counts, deal, load_data

    options.check_output("--figure", figure, *options.PICTURES)
    fields = {"data_dir": data_dir, "data": data, "clients": clients, "seed": seed}
    config = load_config(preset, options.with_fields(overrides, **fields))
    base = config.learning
    dealt = [changed(config, {"learning.alpha": a}) for a in alpha or [base.alpha]]
    options.tell_idle(preset, *dealt)
    tasks = [one.learning for one in dealt]
    dataset = load_data(base)
    labels, classes = dataset.train_labels.numpy(), dataset.classes
    counts = {  # alpha: [client, class]
        task.alpha: class_counts(labels, deal(task, labels, seed), len(classes)) for task in tasks
    }
    shown = classes[:_CLASSES_SHOWN]
    for value, rows in counts.items():
        table = Table("client", *shown, "all", box=None, title=f"alpha = {value:g}")
        for client, row in enumerate(rows):
            table.add_row(str(client), *map(str, row[: len(shown)]), str(row.sum()))
        options.PlainConsole().print(table)
        if more := len(classes) - len(shown):
            options.echo(f"... and {more} more class{'es' if more > 1 else ''}")
    if figure is not None:
        from fedfade.learning.plots import class_distribution

        title = f"{dataset.name}, {counted(base.clients, 'client')}, {base.partition}, seed {seed}"
        save_figure(class_distribution(counts, classes, title), figure)
        options.echo(f"figure: {figure}")
    if json:
        shares = {value: rows / rows.sum(1, keepdims=True) for value, rows in counts.items()}
        partitions = [
            {"alpha": v, "counts": rows.tolist(), "share_std": float(shares[v].std(1).mean())}
            for v, rows in counts.items()
        ]
        summary = {"data": dataset.name, "seed": seed, "classes": list(classes)}
        options.echo(json_format.dumps(summary | {"partitions": partitions}))


def data(
    name: Annotated[str, typer.Argument(help="cifar10 or digits")],
    data_dir: Annotated[Path | None, typer.Option(help=_DATA_DIR)] = None,
) -> None:
    """Use the data set that is there, or download it; then say what it holds."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from fedfade.learning import data_folder, load_data
    from fedfade.learning.download import fetch_cifar10

    if name not in ("cifar10", "digits"):
        raise not_allowed("data set", name, "cifar10 or digits (your own .npz need no command)")
    where = "bundled with scikit-learn"
    if name == "cifar10":
        columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=options.PlainConsole(stderr=True)) as bar:
            task = bar.add_task("CIFAR-10", total=None, visible=False)

            def tell(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total or None, visible=True)

            where = str(fetch_cifar10(data_folder(data_dir), tell=tell))
    found = load_data(LearningConfig(data=name, data_dir=str(data_dir) if data_dir else None))
    channels, height, width = found.shape
    options.echo(
        f"{name}: {len(found.train_labels)} training and {len(found.test_labels)} test images of "
        f"{height} x {width} x {channels}, {len(found.classes)} classes, {where}"
    )
