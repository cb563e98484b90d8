"""The radio side of comparisons: rounds as upload problems, played many at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from fedfade.allocation import Outcome, Policy, RecordedRounds, genie_bound, play_round
from fedfade.config import Config
from fedfade.device import spare_bytes
from fedfade.learning import Payload
from fedfade.radio import Cell, Channel, OtherCells, db_to_linear
from fedfade.randomness import streams
from fedfade.uplink import (
    Round,
    as_announced,
    draw_chance,
    plain_round,
    ready_slots,
    round_reward,
    scenario_from_config,
)
from fedfade.uplink.plan import service_order
from fedfade.wording import counted

_AHEAD_BYTES, _AHEAD_ROUNDS = 64 * 2**20, 25  # on the CPU, where more would leave the cache
_LOOKS = 10  # seeds, and rounds after the first, behind `Uplink.outlook`
_AHEAD_SHARE = 0.03
"""Of a GPU's free memory, for the fading of rounds drawn ahead; playing takes ten times that."""


class Uplink:
    """The upload problems of one configuration, the same for all policies.

    Clients are where each seed puts them, or where `layout` does, a seed for all.
    """

    def __init__(
        self, config: Config, payload_bits: Payload, device: torch.device, layout: int | None = None
    ) -> None:
        self.config, self._layout = config, layout
        self.seeds = [config.run.seed + i for i in range(config.run.seeds)]
        self.scenario = scenario_from_config(config, payload_bits, device)
        self._ready = ready_slots(config, self.seeds).to(device)  # [seed, client]
        clients = config.learning.clients
        self._channel = Channel(config.radio, config.cell, clients, device)
        self._other_cells = OtherCells(config.cell, config.radio, clients, device)
        cell = Cell(config.cell, config.radio, clients)
        self._walks = self.seeds if layout is None else [layout] * len(self.seeds)
        self._trajectory = cell.trajectory(self._walks, config.run.rounds, device=device)

    @property
    def scenario_key(self) -> str:
        """Equal for uplinks whose episodes can be played in one batch."""
        values = [getattr(self.scenario, field.name) for field in fields(self.scenario)]
        values.append(self._ready.shape[-1])  # rounds with and without late clients do not stack
        return repr([v.tolist() if isinstance(v, Tensor) else v for v in values])

    @property
    def key(self) -> str:
        """Equal for uplinks with the same episodes; how data are dealt does not matter."""
        speeds = self._ready.tolist()
        places = (self.config.radio, self.config.cell, self.seeds, self._layout, speeds)
        return repr((*places, self.scenario_key))

    def outlook(self) -> str:
        """Before anything is played: how many clients a round has room for, one after another on
        every sub-band, shortest first. By mean gains of some seeds and rounds alone."""
        scenario, last = self.scenario, self.config.run.rounds - 1
        looked_at = sorted({last * part // _LOOKS for part in range(_LOOKS + 1)})
        gain_db = self._trajectory.during(looked_at).gain_db[:_LOOKS]  # [seed, round, client]
        snr = db_to_linear(gain_db.flatten(0, 1)) * (scenario.full_power_w / scenario.noise_w)
        if scenario.other_cells:
            seeds = (self._walks[:_LOOKS], self.seeds[:_LOOKS])
            rise = 1.0 + self._other_cells.levels_w(*seeds, looked_at, [0]) / scenario.noise_w
            snr = snr / rise.log().mean((2, 3, 4)).exp().flatten()[:, None]
        slots = service_order(scenario, snr, torch.zeros_like(snr[:, 0])).slots.sort(-1).values
        room = (slots <= scenario.slots) & (slots.cumsum(-1) <= scenario.bands * scenario.slots)
        needed, fit = float(slots.median()), float(room.sum(-1).float().mean())
        about = f"{max(1.0, needed):.0f}" if needed < 1e6 else f"{needed:.1e}"
        clients = f"{f'{fit:.1f}'.removesuffix('.0')} of {counted(scenario.clients, 'client')}"
        text = (
            f"a median client needs about {about} of {scenario.slots} slots alone on a sub-band; "
            f"about {clients} fit into a round"
        )
        if fit == 0:
            payload = float(scenario.mean_payload_bits)
            bits = f"{payload * scenario.slots / needed:.2g} (now {payload:.3g})"
            text += (
                ": hardly anybody will deliver. Half of the clients alone could with "
                f"learning.payload_bits below {bits} or radio.slots above {about}"
            )
        return f"{text}."

    def rounds(self, numbers: Sequence[int]) -> Round:
        """Several rounds, one episode per seed and round; gradients unknown: [(seed, round)]."""
        channel, walk = self._channel, self._trajectory
        drawn = channel.small_scale(self.seeds, numbers, [0], walk)
        fading, direction = (part[:, :, 0].flatten(0, 1) for part in drawn)
        others = self._other_cells.levels_w(self._walks, self.seeds, numbers, [0])
        place = walk.during(numbers)
        alpha = db_to_linear(place.gain_db).flatten(0, 1)
        count = torch.tensor(numbers, dtype=torch.float32).to(alpha.device, non_blocking=True)
        round_ = plain_round(
            alpha=alpha,
            fading=fading,
            inner=torch.zeros_like(alpha)[..., None].expand(-1, -1, alpha.shape[-1]),
            number=count.repeat(len(self.seeds)),
            age=torch.zeros_like(alpha),
            chance=draw_chance(self.scenario, self._keys("link", numbers)),
        )
        if not self.config.cell.told_exactly:
            round_ = as_announced(round_, (place.announced_db - place.gain_db).flatten(0, 1))
        ready = self._ready.repeat_interleave(len(numbers), 0)
        others_w = others.flatten(0, 2)
        return round_._replace(direction=direction, other_cells_w=others_w, ready_slot=ready)

    def round(self, number: int, inner: Tensor | None = None) -> Round:
        """The upload problem of a round, one episode per seed."""
        round_ = self.rounds([number])
        return round_ if inner is None else round_._replace(inner=inner)

    def keys(self, policy: str, *numbers: int) -> Tensor:
        """Keys of a policy's own random numbers: [(seed, round)]."""
        return self._keys(f"policy {policy}", numbers)

    def _keys(self, purpose: str, numbers: Sequence[int]) -> Tensor:
        rounds = [streams(self.seeds, purpose, number) for number in numbers]
        return torch.stack(rounds, 1).flatten().to(self.scenario.device, non_blocking=True)

    def play(
        self,
        policy: Policy,
        number: int,
        inner: Tensor,
        record: bool = False,
        age: Tensor | None = None,
    ) -> Outcome:
        """One round under a policy."""
        keys, round_ = self.keys(policy.name, number), self.round(number, inner)
        round_ = round_ if age is None else round_._replace(age=age.to(inner.device))
        return play_round(policy, self.scenario, round_, keys, record)


class UploadGroup:
    """Uplinks of one scenario side by side, under the same policies.

    Rounds are drawn ahead, and policies that do not look at gradients play them ahead, as many
    as the memory set aside holds: a cache, which changes no number.
    """

    def __init__(
        self, uplinks: Sequence[Uplink], policies: Sequence[Policy], with_genie: bool
    ) -> None:
        self._uplinks = list({uplink.key: uplink for uplink in uplinks}.values())
        keys = [uplink.key for uplink in self._uplinks]
        self._place = [keys.index(uplink.key) for uplink in uplinks]  # whose episodes are whose
        self.policies, self._with_genie = policies, with_genie
        self.episodes_a_round = sum(len(uplink.seeds) for uplink in self._uplinks)
        self.scenario = scenario = uplinks[0].scenario
        self._window = range(0)  # the rounds drawn ahead
        self._rounds: Round | None = None
        self._genie: Tensor | None = None
        self.played: dict[str, Outcome] = {}  # by policy, of all rounds in the window
        self._recorded: dict[str, RecordedRounds] = {}
        gains = self.episodes_a_round * scenario.slots * scenario.clients * scenario.bands
        gains *= 1 if scenario.antennas == 1 else 1 + 2 * scenario.antennas  # directions too
        fit = max(1, spare_bytes(scenario.device, _AHEAD_SHARE, _AHEAD_BYTES) // (4 * gains))
        limit = _AHEAD_ROUNDS if scenario.device.type == "cpu" else scenario.rounds
        self.rounds_ahead = min(fit, limit, scenario.rounds)

    def draw_ahead(self, first: int) -> None:
        """The channel of the rounds from `first` on, unless it is there."""
        if first in self._window:
            return
        self._rounds, self.played, self._genie = None, {}, None  # before the next are made
        window = range(first, min(first + self.rounds_ahead, self.scenario.rounds))
        self._rounds = joined([uplink.rounds(window) for uplink in self._uplinks])
        if self._with_genie:
            self._genie = genie_bound(self.scenario, self._rounds)
        self._window = window

    def ahead(self, policy: Policy) -> tuple[Round, Tensor]:
        """All rounds drawn ahead, to be played now: the problem and the policy's keys."""
        assert self._rounds is not None
        keys = [uplink.keys(policy.name, *self._window) for uplink in self._uplinks]
        return self._rounds, torch.cat(keys)

    def now(
        self, policy: Policy, members: Sequence[int], number: int, inner: Tensor, age: Tensor
    ) -> tuple[Round, Tensor]:
        """One round of some uplinks, whose gradients and ages [(uplink, seed), ...] are known
        now."""
        assert self._rounds is not None
        rows = self._rows(members, number)
        chosen = Round(*(part.index_select(0, rows) for part in self._rounds))
        keys = [self._uplinks[self._place[m]].keys(policy.name, number) for m in members]
        return chosen._replace(inner=inner, age=age.to(inner.device)), torch.cat(keys)

    def player(
        self, policy: Policy, round_: Round, keys: Tensor
    ) -> Callable[[Round, Tensor], Outcome]:
        """`play_round` of a policy, or a recording of it where the policy allows one."""
        if not getattr(policy, "recordable", False):
            return partial(play_round, policy, self.scenario)
        known = self._recorded.get(policy.name)
        if known is None or known.episodes != len(keys):
            known = RecordedRounds(policy, self.scenario, round_, keys)
            self._recorded[policy.name] = known
        return known.play

    def taken(self, policy: Policy, members: Sequence[int], number: int, inner: Tensor) -> Outcome:
        """A round played ahead, with the part of the reward that was unknown then."""
        outcome = part_of(self.played[policy.name], self._rows(members, number))
        arrived = outcome.arrived(self.scenario)
        known = round_reward(self.scenario, torch.zeros_like(inner), arrived)
        missing = round_reward(self.scenario, inner, arrived) - known
        return outcome._replace(reward=outcome.reward + self.scenario.reward.convergence * missing)

    def split(self, outcome: Outcome, members: Sequence[int]) -> list[Outcome]:
        """An outcome by uplink. `delivered` stays on the device; what only tables want does not."""
        moved = [outcome.delivered, *(part.cpu() for part in outcome[1:-1])]
        sizes = [len(self._uplinks[self._place[member]].seeds) for member in members]
        parts = zip(*(torch.split(part, sizes) for part in moved), strict=True)
        return [Outcome._make([*own, None]) for own in parts]

    def genie(self, member: int, number: int) -> Tensor | None:
        """The genie's bound, if it is asked for: [seed]."""
        return None if self._genie is None else self._genie[self._rows([member], number)]

    def _rows(self, members: Sequence[int], number: int) -> Tensor:
        """Episodes of a round of some uplinks among those drawn ahead, [(uplink, seed, round)]."""
        step = len(self._window)
        rows: list[int] = []
        for place in (self._place[member] for member in members):
            start = sum(len(uplink.seeds) for uplink in self._uplinks[:place]) * step
            stop = start + len(self._uplinks[place].seeds) * step
            rows += range(start + self._window.index(number), stop, step)
        return torch.tensor(rows).to(self.scenario.device, non_blocking=True)


def on_cpu(outcome: Outcome) -> Outcome:
    """All of it at once: asking a GPU for single numbers would wait for it as often."""
    *parts, history = outcome
    assert history is None
    return Outcome._make([*(part.cpu() for part in parts), None])


def part_of(outcome: Outcome, episodes: int | Tensor) -> Outcome:
    """Some episodes of an outcome, or one, without history."""
    return Outcome._make([*(part[episodes] for part in outcome[:-1]), None])


def joined(rounds: Sequence[Round]) -> Round:
    """The episodes of several rounds, one after the other."""
    if len(rounds) == 1:
        return rounds[0]
    return Round(*(torch.cat(part) for part in zip(*rounds, strict=True)))


def ages_after(delivered: Iterable[Iterable[int]], clients: int) -> Tensor:
    """Rounds since each client delivered last, by who did round after round; all rounds for who
    never did: [client].

    >>> ages_after([[0, 1], [1], []], clients=3)
    tensor([2., 1., 3.])
    """
    age = torch.zeros(clients)
    for some in delivered:
        age += 1.0
        age[list(some)] = 0.0
    return age
