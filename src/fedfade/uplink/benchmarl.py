"""The uplink as a BenchMARL task (extra `peers`), so that its algorithms can be run on it."""

from collections.abc import Callable
from typing import Any

from benchmarl.environments.pettingzoo.common import PettingZooClass
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import MarlGroupMapType

from fedfade.uplink.parallel import parallel_env


class UplinkTask(PettingZooClass):  # type: ignore[misc]
    """A preset's uplink as BenchMARL wants to be told about it: `UplinkTask("ring", {})`."""

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        return lambda: PettingZooWrapper(
            parallel_env(self.name, **self.config),
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

    def info_spec(self, env: EnvBase) -> None:
        return None

    @staticmethod
    def env_name() -> str:
        return "fedfade"
