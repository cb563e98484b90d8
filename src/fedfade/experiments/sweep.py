"""Many configurations, one folder, one table.

    OUT/points/NAME/   one run folder a point, as the command itself leaves it
    OUT/sweep.csv      one line a point, seed and policy: what varies, and what came out
    OUT/sweep.yaml     what was asked

A point is known by its configuration, so a sweep that is started again, or grown, computes only
what is missing.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedfade.config import Config, load_config, parse_yaml
from fedfade.errors import UserError, not_allowed
from fedfade.experiments.points import Line, finished_lines
from fedfade.experiments.run_folder import decisive, mark
from fedfade.experiments.workers import Resources, Task
from fedfade.storage import folder_lock, read_bytes, write_text

MAX_POINTS = 100_000
MAX_BYTES = 2**20
_TABLE_S = 5.0  # seconds between tables while points come in
_TABLE_SHARE = 0.05  # and no more of the time than this, however many points there are


class ResourceConfig(BaseModel):
    """What one task gets; processes on one machine look at `cpus` only."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpus: int = Field(1, ge=1, description="cores, and threads of PyTorch")
    gpus: float = Field(0.0, ge=0, description="Ray: GPUs, or a share of one")
    custom: dict[str, float] = Field({}, description="Ray: other resources of the cluster")


class SweepConfig(BaseModel):
    """A sweep's YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    command: Literal["compare", "train", "reproduce"] = Field(
        "compare", description="what every point runs"
    )
    preset: str = Field(description="preset name or path of a .yaml file")
    set: dict[str, Any] = Field({}, description="overrides of all points")
    grid: dict[str, list[Any]] = Field({}, description="fields and their values; all combinations")
    points: list[dict[str, Any]] = Field(
        [], alias="list", description="overrides, point by point; each with the whole grid"
    )
    seeds: Annotated[int, Field(ge=1, le=1000)] | list[Annotated[int, Field(ge=0)]] = Field(
        1, description="how many, or which; every seed is a task of its own"
    )
    resources: ResourceConfig = ResourceConfig()
    retries: int = Field(3, ge=0, le=100, description="new attempts after the loss of a worker")


@dataclass(frozen=True)
class Point:
    """One configuration of a sweep."""

    name: str
    varied: dict[str, Any]  # the fields this sweep varies
    seed: int
    config: Config


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep."""

    asked: SweepConfig
    points: list[Point]

    @property
    def resources(self) -> Resources:
        """What one task gets."""
        given = self.asked.resources
        return Resources(given.cpus, given.gpus, dict(given.custom), self.asked.retries)


def load_sweep(path: Path, extra: Sequence[str] = ()) -> Sweep:
    """Read a sweep and check every point of it before anything runs."""
    asked = _read(path)
    points: dict[str, Point] = {}
    for varied in _combinations(asked):
        for seed in _seeds(asked):
            changes = asked.set | varied | {"run.seed": seed, "run.seeds": 1}
            overrides = [
                f"{n}={json.dumps(v, ensure_ascii=False, default=str)}" for n, v in changes.items()
            ]
            config = load_config(asked.preset, [*overrides, *extra])
            name = point_name(asked.command, varied, seed, config)
            if name in points:
                raise UserError(f"{str(path)!r} asks twice for {_slug(varied)} with seed {seed}.")
            points[name] = Point(name, varied, seed, config)
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


def _combinations(asked: SweepConfig) -> Iterator[dict[str, Any]]:
    for name in (name for part in (asked.set, asked.grid, *asked.points) for name in part):
        if name.strip() in ("run", "run.seed", "run.seeds"):
            raise UserError(
                f"sweep field {name!r} is not allowed: the sweep's own 'seeds' sets seeds, and "
                "other fields of run go by their full names."
            )
    count = math.prod(len(values) for values in asked.grid.values()) * max(1, len(asked.points))
    if not 0 < count <= MAX_POINTS:
        raise not_allowed("sweep", f"{count} points", f"at least 1 and at most {MAX_POINTS}")
    for listed in asked.points or [{}]:
        for values in itertools.product(*asked.grid.values()):
            both = listed.keys() & asked.grid.keys()
            if both:
                raise UserError(f"sweep field {min(both)!r} is both in grid and in list.")
            yield listed | dict(zip(asked.grid, values, strict=True))


def _seeds(asked: SweepConfig) -> list[int]:
    return list(range(asked.seeds)) if isinstance(asked.seeds, int) else asked.seeds


def point_name(command: str, varied: dict[str, Any], seed: int, config: Config) -> str:
    """A folder name a person can read, and a digest of the configuration.

    >>> config = load_config("paper")
    >>> point_name("compare", {"radio.clusters": 14}, 3, config)[:-8]
    'clusters=14_seed=3-'
    """
    parts = [_slug(varied), f"seed={seed}"] if varied else [f"seed={seed}"]
    return f"{'_'.join(parts)[-100:].lstrip('.')}-{mark(command, decisive(config))}"


def _slug(varied: dict[str, Any]) -> str:
    words = [f"{name.rpartition('.')[2]}={value}" for name, value in varied.items()]
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "-", "_".join(words)) or "the preset"


# --- running -----------------------------------------------------------------------------------

Compute = Callable[
    [Sequence[Task], Callable[[str, float], None]], Iterable[tuple[Task, str | None]]
]
"""Tasks to finished tasks, each with its failure or None."""


@dataclass
class Progress:
    """How far a sweep is."""

    total: int
    skipped: int
    done: int = 0
    failed: int = 0
    parts: dict[str, float] = field(default_factory=dict)  # running points

    @property
    def points(self) -> float:
        """Points done, with parts of those running."""
        return self.skipped + self.done + self.failed + sum(self.parts.values())


def run_sweep(
    sweep: Sweep, out: Path, compute: Compute, tell: Callable[[Progress], None]
) -> dict[str, str]:
    """Compute what is missing, write the table; returns failures by point."""
    with folder_lock(out):
        write_text(out / "sweep.yaml", _asked_yaml(sweep.asked))
        folders = {point.name: out / "points" / point.name for point in sweep.points}
        command = sweep.asked.command
        tasks = [
            Task(point.name, command, point.config, folders[point.name])
            for point in sweep.points
            if finished_lines(command, point.config, folders[point.name]) is None
        ]
        progress = Progress(len(sweep.points), len(sweep.points) - len(tasks))
        failures: dict[str, str] = {}
        tell(progress)

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
                tell(progress)
                now = time.monotonic()
                if now > due:
                    write_table(sweep, out, failures)
                    took = time.monotonic() - now
                    due = time.monotonic() + max(_TABLE_S, took / _TABLE_SHARE)
        finally:
            write_table(sweep, out, failures)
        return failures


def _asked_yaml(asked: SweepConfig) -> str:
    return str(yaml.safe_dump(asked.model_dump(by_alias=True), sort_keys=False))


def table_lines(sweep: Sweep, out: Path, failures: dict[str, str]) -> list[Line]:
    """Every point of the sweep: its results, or why there are none."""
    command = sweep.asked.command
    lines: list[Line] = []
    for point in sweep.points:
        folder = out / "points" / point.name
        head: Line = {"point": point.name, **point.varied, "seed": point.seed}
        results = finished_lines(command, point.config, folder)
        if results is not None:
            lines += [head | {"status": "done"} | result for result in results]
        elif point.name in failures:
            lines.append(head | {"status": "failed", "error": failures[point.name]})
        else:
            lines.append(head | {"status": "waiting"})
    return lines


def write_table(sweep: Sweep, out: Path, failures: dict[str, str]) -> None:
    """`sweep.csv`, whole or not at all."""
    lines = table_lines(sweep, out, failures)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _cell(value) for name, value in line.items()})
    write_text(out / "sweep.csv", text.getvalue())


def _cell(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return json.dumps(value, default=str) if isinstance(value, (list, dict)) else value


def seed_means(sweep: Sweep, lines: Sequence[Line]) -> list[Line]:
    """Finished lines, averaged over the seeds of each point and policy."""
    fields = list(dict.fromkeys(name for point in sweep.points for name in point.varied))
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line["status"] == "done":
            place = json.dumps([str(line.get(name, "")) for name in [*fields, "policy"]])
            groups.setdefault(place, []).append(line)
    answer = []
    for group in groups.values():
        first = group[0]
        head: Line = {name: first.get(name, "") for name in [*fields, "policy"]}
        head["seeds"] = len(group)
        numbers = [n for n, v in first.items() if isinstance(v, float) and n not in head]
        for name in numbers:
            values = [v for line in group if isinstance(v := line[name], float)]
            known = [v for v in values if not math.isnan(v)]
            head[name] = sum(known) / len(known) if known else math.nan
        answer.append(head)
    return answer
