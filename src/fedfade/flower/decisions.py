"""Policies that run on the clients while the server plays the physics.

What a client does in a slot may depend on how much it has left, and that depends on who else was
sending. So decisions and physics take turns: a client gets what it would have measured (its own
fading), heard (the announced gains) and counted (its own progress so far), and answers its
decisions for all slots; the server plays them and sends the progress that came of it; and so on
until the decisions stay the same.

That is exact. The progress before slot 0 is known; whenever the progress up to slot s is right, so
are the decisions up to s, and so is the progress up to s + 1. Each exchange makes at least one
more slot final (so there are at most slots + 1), and decisions that repeat themselves are those of
slot-by-slot execution. Mostly it takes a handful, because few decisions hang on the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedfade import agents, allocation
from fedfade.allocation import Action, Outcome, Policy, Scope, View
from fedfade.config import Config
from fedfade.errors import UserError, not_allowed
from fedfade.radio import db_to_linear
from fedfade.uplink import Progress, Round, Scenario, decode_action, hop, noise_rise_db, plain_round


def choose_policy(name: str, config: Config) -> Policy | None:
    """A policy by name, by `module:factory`, or trained agents by folder; None is `perfect`.

    >>> from fedfade.config import load_config
    >>> [choose_policy(name, load_config("paper")).scope for name in ("max-sum-rate", "qmix-plus")]
    ['central', 'local']
    """
    if name == allocation.PERFECT:
        return None
    if name == allocation.GENIE:
        raise not_allowed("policy", name, "a policy that sends; the genie is only a bound")
    if name in agents.shipped_policies():
        return agents.load_shipped_policy(name, config)
    if Path(name).is_dir():
        return agents.load_policy_checkpoint(name, config)
    return allocation.load_policy(name, agents.shipped_policies())


class OneAgent:
    """Trained agents as one client carries them: its own network and nothing of the others'.

    The answer's other rows are silent; nobody reads them.
    """

    observes = True

    def __init__(self, policy: agents.QmixPolicy, client: int) -> None:
        self.name, self.scope, self.observed = policy.name, policy.scope, policy.observed
        self.gradient_aware = policy.gradient_aware
        self.hold_slots, self.hop_subbands = policy.hold_slots, policy.hop_subbands
        self.binary_power = policy.binary_power
        self._client, self._network = client, agents.client_network(policy.agents, client)

    def begin(self, view: View) -> None: ...

    def act(self, view: View, memory: None) -> Action:
        assert view.observation is not None
        values = self._network(view.observation[:, self._client])
        scenario = replace(view.scenario, binary_power=self.binary_power)
        own = decode_action(scenario, values.argmax(-1))
        band = torch.zeros(view.snr.shape, dtype=torch.int64)
        level = torch.full_like(band, view.scenario.silent_level)
        band[:, self._client], level[:, self._client] = own.band, own.level
        return Action(band, level)


def policy_of_client(name: str, config: Config, client: int) -> Policy | None:
    """Like `choose_policy`, with no more of a training than this client's own network."""
    policy = choose_policy(name, config)
    return OneAgent(policy, client) if isinstance(policy, agents.QmixPolicy) else policy


@dataclass(frozen=True)
class Seen:
    """All one client knows of a round; nothing of it is private to another."""

    client: int
    alpha: Tensor  # [client] announced large-scale gains
    noise_rise_db: Tensor  # [] announced: what other cells add to the noise on average
    start_bits: Tensor  # [client] announced: what each has to send, 0 for who takes no part
    fading: Tensor  # [slot, band] own
    deviation: Tensor  # [] own squared gradient deviation
    remaining_bits: Tensor  # [slot] own, before each slot
    finished: Tensor  # [slot, client] who is done; all False unless the policy's scope is feedback
    number: Tensor  # [] the federated round
    age: Tensor  # [client] rounds since each delivered last; zeros likewise
    ready_slot: Tensor  # [client] announced: first slot each can send in; empty: all in slot 0
    key: Tensor  # [] of the round's random numbers


@dataclass(frozen=True)
class Decisions:
    """What one client does in every slot, [slot], or what all do, [slot, client]."""

    band: Tensor
    level: Tensor


@torch.no_grad()
def decide(policy: Policy, scenario: Scenario, seen: Seen) -> Decisions:
    """One client's decisions, slot after slot, from what it has seen.

    The policy is asked as always, for everybody; rows of others hold nothing they could tell.
    """
    own = seen.client
    shape = (1, scenario.slots, scenario.clients, scenario.bands)
    fading = torch.full(shape, float(scenario.antennas))
    fading[0, :, own] = seen.fading
    inner = torch.zeros(1, scenario.clients, scenario.clients)
    inner[0, own, own] = seen.deviation
    round_ = plain_round(seen.alpha[None], fading, inner, seen.number[None], seen.age[None])
    round_ = round_._replace(ready_slot=seen.ready_slot[None])
    if scenario.other_cells:  # of which a client knows the mean
        level_w = scenario.noise_w * (db_to_linear(seen.noise_rise_db) - 1.0)
        round_ = round_._replace(other_cells_w=level_w.expand(1, *shape[1::2]))
    band = torch.zeros(scenario.slots, dtype=torch.int64)
    level = torch.full_like(band, scenario.silent_level)
    memory, checks = None, allocation.ActionChecks(policy.name, scenario, episodes=1)
    played = allocation.as_observed(policy, scenario)
    for slot in range(scenario.slots):
        if seen.remaining_bits[slot] <= 0:
            break  # done: silent to the end
        if slot % played.hold_slots == 0:
            left = torch.where(seen.finished[slot], 0.0, seen.start_bits)
            left[own] = seen.remaining_bits[slot]
            progress, key = Progress(left[None]), seen.key[None]
            view = allocation.make_view(policy, scenario, round_, progress, slot, key)
            if slot == 0:
                memory = policy.begin(view)
            held = checks.take(policy.act(view, memory))
        action = hop(played, held, slot)
        band[slot], level[slot] = action.band[0, own], action.level[0, own]
    return Decisions(band, level)


class Announced:
    """Decisions made elsewhere, as a policy the server can play."""

    scope: Scope = "local"
    gradient_aware = False

    def __init__(self, name: str, decisions: Decisions) -> None:
        self.name, self._decisions = name, decisions

    def begin(self, view: View) -> None: ...

    def act(self, view: View, memory: None) -> Action:
        band, level = self._decisions.band[view.slot], self._decisions.level[view.slot]
        return Action(band[None], level[None])


Ask = Callable[[list[Seen]], dict[int, Decisions]]
"""Ask clients for their decisions; who does not answer is missing."""


def play_with_clients(
    policy: Policy, scenario: Scenario, round_: Round, key: Tensor, start: Progress, ask: Ask
) -> tuple[Outcome, int]:
    """Play a round (one episode) whose decisions `policy` makes on the clients; its outcome and
    how many exchanges it took."""
    sending = start.remaining_bits[0].nonzero().flatten().tolist()
    asked = sending  # until a client does not answer
    before = start.remaining_bits[0].expand(scenario.slots, -1)  # [slot, client] as far as known
    can_send = before > 0  # [slot, client] likewise
    exchanges = 0
    played: Decisions | None = None
    outcome: Outcome | None = None
    while exchanges <= (scenario.slots + 1) * (len(sending) - len(asked) + 1):
        answers = ask(_questions(scenario, asked, policy.scope, round_, key, start, before))
        exchanges += 1
        asked = [n for n in asked if n in answers]
        joint = _joint(scenario, answers, can_send)
        if outcome is not None and played is not None and _same(scenario, joint, played):
            return outcome, exchanges
        told = Announced(policy.name, joint)
        outcome = allocation.play_round(told, scenario, round_, key, record=True, start=start)
        assert outcome.history is not None
        played = Decisions(outcome.history.band[:, 0], outcome.history.level[:, 0])
        after, can_send = outcome.history.remaining_bits[:, 0], outcome.history.sends[:, 0]
        before = torch.cat([start.remaining_bits, after[:-1]])
    why = "does not decide the same when it sees the same"
    raise UserError(f"policy {policy.name!r} {why}: it cannot run on the clients.")


def _joint(scenario: Scenario, answers: dict[int, Decisions], can_send: Tensor) -> Decisions:
    """Everybody's decisions [slot, client]; who cannot send, or does not answer, is silent."""
    level = torch.full(can_send.shape, scenario.silent_level, device=scenario.device)
    band = torch.zeros_like(level)
    for n, answer in answers.items():
        band[:, n] = answer.band.to(scenario.device)
        level[:, n] = answer.level.to(scenario.device)
    return Decisions(band, torch.where(can_send, level, scenario.silent_level))


def _same(scenario: Scenario, one: Decisions, other: Decisions) -> bool:
    """Whether two sets of decisions do the same; the sub-band of silence does not matter."""
    sending = one.level != scenario.silent_level
    same_band = torch.equal(one.band[sending], other.band[sending])
    return torch.equal(one.level, other.level) and same_band


def _questions(
    scenario: Scenario,
    asked: list[int],
    scope: Scope,
    round_: Round,
    key: Tensor,
    start: Progress,
    before: Tensor,
) -> list[Seen]:
    """What each client is told: its own rows, and what is announced to all."""
    rise = noise_rise_db(scenario, round_)[0]
    announced = (round_.alpha[0], rise, start.remaining_bits[0])
    heard = scope == "feedback"  # who finishes, and so who delivered in earlier rounds
    rest = ((before <= 0) & heard, round_.number[0], heard * round_.age[0], round_.ready_slot[0])
    questions = []
    for n in asked:
        own = (round_.fading[0, :, n], round_.deviation[0, n], before[:, n])
        questions.append(Seen(n, *(tensor.cpu() for tensor in (*announced, *own, *rest, key[0]))))
    return questions
