"""The federated learning task: data, model, local training, the round, averaging, the bound."""

from fedfade.learning.averaging import MAX_NORM, Arrived, ServerState, Updates, gradient_bias, gram
from fedfade.learning.codecs import Codec, ProgressiveCodec
from fedfade.learning.data import Dataset, data_folder, find_cifar10, load_data
from fedfade.learning.estimation import BoundRow, bound_along_run
from fedfade.learning.federation import Federation, Models, batch_key
from fedfade.learning.model import Layout, PaperCNN, build_model
from fedfade.learning.partition import balanced_dirichlet, class_counts, deal, iid, shards
from fedfade.learning.round import (
    Deliver,
    RoundResult,
    Sent,
    federated_round,
    learning_curve,
    play_rounds,
    receive,
    send,
)
from fedfade.learning.server_rules import ServerRule
from fedfade.learning.wire import Encoded, Payload, Wire, codec_keys, payload_bits, plain_payload
