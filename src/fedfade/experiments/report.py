"""One self-contained page a person can read: figures inside, nothing loaded from outside."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config
from fedfade.experiments import figures
from fedfade.experiments.metrics import SHOWN, Row, Summary, policies_of, series, summarise
from fedfade.storage import save_figure, write_text

_LEFT_OUT_LINES = 40

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; }
.best { font-weight: 600; } .quiet { color: #666; }
"""


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One line per policy; the genie has uploads only and is not among them."""
    return [summarise(rows, policy) for policy in policies_of(rows) if policy != GENIE]


def level_with_best(rows: Sequence[Row]) -> list[str]:
    """Policies that send whose final accuracy nobody's beats beyond noise, best first.

    Runs of one seed share channel and data, so differences are taken seed by seed; a policy is
    level with the best when the mean difference is within twice its standard error. One seed
    shows no noise, so there level means equal.
    """
    final = {
        policy: series(rows, policy, "accuracy")[:, -1]
        for policy in policies_of(rows)
        if policy not in (PERFECT, GENIE)
    }
    if not final:
        return []
    order = sorted(final, key=lambda policy: -final[policy].mean())
    best = final[order[0]]

    def level(policy: str) -> bool:
        gap = best - final[policy]
        error = gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else 0.0
        return bool(gap.mean() <= 2.0 * error)

    return [policy for policy in order if level(policy)]


def verdict(rows: Sequence[Row], clients: int) -> str:
    """Who wins, and why, in a few sentences made of the numbers below."""
    table = {line.policy: line for line in summaries(rows)}
    winners = level_with_best(rows)
    if not winners:
        return "Only the bound was run."
    names = ", ".join(winners[:-1]) + (" and " if len(winners) > 1 else "") + winners[-1]
    alone = len(winners) == 1
    if len({row.seed for row in rows}) > 1:
        verb = "wins" if alone else "are level within the noise of the seeds"
    else:
        verb = f"{'ends' if alone else 'end'} highest in the one seed that was run"
    parts = [
        f"{names} {verb}: final accuracy "
        + ", ".join(f"{table[w].accuracy:.1%}" for w in winners)
        + f", uploads of {clients} a round "
        + ", ".join(f"{table[w].uploads:.1f}" for w in winners)
        + "."
    ]
    if PERFECT in table:
        gap = 100 * (table[PERFECT].accuracy - table[winners[0]].accuracy)
        reached = table[PERFECT].accuracy
        more = "more" if gap >= 0 else "less"
        parts.append(f"Perfect upload reaches {reached:.1%}, {abs(gap):.1f} points {more}.")
    starving = [s.policy for s in table.values() if s.policy != PERFECT and s.uploads < 0.5]
    if starving:
        who = ", ".join(starving)
        parts.append(f"Starving, with fewer than one upload in two rounds: {who}.")
    return " ".join(parts)


def summary_table(rows: Sequence[Row], scopes: Mapping[str, str]) -> list[list[str]]:
    """Headings and a line per policy as text, for the terminal and the page alike."""
    headings = ["policy", "knows", *(shown.heading for shown in SHOWN)]
    lines = [[s.policy, scopes.get(s.policy, "bound"), *s.cells()] for s in summaries(rows)]
    return [headings, *lines]


def genie_line(rows: Sequence[Row]) -> str | None:
    """The genie's bound as a sentence, when it was computed."""
    bounds = [row.delivered for row in rows if row.policy == GENIE]
    if not bounds:
        return None
    mean = sum(bounds) / len(bounds)
    return f"No policy, however clairvoyant, could deliver more than {mean:.2f} uploads a round."


def left_out_lines(rows: Sequence[Row]) -> list[str]:
    """Which clients' updates were left out because they were not finite, run by run."""
    rounds: dict[tuple[str, int, int], list[int]] = {}
    for row in rows:
        for client in row.not_finite_clients.split():
            rounds.setdefault((row.policy, row.seed, int(client)), []).append(row.round)
    if not rounds:
        return []
    total = sum(map(len, rounds.values()))
    lines = [
        f"{policy}, seed {seed}: client {client} in {_spans(numbers)}."
        for (policy, seed, client), numbers in sorted(rounds.items())
    ]
    if len(lines) > _LEFT_OUT_LINES:
        lines[_LEFT_OUT_LINES:] = [f"{len(lines) - _LEFT_OUT_LINES} more lines in metrics.csv."]
    head = (
        f"{total} updates were left out because they were not finite (not a number, infinite, or "
        "of enormous norm); the rounds went on without them:"
    )
    return [head, *lines]


def _spans(numbers: Sequence[int]) -> str:
    """Rounds in words.

    >>> _spans([0, 1, 2, 5]), _spans([4])
    ('rounds 0-2, 5', 'round 4')
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    text = ", ".join("-".join(map(str, span)) for span in spans)
    return f"round{'s' if len(numbers) > 1 else ''} {text}"


def write_report(
    folder: Path, config: Config, record: Mapping[str, Any], rows: Sequence[Row]
) -> Path:
    """Draw all figures and write `report.html`; returns its path."""
    clients = config.learning.clients
    pictures = {
        "accuracy": figures.accuracy_figure(rows),
        "uploads": figures.uploads_figure(rows, clients),
        "served": figures.served_figure(rows, clients),
        "waste": figures.waste_figure(rows),
    }
    images = {}
    for name, figure in pictures.items():
        path = folder / "figures" / f"{name}.png"
        save_figure(figure, path)
        images[name] = base64.b64encode(path.read_bytes()).decode("ascii")
    path = folder / "report.html"
    write_text(path, _page(config, record, rows, images, (folder / "config.yaml").read_text()))
    return path


def _page(
    config: Config,
    record: Mapping[str, Any],
    rows: Sequence[Row],
    images: Mapping[str, str],
    config_text: str,
) -> str:
    best = level_with_best(rows)
    headings, *table = summary_table(rows, record.get("scopes") or {})
    lines = []
    for line in table:
        mark = ' class="best"' if line[0] in best else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line)
        lines.append(f"<tr{mark}>{cells}</tr>")
    learning, radio, run = config.learning, config.radio, config.run
    setting = (
        f"{learning.clients} clients, {radio.subbands} sub-bands, {radio.slots} slots a round, "
        f"{run.rounds} rounds, {run.seeds} seeds, data {learning.data}, placement "
        f"{config.cell.placement}, fading {radio.source} with {radio.clusters} clusters"
    )
    made = (
        f"fedfade {record.get('fedfade')}, commit {record.get('commit') or 'unknown'}, "
        f"torch {record.get('torch')}, {record.get('device')}, started {record.get('started')}"
    )

    def picture(name: str, text: str) -> str:
        return f'<p><img alt="{escape(text)}" src="data:image/png;base64,{images[name]}"></p>'

    head = "".join(f"<th>{escape(word)}</th>" for word in headings)
    bad = "".join(f"<p>{escape(line)}</p>" for line in left_out_lines(rows))
    genie = genie_line(rows)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fedfade: who should send where?</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>Who should send where?</h1>
<p class="quiet">{escape(setting)}</p>
<p>{escape(verdict(rows, learning.clients))}</p>
<table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>
<p class="quiet">Knows: what the policy may see (local: own fading and progress, everybody's
large-scale gain; feedback: also who has finished; csi: also everybody's fading; central:
everything). Final test accuracy:
median over seeds and 10-90 % range. Uploads: clients that delivered in a round, mean. Empty:
rounds in which nobody delivered and the model stayed. Wasted: bits of uploads that were not
finished in time. Fairness: Jain's index of uploads per client, 1 = all equal. Mbit/s: sum rate,
mean over slots. {escape(genie or "")}</p>{bad}
<h2>Accuracy</h2>{picture("accuracy", "test accuracy against rounds")}
<h2>Uploads per round</h2>{picture("uploads", "uploads per round")}
<h2>Who is served</h2>{picture("served", "share of rounds each client delivered")}
<h2>Where the bits go</h2>{picture("waste", "bits delivered and wasted")}
<h2>How this was made</h2>
<pre>{escape(str(record.get("command")))}</pre>
<p class="quiet">{escape(made)}</p>
<details><summary>Full configuration</summary><pre>{escape(config_text)}</pre></details>
</body></html>
"""
