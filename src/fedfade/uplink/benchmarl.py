"""The uplink as a BenchMARL task (extra `peers`), so that its algorithms can be run on it."""

from collections.abc import Callable
from typing import Any

from benchmarl.environments.common import TaskClass
from torchrl.data import Composite
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import MarlGroupMapType

from fedfade.uplink.environment import UplinkEnv
from fedfade.uplink.parallel import uplink_config
from fedfade.uplink.torchrl import BatchedUplink


class UplinkTask(TaskClass):  # type: ignore[misc]
    """A preset's uplink as BenchMARL wants to be told about it: `UplinkTask("ring", {})`.

    The second argument holds what else `parallel_env` takes, or a whole configuration as `preset`.
    All environments BenchMARL asks for are one batch; with `batched: False` it plays PettingZoo's
    one after the other instead.
    """

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        given = {"preset": self.name, "batched": True} | self.config
        batched, config = given.pop("batched"), uplink_config(**given)
        if batched:
            return lambda: BatchedUplink(config, num_envs, seed, device)
        return lambda: PettingZooWrapper(
            UplinkEnv(config),
            return_state=True,
            use_mask=False,
            categorical_actions=True,
            group_map=MarlGroupMapType.ALL_IN_ONE_GROUP,
            seed=seed,
            device=device,
        )

    def supports_continuous_actions(self) -> bool:
        return False

    def supports_discrete_actions(self) -> bool:
        return True

    def max_steps(self, env: EnvBase) -> int:
        return int(env.scenario.decisions)

    def has_render(self, env: EnvBase) -> bool:
        return False

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = env.group_map
        return groups

    def observation_spec(self, env: EnvBase) -> Composite:
        agents = env.full_observation_spec_unbatched["agents"]
        seen = Composite(observation=agents["observation"].clone(), shape=agents.shape)
        return Composite(agents=seen)

    def state_spec(self, env: EnvBase) -> Composite:
        return Composite(state=env.full_observation_spec_unbatched["state"].clone())

    def action_spec(self, env: EnvBase) -> Composite:
        return env.full_action_spec_unbatched

    def action_mask_spec(self, env: EnvBase) -> None:
        return None

    def info_spec(self, env: EnvBase) -> None:
        return None

    @staticmethod
    def env_name() -> str:
        return "fedfade"
