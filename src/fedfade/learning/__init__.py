"""The federated learning task: data, model, local training, the round, averaging, the bound."""

from fedfade.learning.averaging import Arrived, ServerState, Updates, by_run, gradient_bias, gram
from fedfade.learning.codecs import Codec
from fedfade.learning.data import Dataset, data_folder, find_cifar10, load_data
from fedfade.learning.estimation import BoundRow, bound_along_run
from fedfade.learning.federation import Federation
from fedfade.learning.model import PaperCNN, build_model
from fedfade.learning.partition import balanced_dirichlet, class_counts, deal, iid, shards
from fedfade.learning.round import (
    Deliver,
    Models,
    RoundResult,
    Sent,
    batch_key,
    federated_round,
    learning_curve,
    play_rounds,
    receive,
    send,
)
from fedfade.learning.server_rules import ServerRule

__all__ = [
    "Arrived",
    "BoundRow",
    "Codec",
    "Dataset",
    "Deliver",
    "Federation",
    "Models",
    "PaperCNN",
    "RoundResult",
    "Sent",
    "ServerRule",
    "ServerState",
    "Updates",
    "balanced_dirichlet",
    "batch_key",
    "bound_along_run",
    "build_model",
    "by_run",
    "class_counts",
    "data_folder",
    "deal",
    "federated_round",
    "find_cifar10",
    "gradient_bias",
    "gram",
    "iid",
    "learning_curve",
    "load_data",
    "play_rounds",
    "receive",
    "send",
    "shards",
]
