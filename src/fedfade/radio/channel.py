"""Small-scale fading for whole rounds, whatever its source."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import UserError, not_allowed, out_of_memory
from fedfade.radio.cell import Ints, LargeScale, Trajectory
from fedfade.radio.fading import FadingSource
from fedfade.randomness import fold, stream
from fedfade.seams import FADING, one_line


class SmallScale(NamedTuple):
    """Fading of runs x rounds x episodes, as the base station's antennas hear it together."""

    gain: Tensor  # [run, round, episode, slot, client, band] float32, of mean M with M antennas
    direction: Tensor  # [..., band, antenna, 2] unit vectors in real and imaginary parts; of no
    # antenna where there is one


class Channel:
    """Draws small-scale gains: h of H = alpha h (paper: eq. 9), one value a slot and sub-band.

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
        self, radio: RadioConfig, cell: CellConfig, clients: int, device: torch.device | str = "cpu"
    ) -> None:
        self.radio, self.clients, self.device = radio, clients, torch.device(device)
        self.source: FadingSource = FADING.make(radio.source, radio, cell, clients, self.device)
        if radio.receive_antennas > 1 and not hasattr(self.source, "array"):
            allowed = f"1 with radio.source = {radio.source!r}, which has no 'array'"
            raise not_allowed("radio.receive_antennas", radio.receive_antennas, allowed)

    def small_scale_gain(
        self, seeds: Ints, round_index: int, episodes: Ints, trajectory: Trajectory
    ) -> Tensor:
        """Gains for runs x episodes of one round: [run, episode, slot, client, band] float32."""
        return self.small_scale_gains(seeds, [round_index], episodes, trajectory)[:, 0]

    def small_scale_gains(
        self, seeds: Ints, rounds: Ints, episodes: Ints, trajectory: Trajectory
    ) -> Tensor:
        """The same for several rounds at once: [run, round, episode, slot, client, band]."""
        return self.small_scale(seeds, rounds, episodes, trajectory).gain

    def small_scale(
        self, seeds: Ints, rounds: Ints, episodes: Ints, trajectory: Trajectory
    ) -> SmallScale:
        """The same with directions. On CUDA a round alone hardly costs less than ten."""
        wanted, there = (len(seeds), self.clients), (*trajectory.gain_db.shape[::2],)
        if wanted != there:
            raise ValueError(f"(runs, clients) {wanted} asked for, the trajectory has {there}")
        purpose = f"fading {self.radio.source}"
        starts = torch.tensor([[stream(s, purpose, r) for r in rounds] for s in seeds])
        keys = fold(starts[..., None], torch.tensor(list(episodes)))
        keys = keys.to(self.device, non_blocking=True)
        keys = fold(keys[..., None], torch.arange(self.clients, device=self.device))
        batch = keys.shape[:3]  # [run, round, episode]

        def in_all_episodes(value: Tensor) -> Tensor:
            """A value of each round: [run, round, client, ...] -> [episode, client, ...]."""
            spread = value[:, :, None].expand(*batch, *value.shape[2:])
            return spread.flatten(0, 2).to(self.device)

        at = trajectory.during(rounds).map(in_all_episodes)
        parts = self._drawn(keys.flatten(0, 2), at)  # [episode, client, slot, band, ...]
        by_slot = (part.reshape(*batch, *part.shape[1:]).transpose(3, 4) for part in parts)
        return SmallScale(*(part.contiguous() for part in by_slot))

    def _drawn(self, keys: Tensor, at: LargeScale) -> tuple[Tensor, Tensor]:
        """Gains and directions as the source draws them; a user's own are checked."""
        name, antennas = self.radio.source, self.radio.receive_antennas
        ask = "array" if antennas > 1 else "gains"
        source = f"radio.source = {name!r}"
        try:
            drawn = getattr(self.source, ask)(keys, at)
        except Exception as error:
            ours = name in FADING.built_in or isinstance(error, UserError)
            if ours or out_of_memory(error, "") is not None:
                raise
            kind, reason = type(error).__name__, one_line(error)
            raise UserError(f"{source} raised {kind} in {ask}: {reason}.") from error
        if antennas == 1:
            drawn = (drawn, keys.new_empty((*keys.shape, *self._shape, 0), dtype=torch.complex64))
        if name not in FADING.built_in:
            self._check(source, drawn, keys)
        gain, direction = drawn
        return gain, torch.view_as_real(direction)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.radio.slots, self.radio.subbands

    def _check(self, source: str, drawn: object, keys: Tensor) -> None:
        """Refuse what a user's source must not return."""
        if not (isinstance(drawn, tuple) and len(drawn) == 2):
            kind = type(drawn).__name__
            raise UserError(f"{source} returned {kind}: array must return gains and directions.")
        antennas, axes = self.radio.receive_antennas, "[episode, client, slot, band"
        array = (*self._shape, antennas if antennas > 1 else 0)
        kinds = (f"gains {axes}]", torch.float32, self._shape)
        arrays = (f"directions {axes}, antenna]", torch.complex64, array)
        for (axes, dtype, shape), part in zip((kinds, arrays), drawn, strict=True):
            needed = f"{dtype} {[*keys.shape, *shape]} on {keys.device}"
            found = type(part).__name__
            if isinstance(part, Tensor):
                found = f"{part.dtype} {list(part.shape)} on {part.device}"
            if found != needed:
                raise UserError(f"{source} returned {found}: {axes} must be {needed}.")
        gain, direction = drawn
        if not bool((gain.isfinite() & (gain >= 0)).all()):
            raise UserError(f"{source} returned gains that are negative, NaN or infinite.")
        length = torch.linalg.vector_norm(direction, dim=-1)
        if antennas > 1 and not bool(((length - 1.0).abs() < 1e-3).all()):
            raise UserError(f"{source} returned directions whose length is not 1.")
