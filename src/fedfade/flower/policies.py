"""A policy from one word of a run configuration."""

from pathlib import Path

import torch

from fedfade.agents import (
    ClientNetwork,
    QmixPolicy,
    load_policy_checkpoint,
    load_shipped_policy,
    shipped_policies,
)
from fedfade.allocation import GENIE, PERFECT, Action, Policy, Scope, View, load_policy
from fedfade.config import Config
from fedfade.errors import not_allowed
from fedfade.uplink import decode_action


def choose_policy(name: str, config: Config) -> Policy | None:
    """A policy by name, by `module:factory`, or trained agents by folder; None is `perfect`.

    >>> from fedfade.config import load_config
    >>> [choose_policy(name, load_config("paper")).scope for name in ("max-sum-rate", "qmix-plus")]
    ['central', 'local']
    """
    if name == PERFECT:
        return None
    if name == GENIE:
        raise not_allowed("policy", name, "a policy that sends; the genie is only a bound")
    if name in shipped_policies():
        return load_shipped_policy(name, config)
    if Path(name).is_dir():
        return load_policy_checkpoint(name, config)
    return load_policy(name, shipped_policies())


class OneAgent:
    """Trained agents as one client carries them: its own network and nothing of the others'.

    The answer's other rows are silent; nobody reads them.
    """

    observes = True

    def __init__(self, policy: QmixPolicy, client: int) -> None:
        self.name = policy.name
        self.scope: Scope = policy.scope
        self.gradient_aware = policy.gradient_aware
        self.observed = policy.observed
        self._client = client
        self._network = ClientNetwork(policy.agents, client)

    def begin(self, view: View) -> None:
        """Nothing to prepare."""

    def act(self, view: View, memory: None) -> Action:
        """The action the own network values most."""
        assert view.observation is not None
        values = self._network(view.observation[:, self._client])
        own = decode_action(view.scenario, values.argmax(-1))
        band = torch.zeros(view.snr.shape, dtype=torch.int64)
        level = torch.full_like(band, view.scenario.silent_level)
        band[:, self._client], level[:, self._client] = own.band, own.level
        return Action(band, level)


def policy_of_client(name: str, config: Config, client: int) -> Policy | None:
    """Like `choose_policy`, with no more of a training than this client's own network."""
    policy = choose_policy(name, config)
    return OneAgent(policy, client) if isinstance(policy, QmixPolicy) else policy
