"""The federated runs of the study, side by side, and tables of how they ended."""

import math
from collections.abc import Callable
from pathlib import Path

from pandas import DataFrame

from fedfade.config import changed
from fedfade.device import pick_device
from fedfade.experiments import compare_many
from fedfade.experiments.run_folder import mark
from fedfade.studies.frames import Bar, StudyRun, labelled, matching
from fedfade.studies.levers.plan import Levers, fits
from fedfade.studies.noise import Difference, beyond, paired

ENOUGH = 0.95  # of what perfect upload ends at
LINE = ["part", "point", "allocation", "codec", "server"]


def compute(levers: Levers, out: Path, bar: Bar) -> dict[str, DataFrame]:
    """The tables of the study; what is finished is read."""
    planned = planned_runs(levers, out)
    with bar("rounds", sum(run.config.run.rounds for run in planned)) as tell:
        rows = played(levers, planned, tell)
    return {"seeds": ends(levers, rows), "curves": curves(rows)}


def amounts(levers: Levers) -> dict[str, float]:
    """The work of `compute` by its bar, in federated rounds of one run."""
    configs = [run.config for run in planned_runs(levers, Path())]
    runs = (c.run.rounds * c.run.seeds * len(c.allocation.policies) for c in configs)
    return {"rounds": float(sum(runs))}


def planned_runs(levers: Levers, out: Path) -> list[StudyRun]:
    """One comparison for each point, codec and server rule, with all their policies."""
    runs = []
    for part in levers.parts:
        for point, own in part.points.items():
            base = part.config(point)
            groups: dict[tuple[str, str], list[str]] = {}
            for line in part.lines:
                policy = levers.allocations[line.allocation]
                if fits(policy, base):
                    groups.setdefault((line.codec, line.server), []).append(policy)
            for (codec, server), policies in groups.items():
                fields = {**levers.fields[codec], **levers.fields[server]}
                config = changed(base, {**fields, "allocation.policies": policies})
                slot_s = config.radio.slots * config.radio.slot_s
                labels = {"part": part.name, "point": point, "load": float(own["load"])}
                labels |= {"codec": codec, "server": server, "round_s": slot_s}
                # Another list of policies is another run, and its folder another one.
                name = f"{codec}-{server}-{mark(policies)}"
                folder = out / "runs" / part.name / point.replace("/", "-").replace(" ", "-") / name
                runs.append(StudyRun(labels, config, folder))
    return runs


def played(levers: Levers, runs: list[StudyRun], tell: Callable[[int, str], None]) -> DataFrame:
    """The rows of all runs; finished ones are read."""
    device = pick_device(levers.parts[0].base.run.device)
    configs, folders = [run.config for run in runs], [run.folder for run in runs]
    rows = labelled(runs, compare_many(configs, folders, device, tell))
    names = {policy: word for word, policy in levers.allocations.items()}
    return rows.assign(allocation=rows["policy"].map(names))


def ends(levers: Levers, rows: DataFrame) -> DataFrame:
    """How each run ended: a line per part, point, combination and seed."""
    tested = rows[rows["accuracy"].notna()]
    early = tested[tested["round"] < levers.early].groupby([*LINE, "seed"], sort=False)
    groups = rows.groupby([*LINE, "load", "seed"], sort=False)
    table = groups.agg(
        accuracy=("accuracy", "last"),
        averaged=("accuracy_averaged", "last"),
        uploads=("delivered", "mean"),
    ).reset_index()
    begun = early.agg(early=("accuracy", "last")).reset_index()
    return table.merge(begun, "left", [*LINE, "seed"])


def curves(rows: DataFrame) -> DataFrame:
    """Mean accuracy over seeds against rounds and seconds of uplink."""
    tested = rows[rows["accuracy"].notna()]
    groups = tested.groupby([*LINE, "round", "round_s"], sort=False)
    means = {"accuracy": ("accuracy", "mean"), "averaged": ("accuracy_averaged", "mean")}
    table = groups.agg(**means).reset_index()
    seconds = (table["round"] + 1) * table.pop("round_s")
    table.insert(table.columns.get_loc("accuracy"), "seconds", seconds)
    return table


def summary(levers: Levers, table: DataFrame, curve: DataFrame) -> DataFrame:
    """One line per combination: means over seeds with standard errors, in the list's order."""
    lines = []
    for part in levers.parts:
        for point in part.points:
            here = matching(table, part=part.name, point=point)
            goal = ENOUGH * matching(here, allocation="perfect")["accuracy"].mean()
            for line in part.lines:
                which = {"allocation": line.allocation, "codec": line.codec, "server": line.server}
                own = matching(here, **which)
                if not len(own):
                    continue
                path = matching(curve, part=part.name, point=point, **which)
                there = path[path["accuracy"] >= goal]["seconds"]
                lines.append(
                    {"part": part.name, "point": point, "load": own["load"].iloc[0], **which}
                    | {"accuracy": own["accuracy"].mean(), "error": own["accuracy"].sem()}
                    | {"averaged": own["averaged"].mean(), "early": own["early"].mean()}
                    | {"seconds": there.min() if len(there) else math.nan}
                    | {"uploads": own["uploads"].mean(), "seeds": float(len(own))}
                )
    return DataFrame(lines)


def judged(levers: Levers, table: DataFrame) -> DataFrame:
    """Every claim with its difference in points, paired over seeds, and whether it holds."""
    found: list[Difference] = []
    for claim in levers.claims:
        own = matching(table, part=claim.part)
        one, other = (
            dict(zip(("allocation", "codec", "server"), name.split(), strict=True))
            for name in (claim.one, claim.other)
        )
        difference = paired(own, one, other, "early" if claim.early else "accuracy")
        mean, error = 100 * difference.mean, 100 * difference.error
        found.append(difference._replace(mean=mean, error=error))
    pairs = zip(found, levers.claims, strict=True)
    above = beyond([one._replace(mean=one.mean - claim.least) for one, claim in pairs])
    lines = []
    for claim, difference, clear in zip(levers.claims, found, above, strict=True):
        enough = clear if claim.beyond_noise else difference.mean >= claim.least
        lines.append(
            {**claim._asdict(), "points": difference.mean, "error": difference.error}
            | {"seeds": difference.seeds, "holds": "yes" if enough else "no"}
        )
    return DataFrame(lines)
