"""The paper's two baselines in which every client decides for itself (paper: section V-B)."""

from fedfade.allocation.policy import BuiltInPolicy, View, full_power
from fedfade.randomness import integers
from fedfade.uplink import Action


class RandomBand(BuiltInPolicy):
    """A random sub-band at full power."""

    name = "random"

    def act(self, view: View, memory: None) -> Action:
        scenario = view.scenario
        return full_power(view, integers(view.keys, scenario.bands, (scenario.clients,)))


class MaxIndividualRate(BuiltInPolicy):
    """Its own best sub-band at full power, whoever else is there: the one with most gain."""

    name = "max-individual-rate"

    def act(self, view: View, memory: None) -> Action:
        return full_power(view, view.fading.argmax(-1))
