"""Baseline: everybody takes the own best sub-band at full power, whoever else is there."""

from __future__ import annotations

from fedfade.allocation.policy import Scope, View, full_power
from fedfade.uplink import Action


class MaxIndividualRate:
    """Own best sub-band, full power (the paper's max individual rate baseline)."""

    name = "max-individual-rate"
    scope: Scope = "local"
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """The rate grows with the gain, so the best sub-band is the one with most of it."""
        return full_power(view, view.fading.argmax(-1))
