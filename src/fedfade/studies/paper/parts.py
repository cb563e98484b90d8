"""The parts of a reproduction, in order, and what each leaves behind.

DIR/PART/*.csv       what figures are drawn from
DIR/PART/*.png       figures
DIR/PART/PART.json   the figures behind the claims
DIR/PART/PART.md     tables to paste
DIR/claims.md        the paper's claims with verdicts
DIR/results.md       all of it on one page: claims, tables, pictures
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame

from fedfade.config import Config
from fedfade.errors import UserError, not_allowed
from fedfade.learning.figures import save
from fedfade.storage import folder_lock, read_json, write_json, write_text
from fedfade.studies.frames import matching, means, read_frame, write_frame
from fedfade.studies.paper import accuracy, claims, classes, regimes, second_term, trainings
from fedfade.studies.paper.plots import Drawn
from fedfade.studies.paper.setting import Setting, check_unseen


class Part(NamedTuple):
    """One question: what is run for it, and what is made of the tables."""

    title: str
    compute: Callable[[Setting], Mapping[str, DataFrame]]  # tables by PART/NAME
    reads: Sequence[str]  # those that `draw` is given
    draw: Callable[..., Drawn]


PARTS = {
    "partition": Part(
        "Who owns which classes", classes.compute, ["partition/classes"], classes.draw
    ),
    "reward": Part(
        "Reward while training",
        trainings.compute_reward,
        ["reward/curve"],
        trainings.draw_reward,
    ),
    "accuracy": Part(
        "Test accuracy in nine cells",
        accuracy.compute,
        ["accuracy/final", "accuracy/curves"],
        partial(accuracy.draw, part="accuracy"),
    ),
    "epochs": Part(
        "The centre cell with local epochs",
        accuracy.compute_epochs,
        ["epochs/final", "epochs/curves"],
        partial(accuracy.draw, part="epochs"),
    ),
    "ablation": Part(
        "Hidden observations",
        trainings.compute_ablation,
        ["ablation/curve", "ablation/final", "ablation/curves"],
        trainings.draw_ablation,
    ),
    "bound": Part(
        "The bound's second term",
        second_term.compute,
        [
            "accuracy/final",
            "accuracy/bias",
            *(f"bound/terms-{name}" for name in second_term.MEASURED),
        ],
        second_term.draw,
    ),
    "regimes": Part(
        "Who wins where", regimes.compute, ["regimes/uploads", "regimes/accuracy"], regimes.draw
    ),
}
ALL = "all"


def all_parts(wanted: str) -> list[str]:
    """The parts a word stands for.

    >>> all_parts("bound")
    ['bound']
    """
    if wanted == ALL:
        return list(PARTS)
    if wanted not in PARTS:
        raise not_allowed("part", wanted, f"one of {', '.join(PARTS)} or {ALL}")
    return [wanted]


def reproduce(
    setting: Setting,
    parts: Sequence[str],
    redraw: bool = False,
    done: Callable[[int], None] = lambda parts: None,
) -> str:
    """Compute and draw some parts, then judge the claims; returns the page of claims.

    With `redraw` nothing is computed: figures and tables are made again from the CSV files.
    """
    if find_spec("matplotlib") is None:
        setting.say("Matplotlib is not installed: no pictures; --redraw makes them where it is")
    with folder_lock(setting.out):
        for count, name in enumerate(parts):
            done(count)
            _make(setting, name, redraw)
            setting.say(f"{name}: done, {setting.out / name}")
        page = _claims_page(setting)
        write_text(setting.out / "results.md", _results(setting, page))
        write_text(setting.out / "claims.md", page)
    return page


def _make(setting: Setting, name: str, redraw: bool) -> None:
    part, folder = PARTS[name], setting.out / name

    def write(tables: Mapping[str, DataFrame]) -> None:
        for path, table in tables.items():
            write_frame(setting.out / f"{path}.csv", table)

    if not redraw:
        write(part.compute(setting))
    drawn = part.draw(setting, *(read_frame(setting.out / f"{path}.csv") for path in part.reads))
    write(drawn.tables)
    for file, figure in drawn.figures.items():
        try:
            made = figure()
        except ImportError:  # no Matplotlib
            continue
        save(made, folder / f"{file}.png")
    facts = {"setting": _made_by(setting), **drawn.facts}
    write_json(folder / f"{name}.json", _each(facts, lambda v: None if v != v else v))  # noqa: PLR0124
    write_text(folder / f"{name}.md", drawn.text + "\n")


def _each(value: Any, of: Callable[[Any], Any]) -> Any:
    """Nested facts with a function applied to every value: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _each(item, of) for name, item in value.items()}
    return [_each(item, of) for item in value] if isinstance(value, list | tuple) else of(value)


def _claims_page(setting: Setting) -> str:
    """The claims judged by the JSON of every part that has been run in this folder."""
    paths = {name: setting.out / name / f"{name}.json" for name in PARTS}
    found = {
        name: _each(read_json(path), lambda v: math.nan if v is None else v)
        for name, path in paths.items()
        if path.is_file()
    }
    try:
        return claims.page(claims.judge(found), _head(found))
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
            sections += [f"## {part.title}", text.read_text().rstrip(), *shown]
    return "\n\n".join(sections) + "\n"


def centre_lines(config: Config, folder: Path) -> list[dict[str, Any]]:
    """A line a policy of the training cell, means over the seeds of a finished reproduction."""
    cell = {"alpha": config.learning.alpha, "clusters": config.radio.clusters}
    final = matching(read_frame(folder / "accuracy" / "final.csv"), **cell)
    fields = ("accuracy", "uploads", "empty_rounds", "wasted", "fairness")
    table = DataFrame({field: means(final, "policy", field) for field in fields})
    return table.reset_index().to_dict("records")


def _made_by(setting: Setting) -> dict[str, object]:
    base = setting.base
    trained, tested = check_unseen(setting)
    return {
        "scale": setting.scale,
        "data": base.learning.data,
        "placement": base.cell.placement,
        **setting.centre._asdict(),
        "rounds": base.run.rounds,
        "episodes": base.qmix.episodes,
        "training_seeds": setting.training_seeds,
        "seeds_trained_on": trained,
        "seeds_evaluated_on": tested,
    }


def _head(found: Mapping[str, Any]) -> str:
    """What stood behind it, in a few sentences; every part notes its own, accuracy's is shown, or
    that of the training."""
    part = next(part for part in ("accuracy", "reward", *found) if part in found)
    made = found[part]["setting"]
    text = (
        f"Data {made['data']}, placement {made['placement']}, {made['rounds']} rounds, agents "
        f"trained for {made['episodes']} episodes at alpha {made['alpha']:g}, n_c "
        f"{made['clusters']}, {len(made['training_seeds'])} training seeds. Channels and "
        f"partitions of {made['seeds_evaluated_on']} seeds, none of the {made['seeds_trained_on']} "
        "that training used; evaluation seed i meets the agents of training seed i, and every one "
        "the same agents that come with the package."
    )
    if made["scale"] == "paper":
        return text
    return f"{text} **Scale {made['scale']}: this checks the code, not the paper.**"
