"""Centralised and exact: the sub-bands that carry the most bits together in this slot.

In a single-cell uplink where silence is allowed, the sum rate is convex in each client's
power, so some optimum uses only full power and silence (Inaltekin & Hanly, 2012). What is left
is who shares which sub-band: a best partition of clients, found in three steps.

1. Assignment with a certificate. A sub-band shared by clients whose strongest has received SNR
   P carries at most max(1, ln(1 + P)) nats (docs/policies.md has the proof), so sharing beats
   the best single client only where everybody is weaker than e - 1 (2.35 dB), and then stays
   below 1 nat. Give every sub-band an imaginary client worth 1 nat: if the best assignment
   does not use one, it is the optimum. Above about 10 dB this settles nearly every slot.
2. Otherwise, up to 12 clients: the value of every subset of clients on every sub-band, then a
   max-plus subset convolution over sub-bands, 3^N steps each. Exact.
3. Otherwise: local search from the assignment, moving one client at a time while the sum
   grows. A lower bound; the gap to the certificate's upper bound is measured in the docs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fedfade.allocation.assignment import assign
from fedfade.allocation.policy import Scope, View, full_power
from fedfade.errors import not_allowed
from fedfade.radio.link import sinr
from fedfade.uplink import Action

EXACT_CLIENTS = 12
_BLOCK = 64
"""Slots solved at a time in step 2: their tables stay in the processor's cache."""


def max_sum_rate(received_power: Tensor, noise: float) -> Tensor:
    """Sub-band of every client for the greatest sum rate, -1 for silence: [..., client].

    `received_power` [..., client, band] is what arrives at full power; clients that are done
    have 0 and stay silent. Exact for up to 12 clients and any number of sub-bands.

    >>> strong, weak = [8.0, 6.0], [7.0, 1.0]
    >>> max_sum_rate(torch.tensor([strong, weak]), noise=1.0)
    tensor([1, 0])
    """
    if received_power.ndim < 2 or min(received_power.shape[-2:]) < 1:
        raise not_allowed(
            "received_power", list(received_power.shape), "of shape [..., client, band]"
        )
    if not noise > 0:
        raise not_allowed("noise", noise, "greater than 0")
    clients, bands = received_power.shape[-2:]
    snr = (received_power / noise).reshape(-1, clients, bands)
    single = torch.log1p(snr)
    imaginary = torch.eye(bands, dtype=snr.dtype, device=snr.device).log() + 1.0  # 1 or -inf
    imaginary = imaginary.clamp(min=-1e9).expand(len(snr), bands, bands)
    band, _ = assign(torch.cat([single, imaginary], dim=-2))
    open_ = (band[:, clients:] >= 0).any(-1)  # the certificate fails: sharing might pay
    band = band[:, :clients]
    if open_.any():
        solve = _subset_convolution if clients <= EXACT_CLIENTS else _local_search
        band[open_] = solve(snr[open_])
    used = snr.gather(-1, band.clamp(min=0)[..., None]).squeeze(-1) > 0
    band = torch.where(used, band, -1)
    return band.reshape(received_power.shape[:-1])


def sum_rate_nats(snr: Tensor, band: Tensor) -> Tensor:
    """Sum over clients of ln(1 + SINR) for a given choice (-1: silent): [...]."""
    gain = snr.expand(*band.shape, snr.shape[-1])
    return torch.log1p(sinr(gain, band.clamp(min=0), (band >= 0).to(snr.dtype), 1.0)).sum(-1)


# --- step 2: subset convolution --------------------------------------------------------------
#
# Tables are [subset, batch]: a subset's number has bit n set when client n is in it, and the
# batch lies innermost so that looking up subsets copies whole rows.


@lru_cache(maxsize=8)
def _disjoint_pairs(count: int, device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
    """All pairs of disjoint subsets of `count` clients, by union: firsts, seconds, group sizes."""
    first, second, sizes = [], [], []
    for union in range(1 << count):
        parts = [part for part in range(union + 1) if part & union == part]
        first += parts
        second += [union ^ part for part in parts]
        sizes.append(len(parts))
    return torch.tensor(first, device=device), torch.tensor(second, device=device), sizes


def _halves(table: Tensor, client: int) -> tuple[Tensor, Tensor]:
    """Views of a table's subsets without and with a client, in corresponding order."""
    split = table.view(-1, 2, 1 << client, *table.shape[1:])
    return split[:, 0], split[:, 1]


def _subset_values(snr: Tensor) -> Tensor:
    """Nats one sub-band carries for every subset sharing it; snr [client, batch].

    A client's ln(1 + SINR) is ln(T of the subset) - ln(T without it), T being noise plus all
    that is heard: differences of a table, and no cancellation when one signal is strong.
    """
    clients, batch = snr.shape
    total = snr.new_zeros(1 << clients, batch)
    for client in range(clients):
        _, with_ = _halves(total, client)
        with_ += snr[client]
    total = torch.log1p(total)
    value = torch.zeros_like(total)
    for client in range(clients):
        less, more = _halves(total, client)
        _halves(value, client)[1].add_(more).sub_(less)
    return value


def _allow_silence(value: Tensor, clients: int) -> Tensor:
    """The most any part of each subset carries, the rest being silent."""
    best = value.clone()
    for client in range(clients):
        less, more = _halves(best, client)
        torch.maximum(less, more, out=more)
    return best


def _max_plus(one: Tensor, other: Tensor, clients: int) -> Tensor:
    """The most two sides carry for each subset S: max over A within S of one[A] + other[S - A].

    Clients are split in halves. For the upper half all 3^(N/2) pairs of disjoint subsets lie side
    by side; the lower half's are gone through one by one, each a single operation on them all.
    """
    low = clients // 2
    first, second, sizes = _disjoint_pairs(clients - low, one.device)
    shape = (1 << (clients - low), 1 << low, one.shape[1])
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
    unions = [pairs.amax(1) for pairs in torch.split(best, sizes, dim=1)]
    return torch.stack(unions).view(-1, one.shape[1])


def _best_within(score: Tensor, allowed: Tensor) -> Tensor:
    """The best subset that uses only allowed clients: [batch]; score [subset, batch]."""
    subset = torch.arange(len(score), device=score.device)[:, None]
    return score.masked_fill((subset & ~allowed) != 0, -torch.inf).argmax(0)


def _subset_convolution(snr: Tensor) -> Tensor:
    """Exact sub-bands by dynamic programming over sub-bands: [batch, client]."""
    return torch.cat([_convolve(part) for part in torch.split(snr, _BLOCK)])


def _convolve(snr: Tensor) -> Tensor:
    batch, clients, bands = snr.shape
    value = [_subset_values(snr[:, :, band].T.contiguous()) for band in range(bands)]
    reach = [_allow_silence(table, clients) for table in value]
    prefix = [reach[0]]  # the most the first sub-bands carry together
    for band in range(1, bands - 1):
        prefix.append(_max_plus(prefix[-1], reach[band], clients))
    # Backwards: the last sub-band's clients, then those of the one before among the rest. The
    # last step needs no table of its own: silence is allowed, so all clients may be handed out.
    subset = torch.arange(1 << clients, device=snr.device)[:, None]
    left = torch.full((batch,), (1 << clients) - 1, device=snr.device)
    answer = torch.full((batch, clients), -1, dtype=torch.int64, device=snr.device)
    for band in range(bands - 1, -1, -1):
        earlier = torch.zeros_like(left)
        if band > 0:
            rest = (left & ~subset).expand(-1, batch)
            earlier = _best_within(prefix[band - 1] + reach[band].gather(0, rest), left)
        sharing = _best_within(value[band], left & ~earlier)
        member = (sharing[:, None] >> torch.arange(clients, device=snr.device)) & 1
        answer[member.bool()] = band
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
    """The greatest sum rate in every slot (the paper's centralised baseline, made exact)."""

    name = "max-sum-rate"
    scope: Scope = "central"
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """Clients that are done have nothing to send and count as silent."""
        return full_power(view, max_sum_rate(view.received_snr * view.active[..., None], 1.0))
