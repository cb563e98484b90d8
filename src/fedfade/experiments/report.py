"""One self-contained page a person can read: figures inside, nothing loaded from outside."""

import base64
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config
from fedfade.experiments.metrics import (
    Row,
    Summary,
    columns,
    policies_of,
    series,
    shown,
    summarise,
)
from fedfade.shown import tagged
from fedfade.storage import save_figure, write_text
from fedfade.wording import counted, listed

_LEFT_OUT_LINES = 40


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One line per policy; the genie has uploads only and is not among them."""
    return [summarise(rows, policy) for policy in policies_of(rows) if policy != GENIE]


def _sending(rows: Sequence[Row]) -> list[Summary]:
    return [line for line in summaries(rows) if line.policy != PERFECT]


def _starves(line: Summary) -> bool:
    """Fewer than one upload in two rounds."""
    return bool(line.uploads < 0.5)


def level_with_best(rows: Sequence[Row]) -> list[str]:
    """The sending policies whose final accuracy no other beats beyond noise, best first.

    Policies that starve are not among them: what their models can do is chance, and where all
    starve there is no best. Runs of one seed share channel and data, so differences are taken
    seed by seed; a policy is level with the best when the mean difference is within twice its
    standard error. One seed shows no noise, so there level means equal.
    """
    sending = [line.policy for line in _sending(rows) if not _starves(line)]
    final = {policy: series(rows, policy, "accuracy")[:, -1] for policy in sending}
    order = sorted(sending, key=lambda policy: -final[policy].mean())

    def level(policy: str) -> bool:
        gap = final[order[0]] - final[policy]
        error = gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else 0.0
        return bool(gap.mean() <= 2.0 * error)

    return [policy for policy in order if level(policy)]


def verdict(rows: Sequence[Row], clients: int) -> str:
    """Who wins, and why, in a few sentences made of the numbers below."""
    table = {line.policy: line for line in summaries(rows)}
    sending, winners = _sending(rows), level_with_best(rows)
    if not sending:
        return "Only the bound was run."
    if not winners:
        return f"{_no_best(sending, clients)}{_perfect_reaches(table, None)}"
    if len(sending) == 1:
        text = f"{winners[0]}, the only policy that was run, ends at"
    else:
        alone = len(winners) == 1
        verb = "wins" if alone else "are level within the noise of the seeds"
        if len({row.seed for row in rows}) == 1:
            verb = f"{'ends' if alone else 'end'} highest in the one seed that was run"
        text = f"{listed(winners)} {verb}:"
    accuracy = ", ".join(table[name].text("accuracy") for name in winners)
    uploads = ", ".join(table[name].text("uploads") for name in winners)
    text += f" final accuracy {accuracy} %, uploads of {clients} a round {uploads}."
    text += _perfect_reaches(table, table[winners[0]])
    if starving := [line.policy for line in sending if _starves(line)]:
        text += f" Starving, with fewer than one upload in two rounds: {', '.join(starving)}."
    return text


def _no_best(sending: Sequence[Summary], clients: int) -> str:
    """What to say where every policy starves."""
    most = max(sending, key=lambda line: line.uploads)
    if most.uploads == 0:
        return (
            "Nobody delivered, in any round and under any policy, so the models are what they were "
            "at the start and no policy is best. Lower learning.payload_bits or raise radio.slots."
        )
    return (
        "No policy is best, for all starve, with fewer than one upload in two rounds; the most, "
        f"{most.text('uploads')} of {clients} a round, has {most.policy}."
    )


def _perfect_reaches(table: Mapping[str, Summary], best: Summary | None) -> str:
    """How far perfect upload is ahead, if it was run."""
    if PERFECT not in table:
        return ""
    text = f" Perfect upload reaches {table[PERFECT].text('accuracy')} %"
    if best is None:
        return f"{text}."
    gap = 100 * (table[PERFECT].accuracy - best.accuracy)
    if round(gap, 1) > 0:
        return f"{text}, {gap:.1f} points more."
    no_more = "no more: after so few rounds and seeds further uploads do not show in the accuracy"
    return f"{text}, {'as much' if round(gap, 1) == 0 else no_more}."


def summary_table(rows: Sequence[Row], scopes: Mapping[str, str]) -> list[list[str]]:
    """Headings and a line per policy as text, for the terminal and the page alike."""
    headings = ["policy", "knows", *(column.heading for column in shown(rows))]
    lines = [[s.policy, scopes.get(s.policy, "bound"), *s.cells()] for s in summaries(rows)]
    return [headings, *lines]


def genie_line(rows: Sequence[Row]) -> str | None:
    """The genie's bound as a sentence, when it was computed."""
    if GENIE not in policies_of(rows):
        return None
    mean = series(rows, GENIE, "delivered").mean()
    return f"No policy, however clairvoyant, could deliver more than {mean:.2f} uploads a round."


def left_out_lines(rows: Sequence[Row]) -> list[str]:
    """Which clients' updates were left out because they were not finite, run by run."""
    rounds: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for row in rows:
        for number in row.not_finite_clients.split():
            rounds[row.policy, row.seed, int(number)].append(row.round)
    if not rounds:
        return []
    count = sum(map(len, rounds.values()))
    lines = [
        f"{counted(count, 'update')} {'was' if count == 1 else 'were'} left out because not finite "
        "(not a number, infinite, or of enormous norm); the rounds went on without:"
    ]
    for (policy, seed, client), numbers in sorted(rounds.items())[:_LEFT_OUT_LINES]:
        lines.append(f"{policy}, seed {seed}: client {client} in {_spans(numbers)}.")
    if (more := len(rounds) - _LEFT_OUT_LINES) > 0:
        lines.append(f"{counted(more, 'more line')} in metrics.csv.")
    return lines


def _spans(numbers: Sequence[int]) -> str:
    """Rounds in words.

    >>> _spans([0, 1, 2, 5]), _spans([4])
    ('rounds 0-2, 5', 'round 4')
    """
    spans = []
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        first, *rest = (number for _, number in group)
        spans.append(f"{first}-{rest[-1]}" if rest else str(first))
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(spans)}"


def write_report(
    folder: Path, config: Config, record: Mapping[str, Any], rows: Sequence[Row]
) -> Path:
    """Draw all figures and write `report.html`; returns its path."""
    learning, radio, run = config.learning, config.radio, config.run
    setting = (
        f"{counted(learning.clients, 'client')}, {counted(radio.subbands, 'sub-band')}, "
        f"{counted(radio.slots, 'slot')} a round, {counted(run.rounds, 'round')}, "
        f"{counted(run.seeds, 'seed')}, data {learning.data}, mobility {config.cell.mobility}, "
        f"fading {radio.source}"
    )
    if radio.source == "clustered":
        setting += f" with {radio.clusters} clusters"
    made = (
        f"fedfade {record.get('fedfade')}, commit {record.get('commit') or 'unknown'}, "
        f"torch {record.get('torch')}, {record.get('device')}, started {record.get('started')}"
    )
    headings, *table = summary_table(rows, record.get("scopes") or {})
    # Of one policy alone there is no best.
    best, lines = level_with_best(rows) if len(_sending(rows)) > 1 else [], ""
    for cells in table:
        mark = ' class="best"' if cells[0] in best else ""
        lines += f"<tr{mark}>{_tagged('td', cells)}</tr>"
    page = Template((resources.files(__package__) / "report.html").read_text()).substitute(
        setting=tagged(setting),
        verdict=tagged(verdict(rows, learning.clients)),
        head=_tagged("th", headings),
        lines=lines,
        genie=tagged(genie_line(rows) or ""),
        left_out=_tagged("p", left_out_lines(rows)),
        pictures=_pictures(folder / "figures", rows, learning.clients),
        command=tagged(str(record.get("command"))),
        made=tagged(made),
        config=tagged((folder / "config.yaml").read_text()),
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _tagged(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{tagged(text)}</{tag}>" for text in texts)


def _pictures(folder: Path, rows: Sequence[Row], clients: int) -> str:
    """Draw into a folder; returns the sections of the page, images inside."""
    from fedfade.experiments import figures  # Matplotlib takes a second to import

    accuracy, uploads = figures.accuracy_figure(rows), figures.uploads_figure(rows, clients)
    served, waste = figures.served_figure(rows, clients), figures.waste_figure(rows)
    paid = [
        (
            f"accuracy-{what}",
            figures.accuracy_figure(rows, what),
            f"Accuracy against {what}",
            f"test accuracy against {what}",
        )
        for what in ("seconds", "joules")
        if what in columns(rows)
    ]
    sections = []
    for name, figure, heading, text in [
        ("accuracy", accuracy, "Accuracy", "test accuracy against rounds"),
        *paid,
        ("uploads", uploads, "Uploads per round", "uploads per round"),
        ("served", served, "Who is served", "share of rounds each client delivered"),
        ("waste", waste, "Where the bits go", "bits delivered and wasted"),
    ]:
        save_figure(figure, folder / f"{name}.png")
        image = base64.b64encode((folder / f"{name}.png").read_bytes()).decode("ascii")
        source = f"data:image/png;base64,{image}"
        sections.append(f'<h2>{heading}</h2><p><img alt="{text}" src="{source}"></p>')
    return "\n".join(sections)
