"""The paper's claims, each judged by a stated rule from the figures of the parts.

A pair (mean, error) is a difference taken seed by seed and its standard error. *Beyond noise*
means more than twice that error; with one seed there is no error, and the sign decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedfade.allocation import PERFECT
from fedfade.studies.paper.setting import HEURISTICS, QMIX, SCHEDULE
from fedfade.studies.paper.tables import markdown

Verdict = Literal["holds", "holds only when", "does not hold", "not measured"]
Facts = Mapping[str, Mapping[str, Any]]
"""The JSON of every part that was run, by part."""

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
    """One line of the table."""

    says: str
    rule: str
    measured: str
    verdict: Verdict
    when: str = ""  # for `holds only when`


Answer = tuple[str, Verdict, str]
"""What was measured, the verdict, and when it holds."""


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


def _cell(cell: Mapping[str, Any]) -> str:
    return f"at alpha {cell['alpha']:g}, n_c {cell['clusters']:g}"


def _at_low_alpha(facts: Facts) -> list[Mapping[str, Any]]:
    return [c for c in facts["accuracy"]["cells"] if c["alpha"] == LOW_ALPHA]


NO_LOW_ALPHA: Answer = (f"no cell has alpha {LOW_ALPHA:g}", "not measured", "")


def _one_value(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these changes along alpha or n_c lead from nowhere to nowhere."""
    return not any(line["steps"] for line in lines)


def _points(pair: Sequence[float]) -> str:
    mean, error = pair
    return f"{100 * mean:+.1f}" + ("" if math.isnan(error) else f"±{100 * error:.1f}")


# --- the rules ---------------------------------------------------------------------------------


def above_every_heuristic(facts: Facts) -> Answer:
    """QMIX's final accuracy above each of the three heuristics."""
    cells = facts["accuracy"]["cells"]
    beaten = {h: [beyond(c["qmix_minus"][h]) for c in cells] for h in HEURISTICS}
    all_three = dict(
        zip(map(_cell, cells), map(all, zip(*beaten.values(), strict=True)), strict=True)
    )
    text = []
    for h in HEURISTICS:
        gaps = [100 * c["qmix_minus"][h][0] for c in cells]
        text.append(f"{h} in {sum(beaten[h])} ({min(gaps):+.1f} to {max(gaps):+.1f} points)")
    measured = f"of {len(cells)} cells, above {'; '.join(text)}"
    if any(all_three.values()):
        return (measured, *verdict_of(all_three))
    # Nowhere above all three, but perhaps everywhere above some.
    weaker = {f"compared with {h} alone": all(beaten[h]) for h in HEURISTICS}
    return (measured, *verdict_of(weaker))


def above_the_schedule(facts: Facts) -> Answer:
    """QMIX against the schedule made once a round, which the paper does not have."""
    cells = facts["accuracy"]["cells"]
    held = {_cell(c): beyond(c["qmix_minus"][SCHEDULE]) for c in cells}
    gaps = ", ".join(_points(c["qmix_minus"][SCHEDULE]) for c in cells)
    return (f"points above, cell by cell: {gaps}", *verdict_of(held))


def close_to_perfect(facts: Facts) -> Answer:
    """The gap to perfect upload at alpha 0.5."""
    chosen = _at_low_alpha(facts)
    if not chosen:
        return NO_LOW_ALPHA
    gaps = {
        policy: [
            c["policies"][PERFECT]["accuracy"] - c["policies"][policy]["accuracy"] for c in chosen
        ]
        for policy in chosen[0]["policies"]
        if policy != PERFECT
    }
    held = {_cell(c): gap <= CLOSE for c, gap in zip(chosen, gaps[QMIX], strict=True)}
    text = "; ".join(
        f"{policy} " + ", ".join(f"{100 * gap:.1f}" for gap in gaps[policy]) for policy in gaps
    )
    heads = ", ".join(f"{c['clusters']:g}" for c in chosen)
    return (f"points below perfect at n_c {heads}: {text}", *verdict_of(held))


def sum_rate_declines(facts: Facts) -> Answer:
    """Max sum rate loses accuracy from the fewest clusters to the most; others do not move."""
    lines = facts["accuracy"]["with_clusters"]
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
        for line in facts["accuracy"]["uploads_with_clusters"]
        if line["policy"] == "max-sum-rate"
    ]
    mean = sum(uploads) / len(uploads)
    return (f"{'; '.join(text)}; its uploads {mean:+.2f} a round", *verdict_of(held))


def heuristics_improve(facts: Facts) -> Answer:
    """Each heuristic gains accuracy from the smallest alpha to the largest, no step down."""
    lines = facts["accuracy"]["with_alpha"]
    if _one_value(lines):
        return "one alpha alone was run", "not measured", ""
    held, text = {}, []
    for policy in HEURISTICS:
        own = [line for line in lines if line["policy"] == policy]
        held[f"for {policy}"] = all(
            beyond(line["overall"]) and not any(_below(step) for step in line["steps"])
            for line in own
        )
        rises = ", ".join(_points(line["overall"]) for line in own)
        text.append(f"{policy} {rises}")
    heads = ", ".join(f"{line['clusters']:g}" for line in lines if line["policy"] == HEURISTICS[0])
    return (f"points from least to most alpha at n_c {heads}: {'; '.join(text)}", *verdict_of(held))


def hidden_gradient_hurts(facts: Facts) -> Answer:
    """Agents that see the gradient deviation end higher than those that do not."""
    pair = facts["ablation"]["hurt"]["gradient"]
    return f"costs {_points(pair)} points{_ends(facts)}", _yes(beyond(pair)), ""


def hidden_fading_hurts_more(facts: Facts) -> Answer:
    """Hidden fading costs accuracy, more than the hidden gradient, and spreads results."""
    ablation = facts["ablation"]
    spread = {line["hidden"]: line["band"] for line in ablation["variants"]}
    held = {
        "it hurts at all": beyond(ablation["hurt"]["fading"]),
        "it hurts more than the hidden gradient": beyond(ablation["fading_more"]),
        "its 10-90 % band is wider": spread["fading"] > spread["nothing"],
    }
    text = (
        f"costs {_points(ablation['hurt']['fading'])} points, "
        f"{_points(ablation['fading_more'])} more than the hidden gradient; band "
        f"{100 * spread['fading']:.1f} points against {100 * spread['nothing']:.1f}"
    )
    if not held["it hurts at all"]:
        return text, "does not hold", ""
    return (text, *verdict_of(held))


def _ends(facts: Facts) -> str:
    uploads = {line["hidden"]: line["uploads"] for line in facts["ablation"]["variants"]}
    return "; uploads per round " + ", ".join(f"{n} hidden {u:.2f}" for n, u in uploads.items())


def _yes(holds: bool) -> Verdict:
    return "holds" if holds else "does not hold"


def reward_converges(facts: Facts) -> Answer:
    """The last tenth of the training is level with the one before and with the best."""
    reward = facts["reward"]
    held = {}
    for seed in reward["seeds"]:
        rise = max(seed["best"] - seed["start"], 1e-12)
        still = abs(seed["last"] - seed["before_last"]) <= CONVERGED * rise
        there = seed["best"] - seed["last"] <= CONVERGED * rise
        held[f"in training seed {seed['seed']:.0f}"] = (
            still and there and seed["best"] > seed["start"]
        )
    ends = ", ".join(
        f"{seed['start']:.2f} → {seed['last']:.2f} (best {seed['best']:.2f})"
        for seed in reward["seeds"]
    )
    text = f"reward by tenths of {reward['episodes']} episodes, first → last: {ends}"
    if reward["episodes"] < EPISODES:
        return f"{text}; trained for fewer than {EPISODES} episodes", "not measured", ""
    return (text, *verdict_of(held))


def second_term_tracks(facts: Facts) -> Answer:
    """Runs with a smaller time-averaged second term end with a higher accuracy."""
    cells = facts["bound"]["cells"]
    held = {_cell(c): c["all_runs"] <= TRACKS for c in cells}
    each = ", ".join(f"{c['all_runs']:.2f}" for c in cells)
    within = ", ".join(f"{c['within_seeds']:.2f}" for c in cells)
    counts = ", ".join(f"{c['uploads']:.2f}" for c in cells)
    text = f"rank correlation cell by cell: {each} (within seeds {within}; uploads alone {counts})"
    return (text, *verdict_of(held))


def plus_not_below_local(facts: Facts) -> Answer:
    """The agents that come with the package against everybody who needs no more than they do."""
    chosen = _at_low_alpha(facts)
    if not chosen:
        return NO_LOW_ALPHA
    if not all(c.get("plus_minus") for c in chosen):
        return "no such agents fit this scenario", "not measured", ""
    held = {_cell(c): not any(_below(c["plus_minus"][p]) for p in DECENTRALISED) for c in chosen}
    text = "; ".join(
        f"{p} " + ", ".join(_points(c["plus_minus"][p]) for c in chosen) for p in DECENTRALISED
    )
    heads = ", ".join(f"{c['clusters']:g}" for c in chosen)
    return (f"points above at n_c {heads}: {text}", *verdict_of(held))


Rule = Callable[[Facts], Answer]

CLAIMS: tuple[tuple[str, str, tuple[str, ...], Rule], ...] = (
    (
        "QMIX above every heuristic in all nine cells",
        "final accuracy above random, max individual rate and max sum rate beyond noise, in each "
        "cell",
        ("accuracy",),
        above_every_heuristic,
    ),
    (
        "(not in the paper) QMIX above a schedule made once a round",
        "final accuracy above the block-fading schedule's beyond noise, in each cell",
        ("accuracy",),
        above_the_schedule,
    ),
    (
        "close to perfect upload at alpha 0.5",
        f"median final accuracy at most {100 * CLOSE:.0f} points below perfect upload, in each "
        "cell of the smallest alpha",
        ("accuracy",),
        close_to_perfect,
    ),
    (
        "max sum rate declines with n_c, the others stay",
        f"from the fewest clusters to the most: max sum rate falls by more than {100 * STAYS:.0f} "
        "point and beyond noise, every other moves by at most that or its noise, at each alpha",
        ("accuracy",),
        sum_rate_declines,
    ),
    (
        "heuristics improve with alpha",
        "from the smallest alpha to the largest: up beyond noise and no step down beyond noise, at "
        "each n_c, for each heuristic",
        ("accuracy",),
        heuristics_improve,
    ),
    (
        "hiding the gradient deviation hurts",
        "final accuracy at the centre below the full observation's beyond noise",
        ("ablation",),
        hidden_gradient_hurts,
    ),
    (
        "hiding the fading hurts more, and is less stable",
        "below the full observation's and below the hidden gradient's beyond noise, and a wider "
        "band",
        ("ablation",),
        hidden_fading_hurts_more,
    ),
    (
        "the reward converges by 30,000 episodes",
        f"for each training seed the last tenth within {100 * CONVERGED:.0f} % of the whole rise "
        "of the tenth before and of the best tenth",
        ("reward",),
        reward_converges,
    ),
    (
        "the bound's second term tracks accuracy",
        f"Spearman's rank correlation of its mean over rounds with final accuracy at most "
        f"{TRACKS}, over all runs that send, in each cell",
        ("bound",),
        second_term_tracks,
    ),
    (
        "(not in the paper) qmix-plus below no decentralised policy at alpha 0.5",
        "final accuracy not below random, max individual rate, the block-fading schedule and QMIX "
        "beyond noise, in each cell of the smallest alpha",
        ("accuracy",),
        plus_not_below_local,
    ),
)


def judge(facts: Facts) -> list[Claim]:
    """Every claim with what was measured and the verdict."""
    found = []
    for says, rule, needs, measure in CLAIMS:
        missing = [part for part in needs if part not in facts]
        if missing:
            text = f"part {missing[0]} was not run"
            found.append(Claim(says, rule, text, "not measured"))
            continue
        try:
            found.append(Claim(says, rule, *measure(facts)))
        except NoNoiseKnown:
            text = "one seed alone was run: how far chance moves it is not known"
            found.append(Claim(says, rule, text, "not measured"))
    return found


def page(claims: Sequence[Claim], head: str) -> str:
    """`claims.md`: the table, then the rules."""
    rows = [
        [
            claim.says,
            claim.measured,
            f"**{claim.verdict}**" + (f": {claim.when}" if claim.when else ""),
        ]
        for claim in claims
    ]
    rules = "\n".join(f"- *{claim.says}*: {claim.rule}." for claim in claims)
    noise = (
        "A difference is taken seed by seed; beyond noise means more than twice its standard error."
    )
    return (
        "\n\n".join(
            [
                "# The paper's claims",
                head,
                markdown(["claim", "measured", "verdict"], rows),
                f"Rules; holding in all cases, in some (holds only when), or in none. {noise}",
                rules,
            ]
        )
        + "\n"
    )
