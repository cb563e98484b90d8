"""What is kept of every round: one row per seed, policy and round, as CSV.

A metric is declared once, as a field of `Row`: how it is measured (from a `RunRound`) and, if
tables are to show it, how it is boiled down over seeds and rounds (`Shown`). Rows, files, tables
and the report follow from that; what rounds cost (`AddsUp`) is an axis of the report too.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfade.allocation import Outcome
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.learning import Payload
from fedfade.shown import cell, from_cell
from fedfade.storage import read_bytes
from fedfade.uplink import Spent

_MAX_BYTES = 2**30
_LARGEST = 1e300  # no count of bits is
_AVERAGED = "accuracy_averaged"
_OPTIONAL = ("seconds", "joules", "client_seconds", "client_joules", _AVERAGED)
"""Columns that are left out where they hold nothing: older runs have none of them."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class RunRound:
    """One run in one round, on the CPU: what its row is made from."""

    payload_bits: Payload
    accuracy: Tensor  # NaN in rounds that are not evaluated
    loss: Tensor
    train_loss: Tensor
    bias: Tensor
    delivered: Tensor  # [client] bool
    finite: Tensor  # [client] bool
    accuracy_averaged: Tensor  # of the mean of models; NaN where none is kept
    uploads: Tensor  # [client] rounds delivered in so far, this one included
    outcome: Outcome | None  # of this episode; None where every upload succeeds
    spent: Spent | None = None  # in the slots of this episode; likewise

    @property
    def payloads(self) -> float:
        """Bits of all uploads that count: those finished in time, or what arrived of them."""
        if self.outcome is not None and bool((self.delivered & ~self.outcome.delivered).any()):
            return float(self.outcome.bits[self.delivered].sum())
        if isinstance(self.payload_bits, Tensor):
            return float(self.payload_bits[self.delivered].sum())
        return self.payload_bits * int(self.delivered.sum())

    @property
    def bits(self) -> float:
        """Bits received from all clients."""
        return self.payloads if self.outcome is None else float(self.outcome.bits.sum())

    def of_slots(self, name: str) -> float:
        """A number of the slots played; NaN where there were none."""
        return math.nan if self.outcome is None else float(getattr(self.outcome, name))

    @property
    def joules(self) -> float:
        """Of all clients."""
        return math.nan if self.spent is None else float(self.spent.joules.sum())

    def by_client(self, name: str) -> str:
        """A number of `spent`, client after client."""
        each = [] if self.spent is None else getattr(self.spent, name).tolist()
        return " ".join(f"{value:.7g}" for value in each)


Series = Callable[[str], Numbers]
"""A policy's numbers by the name of the metric: [seed, round]."""


class Curve(NamedTuple):
    """How a metric is drawn round after round."""

    label: str
    scale: float = 1.0
    digits: int = 2


class AddsUp(NamedTuple):
    """What rounds cost: added up over them, an axis of the report beside the rounds themselves."""

    label: str  # "seconds"


class Shown(NamedTuple):
    """A column of the summary table and, with a title, a card of the report."""

    name: str
    heading: str
    value: Callable[[Series], Any]  # a number or two
    text: str = "{:.2f}"
    scale: float = 1.0
    title: str = ""
    unit: str = ""  # behind the number on a card
    better: int = 0  # 1: more is, -1: less is
    about: str = ""  # what it is, for whoever hovers

    @property
    def label(self) -> str:
        """What a picture calls it."""
        return self.title or self.heading

    @property
    def digits(self) -> int:
        """Behind the point in tables; of four that count, three."""
        return 3 if "g" in self.text else len(self.text.format(0.0).partition(".")[2])

    def format(self, value: float | Numbers) -> str:
        """As text; a dash for what was not measured."""
        scaled = self.scale * np.atleast_1d(value)
        return "-" if np.isnan(scaled).any() else self.text.format(*scaled)


def _numbers(members: Tensor) -> str:
    return " ".join(str(n) for n in members.nonzero().flatten().tolist())


def jain(uploads: Numbers) -> float:
    """Jain's fairness index: 1 when all clients got through equally often, 1/N for only one.

    >>> jain(np.array([1.0, 1.0, 0.0, 0.0]))
    0.5
    """
    total = float((uploads**2).sum())
    return float(uploads.sum()) ** 2 / (len(uploads) * total) if total > 0 else math.nan


def _band(of: Series) -> Numbers:
    """NaN where one seed was run, which shows no spread."""
    final = of("accuracy")[:, -1]
    return np.percentile(final, [10, 90]) if len(final) > 1 else np.full(2, np.nan)


def _wasted(of: Series) -> float:
    sent = of("bits_sent").sum()
    return of("bits_wasted").sum() / sent if sent > 0 else math.nan


def _fairness(of: Series) -> float:
    final = of("fairness")[:, -1]
    return math.nan if np.isnan(final).all() else float(np.nanmean(final))


class Row(NamedTuple):
    """One round of one run. NaN means: not measured (and is empty in the file)."""

    seed: int
    policy: str
    round: int
    # test accuracy after the round's average
    accuracy: Annotated[
        float,
        lambda run: run.accuracy,
        Curve("test accuracy in %", 100, 1),
        Shown(
            *("accuracy", "acc. %", lambda of: np.median(of("accuracy")[:, -1]), "{:.1f}", 100),
            *("Final accuracy", "%", 1, "test accuracy after the last round, median over seeds"),
        ),
        Shown("band", "10-90 %", _band, "{:.1f}-{:.1f}", 100, about="the same, range over seeds"),
    ]
    loss: Annotated[float, lambda run: run.loss, Curve("test loss", 1, 3)]
    # mean over clients and local steps
    train_loss: Annotated[float, lambda run: run.train_loss, Curve("training loss", 1, 3)]
    # clients that delivered; for the genie: its bound
    delivered: Annotated[
        float,
        lambda run: run.delivered.sum(),
        Curve("uploads a round"),
        Shown(
            *("uploads", "uploads", lambda of: of("delivered").mean(), "{:.2f}", 1),
            *("Uploads a round", "of {clients}", 1, "clients that delivered in a round, mean"),
        ),
        Shown(
            *("empty_rounds", "empty %", lambda of: (of("delivered") == 0).mean(), "{:.0f}", 100),
            better=-1,
            about="rounds in which nobody delivered and the model stayed",
        ),
    ]
    delivered_clients: Annotated[str, lambda run: _numbers(run.delivered)]
    # received from all clients
    bits_sent: Annotated[float, lambda run: run.bits, Curve("Mbit received in a round", 1e-6, 1)]
    # of these, from clients that did not finish
    bits_wasted: Annotated[
        float,
        lambda run: max(0.0, run.bits - run.payloads),
        Curve("Mbit wasted in a round", 1e-6, 1),
        Shown(
            *("wasted", "wasted %", _wasted, "{:.0f}", 100),
            *("Bits wasted", "%", -1, "bits of uploads that were not finished in time"),
        ),
    ]
    # mean over slots
    sum_rate_bps: Annotated[
        float,
        lambda run: run.of_slots("sum_rate_bps"),
        Curve("sum rate in Mbit/s", 1e-6, 1),
        Shown(
            *("sum_rate_bps", "Mbit/s", lambda of: of("sum_rate_bps").mean(), "{:.1f}", 1e-6),
            about="sum rate, mean over slots",
        ),
    ]
    # |mean of all updates - mean of those delivered|^2, the bound's second term (paper: eq. 25)
    gradient_bias: Annotated[float, lambda run: run.bias, Curve("bias of the average", 1, 4)]
    # Jain's index of uploads per client since round 0
    fairness: Annotated[
        float,
        lambda run: jain(run.uploads.numpy().astype(float)),
        Curve("fairness of uploads so far"),
        Shown(
            *("fairness", "fair", _fairness, "{:.2f}", 1),
            *("Fairness", "", 1, "Jain's index of uploads per client, 1 = all equal"),
        ),
    ]
    # sum of slot rewards
    reward: Annotated[float, lambda run: run.of_slots("reward"), Curve("reward of a round")]
    # clients whose update was not finite and was left out
    not_finite: Annotated[int, lambda run: (~run.finite).sum()]
    not_finite_clients: Annotated[str, lambda run: _numbers(~run.finite)]
    # from the broadcast to the end of the round
    seconds: Annotated[
        float,
        lambda run: math.nan if run.spent is None else run.spent.seconds.max(),
        AddsUp("seconds since the start"),
        Curve("seconds of a round"),
        Shown(
            *("seconds", "s", lambda of: of("seconds").mean(), "{:.2f}", 1),
            *("Time a round", "s", -1, "from the broadcast to the end of a round, mean"),
        ),
    ] = math.nan
    # drawn by all clients: receiving, training, sending
    joules: Annotated[
        float,
        lambda run: run.joules,
        AddsUp("joules drawn by all clients"),
        Curve("joules of a round"),
        Shown(
            *("joules", "J", lambda of: of("joules").mean(), "{:.2f}", 1),
            *("Energy a round", "J", -1, "drawn by all clients in a round, mean"),
        ),
    ] = math.nan
    # until each client had delivered, or the round was over
    client_seconds: Annotated[str, lambda run: run.by_client("seconds")] = ""
    client_joules: Annotated[str, lambda run: run.by_client("joules")] = ""
    # test accuracy of the mean of the global models; its column is there if one was kept
    accuracy_averaged: Annotated[
        float,
        lambda run: run.accuracy_averaged,
        Curve("test accuracy of the mean of models in %", 100, 1),
        Shown(
            *(_AVERAGED, "mean %", lambda of: np.median(of(_AVERAGED)[:, -1]), "{:.1f}", 100),
            better=1,
            about="test accuracy of the mean of the global models",
        ),
    ] = math.nan


_TYPES = get_type_hints(Row)
_NOTES = {
    name: hint.__metadata__
    for name, hint in get_type_hints(Row, include_extras=True).items()
    if hint is not _TYPES[name]
}
_SHOWN = {one.name: one for notes in _NOTES.values() for one in notes if isinstance(one, Shown)}
CURVES = {name: one for name, notes in _NOTES.items() for one in notes if isinstance(one, Curve)}
SPENT = {name: one for name, notes in _NOTES.items() for one in notes if isinstance(one, AddsUp)}
"""By field."""


def shown(rows: Iterable[Row]) -> list[Shown]:
    """Columns of the summary table, in order."""
    there = columns(rows)
    return [one for name, one in _SHOWN.items() if name in there or name not in _OPTIONAL]


def spent(rows: Iterable[Row]) -> dict[str, AddsUp]:
    """What rounds cost, if it was measured."""
    there = columns(rows)
    return {name: one for name, one in SPENT.items() if name in there}


def column(name: str) -> Shown:
    """How a number is shown, also one that the summary table has no column for."""
    return _SHOWN.get(name) or Shown(name, name, lambda of: math.nan, "{:.4g}")


def as_text(name: str, value: object) -> str:
    """A number as every table shows it; a dash for what was not measured.

    >>> as_text("accuracy", 0.44167), as_text("sum_rate_bps", 7.365e7), as_text("reward", math.nan)
    ('44.2', '73.6', '-')
    """
    return column(name).format(value) if isinstance(value, float) else str(value)


def measured_row(seed: int, policy: str, number: int, run: RunRound) -> Row:
    """The row of a run's round."""
    values = {name: _TYPES[name](measure(run)) for name, (measure, *_) in _NOTES.items()}
    return Row(seed, policy, number, **values)


def bound_row(seed: int, policy: str, number: int, delivered: float) -> Row:
    """A row that knows nothing but how many could have delivered."""
    missing: dict[type, Any] = {float: math.nan, str: "", int: 0}
    blank = {name: missing[_TYPES[name]] for name in _NOTES}
    return Row(seed, policy, number, **blank | {"delivered": delivered})


def rows_text(rows: Iterable[Row]) -> str:
    """Rows as the text of a file."""
    text, kept = io.StringIO(), list(rows)
    writer = csv.writer(text, lineterminator="\n")
    names = columns(kept)
    writer.writerow(names)
    each = ([getattr(row, name) for name in names] for row in kept)
    writer.writerows(["" if value != value else cell(value) for value in row] for row in each)  # noqa: PLR0124
    return text.getvalue()


def columns(rows: Iterable[Row]) -> list[str]:
    """Those of a file of these rows: all, but for optional ones that none has a value of."""
    held = set(Row._fields) - set(_OPTIONAL)
    for row in rows:
        held |= {name for name in _OPTIONAL if (value := getattr(row, name)) == value != ""}
    return [name for name in Row._fields if name in held]


def read_rows(path: Path) -> list[Row]:
    """Read rows back; anything else than such a file is refused in one sentence."""
    content = read_bytes(path, _MAX_BYTES)
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
        names = next(reader, [])
        if names != [n for n in Row._fields if n in names or n not in _OPTIONAL]:
            raise ValueError("columns")
        return [_parse(names, cells) for cells in reader]
    except (ValueError, csv.Error):
        raise UserError(f"{str(path)!r} is not a metrics file of fedfade compare.") from None


def _parse(names: Sequence[str], cells: Sequence[str]) -> Row:
    values: dict[str, Any] = {}
    for name, text in zip(names, cells, strict=True):
        values[name] = math.nan if _TYPES[name] is float and not text else _TYPES[name](text)
    row = Row(**values)
    row = row._replace(policy=from_cell(row.policy))
    if not row.policy:
        raise ValueError("no policy")
    return row


def check_complete(
    rows: Sequence[Row], path: Path, policies: Sequence[str], config: Config, rounds: int
) -> None:
    """Refuse rows that are not those of all policies, seeds and rounds, each once and possible."""
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    wanted = {(seed, name, r) for seed in seeds for name in policies for r in range(rounds)}
    found = {(row.seed, row.policy, row.round) for row in rows}
    clients = {str(n) for n in range(config.learning.clients)}
    named = {n for r in rows for n in f"{r.delivered_clients} {r.not_finite_clients}".split()}
    possible = all(_possible(row, config.learning.clients) for row in rows)
    if found != wanted or len(rows) != len(wanted) or named - clients or not possible:
        raise UserError(
            f"{str(path)!r} does not hold the {rounds} rounds of this run: it was changed or is "
            "damaged; start the run again in another folder."
        )


def _possible(row: Row, clients: int) -> bool:
    """Whether numbers of a row can be what they are called; a model that diverged has any loss."""
    most = dict.fromkeys(("seconds", "joules", "bits_sent", "sum_rate_bps"), _LARGEST)
    most |= {"accuracy": 1.0, _AVERAGED: 1.0, "fairness": 1.0 + 1e-9, "delivered": clients}
    most |= {"not_finite": clients, "bits_wasted": row.bits_sent}
    return all(
        0 <= (value := getattr(row, name)) <= top or value != value  # noqa: PLR0124 - NaN
        for name, top in most.items()
    ) and not math.isinf(row.reward)


def policies_of(rows: Iterable[Row]) -> list[str]:
    """Policies in order of first appearance."""
    return list(dict.fromkeys(row.policy for row in rows))


def series(rows: Iterable[Row], policy: str, field: str) -> Numbers:
    """One field of one policy: [seed, round], both in ascending order."""
    chosen = sorted((row for row in rows if row.policy == policy), key=lambda r: (r.seed, r.round))
    seeds = len({row.seed for row in chosen})
    return np.array([getattr(row, field) for row in chosen], float).reshape(seeds, -1)


def served(rows: Iterable[Row], policy: str, clients: int) -> Numbers:
    """Share of rounds in which each client delivered: [client]."""
    chosen = [row.delivered_clients.split() for row in rows if row.policy == policy]
    counts = np.bincount([int(c) for cells in chosen for c in cells], minlength=clients)
    return counts / max(1, len(chosen))


class Summary(SimpleNamespace):
    """One policy over all seeds and rounds: its name and a number for each column."""

    policy: str

    def text(self, name: str) -> str:
        """A number as tables show it."""
        return _SHOWN[name].format(getattr(self, name))

    def cells(self) -> Iterator[str]:
        """All that there are."""
        return (self.text(name) for name in _SHOWN if hasattr(self, name))


def summarise(rows: Sequence[Row], policy: str) -> Summary:
    """The line of the summary table."""
    own = [row for row in rows if row.policy == policy]
    of = partial(series, own, policy)
    return Summary(policy=policy, **{s.name: np.asarray(s.value(of)).tolist() for s in shown(rows)})
