"""Other cells: what their clients add to the noise here, in every slot and sub-band.

Neighbours of the same size stand around the cell. In each of them, one client sends at full power
on every sub-band and in every slot, or in a share of them (`cell.interference_activity`): which of
its clients is drawn anew, as by a scheduler nobody here knows. The clients are as many as ours and
placed anew every round, uniformly in their own cell. To our base station they have the path loss
and the shadowing of their place, which is that of our own clients' map; nobody is handed over.

What arrives is a level: its fading is that of a client on one antenna, because an interferer from
an unknown direction is heard by a combination of antennas with as much power as by one.
"""

import math

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.radio.cell import Cell, Ints
from fedfade.radio.link import db_to_linear, dbm_to_w
from fedfade.randomness import fold, integers, streams, uniform


class OtherCells:
    """Draws the power received from neighbouring cells; none of it where there are none.

    The level of (seed, round, episode) depends on these three, not on what else is asked for.
    """

    def __init__(
        self, cell: CellConfig, radio: RadioConfig, clients: int, device: torch.device | str = "cpu"
    ) -> None:
        self._cell, self._radio, self.device = Cell(cell, radio, clients), radio, device
        number = torch.arange(cell.interference_cells, device=device)
        angle = math.pi / 6 + math.pi / 3 * number  # across the middles of the edges
        self._centres = 2 * cell.inner_radius_m * torch.stack([angle.cos(), angle.sin()], dim=-1)

    def gains(self, seeds: Ints, rounds: Ints) -> Tensor:
        """Large-scale gain of every client elsewhere to our base station, linear:
        [run, round, cell, client]."""
        keys = torch.stack([streams(seeds, "other cells", number) for number in rounds], dim=1)
        cells = torch.arange(len(self._centres), device=self.device)
        keys = fold(keys.to(self.device)[..., None], cells)
        keys = fold(keys[..., None], torch.arange(self._cell.clients, device=self.device))
        position = self._centres[:, None] + self._cell.uniform_in_hexagon(keys)
        return db_to_linear(self._cell.gain_db(seeds, position))

    def levels_w(self, places: Ints, seeds: Ints, rounds: Ints, episodes: Ints) -> Tensor:
        """Power on each sub-band, in watt: [run, round, episode, slot, band].

        No slots where there are no other cells. Clients stand where the seeds `places` put them,
        and send and fade as those of `seeds` have it.
        """
        radio, cells = self._radio, len(self._centres)
        shape = (cells, radio.slots, radio.subbands)
        batch = (len(seeds), len(rounds), len(episodes))
        if not cells:
            return torch.zeros(*batch, 0, radio.subbands, device=self.device)
        keys = torch.stack([streams(seeds, "other cells' slots", n) for n in rounds], dim=1)
        keys = fold(keys.to(self.device)[..., None], torch.tensor(list(episodes)))
        who = integers(fold(keys, 1), self._cell.clients, shape)  # [run, round, episode, cell, ...]
        gain = self.gains(places, rounds)[:, :, None].expand(*batch, -1, -1)
        heard = gain.gather(-1, who.flatten(4)).view(who.shape)
        sends = uniform(fold(keys, 2), shape) < self._cell.config.interference_activity
        fading = -uniform(fold(keys, 3), (radio.fading_shape, *shape)).log().mean(3)
        full_w = float(dbm_to_w(radio.power_levels_dbm[radio.full_level]))
        return (heard * fading * sends).sum(3) * full_w
