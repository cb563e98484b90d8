"""The radio side of comparisons: rounds as upload problems, played many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from fedfade.allocation import Outcome, Policy, genie_bound, gradient_aware, play_round
from fedfade.allocation.play import RecordedRounds
from fedfade.config import Config
from fedfade.device import spare_bytes
from fedfade.radio import Cell, Channel, db_to_linear
from fedfade.randomness import streams
from fedfade.uplink import Round, round_reward, scenario_from_config

_AHEAD_BYTES, _AHEAD_ROUNDS = 64 * 2**20, 25  # on the CPU, where more would leave the cache
_AHEAD_SHARE = 0.03
"""Of a GPU's free memory, for the fading of rounds drawn ahead; playing takes ten times that."""


class Uplink:
    """The upload problems of one configuration, the same for all policies."""

    def __init__(self, config: Config, payload_bits: float, device: torch.device) -> None:
        self.config = config
        self.seeds = [config.run.seed + i for i in range(config.run.seeds)]
        self.scenario = scenario_from_config(config, payload_bits, device)
        clients = config.learning.clients
        self._channel = Channel(config.radio, config.cell, clients, device)
        cell = Cell(config.cell, config.radio, clients)
        self._trajectory = cell.trajectory(self.seeds, config.run.rounds, device=device)

    @property
    def scenario_key(self) -> str:
        """Equal for uplinks whose episodes can be played in one batch."""
        values = {f.name: getattr(self.scenario, f.name) for f in fields(self.scenario)}
        plain = [v.tolist() if isinstance(v, Tensor) else v for v in values.values()]
        return repr(plain)

    @property
    def key(self) -> str:
        """Equal for uplinks with the same episodes; how data are dealt does not matter."""
        return repr((self.config.radio, self.config.cell, self.seeds, self.scenario_key))

    def rounds(self, numbers: Sequence[int]) -> Round:
        """Several rounds, one episode per seed and round; gradients unknown: [(seed, round)]."""
        channel, walk = self._channel, self._trajectory
        fading = channel.small_scale_gains(self.seeds, numbers, [0], walk)[:, :, 0]
        alpha = db_to_linear(walk.during(numbers).gain_db).flatten(0, 1)
        count = torch.tensor(numbers, dtype=torch.float32).to(alpha.device, non_blocking=True)
        return Round(
            alpha=alpha,
            fading=fading.flatten(0, 1),
            inner=torch.zeros_like(alpha)[..., None].expand(-1, -1, alpha.shape[-1]),
            number=count.repeat(len(self.seeds)),
        )

    def round(self, number: int, inner: Tensor | None = None) -> Round:
        """The upload problem of a round, one episode per seed."""
        round_ = self.rounds([number])
        return round_ if inner is None else round_._replace(inner=inner)

    def keys(self, policy: str, *numbers: int) -> Tensor:
        """Keys of a policy's own random numbers: [(seed, round)]."""
        device = self.scenario.device
        rounds = [streams(self.seeds, f"policy {policy}", number) for number in numbers]
        return torch.stack(rounds, 1).flatten().to(device, non_blocking=True)

    def play(self, policy: Policy, number: int, inner: Tensor, record: bool = False) -> Outcome:
        """One round under a policy."""
        keys = self.keys(policy.name, number)
        return play_round(policy, self.scenario, self.round(number, inner), keys, record)


class Uploads:
    """Uplinks of one scenario side by side, under the same policies.

    Policies that do not look at gradients play as many rounds ahead as the memory set aside
    holds; the others play one round at a time, of all uplinks together.
    """

    def __init__(
        self, uplinks: Sequence[Uplink], policies: Sequence[Policy], with_genie: bool
    ) -> None:
        self._uplinks = list({uplink.key: uplink for uplink in uplinks}.values())
        places = {uplink.key: place for place, uplink in enumerate(self._uplinks)}
        self._place = [places[uplink.key] for uplink in uplinks]  # whose episodes are whose
        self._policies = policies
        self.with_genie = with_genie
        self._scenario = uplinks[0].scenario
        self._window = range(0)
        self._rounds: Round | None = None
        self._outcomes: dict[str, Outcome] = {}
        self._genie: Tensor | None = None
        self._recorded: dict[str, RecordedRounds] = {}
        self.rounds_ahead = self._rounds_ahead()

    @property
    def episodes_a_round(self) -> int:
        """Episodes of one round: seeds of all different uplinks."""
        return sum(len(uplink.seeds) for uplink in self._uplinks)

    def outcomes(
        self, number: int, inner: Mapping[int, Mapping[str, Tensor]]
    ) -> dict[int, dict[str, Outcome]]:
        """A round of some uplinks, `inner` having the Gram matrices of each and policy.

        `delivered` stays on the device; what only tables want is on the CPU.
        """
        self._look_ahead(number)
        answer: dict[int, dict[str, Outcome]] = {member: {} for member in inner}
        episodes = self._episodes(inner, number)
        for policy in self._policies:
            grams = torch.cat([own[policy.name] for own in inner.values()])
            if gradient_aware(policy):
                played = self._play_now(policy, number, list(inner), episodes, grams)
            else:
                whole = self._outcomes[policy.name]
                played = self._with_gradients(_taken(whole, episodes), grams)
            played = _moved(played)
            first = 0
            for member, own in inner.items():
                rows = slice(first, first + len(own[policy.name]))
                answer[member][policy.name] = _taken(played, rows)
                first = rows.stop
        return answer

    def genie(self, number: int, member: int) -> Tensor:
        """The genie's bound: [seed]."""
        self._look_ahead(number)
        assert self._genie is not None
        rows = self._rows(member, number)
        return self._genie[rows.start : rows.stop : rows.step]

    # --- many rounds ahead ------------------------------------------------------------------------

    def _rounds_ahead(self) -> int:
        scenario = self._scenario
        gains = self.episodes_a_round * scenario.slots * scenario.clients * scenario.bands
        fit = max(1, spare_bytes(scenario.device, _AHEAD_SHARE, _AHEAD_BYTES) // (4 * gains))
        limit = _AHEAD_ROUNDS if scenario.device.type == "cpu" else scenario.rounds
        return min(fit, limit, scenario.rounds)

    def _look_ahead(self, first: int) -> None:
        if first in self._window:
            return
        self._rounds, self._outcomes, self._genie = None, {}, None  # before the next are made
        window = range(first, min(first + self.rounds_ahead, self._scenario.rounds))
        self._rounds = joined([uplink.rounds(window) for uplink in self._uplinks])
        for policy in self._policies:
            if not gradient_aware(policy):
                keys = torch.cat([uplink.keys(policy.name, *window) for uplink in self._uplinks])
                outcome = play_round(policy, self._scenario, self._rounds, keys)
                self._outcomes[policy.name] = outcome
        if self.with_genie:
            self._genie = genie_bound(self._scenario, self._rounds)
        self._window = window

    def _rows(self, member: int, number: int) -> range:
        """Episodes of a round of one uplink among those played ahead: a step from seed to seed."""
        place, step = self._place[member], len(self._window)
        start = sum(len(uplink.seeds) for uplink in self._uplinks[:place]) * step
        stop = start + len(self._uplinks[place].seeds) * step
        return range(start + self._window.index(number), stop, step)

    def _episodes(self, members: Iterable[int], number: int) -> Tensor:
        rows = [row for member in members for row in self._rows(member, number)]
        return torch.tensor(rows).to(self._scenario.device, non_blocking=True)

    def _with_gradients(self, outcome: Outcome, inner: Tensor) -> Outcome:
        """Add the part of the reward that was unknown when the round was played ahead."""
        known = round_reward(self._scenario, torch.zeros_like(inner), outcome.delivered)
        missing = round_reward(self._scenario, inner, outcome.delivered) - known
        return outcome._replace(reward=outcome.reward + self._scenario.reward.convergence * missing)

    # --- one round of all -------------------------------------------------------------------------

    def _play_now(
        self, policy: Policy, number: int, members: list[int], episodes: Tensor, grams: Tensor
    ) -> Outcome:
        assert self._rounds is not None
        drawn = Round(*(part.index_select(0, episodes) for part in self._rounds))
        uplinks = [self._uplinks[self._place[member]] for member in members]
        keys = torch.cat([uplink.keys(policy.name, number) for uplink in uplinks])
        return self._play_batch(policy, drawn._replace(inner=grams), keys)

    def _play_batch(self, policy: Policy, round_: Round, keys: Tensor) -> Outcome:
        """Recorded, where the policy allows."""
        if not getattr(policy, "recordable", False):
            return play_round(policy, self._scenario, round_, keys)
        recorded = self._recorded.get(policy.name)
        if recorded is None or recorded.episodes != len(keys):
            recorded = RecordedRounds(policy, self._scenario, round_, keys)
            self._recorded[policy.name] = recorded
        return recorded.play(round_, keys)


def _taken(outcome: Outcome, rows: slice | Tensor) -> Outcome:
    """Some episodes of an outcome without history."""
    return Outcome._make([*(part[rows] for part in outcome[:5]), None])


def _moved(outcome: Outcome) -> Outcome:
    return Outcome._make([outcome.delivered, *(part.cpu() for part in outcome[1:5]), None])


def joined(rounds: Sequence[Round]) -> Round:
    """The episodes of several rounds, one after the other."""
    if len(rounds) == 1:
        return rounds[0]
    return Round(*(torch.cat(part) for part in zip(*rounds, strict=True)))
