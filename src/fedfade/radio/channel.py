"""Small-scale fading for whole rounds, whatever its source."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfade.config import CellConfig, RadioConfig
from fedfade.errors import UserError, out_of_memory
from fedfade.radio.cell import LargeScale, Trajectory
from fedfade.radio.fading import FadingSource
from fedfade.randomness import fold, stream
from fedfade.seams import FADING, one_line


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
        keys = fold(starts[..., None], torch.tensor(list(episodes)))
        keys = keys.to(self.device, non_blocking=True)
        keys = fold(keys[..., None], torch.arange(self.clients, device=self.device))
        batch = keys.shape[:3]  # [run, round, episode]

        def in_all_episodes(value: Tensor) -> Tensor:
            """A value of each round: [run, round, client, ...] -> [episode, client, ...]."""
            spread = value[:, :, None].expand(*batch, *value.shape[2:])
            return spread.flatten(0, 2).to(self.device)

        at = trajectory.during(rounds).map(in_all_episodes)
        gain = self._drawn(keys.flatten(0, 2), at)  # [episode, client, slot, band]
        return gain.reshape(*batch, *gain.shape[1:]).transpose(3, 4).contiguous()

    def _drawn(self, keys: Tensor, at: LargeScale) -> Tensor:
        """What the source draws; a user's own is checked."""
        name = self.radio.source
        if name in FADING.built_in:
            return self.source.gains(keys, at)
        source = f"radio.source = {name!r}"
        try:
            gain = self.source.gains(keys, at)
        except Exception as error:
            if isinstance(error, UserError) or out_of_memory(error, "") is not None:
                raise
            kind, reason = type(error).__name__, one_line(error)
            raise UserError(f"{source} raised {kind} in gains: {reason}.") from error
        shape = [*keys.shape, self.radio.slots, self.radio.subbands]
        needed = f"torch.float32 {shape} on {keys.device}"
        found = type(gain).__name__
        if isinstance(gain, Tensor):
            found = f"{gain.dtype} {list(gain.shape)} on {gain.device}"
        if found != needed:
            axes = "[episode, client, slot, band]"
            raise UserError(f"{source} returned {found}: gains {axes} must be {needed}.")
        if not bool((gain.isfinite() & (gain >= 0)).all()):
            raise UserError(f"{source} returned gains that are negative, NaN or infinite.")
        return gain
