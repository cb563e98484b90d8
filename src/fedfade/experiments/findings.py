"""What a comparison found, in sentences and tables made of its rows."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fedfade.allocation import GENIE, PERFECT
from fedfade.experiments.metrics import Row, Summary, policies_of, series, shown, summarise
from fedfade.wording import counted, listed

_LEFT_OUT_LINES = 40


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One line per policy; the genie has uploads only and is not among them."""
    return [summarise(rows, policy) for policy in policies_of(rows) if policy != GENIE]


def _starves(line: Summary) -> bool:
    """Fewer than one upload in two rounds."""
    return bool(line.uploads < 0.5)


class Gap(NamedTuple):
    """How far one policy is above another, seed by seed."""

    mean: float
    error: float  # of the mean, by the spread over seeds; 0 where there is one seed

    @property
    def noise(self) -> bool:
        """Whether it may be nothing: within twice its standard error."""
        return self.mean <= 2.0 * self.error

    def text(self, digits: int, scale: float = 1.0) -> str:
        """As a number, with its error if there is one."""
        error = f" ± {scale * self.error:.{digits}f}" if self.error else ""
        return f"{scale * self.mean:.{digits}f}{error}"


def gap(rows: Sequence[Row], upper: str, lower: str, field: str) -> Gap:
    """Of final accuracies, or of uploads a round.

    Runs of one seed share channel and data, so differences are taken seed by seed.
    """
    both = (series(rows, policy, field) for policy in (upper, lower))
    high, low = (each[:, -1] if field == "accuracy" else each.mean(1) for each in both)
    found = high - low
    error = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return Gap(float(found.mean()), float(error))


def _behind_best(rows: Sequence[Row], lines: Sequence[Summary]) -> dict[str, Gap]:
    """The sending policies whose final accuracy no other beats beyond noise, and how far each is
    below the highest mean.

    Policies that starve are not among them: what their models can do is chance, and where all
    starve there is no best. One seed shows no noise, so there level means equal.
    """
    fed = [line.policy for line in lines if line.policy != PERFECT and not _starves(line)]
    final = {policy: series(rows, policy, "accuracy")[:, -1].mean() for policy in fed}
    order = sorted(fed, key=lambda policy: -final[policy])
    gaps = {policy: gap(rows, order[0], policy, "accuracy") for policy in order}
    return {policy: found for policy, found in gaps.items() if found.noise}


class Place(NamedTuple):
    """A policy's place in the ranking."""

    line: Summary
    behind: Gap | None  # the highest mean accuracy, if noise does not tell it from that

    @property
    def policy(self) -> str:
        return self.line.policy


def ranked(rows: Sequence[Row]) -> list[Place]:
    """Best first: those level with the best by their uploads, the rest by accuracy, those who
    starve after them, and the bound last."""
    lines = summaries(rows)
    behind = _behind_best(rows, lines)

    def order(place: Place) -> tuple[int, float]:
        if place.behind is not None:
            return 0, -place.line.uploads
        last = 3 if place.policy == PERFECT else 2 if _starves(place.line) else 1
        accuracy = place.line.accuracy
        return last, math.inf if math.isnan(accuracy) else -accuracy

    return sorted((Place(line, behind.get(line.policy)) for line in lines), key=order)


def verdict(rows: Sequence[Row], clients: int) -> str:
    """Who wins, by how much, and what the bound is, in a few sentences."""
    return " ".join(headline(rows, ranked(rows), clients))


def headline(rows: Sequence[Row], order: Sequence[Place], clients: int) -> list[str]:
    """The sentences of the verdict on ranked policies; the first alone says who wins."""
    perfect = next((place.line for place in order if place.policy == PERFECT), None)
    lines = [place.line for place in order if place.policy != PERFECT]
    level = [place.line for place in order if place.behind is not None]
    if not lines:
        return ["Only the bound was run."]
    if not level:
        return [_no_best(lines, clients), *_perfect_reaches(perfect, None)]
    best, others = lines[0], lines[1:]
    if not others:
        start = f"{best.policy}, the only policy that was run, ends at"
    elif len({row.seed for row in rows}) == 1:
        start = f"{best.policy} ends highest in the one seed that was run:"
    elif len(level) == 1:
        start = f"{best.policy} wins:"
    else:
        among = f"level in accuracy with {counted(len(level) - 1, 'other')}"
        start = f"{best.policy} leads, {among} within the noise of the seeds:"
    uploads = f"{best.text('uploads')} of {clients} uploads a round"
    found = [f"{start} final accuracy {best.text('accuracy')} %, {uploads}."]
    found += [*_ahead(rows, best, level[1:], others), *_perfect_reaches(perfect, best)]
    if starving := [line.policy for line in lines if _starves(line)]:
        found.append(f"Starving, with fewer than one upload in two rounds: {listed(starving)}.")
    return found


def _ahead(
    rows: Sequence[Row], best: Summary, level: Sequence[Summary], others: Sequence[Summary]
) -> list[str]:
    """By how much, as far as noise allows to say."""
    if level:
        names = [f"{line.policy} ({line.text('accuracy')} %)" for line in level]
        uploads = gap(rows, best.policy, level[0].policy, "delivered")
        more = f"it delivers {uploads.text(2)} a round more than the next of them"
        if uploads.noise:
            more = "uploads do not tell it from the next of them either"
        return [f"Level with it: {listed(names)}; {more}."]
    for line in others:
        if not _starves(line):
            above = gap(rows, best.policy, line.policy, "accuracy")
            return [f"That is {above.text(1, 100)} points above {line.policy}, the next."]
    return []


def _no_best(lines: Sequence[Summary], clients: int) -> str:
    """What to say where every policy starves."""
    most = max(lines, key=lambda line: line.uploads)
    if most.uploads == 0:
        return (
            "Nobody delivered, in any round and under any policy, so the models are what they were "
            "at the start and no policy is best. Lower learning.payload_bits or raise radio.slots."
        )
    return (
        "No policy is best, for all starve, with fewer than one upload in two rounds; the most, "
        f"{most.text('uploads')} of {clients} a round, has {most.policy}."
    )


def _perfect_reaches(perfect: Summary | None, best: Summary | None) -> list[str]:
    """How far perfect upload is ahead, if it was run."""
    if perfect is None:
        return []
    text = f"Perfect upload reaches {perfect.text('accuracy')} %"
    if best is None:
        return [f"{text}."]
    more = 100 * (perfect.accuracy - best.accuracy)
    if round(more, 1) > 0:
        return [f"{text}, {more:.1f} points more."]
    no_more = "no more: after so few rounds and seeds further uploads do not show in the accuracy"
    return [f"{text}, {'as much' if round(more, 1) == 0 else no_more}."]


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
