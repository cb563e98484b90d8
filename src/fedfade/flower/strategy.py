"""Wrap a Flower strategy so that updates arrive only if their upload finishes in time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedfade.allocation import Policy, gradient_aware, play_round
from fedfade.config import Config
from fedfade.device import one_thread, pick_device
from fedfade.errors import UserError, not_allowed
from fedfade.experiments import Uplink
from fedfade.flower.decisions import Decisions, Seen, play_with_clients
from fedfade.flower.mod import question_content, read_decisions
from fedfade.flower.policies import choose_policy
from fedfade.flower.records import (
    NORM,
    PARTITION,
    REPORT,
    all_finite,
    flat,
    is_running_statistic,
    matching,
    payload_bits,
    trained_names,
    whole,
)
from fedfade.learning import MAX_NORM, Sent, ServerState, Updates
from fedfade.uplink import Progress, Scenario

log = logging.getLogger("flwr")

NORM_TOLERANCE = 1e-3
"""A reply whose update differs from the norm its client reported by more was changed on the way."""


class RoundReport(NamedTuple):
    """One round's uplink."""

    round: int  # Flower counts from 1
    trained: int  # clients that sent a reply
    delivered: tuple[int, ...]  # partition ids averaged
    slots: int  # until the last client was done, or all of them
    seconds: float  # simulated: slots, and `local_s` for the training
    clock_s: float  # simulated, since the start
    bits_sent: float
    bits_wasted: float  # received from clients that are not averaged
    not_finite: int  # replies with numbers that are not finite
    refused: int  # replies nobody can place: no or a wrong partition id, norm or shape
    exchanges: int  # question rounds where the clients decide
    left_out: tuple[str, ...] = ()  # who else is missing from the average, and why

    def metrics(self) -> dict[str, int | float]:
        """As Flower metrics."""
        lists = ("round", "delivered", "left_out")
        named = {k: v for k, v in self._asdict().items() if k not in lists}
        named["delivered"] = len(self.delivered)
        return {f"uplink-{name.replace('_', '-')}": value for name, value in named.items()}


@dataclass(frozen=True)
class _Reply:
    """A training reply that can be placed."""

    message: Message
    client: int
    bits: float
    finite: bool


class WirelessStrategy(Strategy):
    """Any Flower strategy behind a fading uplink.

    After the replies arrive, the slots of the round are played for the clients that trained, with
    the real size of their replies and the Gram matrix of their updates. Replies whose upload did
    not finish are dropped before `inner` aggregates; what the uplink did is added to its metrics.

    `uplink` is fedfade's configuration: radio, cell, allocation, `learning.clients` (the number
    of partitions), `run.seed` and `run.rounds`. `policy` is a name, a training's folder or an
    object. With `decide="client"` the policy runs in the clients' `UplinkMod`.
    """

    def __init__(
        self,
        inner: Strategy,
        uplink: Config,
        policy: Policy | str,
        decide: Literal["server", "client"] = "server",
        payload_bits: float | None = None,
        local_s: float = 0.0,
        answer_timeout_s: float = 300.0,
        is_buffer: Callable[[str], bool] = is_running_statistic,
    ) -> None:
        """`payload_bits`: instead of the real size; `local_s`: simulated time of local training;
        `is_buffer`: arrays, by name, that are averaged but not trained."""
        self.inner = inner
        self.config = uplink.model_copy(update={"run": uplink.run.model_copy(update={"seeds": 1})})
        self.policy = choose_policy(policy, uplink) if isinstance(policy, str) else policy
        if decide not in ("server", "client"):
            raise not_allowed("decide", decide, "server or client")
        everything = ("csi", "central")  # nobody tells a client the others' fading
        if decide == "client" and (self.policy is None or self.policy.scope in everything):
            raise not_allowed("decide", decide, "server for a policy that needs to see everything")
        self.decide = decide
        self.local_s = local_s
        self.answer_timeout_s = answer_timeout_s
        self.history: list[RoundReport] = []
        self._payload_bits = payload_bits
        self._is_buffer = is_buffer
        self._uplink: Uplink | None = None
        self._grid: Grid | None = None
        self._model: ArrayRecord | None = None
        self._asked: set[int] = set()
        self._previous: Tensor | None = None  # g_{t-1}: [D]

    @property
    def clock_s(self) -> float:
        """Simulated seconds since the start."""
        return self.history[-1].clock_s if self.history else 0.0

    # --- Flower's strategy ----------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *arguments: Any,
        **named: Any,
    ) -> Result:
        """Run all rounds; the channel is drawn for `run.rounds` of them."""
        rounds = self.config.run.rounds
        if num_rounds > rounds:
            raise not_allowed("num_rounds", num_rounds, f"at most run.rounds = {rounds}")
        self.history, self._previous = [], None
        result = super().start(grid, initial_arrays, num_rounds, *arguments, **named)
        if not result.arrays:  # nobody ever delivered: the model is still the first one
            result.arrays = initial_arrays
        return result

    def summary(self) -> None:
        """Log what is wrapped and how."""
        radio = self.config.radio
        name = "perfect" if self.policy is None else self.policy.name
        log.info("\t├──> Uplink: %s, decided by the %s", name, self.decide)
        log.info(
            "\t│\t└──%d slots of %g s, %d sub-bands", radio.slots, radio.slot_s, radio.subbands
        )
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does."""
        self._grid, self._model = grid, arrays
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Play the uploads, then let the wrapped strategy average what arrived."""
        every = list(replies)
        failed = [reply for reply in every if reply.has_error()]
        problems = _silent(every, self._asked)
        placed, refused = self._place([reply for reply in every if not reply.has_error()])
        problems += refused
        sent = self._sent(server_round - 1, placed)
        played = self._play(sent, placed, server_round - 1)
        arrived = [r for r in placed if r.finite and played.delivered[r.client]]
        problems += [
            f"client {r.client}: its numbers are not finite" for r in placed if not r.finite
        ]
        for problem in problems:
            log.warning("round %d, %s", server_round, problem)
        report = self._report(server_round, placed, arrived, played, len(refused), problems)
        self.history.append(report)
        arrays, metrics = None, None
        if arrived:
            kept = [r.message for r in arrived]
            arrays, metrics = self.inner.aggregate_train(server_round, [*kept, *failed])
        self._remember(arrays)
        metrics = MetricRecord() if metrics is None else metrics
        metrics.update(report.metrics())
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does: a few numbers need no schedule."""
        return list(self.inner.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the wrapped strategy does."""
        return self.inner.aggregate_evaluate(server_round, replies)

    # --- replies --------------------------------------------------------------------------------

    def _place(self, replies: list[Message]) -> tuple[list[_Reply], list[str]]:
        """Replies by partition; the mod's report is taken out. Who cannot be placed is refused."""
        placed: dict[int, _Reply] = {}
        problems = []
        reports = [reply.content.pop(REPORT, None) for reply in replies]
        if replies and not any(isinstance(report, ConfigRecord) for report in reports):
            raise UserError(
                "no reply can be placed: no report; does the ClientApp have mods=[UplinkMod()]?"
            )
        # Arrays unlike the model are the app's own business, unless others are like it.
        alike = [self._update(reply) is not None for reply in replies]
        for reply, report, like_model in zip(replies, reports, alike, strict=True):
            content = reply.content
            try:
                if not isinstance(report, ConfigRecord):
                    raise ValueError("no report: does its ClientApp have mods=[UplinkMod()]?")
                if any(alike) and not like_model:
                    raise ValueError("its arrays are not shaped like the model")
                client = whole(report, PARTITION)
                if not 0 <= client < self.config.learning.clients:
                    raise ValueError(f"partition id {client} is not below learning.clients")
                if client in placed:
                    raise ValueError(f"a second reply for partition id {client}")
                finite = all_finite(content) and self._norm(reply) <= MAX_NORM
                if finite:
                    self._check_norm(reply, report)
                bits = self._payload_bits or payload_bits(content)
                placed[client] = _Reply(reply, client, bits, finite)
            except ValueError as error:
                problems.append(f"node {reply.metadata.src_node_id}: reply refused, {error}")
        return [placed[client] for client in sorted(placed)], problems

    def _norm(self, reply: Message) -> float:
        """Of the update of a reply that is shaped like the model, 0 for others."""
        vector = self._update(reply)
        return 0.0 if vector is None else float(torch.linalg.vector_norm(vector.double()))

    def _check_norm(self, reply: Message, report: ConfigRecord) -> None:
        """The update must be as long as its client said, who knows of running statistics alone."""
        said, vector = report.get(NORM), self._update(reply, is_running_statistic)
        if not isinstance(said, float) or not math.isfinite(said) or vector is None:
            return
        found = float(torch.linalg.vector_norm(vector))
        if abs(found - said) > NORM_TOLERANCE * max(found, said):
            raise ValueError(f"its update has norm {found:.6g}, its client reported {said:.6g}")

    def _update(
        self, reply: Message, is_buffer: Callable[[str], bool] | None = None
    ) -> Tensor | None:
        """g_n = w_t - w_n of a reply that is shaped like the model: [D]."""
        assert self._model is not None
        record = matching(reply.content, self._model)
        if record is None:
            return None
        names = trained_names(self._model, is_buffer or self._is_buffer)
        return flat(self._model, names) - flat(record, names)

    def _sent(self, number: int, placed: list[_Reply]) -> Sent | None:
        """The replies as the first half of a round; None if their arrays are not the model's.

        Clients that did not train, or whose numbers are not finite, have zeros.
        """
        clients = self.config.learning.clients
        vectors = {r.client: self._update(r.message) for r in placed if r.finite}
        if any(vector is None for vector in vectors.values()):
            return None
        width = max((len(v) for v in vectors.values() if v is not None), default=0)
        parameters = torch.zeros(1, clients, width)
        finite = torch.zeros(1, clients, dtype=torch.bool)
        for client, vector in vectors.items():
            if vector is not None:
                parameters[0, client], finite[0, client] = vector, True
        nothing = torch.zeros(1, clients, 0)
        updates = Updates(parameters, nothing, finite, nothing.sum(-1), nothing.sum(-1))
        previous = torch.zeros(width) if self._previous is None else self._previous
        model = ServerState(nothing[:, 0], nothing[:, 0], previous[None, :width])
        return Sent(number, model, updates, (None, None))

    def _remember(self, arrays: ArrayRecord | None) -> None:
        """g_t is what the average really did to the model: 0 if nothing arrived, unless the
        configuration keeps the old one."""
        if arrays is None and self.config.learning.previous_update == "broadcast":
            self._previous = None
        if arrays is None or self._model is None or arrays.keys() != self._model.keys():
            return
        names = trained_names(self._model, self._is_buffer)
        self._previous = flat(self._model, names) - flat(arrays, names)

    # --- slots ----------------------------------------------------------------------------------

    def _play(self, sent: Sent | None, placed: list[_Reply], number: int) -> _Slots:
        """Play the round's slots for the clients that trained."""
        if self.policy is None or not placed:
            everybody = torch.ones(self.config.learning.clients, dtype=torch.bool)
            return _Slots(everybody, None, 0, 0)
        if gradient_aware(self.policy) and sent is None:
            raise UserError(
                f"policy {self.policy.name!r} looks at updates, but the replies' arrays are not "
                "shaped like the model."
            )
        payload = max(r.bits for r in placed)
        if self._uplink is None:
            self._uplink = Uplink(self.config, payload, pick_device(self.config.run.device))
        uplink, scenario = self._uplink, replace(self._uplink.scenario, payload_bits=payload)
        inner = None if sent is None else sent.inner.to(scenario.device)
        round_ = uplink.round(number, inner)
        keys = uplink.keys(self.policy.name, number)
        left = torch.zeros(1, scenario.clients, device=scenario.device)
        for reply in placed:
            left[0, reply.client] = reply.bits
        start, exchanges = Progress(left), 0
        if self.decide == "server":
            with one_thread():
                outcome = play_round(self.policy, scenario, round_, keys, start=start)
        else:
            nodes = {r.client: r.message.metadata.src_node_id for r in placed}
            name, scope, ask = (
                self.policy.name,
                self.policy.scope,
                partial(self._ask, scenario, nodes),
            )
            played = play_with_clients(name, scope, scenario, round_, keys, start, ask)
            outcome, exchanges = played.outcome, played.exchanges
        sending = left[0] > 0
        last = int(outcome.finish_slot[0][sending].max())
        return _Slots(outcome.delivered[0] & sending, outcome.bits[0], last, exchanges)

    def _ask(
        self, scenario: Scenario, nodes: dict[int, int], questions: list[Seen]
    ) -> dict[int, Decisions]:
        """One exchange with the clients; answers that make no sense count as none."""
        assert self._grid is not None
        tree = self.config.model_dump_json()
        messages = [
            Message(
                question_content(tree, scenario.payload_bits, seen),
                dst_node_id=nodes[seen.client],
                message_type=MessageType.TRAIN,
            )
            for seen in questions
        ]
        answers = {}
        for reply in self._grid.send_and_receive(messages, timeout=self.answer_timeout_s):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                client, decisions = read_decisions(reply.content, scenario)
                if nodes.get(client) != node:
                    raise ValueError(f"it speaks for client {client}")
                answers[client] = decisions
            except ValueError as error:
                log.warning("decisions of node %d refused: %s", node, error)
        return answers

    def _report(
        self,
        server_round: int,
        placed: list[_Reply],
        arrived: list[_Reply],
        played: _Slots,
        refused: int,
        problems: list[str],
    ) -> RoundReport:
        everything = sum(r.bits for r in placed)
        sent = everything if played.bits is None else float(played.bits.sum())
        seconds = played.slots * self.config.radio.slot_s + self.local_s
        return RoundReport(
            round=server_round,
            trained=len(placed),
            delivered=tuple(r.client for r in arrived),
            slots=played.slots,
            seconds=seconds,
            clock_s=self.clock_s + seconds,
            bits_sent=sent,
            bits_wasted=max(0.0, sent - sum(r.bits for r in arrived)),
            not_finite=sum(not r.finite for r in placed),
            refused=refused,
            exchanges=played.exchanges,
            left_out=tuple(problems),
        )


def _silent(replies: list[Message], asked: set[int]) -> list[str]:
    """Nodes that were asked and sent an error, or nothing at all."""
    lines = [
        f"node {reply.metadata.src_node_id}: error, {' '.join(reply.error.reason.split())[:200]}"
        for reply in replies
        if reply.has_error()
    ]
    gone = asked - {reply.metadata.src_node_id for reply in replies}
    return lines + [f"node {node}: no reply" for node in sorted(gone)]


class _Slots(NamedTuple):
    """What came of a round's slots."""

    delivered: Tensor  # [client] bool
    bits: Tensor | None  # [client] received; None where every upload succeeds
    slots: int
    exchanges: int
