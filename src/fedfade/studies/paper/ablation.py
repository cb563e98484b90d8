"""Agents trained and tested without the gradient deviation, or without the small-scale fading."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedfade.studies.paper import accuracy, pictures, reward
from fedfade.studies.paper.runs import Job, agent_jobs, compared, trained
from fedfade.studies.paper.setting import QMIX, Hide, Setting
from fedfade.studies.paper.summaries import curve_lines, final_lines, paired
from fedfade.studies.paper.tables import (
    Line,
    columns,
    distinct,
    markdown,
    matching,
    read_table,
    write_table,
)

PART = "ablation"
HIDDEN: tuple[Hide, ...] = ("gradient", "fading")
VARIANTS: tuple[tuple[Hide, ...], ...] = ((), *((hide,) for hide in HIDDEN))


def compute(setting: Setting) -> None:
    """Train each variant and test it at the centre; `curve.csv`, `final.csv`, `curves.csv`."""
    training: list[Line] = []
    jobs: dict[str, list[Job]] = {}
    for hide in VARIANTS:
        trained(setting, hide)
        training += reward.curve_table(setting, hide)
        jobs[hide[0] if hide else "nothing"] = _jobs(setting, hide)
    rows = iter(compared(setting, [job for some in jobs.values() for job in some], PART))
    final: list[Line] = []
    curves: list[Line] = []
    for hidden, some in jobs.items():
        own = [row for _ in some for row in next(rows)]
        head: Line = {"hidden": hidden}
        final += final_lines(own, setting.base.learning.clients, head)
        curves += curve_lines(own, "accuracy", head)
    folder = setting.out / PART
    write_table(folder / "curve.csv", training)
    write_table(folder / "final.csv", final)
    write_table(folder / "curves.csv", curves)


def _jobs(setting: Setting, hide: Sequence[Hide]) -> list[Job]:
    # With nothing hidden these are the runs of the accuracy part, made there or here.
    part = PART if hide else accuracy.PART
    return agent_jobs(setting, part, setting.centre.name, setting.centre.fields, hide)


def draw(setting: Setting) -> tuple[dict[str, object], str]:
    """Figure and facts from the CSV files."""
    folder = setting.out / PART
    training, final = read_table(folder / "curve.csv"), read_table(folder / "final.csv")
    curves = read_table(folder / "curves.csv")
    pictures.put(folder / "ablation.png", pictures.ablation, training, curves)
    rows, facts = [], []
    for hidden in distinct(final, "hidden"):
        values, uploads = map(np.array, columns(final, "accuracy", "uploads", hidden=hidden))
        ends = reward.convergence(matching(training, hidden=hidden))
        low, middle, high = np.percentile(values, [10, 50, 90])
        last = [end["last"] for end in ends]
        facts.append(
            {
                "hidden": hidden,
                "accuracy": float(middle),
                "band": float(high - low),
                "uploads": float(uploads.mean()),
                "reward": float(np.median(last)),
            }
        )
        rows.append(
            [
                hidden,
                f"{100 * middle:.1f} ({100 * low:.1f}-{100 * high:.1f})",
                f"{uploads.mean():.2f}",
                f"{np.median(last):.3f} ({min(last):.3f}-{max(last):.3f})",
            ]
        )
    heads = ["hidden", "final accuracy in %", "uploads per round", "reward, last tenth"]
    text = f"{QMIX} retrained and tested at the centre, {len(distinct(final, 'seed'))} seeds:\n\n"
    hurt = {hide: paired(final, {"hidden": "nothing"}, {"hidden": hide}) for hide in HIDDEN}
    more = paired(final, {"hidden": "gradient"}, {"hidden": "fading"})
    return {"variants": facts, "hurt": hurt, "fading_more": more}, text + markdown(heads, rows)
