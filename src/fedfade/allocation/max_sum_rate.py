"""Centralised and exact: the sub-bands that carry the most bits together in this slot.

In a single-cell uplink where silence is allowed, the sum rate is convex in each client's
power, so some optimum uses only full power and silence (Inaltekin & Hanly, 2012). What is left
is who shares which sub-band: a best partition of clients, found in three steps.

1. Assignment with a certificate. A sub-band shared by clients whose strongest has received SNR
   P carries at most max(1, ln(1 + P)) nats (docs/explanation/policies.md has the proof), so
   sharing beats the best single client only where everybody is weaker than e - 1 (2.35 dB), and
   then stays below 1 nat. Give every sub-band an imaginary client worth 1 nat: if the best
   assignment does not use one, it is the optimum. Above about 10 dB this settles nearly every
   slot.
2. Otherwise, up to 12 clients: the value of every subset of clients on every sub-band, then a
   max-plus subset convolution over sub-bands, 3^N steps each. Exact.
3. Otherwise: local search from the assignment, moving one client at a time while the sum
   grows. A lower bound; the gap to the certificate's upper bound is measured in the docs.

With several antennas sharing pays at any SNR, so there is no step 1, and full power or silence is
no longer known to be enough. Steps 2 and 3 are the same with other values of subsets: exact among
choices of full power or silence up to 12 clients, a local optimum of these beyond.

All this is for Shannon's rates. Under another link and one antenna, clients are matched to
sub-bands for the greatest sum of what the link is expected to carry: exact among choices in which
nobody shares. With several antennas Shannon's rates stand for the link's.
"""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.policy import BuiltInPolicy, View, full_power
from fedfade.device import spare_bytes
from fedfade.errors import not_allowed
from fedfade.radio import coupling, sinr
from fedfade.uplink import Action

EXACT_CLIENTS = 12
_CPU_SLOTS = 64  # solved at a time in step 2 on the CPU: their tables stay in its cache
_GPU_SHARE = 0.05  # of a GPU's free memory, for the tables of step 2
_LOOPED_ON_GPU = 3
_MOVES = 1 << 25  # values worked on at a time in step 3


class Antennas(NamedTuple):
    """How several antennas hear the clients."""

    direction: Tensor  # [slot, client, band, antenna, 2] unit vectors in real and imaginary parts
    receiver: str  # mrc or mmse

    def of(self, slots: Tensor) -> "Antennas":
        return Antennas(self.direction[slots], self.receiver)


def max_sum_rate(received_power: Tensor | ArrayLike, noise: float) -> Tensor:
    """Sub-band of every client for the greatest sum rate, -1 for silence: [..., client].

    `received_power` [..., client, band] is what arrives at full power, as a tensor, an array or
    nested lists; clients that are done have 0 and stay silent. Exact for up to 12 clients and any
    number of sub-bands.
    """
    received = _as_tensor(received_power)
    try:
        level = float(noise)
    except (TypeError, ValueError, OverflowError):
        level = math.nan
    if not 0 < level < math.inf:
        raise not_allowed("noise", noise, "a finite number greater than 0")
    snr = received / level
    # Looking at values waits for a GPU, so the policy, which knows its own, goes past this.
    if snr.numel() and not _all_finite(snr):
        if _all_finite(received):
            raise not_allowed("noise", noise, "enough for received_power / noise to be finite")
        low, high = map(float, received.aminmax())
        wrong = low if low < 0 else high
        raise not_allowed("received_power", wrong, "finite and at least 0 everywhere")
    return _best_bands(snr)


def _all_finite(power: Tensor) -> bool:
    low, high = map(float, power.aminmax())  # both NaN where there is one
    return 0 <= low <= high < math.inf


def _as_tensor(given: Tensor | ArrayLike) -> Tensor:
    """Real numbers [..., client, band]."""
    try:
        # A copy: PyTorch takes no array with negative strides and warns of one it may not write.
        power = torch.as_tensor(given.copy() if isinstance(given, np.ndarray) else given)
    except (TypeError, ValueError, RuntimeError):
        raise not_allowed("received_power", given, "numbers [..., client, band]") from None
    if power.ndim < 2 or min(power.shape[-2:]) < 1:
        raise not_allowed("received_power", list(power.shape), "of shape [..., client, band]")
    if power.is_complex():
        raise not_allowed("received_power", power.dtype, "real numbers")
    return power


def _best_bands(snr: Tensor, antennas: Antennas | None = None) -> Tensor:
    """`max_sum_rate` of received power over noise: [..., client, band] -> [..., client]."""
    *batch, clients, bands = snr.shape
    if antennas is not None:
        return _searched(snr, antennas)
    snr = snr.reshape(-1, clients, bands)
    imaginary = torch.eye(bands, dtype=snr.dtype, device=snr.device).log() + 1.0  # 1 or -inf
    imaginary = imaginary.clamp(min=-1e9).expand(len(snr), bands, bands)
    band, _ = assign(torch.cat([torch.log1p(snr), imaginary], dim=-2))
    # Where the certificate fails sharing might pay. Asking for the places waits for a GPU, once.
    open_ = (band[:, clients:] >= 0).any(-1).nonzero().squeeze(-1)
    band = band[:, :clients]
    if len(open_):
        band = band.index_copy(0, open_, _searched(snr.index_select(0, open_)))
    used = snr.gather(-1, band.clamp(min=0)[..., None]).squeeze(-1) > 0
    return torch.where(used, band, -1).reshape(*batch, clients)


def _searched(snr: Tensor, antennas: Antennas | None = None) -> Tensor:
    """Steps 2 and 3: [slot, client, band] -> [slot, client].

    Clients that are done drop out first, which changes no answer: their subsets and moves would be
    those of the others over and over. Slots with about as many left are solved together.
    """
    clients, bands = snr.shape[1:]
    exact, half = clients <= EXACT_CLIENTS, (clients + 1) // 2
    left = (snr > 0).any(-1)
    counts, order = left.sum(-1).sort(descending=True, stable=True)
    # Two sizes of table are enough; of one's own count alone, so that no tie hangs on the company.
    sizes = [n and (half if n <= half else clients) if exact else n for n in counts.tolist()]
    answer = torch.full(snr.shape[:2], -1, device=snr.device)
    first = 0
    while first < len(sizes) and (most := sizes[first]):
        if exact:
            solve, alike = _subset_convolution, sizes[first:].count(most)
            size = min(alike, _slots_at_a_time(most, bands, snr.device, antennas is not None))
        else:
            each = 1 if antennas is None else 16 * antennas.direction.shape[-2] ** 2
            size = max(1, _MOVES // (most**2 * clients * (bands + 1) * each))
            solve = _local_search
        slots = order[first : first + size]
        # Their numbers, and those of some who are done, where fewer than `most` are left.
        who = left[slots].byte().argsort(descending=True, stable=True)[:, :most].sort(-1).values
        answer[slots] = solve(snr[slots], who, antennas and antennas.of(slots))
        first += size
    return answer


def sum_rate_nats(snr: Tensor, band: Tensor, antennas: Antennas | None = None) -> Tensor:
    """Sum over clients of ln(1 + SINR) for a given choice (-1: silent): [...]."""
    gain, power = snr.expand(*band.shape, snr.shape[-1]), (band >= 0).to(snr.dtype)
    direction, receiver = antennas or (None, "mmse")
    if direction is not None:
        direction = direction.expand(*gain.shape, -1, -1)
    ratio = sinr(gain, band.clamp(min=0), power, 1.0, direction, receiver)
    return torch.log1p(ratio).sum(-1)


# --- step 2: subset convolution --------------------------------------------------------------
#
# Tables are [subset, batch]: a subset's number has bit n set when client n is in it, and the
# batch lies innermost so that looking up subsets copies whole rows.


@lru_cache(maxsize=8)
def _disjoint_pairs(count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """All pairs of disjoint subsets of some clients, those with as large a union together.

    First and second of each pair; the place of every union among the unions so ordered; how many
    pairs have a union of 0, 1, 2, ... clients (a union of k has 2^k pairs).
    """
    unions = sorted(range(1 << count), key=int.bit_count)
    first, second, sizes = [], [], [0] * (count + 1)
    for union in unions:
        parts = [part for part in range(union + 1) if part & union == part]
        first += parts
        second += [union ^ part for part in parts]
        sizes[union.bit_count()] += len(parts)
    tensors = torch.tensor(first), torch.tensor(second), torch.tensor(unions).argsort()
    one, other, order = (tensor.to(device) for tensor in tensors)
    return one, other, order, sizes


def _halves(table: Tensor, client: int) -> tuple[Tensor, Tensor]:
    """Views of a table's subsets without and with a client, in corresponding order."""
    split = table.view(-1, 2, 1 << client, *table.shape[1:])
    return split[:, 0], split[:, 1]


def _subset_values(snr: Tensor) -> Tensor:
    """Nats one sub-band carries for every subset sharing it: [client, ...] -> [subset, ...].

    A client's ln(1 + SINR) is ln(T of the subset) - ln(T without it), T being noise plus all
    that is heard: differences of a table, and no cancellation when one signal is strong.
    """
    clients = len(snr)
    total = snr.new_zeros(1 << clients, *snr.shape[1:])
    for client in range(clients):
        _halves(total, client)[1].add_(snr[client])
    return _sum_of_differences(torch.log1p(total), clients)


def _sum_of_differences(total: Tensor, clients: int) -> Tensor:
    """Over the clients of every subset, what each adds to it: tables [subset, ...]."""
    value = torch.zeros_like(total)
    for client in range(clients):
        less, more = _halves(total, client)
        _halves(value, client)[1].add_(more).sub_(less)
    return value


def _array_values(snr: Tensor, antennas: Antennas) -> Tensor:
    """`_subset_values` of several antennas: [batch, client, band] -> [subset, band, batch].

    Under MMSE, 1 + SINR = det(I + A of the subset) / det(I + A without the client), where A holds
    the inner products of what arrives: differences of a table once more.
    """
    clients = snr.shape[1]
    snr, unit = snr.transpose(1, 2), antennas.direction.transpose(1, 2)  # [batch, band, client]
    if antennas.receiver == "mmse":
        arrives = torch.view_as_complex((unit * snr.sqrt()[..., None, None]).double())
        total = _log_determinants(arrives.conj() @ arrives.mT)  # [subset, batch, band]
        return _sum_of_differences(total, clients).mT.to(snr.dtype).contiguous()
    heard = coupling(unit.flatten(-2)) * snr[..., None, :]  # [batch, band, client, other]
    heard = heard.masked_fill(torch.eye(clients, dtype=torch.bool, device=snr.device), 0.0)
    others = snr.new_zeros(1 << clients, *snr.shape)
    for client in range(clients):
        _halves(others, client)[1].add_(heard[..., client])
    subset, number = (torch.arange(n, device=snr.device) for n in (1 << clients, clients))
    member = (subset[:, None] >> number & 1)[:, None, None]  # [subset, 1, 1, client]
    return (torch.log1p(snr / (1.0 + others)) * member).sum(-1).mT.contiguous()


def _log_determinants(gram: Tensor) -> Tensor:
    """ln det(I + A) of every subset's rows and columns of A [..., client, client]: [subset, ...].

    Client after client is left out, or eliminated: what remains of the others' matrix then is
    its Schur complement, and the pivot is a factor of the determinant.
    """
    rest = gram[None] + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    total = rest.real.new_zeros(rest.shape[:-2])
    for _ in range(gram.shape[-1]):
        pivot, column = rest[..., 0, 0].real, rest[..., 1:, 0]
        without = rest[..., 1:, 1:]
        heard = column.unsqueeze(-1) * (column.conj() / pivot.unsqueeze(-1)).unsqueeze(-2)
        total = torch.cat([total, total + pivot.log()])
        rest = torch.cat([without, without - heard])
    return total


def _looped(clients: int, device: torch.device) -> int:
    """Clients whose subsets are gone through one by one; on a GPU each one is two launches."""
    return clients // 2 if device.type == "cpu" else min(_LOOPED_ON_GPU, clients // 2)


def _max_plus(one: Tensor, other: Tensor, clients: int) -> Tensor:
    """The most two sides carry for each subset S: max over A within S of one[A] + other[S - A].

    Clients are split in two. For the upper ones all pairs of disjoint subsets lie side by side;
    the lower ones' are gone through one by one, each a single operation on them all.
    """
    batch = one.shape[1]
    low = _looped(clients, one.device)
    first, second, order, sizes = _disjoint_pairs(clients - low, one.device)
    shape = (1 << (clients - low), 1 << low, batch)
    left = one.view(shape).transpose(0, 1).index_select(1, first)  # [lower, pair, batch]
    right = other.view(shape).transpose(0, 1).index_select(1, second)
    best, sum_ = torch.empty_like(left), torch.empty_like(left[0])
    for whole in range(1 << low):
        torch.add(left[0], right[whole], out=best[whole])
        part = whole
        while part:
            torch.add(left[part], right[whole ^ part], out=sum_)
            torch.maximum(best[whole], sum_, out=best[whole])
            part = (part - 1) & whole
    unions = [
        group.view(1 << low, -1, 1 << members, batch).amax(2)
        for members, group in enumerate(torch.split(best, sizes, dim=1))
    ]
    return torch.cat(unions, dim=1).index_select(1, order).transpose(0, 1).reshape(-1, batch)


def _best_within(score: Tensor, allowed: Tensor) -> Tensor:
    """The best subset that uses only allowed clients: [batch]; score [subset, batch]."""
    subset = torch.arange(len(score), device=score.device)[:, None]
    return score.masked_fill((subset & ~allowed) != 0, -torch.inf).argmax(0)


@cache
def _slots_at_a_time(clients: int, bands: int, device: torch.device, array: bool) -> int:
    if device.type == "cpu":
        return _CPU_SLOTS
    low = _looped(clients, device)
    tables = 3 * bands + 6 + array * bands * max(20, 3 * clients)
    floats: int = 4 * 3 ** (clients - low) * 2**low + tables * 2**clients
    return max(_CPU_SLOTS, spare_bytes(device, _GPU_SHARE, 0) // (4 * floats))


def _subset_convolution(snr: Tensor, who: Tensor, antennas: Antennas | None = None) -> Tensor:
    """Exact sub-bands of clients `who` [batch, left] by dynamic programming over sub-bands; others
    are silent: [batch, client]."""
    whole = snr.shape[:2]
    snr = snr.gather(1, who[..., None].expand(-1, -1, snr.shape[-1]))
    batch, clients, bands = snr.shape
    # All sub-bands at once; tables are [subset, band, batch].
    if antennas is None:
        value = _subset_values(snr.permute(1, 2, 0).contiguous())
    else:
        episode = torch.arange(batch, device=snr.device)[:, None]
        value = _array_values(snr, Antennas(antennas.direction[episode, who], antennas.receiver))
    reach = value.clone()  # the most any part of each subset carries, the rest being silent
    for client in range(clients):
        less, more = _halves(reach, client)
        torch.maximum(less, more, out=more)
    prefix = [reach[:, 0]]  # the most the first sub-bands carry together
    for band in range(1, bands - 1):
        prefix.append(_max_plus(prefix[-1], reach[:, band], clients))
    # Backwards: the last sub-band's clients, then those of the one before among the rest. The
    # last step needs no table of its own: silence is allowed, so all clients may be handed out.
    subset = torch.arange(1 << clients, device=snr.device)[:, None]
    left = torch.full((batch,), (1 << clients) - 1, device=snr.device)
    answer = torch.full((batch, clients), -1, dtype=torch.int64, device=snr.device)
    for band in range(bands - 1, -1, -1):
        earlier = torch.zeros_like(left)
        if band > 0:
            rest = (left & ~subset).expand(-1, batch)
            earlier = _best_within(prefix[band - 1] + reach[:, band].gather(0, rest), left)
        sharing = _best_within(value[:, band], left & ~earlier)
        member = (sharing[:, None] >> torch.arange(clients, device=snr.device)) & 1
        answer = torch.where(member.bool(), band, answer)
        left = earlier
    return who.new_full(whole, -1).scatter(1, who, answer)


# --- step 3: local search ---------------------------------------------------------------------


def _local_search(snr: Tensor, who: Tensor, antennas: Antennas | None = None) -> Tensor:
    """Best-improvement moves of one client among `who` [batch, left] at a time, from the plain
    assignment: [batch, client]."""
    bands = snr.shape[-1]
    band, _ = assign(torch.log1p(snr))
    value = sum_rate_nats(snr, band, antennas)
    mover = who[:, :, None, None].expand(-1, -1, bands + 1, 1)
    choice = torch.arange(-1, bands, device=snr.device)[:, None].expand(mover.shape)
    while True:
        moves = band[:, None, None].expand(*mover.shape[:3], -1).scatter(-1, mover, choice)
        if antennas is None:
            rate = _sum_rate_of(who, snr, moves)  # [batch, client moved, new band]
        else:
            alike = Antennas(antennas.direction[:, None, None], antennas.receiver)
            rate = sum_rate_nats(snr[:, None, None], moves, alike)
        top, index = rate.flatten(1).max(-1)
        better = top > value * (1 + 1e-6) + 1e-9
        if not better.any():
            return band
        picked = moves.flatten(1, 2)[torch.arange(len(band)), index]
        band = torch.where(better[:, None], picked, band)
        value = torch.where(better, top, value)


def _sum_rate_of(who: Tensor, snr: Tensor, moves: Tensor) -> Tensor:
    """`sum_rate_nats` of moves [batch, ..., client] where all but `who` [batch, left] are done.

    Sums are over all clients, with a 0 for each that is done: rounded like those of everybody.
    """
    batch, between = len(snr), (1,) * (moves.ndim - 2)
    some = who.view(batch, *between, -1).expand(*moves.shape[:-1], -1)
    signal = snr.view(batch, *between, *snr.shape[1:]).expand(*moves.shape, -1)
    heard = signal.gather(-1, moves.clamp(min=0)[..., None]).squeeze(-1) * (moves >= 0)
    together = moves.gather(-1, some)[..., None] == moves[..., None, :]  # [..., left, client]
    oneself = some[..., None] == torch.arange(snr.shape[1], device=snr.device)
    others = torch.where(together & ~oneself, heard[..., None, :], 0.0).sum(-1)
    rate = torch.log1p(heard.gather(-1, some) / (others + 1.0))
    return torch.zeros_like(heard).scatter(-1, some, rate).sum(-1)


class MaxSumRate(BuiltInPolicy):
    """The greatest sum rate in every slot (paper: section V-B), exact where that is possible.

    Other cells are taken at their mean level: what they send in this slot is not known yet.
    """

    name = "max-sum-rate"
    scope = "central"

    def act(self, view: View, memory: None) -> Action:
        # Clients that are done, or not ready, have nothing to send and count as silent.
        snr, antennas = view.received_snr * view.can_send[..., None], None
        link = view.scenario.link
        if view.direction is not None:
            antennas = Antennas(view.direction, view.scenario.receiver)
        elif link.name != "shannon":
            band, _ = assign(link.efficiency(snr))
            return full_power(view, band.masked_fill(~view.can_send, -1))
        return full_power(view, _best_bands(snr, antennas))
