"""The uplink as a batched TorchRL environment (extra `peers`): many episodes in one step."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.uplink.episodes import Episodes
from fedfade.uplink.gradients import gradient_source
from fedfade.uplink.observation import observation_width, state_width
from fedfade.uplink.parts import BOUND
from fedfade.uplink.rounds import layout_seeds


class BatchedUplink(EnvBase):  # type: ignore[misc]
    """As many tasks side by side as wanted, each with a cell, a walk and data of its own; all
    reach their deadline at once. Keys are those of a PettingZoo environment in one group."""

    def __init__(
        self,
        config: Config,
        episodes: int,
        seed: int | None = None,
        device: torch.device | str | None = "cpu",
    ) -> None:
        super().__init__(device=device or "cpu", batch_size=[episodes])
        self._gradients = gradient_source(config, self.device)
        self.config = config
        self._set_seed(seed)
        self.scenario = scenario = self.episodes.scenario
        clients, width = scenario.clients, observation_width(scenario)
        self.group_map = {"agents": [f"client_{n}" for n in range(clients)]}

        def box(*shape: int) -> Bounded:
            return Bounded(-BOUND, BOUND, (episodes, *shape), self.device)

        def grouped(**specs: Any) -> Composite:
            agents = Composite(specs, shape=(episodes, clients), device=self.device)
            return Composite(agents=agents, shape=(episodes,), device=self.device)

        self.observation_spec = grouped(observation=box(clients, width))
        self.observation_spec["state"] = box(state_width(scenario))
        choice = Categorical(scenario.actions, (episodes, clients), device=self.device)
        self.action_spec = grouped(action=choice)
        self.reward_spec = grouped(reward=Unbounded((episodes, clients, 1), self.device))
        flag = Categorical(2, (episodes, 1), dtype=torch.bool, device=self.device)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), shape=(episodes,))

    def _set_seed(self, seed: int | None) -> None:
        """Begin again at the first episode of the first round."""
        seeds = layout_seeds(seed or 0, self.batch_size[0])
        self.episodes = Episodes(self.config, self._gradients, seeds, self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        asked = None if tensordict is None else tensordict.get("_reset", None)
        if asked is not None and not asked.all():
            raise UserError("episodes of a batch are in step: reset all of them or none.")
        self.episodes.begin()
        return TensorDict(self._seen(), self.batch_size, self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        reward, _ = self.episodes.decide(tensordict["agents", "action"])
        seen = self._seen()
        everybody = reward.float()[:, None, None].expand(-1, self.scenario.clients, 1)
        seen["agents"].set("reward", everybody.clone())
        return TensorDict(seen, self.batch_size, self.device)

    def _seen(self) -> dict[str, Any]:
        """What follows a reset and a step alike."""
        ended = torch.full((*self.batch_size, 1), self.episodes.ended, device=self.device)
        shape = (*self.batch_size, self.scenario.clients)
        agents = TensorDict({"observation": self.episodes.observations()}, shape, self.device)
        state = self.episodes.states()
        return {"agents": agents, "state": state, "done": ended, "terminated": ended.clone()}
