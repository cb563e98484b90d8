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
"""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.policy import Scope, View, full_power
from fedfade.device import spare_bytes
from fedfade.errors import not_allowed
from fedfade.radio import sinr
from fedfade.uplink import Action

EXACT_CLIENTS = 12
_CPU_SLOTS = 64  # solved at a time in step 2 on the CPU: their tables stay in its cache
_GPU_SHARE = 0.05  # of a GPU's free memory, for the tables of step 2
_LOOPED_ON_GPU = 3
_MOVES = 1 << 25  # values worked on at a time in step 3


def max_sum_rate(received_power: Tensor | ArrayLike, noise: float) -> Tensor:
    """Sub-band of every client for the greatest sum rate, -1 for silence: [..., client].

    `received_power` [..., client, band] is what arrives at full power, as a tensor, an array or
    nested lists; clients that are done have 0 and stay silent. Exact for up to 12 clients and any
    number of sub-bands.

    >>> strong, weak = [8.0, 6.0], [7.0, 1.0]
    >>> max_sum_rate(torch.tensor([strong, weak]), noise=1.0)
    tensor([1, 0])
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


def _best_bands(snr: Tensor) -> Tensor:
    """`max_sum_rate` of received power over noise: [..., client, band] -> [..., client]."""
    shape = snr.shape
    clients, bands = shape[-2:]
    snr = snr.reshape(-1, clients, bands)
    single = torch.log1p(snr)
    imaginary = torch.eye(bands, dtype=snr.dtype, device=snr.device).log() + 1.0  # 1 or -inf
    imaginary = imaginary.clamp(min=-1e9).expand(len(snr), bands, bands)
    band, _ = assign(torch.cat([single, imaginary], dim=-2))
    # Where the certificate fails sharing might pay. Asking for the places waits for a GPU, once.
    open_ = (band[:, clients:] >= 0).any(-1).nonzero().squeeze(-1)
    band = band[:, :clients]
    if len(open_):
        if clients <= EXACT_CLIENTS:
            solve, size = _subset_convolution, _slots_at_a_time(clients, bands, snr.device)
        else:
            solve, size = _local_search, max(1, _MOVES // (clients**3 * (bands + 1)))
        parts = torch.split(snr.index_select(0, open_), size)
        band = band.index_copy(0, open_, torch.cat([solve(part) for part in parts]))
    used = snr.gather(-1, band.clamp(min=0)[..., None]).squeeze(-1) > 0
    band = torch.where(used, band, -1)
    return band.reshape(shape[:-1])


def sum_rate_nats(snr: Tensor, band: Tensor) -> Tensor:
    """Sum over clients of ln(1 + SINR) for a given choice (-1: silent): [...]."""
    gain = snr.expand(*band.shape, snr.shape[-1])
    return torch.log1p(sinr(gain, band.clamp(min=0), (band >= 0).to(snr.dtype), 1.0)).sum(-1)


# --- step 2: subset convolution --------------------------------------------------------------
#
# Tables are [subset, batch]: a subset's number has bit n set when client n is in it, and the
# batch lies innermost so that looking up subsets copies whole rows.


class _Pairs(NamedTuple):
    """All pairs of disjoint subsets of some clients, those with as large a union together."""

    first: Tensor
    second: Tensor
    sizes: list[int]  # pairs of unions with 0, 1, 2, ... clients; a union of k has 2^k pairs
    order: Tensor  # place of every union among the unions so ordered


@lru_cache(maxsize=8)
def _disjoint_pairs(count: int, device: torch.device) -> _Pairs:
    unions = sorted(range(1 << count), key=int.bit_count)
    first, second, sizes = [], [], [0] * (count + 1)
    for union in unions:
        parts = [part for part in range(union + 1) if part & union == part]
        first += parts
        second += [union ^ part for part in parts]
        sizes[union.bit_count()] += len(parts)
    order = torch.tensor(unions).argsort().to(device)
    return _Pairs(
        torch.tensor(first, device=device), torch.tensor(second, device=device), sizes, order
    )


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
    total = torch.log1p(total)
    value = torch.zeros_like(total)
    for client in range(clients):
        less, more = _halves(total, client)
        _halves(value, client)[1].add_(more).sub_(less)
    return value


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
    pairs = _disjoint_pairs(clients - low, one.device)
    shape = (1 << (clients - low), 1 << low, batch)
    left = one.view(shape).transpose(0, 1).index_select(1, pairs.first)  # [lower, pair, batch]
    right = other.view(shape).transpose(0, 1).index_select(1, pairs.second)
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
        for members, group in enumerate(torch.split(best, pairs.sizes, dim=1))
    ]
    return torch.cat(unions, dim=1).index_select(1, pairs.order).transpose(0, 1).reshape(-1, batch)


def _best_within(score: Tensor, allowed: Tensor) -> Tensor:
    """The best subset that uses only allowed clients: [batch]; score [subset, batch]."""
    subset = torch.arange(len(score), device=score.device)[:, None]
    return score.masked_fill((subset & ~allowed) != 0, -torch.inf).argmax(0)


@cache
def _slots_at_a_time(clients: int, bands: int, device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_SLOTS
    low = _looped(clients, device)
    floats: int = 4 * 3 ** (clients - low) * 2**low + (3 * bands + 6) * 2**clients
    return max(_CPU_SLOTS, spare_bytes(device, _GPU_SHARE, 0) // (4 * floats))


def _subset_convolution(snr: Tensor) -> Tensor:
    """Exact sub-bands by dynamic programming over sub-bands: [batch, client]."""
    batch, clients, bands = snr.shape
    # All sub-bands at once; tables are [subset, band, batch].
    value = _subset_values(snr.permute(1, 2, 0).contiguous())
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
    return answer


# --- step 3: local search ---------------------------------------------------------------------


def _local_search(snr: Tensor) -> Tensor:
    """Best-improvement moves of one client at a time, from the plain assignment."""
    clients, bands = snr.shape[-2:]
    band, _ = assign(torch.log1p(snr))
    value = sum_rate_nats(snr, band)
    while True:
        moves = band[:, None, None, :].repeat(1, clients, bands + 1, 1)
        for client in range(clients):
            moves[:, client, :, client] = torch.arange(-1, bands, device=snr.device)
        rate = sum_rate_nats(snr[:, None, None], moves)  # [batch, client moved, new band]
        top, index = rate.flatten(1).max(-1)
        better = top > value * (1 + 1e-6) + 1e-9
        if not better.any():
            return band
        picked = moves.flatten(1, 2)[torch.arange(len(band)), index]
        band = torch.where(better[:, None], picked, band)
        value = torch.where(better, top, value)


class MaxSumRate:
    """The greatest sum rate in every slot (paper: section V-B), exact where that is possible."""

    name = "max-sum-rate"
    scope: Scope = "central"
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """Clients that are done have nothing to send and count as silent."""
        return full_power(view, _best_bands(view.received_snr * view.active[..., None]))
