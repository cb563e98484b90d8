"""Which allocation policy gives the best model? One round after another, every policy.

Runs are seeds x policies. Runs of one seed share everything but the policy: the walk of the
clients, the fading, the partition, the first weights and the mini-batches. What differs in the
end is what the policy did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfade.allocation import (
    GENIE,
    PERFECT,
    Outcome,
    Policy,
    genie_bound,
    gradient_aware,
    load_policy,
    play_round,
)
from fedfade.config import Config
from fedfade.device import one_thread
from fedfade.errors import UserError
from fedfade.experiments.metrics import Row, check_complete, jain, read_rows, write_rows
from fedfade.experiments.run_folder import RunFolder, digest
from fedfade.learning import Federation, ServerState, Updates, gram, load_data
from fedfade.qmix import load_policy_checkpoint
from fedfade.radio import Cell, Channel, db_to_linear
from fedfade.randomness import streams
from fedfade.storage import write_npz
from fedfade.uplink import Round, round_reward, scenario_from_config

_AHEAD_BYTES, _AHEAD_ROUNDS = 64 * 2**20, 25
"""Fading held at a time for policies whose rounds can be played ahead of the learning."""

Progress = Callable[[int, str], None]
"""Told the rounds done and what is being done."""


class Uplink:
    """The radio side of a comparison: rounds as upload problems, the same for all policies."""

    def __init__(self, config: Config, payload_bits: float, device: torch.device) -> None:
        self.config = config
        self.seeds = [config.run.seed + i for i in range(config.run.seeds)]
        self.scenario = scenario_from_config(config, payload_bits, device)
        clients = config.learning.clients
        self._channel = Channel(config.radio, config.cell, clients, device)
        cell = Cell(config.cell, config.radio, clients)
        self._trajectory = cell.trajectory(self.seeds, config.run.rounds, device=device)
        self._blank = torch.zeros(len(self.seeds), clients, clients, device=device)

    def round(self, number: int, inner: Tensor | None = None) -> Round:
        """The upload problem of a round, one episode per seed."""
        fading = self._channel.small_scale_gain(self.seeds, number, [0], self._trajectory)[:, 0]
        return Round(
            alpha=db_to_linear(self._trajectory.at(number).gain_db),
            fading=fading,
            inner=self._blank if inner is None else inner,
            number=torch.full((len(self.seeds),), float(number), device=fading.device),
        )

    def keys(self, policy: str, number: int) -> Tensor:
        """Keys of a policy's own random numbers: [seed]."""
        return streams(self.seeds, f"policy {policy}", number, device=self.scenario.device)

    def rounds_at_a_time(self) -> int:
        """How many rounds of fading fit the memory set aside."""
        scenario = self.scenario
        gains = len(self.seeds) * scenario.slots * scenario.clients * scenario.bands
        return min(_AHEAD_ROUNDS, max(1, _AHEAD_BYTES // (4 * gains)))

    def play(self, policy: Policy, number: int, inner: Tensor, record: bool = False) -> Outcome:
        """One round under a policy."""
        keys = self.keys(policy.name, number)
        return play_round(policy, self.scenario, self.round(number, inner), keys, record)


class UploadsAhead:
    """Outcomes of policies that do not look at gradients, many rounds in one batch."""

    def __init__(self, uplink: Uplink, policies: Sequence[Policy], with_genie: bool) -> None:
        self._uplink = uplink
        self._policies = policies
        self._with_genie = with_genie
        self._outcomes: dict[tuple[str, int], Outcome] = {}
        self._genie: dict[int, Tensor] = {}

    def outcome(self, policy: str, number: int) -> Outcome:
        """What the policy achieved in this round, one episode per seed."""
        if (policy, number) not in self._outcomes:
            self._play_from(number)
        return self._outcomes[policy, number]

    def genie(self, number: int) -> Tensor:
        """The genie's bound: [seed]."""
        if number not in self._genie:
            self._play_from(number)
        return self._genie[number]

    def _play_from(self, first: int) -> None:
        uplink, seeds = self._uplink, len(self._uplink.seeds)
        last = min(first + uplink.rounds_at_a_time(), uplink.config.run.rounds)
        numbers = range(first, last)
        rounds = [uplink.round(number) for number in numbers]
        batch = Round(*(torch.cat(part) for part in zip(*rounds, strict=True)))
        self._outcomes, self._genie = {}, {}
        for policy in self._policies:
            keys = torch.cat([uplink.keys(policy.name, number) for number in numbers])
            whole = play_round(policy, uplink.scenario, batch, keys)
            for place, number in enumerate(numbers):
                rows = slice(place * seeds, (place + 1) * seeds)
                parts = [None if part is None else part[rows] for part in whole]
                self._outcomes[policy.name, number] = Outcome(*parts)  # type: ignore[arg-type]
        if self._with_genie:
            bound = genie_bound(uplink.scenario, batch)
            self._genie = dict(zip(numbers, torch.split(bound, seeds), strict=True))


@dataclass
class _Runs:
    """The order of runs: all policies of the first seed, then of the second, ..."""

    seeds: list[int]
    policies: list[str]

    @property
    def seed_of_run(self) -> list[int]:
        return [seed for seed in self.seeds for _ in self.policies]

    def of_policy(self, policy: str) -> slice:
        """Rows of a policy, one per seed."""
        return slice(self.policies.index(policy), None, len(self.policies))


class Reached(NamedTuple):
    """How far all runs are."""

    rounds: int
    state: ServerState
    uploads: Tensor  # [run, client] rounds in which each client delivered


QMIX = "qmix"


def compared_names(config: Config) -> list[str]:
    """The policies of a comparison; trained agents join when a checkpoint is given."""
    names = list(config.allocation.policies)
    if config.allocation.checkpoint is not None and QMIX not in names:
        names.append(QMIX)
    return names


def compared_policy(config: Config, name: str) -> Policy:
    """A policy of a comparison, going by what the user typed, so that the run folder names it."""
    if name == QMIX:
        if config.allocation.checkpoint is None:
            raise UserError("policy 'qmix' needs --checkpoint with a folder of fedfade train.")
        policy = load_policy_checkpoint(config.allocation.checkpoint, config)
    else:
        policy = load_policy(name)
    policy.name = name
    return policy


class Comparison:
    """`fedfade compare`: all policies on the same channel and the same mini-batches."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config = config
        self.device = device
        names = compared_names(config)
        sending = [name for name in names if name not in (PERFECT, GENIE)]
        self.policies = {name: compared_policy(config, name) for name in sending}
        learned = [name for name in names if name != GENIE]
        if not learned:
            raise UserError("allocation.policies = ['genie'] is not allowed: it needs a policy.")
        self.with_genie = GENIE in names
        self.federation = Federation(
            config.learning,
            load_data(config.learning),
            device=device,
            precision=config.run.precision,
        )
        self.uplink = Uplink(config, self.federation.payload_bits, device)
        self.runs = _Runs(self.uplink.seeds, learned)
        blind = [p for p in self.policies.values() if not gradient_aware(p)]
        self._ahead = UploadsAhead(self.uplink, blind, self.with_genie)
        self._reached: Reached | None = None

    @property
    def all_policies(self) -> list[str]:
        """Policies with rows in the metrics, the genie among them."""
        return [*self.runs.policies, *([GENIE] if self.with_genie else [])]

    def run(self, folder: RunFolder, progress: Progress) -> list[Row]:
        """All rounds, from wherever the folder's checkpoint left off."""
        rows, grams, at = self._resume(folder)
        saved = time.monotonic()
        try:
            while at.rounds < self.config.run.rounds:
                after, new_rows, inner = self.play(at, progress)
                rows += new_rows
                grams[at.rounds] = inner
                at = after  # one assignment: an interrupt finds a whole number of rounds done
                if time.monotonic() - saved >= self.config.run.checkpoint_s:
                    self._save(folder, at, rows, grams)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            self._save(folder, at, rows, grams)
            raise
        write_rows(folder.metrics, rows)
        self._write_gradients(folder.path, grams)
        self._reached = at
        progress(at.rounds, "done")
        return rows

    def start(self) -> Reached:
        """Before the first round."""
        runs, clients = len(self.runs.seed_of_run), self.config.learning.clients
        state = self.federation.start(self.runs.seed_of_run)
        return Reached(0, state, torch.zeros(runs, clients, dtype=torch.int64))

    def play(self, at: Reached, progress: Progress) -> tuple[Reached, list[Row], Tensor]:
        """One round of all runs: where that leads, its rows, and its Gram matrices."""
        number = at.rounds
        progress(number, "local training")
        updates = self.federation.train(at.state, self.runs.seed_of_run, number)
        inner, _ = gram(updates, at.state.previous)
        progress(number, "uploads")
        with one_thread():
            outcomes = self._uploads(number, inner)
        delivered = self._delivered(outcomes, updates)
        state = self.federation.average(at.state, updates, delivered)
        progress(number, "evaluation")
        accuracy, loss = self._evaluate(state, number)
        after = Reached(number + 1, state, at.uploads + delivered.cpu())
        rows = self._rows(number, outcomes, delivered, updates, accuracy, loss, after.uploads)
        return after, rows, inner.cpu()

    def facts(self) -> dict[str, object]:
        """What a finished run notes about itself: scopes, and a digest of every final model."""
        assert self._reached is not None
        state = self._reached.state
        names = self.runs.policies * len(self.runs.seeds)
        models = {
            f"{name}, seed {seed}": digest(
                {"parameters": state.parameters[run], "buffers": state.buffers[run]}
            )
            for run, (name, seed) in enumerate(zip(names, self.runs.seed_of_run, strict=True))
        }
        return {"scopes": {p.name: p.scope for p in self.policies.values()}, "models": models}

    # --- one round -----------------------------------------------------------------------------

    def _uploads(self, number: int, inner: Tensor) -> dict[str, Outcome]:
        """Play the round under every policy that sends."""
        outcomes = {}
        for name, policy in self.policies.items():
            own = inner[self.runs.of_policy(name)]
            if gradient_aware(policy):
                outcomes[name] = self.uplink.play(policy, number, own)
            else:
                outcomes[name] = self._with_gradients(self._ahead.outcome(name, number), own)
        return outcomes

    def _with_gradients(self, outcome: Outcome, inner: Tensor) -> Outcome:
        """Add the part of the reward that was unknown when the round was played ahead."""
        scenario = self.uplink.scenario
        known = round_reward(scenario, torch.zeros_like(inner), outcome.delivered)
        missing = round_reward(scenario, inner, outcome.delivered) - known
        return outcome._replace(reward=outcome.reward + scenario.reward.convergence * missing)

    def _delivered(self, outcomes: dict[str, Outcome], updates: Updates) -> Tensor:
        """Who is averaged: delivered and finite, [run, client]."""
        delivered = torch.ones_like(updates.finite)
        for name, outcome in outcomes.items():
            delivered[self.runs.of_policy(name)] = outcome.delivered
        return delivered & updates.finite

    def _evaluate(self, state: ServerState, number: int) -> tuple[Tensor, Tensor]:
        """Test accuracy and loss, NaN in rounds that are not evaluated: [run]."""
        every, last = self.config.run.evaluate_every, self.config.run.rounds - 1
        if (number + 1) % every and number != last:
            blank = torch.full((len(state.parameters),), math.nan)
            return blank, blank
        return self.federation.evaluate(state)

    def _rows(
        self,
        number: int,
        outcomes: dict[str, Outcome],
        delivered: Tensor,
        updates: Updates,
        accuracy: Tensor,
        loss: Tensor,
        uploads: Tensor,
    ) -> list[Row]:
        bias = gradient_bias(updates, delivered).cpu()
        train_loss = updates.loss.nanmean(-1).cpu()
        payload = self.uplink.scenario.payload_bits
        rows = []
        for run, seed in enumerate(self.runs.seed_of_run):
            name = self.runs.policies[run % len(self.runs.policies)]
            place = run // len(self.runs.policies)
            members = delivered[run].nonzero().flatten().tolist()
            bad = (~updates.finite[run]).nonzero().flatten().tolist()
            outcome = outcomes.get(name)
            bits = payload * len(members) if outcome is None else float(outcome.bits[place].sum())
            nan = math.nan
            rows.append(
                Row(
                    seed=seed,
                    policy=name,
                    round=number,
                    accuracy=float(accuracy[run]),
                    loss=float(loss[run]),
                    train_loss=float(train_loss[run]),
                    delivered=float(len(members)),
                    delivered_clients=" ".join(map(str, members)),
                    bits_sent=bits,
                    bits_wasted=max(0.0, bits - payload * len(members)),
                    sum_rate_bps=nan if outcome is None else float(outcome.sum_rate_bps[place]),
                    gradient_bias=float(bias[run]),
                    fairness=jain(uploads[run].numpy().astype(float)),
                    reward=nan if outcome is None else float(outcome.reward[place]),
                    not_finite=len(bad),
                    not_finite_clients=" ".join(map(str, bad)),
                )
            )
        return rows + (self._genie_rows(number) if self.with_genie else [])

    def _genie_rows(self, number: int) -> list[Row]:
        blank = dict.fromkeys(Row._fields, math.nan)
        return [
            Row(
                **blank  # type: ignore[arg-type]
                | {"seed": seed, "policy": GENIE, "round": number, "delivered": float(bound)}
                | {"delivered_clients": "", "not_finite": 0, "not_finite_clients": ""}
            )
            for seed, bound in zip(self.runs.seeds, self._ahead.genie(number), strict=True)
        ]

    # --- stopping and going on ------------------------------------------------------------------

    def _save(self, folder: RunFolder, at: Reached, rows: list[Row], grams: Tensor) -> None:
        # Metrics first: rows of rounds the checkpoint does not know are dropped on resuming.
        write_rows(folder.metrics, (row for row in rows if row.round < at.rounds))
        tensors = {field.name: getattr(at.state, field.name) for field in fields(at.state)}
        tensors |= {"uploads": at.uploads}
        if at.rounds:
            tensors |= {"grams": grams[: at.rounds]}
        folder.save_checkpoint(at.rounds, tensors)

    def _resume(self, folder: RunFolder) -> tuple[list[Row], Tensor, Reached]:
        stored, start = folder.load_checkpoint(), self.start()
        runs, clients = start.uploads.shape
        # One block for all rounds: a small tensor kept from each would hold on to the memory
        # that the large ones around it leave behind.
        grams = torch.empty(self.config.run.rounds, runs, clients, clients)
        if stored is None:
            return [], grams, start
        done, tensors = stored
        self._check_checkpoint(folder, done, tensors, start)
        rows = [row for row in read_rows(folder.metrics) if row.round < done]
        check_complete(rows, folder.metrics, self.all_policies, self.config, done)
        state = ServerState(
            **{field.name: tensors[field.name].to(self.device) for field in fields(ServerState)}
        )
        if done:
            grams[:done] = tensors["grams"]
        return rows, grams, Reached(done, state, tensors["uploads"])

    def _check_checkpoint(
        self, folder: RunFolder, done: int, tensors: dict[str, Tensor], start: Reached
    ) -> None:
        """Refuse tensors that are not those of this comparison after `done` rounds."""
        wanted = {field.name: getattr(start.state, field.name) for field in fields(start.state)}
        wanted |= {"uploads": start.uploads}
        if done:
            clients = self.config.learning.clients
            wanted |= {"grams": torch.empty(done, len(start.uploads), clients, clients)}
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in wanted.items()}
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if found != shapes or done > self.config.run.rounds:
            raise folder.damaged()

    def _write_gradients(self, folder: Path, grams: Tensor) -> None:
        """The Gram matrices of the run: `replay` and quick training read them."""
        write_npz(
            folder / "gradients.npz",
            {
                "inner": grams.transpose(0, 1).numpy(),  # [run, round, client, client]
                "seed": np.array(self.runs.seed_of_run),
                "policy": np.array(self.runs.policies * len(self.runs.seeds)),
                "payload_bits": np.array(self.uplink.scenario.payload_bits),
            },
        )


def gradient_bias(updates: Updates, delivered: Tensor) -> Tensor:
    """|mean of all g_n - mean of the delivered g_n|^2, eq. (25)'s second term: [run].

    Nobody delivered means an aggregate of zero, so the bias is the whole mean's squared norm.
    """
    count = delivered.sum(-1, keepdim=True).clamp(min=1)
    finite = updates.finite
    share = finite / finite.sum(-1, keepdim=True).clamp(min=1) - delivered / count
    sent = torch.where(finite[..., None], updates.parameters, 0.0)
    return torch.einsum("rn,rnd->rd", share, sent).square().sum(-1)
