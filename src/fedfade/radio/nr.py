"""The link of 5G NR: schemes, block errors, link adaptation, retransmissions.

A slot of a client carries one transport block. Its scheme is picked from the SINR the base station
knew, shifted by an outer loop; it is cut into code blocks (TS 38.212), and lost if one of them is.
Whatever is lost is sent again in the client's next slot and added to what was heard of it (chase
combining), so many times; then its bits wait for a block of their own.

    error of a code block   normal approximation (Polyanskiy et al. 2010) for the scheme's own
                            constellation, `gap_db` worse, or measured curves of transport blocks
    error after j copies    that of the sum of their SINRs: who failed at a sum fails below it, so
                            given a failure at s_(j-1), one at s_j has probability e(s_j)/e(s_(j-1))
    outer loop              the base station measures every slot it hears. So it knows how likely
                            its scheme was to fail, and moves by step (target - error)/(1 - target)

Where acknowledgements are drawn, a client's state is the loop's offset and the block that is to
be sent again: how often it was sent, row and rate of the scheme, SINR so far, and its luck, drawn
when it was begun: it gets through once its error is no greater. Where they are expected, the state
is the offset, how likely a block is begun in the next slot, and the blocks begun in the last R
slots, the last first: row and rate, SINR and error so far, how likely it was begun. That is exact:
a block that failed j times was begun j of the client's slots ago.
"""

import math
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfade.config import NrConfig, RadioConfig
from fedfade.errors import UserError, not_allowed
from fedfade.storage import read_json

Floats = NDArray[np.float64]
TABLES = {"64qam": "ts38214_v16_2_mcs_64qam", "256qam": "ts38214_v16_2_mcs_256qam"}
LOWEST_DB, HIGHEST_DB, STEP_DB = -25.0, 50.0, 0.02
"""SINRs at which errors are tabulated; below all schemes fail, above none does."""
_COARSE = 10  # information is computed at every tenth and interpolated, being smooth
_LN_PER_DB = math.log(10.0) / 10.0
_NEVER = 1e-9  # what is as rare counts as never: tiny numbers are slow
_OFFSET_DB = 30.0  # beyond which the outer loop does not go


class Scheme(NamedTuple):
    bits_per_symbol: int
    code_rate: float

    @property
    def efficiency(self) -> float:
        return self.bits_per_symbol * self.code_rate


def read_schemes(name: str) -> list[Scheme]:
    """The schemes of a built-in table or of a JSON file like one, by index.

    >>> read_schemes("64qam")[28].efficiency
    5.5546875
    """
    who = f"radio.nr.table = {name!r}"
    path: Any = Path(name)
    if name in TABLES:
        path = resources.files("fedfade.radio") / "tables" / f"{TABLES[name]}.json"
    elif not name.endswith(".json"):
        raise not_allowed("radio.nr.table", name, f"one of {', '.join(TABLES)}, or a .json file")
    found = read_json(path)
    rows = found.get("schemes") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{who} has no list 'schemes'.")
    schemes = []
    for place, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 3 and all(map(_is_number, row))):
            needed = "[index, bits_per_symbol, code_rate_x1024]"
            raise UserError(f"{who}: scheme {place} is {row!r}, which must be {needed}.")
        index, bits, rate = row
        if index != place:
            why = "indices must be 0, 1, 2, ... without holes"
            raise UserError(f"{who} has scheme {index} where {place} is expected: {why}.")
        if bits not in (2, 4, 6, 8, 10) or not 0 < rate < 1024:
            needed = "2, 4, 6, 8 or 10 bits per symbol and a rate between 0 and 1024"
            raise UserError(f"{who}: scheme {place} has {bits} and {rate}, which must be {needed}.")
        schemes.append(Scheme(int(bits), rate / 1024.0))
    return schemes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# --- block errors --------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def information(bits_per_symbol: int) -> tuple[Floats, Floats]:
    """Mean and variance, in bits, of what a symbol of square QAM tells through Gaussian noise (its
    information density), at the tabulated SINRs.

    Both dimensions of QAM are amplitudes of their own; the noise is integrated by Gauss-Hermite.
    """
    snr_db = grid_db()
    coarse = np.append(snr_db[::_COARSE], HIGHEST_DB)
    noise = np.sqrt(0.5) * 10.0 ** (-coarse / 20.0)  # standard deviation of a dimension
    amplitude = 2.0 * np.arange(2 ** (bits_per_symbol // 2))
    amplitude -= amplitude.mean()
    amplitude /= np.sqrt(2.0 * (amplitude**2).mean())  # half of the unit energy
    apart = (amplitude[:, None] - amplitude) / noise[:, None, None]  # [snr, sent, other]
    node, weight = np.polynomial.hermite_e.hermegauss(32)
    weight = weight / weight.sum()
    mean, square = np.zeros_like(coarse), np.zeros_like(coarse)
    for at, likely in zip(node, weight, strict=True):
        others = np.exp(-apart * (at + 0.5 * apart)).sum(
            -1
        )  # likelihoods, that of the sent being 1
        density = np.log2(len(amplitude)) - np.log2(others)  # [snr, sent]
        mean += likely * density.mean(-1)
        square += likely * (density**2).mean(-1)
    variance = np.maximum(square - mean**2, 0.0)
    return np.interp(snr_db, coarse, 2.0 * mean), np.interp(snr_db, coarse, 2.0 * variance)


def grid_db() -> Floats:
    """The tabulated SINRs."""
    places = np.arange(round((HIGHEST_DB - LOWEST_DB) / STEP_DB) + 1, dtype=np.float64)
    return LOWEST_DB + STEP_DB * places


def block_error(scheme: Scheme, symbols: float, block_bits: float, gap_db: float) -> Floats:
    """Probability that a transport block of so many symbols is lost, at the tabulated SINRs.

    It has as few code blocks of one size as keep each within `block_bits`.
    """
    blocks = max(1, math.ceil(symbols * scheme.efficiency / block_bits))
    length = symbols / blocks
    mean, variance = information(scheme.bits_per_symbol)
    spare = length * (mean - scheme.efficiency) + 0.5 * math.log2(length)
    deviations = spare / np.sqrt(np.maximum(length * variance, 1e-12))
    one = 0.5 * torch.special.erfc(torch.from_numpy(deviations * math.sqrt(0.5))).numpy()
    lost = -np.expm1(blocks * np.log1p(-np.minimum(one, 1.0 - 1e-15)))
    worse = np.interp(grid_db() - gap_db, grid_db(), lost)
    worse[0] = 1.0  # where nothing is heard
    return np.minimum.accumulate(worse)


def read_curves(path: str, schemes: int) -> Floats:
    """Measured errors of transport blocks: [scheme, tabulated SINR]."""
    who = f"radio.nr.curves = {path!r}"
    found = read_json(path)
    try:
        snr_db = np.asarray(found["snr_db"], dtype=np.float64)
        error = np.asarray(found["block_error"], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        needed = "lists of numbers 'snr_db' [snr] and 'block_error' [scheme, snr]"
        raise UserError(f"{who} must hold {needed}.") from None
    if snr_db.ndim != 1 or error.shape != (schemes, len(snr_db)):
        needed = f"[{schemes} schemes of radio.nr.table, {len(snr_db)} of snr_db]"
        raise UserError(
            f"{who} has 'block_error' of shape {list(error.shape)}: it must be {needed}."
        )
    if not (np.diff(snr_db) > 0).all() or not np.isfinite(snr_db).all():
        raise UserError(f"{who}: 'snr_db' must grow from entry to entry.")
    if not ((error >= 0) & (error <= 1)).all() or (np.diff(error) > 0).any():
        raise UserError(f"{who}: 'block_error' must lie between 0 and 1 and fall as the SNR grows.")
    curves = np.stack([np.interp(grid_db(), snr_db, one, left=1.0) for one in error])
    curves[:, 0] = 1.0
    return curves


# --- the link ------------------------------------------------------------------------------------


class Tables(NamedTuple):
    """What a slot looks up; SINRs in steps of the grid."""

    errors: Floats  # [scheme, snr]
    from_db: Floats  # [scheme - 1] known SINR from which a scheme, or a better one, is picked
    goodput: Floats  # [snr] bit/s/Hz where the SINR stays, without overhead


@lru_cache(maxsize=8)
def tables(nr: NrConfig, symbols: float) -> Tables:
    """Of the configuration, for blocks of so many symbols."""
    schemes = read_schemes(nr.table)
    if nr.curves is None:
        errors = np.stack([block_error(s, symbols, nr.block_bits, nr.gap_db) for s in schemes])
    else:
        errors = read_curves(nr.curves, len(schemes))
    errors[errors < _NEVER], errors[errors > 1.0 - _NEVER] = 0.0, 1.0
    # Goodput at an SINR that stays: blocks that get through by slots that a block takes.
    copies = nr.retransmissions + 1
    snr_db = grid_db()
    after = [snr_db + 10.0 * math.log10(j) for j in range(1, copies + 1)]
    failed = np.stack([[np.interp(at, snr_db, one) for at in after] for one in errors])
    slots = 1.0 + failed[:, :-1].sum(1)
    efficiency = np.array([scheme.efficiency for scheme in schemes])
    goodput = efficiency[:, None] * (1.0 - failed[:, -1]) / slots  # [scheme, snr]
    fits = errors <= nr.target_error
    fits[0] = True  # something has to be sent
    picked = np.where(fits, goodput, -1.0).argmax(0)
    picked = np.maximum.accumulate(picked)  # [snr]
    start = [np.searchsorted(picked, scheme) for scheme in range(1, len(schemes))]
    from_db = np.append(snr_db, math.inf)[start]
    best = np.maximum.accumulate(goodput[picked, np.arange(len(snr_db))])
    return Tables(errors, from_db, best)


class Nr:
    """Schemes of TS 38.214 with block errors and HARQ, for `radio.link: nr`."""

    adapts = True

    def __init__(self, radio: RadioConfig, device: torch.device) -> None:
        nr = radio.nr
        share = 1.0 - radio.link_overhead
        found = tables(nr, max(1.0, share * radio.bandwidth_hz * radio.slot_s))

        def tensor(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        size = found.errors.shape[1]
        self._errors = tensor(found.errors).flatten()  # [scheme x snr]
        self._goodput = tensor(found.goodput * share)
        self._least, self._most = 10.0 ** (LOWEST_DB / 10.0), 10.0 ** (HIGHEST_DB / 10.0)
        # Place of an SINR in a row of the table, the nearest: shift + scale ln SINR.
        self._scale, self._shift = 1.0 / (STEP_DB * _LN_PER_DB), 0.5 - LOWEST_DB / STEP_DB
        self._from = tensor(found.from_db * _LN_PER_DB)
        self._step = nr.step_db * _LN_PER_DB / (1.0 - nr.target_error)
        self._up = self._step * nr.target_error
        self._farthest = _OFFSET_DB * _LN_PER_DB
        # Of a block that is begun: place of 0 dB in the table, bit/s.
        schemes = read_schemes(nr.table)
        self._row = tensor([place * size + self._shift for place in range(len(schemes))])
        self._rate = tensor([share * radio.bandwidth_hz * one.efficiency for one in schemes])
        self._copies = nr.retransmissions
        self.draws = nr.feedback == "sampled"
        if self.draws:
            self.send, self.initial = self._drawn, torch.zeros(6)
        else:
            self.send, self.initial = self._expected, torch.zeros(2 + 5 * self._copies)
            self.initial[1] = 1.0
            self.initial[2::5] = self._shift  # a row of the table, though nothing is looked up

    def efficiency(self, ratio: Tensor) -> Tensor:
        place = ratio.clamp(self._least, self._most).log() * self._scale + self._shift
        return self._goodput[place.long()]

    def _picked(self, offset: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Row and rate of the scheme for the SINR that is known: [episode, client]."""
        scheme = torch.bucketize(known.log().add_(offset), self._from, right=True)
        return self._row.take(scheme), self._rate.take(scheme)

    def _error(self, row: Tensor, heard: Tensor) -> Tensor:
        """Of blocks at SINRs: the shape of both."""
        place = torch.add(row, heard.clamp(self._least, self._most).log_(), alpha=self._scale)
        return self._errors.take(place.long())

    def _moved(self, offset: Tensor, error: Tensor) -> Tensor:
        """The outer loop's offset after such errors of the schemes picked."""
        offset = torch.add(offset, error, alpha=-self._step).add_(self._up)
        return offset.clamp_(-self._farthest, self._farthest)

    # Clients' values are handled one kind at a time: on a GPU all of it becomes one kernel.

    def _drawn(
        self, state: Tensor, ratio: Tensor, known: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The block that waits is sent again, or a new one."""
        offset, sent, row, rate, heard, luck = state.unbind(-1)
        waits, sends = sent > 0, ratio > 0
        new_row, new_rate = self._picked(offset, known)
        row, rate = torch.where(waits, row, new_row), torch.where(waits, rate, new_rate)
        luck = torch.where(waits, luck, chance)
        heard = heard + ratio
        lost = self._error(row, heard) > luck
        moved = self._moved(offset, self._error(new_row, ratio))
        sent = sent + sends
        again = lost & (sent <= self._copies)  # who is silent: as before
        after = torch.where(sends, moved, offset), sent * again, row, rate, heard * again, luck
        return torch.stack(after).movedim(0, -1), rate.masked_fill(lost, 0.0)

    def _expected(
        self, state: Tensor, ratio: Tensor, known: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Every block that is under way is sent again, and a new one, as likely as each is."""
        state, copies = state.movedim(-1, 0), self._copies  # [width, episode, client]
        new_row, new_rate = self._picked(state[0], known)
        fresh = torch.stack([new_row, new_rate, torch.zeros_like(ratio), torch.ones_like(ratio)])
        blocks = torch.cat([fresh, state[1:]]).view(-1, 5, *ratio.shape)  # the new one first
        row, rate, heard, before, begun = blocks.unbind(1)  # [block, episode, client]
        heard.add_(ratio)
        error = self._error(row, heard)
        lost = begun * error
        through = (begun * before).sub_(lost)
        before.copy_(error)
        begins = 1.0 - lost[:copies].sum(0, keepdim=True)
        kept = blocks[:copies].flatten(0, 1)
        after = torch.cat([self._moved(state[:1], error[:1]), begins, kept])
        return torch.where(ratio > 0, after, state).movedim(0, -1), through.mul_(rate).sum(0)
