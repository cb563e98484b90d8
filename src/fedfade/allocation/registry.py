"""Policies by name: built in, from an entry point, or by dotted path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from fedfade.allocation.policy import Policy, Scope
from fedfade.errors import not_allowed
from fedfade.seams import POLICIES

PERFECT = "perfect"
"""Not a policy that sends: every upload succeeds (the paper's upper bound on accuracy)."""

GENIE = "genie"
"""Not a policy that sends: a bound on how many clients can deliver in a round."""

BUILT_IN = tuple(POLICIES.built_in)


def policy_names() -> list[str]:
    """Everything `--policies` understands by name."""
    return [*POLICIES.names(), PERFECT, GENIE]


def load_policy(name: str, others: Sequence[str] = ()) -> Policy:
    """A policy by built-in name, entry point of group `fedfade.policies`, or `module:factory`.

    `NAME@K` is a central policy that knows the fading of K slots ago. `others` are names the
    caller knows, for the sentence about a wrong one.

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
    policy: Policy = POLICIES.make(name, others=(PERFECT, GENIE, *others))
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
