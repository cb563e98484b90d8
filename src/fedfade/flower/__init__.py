"""A fading uplink under Flower: wrap a strategy, add a client mod."""

import os

# Before Flower is imported, where it has not been: nobody is told who runs what.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from fedfade.flower.decisions import choose_policy
from fedfade.flower.mod import UplinkMod
from fedfade.flower.strategy import RoundReport, WirelessStrategy
from fedfade.flower.task import FederatedTask
