"""The parts of a reproduction, in order, and what each leaves behind.

DIR/PART/*.csv       what figures are drawn from
DIR/PART/*.png       figures
DIR/PART/PART.json   the figures behind the claims
DIR/PART/PART.md     tables to paste
DIR/claims.md        the paper's claims with verdicts
DIR/results.md       all of it on one page: claims, tables, pictures
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fedfade.config import Config
from fedfade.errors import UserError, not_allowed
from fedfade.storage import folder_lock, read_json, write_json, write_text
from fedfade.studies.paper import (
    ablation,
    accuracy,
    bound,
    claims,
    partition,
    regimes,
    reward,
)
from fedfade.studies.paper.setting import Setting, check_unseen
from fedfade.studies.paper.summaries import means
from fedfade.studies.paper.tables import Line, distinct, matching, read_table


class Part(NamedTuple):
    """What a part does."""

    title: str
    compute: Callable[[Setting], None]
    draw: Callable[[Setting], tuple[dict[str, object], str]]


PARTS = {
    "partition": Part("Who owns which classes", partition.compute, partition.draw),
    "reward": Part("Reward while training", reward.compute, reward.draw),
    "accuracy": Part("Test accuracy in nine cells", accuracy.compute, accuracy.draw),
    "epochs": Part(
        "The centre cell with local epochs", accuracy.compute_epochs, accuracy.draw_epochs
    ),
    "ablation": Part("Hidden observations", ablation.compute, ablation.draw),
    "bound": Part("The bound's second term", bound.compute, bound.draw),
    "regimes": Part("Who wins where", regimes.compute, regimes.draw),
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
            part = PARTS[name]
            if not redraw:
                part.compute(setting)
            facts, text = part.draw(setting)
            folder = setting.out / name
            write_json(folder / f"{name}.json", _plain({"setting": _made_by(setting), **facts}))
            write_text(folder / f"{name}.md", text + "\n")
            setting.say(f"{name}: done, {folder}")
        page = _claims_page(setting)
        write_text(setting.out / "results.md", _results(setting, page))
        write_text(setting.out / "claims.md", page)
    return page


def _claims_page(setting: Setting) -> str:
    found = _all_facts(setting)
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
            sections.append("\n\n".join([f"## {part.title}", text.read_text().rstrip(), *shown]))
    return "\n\n".join(sections) + "\n"


def centre_lines(config: Config, folder: Path) -> list[Line]:
    """A line a policy of the training cell, means over the seeds of a finished reproduction."""
    cell = {"alpha": config.learning.alpha, "clusters": float(config.radio.clusters)}
    final = matching(read_table(folder / accuracy.PART / "final.csv"), **cell)
    fields = ("accuracy", "uploads", "empty_rounds", "wasted", "fairness")
    by_field = {field: means(final, "policy", field) for field in fields}
    return [
        {"policy": policy, **{field: by_field[field][policy] for field in fields}}
        for policy in distinct(final, "policy")
    ]


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _all_facts(setting: Setting) -> dict[str, Any]:
    """The JSON of every part that has been run in this folder."""
    paths = {name: setting.out / name / f"{name}.json" for name in PARTS}
    return {name: _known(read_json(path)) for name, path in paths.items() if path.is_file()}


def _known(value: Any) -> Any:
    """And back."""
    if value is None:
        return math.nan
    if isinstance(value, dict):
        return {name: _known(item) for name, item in value.items()}
    return [_known(item) for item in value] if isinstance(value, list) else value


def _made_by(setting: Setting) -> dict[str, object]:
    base = setting.base
    trained, tested = check_unseen(setting)
    return {
        "scale": setting.scale,
        "data": base.learning.data,
        "placement": base.cell.placement,
        "alpha": setting.centre.alpha,
        "clusters": setting.centre.clusters,
        "rounds": base.run.rounds,
        "episodes": base.qmix.episodes,
        "training_seeds": setting.training_seeds,
        "seeds_trained_on": trained,
        "seeds_evaluated_on": tested,
    }


def _head(found: Mapping[str, Any]) -> str:
    """What stood behind it, in a few sentences; every part notes its own, accuracy's is shown, or
    that of the training."""
    part = next(part for part in (accuracy.PART, reward.PART, *found) if part in found)
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
