"""The federated learning task: data, partition, model, local training, averaging, bound."""

from fedfade.learning.averaging import ServerState, Updates, by_run, gram
from fedfade.learning.data import Dataset, load_data
from fedfade.learning.federation import Federation
from fedfade.learning.model import PaperCNN, build_model
from fedfade.learning.partition import balanced_dirichlet, class_counts, deal, iid, shards
from fedfade.learning.together import batch_key, join, part, train_together

__all__ = [
    "Dataset",
    "Federation",
    "PaperCNN",
    "ServerState",
    "Updates",
    "balanced_dirichlet",
    "batch_key",
    "build_model",
    "by_run",
    "class_counts",
    "deal",
    "gram",
    "iid",
    "join",
    "load_data",
    "part",
    "shards",
    "train_together",
]
