"""QMIX agents: networks, replay, learner, trainer, and the trained agents as a policy."""

from fedfade.agents.checkpoint import (
    Checkpoint,
    check_same_training,
    has_checkpoint,
    load_checkpoint,
    trained_folders,
)
from fedfade.agents.events import tensorboard_installed
from fedfade.agents.learner import Learner
from fedfade.agents.networks import AgentNetworks, MonotonicMixer
from fedfade.agents.run import (
    each_seed,
    is_trained,
    saved_curve,
    seed_folder,
    train,
    train_together,
)
from fedfade.agents.trained import (
    ClientNetwork,
    QmixPolicy,
    agents_folder,
    client_network,
    load_policy_checkpoint,
    load_shipped_policy,
    scope_of,
    shipped_policies,
    shipped_policies_for,
    trained_agents,
)
from fedfade.agents.trainer import Report, Trainer, programs
