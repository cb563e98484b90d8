"""`fedfade bound`: the convergence bound against what really happens."""

from __future__ import annotations

import csv
import io
import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedfade.learning.estimation import BoundRow


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
    from fedfade.experiments.bound import policy_delivery
    from fedfade.experiments.comparison import QMIX
    from fedfade.learning import Federation, load_data
    from fedfade.learning.estimation import bound_along_run
    from fedfade.learning.figures import bound_terms, save
    from fedfade.storage import write_text

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
    federation = Federation(
        config.learning,
        load_data(config.learning),
        device=pick_device(config.run.device),
        precision=config.run.precision,
    )
    arrived = delivered if policy is None else policy_delivery(config, policy, federation)
    rows: list[BoundRow] = []
    total = config.run.rounds
    with stopping_cleanly("nothing was written"), time_left("rounds", total) as tell:
        for row in bound_along_run(federation, config.run.seed, total, arrived, draws):
            rows.append(row)
            tell(len(rows), "measuring")
    _print(rows)
    who = "all of" if delivered is None else f"{delivered} random of"
    who = f"{policy} decides which of" if policy is not None else who
    if table is not None:
        write_text(table, _csv(rows))
    if figure is not None:
        title = f"{config.learning.data}: {who} {config.learning.clients} clients deliver"
        save(bound_terms(rows, title), figure)
    if json:
        typer.echo(json_format.dumps({"rounds": [asdict(row) for row in rows]}))


def _print(rows: Sequence[BoundRow]) -> None:
    headings = ["round", "in", "L", "sigma_l", "sigma_g", "|∇F|²", "|ḡ-g|²"]
    headings += ["C1 term", "C2 term", "C3", "bound", "rescaled", "measured"]
    table = Table(*headings, box=None)
    every = max(1, len(rows) // 20)
    for row in rows:
        if row.round % every == 0 or row is rows[-1]:
            values = [row.smoothness, row.local_deviation, row.global_deviation]
            values += [row.gradient_squared, row.deviation, row.first, row.second, row.third]
            values += [row.bound, row.rescaled, row.measured]
            table.add_row(str(row.round), str(row.delivered), *(f"{v:.3g}" for v in values))
    console = Console(width=max(Console().width, 118))
    console.print(table)
    held = sum(row.measured <= row.bound for row in rows)
    held_rescaled = sum(row.measured <= row.rescaled for row in rows)
    empty = sum(row.bound >= 0 for row in rows)
    allowed = sum(row.rate_allowed for row in rows)
    console.print(
        f"bound held in {held} of {len(rows)} rounds (rescaled: {held_rescaled}); in {empty} it "
        f"is not below zero, so it promises no decrease; local rate within 1/(√8 E L) in "
        f"{allowed} (L is the largest slope change seen, a lower estimate)",
        highlight=False,
        soft_wrap=True,
    )


def _csv(rows: Sequence[BoundRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()
