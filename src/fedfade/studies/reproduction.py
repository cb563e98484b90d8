"""The parts of a reproduction, in order, and what each leaves behind: the paper's own, then studies
that go on from it, which are also commands (`fedfade ladder`, `fedfade levers`) or only parts.

DIR/PART/*.csv       what figures are drawn from
DIR/PART/*.png       figures
DIR/PART/PART.json   the figures behind the claims
DIR/PART/PART.md     tables to paste
DIR/claims.md        the paper's claims with verdicts
DIR/results.md       all of it on one page: claims, tables, pictures
DIR/results.json     the figures of all parts, with the command, the versions and the agents
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pandas import DataFrame

from fedfade.agents import load_checkpoint
from fedfade.config import Config, changed
from fedfade.device import pick_device
from fedfade.errors import UserError
from fedfade.experiments.run_folder import ended, provenance
from fedfade.shown import marked
from fedfade.storage import folder_lock, read_json, write_json, write_text
from fedfade.studies import link, policies
from fedfade.studies.frames import (
    Bar,
    Drawn,
    matching,
    means,
    read_frame,
    write_figures,
    write_tables,
)
from fedfade.studies.ladder import page as ladder_page
from fedfade.studies.ladder import played, rungs
from fedfade.studies.levers import page as levers_page
from fedfade.studies.levers import plan as levers_plan
from fedfade.studies.levers import runs as levers_runs
from fedfade.studies.paper import claims, readings, regimes
from fedfade.studies.paper import questions as q
from fedfade.studies.paper.accuracy import compute_accuracy, compute_epochs, draw_accuracy
from fedfade.studies.paper.plan import load_plan
from fedfade.studies.paper.setting import (
    BOUND_ROUND,
    EPISODE,
    PLAYED_ROUND,
    SCALES,
    Clock,
    Setting,
    check_unseen,
    checked_setting,
)
from fedfade.wording import counted


class PaperPart(NamedTuple):
    """One question: what is run for it, and what is made of the tables."""

    title: str
    compute: Callable[[Setting], Mapping[str, DataFrame]]  # tables by PART/NAME
    draw: Callable[[Setting], Drawn]


class Study(NamedTuple):
    """A question beyond the paper's, whose tables have names without a part's."""

    title: str
    plan: Callable[[Setting], Any]  # what is asked for
    amounts: Callable[[Any], dict[str, float]]  # the work of each bar, in rounds of one run
    compute: Callable[[Any, Path, Bar], Mapping[str, DataFrame]]
    draw: Callable[[Any, Mapping[str, DataFrame]], Drawn]
    tables: Sequence[str]  # that are drawn from


def _ladder(setting: Setting) -> rungs.Ladder:
    scale = "small" if setting.rehearsal else "paper"
    rounds = min(rungs.SCALES[scale].rounds, setting.base.run.rounds)
    preset, overrides = setting.asked
    return rungs.make_ladder(preset, scale, rounds=rounds, overrides=overrides)


def _levers(setting: Setting) -> levers_plan.Levers:
    if not setting.rehearsal:
        return levers_plan.load_levers("paper", overrides=setting.asked.overrides)
    shorter = ["run.seeds=2", "run.rounds=4", *setting.asked.overrides]
    return levers_plan.load_levers("small", ["paper", "heavy"], shorter)


def _links(setting: Setting) -> link.Links:
    preset, overrides = setting.asked
    if not setting.rehearsal:
        return link.plan_links(preset, overrides, seeds=20, rounds=3)
    small = [*SCALES[setting.scale].overrides, *overrides]
    return link.plan_links(preset, small, seeds=2, rounds=1)


def _policies(setting: Setting) -> list[policies.PolicyCell]:
    overrides = setting.asked.overrides
    if not setting.rehearsal:
        return policies.plan_cells(overrides, seeds=20, rounds=10)
    return policies.plan_cells([*SCALES[setting.scale].overrides, *overrides], seeds=2, rounds=1)


STUDIES = {
    "ladder": Study(
        "What a bit of channel knowledge buys",
        _ladder,
        played.amounts,
        played.compute,
        ladder_page.draw,
        ("ladder", "policies", "accuracy"),
    ),
    "levers": Study(
        "Allocation, compression or aggregation?",
        _levers,
        levers_runs.amounts,
        levers_runs.compute,
        levers_page.draw,
        ("seeds", "curves"),
    ),
    "link": Study(
        "Does it survive a real link?", _links, link.amounts, link.compute, link.draw, ("seeds",)
    ),
    "policies": Study(
        "Who delivers how many?",
        _policies,
        policies.amounts,
        policies.compute,
        policies.draw,
        ("seeds",),
    ),
}


def _as_part(name: str) -> PaperPart:
    """A study as a part, in a folder of its own."""
    study = STUDIES[name]

    def named(tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return {f"{name}/{table}": content for table, content in tables.items()}

    def compute(setting: Setting) -> dict[str, DataFrame]:
        asked = study.plan(setting)
        return named(
            study.compute(asked, setting.out / name, _bar(setting, name, study.amounts(asked)))
        )

    def draw(setting: Setting) -> Drawn:
        drawn = study.draw(
            study.plan(setting), {table: setting.table(f"{name}/{table}") for table in study.tables}
        )
        made = {"scale": setting.scale, **drawn.facts["setting"]}
        return drawn._replace(facts={**drawn.facts, "setting": made}, tables=named(drawn.tables))

    return PaperPart(study.title, compute, draw)


def _bar(setting: Setting, name: str, amounts: Mapping[str, float]) -> Bar:
    """Bars of a study as shares of the one bar of all parts."""
    clock = Clock(setting.chat)

    @contextmanager
    def bar(unit: str, total: int) -> Iterator[Callable[[float, str], None]]:
        before = 0.0

        def tell(done: float, doing: str) -> None:
            nonlocal before
            clock(f"{name}: {done:g} of {total} {unit}, {doing}")
            setting.work.add(amounts[unit] * (done - before) / max(1, total), doing)
            before = done

        yield tell

    return bar


_EPOCHS = "The centre cell with local epochs"
PAPER = {
    "partition": PaperPart("Who owns which classes", q.compute_partition, q.draw_partition),
    "reward": PaperPart("Reward while training", q.compute_reward, q.draw_reward),
    "accuracy": PaperPart("Test accuracy in nine cells", compute_accuracy, draw_accuracy),
    "epochs": PaperPart(_EPOCHS, compute_epochs, partial(draw_accuracy, part="epochs")),
    "ablation": PaperPart("Hidden observations", q.compute_ablation, q.draw_ablation),
    "bound": PaperPart("The bound's second term", q.compute_bound, q.draw_bound),
    "regimes": PaperPart("Who wins where", regimes.compute, regimes.draw),
}
"""The paper's own parts."""
_SEARCH = PaperPart("Under which reading?", readings.compute, readings.draw)
PARTS = {**PAPER, **{name: _as_part(name) for name in STUDIES}, "readings": _SEARCH}
"""All of it, by far the longest last."""
WORDS = {"all": tuple(PARTS), "paper": tuple(PAPER)}
"""What stands for several parts."""
REHEARSED_READINGS = ("default", "fixed")
"""Of our list, in a rehearsal of all parts."""
_NEEDS = {part: {"reward"} for part in ("accuracy", "epochs", "ablation", "regimes")}
_NEEDS["bound"] = {"reward", "accuracy"}
"""Parts whose runs others begin with."""
_COMPARED = {"accuracy", "epochs", "regimes"}  # parts in which all policies play


def reproduce(
    setting: Setting,
    parts: Sequence[str],
    redraw: bool = False,
    done: Callable[[int], None] = lambda parts: None,
) -> list[claims.Claim]:
    """Compute and draw some parts, then judge the claims, which are returned. With `redraw` nothing
    is computed: figures and tables are made again from the CSV files."""
    if find_spec("matplotlib") is None:
        setting.say("Matplotlib is not installed: no pictures; --redraw makes them where it is")
    if redraw:  # of several parts those that are there
        parts = [part for part in parts if any((setting.out / part).glob("*.csv"))] or parts[:1]
    else:
        setting.work.plan(amounts(setting, parts))  # refuses what a part cannot do
    with folder_lock(setting.out):
        record = setting.out / "reproduce.json"
        if not redraw:
            write_json(record, provenance(setting.base, pick_device(setting.base.run.device)))
        for count, name in enumerate(parts):
            done(count)
            setting.work.begin(name)
            _make(setting, name, redraw)
            setting.say(f"{name}: done, {setting.out / name}")
        setting.work.finish()
        judged, page = _judged(setting)
        write_text(setting.out / "results.md", _results(setting, page))
        if not redraw:
            write_json(record, ended(read_json(record)))
        write_json(setting.out / "results.json", _figures(setting))
        write_text(setting.out / "claims.md", page)
    return judged


def amounts(setting: Setting, parts: Sequence[str]) -> dict[str, float]:
    """The work of some parts in federated rounds of one run, if nothing is there yet."""
    base, grid = setting.base, setting.grid
    tests, trainings, rounds = len(setting.test_seeds), len(setting.training_seeds), base.run.rounds
    runs = tests * (len(setting.policies) - 1 + trainings)  # of a cell
    training = EPISODE * base.qmix.episodes * trainings
    coarse = len(grid.coarse_snrs_db) * len(grid.coarse_spreads_db)
    played = len(grid.snrs_db) * len(grid.spreads_db) * grid.regime_rounds * PLAYED_ROUND
    each = {
        "partition": 1.0,
        "reward": training,
        "accuracy": len(setting.cells) * runs * rounds,
        # How long an epoch is, the data say, which not every part needs.
        "epochs": runs * grid.epoch_rounds * setting.epoch if "epochs" in parts else 0.0,
        "ablation": 2 * (training + tests * trainings * rounds),
        "bound": 5 * grid.bound_rounds * BOUND_ROUND,
        "regimes": coarse * runs * rounds + runs * played,
        "readings": _search_amount(setting) if "readings" in parts else 0.0,
    }
    for name in STUDIES.keys() & parts:
        study = STUDIES[name]
        each[name] = sum(study.amounts(study.plan(setting)).values())
    counted: set[str] = set()
    found = {}
    for part in parts:
        needed = {part, *_NEEDS.get(part, ())} - counted
        found[part] = sum(each[name] for name in needed)
        counted |= needed
    return found


def _search_amount(setting: Setting) -> float:
    """The trainings of part `readings`; to try their agents is little beside them."""
    plan = load_plan(setting.search.file, setting.base)
    trainings = len(plan.chosen(setting.search.only)) * setting.grid.reading_trainings
    return EPISODE * setting.base.qmix.episodes * trainings


def _make(setting: Setting, name: str, redraw: bool) -> None:
    part, folder = PARTS[name], setting.out / name
    if name == "readings":
        seeds = {"run.seeds": setting.grid.reading_trainings}
        setting = replace(setting, base=changed(setting.base, seeds))
    if not redraw:
        write_tables(setting.out, part.compute(setting))
    drawn = part.draw(setting)
    write_tables(setting.out, drawn.tables)
    write_figures(folder, drawn.figures)
    base, (trained, tested) = setting.base, check_unseen(setting)
    made_by = {
        "scale": setting.scale,
        "data": base.learning.data,
        "mobility": base.cell.mobility,
        **setting.centre._asdict(),
        "rounds": base.run.rounds,
        "episodes": base.qmix.episodes,
        "training_seeds": setting.training_seeds,
        "seeds_trained_on": trained,
        "seeds_evaluated_on": tested,
    }
    facts = {"setting": made_by, **drawn.facts}
    write_json(folder / f"{name}.json", _with(None, facts))
    text = rehearsed(drawn.text) if setting.rehearsal else drawn.text
    write_text(folder / f"{name}.md", text + "\n")


REHEARSAL = "*Rehearsal: this checks the code, not the paper.*"


def rehearsed(text: str) -> str:
    """Markdown in which every table says so.

    >>> print(rehearsed("Uploads:\\n\\n| policy |\\n|---|\\n| random |"))
    Uploads:
    <BLANKLINE>
    *Rehearsal: this checks the code, not the paper.*
    <BLANKLINE>
    | policy |
    |---|
    | random |
    """
    return re.sub(r"(?m)^(?=\|.*\n\|---)", f"{REHEARSAL}\n\n", text)


def _with(blank: float | None, facts: Any) -> Any:
    """Nested facts with this for what is not known: NaN, or None in JSON, which has no NaN."""
    if isinstance(facts, dict):
        return {name: _with(blank, item) for name, item in facts.items()}
    if isinstance(facts, list | tuple):
        return [_with(blank, item) for item in facts]
    return blank if pd.isna(facts) else facts


def _facts(setting: Setting) -> dict[str, Any]:
    """The JSON of every part that has been run in this folder."""
    paths = {name: setting.out / name / f"{name}.json" for name in PARTS}
    return {name: read_json(path) for name, path in paths.items() if path.is_file()}


def _figures(setting: Setting) -> dict[str, Any]:
    """All facts, with what they were made by: the last command, and the agents that are kept here.
    Seeds are in the `setting` of a part."""
    record = setting.out / "reproduce.json"
    trained = sorted(p.parent for p in setting.out.glob("*/training*/**/checkpoint.json"))
    digests = {
        folder.relative_to(setting.out).as_posix(): load_checkpoint(folder).files["agents"][
            "sha256"
        ]
        for folder in trained
    }
    made_by = read_json(record) if record.is_file() else None  # tables alone may be redrawn
    return {"made_by": made_by, "agents": digests, "parts": _facts(setting)}


def _judged(setting: Setting) -> tuple[list[claims.Claim], str]:
    """The claims judged by the facts, and the page of them."""
    found = {name: _with(math.nan, facts) for name, facts in _facts(setting).items()}
    try:
        head, small = marked(_head(found, bool(setting.plus))), setting.rehearsal
        judged = claims.judge(found)
        page = claims.page(judged, head, rehearsal=small)
        return judged, rehearsed(page) if small else page
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError(
            f"a .json of a part in {str(setting.out)!r} is not of this version of fedfade: run "
            "'fedfade reproduce all --redraw' with the same --out."
        ) from None


def _results(setting: Setting, claims_page: str) -> str:
    """Claims, tables and pictures of every part that has been run, on one page."""
    sections = [claims_page.rstrip()]
    for name, part in PARTS.items():
        text = setting.out / name / f"{name}.md"
        if text.is_file():
            pictures = sorted((setting.out / name).glob("*.png"), key=lambda p: p.stem != name)
            shown = [f"![{p.stem}]({name}/{p.name})" for p in pictures]
            below = re.sub(r"(?m)^##", "###", marked(text.read_text()).rstrip())
            sections += [f"## {part.title}", below, *shown]
    return "\n\n".join(sections) + "\n"


def _head(found: Mapping[str, Any], shipped: bool) -> str:
    """What was run, in a few sentences: as part accuracy notes it, else reward, else the first.
    `shipped`: agents that come with the package take part where policies are compared."""
    noted = [part for part in ("accuracy", "reward", *PAPER, "readings") if part in found]
    if not noted:
        return "None of the paper's parts has been run here."
    made = found[noted[0]]["setting"]
    same = ", and the same agents that come with the package"
    text = (
        f"Data {made['data']}, mobility {made['mobility']}, {counted(made['rounds'], 'round')}, "
        f"agents trained for {counted(made['episodes'], 'episode')} at alpha {made['alpha']:g}, "
        f"n_c {made['clusters']}, {counted(len(made['training_seeds']), 'training seed')}. "
        f"Channels and partitions of {counted(made['seeds_evaluated_on'], 'seed')}, none of the "
        f"{made['seeds_trained_on']} that training used; every one meets the agents of all "
        f"trainings{same if shipped and _COMPARED & found.keys() else ''}."
    )
    if made["scale"] == "paper":
        return text
    return f"{text} Scale {made['scale']}: a rehearsal, which checks the code, not the paper."


class Reproduce:
    """`fedfade reproduce paper` as a point of a sweep, on the paper's grids."""

    marker = "claims.md"  # written last

    def run(self, config: Config, folder: Path, tell: Callable[[int, int], None]) -> None:
        """The paper's own parts in order."""
        setting = checked_setting(folder, config, "paper")
        reproduce(setting, [*PAPER], done=lambda parts: tell(parts, len(PAPER)))

    def lines(self, config: Config, folder: Path) -> list[dict[str, Any]] | None:
        """One line per policy in the training cell: means over seeds."""
        if not (folder / self.marker).is_file():
            return None
        cell = {"alpha": config.learning.alpha, "clusters": config.radio.clusters}
        final = matching(read_frame(folder / "accuracy" / "final.csv"), **cell)
        fields = ("accuracy", "uploads", "empty_rounds", "wasted", "fairness")
        table = DataFrame({field: means(final, "policy", field) for field in fields})
        lines: list[dict[str, Any]] = table.reset_index().to_dict("records")
        return lines
