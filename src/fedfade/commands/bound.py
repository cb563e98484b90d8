"""`fedfade bound`: the convergence bound against what really happens."""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedfade.commands.options import (
    PICTURES,
    PresetArgument,
    SetOption,
    check_output,
    stopping_cleanly,
    time_left,
    with_fields,
)


def bound(
    preset: PresetArgument,
    rounds: Annotated[int | None, typer.Option(help="federated rounds")] = None,
    delivered: Annotated[
        int | None, typer.Option(help="clients that deliver each round, drawn at random; all")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="policy that decides who delivers, instead of --delivered")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="folder of fedfade train, for --policy qmix")
    ] = None,
    draws: Annotated[
        int, typer.Option(min=2, help="mini-batches per client behind each estimate")
    ] = 8,
    data_dir: Annotated[str | None, typer.Option(help="folder data sets are kept in")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    figure: Annotated[Path | None, typer.Option(help="picture, .png .pdf or .svg")] = None,
    table: Annotated[Path | None, typer.Option(help="every figure of every round, .csv")] = None,
    json: Annotated[bool, typer.Option("--json", help="end with one JSON object")] = False,
    overrides: SetOption = None,
) -> None:
    """Estimate L and the variances along a run; print the bound's terms and the real decrease."""
    from fedfade.config import load_config
    from fedfade.device import pick_device
    from fedfade.errors import UserError, not_allowed
    from fedfade.experiments.comparison import QMIX, bound_under
    from fedfade.storage import save_figure, write_text

    if figure is not None:
        check_output("--figure", figure, *PICTURES)
    if table is not None:
        check_output("--table", table, ".csv")
    if policy is not None and delivered is not None:
        raise UserError("--policy and --delivered exclude each other: choose one.")
    if checkpoint is not None and policy != QMIX:
        raise not_allowed("--policy", policy, "qmix where --checkpoint is given")
    fields = {
        "learning.data_dir": data_dir,
        "allocation.checkpoint": checkpoint,
        "run.rounds": rounds,
        "run.device": device,
    }
    config = load_config(preset, with_fields(overrides, fields))
    learning, run = config.learning, config.run
    delivering = delivered if policy is None else policy
    along_run, found = bound_under(config, delivering, pick_device(run.device), draws), []
    with stopping_cleanly("nothing was written"), time_left("rounds", run.rounds) as tell:
        for row in along_run:
            found.append(row)
            tell(len(found), "measuring")
    rows = [asdict(row) for row in found]
    _print(rows)
    if table is not None:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        write_text(table, "\n".join(lines) + "\n")
    if figure is not None:
        from fedfade.learning.plots import bound_terms

        who = "all of" if delivered is None else f"{delivered} random of"
        who = f"{policy} decides which of" if policy is not None else who
        title = f"{learning.data}: {who} {learning.clients} clients deliver"
        save_figure(bound_terms(found, title), figure)
    if json:
        typer.echo(json_format.dumps({"rounds": rows}))


def _print(rows: Sequence[dict[str, Any]]) -> None:
    headings = ["round", "in", "L", "sigma_l", "sigma_g", "|∇F|²", "|ḡ-g|²"]
    headings += ["C1 term", "C2 term", "C3", "bound", "rescaled", "measured"]
    table = Table(*headings, box=None)
    every = max(1, len(rows) // 20)
    for row in rows:
        if row["round"] % every == 0 or row is rows[-1]:
            number, delivered, *values = (v for name, v in row.items() if name != "rate_allowed")
            table.add_row(str(number), str(delivered), *(f"{value:.3g}" for value in values))
    Console(width=max(Console().width, 118)).print(table)
    held = sum(row["measured"] <= row["bound"] for row in rows)
    held_rescaled = sum(row["measured"] <= row["rescaled"] for row in rows)
    empty = sum(row["bound"] >= 0 for row in rows)
    allowed = sum(row["rate_allowed"] for row in rows)
    typer.echo(
        f"bound held in {held} of {len(rows)} rounds (rescaled: {held_rescaled}); in {empty} it "
        f"is not below zero, so it promises no decrease; local rate within 1/(√8 E L) in "
        f"{allowed} (L is the largest slope change seen, a lower estimate)"
    )
