"""The paper's claims, each judged by a stated rule from the facts (JSON) of one part.

Differences are judged by `fedfade.studies.noise`, all those of a verdict as one family; with one
seed there is no error, and nothing is judged. A claim about agents that did not learn is neither
held nor refuted: it is not reproduced.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedfade.allocation import PERFECT
from fedfade.studies.frames import markdown
from fedfade.studies.noise import RULE, Difference, beyond
from fedfade.studies.paper.setting import HEURISTICS, QMIX, SCHEDULE
from fedfade.studies.paper.trial import LEARNED

Verdict = Literal["holds", "holds only when", "does not hold", "not reproduced", "not measured"]
Facts = Mapping[str, Any]
Measured = tuple[str, Mapping[str, bool]]
Rule = Callable[[Facts], Measured]
"""From the facts of a part to what was measured and the cases in which the claim held."""

CLOSE = 0.02  # to perfect upload: within 2 points, what seeds differ by
STAYS = 0.01  # an accuracy that moves by no more than 1 point, or no more than noise
TRACKS = -0.7  # a rank correlation that tells who ends up better
CONVERGED = 0.05  # share of the whole rise that the last tenth of a training may differ by
LOW_ALPHA = 0.5  # the paper's smallest, of which two claims speak
EPISODES = 30_000
DECENTRALISED = ("random", "max-individual-rate", SCHEDULE, QMIX)


class Claim(NamedTuple):
    """What is claimed, the rule it is judged by, and the verdict."""

    says: str
    rule: str
    part: str
    measure: Rule
    of_agents: bool  # that were trained: judged only if they learned
    measured: str = ""
    verdict: Verdict = "not measured"
    when: str = ""  # for `holds only when`


CLAIMS: list[Claim] = []
_NUMBERS = {"close": 100 * CLOSE, "stays": 100 * STAYS, "converged": 100 * CONVERGED}


def _claim(part: str, of_agents: bool = False) -> Callable[[Rule], Rule]:
    """Enter a claim: the docstring of the function says what is claimed, then the rule."""

    def enter(measure: Rule) -> Rule:
        says, rule = " ".join((measure.__doc__ or "").split()).split(": ", 1)
        rule = rule.format(tracks=TRACKS, **_NUMBERS)
        CLAIMS.append(Claim(says, rule, part, measure, of_agents))
        return measure

    return enter


class NotMeasured(Exception):
    """Why the facts do not suffice to judge a claim."""


Pair = Sequence[float]
"""A `Difference` as JSON gives it back."""


def above(pairs: Iterable[Pair]) -> list[bool]:
    """Which differences are above zero beyond noise, all of them being one family.

    >>> above([(0.1, 0.02, 5), (0.1, 0.06, 5)])
    [True, False]
    """
    differences = [Difference(pair[0], pair[1], int(pair[2]), *pair[3:]) for pair in pairs]
    if any(math.isnan(one.error) for one in differences):
        raise NotMeasured("one seed alone was run: how far chance moves it is not known")
    return beyond(differences)


def below(pair: Pair) -> bool:
    """Whether one is below zero, by itself: corrected for their number, claims that nothing falls
    would hold more easily the more is compared."""
    return above([_negative(pair)])[0]


def _negative(pair: Pair) -> Pair:
    return -pair[0], *pair[1:]


def verdict_of(held: Mapping[str, bool]) -> tuple[Verdict, str]:
    """Holds in all cases, in some (which), or in none.

    >>> verdict_of({"a": True, "b": False})
    ('holds only when', 'a')
    """
    yes, no = ([case for case in held if held[case] == answer] for answer in (True, False))
    if not yes or not no:
        return "holds" if yes else "does not hold", ""
    if len(held) > 5 and len(no) < len(yes):
        return "holds only when", f"not {'; not '.join(no)}"
    return "holds only when", "; ".join(yes)


def _cell(cell: Facts) -> str:
    return f"at alpha {cell['alpha']:g}, n_c {cell['clusters']:g}"


def _at_low_alpha(facts: Facts) -> list[Facts]:
    chosen = [cell for cell in facts["cells"] if cell["alpha"] == LOW_ALPHA]
    if not chosen:
        raise NotMeasured(f"no cell has alpha {LOW_ALPHA:g}")
    return chosen


def _points(pair: Pair) -> str:
    """A difference, its error over seeds and, where agents were trained, over trainings."""
    mean, error, _, *moved = pair
    text = f"{100 * mean:+.1f}" + ("" if math.isnan(error) else f"±{100 * error:.1f}")
    trained = bool(moved) and not math.isnan(moved[0])
    return text + (f" (trainings ±{100 * moved[0]:.1f})" if trained else "")


def _listed(values: Iterable[float], form: str = "g") -> str:
    return ", ".join(f"{value:{form}}" for value in values)


@_claim("accuracy", of_agents=True)
def above_every_heuristic(facts: Facts) -> Measured:
    """QMIX above every heuristic in all nine cells: final accuracy above random, max individual
    rate and max sum rate beyond noise, in each cell"""
    cells = facts["cells"]
    answers = iter(above(cell["qmix_minus"][h] for h in HEURISTICS for cell in cells))
    beaten = {h: [next(answers) for _ in cells] for h in HEURISTICS}
    rows = zip(cells, *beaten.values(), strict=True)
    all_three = {_cell(cell): all(each) for cell, *each in rows}
    text = []
    for h in HEURISTICS:
        gaps = [100 * cell["qmix_minus"][h][0] for cell in cells]
        text.append(f"{h} in {sum(beaten[h])} ({min(gaps):+.1f} to {max(gaps):+.1f} points)")
    # Nowhere above all three, it may still be above some everywhere.
    weaker = {f"compared with {h} alone": all(beaten[h]) for h in HEURISTICS}
    measured = f"{len(cells) * len(beaten)} comparisons; of {len(cells)} cells, above "
    measured += "; ".join(text)
    return measured, all_three if any(all_three.values()) else weaker


@_claim("accuracy", of_agents=True)
def above_the_schedule(facts: Facts) -> Measured:
    """(not in the paper) QMIX above a schedule made once a round: final accuracy above the
    block-fading schedule's beyond noise, in each cell"""
    gaps = {_cell(cell): cell["qmix_minus"][SCHEDULE] for cell in facts["cells"]}
    held = dict(zip(gaps, above(gaps.values()), strict=True))
    each = ", ".join(map(_points, gaps.values()))
    return f"{len(gaps)} comparisons; points above, cell by cell: {each}", held


@_claim("accuracy", of_agents=True)
def close_to_perfect(facts: Facts) -> Measured:
    """close to perfect upload at alpha 0.5: median final accuracy at most {close:.0f} points below
    perfect upload, in each cell of the smallest alpha"""
    cells = _at_low_alpha(facts)
    ends = [{name: end["accuracy"] for name, end in cell["policies"].items()} for cell in cells]
    gaps = {name: [end[PERFECT] - end[name] for end in ends] for name in ends[0]}
    del gaps[PERFECT]
    held = {_cell(cell): gap <= CLOSE for cell, gap in zip(cells, gaps[QMIX], strict=True)}
    text = "; ".join(f"{p} {_listed((100 * gap for gap in gaps[p]), '.1f')}" for p in gaps)
    return f"points below perfect at n_c {_listed(c['clusters'] for c in cells)}: {text}", held


@_claim("accuracy")
def sum_rate_declines(facts: Facts) -> Measured:
    """max sum rate declines with n_c, the others stay: from the fewest clusters to the most: max
    sum rate falls by more than {stays:.0f} point and beyond noise, every other moves by at most
    that or its noise, at each alpha"""
    lines = facts["with_clusters"]
    if not any(line["steps"] for line in lines):
        raise NotMeasured("one n_c alone was run")
    held, text = {}, []
    falls = [line["overall"] for line in lines if line["policy"] == "max-sum-rate"]
    alphas = dict.fromkeys(line["alpha"] for line in lines)
    for alpha, falling in zip(alphas, above(map(_negative, falls)), strict=True):
        own = {line["policy"]: line["overall"] for line in lines if line["alpha"] == alpha}
        own.pop(PERFECT, None)
        change = own.pop("max-sum-rate")
        far = {policy: pair for policy, pair in own.items() if abs(pair[0]) > STAYS}
        moved = [p for p, pair in far.items() if below(pair) or below(_negative(pair))]
        held[f"at alpha {alpha:g}"] = falling and change[0] < -STAYS and not moved
        others = f"; moved too: {', '.join(moved)}" if moved else ""
        text.append(f"alpha {alpha:g}: {_points(change)} points{others}")
    changes = facts["uploads_with_clusters"]
    uploads = [line["overall"][0] for line in changes if line["policy"] == "max-sum-rate"]
    mean = sum(uploads) / len(uploads)
    uploads_too = f"its uploads {mean:+.2f} a round"
    return f"{len(falls)} comparisons; {'; '.join(text)}; {uploads_too}", held


@_claim("accuracy")
def heuristics_improve(facts: Facts) -> Measured:
    """heuristics improve with alpha: from the smallest alpha to the largest: up beyond noise and no
    step down beyond noise, at each n_c, for each heuristic"""
    lines = facts["with_alpha"]
    if not any(line["steps"] for line in lines):
        raise NotMeasured("one alpha alone was run")
    lines = [line for line in lines if line["policy"] in HEURISTICS]
    up = above(line["overall"] for line in lines)
    held, text, own = {}, [], []
    for policy in HEURISTICS:
        own = [line for line in lines if line["policy"] == policy]
        rises = [clear for line, clear in zip(lines, up, strict=True) if line in own]
        falls = any(below(step) for line in own for step in line["steps"])
        held[f"for {policy}"] = all(rises) and not falls
        text.append(f"{policy} {', '.join(_points(line['overall']) for line in own)}")
    heads = _listed(line["clusters"] for line in own)
    head = f"{len(lines)} comparisons; points from least to most alpha at n_c {heads}"
    return f"{head}: {'; '.join(text)}", held


@_claim("ablation", of_agents=True)
def hidden_gradient_hurts(facts: Facts) -> Measured:
    """hiding the gradient deviation hurts: final accuracy at the centre below the full
    observation's beyond noise"""
    pair = facts["hurt"]["gradient"]
    ends = ", ".join(f"{one['hidden']} hidden {one['uploads']:.2f}" for one in facts["variants"])
    return f"costs {_points(pair)} points; uploads per round {ends}", {"at all": above([pair])[0]}


@_claim("ablation", of_agents=True)
def hidden_fading_hurts_more(facts: Facts) -> Measured:
    """hiding the fading hurts more, and is less stable: below the full observation's and below the
    hidden gradient's beyond noise, and a wider band"""
    band = {line["hidden"]: line["band"] for line in facts["variants"]}
    hurt, more = facts["hurt"]["fading"], facts["fading_more"]
    hurts, hurts_more = above([hurt, more])
    held = {
        "it hurts at all": hurts,
        "it hurts more than the hidden gradient": hurts_more,
        "its 10-90 % band is wider": band["fading"] > band["nothing"],
    }
    text = (
        f"2 comparisons; costs {_points(hurt)} points, {_points(more)} more than the hidden "
        f"gradient; band {100 * band['fading']:.1f} points against {100 * band['nothing']:.1f}"
    )
    return text, held if held["it hurts at all"] else {}


@_claim("reward")
def reward_converges(facts: Facts) -> Measured:
    """the reward converges by 30,000 episodes: for each training seed the last tenth within
    {converged:.0f} % of the whole rise of the tenth before and of the best tenth"""
    held, ends = {}, []
    for seed in facts["seeds"]:
        start, best, last = seed["start"], seed["best"], seed["last"]
        near = CONVERGED * max(best - start, 1e-12)
        level = abs(last - seed["before_last"]) <= near and best - last <= near
        held[f"in training seed {seed['seed']:.0f}"] = level and best > start
        ends.append(f"{start:.2f} → {last:.2f} (best {best:.2f})")
    text = f"reward by tenths of {facts['episodes']} episodes, first → last: {', '.join(ends)}"
    if facts["episodes"] < EPISODES:
        raise NotMeasured(f"{text}; trained for fewer than {EPISODES} episodes")
    return text, held


@_claim("bound")
def second_term_tracks(facts: Facts) -> Measured:
    """the bound's second term tracks accuracy: Spearman's rank correlation of its mean over rounds
    with final accuracy at most {tracks}, over all runs that send, in each cell"""
    cells = facts["cells"]
    names = ("all_runs", "within_seeds", "uploads")
    each, within, uploads = (_listed((cell[name] for cell in cells), ".2f") for name in names)
    text = f"rank correlation cell by cell: {each} (within seeds {within}; uploads alone {uploads})"
    return text, {_cell(cell): cell["all_runs"] <= TRACKS for cell in cells}


@_claim("accuracy")
def plus_not_below_local(facts: Facts) -> Measured:
    """(not in the paper) qmix-plus below no decentralised policy at alpha 0.5: final accuracy not
    below random, max individual rate, the block-fading schedule and QMIX beyond noise, in each cell
    of the smallest alpha"""
    cells = _at_low_alpha(facts)
    if not all(cell.get("plus_minus") for cell in cells):
        raise NotMeasured("no such agents fit this scenario")
    gaps = {p: [cell["plus_minus"][p] for cell in cells] for p in DECENTRALISED}
    rows = zip(cells, *gaps.values(), strict=True)
    held = {_cell(cell): not any(map(below, own)) for cell, *own in rows}
    text = "; ".join(f"{policy} {', '.join(map(_points, own))}" for policy, own in gaps.items())
    return f"points above at n_c {_listed(c['clusters'] for c in cells)}: {text}", held


def judge(facts: Mapping[str, Facts]) -> list[Claim]:
    """Every claim with what was measured and the verdict, from the facts of the parts run."""
    found = []
    for claim in CLAIMS:
        own = facts.get(claim.part)
        measured, verdict, when = answer_of(claim.measure, own, claim.part)
        if claim.of_agents and verdict != "not measured" and own and not own["learned"]["learned"]:
            verdict, when = "not reproduced", "the agents did not learn"
        found.append(claim._replace(measured=measured, verdict=verdict, when=when))
    return found


def answer_of(measure: Rule, facts: Facts | None, part: str = "") -> tuple[str, Verdict, str]:
    """What was measured, the verdict, and when it holds."""
    if facts is None:
        return f"part {part} was not run", "not measured", ""
    try:
        measured, held = measure(facts)
    except NotMeasured as reason:
        return str(reason), "not measured", ""
    return (measured, *verdict_of(held))


def page(claims: Sequence[Claim], head: str, rehearsal: bool = False) -> str:
    """`claims.md`: the table, then the rules; of a rehearsal nothing is claimed in bold."""
    bold = "" if rehearsal else "**"
    verdicts = (f"{bold}{c.verdict}{bold}" + (c.when and f": {c.when}") for c in claims)
    rows = [[c.says, c.measured, verdict] for c, verdict in zip(claims, verdicts, strict=True)]
    sections = [
        "# The paper's claims",
        head,
        markdown(["claim", "measured", "verdict"], rows),
        "Rules; holding in all cases, in some (holds only when), or in none; *not reproduced* "
        f"where it speaks of agents and these did not learn. {RULE} {LEARNED}",
        "\n".join(f"- *{claim.says}*: {claim.rule}." for claim in claims),
    ]
    return "\n\n".join(sections) + "\n"
