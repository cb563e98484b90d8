"""Pictures of the uplink: what a link carries, at an SINR that stays and over fading; a round so
far, who sends on which sub-band and how far everybody is."""

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedfade.config import Config, changed
from fedfade.shown import drawn
from fedfade.style import label, legend_below, panels, shade
from fedfade.uplink.plan import planned_rate
from fedfade.uplink.scenario import Scenario, scenario_from_config

_COLOURS = (shade(9), shade(0), shade(1))


def scenarios(config: Config) -> dict[str, Scenario]:
    """Shannon, capped, and the configuration's own link."""
    names = dict.fromkeys(["shannon", "capped", config.radio.link])
    links = {name: changed(config, {"radio.link": name}) for name in names}
    return {name: scenario_from_config(own, 1.0) for name, own in links.items()}


def link_rates(scenario: Scenario, snr_db: Tensor) -> tuple[Tensor, Tensor]:
    """bit/s/Hz at SINRs that stay, and at mean SNRs over the scenario's fading."""
    snr = 10.0 ** (snr_db / 10.0)
    return scenario.link.efficiency(snr), planned_rate(scenario, snr / scenario.antennas)


def link_figure(links: dict[str, Scenario]) -> Figure:
    """Both, for every link by its name."""
    figure: Figure
    figure, (both,) = panels(11, 4.6, 1, 2, sharey=True)
    snr_db = torch.linspace(-10.0, 35.0, 901)
    delay = next(iter(links.values())).link_delay_slots
    for (name, scenario), colour in zip(links.items(), _COLOURS, strict=False):
        for axes, rate in zip(both, link_rates(scenario, snr_db), strict=True):
            axes.plot(snr_db, rate, color=colour, label=drawn(name), lw=1.6)
    older = f"schemes picked {delay} slots late" if delay != 1 else "schemes picked a slot late"
    label(both[0], "Where the SINR stays", "SINR in dB", "rate in bit/s/Hz")
    label(both[1], f"Over this fading, {older}", "mean SNR in dB")
    both[0].set(xlim=(-10, 35), ylim=(0, 9))
    both[1].set_xlim(-10, 35)
    legend_below(figure, both[0], 3)
    return figure


def round_so_far_figure(rate_bps: np.ndarray, share: np.ndarray, slot: int) -> Figure:
    """Each sub-band's slots coloured by the client with the greatest rate, and the share sent.

    `rate_bps` [slot, band, client] and the share each client has sent, after `slot` slots.
    """
    slots, bands, clients = rate_bps.shape
    palette = np.array([to_rgb(shade(client)) for client in range(clients)])
    figure = Figure(figsize=(8, 3.4), dpi=80, layout="constrained")
    where, how_far = figure.subplots(1, 2, width_ratios=(3, 1))
    image = palette[rate_bps.argmax(-1)]  # [slot, band, colour]
    image[rate_bps.max(-1) <= 0] = 1.0
    extent = (0, slots, bands - 0.5, -0.5)
    where.imshow(image.swapaxes(0, 1), aspect="auto", interpolation="nearest", extent=extent)
    where.axvline(slot, color="0.3", linewidth=1)
    where.set(xlabel="slot", ylabel="sub-band", yticks=range(bands))
    where.set_title("strongest client on each sub-band", loc="left", fontsize=9)
    how_far.barh(range(clients), share, color=palette)
    how_far.set(xlim=(0, 1), yticks=range(clients), xlabel="share sent", ylabel="client")
    how_far.invert_yaxis()
    return figure


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """A figure drawn: [row, column, 3]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
