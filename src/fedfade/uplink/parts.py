"""The named parts of an agent's observation (paper: section IV-B), ours and a user's.

Gains are in decibels and everything is scaled to order 1, because networks learn badly from 1e-12
and 9932960. A part is made for many slots at once, before they are played; in a slot it only
writes in how far the uploads are, if that is part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from fedfade.errors import UserError, not_allowed
from fedfade.seams import PARTS, ask
from fedfade.uplink.plan import (
    Order,
    after_turn,
    expected_slots,
    holder_done,
    reserve,
    service_order,
    timetable,
)
from fedfade.uplink.scenario import Scenario
from fedfade.uplink.slot import Round, mean_snr

# Centre and scale of each quantity in the units named.
SNR_CENTRE_DB, SNR_SCALE_DB = 15.0, 15.0
SNR_FLOOR = 1e-10
FADING_SCALE_DB = 10.0
FADING_FLOOR = 1e-4  # -40 dB: a deep fade, below which a sub-band is equally useless
DEVIATION_SCALE = 4.0  # decades
DEVIATION_FLOOR = 1e-12
PLAN_BOUND = 2.0  # rounds: farther away than this, and never, look the same
BOUND = 10.0
"""No observed value leaves [-BOUND, BOUND]; sensible ones stay far inside."""

Told = Literal["nothing", "finished", "fading"]


class Part(Protocol):
    """One part of an agent's observation; it holds no state.

    `told` is what the base station has to announce for it beyond the large-scale gains of a
    round: nothing, who has finished, or everybody's fading. A user's part is taken at its word.

    Optional attributes: `update(scenario, columns, share)` writes the progress into the part's
    columns [client, episode, width] of one slot, in place; `share` [client, episode, 1] is what
    each client has left of its payload. `gradient_aware = False` promises not to look at
    `round_.inner`, so that agents need not wait for the learning.
    """

    told: Told

    def width(self, scenario: Scenario) -> int:
        """How many numbers an agent sees."""

    def static(self, scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
        """What no action changes, in these slots: float32 [slot, client, episode, width], or
        something that broadcasts to it. What `allocation.hide` hides is constant in `round_`,
        and with `qmix.hop_subbands` its fading is that of logical sub-bands."""


@dataclass(frozen=True)
class LoadedPart:
    """A part with all that is optional."""

    static: Callable[[Scenario, Round, Tensor], Tensor]
    width: Callable[[Scenario], int] = lambda scenario: 1
    update: Callable[[Scenario, Tensor, Tensor], object] | None = None
    told: Told = "nothing"
    gradient_aware: bool = False


# A slot asks for its parts again and again. (Compilers see through a dictionary.)
_loaded: dict[str, LoadedPart] = {}


def load_part(name: str) -> LoadedPart:
    """A part by built-in name, entry point of `fedfade.observation_parts`, or `module:factory`."""
    if name not in _loaded:
        part = PARTS.make(name)
        _loaded[name] = part if name in PARTS.built_in else _checked(name, part)
    return _loaded[name]


def _checked(name: str, part: Part) -> LoadedPart:
    """A user's part, held to the protocol."""
    who = f"observation part {name!r}"
    if part.told not in get_args(Told):
        raise not_allowed(f"told of {who}", part.told, f"one of {', '.join(get_args(Told))}")

    def width(scenario: Scenario) -> int:
        found = ask(who, part, "width", scenario)
        if not isinstance(found, int) or found < 1:
            raise UserError(f"{who} answered width {found!r}: it must be a whole number above 0.")
        return found

    def static(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
        found = ask(who, part, "static", scenario, round_, slots)
        if not isinstance(found, Tensor) or found.dtype != torch.float32:
            kind = str(found.dtype) if isinstance(found, Tensor) else type(found).__name__
            raise UserError(f"{who} answered {kind}: it must answer a float32 tensor.")
        shape = (len(slots), scenario.clients, len(round_.alpha), width(scenario))
        try:
            found = found.expand(shape)
        except RuntimeError:
            wanted = f"it must be, or broadcast to, [slot, client, episode, width] = {list(shape)}"
            raise UserError(f"{who} answered shape {list(found.shape)}: {wanted}.") from None
        # Looking at values would wait for a GPU.
        if found.device.type == "cpu" and not bool(found.isfinite().all()):
            raise UserError(f"{who} answered numbers that are not finite.")
        return found.clamp(-BOUND, BOUND)

    def update(scenario: Scenario, columns: Tensor, share: Tensor) -> None:
        ask(who, part, "update", scenario, columns, share)
        columns.clamp_(-BOUND, BOUND)

    aware = bool(getattr(part, "gradient_aware", True))
    return LoadedPart(static, width, update if hasattr(part, "update") else None, part.told, aware)


# --- quantities, scaled ----------------------------------------------------------------------


def scaled_snr(scenario: Scenario, round_: Round) -> Tensor:
    """Large-scale gains as mean SNR of all antennas at full power: [episode, client]."""
    snr = mean_snr(scenario, round_) * scenario.antennas
    snr_db = 10.0 * torch.log10(snr.clamp(min=SNR_FLOOR))
    return ((snr_db - SNR_CENTRE_DB) / SNR_SCALE_DB).clamp(-BOUND, BOUND)


def scaled_fading(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Small-scale gains in some slots over their mean: [episode, slot, client, band]."""
    fading = round_.fading.index_select(1, slots) / scenario.antennas
    if "fading" in scenario.hide:
        return torch.ones_like(fading)
    fading_db = 10.0 * torch.log10(fading.clamp(min=FADING_FLOOR))
    return (fading_db / FADING_SCALE_DB).clamp(max=BOUND)


def scaled_deviation(scenario: Scenario, round_: Round) -> Tensor:
    """Squared gradient deviation in decades: [episode, client]."""
    if "gradient" in scenario.hide:
        return torch.ones_like(round_.deviation)
    decades = torch.log10(round_.deviation.clamp(min=DEVIATION_FLOOR))
    return (decades / DEVIATION_SCALE).clamp(max=BOUND)


def scaled_clock(scenario: Scenario, slots: Tensor) -> Tensor:
    """Share of the slots left, this one included: [slot]."""
    return (scenario.slots - slots) / scenario.slots


def order_of(scenario: Scenario, round_: Round) -> Order:
    """Clients in the order of their expected times."""
    snr = mean_snr(scenario, round_)
    return service_order(scenario, snr, round_.number, round_.staggered)


# --- built-in parts: [slot, client, episode, width], or broadcast to it --------------------------


def _others_fading(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Everybody's fading `csi_delay_slots` ago; the mean, 0 dB, while there is none so old."""
    measured = slots - scenario.csi_delay_slots
    fading = scaled_fading(scenario, round_, measured.clamp(min=0))
    if scenario.hop_subbands:  # of the sub-bands that are meant now, not of those meant then
        fading = fading.roll(-scenario.csi_delay_slots, dims=-1)
    if "fading" not in scenario.hide:
        fading = fading * (measured >= 0)[None, :, None, None]
    return fading.transpose(0, 1).flatten(2)[:, None]


def _schedule(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Own place in the block-fading schedule: sends now, its sub-band (one of C), rounds until
    its start and until its expected end, rank in the order of service."""
    snr = mean_snr(scenario, round_)
    plan = timetable(scenario, snr, round_.number, ready=round_.staggered)
    start, end = plan.start.T, plan.end.T  # [client, episode]
    now = slots[:, None, None]
    band = plan.band.T[..., None] == torch.arange(scenario.bands, device=scenario.device)
    columns = [
        (start <= now)[..., None].float(),
        band.float().expand(len(slots), *band.shape),
        ((start - now) / scenario.slots).clamp(0.0, PLAN_BOUND)[..., None],
        ((end - now) / scenario.slots).clamp(-PLAN_BOUND, PLAN_BOUND)[..., None],
        (plan.rank.T / scenario.clients).expand(len(slots), *start.shape)[..., None],
    ]
    return torch.cat(columns, dim=-1)


def _reservation(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Own place in the wrap-around plan. C columns each: the planned sub-band (of the reserved
    ones the best by own fading), all reserved ones, where to go on after the own turn, how likely
    it is that a sub-band's holder is done; then rounds until the own turn, share of the slots
    reserved from now on, rounds the bits left take, rank."""
    hop = not scenario.hop_subbands  # on logical sub-bands everybody stays
    snr = mean_snr(scenario, round_)
    plan = reserve(scenario, snr, round_.number, hop=hop, ready=round_.staggered)
    mine = plan.bands.permute(2, 1, 0, 3)  # [slot, client, episode, band]
    sends = mine.any(-1, keepdim=True)
    every = torch.arange(scenario.slots, device=slots.device)
    fading = scaled_fading(scenario, round_, every).permute(1, 2, 0, 3)
    best = torch.where(mine, fading, -BOUND).argmax(-1, keepdim=True)
    planned = (best == torch.arange(scenario.bands, device=scenario.device)) & sends
    free = holder_done(plan).transpose(0, 1)[:, None]  # [slot, 1, episode, band]
    # Slots until the next own one: 0 if it is now, all of them if there is none.
    slot = every.view(-1, 1, 1, 1)
    own = torch.where(sends, slot, 2 * scenario.slots)
    until = (own.flip(0).cummin(0).values.flip(0) - slot).clamp(max=scenario.slots)
    left = sends.flip(0).cumsum(0).flip(0)
    needed = (plan.slots.T / scenario.slots).clamp(max=PLAN_BOUND)[None, :, :, None]
    rank = (plan.rank.T / scenario.clients)[None, :, :, None]
    columns = [planned.float(), mine.float(), plan.grace.permute(2, 1, 0, 3).float()]
    columns += [free.expand(mine.shape), until / scenario.slots, left / scenario.slots]
    columns += [needed.expand(sends.shape), rank.expand(sends.shape)]
    return torch.cat(columns, dim=-1).index_select(0, slots)


def _update_reservation(scenario: Scenario, columns: Tensor, share: Tensor) -> None:
    """The bits left take so long; a client without a sub-band now may plan to go on elsewhere."""
    slots, sizes = scenario.slots, [scenario.bands] * 4 + [1] * 4
    planned, mine, grace, free, _, left, needed, _ = torch.split(columns, sizes, dim=-1)
    needed *= share
    more = after_turn(grace > 0, free, needed * slots, left * slots)
    planned += more * (mine.sum(-1, keepdim=True) == 0)


def _time_to_finish(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Rounds a whole payload takes alone on a sub-band; a slot multiplies by the share left."""
    needed = expected_slots(scenario, mean_snr(scenario, round_))
    return (needed / scenario.slots).clamp(max=BOUND).T[None, :, :, None]


def _order(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Own rank (one of N), everybody's expected rounds in the order of rank; the work of those
    before me, and of everybody up to each rank, all sub-bands' slots of a round being 1."""
    order, longest = order_of(scenario, round_), PLAN_BOUND * scenario.slots
    needed = order.slots.gather(1, order.clients).clamp(max=longest)  # [episode, place]
    work = needed.cumsum(-1)
    before = torch.nn.functional.pad(work[:, :-1], (1, 0)).gather(1, order.rank)
    whole = scenario.bands * scenario.slots
    place = torch.arange(scenario.clients, device=scenario.device)
    rank = (order.rank.T[..., None] == place).float()  # [client, episode, place]
    columns = [
        rank,
        (needed / scenario.slots).expand_as(rank),
        (before / whole).clamp(max=PLAN_BOUND).T[..., None],
        (work / whole).clamp(max=PLAN_BOUND).expand_as(rank),
    ]
    return torch.cat(columns, dim=-1)[None]


def _slack(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Share of the slots left, and rounds a whole payload takes alone on a sub-band."""
    needed = (order_of(scenario, round_).slots / scenario.slots).clamp(max=BOUND).T[None]
    needed = needed.expand(len(slots), -1, -1)
    clock = scaled_clock(scenario, slots)[:, None, None].expand(needed.shape)
    return torch.stack([clock, needed], dim=-1)


def _update_slack(scenario: Scenario, columns: Tensor, share: Tensor) -> None:
    """What would be left of the round, and what the bits left take."""
    slack, needed = torch.split(columns, 1, dim=-1)
    needed.mul_(share).clamp_(max=PLAN_BOUND)
    slack.sub_(needed)


def _in_order(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Who has which rank; a slot puts in whether that client has finished."""
    return order_of(scenario, round_).clients.float()[None, None]


def _update_finished(scenario: Scenario, columns: Tensor, share: Tensor) -> None:
    columns.copy_((share <= 0)[..., 0].T)


def _update_finished_order(scenario: Scenario, columns: Tensor, share: Tensor) -> None:
    done = (share <= 0)[..., 0].T  # [episode, client]
    columns.copy_(done.gather(1, columns[0].long()))


def _order_fading(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """`others_fading` in the order of rank."""
    fading = _others_fading(scenario, round_, slots)
    fading = fading.view(*fading.shape[:-1], scenario.clients, scenario.bands)
    clients = order_of(scenario, round_).clients[:, :, None]
    return fading.gather(-2, clients.expand(fading.shape)).flatten(-2)


def _ready(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    """Share of a round until I can send, and until each client can; 0 for who can now."""
    if (ready := round_.staggered) is None:
        return torch.zeros(1, 1, 1, 1, device=scenario.device)
    wait = (ready.T - slots[:, None, None]).clamp(min=0) / scenario.slots  # [slot, client, episode]
    everybody = wait.mT[:, None].expand(-1, scenario.clients, -1, -1)
    return torch.cat([wait[..., None], everybody], dim=-1)


def _blank(scenario: Scenario, round_: Round, slots: Tensor) -> Tensor:
    return torch.zeros(1, 1, 1, 1, device=scenario.device)


def _clients(scenario: Scenario) -> int:
    return scenario.clients


def _everybodys_bands(scenario: Scenario) -> int:
    return scenario.clients * scenario.bands


ALPHAS = LoadedPart(
    lambda scenario, round_, slots: scaled_snr(scenario, round_)[None, None], width=_clients
)
FADING = LoadedPart(
    lambda scenario, round_, slots: scaled_fading(scenario, round_, slots).permute(1, 2, 0, 3),
    width=lambda scenario: scenario.bands,
)
REMAINING = LoadedPart(_blank, update=lambda scenario, columns, share: columns.copy_(share))
SLOTS_LEFT = LoadedPart(
    lambda scenario, round_, slots: scaled_clock(scenario, slots)[:, None, None, None]
)
DEVIATION = LoadedPart(
    lambda scenario, round_, slots: scaled_deviation(scenario, round_).T[None, :, :, None],
    gradient_aware=True,
)
ROUND = LoadedPart(
    lambda scenario, round_, slots: (round_.number / scenario.rounds)[None, None, :, None]
)
FINISHED = LoadedPart(_blank, _clients, _update_finished, told="finished")
OTHERS_FADING = LoadedPart(_others_fading, _everybodys_bands, told="fading")
SCHEDULE = LoadedPart(_schedule, width=lambda scenario: scenario.bands + 4)
RESERVATION = LoadedPart(
    _reservation, width=lambda scenario: 4 * scenario.bands + 4, update=_update_reservation
)
TIME_TO_FINISH = LoadedPart(
    _time_to_finish, update=lambda scenario, columns, share: columns.mul_(share)
)
ORDER = LoadedPart(_order, width=lambda scenario: 3 * scenario.clients + 1)
SLACK = LoadedPart(_slack, width=lambda scenario: 2, update=_update_slack)
FINISHED_ORDER = LoadedPart(_in_order, _clients, _update_finished_order, told="finished")
ORDER_FADING = LoadedPart(_order_fading, _everybodys_bands, told="fading")
READY = LoadedPart(_ready, width=lambda scenario: 1 + scenario.clients)
