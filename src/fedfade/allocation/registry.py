"""Policies by name: built in, from an entry point, or by dotted path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from fedfade.allocation.deadline import DeadlineFeedback, DeadlineMatching
from fedfade.allocation.max_individual_rate import MaxIndividualRate
from fedfade.allocation.max_sum_rate import MaxSumRate
from fedfade.allocation.policy import Policy, Scope
from fedfade.allocation.random_band import RandomBand
from fedfade.allocation.schedules import (
    BlockFadingSchedule,
    FinishFeedbackSchedule,
    ShortestRemainingFirst,
    WrapAroundChoice,
    WrapAroundSchedule,
)
from fedfade.dotted import load_dotted, one_line
from fedfade.errors import UserError, not_allowed

PERFECT = "perfect"
"""Not a policy that sends: every upload succeeds (the paper's upper bound on accuracy)."""

GENIE = "genie"
"""Not a policy that sends: a bound on how many clients can deliver in a round."""

BUILT_IN: dict[str, Callable[[], Policy]] = {
    policy.name: policy
    for policy in (
        RandomBand,
        MaxIndividualRate,
        MaxSumRate,
        BlockFadingSchedule,
        WrapAroundSchedule,
        WrapAroundChoice,
        FinishFeedbackSchedule,
        ShortestRemainingFirst,
        DeadlineFeedback,
        DeadlineMatching,
    )
}


def policy_names() -> list[str]:
    """Everything `--policies` understands by name."""
    return [*BUILT_IN, PERFECT, GENIE, *(p.name for p in entry_points(group="fedfade.policies"))]


def load_policy(name: str, others: Sequence[str] = ()) -> Policy:
    """A policy by built-in name, entry point of group `fedfade.policies`, or `module:factory`.

    A dotted path is code of yours that will run. `NAME@K` is a central policy that knows the
    fading of K slots ago. `others` are names the caller knows, for the sentence about a wrong one.

    >>> load_policy("random").scope
    'local'
    >>> load_policy("shortest-remaining-first@5").csi_delay_slots
    5
    """
    base, at, age = name.rpartition("@")
    if at and base in (PERFECT, GENIE, *others):
        raise not_allowed("policy", name, f"{base}, which has no older knowledge to go by")
    if at:
        return _with_old_csi(load_policy(base, others), name, age)
    if name in BUILT_IN:
        return BUILT_IN[name]()
    for entry in entry_points(group="fedfade.policies"):
        if entry.name == name:
            return _checked(name, _loaded(entry))
    if ":" not in name:
        known = ", ".join([*policy_names(), *others])
        raise not_allowed("policy", name, f"one of {known}, or module:factory")
    return _checked(name, load_dotted("policy", name))


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # whatever the package raises while it is imported
        reason = one_line(error)
        raise UserError(f"policy = {entry.name!r} cannot be loaded: {reason}.") from None


def _checked(name: str, factory: Any) -> Policy:
    try:
        policy: Policy = factory() if callable(factory) else factory
    except UserError:
        raise
    except Exception as error:
        reason = one_line(error)
        raise UserError(f"policy {name!r} cannot be made: {reason}.") from None
    for member in ("name", "scope", "begin", "act"):
        if not hasattr(policy, member):
            raise UserError(
                f"policy {name!r} has no {member!r}: fedfade.allocation.Policy says what is needed."
            )
    scopes = get_args(Scope)
    if policy.scope not in scopes:
        raise not_allowed(f"scope of policy {name!r}", policy.scope, f"one of {', '.join(scopes)}")
    return policy


def _with_old_csi(policy: Policy, name: str, age: str) -> Policy:
    if not (age.isdecimal() and len(age) <= 6):
        raise not_allowed("policy", name, f"{policy.name}@K with a whole number of slots K")
    if policy.scope not in ("csi", "central"):
        raise not_allowed("policy", name, f"{policy.name}, which knows nobody else's fading")
    policy.csi_delay_slots = int(age)  # type: ignore[attr-defined]
    policy.name = name
    return policy
