"""The paper's claims, each judged by a stated rule from the facts of one part.

A pair (mean, error) is a difference taken seed by seed and its standard error. *Beyond noise*
means more than twice that error; with one seed there is no error, and the sign decides.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedfade.allocation import PERFECT
from fedfade.studies.frames import markdown
from fedfade.studies.paper.setting import HEURISTICS, QMIX, SCHEDULE

Verdict = Literal["holds", "holds only when", "does not hold", "not measured"]
Facts = Mapping[str, Any]
"""The JSON of a part."""
Answer = tuple[str, Verdict, str]
"""What was measured, the verdict, and when it holds."""
Rule = Callable[[Facts], Answer]

CLOSE = 0.02
"""Close to perfect upload: within 2 points, what seeds differ by."""
STAYS = 0.01
"""An accuracy stays: it moves by no more than 1 point, or no more than noise."""
TRACKS = -0.7
"""A rank correlation that tells who ends up better."""
CONVERGED = 0.05
"""Share of the whole rise that the last tenth of a training may differ by."""
LOW_ALPHA = 0.5
"""The paper's smallest, of which two claims speak."""
EPISODES = 30_000
DECENTRALISED = ("random", "max-individual-rate", SCHEDULE, QMIX)


class Claim(NamedTuple):
    """What is claimed, when it holds, and how that is measured from the facts of a part."""

    says: str
    rule: str
    part: str
    measure: Rule


class Judged(NamedTuple):
    """A claim with its verdict."""

    claim: Claim
    measured: str
    verdict: Verdict
    when: str = ""  # for `holds only when`


CLAIMS: list[Claim] = []


def _claim(part: str, says: str, rule: str) -> Callable[[Rule], Rule]:
    """Enter a claim, judged by the function below it."""

    def enter(measure: Rule) -> Rule:
        CLAIMS.append(Claim(says, rule, part, measure))
        return measure

    return enter


class NoNoiseKnown(Exception):
    """A difference of a single seed was to be judged."""


def beyond(pair: Sequence[float]) -> bool:
    """Whether a difference is above zero beyond noise.

    >>> beyond((0.1, 0.04)), beyond((0.1, 0.06))
    (True, False)
    """
    mean, error = pair
    if math.isnan(error):
        raise NoNoiseKnown
    return bool(mean > 2 * error)


def _below(pair: Sequence[float]) -> bool:
    mean, error = pair
    return beyond((-mean, error))


def verdict_of(held: Mapping[str, bool]) -> tuple[Verdict, str]:
    """Holds in all cases, in some (which), or in none.

    >>> verdict_of({"a": True, "b": False})
    ('holds only when', 'a')
    """
    yes = [case for case, holds in held.items() if holds]
    if len(yes) == len(held) and held:
        return "holds", ""
    if not yes:
        return "does not hold", ""
    no = [case for case in held if case not in yes]
    if len(held) > 5 and len(no) < len(yes):
        return "holds only when", f"not {'; not '.join(no)}"
    return "holds only when", "; ".join(yes)


def _cell(cell: Facts) -> str:
    return f"at alpha {cell['alpha']:g}, n_c {cell['clusters']:g}"


def _at_low_alpha(facts: Facts) -> list[Facts]:
    return [cell for cell in facts["cells"] if cell["alpha"] == LOW_ALPHA]


NO_LOW_ALPHA: Answer = (f"no cell has alpha {LOW_ALPHA:g}", "not measured", "")


def _one_value(lines: Sequence[Facts]) -> bool:
    """Whether these changes along alpha or n_c lead from nowhere to nowhere."""
    return not any(line["steps"] for line in lines)


def _points(pair: Sequence[float]) -> str:
    mean, error = pair
    return f"{100 * mean:+.1f}" + ("" if math.isnan(error) else f"±{100 * error:.1f}")


def _listed(values: Iterable[float], form: str = "g") -> str:
    return ", ".join(f"{value:{form}}" for value in values)


# --- the claims, in the order of the table -----------------------------------------------------


@_claim(
    "accuracy",
    "QMIX above every heuristic in all nine cells",
    "final accuracy above random, max individual rate and max sum rate beyond noise, in each cell",
)
def above_every_heuristic(facts: Facts) -> Answer:
    cells = facts["cells"]
    beaten = {h: [beyond(cell["qmix_minus"][h]) for cell in cells] for h in HEURISTICS}
    all_three = {
        _cell(cell): all(held) for cell, *held in zip(cells, *beaten.values(), strict=True)
    }
    text = []
    for h in HEURISTICS:
        gaps = [100 * cell["qmix_minus"][h][0] for cell in cells]
        text.append(f"{h} in {sum(beaten[h])} ({min(gaps):+.1f} to {max(gaps):+.1f} points)")
    measured = f"of {len(cells)} cells, above {'; '.join(text)}"
    if any(all_three.values()):
        return (measured, *verdict_of(all_three))
    # Nowhere above all three, but perhaps everywhere above some.
    weaker = {f"compared with {h} alone": all(beaten[h]) for h in HEURISTICS}
    return (measured, *verdict_of(weaker))


@_claim(
    "accuracy",
    "(not in the paper) QMIX above a schedule made once a round",
    "final accuracy above the block-fading schedule's beyond noise, in each cell",
)
def above_the_schedule(facts: Facts) -> Answer:
    gaps = {_cell(cell): cell["qmix_minus"][SCHEDULE] for cell in facts["cells"]}
    held = {cell: beyond(gap) for cell, gap in gaps.items()}
    shown = ", ".join(map(_points, gaps.values()))
    return (f"points above, cell by cell: {shown}", *verdict_of(held))


@_claim(
    "accuracy",
    "close to perfect upload at alpha 0.5",
    f"median final accuracy at most {100 * CLOSE:.0f} points below perfect upload, in each "
    "cell of the smallest alpha",
)
def close_to_perfect(facts: Facts) -> Answer:
    chosen = _at_low_alpha(facts)
    if not chosen:
        return NO_LOW_ALPHA
    reached = {
        policy: [cell["policies"][policy]["accuracy"] for cell in chosen]
        for policy in chosen[0]["policies"]
    }
    perfect = reached.pop(PERFECT)
    gaps = {
        policy: [best - own for best, own in zip(perfect, values, strict=True)]
        for policy, values in reached.items()
    }
    held = {_cell(cell): gap <= CLOSE for cell, gap in zip(chosen, gaps[QMIX], strict=True)}
    text = "; ".join(
        f"{policy} {_listed((100 * gap for gap in own), '.1f')}" for policy, own in gaps.items()
    )
    heads = _listed(cell["clusters"] for cell in chosen)
    return (f"points below perfect at n_c {heads}: {text}", *verdict_of(held))


@_claim(
    "accuracy",
    "max sum rate declines with n_c, the others stay",
    f"from the fewest clusters to the most: max sum rate falls by more than {100 * STAYS:.0f} "
    "point and beyond noise, every other moves by at most that or its noise, at each alpha",
)
def sum_rate_declines(facts: Facts) -> Answer:
    lines = facts["with_clusters"]
    if _one_value(lines):
        return "one n_c alone was run", "not measured", ""
    held, text = {}, []
    for alpha in dict.fromkeys(line["alpha"] for line in lines):
        own = {line["policy"]: line["overall"] for line in lines if line["alpha"] == alpha}
        fell = _below(own["max-sum-rate"]) and own["max-sum-rate"][0] < -STAYS
        moved = [
            policy
            for policy, (mean, error) in own.items()
            if policy not in ("max-sum-rate", PERFECT) and abs(mean) > max(STAYS, 2 * error)
        ]
        held[f"at alpha {alpha:g}"] = fell and not moved
        others = f"; moved too: {', '.join(moved)}" if moved else ""
        text.append(f"alpha {alpha:g}: {_points(own['max-sum-rate'])} points{others}")
    uploads = [
        line["overall"][0]
        for line in facts["uploads_with_clusters"]
        if line["policy"] == "max-sum-rate"
    ]
    mean = sum(uploads) / len(uploads)
    return (f"{'; '.join(text)}; its uploads {mean:+.2f} a round", *verdict_of(held))


@_claim(
    "accuracy",
    "heuristics improve with alpha",
    "from the smallest alpha to the largest: up beyond noise and no step down beyond noise, at "
    "each n_c, for each heuristic",
)
def heuristics_improve(facts: Facts) -> Answer:
    lines = facts["with_alpha"]
    if _one_value(lines):
        return "one alpha alone was run", "not measured", ""
    held, text = {}, []
    for policy in HEURISTICS:
        own = [line for line in lines if line["policy"] == policy]
        held[f"for {policy}"] = all(
            beyond(line["overall"]) and not any(map(_below, line["steps"])) for line in own
        )
        text.append(f"{policy} {', '.join(_points(line['overall']) for line in own)}")
    heads = _listed(line["clusters"] for line in lines if line["policy"] == HEURISTICS[0])
    return (f"points from least to most alpha at n_c {heads}: {'; '.join(text)}", *verdict_of(held))


@_claim(
    "ablation",
    "hiding the gradient deviation hurts",
    "final accuracy at the centre below the full observation's beyond noise",
)
def hidden_gradient_hurts(facts: Facts) -> Answer:
    pair = facts["hurt"]["gradient"]
    ends = ", ".join(f"{one['hidden']} hidden {one['uploads']:.2f}" for one in facts["variants"])
    text = f"costs {_points(pair)} points; uploads per round {ends}"
    return text, "holds" if beyond(pair) else "does not hold", ""


@_claim(
    "ablation",
    "hiding the fading hurts more, and is less stable",
    "below the full observation's and below the hidden gradient's beyond noise, and a wider band",
)
def hidden_fading_hurts_more(facts: Facts) -> Answer:
    spread = {line["hidden"]: line["band"] for line in facts["variants"]}
    hurt, more = facts["hurt"]["fading"], facts["fading_more"]
    held = {
        "it hurts at all": beyond(hurt),
        "it hurts more than the hidden gradient": beyond(more),
        "its 10-90 % band is wider": spread["fading"] > spread["nothing"],
    }
    text = (
        f"costs {_points(hurt)} points, {_points(more)} more than the hidden gradient; band "
        f"{100 * spread['fading']:.1f} points against {100 * spread['nothing']:.1f}"
    )
    if not held["it hurts at all"]:
        return text, "does not hold", ""
    return (text, *verdict_of(held))


@_claim(
    "reward",
    "the reward converges by 30,000 episodes",
    f"for each training seed the last tenth within {100 * CONVERGED:.0f} % of the whole rise "
    "of the tenth before and of the best tenth",
)
def reward_converges(facts: Facts) -> Answer:
    held, ends = {}, []
    for seed in facts["seeds"]:
        start, best, last = seed["start"], seed["best"], seed["last"]
        near = CONVERGED * max(best - start, 1e-12)
        still, there = abs(last - seed["before_last"]) <= near, best - last <= near
        held[f"in training seed {seed['seed']:.0f}"] = still and there and best > start
        ends.append(f"{start:.2f} → {last:.2f} (best {best:.2f})")
    episodes = facts["episodes"]
    text = f"reward by tenths of {episodes} episodes, first → last: {', '.join(ends)}"
    if episodes < EPISODES:
        return f"{text}; trained for fewer than {EPISODES} episodes", "not measured", ""
    return (text, *verdict_of(held))


@_claim(
    "bound",
    "the bound's second term tracks accuracy",
    f"Spearman's rank correlation of its mean over rounds with final accuracy at most "
    f"{TRACKS}, over all runs that send, in each cell",
)
def second_term_tracks(facts: Facts) -> Answer:
    cells = facts["cells"]
    held = {_cell(cell): cell["all_runs"] <= TRACKS for cell in cells}
    each, within, uploads = (
        _listed((cell[name] for cell in cells), ".2f")
        for name in ("all_runs", "within_seeds", "uploads")
    )
    text = f"rank correlation cell by cell: {each} (within seeds {within}; uploads alone {uploads})"
    return (text, *verdict_of(held))


@_claim(
    "accuracy",
    "(not in the paper) qmix-plus below no decentralised policy at alpha 0.5",
    "final accuracy not below random, max individual rate, the block-fading schedule and QMIX "
    "beyond noise, in each cell of the smallest alpha",
)
def plus_not_below_local(facts: Facts) -> Answer:
    chosen = _at_low_alpha(facts)
    if not chosen:
        return NO_LOW_ALPHA
    if not all(cell.get("plus_minus") for cell in chosen):
        return "no such agents fit this scenario", "not measured", ""
    above = {p: [cell["plus_minus"][p] for cell in chosen] for p in DECENTRALISED}
    held = {
        _cell(cell): not any(map(_below, gaps))
        for cell, *gaps in zip(chosen, *above.values(), strict=True)
    }
    text = "; ".join(f"{policy} {', '.join(map(_points, own))}" for policy, own in above.items())
    heads = _listed(cell["clusters"] for cell in chosen)
    return (f"points above at n_c {heads}: {text}", *verdict_of(held))


# --- the page ----------------------------------------------------------------------------------


def judge(facts: Mapping[str, Facts]) -> list[Judged]:
    """Every claim with what was measured and the verdict, from the facts of the parts run."""
    return [Judged(claim, *_answer(claim, facts)) for claim in CLAIMS]


def _answer(claim: Claim, facts: Mapping[str, Facts]) -> Answer:
    if claim.part not in facts:
        return f"part {claim.part} was not run", "not measured", ""
    try:
        return claim.measure(facts[claim.part])
    except NoNoiseKnown:
        text = "one seed alone was run: how far chance moves it is not known"
        return text, "not measured", ""


def page(found: Sequence[Judged], head: str) -> str:
    """`claims.md`: the table, then the rules."""
    rows = [
        [one.claim.says, one.measured, f"**{one.verdict}**" + (f": {one.when}" if one.when else "")]
        for one in found
    ]
    rules = "\n".join(f"- *{one.claim.says}*: {one.claim.rule}." for one in found)
    sections = [
        "# The paper's claims",
        head,
        markdown(["claim", "measured", "verdict"], rows),
        "Rules; holding in all cases, in some (holds only when), or in none. A difference is taken "
        "seed by seed; beyond noise means more than twice its standard error.",
        rules,
    ]
    return "\n\n".join(sections) + "\n"
