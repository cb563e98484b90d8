"""Small-scale fading for whole rounds, whatever its source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import UserError
from fedfade.radio.cell import Place, Trajectory
from fedfade.radio.clusters import draw_quadriga, draw_tr38901, scattering_clusters
from fedfade.radio.rayleigh import rayleigh_gains
from fedfade.radio.rays import draw_rays
from fedfade.radio.response import frequency_offsets, gains
from fedfade.radio.traces import load_traces
from fedfade.randomness import fold, integers, stream

_CPU_BYTES, _GPU_BYTES = 1 << 24, 1 << 30
"""Memory worked on at a time: on the CPU what a few dozen client-rounds need, so that they stay in
cache; on a GPU their rays alone."""
_GPU_DROPS = 1 << 14


class Channel:
    """Draws small-scale gains: unit mean power, one value a slot and sub-band.

    The gains of (seed, round, episode, client) depend on these four and the client's place, not
    on what else is asked for in the same call.

    >>> from fedfade.radio import Cell
    >>> radio, cell = RadioConfig(), CellConfig()
    >>> trajectory = Cell(cell, radio, clients=3).trajectory(seeds=[0, 1], rounds=2)
    >>> channel = Channel(radio, cell, clients=3)
    >>> channel.small_scale_gain([0, 1], 1, episodes=[0, 1, 2, 3], trajectory=trajectory).shape
    torch.Size([2, 4, 250, 3, 4])
    """

    def __init__(
        self,
        radio: RadioConfig,
        cell: CellConfig,
        clients: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.radio = radio
        self.cell = cell
        self.clients = clients
        self.device = torch.device(device)
        subcarriers = radio.subcarriers if radio.subband_gain == "average" else 1
        offsets = frequency_offsets(radio.subbands, radio.bandwidth_hz, subcarriers)
        self.frequencies_hz = offsets.to(self.device)
        """About the carrier, what a sub-band's gain is the mean over: [band, subcarrier]."""
        self._traces: Tensor | None = None  # [drop, slot, band]
        if radio.source == "traces":
            self._traces = load_traces(radio, self.device)
            drops = self._traces.shape[0]
            # Steps that come back to a drop only when all have been passed.
            steps = [step for step in range(1, drops + 1) if math.gcd(step, drops) == 1]
            self._strides = torch.tensor(steps, device=self.device)
            if drops < clients:
                raise UserError(
                    f"radio.traces = {radio.traces!r} is not allowed: it holds {drops} drops, "
                    f"fewer than the {clients} clients that fade independently."
                )

    def small_scale_gain(
        self,
        seeds: Sequence[int],
        round_index: int,
        episodes: Sequence[int],
        trajectory: Trajectory,
    ) -> Tensor:
        """Gains for runs x episodes of one round: [run, episode, slot, client, band] float32."""
        return self.small_scale_gains(seeds, [round_index], episodes, trajectory)[:, 0]

    def small_scale_gains(
        self,
        seeds: Sequence[int],
        rounds: Sequence[int],
        episodes: Sequence[int],
        trajectory: Trajectory,
    ) -> Tensor:
        """The same for several rounds at once: [run, round, episode, slot, client, band].

        On CUDA a round alone hardly costs less than ten.
        """
        wanted, there = (len(seeds), self.clients), (*trajectory.gain_db.shape[::2],)
        if wanted != there:
            raise ValueError(f"(runs, clients) {wanted} asked for, the trajectory has {there}")
        purpose = f"fading {self.radio.source}"
        starts = torch.tensor([[stream(s, purpose, r) for r in rounds] for s in seeds])
        which = torch.tensor(list(episodes))
        keys = fold(starts[..., None], which).to(self.device, non_blocking=True)
        keys = fold(keys[..., None], torch.arange(self.clients, device=self.device))
        if self._traces is not None:
            return self._traces[self._drops(keys)].transpose(3, 4).contiguous()
        shape = keys.shape  # [run, round, episode, client]
        places = trajectory.during(rounds)
        place = Place(
            **{
                f.name: _spread(getattr(places, f.name), shape[2]).to(self.device)
                for f in fields(Place)
            }
        )
        gain = self.draw(keys.flatten(), place)  # [(run, round, episode, client), band, slot]
        gain = gain.reshape(*shape, self.radio.subbands, self.radio.slots)
        return gain.permute(0, 1, 2, 5, 3, 4).contiguous()

    def draw(self, keys: Tensor, place: Place) -> Tensor:
        """Gains for independent keys [drop] at places [drop]: [drop, band, slot]."""
        step = self._chunk()
        parts = [
            self._draw_chunk(
                keys[i : i + step],
                Place(**{f.name: getattr(place, f.name)[i : i + step] for f in fields(Place)}),
            )
            for i in range(0, len(keys), step)
        ]
        return torch.cat(parts)

    def _drops(self, keys: Tensor) -> Tensor:
        """A recorded drop for each of the keys [..., client], none twice in an episode."""
        assert self._traces is not None
        count, first = len(self._traces), keys[..., :1]
        start = integers(fold(first, 0), count, ())
        stride = self._strides[integers(fold(first, 1), len(self._strides), ())]
        return (start + stride * torch.arange(self.clients, device=self.device)) % count

    def _chunk(self) -> int:
        """Client-rounds worked on at a time; the values do not depend on it."""
        if self.device.type != "cpu":
            rays = 20 * self.radio.clusters
            return max(1, min(_GPU_DROPS, _GPU_BYTES // (64 * rays)))
        each = self.radio.slots * (3 * self.radio.clusters + self.frequencies_hz.numel())
        return max(1, _CPU_BYTES // (8 * each))

    def _draw_chunk(self, keys: Tensor, place: Place) -> Tensor:
        radio = self.radio
        if radio.source == "rayleigh":
            return rayleigh_gains(
                keys,
                radio.subbands,
                carrier_hz=radio.carrier_hz,
                speed_mps=radio.speed_mps,
                slot_s=radio.slot_s,
                slots=radio.slots,
            )
        draw_clusters = draw_quadriga if radio.cluster_draw == "quadriga" else draw_tr38901
        rays = draw_rays(
            keys,
            place,
            draw_clusters(keys, place, scattering_clusters(radio.clusters)),
            carrier_hz=radio.carrier_hz,
            speed_mps=radio.speed_mps,
            height_difference_m=self.cell.bs_height_m - self.cell.client_height_m,
        )
        return gains(rays, self.frequencies_hz, radio.slot_s, radio.slots)


def _spread(value: Tensor, episodes: int) -> Tensor:
    """A value of each round for all its episodes: [run, round, client, ...] ->
    [(run, round, episode, client), ...]."""
    runs, rounds, *rest = value.shape
    return value[:, :, None].expand(runs, rounds, episodes, *rest).reshape(-1, *rest[1:])
