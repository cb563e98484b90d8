"""A round so far as a small picture: who sends on which sub-band, and how far everybody is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RoundSoFar:
    """What has happened in the slots of one episode."""

    def __init__(self, clients: int, bands: int, slots: int) -> None:
        self.rate_bps = np.zeros((slots, bands, clients), dtype=np.float32)
        self.share = np.zeros(clients, dtype=np.float32)
        self.slot = 0

    def add(self, slot: int, band: Tensor, rate_bps: Tensor, share: Tensor) -> None:
        """One slot: everybody's sub-band and rate, and the share sent after it."""
        clients = np.arange(len(self.share))
        self.rate_bps[slot, band.numpy(), clients] = rate_bps.numpy()
        self.share = share.numpy().clip(0.0, 1.0)
        self.slot = slot + 1


def draw_round(history: RoundSoFar) -> NDArray[np.uint8]:
    """The picture of a round so far as pixels: [row, column, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(round_so_far_figure(history))
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return pixels[..., :3].copy()


def round_so_far_figure(history: RoundSoFar) -> Figure:
    """Each sub-band's slots coloured by the client with the greatest rate, and the share sent."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    slots, bands, clients = history.rate_bps.shape
    palette = colormaps["tab20"](np.arange(clients) % 20)[:, :3]
    figure = Figure(figsize=(8, 3.4), dpi=80, layout="constrained")
    where, how_far = figure.subplots(1, 2, width_ratios=(3, 1))
    strongest = history.rate_bps.argmax(-1)  # [slot, band]
    image = palette[strongest]
    image[history.rate_bps.max(-1) <= 0] = 1.0
    where.imshow(
        image.swapaxes(0, 1),
        aspect="auto",
        interpolation="nearest",
        extent=(0, slots, bands - 0.5, -0.5),
    )
    where.axvline(history.slot, color="0.3", linewidth=1)
    where.set(xlabel="slot", ylabel="sub-band", yticks=range(bands))
    where.set_title("strongest client on each sub-band", fontsize=9)
    how_far.barh(range(clients), history.share, color=palette)
    how_far.set(xlim=(0, 1), yticks=range(clients), xlabel="share sent", ylabel="client")
    how_far.invert_yaxis()
    return figure
