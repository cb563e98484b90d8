"""Where small-scale gains come from: what a source must do, and the three that draw."""

import math
from typing import Protocol

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.radio.cell import LargeScale
from fedfade.radio.microcell import LIGHT_MPS
from fedfade.radio.rays import (
    Clusters,
    Rays,
    antenna_turns,
    draw_departures,
    draw_quadriga,
    draw_rays,
    draw_tr38901,
)
from fedfade.radio.response import array_gains, frequency_offsets, gains, time_series
from fedfade.randomness import fold, uniform

_CPU_BYTES, _GPU_BYTES = 1 << 24, 1 << 30
"""Memory worked on at a time: on the CPU what a few dozen client-rounds need, so that they stay in
cache; on a GPU their rays alone."""
_GPU_DROPS = 1 << 14
_RAYS = 64  # of a sub-band under Rayleigh fading


class FadingSource(Protocol):
    """A source of fading, made as `factory(radio, cell, clients, device)`."""

    def gains(self, keys: Tensor, at: LargeScale) -> Tensor:
        """Power gains of mean 1, float32 [episode, client, slot, band], where the keys are.

        `keys` [episode, client] seed `fedfade.randomness`: what is drawn from them alone does not
        depend on the batch. `at` is where each of these clients is: [episode, client].

        A source for `radio.receive_antennas` above 1 also has `array(keys, at)`: the gains summed
        over M antennas, of mean M, and the direction in which they arrive, unit vectors complex64
        [episode, client, slot, band, antenna].
        """
        ...


class IndependentFading:
    """Clients that fade independently of each other: their rounds are drawn in chunks."""

    def __init__(
        self, radio: RadioConfig, cell: CellConfig, clients: int, device: torch.device
    ) -> None:
        self.radio = radio
        self.max_doppler_hz = radio.speed_mps * radio.carrier_hz / LIGHT_MPS
        self.bs_above_m = cell.bs_height_m - cell.client_height_m
        self.frequencies_hz = frequency_offsets(radio).to(device)
        if device.type == "cpu":
            each = radio.slots * (3 * radio.clusters + self.frequencies_hz.numel())
            self._chunk = max(1, _CPU_BYTES // (8 * each))
        else:
            self._chunk = max(1, min(_GPU_DROPS, _GPU_BYTES // (64 * 20 * radio.clusters)))

    def gains(self, keys: Tensor, at: LargeScale) -> Tensor:
        """As `FadingSource` says; no value depends on the size of the chunks."""
        drops, at = keys.flatten(), at.map(lambda value: value.flatten(0, 1))
        parts = [
            self.draw(drops[i : i + self._chunk], at[i : i + self._chunk])
            for i in range(0, len(drops), self._chunk)
        ]
        gain = torch.cat(parts)  # [drop, band, slot]
        return gain.reshape(*keys.shape, *gain.shape[1:]).transpose(-1, -2)

    def array(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        """The same for several antennas: the power of all together, and its direction."""
        drops, at = keys.flatten(), at.map(lambda value: value.flatten(0, 1))
        size = max(1, min(self._chunk, _GPU_DROPS // 16) // self.radio.receive_antennas)
        parts = [
            self.draw_array(drops[i : i + size], at[i : i + size])
            for i in range(0, len(drops), size)
        ]
        # [drop, band, slot] and [drop, antenna, band, slot]
        power, field = (torch.cat(each) for each in zip(*parts, strict=True))
        length = torch.linalg.vector_norm(field, dim=1, keepdim=True)
        unit = (field / length.clamp_min(1e-30)).permute(0, 3, 2, 1)
        return (
            power.reshape(*keys.shape, *power.shape[1:]).transpose(-1, -2),
            unit.reshape(*keys.shape, *unit.shape[1:]),
        )

    def draw(self, keys: Tensor, at: LargeScale) -> Tensor:
        """Gains of client-rounds: [drop] -> [drop, band, slot]."""
        raise NotImplementedError

    def draw_array(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        """Gains summed over antennas [drop, band, slot], and the field at the antennas, of any
        scale, complex64 [drop, antenna, band, slot]."""
        raise NotImplementedError


class ClusteredFading(IndependentFading):
    """Clusters of rays in an urban microcell (TR 38.901 clause 7.5)."""

    def draw(self, keys: Tensor, at: LargeScale) -> Tensor:
        """Steps 5 to 11."""
        _, rays = self._rays(keys, at)
        return gains(rays, self.frequencies_hz, self.radio.slot_s, self.radio.slots)

    def draw_array(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        """The same rays at every antenna, so that those alike in angle are heard alike."""
        radio, (clusters, rays) = self.radio, self._rays(keys, at)
        departures = draw_departures(keys, at, clusters, radio.cluster_draw)
        turns = antenna_turns(keys, at, departures, self.bs_above_m)
        when = (radio.slot_s, radio.slots)
        return array_gains(rays, turns, radio.receive_antennas, self.frequencies_hz, *when)

    def _rays(self, keys: Tensor, at: LargeScale) -> tuple[Clusters, Rays]:
        draw_clusters = draw_quadriga if self.radio.cluster_draw == "quadriga" else draw_tr38901
        # QuaDRiGa counts the direct path too, which is absent without line of sight: its 20
        # clusters are the standard's 19.
        clusters = draw_clusters(keys, at, self.radio.clusters - 1)
        return clusters, draw_rays(keys, at, clusters, self.max_doppler_hz, self.bs_above_m)


class RayleighFading(IndependentFading):
    """Correlated Rayleigh fading after Clarke, wherever a client is.

    Rays come from everywhere in the plane with equal power, so the autocorrelation of the field
    is J0(2 pi f_D t); sub-bands fade independently of each other.
    """

    def draw(self, keys: Tensor, at: LargeScale) -> Tensor:
        return torch.view_as_real(self._series(keys)).square().sum(-1) / _RAYS

    def draw_array(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        """Antennas that fade independently of each other, each as one would alone."""
        own = [keys, *(fold(fold(keys, 3), m) for m in range(1, self.radio.receive_antennas))]
        field = torch.stack([self._series(antenna) for antenna in own], dim=1)
        return torch.view_as_real(field).square().sum((1, -1)) / _RAYS, field

    def _series(self, keys: Tensor) -> Tensor:
        """The field, complex [drop, band, slot]."""
        # One ray anywhere in each sector: the mean correlation is exactly J0, and the draws differ
        # less from it than rays thrown independently would.
        bands, slots = self.radio.subbands, self.radio.slots
        sector = torch.arange(_RAYS, device=keys.device)
        angle = (sector + uniform(fold(keys, 1), (bands, _RAYS))) * (2.0 * math.pi / _RAYS)
        doppler = torch.cos(angle) * self.max_doppler_hz  # [drop, band, ray]
        phase = uniform(fold(keys, 2), (bands, _RAYS))
        series = time_series(doppler, phase, self.radio.slot_s, slots, groups=[_RAYS]).squeeze(-2)
        return series[..., :slots]


class GammaFading(IndependentFading):
    """Every slot and sub-band fades for itself, as the mean of two exponential variables.

    That is the gamma distribution of shape 2, to which a sub-band average of the clustered channel
    comes near; without its memory, but twenty times cheaper: to train on.
    """

    def draw(self, keys: Tensor, at: LargeScale) -> Tensor:
        pair = uniform(fold(keys, 1), (2, self.radio.subbands, self.radio.slots))
        return -0.5 * pair.log().sum(1)

    def draw_array(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        """Independent antennas; the direction is that of the first of the two."""
        antennas, shape = self.radio.receive_antennas, (self.radio.subbands, self.radio.slots)
        pair = -uniform(fold(keys, 1), (2, antennas, *shape)).log()
        angle = 2.0 * math.pi * uniform(fold(keys, 2), (antennas, *shape))
        return 0.5 * pair.sum((1, 2)), torch.polar(pair[:, 0].sqrt(), angle)
