"""Many configurations, one folder, one table.

    OUT/points/NAME/   one run folder a point, as the command itself leaves it
    OUT/sweep.csv      one line a point, seed and policy: what varies, and what came out
    OUT/sweep.yaml     what was asked

A point is known by its configuration, so a sweep that is started again, or grown, computes only
what is missing.
"""

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedfade.config import Config, load_config, parse_yaml
from fedfade.errors import UserError, not_allowed
from fedfade.experiments.run_folder import decisive, in_words, mark
from fedfade.experiments.sweep_commands import SweepCommand, TableLine
from fedfade.experiments.workers import OnShare, Resources, Task
from fedfade.seams import SWEEP_COMMANDS
from fedfade.shown import cell
from fedfade.storage import folder_lock, make_folder, read_bytes, write_text

MAX_POINTS = 100_000
MAX_BYTES = 2**20
_TABLE_S = 5.0  # seconds between tables while points come in
_TABLE_SHARE = 0.05  # and no more of the time than this, however many points there are


class SweepConfig(BaseModel):
    """A sweep's YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    command: str = Field("compare", description="what every point runs")
    preset: str = Field(description="preset name or path of a .yaml file")
    set: dict[str, Any] = Field({}, description="overrides of all points")
    grid: dict[str, list[Any]] = Field({}, description="fields and their values; all combinations")
    points: list[dict[str, Any]] = Field(
        [], alias="list", description="overrides, point by point; each with the whole grid"
    )
    seeds: Annotated[int, Field(ge=1, le=1000)] | list[Annotated[int, Field(ge=0)]] = Field(
        1, description="how many, or which; every seed is a task of its own"
    )
    resources: Resources = Resources()
    retries: int = Field(3, ge=0, le=100, description="new attempts after the loss of a worker")


class SweepPoint(NamedTuple):
    """One configuration of a sweep."""

    name: str
    varied: dict[str, Any]  # the fields this sweep varies
    seed: int
    config: Config


class Sweep(NamedTuple):
    """What was asked, and all points of it."""

    asked: SweepConfig
    points: list[SweepPoint]


def load_sweep(path: Path, extra: Sequence[str] = ()) -> Sweep:
    """Read a sweep and check every point of it before anything runs."""
    asked = _read(path)
    SWEEP_COMMANDS.check(asked.command)
    seeds = range(asked.seeds) if isinstance(asked.seeds, int) else asked.seeds
    points: dict[str, SweepPoint] = {}
    for varied in _combinations(asked, len(seeds)):
        for seed in seeds:
            changes = asked.set | varied | {"run.seed": seed, "run.seeds": 1}
            quoted = {n: json.dumps(v, ensure_ascii=False, default=str) for n, v in changes.items()}
            overrides = [f"{name}={text}" for name, text in quoted.items()]
            config = load_config(asked.preset, [*overrides, *extra])
            name = point_name(asked.command, varied, seed, config)
            if name in points:
                what = in_words(varied) or "the preset"
                raise UserError(f"{str(path)!r} asks twice for {what} with seed {seed}.")
            points[name] = SweepPoint(name, varied, seed, config)
    return Sweep(asked, list(points.values()))


def _read(path: Path) -> SweepConfig:
    try:
        tree = parse_yaml(read_bytes(path, MAX_BYTES).decode("utf-8"))
    except ValueError as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise UserError(f"sweep {str(path)!r} is not valid YAML ({reason}).") from None
    if not isinstance(tree, dict):
        raise not_allowed(f"sweep {str(path)!r}", tree, "a mapping of fields")
    try:
        return SweepConfig.model_validate(tree)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        known = ", ".join(f.alias or n for n, f in SweepConfig.model_fields.items())
        if fault["type"] == "extra_forbidden":
            raise UserError(f"sweep field {where!r} is not known: a sweep has {known}.") from None
        if fault["type"] == "missing":
            raise UserError(f"sweep {str(path)!r} has no {where!r}.") from None
        allowed = fault["msg"].lower().removeprefix("input should be ")
        raise not_allowed(f"sweep field {where}", fault["input"], allowed) from None


def _combinations(asked: SweepConfig, seeds: int) -> Iterator[dict[str, Any]]:
    for name in (name for part in (asked.set, asked.grid, *asked.points) for name in part):
        if name.strip() in ("run", "run.seed", "run.seeds"):
            raise UserError(
                f"sweep field {name!r} is not allowed: the sweep's own 'seeds' sets seeds, and "
                "other fields of run go by their full names."
            )
    parts = (*asked.grid.values(), asked.points or [{}])
    count = math.prod(map(len, parts)) * seeds
    if not 0 < count <= MAX_POINTS:
        raise not_allowed("sweep", f"{count} points", f"at least 1 and at most {MAX_POINTS}")
    for listed in asked.points or [{}]:
        if both := listed.keys() & asked.grid.keys():
            raise UserError(f"sweep field {min(both)!r} is both in grid and in list.")
        for values in itertools.product(*asked.grid.values()):
            yield listed | dict(zip(asked.grid, values, strict=True))


def point_name(command: str, varied: dict[str, Any], seed: int, config: Config) -> str:
    """A folder name a person can read, and a digest: `clusters=14_seed=3-1f0c2a9e`."""
    parts = [in_words(varied), f"seed={seed}"] if varied else [f"seed={seed}"]
    return f"{'_'.join(parts)[-100:].lstrip('.')}-{mark(command, decisive(config))}"


# --- running -----------------------------------------------------------------------------------

Compute = Callable[[Sequence[Task], OnShare], Iterable[tuple[Task, str | None]]]
"""Tasks to finished tasks, each with its failure or None."""


@dataclass
class SweepProgress:
    """How far a sweep is."""

    done: int  # also by earlier runs of the sweep
    failed: int = 0
    parts: dict[str, float] = field(default_factory=dict)  # running points

    @property
    def points(self) -> float:
        """Points done, with parts of those running."""
        return self.done + self.failed + sum(self.parts.values())


def run_sweep(
    sweep: Sweep, out: Path, compute: Compute, tell: Callable[[SweepProgress], None]
) -> dict[str, str]:
    """Compute what is missing, write the table; returns failures by point."""
    command: SweepCommand = SWEEP_COMMANDS.make(sweep.asked.command)
    with folder_lock(out):
        asked = sweep.asked.model_dump(by_alias=True)
        write_text(out / "sweep.yaml", yaml.safe_dump(asked, sort_keys=False))
        tasks = [
            Task(point.name, sweep.asked.command, point.config, out / "points" / point.name)
            for point in sweep.points
            if _finished_lines(command, point, out) is None
        ]
        make_folder(out / "points")
        progress = SweepProgress(done=len(sweep.points) - len(tasks))
        failures: dict[str, str] = {}
        tell(progress)

        def write_table() -> None:
            table = sweep_table(sweep, out, failures).map(cell)
            write_text(out / "sweep.csv", table.to_csv(index=False, lineterminator="\n"))

        def share(name: str, part: float) -> None:
            progress.parts[name] = min(part, 0.99)
            tell(progress)

        due = time.monotonic() + _TABLE_S
        try:
            for task, failure in compute(tasks, share):
                progress.parts.pop(task.name, None)
                if failure is None:
                    progress.done += 1
                else:
                    progress.failed += 1
                    failures[task.name] = failure
                    make_folder(out / "points")  # refused where the sweep was moved away
                tell(progress)
                if (now := time.monotonic()) > due:
                    write_table()
                    took = time.monotonic() - now
                    due = time.monotonic() + max(_TABLE_S, took / _TABLE_SHARE)
        finally:
            write_table()
        return failures


def _finished_lines(command: SweepCommand, point: SweepPoint, out: Path) -> list[TableLine] | None:
    """What a point adds to the table; None if it needs work, and a damaged folder does."""
    try:
        return command.lines(point.config, out / "points" / point.name)
    except UserError:
        return None


def sweep_table(sweep: Sweep, out: Path, failures: Mapping[str, str]) -> pd.DataFrame:
    """Every point of the sweep: its results, or why there are none."""
    command: SweepCommand = SWEEP_COMMANDS.make(sweep.asked.command)
    lines: list[TableLine] = []
    for point in sweep.points:
        varied = {
            name: json.dumps(value, default=str) if isinstance(value, (list, dict)) else value
            for name, value in point.varied.items()
        }
        head: TableLine = {"point": point.name, **varied, "seed": point.seed}
        results = _finished_lines(command, point, out)
        if results is not None:
            lines += [head | {"status": "done"} | result for result in results]
        elif point.name in failures:
            lines.append(head | {"status": "failed", "error": failures[point.name]})
        else:
            lines.append(head | {"status": "waiting"})
    return pd.DataFrame(lines, dtype=object)  # whole numbers stay whole where some are missing


def seed_means(sweep: Sweep, table: pd.DataFrame) -> pd.DataFrame:
    """Finished lines, averaged over the seeds of each point and policy."""
    varied = dict.fromkeys(name for point in sweep.points for name in point.varied)
    done = table[table["status"] == "done"]
    if done.empty:
        return pd.DataFrame()
    place = done[[*varied, "policy"]]  # told apart as text: None is not a missing value
    group = place.map(str).groupby(list(place), sort=False, dropna=False).ngroup()
    head = place[~group.duplicated()].reset_index(drop=True)
    head = head.map(lambda value: "" if value != value else value)  # noqa: PLR0124 - NaN
    numbers = done.drop(columns=place.columns).infer_objects().select_dtypes("float")
    by_group = numbers.groupby(group)
    return head.assign(seeds=by_group.size()).join(by_group.mean())
