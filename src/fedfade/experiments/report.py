"""One self-contained page a person can read: figures inside, nothing loaded from outside."""

import base64
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config
from fedfade.experiments.metrics import SHOWN, Row, Summary, policies_of, series, summarise
from fedfade.storage import save_figure, write_text

_LEFT_OUT_LINES = 40


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One line per policy; the genie has uploads only and is not among them."""
    return [summarise(rows, policy) for policy in policies_of(rows) if policy != GENIE]


def level_with_best(rows: Sequence[Row]) -> list[str]:
    """The sending policies whose final accuracy no other beats beyond noise, best first.

    Runs of one seed share channel and data, so differences are taken seed by seed; a policy is
    level with the best when the mean difference is within twice its standard error. One seed
    shows no noise, so there level means equal.
    """
    sending = [policy for policy in policies_of(rows) if policy not in (PERFECT, GENIE)]
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
    winners = level_with_best(rows)
    if not winners:
        return "Only the bound was run."
    alone = len(winners) == 1
    names = winners[0] if alone else f"{', '.join(winners[:-1])} and {winners[-1]}"
    verb = "wins" if alone else "are level within the noise of the seeds"
    if len({row.seed for row in rows}) == 1:
        verb = f"{'ends' if alone else 'end'} highest in the one seed that was run"
    accuracy = ", ".join(f"{table[w].accuracy:.1%}" for w in winners)
    uploads = ", ".join(f"{table[w].uploads:.1f}" for w in winners)
    text = f"{names} {verb}: final accuracy {accuracy}, uploads of {clients} a round {uploads}."
    if PERFECT in table:
        reached = table[PERFECT].accuracy
        gap = 100 * (reached - table[winners[0]].accuracy)
        more = "more" if gap >= 0 else "less"
        text += f" Perfect upload reaches {reached:.1%}, {abs(gap):.1f} points {more}."
    starving = [s.policy for s in table.values() if s.policy != PERFECT and s.uploads < 0.5]
    if starving:
        text += f" Starving, with fewer than one upload in two rounds: {', '.join(starving)}."
    return text


def summary_table(rows: Sequence[Row], scopes: Mapping[str, str]) -> list[list[str]]:
    """Headings and a line per policy as text, for the terminal and the page alike."""
    headings = ["policy", "knows", *(shown.heading for shown in SHOWN)]
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
    lines = [
        f"{sum(map(len, rounds.values()))} updates were left out because they were not finite (not "
        "a number, infinite, or of enormous norm); the rounds went on without them:"
    ]
    for (policy, seed, client), numbers in sorted(rounds.items())[:_LEFT_OUT_LINES]:
        lines.append(f"{policy}, seed {seed}: client {client} in {_spans(numbers)}.")
    if (more := len(rounds) - _LEFT_OUT_LINES) > 0:
        lines.append(f"{more} more lines in metrics.csv.")
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
        f"{learning.clients} clients, {radio.subbands} sub-bands, {radio.slots} slots a round, "
        f"{run.rounds} rounds, {run.seeds} seeds, data {learning.data}, mobility "
        f"{config.cell.mobility}, fading {radio.source} with {radio.clusters} clusters"
    )
    made = (
        f"fedfade {record.get('fedfade')}, commit {record.get('commit') or 'unknown'}, "
        f"torch {record.get('torch')}, {record.get('device')}, started {record.get('started')}"
    )
    headings, *table = summary_table(rows, record.get("scopes") or {})
    best, lines = level_with_best(rows), ""
    for cells in table:
        mark = ' class="best"' if cells[0] in best else ""
        lines += f"<tr{mark}>{_tagged('td', cells)}</tr>"
    page = Template((resources.files(__package__) / "report.html").read_text()).substitute(
        setting=escape(setting),
        verdict=escape(verdict(rows, learning.clients)),
        head=_tagged("th", headings),
        lines=lines,
        genie=escape(genie_line(rows) or ""),
        left_out=_tagged("p", left_out_lines(rows)),
        pictures=_pictures(folder / "figures", rows, learning.clients),
        command=escape(str(record.get("command"))),
        made=escape(made),
        config=escape((folder / "config.yaml").read_text()),
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _tagged(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _pictures(folder: Path, rows: Sequence[Row], clients: int) -> str:
    """Draw into a folder; returns the sections of the page, images inside."""
    from fedfade.experiments import figures  # Matplotlib takes a second to import

    accuracy, uploads = figures.accuracy_figure(rows), figures.uploads_figure(rows, clients)
    served, waste = figures.served_figure(rows, clients), figures.waste_figure(rows)
    sections = []
    for name, figure, heading, text in [
        ("accuracy", accuracy, "Accuracy", "test accuracy against rounds"),
        ("uploads", uploads, "Uploads per round", "uploads per round"),
        ("served", served, "Who is served", "share of rounds each client delivered"),
        ("waste", waste, "Where the bits go", "bits delivered and wasted"),
    ]:
        save_figure(figure, folder / f"{name}.png")
        image = base64.b64encode((folder / f"{name}.png").read_bytes()).decode("ascii")
        source = f"data:image/png;base64,{image}"
        sections.append(f'<h2>{heading}</h2><p><img alt="{text}" src="{source}"></p>')
    return "\n".join(sections)
