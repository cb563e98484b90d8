"""A fading uplink under Flower: wrap a strategy, add a client mod."""

from fedfade.flower.mod import UplinkMod
from fedfade.flower.policies import choose_policy
from fedfade.flower.strategy import RoundReport, WirelessStrategy
from fedfade.flower.task import FederatedTask

__all__ = ["FederatedTask", "RoundReport", "UplinkMod", "WirelessStrategy", "choose_policy"]
