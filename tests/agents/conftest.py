"""A training small enough for tests."""

import pytest

from fedfade.config import Config, load_config

TINY = [
    "radio.slots=12",
    "qmix.hidden=[16, 8]",
    "qmix.batch_size=32",
    "qmix.replay_size=500",
    "qmix.episodes=120",
    "qmix.epsilon_episodes=80",
    "qmix.update_every=15",
    "qmix.target_every=60",
    "run.rounds=3",
    "run.device=cpu",
]


@pytest.fixture
def overrides() -> list[str]:
    """What makes the small cell tiny."""
    return list(TINY)


@pytest.fixture
def tiny(overrides: list[str]) -> Config:
    return load_config("small-cell", overrides)


@pytest.fixture
def tiny_qplex(overrides: list[str]) -> Config:
    """Another mixer, and payloads that grow."""
    return load_config(
        "small-cell",
        [*overrides, "qmix.mixer=qplex", "qmix.payload_start=0.3", "qmix.payload_episodes=80"],
    )


@pytest.fixture
def tiny_federated(overrides: list[str]) -> Config:
    """The same with real federated rounds on the digits."""
    return load_config(
        "small-cell", [*overrides, "qmix.gradients=learning", "learning.local_work=1"]
    )
