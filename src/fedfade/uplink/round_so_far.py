"""A round so far as a small picture: who sends on which sub-band, and how far everybody is."""

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray


def round_so_far_figure(rate_bps: np.ndarray, share: np.ndarray, slot: int) -> Figure:
    """Each sub-band's slots coloured by the client with the greatest rate, and the share sent.

    `rate_bps` [slot, band, client] and the share each client has sent, after `slot` slots.
    """
    slots, bands, clients = rate_bps.shape
    palette = colormaps["tab20"](np.arange(clients) % 20)[:, :3]
    figure = Figure(figsize=(8, 3.4), dpi=80, layout="constrained")
    where, how_far = figure.subplots(1, 2, width_ratios=(3, 1))
    image = palette[rate_bps.argmax(-1)]  # [slot, band, colour]
    image[rate_bps.max(-1) <= 0] = 1.0
    extent = (0, slots, bands - 0.5, -0.5)
    where.imshow(image.swapaxes(0, 1), aspect="auto", interpolation="nearest", extent=extent)
    where.axvline(slot, color="0.3", linewidth=1)
    where.set(xlabel="slot", ylabel="sub-band", yticks=range(bands))
    where.set_title("strongest client on each sub-band", fontsize=9)
    how_far.barh(range(clients), share, color=palette)
    how_far.set(xlim=(0, 1), yticks=range(clients), xlabel="share sent", ylabel="client")
    how_far.invert_yaxis()
    return figure


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """A figure drawn: [row, column, 3]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
