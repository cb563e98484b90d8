"""`fedfade partition`: who owns which samples."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedfade.commands.options import PICTURES, SetOption, check_output, with_fields

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    from fedfade.learning.figures import class_distribution, save

    if figure is not None:
        check_output("--figure", figure, *PICTURES)
    given = {"data_dir": data_dir, "data": data, "clients": clients}
    changes = with_fields(overrides, {f"learning.{name}": v for name, v in given.items()})
    base = load_config(preset, [*changes, f"run.seed={seed}"]).learning
    alphas = list(dict.fromkeys(alpha or [base.alpha]))
    configs = [load_config(preset, [*changes, f"learning.alpha={a}"]).learning for a in alphas]
    dataset = load_data(base)
    labels = dataset.train_labels.numpy()
    counts = {
        config.alpha: class_counts(labels, deal(config, labels, seed), len(dataset.classes))
        for config in configs
    }
    for value, table in counts.items():
        _print(value, table, dataset.classes)
    if figure is not None:
        title = f"{dataset.name}, {base.clients} clients, {base.partition}, seed {seed}"
        save(class_distribution(counts, dataset.classes, title), figure)
        Console().print(f"figure: {figure}", highlight=False)
    if json:
        typer.echo(json_format.dumps(_summary(counts, dataset.name, dataset.classes, seed)))


def _print(alpha: float, counts: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    shown = classes[:12]
    table = Table("client", *shown, "all", box=None, title=f"alpha = {alpha:g}")
    for client, row in enumerate(counts):
        cells = [str(value) for value in row[: len(shown)]]
        table.add_row(str(client), *cells, str(row.sum()))
    Console().print(table)
    if len(classes) > len(shown):
        Console().print(f"... and {len(classes) - len(shown)} more classes", highlight=False)


def _summary(
    counts: dict[float, NDArray[np.int64]], name: str, classes: tuple[str, ...], seed: int
) -> dict[str, object]:
    return {
        "data": name,
        "seed": seed,
        "classes": list(classes),
        "partitions": [
            {
                "alpha": alpha,
                "counts": table.tolist(),
                "share_std": float((table / table.sum(1, keepdims=True)).std(1).mean()),
            }
            for alpha, table in counts.items()
        ],
    }
