"""The batched TorchRL environment and BenchMARL on it, where the `peers` extra is installed."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfade.errors import UserError
from fedfade.uplink import gradient_source, uplink_config
from fedfade.uplink.environment import UplinkEnv
from fedfade.uplink.episodes import Episodes
from fedfade.uplink.rounds import layout_seeds

pytest.importorskip("benchmarl")
warnings.simplefilter("ignore")

from tensordict import TensorDict  # noqa: E402
from torchrl.envs.utils import check_env_specs  # noqa: E402

from fedfade.uplink.benchmarl import UplinkTask  # noqa: E402
from fedfade.uplink.torchrl import BatchedUplink  # noqa: E402


def held(**more):
    return uplink_config("small-cell", max_cycles=60, hold_slots=25, **more)


def test_torchrl_accepts_the_batch() -> None:
    check_env_specs(BatchedUplink(held(), 3))


@pytest.mark.parametrize("preset", ["small-cell", "qmix-hold"])
def test_a_batch_is_as_many_pettingzoo_environments(preset: str) -> None:
    """The same tasks and actions give the same observations, states and rewards for two rounds."""
    config = uplink_config(
        preset, max_cycles=30, hold_slots=12, run={"episodes_per_round": 1}, radio={"slot_s": 0.05}
    )
    batch, rounds = BatchedUplink(config, 3, seed=7), []
    for task, seed in enumerate(layout_seeds(7, 3)):
        env = UplinkEnv(config)
        env.reset(seed=0)
        env._episodes = Episodes(config, gradient_source(config), [seed])
        rounds.append((task, env))
    earned = 0.0
    for episode in range(2):
        many, seen = batch.reset(), [env.reset()[0] for _, env in rounds]
        draw = torch.Generator().manual_seed(episode)
        for step in range(4):
            for task, env in rounds:
                observed = np.stack(list(seen[task].values()))
                np.testing.assert_allclose(
                    many["agents", "observation"][task], observed, 1e-5, 1e-6
                )
                np.testing.assert_allclose(many["state"][task], env.state(), 1e-5, 1e-6)
            assert many["done"].all() == many["done"].any() == (step == 3)
            if step == 3:
                break
            shape = (3, batch.scenario.clients)
            action = torch.randint(batch.scenario.actions, shape, generator=draw)
            many["agents", "action"] = action
            many = batch.step(many)["next"]
            for task, env in rounds:
                actions = dict(zip(env.agents, action[task].tolist(), strict=True))
                seen[task], rewards, *_ = env.step(actions)
                same = pytest.approx(rewards["client_0"], rel=1e-4, abs=1e-6)
                assert many["agents", "reward"][task].unique().item() == same
                earned += abs(rewards["client_0"])
    assert earned > 0.0


def test_the_seed_decides() -> None:
    seen = [BatchedUplink(held(), 2, seed).reset()["state"] for seed in (1, 1, 2)]
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    env = BatchedUplink(held(), 2, 2)
    env.set_seed(1)
    assert torch.equal(env.reset()["state"], seen[0])


def test_episodes_are_in_step() -> None:
    env = BatchedUplink(held(), 2)
    env.reset()
    with pytest.raises(UserError, match="all of them or none"):
        env.reset(TensorDict({"_reset": torch.tensor([[True], [False]])}, [2]))


@pytest.mark.parametrize(("batched", "shape"), [(True, (2, 3)), (False, (3,))])
def test_a_benchmarl_task_counts_decisions(batched: bool, shape: tuple[int, ...]) -> None:
    task = UplinkTask("small-cell", {"max_cycles": 7, "hold_slots": 3, "batched": batched})
    env = task.get_env_fun(2, False, 0, "cpu")()
    assert task.max_steps(env) == 3
    assert env.rollout(10).shape == shape
    width, clients = env.observation_spec["agents", "observation"].shape[-1], 4
    assert task.observation_spec(env)["agents", "observation"].shape == (clients, width)


def test_the_example_runs() -> None:
    program = Path(__file__).parents[2] / "examples" / "benchmarl_qmix.py"
    sizes = "--iterations 2 --episodes 8 --every 2 --layouts 2 --rounds 1"
    command = [sys.executable, program, *sizes.split(), "--threads", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    agents, schedule, *_, apart = answer.stdout.splitlines()[-5:]
    between = float(agents.split()[-1]) - float(schedule.split()[-1])
    assert schedule.startswith("block-fading-schedule")
    assert apart.startswith(f"agents - block-fading-schedule: {between:+.3f} +- ")
