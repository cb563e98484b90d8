"""Trained agents as an allocation policy: each acts on its own observation alone."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from fedfade import uplink
from fedfade.agents.checkpoint import (
    Checkpoint,
    check_same_meaning,
    check_shapes,
    has_checkpoint,
    load_checkpoint,
)
from fedfade.agents.networks import AgentNetworks
from fedfade.agents.sets import SetNetworks, make_agents
from fedfade.allocation import Action, Observed, Policy, Scope, View
from fedfade.config import Config, changed
from fedfade.errors import UserError, not_allowed
from fedfade.wording import counted


class QmixPolicy:
    """Greedy agents; row n of the observation goes into network n and nowhere else."""

    name: str  # of the algorithm
    observes = True
    recordable = True

    def __init__(self, agents: AgentNetworks, config: Config) -> None:
        self.agents, self.scope, self.name = agents, scope_of(config), config.qmix.algorithm
        seen, hidden = config.allocation.observe, config.allocation.hide
        self.observed = Observed(tuple(seen), tuple(hidden), config.allocation.csi_delay_slots)
        self.hold_slots = config.qmix.play_hold_slots or config.qmix.hold_slots
        self.hop_subbands = config.qmix.hop_subbands
        self.binary_power = config.qmix.power == "binary"
        often = counted(config.qmix.hold_slots, "slot")
        self.about = f"Agents trained by {self.name.upper()}, with a decision every {often}"
        looks = any(uplink.load_part(name).gradient_aware for name in seen)
        self.gradient_aware = looks and "gradient" not in hidden

    def begin(self, view: View) -> None:
        self.agents.to(view.snr.device)

    @torch.no_grad()
    def act(self, view: View, memory: None) -> Action:
        assert view.observation is not None
        seen = view.observation.transpose(0, 1)
        choice = self.agents.choose(seen, self.agents(seen))
        own = replace(view.scenario, binary_power=self.binary_power)
        return uplink.decode_action(own, choice.T)


def scope_of(config: Config) -> Scope:
    """What the base station has to announce so that agents can observe what they do.

    >>> from fedfade.config import load_config
    >>> scope_of(load_config("paper"))
    'local'
    """
    told = {uplink.load_part(name).told for name in config.allocation.observe}
    if "fading" in told and "fading" not in config.allocation.hide:
        return "csi"
    return "feedback" if "finished" in told else "local"


class ClientNetwork(nn.Module):
    """What one client carries: observation [batch, width] to action values [batch, action].

    The id of a client in a shared network is constant, so it is folded into the first bias. A value
    of the slot common to all actions is folded into the last layer. The head start of the planned
    action is `skip`, a matrix from the observation to the values, or None.
    """

    def __init__(self, agents: AgentNetworks, client: int) -> None:
        super().__init__()
        row = 0 if agents.share else client
        self.weights, self.biases = [], []
        layers = zip(pairwise(agents.sizes), agents.weights, agents.biases, strict=True)
        for (fan_in, fan_out), weight, bias in layers:
            self.weights.append(weight[row, :fan_in, :fan_out].detach().clone())
            self.biases.append(bias[row, 0, :fan_out].detach().clone())
        if agents.client_id:
            self.biases[0] += self.weights[0][agents.width + client]
            self.weights[0] = self.weights[0][: agents.width]
        if agents.dueling:
            self.weights[-1] = self.weights[-1][:, :-1] + self.weights[-1][:, -1:]
            self.biases[-1] = self.biases[-1][:-1] + self.biases[-1][-1:]
        self.skip = agents.prefer
        if agents.prefer_bias is not None:
            self.biases[-1] += agents.prefer_bias

    def forward(self, observation: Tensor) -> Tensor:
        x = observation
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = (x @ weight + bias).relu()
        values: Tensor = x @ self.weights[-1] + self.biases[-1]
        return values if self.skip is None else values + observation @ self.skip


def client_network(agents: AgentNetworks, client: int) -> Callable[[Tensor], Tensor]:
    """What one client carries of trained agents: observation [batch, width] to action values. A
    network over the set of clients is the same for all; what is observed tells it who it is."""
    if isinstance(agents, SetNetworks):
        return lambda observation: agents(observation[None])[0]
    return ClientNetwork(agents, client)


def agents_for(config: Config) -> AgentNetworks:
    """Agent networks of the sizes a configuration asks for."""
    qmix, scenario = config.qmix, uplink.scenario_from_config(config, 1.0)
    sizes = (scenario.clients, uplink.observation_width(scenario), scenario.actions)
    preference = uplink.plan_preference(scenario, qmix.trust)
    agents = make_agents(qmix, *sizes, [torch.Generator()], preference)
    return agents.requires_grad_(False).eval()


def load_agents(checkpoint: Checkpoint, config: Config | None = None) -> AgentNetworks:
    """The agent networks of a checkpoint, or those of another size for `config`."""
    agents = agents_for(config or checkpoint.config)
    found = checkpoint.tensors("agents")
    check_shapes(checkpoint.folder, found, agents.state_dict())
    agents.load_state_dict(found)
    return agents


def load_policy_checkpoint(folder: Path | str, config: Config) -> Policy:
    """The trained agents in a folder of `fedfade train`, for the scenario of `config`.

    They observe what they were trained on, whatever `config` says. Refused where what they do
    means something else than in training.
    """
    checkpoint = load_checkpoint(Path(folder))
    check_same_meaning(checkpoint, config)
    own = _fitted(checkpoint.config, config)
    return QmixPolicy(load_agents(checkpoint, own), own)


def _fitted(trained: Config, config: Config) -> Config:
    """How agents act in a scenario: as they were trained to, and if they are for any size, in its
    size; they decide as often a round, at most in every slot."""
    if trained.qmix.network == "mlp":
        return trained
    qmix, seen = trained.qmix, trained.allocation
    longer = config.radio.slots / trained.radio.slots
    hold = max(1, round((qmix.play_hold_slots or qmix.hold_slots) * longer))
    fields = {"qmix": qmix.model_dump() | {"hold_slots": hold, "play_hold_slots": 0}}
    fields |= {f"allocation.{name}": getattr(seen, name) for name in Observed._fields}
    return changed(config, fields)


def trained_agents(config: Config) -> dict[str, Path]:
    """Names and folders of the agents `allocation.checkpoint` brings into a comparison.

    >>> from fedfade.config import load_config
    >>> trained_agents(load_config("ring", ["allocation.checkpoint=[a/seed-0, a/seed-1]"]))
    {'qmix-seed-0': PosixPath('a/seed-0'), 'qmix-seed-1': PosixPath('a/seed-1')}
    """
    given = config.allocation.checkpoint
    if given is None:
        return {}
    if isinstance(given, str):
        return {_algorithm(Path(given)): Path(given)}
    folders = [Path(folder) for folder in given]
    for parts in (1, 2):  # two trainings of several seeds have folders of the same names
        names = ["-".join([_algorithm(folder), *folder.parts[-parts:]]) for folder in folders]
        if len({*names, *shipped_policies()}) == len(names) + len(shipped_policies()):
            return dict(zip(names, folders, strict=True))
    raise not_allowed("allocation.checkpoint", given, "folders of different names")


def _algorithm(folder: Path) -> str:
    """What trained the agents in a folder; qmix where there are none yet."""
    return load_checkpoint(folder).config.qmix.algorithm if has_checkpoint(folder) else "qmix"


def _shelf() -> Path:
    """The folder of the agents that come with the package."""
    return Path(str(resources.files("fedfade"))) / "checkpoints"


def shipped_policies() -> list[str]:
    """Names of the trained agents that come with the package."""
    return sorted(place.parent.name for place in _shelf().glob("*/checkpoint.json"))


def shipped_policies_for(config: Config) -> list[str]:
    """Those whose training had the sizes of this scenario."""
    fitting = []
    for name in shipped_policies():
        with suppress(UserError):
            check_same_meaning(load_checkpoint(_shelf() / name), config)
            fitting.append(name)
    return fitting


def agents_folder(folder: Path) -> Path:
    """A folder of a training as it is; where there is none, shipped agents may be named.

    >>> agents_folder(Path("qmix-plus")).parts[-2:], agents_folder(Path("runs/mine"))
    (('checkpoints', 'qmix-plus'), PosixPath('runs/mine'))
    """
    named = not has_checkpoint(folder) and str(folder) in shipped_policies()
    return _shelf() / folder if named else folder


def load_shipped_policy(name: str, config: Config) -> Policy:
    """Trained agents that come with the package, for the scenario of `config`."""
    try:
        check_same_meaning(load_checkpoint(_shelf() / name), config)
    except UserError as error:
        fitting = ", ".join([*shipped_policies_for(config), "wrap-around-choice"])
        raise UserError(
            f"policy {name!r} does not fit: {str(error).rstrip('.')}; what does: {fitting}, or "
            "agents of your own (fedfade train)."
        ) from None
    return load_policy_checkpoint(_shelf() / name, config)
