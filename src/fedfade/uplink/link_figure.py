"""A picture of a link: what it carries at an SINR that stays, and over fading."""

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedfade.config import Config, changed
from fedfade.shown import drawn
from fedfade.uplink.plan import planned_rate
from fedfade.uplink.slot import Scenario, scenario_from_config

_COLOURS = ("#7f8c8d", "#2471a3", "#c0392b")


def scenarios(config: Config) -> dict[str, Scenario]:
    """Shannon, capped, and the configuration's own link."""
    names = dict.fromkeys(["shannon", "capped", config.radio.link])
    return {
        name: scenario_from_config(changed(config, {"radio.link": name}), 1.0) for name in names
    }


def link_rates(scenario: Scenario, snr_db: Tensor) -> tuple[Tensor, Tensor]:
    """bit/s/Hz at SINRs that stay, and at mean SNRs over the scenario's fading."""
    snr = 10.0 ** (snr_db / 10.0)
    return scenario.link.efficiency(snr), planned_rate(scenario, snr / scenario.antennas)


def link_figure(links: dict[str, Scenario]) -> Figure:
    """Both, for every link by its name."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    both: Any = figure.subplots(1, 2, sharey=True)
    snr_db = torch.linspace(-10.0, 35.0, 901)
    delay = next(iter(links.values())).link_delay_slots
    for (name, scenario), colour in zip(links.items(), _COLOURS, strict=False):
        for axes, rate in zip(both, link_rates(scenario, snr_db), strict=True):
            axes.plot(snr_db, rate, color=colour, label=drawn(name), linewidth=1.6)
    both[0].set(title="SINR that stays", xlabel="SINR (dB)", ylabel="bit/s/Hz", ylim=(0, 9))
    older = f"schemes picked {delay} slots late" if delay != 1 else "schemes picked a slot late"
    both[1].set(title=f"over this fading, {older}", xlabel="mean SNR (dB)")
    both[0].legend(frameon=False)
    for axes in both:
        axes.set_xlim(-10, 35)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure
