"""What is kept of every round: one row per seed, policy and round, as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.storage import read_bytes, write_text


class Row(NamedTuple):
    """One round of one run. NaN means: not measured (and is empty in the file)."""

    seed: int
    policy: str
    round: int
    accuracy: float  # test accuracy after the round's average
    loss: float  # test loss
    train_loss: float  # mean over clients and local steps
    delivered: float  # clients that delivered; for the genie: its bound
    delivered_clients: str  # their numbers, separated by blanks
    bits_sent: float  # received from all clients
    bits_wasted: float  # of these, from clients that did not finish
    sum_rate_bps: float  # mean over slots
    gradient_bias: float  # |mean of all updates - mean of those delivered|^2 (eq. 25, second term)
    fairness: float  # Jain's index of uploads per client since round 0
    reward: float  # sum of slot rewards
    not_finite: int  # clients whose update was not finite and was left out
    not_finite_clients: str  # their numbers, separated by blanks


_TYPES = get_type_hints(Row)
_MAX_BYTES = 2**30


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write all rows, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in rows:
        writer.writerow(["" if _is_nan(value) else _shown(value) for value in row])
    write_text(path, text.getvalue())


def read_rows(path: Path) -> list[Row]:
    """Read rows back; anything else than such a file is refused in one sentence."""
    content = read_bytes(path, _MAX_BYTES)
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
        if tuple(next(reader, ())) != Row._fields:
            raise ValueError("columns")
        return [_parse(cells) for cells in reader]
    except (ValueError, csv.Error):
        raise UserError(f"{str(path)!r} is not a metrics file of fedfade compare.") from None


def _parse(cells: Sequence[str]) -> Row:
    values: list[Any] = []
    for kind, cell in zip(_TYPES.values(), cells, strict=True):
        values.append(math.nan if kind is float and cell == "" else kind(cell))
    row = Row(*values)
    if not row.policy:
        raise ValueError("no policy")
    return row


def check_complete(
    rows: Sequence[Row], path: Path, policies: Sequence[str], config: Config, rounds: int
) -> None:
    """Refuse rows that are not those of all policies, seeds and rounds, each once."""
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    wanted = {(seed, name, r) for seed in seeds for name in policies for r in range(rounds)}
    found = {(row.seed, row.policy, row.round) for row in rows}
    clients = {str(n) for n in range(config.learning.clients)}
    lists = (
        cell.split() for row in rows for cell in (row.delivered_clients, row.not_finite_clients)
    )
    if found != wanted or len(rows) != len(wanted) or any(set(cell) - clients for cell in lists):
        raise UserError(
            f"{str(path)!r} does not hold the {rounds} rounds of this run: it was changed or is "
            "damaged; start the run again in another folder."
        )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def policies_of(rows: Iterable[Row]) -> list[str]:
    """Policies in order of first appearance."""
    return list(dict.fromkeys(row.policy for row in rows))


def series(rows: Iterable[Row], policy: str, field: str) -> NDArray[np.float64]:
    """One field of one policy: [seed, round], both in ascending order."""
    chosen = sorted((row for row in rows if row.policy == policy), key=lambda r: (r.seed, r.round))
    seeds = len({row.seed for row in chosen})
    return np.array([getattr(row, field) for row in chosen], float).reshape(seeds, -1)


def served(rows: Iterable[Row], policy: str, clients: int) -> NDArray[np.float64]:
    """Share of rounds in which each client delivered: [client]."""
    chosen = [row.delivered_clients.split() for row in rows if row.policy == policy]
    counts = np.bincount([int(c) for cells in chosen for c in cells], minlength=clients)
    return counts / max(1, len(chosen))


def jain(uploads: NDArray[np.float64]) -> float:
    """Jain's fairness index: 1 when all clients got through equally often, 1/N for only one.

    >>> jain(np.array([1.0, 1.0, 0.0, 0.0]))
    0.5
    """
    total = float((uploads**2).sum())
    return float(uploads.sum()) ** 2 / (len(uploads) * total) if total > 0 else math.nan


class Summary(NamedTuple):
    """One policy over all seeds and rounds."""

    policy: str
    accuracy: tuple[float, float, float]  # final: median, 10 %, 90 % over seeds
    uploads: float  # delivered clients a round
    empty_rounds: float  # share of rounds in which nobody delivered
    wasted: float  # share of received bits that came from unfinished uploads
    fairness: float  # Jain's index at the end
    sum_rate_bps: float


def summarise(rows: Sequence[Row], policy: str) -> Summary:
    """The line of the summary table."""
    accuracy = series(rows, policy, "accuracy")
    final = accuracy[:, -1]
    delivered = series(rows, policy, "delivered")
    sent = series(rows, policy, "bits_sent").sum()
    wasted = series(rows, policy, "bits_wasted").sum()
    fairness = series(rows, policy, "fairness")[:, -1]
    low, middle, high = np.percentile(final, [10, 50, 90])
    return Summary(
        policy=policy,
        accuracy=(float(middle), float(low), float(high)),
        uploads=float(delivered.mean()),
        empty_rounds=float((delivered == 0).mean()),
        wasted=float(wasted / sent) if sent > 0 else math.nan,
        fairness=float(np.nanmean(fairness)) if not np.isnan(fairness).all() else math.nan,
        sum_rate_bps=float(series(rows, policy, "sum_rate_bps").mean()),
    )
