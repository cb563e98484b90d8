"""The paper's two baselines in which every client decides for itself (paper: section V-B)."""

from fedfade.allocation.policy import Scope, View, full_power
from fedfade.randomness import integers
from fedfade.uplink import Action


class RandomBand:
    """A random sub-band at full power."""

    name = "random"
    scope: Scope = "local"
    gradient_aware = False

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """Draw a sub-band for every client."""
        scenario = view.scenario
        return full_power(view, integers(view.keys, scenario.bands, (scenario.clients,)))


class MaxIndividualRate(RandomBand):
    """Its own best sub-band at full power, whoever else is there."""

    name = "max-individual-rate"

    def act(self, view: View, memory: None) -> Action:
        """The rate grows with the gain, so the best sub-band is the one with most of it."""
        return full_power(view, view.fading.argmax(-1))
