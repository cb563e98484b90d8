"""fedfade: federated learning over a fading uplink, slot by slot."""

__version__ = "0.2.0"
