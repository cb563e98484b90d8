"""What a round costs clients: seconds of training, sending and receiving, and joules.

Every client receives the model, trains, and sends. The slots begin when the fastest client has
trained; slower ones join later (`ready_slots`). docs/explanation/cost.md has the equations.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedfade.config import FASTEST, SLOWEST, Config, CostConfig, LearningConfig
from fedfade.errors import not_allowed
from fedfade.learning import load_data
from fedfade.randomness import fold, normal, streams
from fedfade.storage import read_bytes

_BYTES_A_SPEED = 100  # more are not needed to write a number


def client_speeds(cost: CostConfig, seeds: Sequence[int], clients: int) -> Tensor:
    """Training samples a second, which are a client's own for all rounds: float64 [seed, client].

    Speeds of clients `0 ... n-1` do not depend on how many there are.
    """
    if cost.speeds is not None:
        return _speeds_in(cost.speeds, clients).expand(len(seeds), clients)
    keys = fold(streams(seeds, "device speed")[:, None], torch.arange(clients))
    logarithm = cost.speed_spread * normal(keys, (1,)).squeeze(-1).double()
    return (cost.samples_per_s * torch.exp(logarithm)).clamp(SLOWEST, FASTEST)


def _speeds_in(path: str, clients: int) -> Tensor:
    """A user's speeds, separated by white space or commas: [client]."""
    words = read_bytes(path, _BYTES_A_SPEED * (clients + 100)).decode("utf-8", "replace")
    found = words.replace(",", " ").split()
    wanted = f"a text file of learning.clients = {clients} numbers"
    if len(found) != clients:
        raise not_allowed("cost.speeds", path, f"{wanted}, not of {len(found)}")
    for client, word in enumerate(found):
        try:
            fits = SLOWEST <= float(word) <= FASTEST
        except ValueError:
            fits = False
        if not fits:
            range_ = f"between {SLOWEST:g} and {FASTEST:g}, and that of client {client} is"
            raise not_allowed("cost.speeds", path, f"{wanted} {range_} {word[:40]!r}")
    return torch.tensor([float(word) for word in found], dtype=torch.float64)


def local_samples(learning: LearningConfig, dealt: int | None = None) -> int:
    """Samples a client trains on in a round; `dealt`: how many it has, counted if not given."""
    if learning.local_unit == "step":
        return learning.local_work * learning.batch_size
    if dealt is None:
        dealt = len(load_data(learning).train_labels) // learning.clients
    size = min(learning.batch_size, dealt)
    return learning.local_work * (dealt // size * size)


def training_seconds(config: Config, seeds: Sequence[int], dealt: int | None = None) -> Tensor:
    """How long clients train in a round: float64 [seed, client]."""
    speeds = client_speeds(config.cost, seeds, config.learning.clients)
    return local_samples(config.learning, dealt) / speeds


def ready_slots(config: Config, seeds: Sequence[int]) -> Tensor:
    """First slot in which a client can send, 0 for the fastest, `radio.slots` for one that is too
    slow for the round: int64 [seed, client]; [seed, 0] where all are as fast (`Round`)."""
    if config.cost.speeds is None and config.cost.speed_spread == 0:  # nobody is late
        return torch.zeros(len(seeds), 0, dtype=torch.int64)
    training_s = training_seconds(config, seeds)
    late_s = training_s - training_s.amin(-1, keepdim=True)
    # A millionth of a slot makes up for rounding: a whole number of slots is no slot more.
    slots = torch.ceil(late_s / config.radio.slot_s - 1e-6)
    return slots.clamp(0, config.radio.slots).long()


class Spent(NamedTuple):
    """What a round took of every client, by cause."""

    seconds: Tensor  # [client] until its upload was done, or the round over
    received_j: Tensor  # [client] the model
    trained_j: Tensor  # [client]
    sent_j: Tensor  # [client] amplifier and circuit

    @property
    def joules(self) -> Tensor:
        return self.received_j + self.trained_j + self.sent_j


class Bill:
    """Makes out what rounds of one configuration cost, on the CPU in float64."""

    def __init__(
        self, config: Config, seeds: Sequence[int], model_values: int, samples: int | None = None
    ) -> None:
        """`model_values` in the model, for `payload_bits: auto`; `samples` in the training set,
        counted where they matter if not given."""
        learning, self._cost, self._slot_s = config.learning, config.cost, config.radio.slot_s
        bits = 32.0 * model_values if learning.payload_bits == "auto" else learning.payload_bits
        self.downlink_s = learning.vectors_sent * bits / config.cost.downlink_bps
        dealt = None if samples is None else samples // learning.clients
        self._training_s = dict(zip(seeds, training_seconds(config, seeds, dealt), strict=True))

    def seconds(self, seed: int, slots: Tensor) -> Tensor:
        """Since the model was sent, when so many slots are over: [...]."""
        first: Tensor = self.downlink_s + self._training_s[seed].min()
        return first + slots.double() * self._slot_s

    def spent(
        self, seed: int, slots: Tensor, finish_slot: Tensor, sent_slots: Tensor, power_w: Tensor
    ) -> Spent:
        """Of a round that lasted `slots` [] in which clients were done after `finish_slot`, sent in
        `sent_slots` and with powers that sum to `power_w`, all [client].

        A client that still trains when the round is over stops.
        """
        cost, training_s = self._cost, self._training_s[seed]
        over_s = self.seconds(seed, slots)
        trained_s = training_s.minimum(over_s - self.downlink_s)
        radiated = power_w.double() / cost.amplifier_efficiency
        return Spent(
            seconds=self.seconds(seed, finish_slot).minimum(over_s),
            received_j=torch.full_like(trained_s, cost.circuit_w * self.downlink_s),
            trained_j=cost.compute_w * trained_s,
            sent_j=self._slot_s * (radiated + cost.circuit_w * sent_slots.double()),
        )
