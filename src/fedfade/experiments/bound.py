"""The convergence bound along a run in which an allocation policy decides who delivers."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedfade.allocation import GENIE, PERFECT
from fedfade.config import Config
from fedfade.device import one_thread
from fedfade.errors import not_allowed
from fedfade.experiments.comparison import compared_policy
from fedfade.experiments.uploads import Uplink
from fedfade.learning import (
    BoundRow,
    Deliver,
    Federation,
    Sent,
    bound_along_run,
    load_data,
)


def bound_under(
    config: Config, policy: str, device: torch.device, draws: int = 8
) -> Iterator[BoundRow]:
    """Every term of Theorem 1, round by round, on the first seed of `config`."""
    federation = Federation(
        config.learning, load_data(config.learning), device=device, precision=config.run.precision
    )
    deliver = policy_delivery(config, policy, federation)
    return bound_along_run(federation, config.run.seed, config.run.rounds, deliver, draws)


def policy_delivery(config: Config, name: str, federation: Federation) -> Deliver | None:
    """Who delivers under a policy: the uploads `fedfade compare` plays on the first seed."""
    if name == GENIE:
        raise not_allowed("--policy", name, "a policy that sends, or perfect")
    if name == PERFECT:
        return None
    policy = compared_policy(config, name)
    one_seed = config.model_copy(update={"run": config.run.model_copy(update={"seeds": 1})})
    uplink = Uplink(one_seed, federation.payload_bits, federation.device)

    def deliver(sent: Sent) -> Tensor:
        with one_thread():
            return uplink.play(policy, sent.number, sent.inner).delivered

    return deliver
