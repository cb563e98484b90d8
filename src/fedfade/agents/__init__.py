"""QMIX agents: networks, replay, learner, trainer, and the trained agents as a policy."""

from fedfade.agents.learner import Learner
from fedfade.agents.networks import AgentNetworks, MonotonicMixer
from fedfade.agents.run import train
from fedfade.agents.trained import (
    ClientNetwork,
    QmixPolicy,
    load_policy_checkpoint,
    load_shipped_policy,
    shipped_policies,
    shipped_policies_for,
    trained_agents,
)
from fedfade.agents.trainer import Report, Trainer

__all__ = [
    "AgentNetworks",
    "ClientNetwork",
    "Learner",
    "MonotonicMixer",
    "QmixPolicy",
    "Report",
    "Trainer",
    "load_policy_checkpoint",
    "load_shipped_policy",
    "shipped_policies",
    "shipped_policies_for",
    "train",
    "trained_agents",
]
