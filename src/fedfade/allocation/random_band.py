"""Baseline: a random sub-band at full power, every client for itself."""

from __future__ import annotations

from fedfade.allocation.policy import Scope, View, full_power
from fedfade.randomness import integers
from fedfade.uplink import Action


class RandomBand:
    """Uniform sub-band, full power (the paper's random baseline)."""

    name = "random"
    scope: Scope = "local"
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """Draw a sub-band for every client."""
        scenario = view.scenario
        return full_power(view, integers(view.keys, scenario.bands, (scenario.clients,)))
