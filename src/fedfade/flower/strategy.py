"""Wrap a Flower strategy so that updates arrive only if their upload finishes in time."""

import logging
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
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
from fedfade.experiments import Uplink, ages_after
from fedfade.flower import records
from fedfade.flower.coding import COUNTED, NUMBER, ModelCoding, decode_reply, is_coded
from fedfade.flower.decisions import Decisions, Seen, choose_policy, play_with_clients
from fedfade.learning import MAX_NORM, Updates, gram
from fedfade.uplink import Progress, Scenario

log = logging.getLogger("flwr")

NORM_TOLERANCE = 1e-3
"""A reply whose update differs from the norm its client reported by more was changed on the way."""

_ORDER = "mods that change updates come behind UplinkMod in the ClientApp's mods"


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


class _Reply(NamedTuple):
    """A training reply that can be placed."""

    message: Message
    client: int
    bits: float
    finite: bool
    decode: Callable[[float], None]  # put in what a share of the upload says


class _Slots(NamedTuple):
    """What came of a round's slots."""

    share: Tensor  # [client] of the upload that arrived: 0 or 1, unless a part counts
    bits: float  # received
    slots: int
    exchanges: int


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
        is_buffer: Callable[[str], bool] = records.is_running_statistic,
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
        self.decide, self.local_s, self.answer_timeout_s = decide, local_s, answer_timeout_s
        self.history: list[RoundReport] = []
        self._payload_bits, self._is_buffer = payload_bits, is_buffer
        self._uplink: Uplink | None = None
        self._grid: Grid | None = None
        self._model: ArrayRecord | None = None
        self._coding: ModelCoding | None = None  # where updates are encoded
        # By partition, the last round whose update counted, and the share of it that arrived.
        self._counted: dict[str, list[float]] = {}
        self._asked: set[int] = set()
        self._previous: Tensor | None = None  # g_{t-1}: [D]

    @property
    def clock_s(self) -> float:
        """Simulated seconds since the start."""
        return self.history[-1].clock_s if self.history else 0.0

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *rest: Any, **named: Any
    ) -> Result:
        """Run all rounds; the channel is drawn for `run.rounds` of them."""
        rounds = self.config.run.rounds
        if num_rounds > rounds:
            raise not_allowed("num_rounds", num_rounds, f"at most run.rounds = {rounds}")
        self.history, self._previous, self._counted = [], None, {}
        result = super().start(grid, initial_arrays, num_rounds, *rest, **named)
        if not result.arrays:  # nobody ever delivered: the model is still the first one
            result.arrays = initial_arrays
        return result

    def summary(self) -> None:
        """Log what is wrapped and how."""
        radio, name = self.config.radio, "perfect" if self.policy is None else self.policy.name
        sizes = (radio.slots, radio.slot_s, radio.subbands)
        log.info("\t├──> Uplink: %s, decided by the %s", name, self.decide)
        log.info("\t│\t└──%d slots of %g s, %d sub-bands", *sizes)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._grid, self._model = grid, arrays
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id for message in messages}
        if is_coded(self.config):
            self._coding = ModelCoding(self.config, arrays)
            for message in messages:
                known = ConfigRecord({NUMBER: server_round - 1, **self._counted})
                message.content[COUNTED] = known
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Play the uploads, then let the wrapped strategy average what arrived."""
        every = list(replies)
        failed = [reply for reply in every if reply.has_error()]
        placed, refused = self._place([reply for reply in every if not reply.has_error()])
        played = self._play(placed, server_round - 1)
        share, arrived = played.share.tolist(), self._arrived(placed, played.share)
        infinite = [r.client for r in placed if not r.finite]
        problems = [f"client {client}: its numbers are not finite" for client in infinite]
        problems = [*_silent(every, self._asked), *refused, *problems]
        for problem in problems:
            log.warning("round %d, %s", server_round, problem)
        seconds = played.slots * self.config.radio.slot_s + self.local_s
        report = RoundReport(
            round=server_round,
            trained=len(placed),
            delivered=tuple(r.client for r in arrived),
            slots=played.slots,
            seconds=seconds,
            clock_s=self.clock_s + seconds,
            bits_sent=played.bits,
            bits_wasted=max(0.0, played.bits - sum(share[r.client] * r.bits for r in arrived)),
            not_finite=len(infinite),
            refused=len(refused),
            exchanges=played.exchanges,
            left_out=tuple(problems),
        )
        self.history.append(report)
        for reply in arrived:
            self._counted[str(reply.client)] = [server_round - 1.0, share[reply.client]]
        arrays, metrics = None, None
        if arrived:
            kept = [r.message for r in arrived]
            arrays, metrics = self.inner.aggregate_train(server_round, [*kept, *failed])
        self._remember(arrays)
        metrics = MetricRecord() if metrics is None else metrics
        metrics.update(report.metrics())
        return arrays, metrics

    def _arrived(self, placed: list[_Reply], share: Tensor) -> list[_Reply]:
        """Replies that count; of one that counts in part, what its share says is read."""
        counts = self._coding.wire.counted(share) if self._coding else share >= 1
        arrived = [r for r in placed if r.finite and counts[r.client]]
        for reply in arrived:
            if share[reply.client] < 1:
                reply.decode(float(share[reply.client]))
        return arrived

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does, like the next: a few numbers need no schedule."""
        return list(self.inner.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def _place(self, replies: list[Message]) -> tuple[list[_Reply], list[str]]:
        """Replies by partition; the mod's report is taken out. Who cannot be placed is refused."""
        placed: dict[int, _Reply] = {}
        problems = []
        reports = [reply.content.pop(records.REPORT, None) for reply in replies]
        if replies and not any(isinstance(report, ConfigRecord) for report in reports):
            why = "no report; does the ClientApp have mods=[UplinkMod()]?"
            raise UserError(f"no reply can be placed: {why}")
        bits, decoded = self._decode(replies)
        # Arrays unlike the model are the app's own business, unless others are like it.
        vectors = [self._update(reply) for reply in replies]
        some_alike = any(vector is not None for vector in vectors)
        every = zip(replies, reports, vectors, bits, decoded, strict=True)
        for reply, report, vector, size, decode in every:
            try:
                if isinstance(decode, ValueError):
                    raise decode
                if not isinstance(report, ConfigRecord):
                    raise ValueError("no report: does its ClientApp have mods=[UplinkMod()]?")
                if some_alike and vector is None:
                    raise ValueError("its arrays are not shaped like the model")
                client = records.entry(report, records.PARTITION, int)
                if not 0 <= client < self.config.learning.clients:
                    raise ValueError(f"partition id {client} is not below learning.clients")
                if client in placed:
                    raise ValueError(f"a second reply for partition id {client}")
                norm = 0.0 if vector is None else float(torch.linalg.vector_norm(vector.double()))
                finite = records.all_finite(reply.content) and norm <= MAX_NORM
                if finite:
                    self._check_norm(reply, report)
                factors = self.config.learning.payload_factors
                factor = factors[client] if isinstance(factors, list) else factors
                own = factor * (self._payload_bits or size)
                placed[client] = _Reply(reply, client, own, finite, decode)
            except ValueError as error:
                problems.append(f"node {reply.metadata.src_node_id}: reply refused, {error}")
        if len(replies) > 1 and all(_ORDER in problem for problem in problems) and not placed:
            raise UserError(f"no reply can be placed: {problems[0]}.")
        return [placed[client] for client in sorted(placed)], problems

    def _decode(
        self, replies: list[Message]
    ) -> tuple[list[float], list[Callable[[float], None] | ValueError]]:
        """What each reply takes in bits; updates are then decoded, and can be again in part, or it
        is said what is wrong with them."""
        bits = [records.payload_bits(reply.content) for reply in replies]
        decoded: list[Callable[[float], None] | ValueError] = []
        for reply in replies:
            try:
                decoded.append(decode_reply(self._coding, reply.content))
            except ValueError as error:
                decoded.append(error)
        if self._coding and replies and all(isinstance(each, ValueError) for each in decoded):
            raise UserError(f"no reply can be read: {decoded[0]}")
        return bits, decoded

    def _check_norm(self, reply: Message, report: ConfigRecord) -> None:
        """The update must be as long as its client said, who knows of running statistics alone."""
        said = report.get(records.NORM)
        vector = self._update(reply, records.is_running_statistic)
        if not isinstance(said, float) or not math.isfinite(said) or vector is None:
            return
        found = float(torch.linalg.vector_norm(vector))
        if abs(found - said) > NORM_TOLERANCE * max(found, said):
            norms = f"its update has norm {found:.6g}, its client reported {said:.6g}"
            raise ValueError(f"{norms}: {_ORDER}")

    def _update(
        self, reply: Message, is_buffer: Callable[[str], bool] | None = None
    ) -> Tensor | None:
        """g_n = w_t - w_n of a reply that is shaped like the model: [D]."""
        assert self._model is not None
        record = records.matching(reply.content, self._model)
        if record is None:
            return None
        names = records.trained_names(self._model, is_buffer or self._is_buffer)
        return records.flat(self._model, names) - records.flat(record, names)

    def _gram(self, placed: list[_Reply]) -> Tensor | None:
        """The Gram matrix of the round's updates; None if the replies' arrays are not the model's.

        Clients that did not train, or whose numbers are not finite, have zeros.
        """
        vectors = {r.client: self._update(r.message) for r in placed if r.finite}
        found = {client: vector for client, vector in vectors.items() if vector is not None}
        if len(found) < len(vectors):
            return None
        clients, width = self.config.learning.clients, max(map(len, found.values()), default=0)
        parameters = torch.zeros(1, clients, width)
        finite = torch.zeros(1, clients, dtype=torch.bool)
        for client, vector in found.items():
            parameters[0, client], finite[0, client] = vector, True
        nothing = torch.zeros(1, clients)
        updates = Updates(parameters, nothing[..., None], finite, nothing, nothing)
        previous = torch.zeros(width) if self._previous is None else self._previous
        return gram(updates, previous[None, :width])

    def _remember(self, arrays: ArrayRecord | None) -> None:
        """g_t is what the average really did to the model: 0 if nothing arrived, unless the
        configuration keeps the old one."""
        if arrays is None and self.config.learning.previous_update == "broadcast":
            self._previous = None
        if arrays is None or self._model is None or arrays.keys() != self._model.keys():
            return
        names = records.trained_names(self._model, self._is_buffer)
        self._previous = records.flat(self._model, names) - records.flat(arrays, names)

    def _play(self, placed: list[_Reply], number: int) -> _Slots:
        """Play the round's slots for the clients that trained."""
        if self.policy is None or not placed:
            everybody = torch.ones(self.config.learning.clients)
            return _Slots(everybody, sum(r.bits for r in placed), 0, 0)
        inner = self._gram(placed)
        if gradient_aware(self.policy) and inner is None:
            why = "looks at updates, but the replies' arrays are not shaped like the model"
            raise UserError(f"policy {self.policy.name!r} {why}.")
        most = max(r.bits for r in placed)
        if self._uplink is None:
            self._uplink = Uplink(self.config, most, pick_device(self.config.run.device))
        uplink, scenario = self._uplink, replace(self._uplink.scenario, payload_bits=most)
        if any(r.bits != most for r in placed):  # whoever did not train counts as the largest
            payload = torch.full((scenario.clients,), most, device=scenario.device)
            for reply in placed:
                payload[reply.client] = reply.bits
            scenario = replace(scenario, payload_bits=payload)
        # Who did not train has nothing to send and counts as done, and is not among the awaited.
        absent = scenario.clients - len(placed)
        first, last = (min(scenario.clients, count + absent) for count in scenario.quorum)
        scenario = replace(scenario, quorum=(first, last))
        round_ = uplink.round(number, None if inner is None else inner.to(scenario.device))
        age = ages_after((report.delivered for report in self.history), scenario.clients)
        round_ = round_._replace(age=age[None].to(scenario.device))
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
            ask = partial(self._ask, scenario, nodes)
            outcome, exchanges = play_with_clients(self.policy, scenario, round_, keys, start, ask)
        sending, slots = left[0] > 0, int(outcome.slots[0])
        share = torch.where(sending, outcome.arrived(scenario)[0], 0.0).cpu()
        return _Slots(share, float(outcome.bits[0].sum()), slots, exchanges)

    def _ask(
        self, scenario: Scenario, nodes: dict[int, int], questions: list[Seen]
    ) -> dict[int, Decisions]:
        """One exchange with the clients; answers that make no sense count as none."""
        assert self._grid is not None
        messages = []
        for seen in questions:
            content = records.question_content(self.config, scenario.payload_bits, seen)
            messages.append(Message(content, nodes[seen.client], MessageType.TRAIN))
        answers = {}
        for reply in self._grid.send_and_receive(messages, timeout=self.answer_timeout_s):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                client, decisions = records.read_answer(reply.content, scenario)
                if nodes.get(client) != node:
                    raise ValueError(f"it speaks for client {client}")
                answers[client] = decisions
            except ValueError as error:
                log.warning("decisions of node %d refused: %s", node, error)
        return answers


def _silent(replies: list[Message], asked: set[int]) -> list[str]:
    """Nodes that were asked and sent an error, or nothing at all."""
    failed = [(r.metadata.src_node_id, r.error.reason) for r in replies if r.has_error()]
    lines = [f"node {node}: error, {_cause(reason)}" for node, reason in failed]
    gone = asked - {reply.metadata.src_node_id for reply in replies}
    return lines + [f"node {node}: no reply" for node in sorted(gone)]


def _cause(reason: str) -> str:
    r"""What went wrong in a client, which stands at the end: behind Flower's words and, from a
    worker of Ray, behind a trace in colours.

    >>> _cause("<class 'ClientAppException'>:<'\x1b[36mray::run()\x1b[39m\n ValueError: no data'>")
    "<class 'ClientAppException'>:<'ray::run() ValueError: no data'>"
    """
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", reason).split())
    return words if len(words) <= 200 else f"...{words[-197:]}"
