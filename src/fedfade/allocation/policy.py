"""The one protocol every allocation policy follows.

A policy answers, slot by slot, a sub-band and a power level for every client, batched over
episodes. Its `scope` declares what a client knows when it decides:

    local      a client's own fading and own progress, and the large-scale gains of all, which
               the base station announces once a round
    feedback   the same, plus one bit a client and slot: who has finished
    csi        the same, plus everybody's fading, which the base station announces as well
    central    everything

A view is a batch of all clients: what a scope leaves private is there too, row n for client n.
Tests hold our own policies to it; a user's is taken at its word.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from fedfade.errors import UserError, not_allowed
from fedfade.randomness import fold
from fedfade.seams import POLICIES
from fedfade.uplink import Action, Scenario

Scope = Literal["local", "feedback", "csi", "central"]

# Not policies that send: every upload succeeds (the paper's upper bound on accuracy), and a bound
# on how many clients can deliver in a round.
PERFECT, GENIE = "perfect", "genie"
BUILT_IN = tuple(POLICIES.built_in)


@dataclass(frozen=True)
class View:
    """What a policy sees in a slot. Rows of `fading`, `remaining_bits`, `deviation` and
    `observation` are private to their client unless the policy's scope is central; `csi` takes
    that of its `fading`."""

    scenario: Scenario
    slot: int
    snr: Tensor  # [episode, client] mean SNR at full power and one antenna (linear), known to
    # all; other cells count as noise, with their mean level in dB
    fading: Tensor  # [episode, client, band] small-scale gain of all antennas together: its mean is
    # their number
    remaining_bits: Tensor  # [episode, client]
    deviation: Tensor | None  # [episode, client] squared gradient deviation; gradient-aware only
    round_index: Tensor  # [episode] federated round
    observation: Tensor | None  # [episode, client, width] for policies that set `observes`
    finished: Tensor | None  # [episode, client] bool; None for scope local
    age: Tensor | None  # [episode, client] rounds since it delivered last; None likewise
    inner: Tensor | None  # [episode, client, client] Gram matrix; central only
    # [episode, client, band, antenna, 2] unit vectors in which `fading` arrives, real and imaginary
    # parts; central only, and None with one antenna or before anything was measured
    direction: Tensor | None
    round_keys: Tensor  # [episode] keys for the round's random numbers
    ready_slot: Tensor | None  # [episode, client] first slot each can send in, known to all; or 0

    @property
    def keys(self) -> Tensor:
        """Keys for this slot's random numbers: [episode]."""
        return fold(self.round_keys, self.slot)

    @property
    def slots_left(self) -> int:  # this one included
        return self.scenario.slots - self.slot

    @property
    def received_snr(self) -> Tensor:
        """SNR at full power in this slot without interference: [episode, client, band]."""
        return self.snr[:, :, None] * self.fading

    @property
    def active(self) -> Tensor:
        """Which clients still have bits to send (each knows it of itself): [episode, client]."""
        return self.remaining_bits > 0

    @property
    def ready(self) -> Tensor:
        """Which clients have trained and could send now, which all know: [episode, client]."""
        if self.ready_slot is None:
            return torch.ones_like(self.remaining_bits, dtype=torch.bool)
        return self.ready_slot <= self.slot

    @property
    def can_send(self) -> Tensor:
        """Which clients are ready and have bits to send: [episode, client]."""
        return self.active if self.ready_slot is None else self.active & self.ready

    @property
    def own_slots_left(self) -> Tensor | int:
        """Slots left in which each client can send: [episode, client], or as many for all."""
        if self.ready_slot is None:
            return self.slots_left
        return self.scenario.slots - self.ready_slot.clamp(min=self.slot)


class Observed(NamedTuple):
    """What agents were trained to observe: the fields of `Scenario` that say so."""

    observe: tuple[str, ...]
    hide: tuple[str, ...]
    csi_delay_slots: int


class Policy(Protocol):
    """What `fedfade compare` needs of a policy.

    Optional attributes: `gradient_aware = False` promises not to look at gradients and ages, so
    that many rounds can be played in one batch; `observes = True` asks for `view.observation`,
    which is the config's or, with an attribute `observed`, its own;
    `csi_delay_slots = k` gives it the fading of k slots ago in `view.fading`;
    `hold_slots = k` has it asked in slots 0, k, 2 k, ... and its answer held in between;
    `hop_subbands = True` takes the sub-bands it sees in `view.observation` and answers as logical.
    """

    name: str
    scope: Scope

    def begin(self, view: View) -> Any:
        """Look at the round before its first slot; what is returned comes back in `act`."""

    def act(self, view: View, memory: Any) -> Action:
        """Choose sub-band and power level of every client for this slot."""


class BuiltInPolicy:
    """What most of our own share: no look at gradients, and nothing to prepare for a round."""

    scope: Scope = "local"
    gradient_aware = False

    def begin(self, view: View) -> Any:
        return None


def described(policy: object) -> str:
    """A policy, or the class of one, in a phrase: its `about`, or how its docstring begins.

    >>> from fedfade.allocation.baselines import RandomBand
    >>> described(RandomBand)
    'A random sub-band at full power'
    """
    first = (inspect.getdoc(policy) or "" if policy is not None else "").partition("\n\n")[0]
    return str(getattr(policy, "about", " ".join(first.split()).partition(". ")[0].rstrip(".")))


def gradient_aware(policy: Policy) -> bool:
    """Whether the policy looks at gradients; if not, its rounds need not wait for the learning."""
    return bool(getattr(policy, "gradient_aware", True))


def full_power(view: View, band: Tensor) -> Action:
    """Send at full power on `band`; -1 means stay silent."""
    scenario = view.scenario
    level = torch.where(band >= 0, scenario.full_level, scenario.silent_level)
    return Action(band.clamp(min=0), level)


def own_best(view: View, mine: Tensor) -> Action:
    """Full power on the best by own fading of one's sub-bands [episode, client, band]; silence
    without any."""
    best = torch.where(mine, view.fading, -1.0).argmax(-1)
    return full_power(view, torch.where(mine.any(-1), best, -1))


class ActionChecks:
    """Refuses what a user's policy must not answer: kind and shape at once, values on the CPU too.

    Looking at values would wait for a GPU in every slot, so there they are looked at when the
    round is over; until then those out of range are moved into it.
    """

    def __init__(self, name: str, scenario: Scenario, episodes: int) -> None:
        self._answered = f"policy {name!r} answered"
        self._shape = (episodes, scenario.clients)
        self._limits = {"band": scenario.bands, "level": scenario.levels}
        self._extremes: list[Tensor] = []  # [(least, most), (band, level)] of every slot

    def take(self, action: object) -> Action:
        if not (isinstance(action, tuple) and len(action) == 2):
            kind = type(action).__name__
            raise UserError(f"{self._answered} {kind}: it must answer Action(band, level).")
        for field, value in zip(self._limits, action, strict=True):
            if not isinstance(value, Tensor) or value.dtype != torch.int64:
                kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
                raise UserError(f"{self._answered} a {field} of {kind}: it must be int64.")
            if value.shape != self._shape:
                found = f"{self._answered} a {field} of shape {list(value.shape)}"
                raise UserError(f"{found}: it must be [episode, client] = {list(self._shape)}.")
        both = torch.stack(action)  # [(band, level), episode, client]
        self._extremes.append(torch.stack(both.flatten(1).aminmax(dim=1)))
        if both.device.type == "cpu":
            self.finish()
            return Action(*action)
        most = self._limits.values()
        return Action(*(value.clamp(0, n - 1) for value, n in zip(action, most, strict=True)))

    def finish(self) -> None:
        """Refuse values out of range in any slot so far."""
        if not self._extremes:
            return
        extremes, self._extremes = torch.stack(self._extremes), []
        least, most = extremes[:, 0].amin(0).tolist(), extremes[:, 1].amax(0).tolist()
        for (field, limit), low, high in zip(self._limits.items(), least, most, strict=True):
            if low < 0 or high >= limit:
                found = f"{self._answered} {field} {low if low < 0 else high}"
                raise UserError(f"{found}: it must be between 0 and {limit - 1}.")


def policy_names() -> list[str]:
    """Everything `--policies` understands by name."""
    return [*POLICIES.names(), PERFECT, GENIE]


def load_policy(name: str, others: Sequence[str] = (), field: str = "policy") -> Policy:
    """A policy by built-in name, entry point of group `fedfade.policies`, or `module:factory`.

    `NAME@K` is a central policy that knows the fading of K slots ago. `others` are names the
    caller knows, and `field` is where it was asked for, both for the sentence about a wrong one.
    """
    base, at, age = name.rpartition("@")
    policy: Policy
    if at:
        if base in (PERFECT, GENIE, *others):
            raise not_allowed(field, name, f"{base}, which has no older knowledge to go by")
        policy = load_policy(base, others, field)
        if not (age.isdecimal() and len(age) <= 6):
            raise not_allowed(field, name, f"{policy.name}@K with a whole number of slots K")
        if policy.scope not in ("csi", "central"):
            raise not_allowed(field, name, f"{policy.name}, which knows nobody else's fading")
        policy.csi_delay_slots = int(age)  # type: ignore[attr-defined]
        policy.name = name
        return policy
    policy = replace(POLICIES, field=field).make(name, others=(PERFECT, GENIE, *others))
    scopes = get_args(Scope)
    if policy.scope not in scopes:
        raise not_allowed(f"scope of policy {name!r}", policy.scope, f"one of {', '.join(scopes)}")
    return policy
