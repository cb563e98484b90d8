"""Part `readings`: under which reading of what it leaves open does the paper hold?

DIR/readings/training/READING/seed-K/   agents, the paper's QMIX, networks and episodes
DIR/readings/runs/                      recorded gradients, and what was played, a file a reading

Trainings that fit lie side by side in one program. What is finished is skipped, so that a list can
be done in portions (`--only`); tables hold what has been done so far.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from fedfade import agents
from fedfade.agents.trainer import Diverged
from fedfade.config import Config, changed
from fedfade.device import pick_device
from fedfade.experiments.run_folder import decisive, mark
from fedfade.storage import write_json
from fedfade.studies.frames import Drawn, kept, markdown, matching, means
from fedfade.studies.noise import RULE, Difference, beyond, paired
from fedfade.studies.paper import charts
from fedfade.studies.paper.plan import Plan, Reading, load_plan
from fedfade.studies.paper.runs import agents_mark, on_report, untrained
from fedfade.studies.paper.setting import (
    HEURISTICS,
    QMIX,
    SCHEDULE,
    Clock,
    Setting,
    check_unseen,
    spread_out,
)
from fedfade.studies.paper.trial import LEARNED, Use, tried, use_of_inputs
from fedfade.studies.swap import AS_IS
from fedfade.uplink.gradients import RecordedGradients, record_gradients
from fedfade.wording import counted

PLAYED = (*HEURISTICS, SCHEDULE, "wrap-around-schedule", "wrap-around-choice")
CLAIMS = {
    "random": "QMIX above random",
    "max-individual-rate": "QMIX above max individual rate",
    "max-sum-rate": "QMIX above max sum rate",
    SCHEDULE: "(not in the paper) QMIX above the block-fading schedule",
}
TASKS = {"training": range(3000, 3004), "test": range(4000, 4002)}
"""Seeds of the federated tasks whose gradients are recorded: none is met twice. Of rounds in
epochs, which are a hundred times as long, the first alone."""
MEASURED = ("uploads", "reward", "fairness")
DIVERGED = "diverged.json"
"""In the folder of a training whose values left the numbers: it is not tried again."""
Verdicts = Mapping[str, Mapping[str, Sequence[str]]]
"""Readings by verdict, by claim."""


def compute(setting: Setting) -> dict[str, DataFrame]:
    """Train and try what is asked for; the table is of all that is there."""
    plan = load_plan(setting.search.file, setting.base)
    chosen = plan.chosen(setting.search.only)
    _train(setting, chosen)
    clock, tables = Clock(setting.chat), []
    for number, reading in enumerate(plan.readings):
        configs, folders = _trainings(setting, reading)
        if reading not in chosen and _waiting(configs, folders):
            continue
        path = _file(setting, reading, folders)
        if reading in chosen or path.is_file():
            clock(f"readings: trying {number + 1} of {len(plan.readings)}, {reading.name}")
            table = kept(path, partial(_tried, setting, configs[0], folders))
            lost = sum(map(_diverged, folders))
            tables.append(table.assign(reading=reading.name, diverged=float(lost)))
    return {"readings/lines": pd.concat(tables, ignore_index=True)}


def _trainings(setting: Setting, reading: Reading) -> tuple[list[Config], list[Path]]:
    """Configuration and folder of every training seed."""
    cell = changed(setting.base, {**reading.fields, "run.seeds": 1})
    check_unseen(setting, cell)
    gradients = str(_recording(setting, cell, "training"))
    configs = [
        changed(cell, {"run.seed": seed, "qmix.gradients": gradients})
        for seed in setting.training_seeds
    ]
    place = setting.out / "readings" / "training" / reading.name
    return configs, [agents.seed_folder(place, seed) for seed in setting.training_seeds]


def _recording(setting: Setting, config: Config, kind: str) -> Path:
    """Where gradients of a configuration's federated rounds are recorded."""
    fields = mark(decisive(config)["learning"], config.run.rounds, _tasks(config, kind))
    unit = config.learning.local_unit
    return setting.out / "readings" / "runs" / f"gradients-{kind}-{unit}-{fields}.npz"


def _tasks(config: Config, kind: str) -> list[int]:
    every = TASKS[kind]
    return [*every][:1] if config.learning.local_unit == "epoch" else [*every]


def _record(setting: Setting, config: Config, kind: str) -> Path:
    """Record them unless they are there."""
    path, clock = _recording(setting, config, kind), Clock(setting.chat)
    unit = config.learning.local_unit
    if not path.is_file():
        device, rounds = pick_device(config.run.device), config.run.rounds
        # Gram matrices alone are wanted, and in epochs the rounds are long.
        precision = "bf16" if device.type == "cuda" else config.run.precision
        asked = changed(config, {"run.precision": precision})

        def tell(done: int) -> None:
            clock(f"readings: recording gradients in {unit}s, round {done} of {rounds}")

        record_gradients(asked, _tasks(config, kind), path, device, tell)
    return path


def _train(setting: Setting, readings: Sequence[Reading]) -> None:
    """Train what is not finished, as many side by side as fit and are allowed."""
    each = [_trainings(setting, reading) for reading in readings]
    configs = [config for own, _ in each for config in own]
    folders = [folder for _, own in each for folder in own]
    waiting = _waiting(configs, folders)
    configs = [configs[number] for number in waiting]
    folders = [folders[number] for number in waiting]
    for config in configs:
        _record(setting, config, "training")
    size = setting.search.together
    programs = [
        group[start : start + size]
        for group in agents.programs(configs)
        for start in range(0, len(group), size)
    ]
    for number, program in enumerate(programs):
        total = max(configs[n].qmix.episodes for n in program)
        later = sum(map(len, programs[number + 1 :])) / len(program)
        trained = counted(len(program), "training")
        what = f"readings: program {number + 1} of {len(programs)}, {trained}"
        tell = on_report(setting, what, total, _time_left(total, later))
        left = {folders[n]: configs[n] for n in program}
        while left:
            try:
                agents.train_together([*left.values()], [*left], tell)
                break
            except Diverged as error:  # an answer, too; the others go on
                for lost in error.folders:
                    setting.say(f"readings: {lost.parent.name}, {lost.name}: {error}")
                    write_json(lost / DIVERGED, {"says": str(error)})
                    del left[lost]
                if not untrained([*left.values()], [*left]):
                    break


def _diverged(folder: Path) -> bool:
    return (folder / DIVERGED).is_file()


def _waiting(configs: Sequence[Config], folders: Sequence[Path]) -> list[int]:
    """Which trainings are neither finished nor at an end."""
    return [number for number in untrained(configs, folders) if not _diverged(folders[number])]


def _time_left(total: int, later: float) -> Callable[[int], str]:
    """How long trainings may still take by their pace so far; `later` times as many trainings come
    after these, as if they took as long side by side as one after the other."""
    start: tuple[int, float] | None = None  # a training may go on from anywhere

    def say(episodes: int) -> str:
        nonlocal start
        now = time.monotonic()
        first, begin = start = start or (episodes, now)
        if episodes == first:
            return ""
        left = (now - begin) / (episodes - first) * (total - episodes + later * total)
        return f", about {left / 60:.0f} minutes left"

    return say


def _file(setting: Setting, reading: Reading, folders: Sequence[Path]) -> Path:
    """What was played of a reading; its name says of which agents."""
    marks = [None if _diverged(folder) else agents_mark(folder) for folder in folders]
    digest = mark(marks, PLAYED, setting.reading_seeds, setting.grid.reading_rounds)
    return setting.out / "readings" / "runs" / f"{reading.name}-{digest}.csv"


def _tried(setting: Setting, config: Config, folders: Sequence[Path]) -> DataFrame:
    rounds, device = config.run.rounds, pick_device(config.run.device)
    numbers = spread_out(min(setting.grid.reading_rounds, rounds), rounds)
    source = RecordedGradients(config, _record(setting, config, "test"), device)
    each = zip(setting.training_seeds, folders, strict=True)
    trained = {seed: None if _diverged(folder) else folder for seed, folder in each}
    return tried(config, setting.reading_seeds, numbers, source, PLAYED, trained, device)


def draw(setting: Setting) -> Drawn:
    """One row a reading, the swap test, a verdict per claim that names the readings."""
    plan, lines = load_plan(setting.search.file, setting.base), setting.table("readings/lines")
    tables = {str(name): own for name, own in lines.groupby("reading", sort=False)}
    uses = {name: use_of_inputs(own) for name, own in tables.items()}
    whole = {name: not own["diverged"].any() for name, own in tables.items()}
    learned = {name: whole[name] and found for name, found in who_learned(uses).items()}

    def above(policy: str, field: str) -> dict[str, Difference]:
        """How far the agents are above a policy, by reading."""
        both = {"policy": QMIX, "swapped": AS_IS}, {"policy": policy}
        return {name: paired(own, *both, field) for name, own in tables.items()}

    fields = ("uploads", "reward")
    differences = {field: {policy: above(policy, field) for policy in CLAIMS} for field in fields}
    verdicts = {
        f"{says}, in {field}": judged(differences[field][policy], learned)
        for field in differences
        for policy, says in CLAIMS.items()
    }
    held = {name: sum(name in verdict["holds"] for verdict in verdicts.values()) for name in tables}
    summary = DataFrame(
        _summary(plan, name, own, uses[name], learned[name], held[name])
        for name, own in tables.items()
    )
    facts = {
        "readings": summary.to_dict("records"),
        "differences": differences,
        "claims": verdicts,
        "listed": len(plan.readings),
        "seeds": sorted(int(seed) for seed in lines["seed"].unique()),
    }
    text = _text(setting, plan, lines, summary, verdicts)
    picture = partial(charts.readings, summary, setting.base.learning.clients)
    return Drawn(facts, text, {"readings": picture}, {"readings/readings": summary})


def who_learned(uses: Mapping[str, Use]) -> dict[str, bool]:
    """In which readings agents learned: each of the comparisons is one family over readings."""
    families = zip(*(use.needed for use in uses.values()), strict=True)
    answers = zip(*(beyond(family) for family in families), strict=True)
    return {name: all(answer) for name, answer in zip(uses, answers, strict=True)}


def judged(
    differences: Mapping[str, Difference], learned: Mapping[str, bool]
) -> dict[str, list[str]]:
    """Readings by verdict: all are one family, and those count in which agents learned."""
    clear = dict(zip(differences, beyond([*differences.values()]), strict=True))
    return {
        "holds": [name for name in differences if learned[name] and clear[name]],
        "does not hold": [name for name in differences if learned[name] and not clear[name]],
        "not reproduced": [name for name in differences if not learned[name]],
    }


def _summary(
    plan: Plan, name: str, own: DataFrame, use: Use, learned: bool, held: int
) -> dict[str, Any]:
    """A line of the table."""
    levels = {reading.name: reading.levels for reading in plan.readings}.get(name, {})
    differs = ", ".join(f"{factor} {level}" for factor, level in levels.items())
    as_is = matching(own, swapped=AS_IS)
    by_training = means(matching(as_is, policy=QMIX), "training", "uploads")
    line: dict[str, Any] = {"reading": name, "differs": differs or "nothing"}
    line |= {"least": by_training.min(), "most": by_training.max()}
    line["diverged"] = own["diverged"].iloc[0]
    for field in MEASURED:
        found = means(as_is, "policy", field)
        line |= {f"{field} {policy}": found.get(policy, math.nan) for policy in (QMIX, *PLAYED)}
    line |= {f"kept {part}": share for part, share in use.kept.items()}
    return {**line, "learned": "yes" if learned else "no", "claims": held}


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _text(
    setting: Setting, plan: Plan, lines: DataFrame, summary: DataFrame, verdicts: Verdicts
) -> str:
    """Tables, and how to read them."""
    levels = [
        [factor, level, content.says]
        for factor, own in plan.factors.items()
        for level, content in own.items()
    ]
    sections = [
        *_what_was_tried(setting, plan, lines["seed"].nunique(), summary, len(verdicts)),
        *_tables(summary),
        *_claims(verdicts, len(summary)),
        "Factors and their levels, the default first:",
        markdown(["factor", "level", "meaning"], levels),
    ]
    return "\n\n".join(sections)


def _what_was_tried(
    setting: Setting, plan: Plan, seeds: int, summary: DataFrame, claims: int
) -> list[str]:
    ranked = summary.sort_values(["claims", f"uploads {QMIX}"], ascending=False, kind="stable")
    first, marks = ranked.iloc[0], "" if setting.rehearsal else "**"
    best = "No claim holds in any of them."
    if first["claims"]:
        best = f"{marks}{first['reading']}{marks}: {first['claims']} of {claims}."
        best = f"Most claims hold in {best}"
    trainings = counted(len(setting.training_seeds), "training")
    return [
        f"{len(summary)} of {len(plan.readings)} readings, {trainings} of "
        f"{counted(setting.base.qmix.episodes, 'episode')} each, all tried on the same "
        f"{counted(seeds, 'unseen seed')} "
        f"(where a training keeps one layout, in that one, on unseen fading and gradients). {best}",
        "Gradients are Gram matrices recorded from real federated rounds in which everybody "
        f"delivers ({len(TASKS['training'])} tasks to train on, {len(TASKS['test'])} others to be "
        "tried on; one of each where they train for epochs): live rounds under every training "
        "would take most of the time.",
        f"{RULE} Here a verdict's family is all readings. {LEARNED} Where a training diverged, "
        "they did not.",
    ]


def _tables(summary: DataFrame) -> list[str]:
    """A row a reading: uploads, reward, fairness, and what is kept of uploads by the swap test."""
    order, rows = (QMIX, *PLAYED), summary.to_dict("records")
    parts = [name.removeprefix("kept ") for name in summary if name.startswith("kept ")]

    def table(heads: Sequence[str], cells: Callable[[Mapping[str, Any]], list[Any]]) -> str:
        return markdown(["reading", *heads], [[row["reading"], *cells(row)] for row in rows])

    def numbers(field: str, row: Mapping[str, Any]) -> list[str]:
        return [_number(row[f"{field} {policy}"]) for policy in order]

    def uploads(row: Mapping[str, Any]) -> list[Any]:
        lost = f", {row['diverged']:.0f} diverged" if row["diverged"] else ""
        trainings = f"{_number(row['least'])} to {_number(row['most'])}{lost}"
        found = [row["differs"], *numbers("uploads", row), trainings]
        return [*found, row["learned"], row["claims"]]

    return [
        "Uploads per round; of QMIX the mean, and least to most of the trainings:",
        table(["differs in", *order, "trainings", "learned", "claims held"], uploads),
        "Reward of an episode, by the reading's own weights:",
        table(order, partial(numbers, "reward")),
        "Jain's index of who is served, over the rounds of a seed:",
        table(order, partial(numbers, "fairness")),
        "Uploads kept in % when agents see another episode's part of the observation (of "
        "`slots_left`, the same in all episodes, a clock that runs backwards):",
        table(parts, lambda row: [_number(100 * row[f"kept {part}"], 0) for part in parts]),
    ]


def _claims(verdicts: Verdicts, readings: int) -> list[str]:
    rows = []
    for says, own in verdicts.items():
        named = (f"{len(names)}: {', '.join(names)}" if names else "none" for names in own.values())
        rows.append([says, *named])
    return [
        f"Claims, {len(verdicts)} families of {readings} comparisons; not reproduced where agents "
        "did not learn. More uploads than random and max individual rate are part of having "
        "learned: where these two are judged at all, they hold. The reading in which most claims "
        f"hold is the best of {readings} on these seeds, and has to be tested on others:",
        markdown(["claim", "holds in", "does not hold in", "not reproduced in"], rows),
    ]
