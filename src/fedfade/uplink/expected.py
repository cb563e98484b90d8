"""What a link that adapts is expected to carry: the link itself, played over fading of this kind.

A scheme picked from an older SINR fits the slot it is sent in more or less well, depending on how
fast the channel changes, and no formula of the mean SNR knows that. Everybody can work this table
out before the first round: it needs the configuration alone, and no client's fading.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedfade.config import CellConfig, Config, RadioConfig
from fedfade.radio import Cell, Channel, OtherCells, db_to_linear, load_link, noise_w
from fedfade.randomness import fold, stream, uniform

LOWEST_DB, STEP_DB, POINTS = -20.0, 2.0, 36
"""Mean SNRs of the table, from -20 to 50 dB."""
_DROPS = 32  # client-rounds it is played over, at least: errors of a mean rate below 1 %


def rate_table(config: Config) -> Tensor:
    """Mean bit/s/Hz of a client alone on the best of 1, 2, ... sub-bands: [choices, mean SNR]."""
    radio, cell = config.radio.model_dump_json(), config.cell.model_dump_json()
    return _played(radio, cell, config.learning.clients)


@lru_cache(maxsize=16)
@torch.no_grad()
def _played(radio_text: str, cell_text: str, clients: int) -> Tensor:
    radio = RadioConfig.model_validate_json(radio_text)
    cell = CellConfig.model_validate_json(cell_text)
    seed = stream(0, "expected rates") & (2**31 - 1)
    walk = Cell(cell, radio, clients).trajectory([seed], rounds=1)
    rounds = range(-(-_DROPS // clients))
    gain = Channel(radio, cell, clients).small_scale_gain([seed], 0, rounds, walk)[0]
    if cell.interference_cells:  # its level about the mean that is announced
        others = OtherCells(cell, radio, clients).levels_w([seed], [seed], [0], rounds)[0, 0]
        level = torch.log(1.0 + others / noise_w(radio))  # [episode, slot, band]
        gain = gain / torch.exp(level - level.mean())[:, :, None]
    gain = gain.transpose(0, 1).flatten(1, 2) / radio.receive_antennas  # [slot, drop, band]
    now, known = _of_best(gain, radio.link_delay_slots)  # [slot, choices x drop]
    link, bands, drops = load_link(radio), radio.subbands, gain.shape[1]
    snr = db_to_linear(LOWEST_DB + STEP_DB * torch.arange(POINTS))[:, None]
    state = link.initial.expand(POINTS, bands * drops, -1)
    keys, total = fold(seed, torch.arange(radio.slots)), torch.zeros(POINTS, bands * drops)
    for slot in range(radio.slots):
        chance = uniform(keys[slot], (POINTS, bands * drops) if link.draws else (POINTS, 0))
        state, rate = link.send(state, snr * now[slot], snr * known[slot], chance)
        total += rate
    mean = total.view(POINTS, bands, drops).mean(-1).T / (radio.slots * radio.bandwidth_hz)
    # Draws must not make a stronger client look slower.
    return mean.cummax(-1).values


def _of_best(gain: Tensor, delay: int) -> tuple[Tensor, Tensor]:
    """Gain on the best of the first 1, 2, ... sub-bands, and there so many slots ago:
    [slot, drop, band] -> [slot, choices x drop]."""
    best, where = gain.cummax(-1)
    earlier = (torch.arange(len(gain)) - delay).clamp(min=0)
    known = gain[earlier].gather(-1, where)
    return best.transpose(1, 2).flatten(1), known.transpose(1, 2).flatten(1)


def look_up(table: Tensor, snr: Tensor, choices: int) -> Tensor:
    """Between two mean SNRs, linearly in dB; below the first, in proportion: the shape of `snr`."""
    row = table[choices - 1]
    place = (torch.log(snr.clamp(min=1e-30)) * (10.0 / math.log(10.0)) - LOWEST_DB) / STEP_DB
    below = place.clamp(0, POINTS - 1.001).floor()
    low = row[below.long()]
    between = low + (row[below.long() + 1] - low) * (place - below).clamp(0.0, 1.0)
    return torch.where(place < 0, row[0] * snr * 10.0 ** (-LOWEST_DB / 10.0), between)
