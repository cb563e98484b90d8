"""`fedfade partition`: who owns which samples."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedfade.commands.options import PICTURES, SetOption, check_output, with_fields

_CLASSES_SHOWN = 12


def partition(
    preset: Annotated[str, typer.Option(help="preset the other fields come from")] = "paper",
    data: Annotated[str | None, typer.Option(help="digits, cifar10 or a path")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder data sets are kept in")] = None,
    alpha: Annotated[
        list[float] | None, typer.Option(help="Dirichlet concentration (repeatable)")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="clients")] = None,
    seed: Annotated[int, typer.Option(help="seed of the partition")] = 0,
    figure: Annotated[Path | None, typer.Option(help="stacked bars, .png .pdf or .svg")] = None,
    json: Annotated[bool, typer.Option("--json", help="end with one JSON object")] = False,
    overrides: SetOption = None,
) -> None:
    """Count every client's samples per class, and draw the paper's picture of it."""
    from fedfade.config import load_config
    from fedfade.learning import class_counts, deal, load_data
    from fedfade.storage import save_figure

    if figure is not None:
        check_output("--figure", figure, *PICTURES)
    given = {"data_dir": data_dir, "data": data, "clients": clients}
    changes = with_fields(overrides, {f"learning.{name}": v for name, v in given.items()})
    base = load_config(preset, [*changes, f"run.seed={seed}"]).learning
    alphas = list(dict.fromkeys(alpha or [base.alpha]))
    configs = [load_config(preset, [*changes, f"learning.alpha={a}"]).learning for a in alphas]
    dataset = load_data(base)
    labels, classes = dataset.train_labels.numpy(), dataset.classes
    counts = {  # alpha: [client, class]
        config.alpha: class_counts(labels, deal(config, labels, seed), len(classes))
        for config in configs
    }
    for value, rows in counts.items():
        shown = classes[:_CLASSES_SHOWN]
        table = Table("client", *shown, "all", box=None, title=f"alpha = {value:g}")
        for client, row in enumerate(rows):
            table.add_row(str(client), *map(str, row[: len(shown)]), str(row.sum()))
        Console().print(table)
        if len(classes) > len(shown):
            typer.echo(f"... and {len(classes) - len(shown)} more classes")
    if figure is not None:
        from fedfade.learning.plots import class_distribution

        title = f"{dataset.name}, {base.clients} clients, {base.partition}, seed {seed}"
        save_figure(class_distribution(counts, classes, title), figure)
        typer.echo(f"figure: {figure}")
    if json:
        partitions = [
            {
                "alpha": value,
                "counts": rows.tolist(),
                "share_std": float((rows / rows.sum(1, keepdims=True)).std(1).mean()),
            }
            for value, rows in counts.items()
        ]
        summary = {"data": dataset.name, "seed": seed, "classes": list(classes)}
        typer.echo(json_format.dumps(summary | {"partitions": partitions}))
