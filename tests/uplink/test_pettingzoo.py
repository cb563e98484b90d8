"""PettingZoo's own tests on the environment, and the ones they leave out."""

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pettingzoo.test import (
    api_test,
    max_cycles_test,
    parallel_api_test,
    parallel_seed_test,
    render_test,
    seed_test,
    state_test,
)

from fedfade import uplink
from fedfade.allocation import play_round
from fedfade.config import differences, load_config
from fedfade.errors import UserError
from fedfade.uplink import (
    Action,
    Rounds,
    gradient_source,
    parallel_env,
    record_gradients,
)
from fedfade.uplink import env as aec_env
from fedfade.uplink.environment import ID, UplinkEnv
from fedfade.uplink.figures import round_so_far_figure


@pytest.fixture(autouse=True)
def _no_warnings():
    """Their tests warn about what they find doubtful; nothing of ours may be."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def test_the_front_door_does_without_pettingzoo() -> None:
    """It is loaded when an environment is asked for, and its absence is told then."""
    code = (
        "import sys; sys.modules |= {'pettingzoo': None, 'gymnasium': None}\n"
        "from fedfade.uplink import env, parallel_env\n"
        "try:\n    parallel_env('ring')\nexcept ImportError as error:\n    print(error.name)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() in ("gymnasium", "pettingzoo")


def test_parallel_api() -> None:
    parallel_api_test(parallel_env(max_cycles=40), num_cycles=100)


def test_aec_api() -> None:
    api_test(aec_env(max_cycles=20), num_cycles=500)


def test_seeds() -> None:
    seed_test(lambda: aec_env("ring", max_cycles=10), num_cycles=30)
    parallel_seed_test(lambda: parallel_env("ring", max_cycles=10), num_cycles=30)


def test_state() -> None:
    state_test(aec_env(max_cycles=30), parallel_env(max_cycles=30), num_cycles=20)


def test_max_cycles() -> None:
    max_cycles_test(uplink)


def test_render() -> None:
    render_test(lambda render_mode: aec_env("ring", max_cycles=10, render_mode=render_mode))


def test_same_seed_same_250_steps_over_episodes_and_environments() -> None:
    """Their seed test compares one step; here two environments run three episodes and more."""

    def play(seed: int) -> list[np.ndarray]:
        env = parallel_env("small-cell")
        g = np.random.default_rng(5)
        found = [np.stack(list(env.reset(seed=seed)[0].values()))]
        for _ in range(250):
            if not env.agents:
                found.append(np.stack(list(env.reset()[0].values())))
            actions = {agent: int(g.integers(8)) for agent in env.agents}
            observations, rewards, *_ = env.step(actions)
            found += [np.stack(list(observations.values())), env.state()]
            found.append(np.array(list(rewards.values())))
        return found

    one, again, other = play(7), play(7), play(8)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_it_does_not_touch_the_global_generators() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    env = parallel_env("small-cell", max_cycles=5)
    env.reset(seed=1)
    env.step(dict.fromkeys(env.agents, 0))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"radio": {"link": "nr"}, "learning": {"payload_bits": 5e5}},
        {
            "cost": {"speed_spread": 0.02},  # of a second: some are up to 20 slots late
            "run": {"deadline": "wait-for-k", "deadline_clients": 1},
            "allocation.observe": ["remaining", "ready", "schedule"],
        },
    ],
)
def test_it_is_the_batched_core(changes: dict[str, object]) -> None:
    """A round played through the environment is the round `play_round` plays."""
    env = parallel_env("small-cell", **changes)
    observations, _ = env.reset(seed=3)
    rounds = Rounds(env.config, gradient_source(env.config), 1, env._episodes.rounds.seeds)

    class Spread:
        """Client n on sub-band n mod 2, until it is done."""

        name, scope, observes = "spread", "local", True

        def begin(self, view):
            self.seen = []

        def act(self, view, memory):
            self.seen.append(view.observation[0].numpy())
            band = torch.arange(view.scenario.clients)[None] % 2
            return Action(band, torch.full_like(band, view.scenario.full_level))

    policy = Spread()
    outcome = play_round(
        policy, rounds.scenario, rounds.round(0), torch.zeros(1, dtype=torch.int64)
    )
    total = 0.0
    for slot in range(env.scenario.slots):
        assert np.array_equal(np.stack(list(observations.values())), policy.seen[slot])
        actions = {agent: (n % 2) * env.scenario.levels for n, agent in enumerate(env.agents)}
        observations, rewards, ended, cut, infos = env.step(actions)
        total += rewards["client_0"]
    assert all(ended.values())
    assert not any(cut.values())
    delivered = [info["delivered"] for info in infos.values()]
    assert delivered == outcome.delivered[0].tolist()
    assert total == pytest.approx(float(outcome.reward[0]), rel=1e-5)


def test_spaces_are_finite_and_one_object_each() -> None:
    env = parallel_env("paper", max_cycles=3)
    assert env.metadata["name"] == ID == "fedfade/uplink-v1"
    for agent in env.possible_agents:
        assert env.observation_space(agent) is env.observation_space(agent)
        assert env.action_space(agent) is env.action_space(agent)
        assert np.isfinite(env.observation_space(agent).high).all()
    assert len({id(env.observation_space(a)) for a in env.possible_agents}) == 10
    assert env.action_space("client_0").n == 16


def learning_env(episodes_per_round: int) -> UplinkEnv:
    """Two slots, real federated rounds, and so little to send that a slot or two are enough."""
    return parallel_env(
        "small-cell",
        max_cycles=2,
        gradients="learning",
        run={"episodes_per_round": episodes_per_round},
        learning={"payload_bits": 1000, "local_work": 1},
    )


def test_who_delivers_is_who_is_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    env = learning_env(1)
    env.reset(seed=0)
    averaged = []
    monkeypatch.setattr(env._gradients, "deliver", averaged.append)
    silent, full = env.scenario.silent_level, env.scenario.full_level
    while env.agents:
        env.step({agent: full if agent == "client_0" else silent for agent in env.agents})
    assert [who.tolist() for who in averaged] == [[[True, False, False, False]]]


def test_real_federated_rounds_go_on_from_episode_to_episode() -> None:
    """Two episodes a round: the second decides, and the next round sees other gradients."""
    env = learning_env(2)
    rounds, models = [], []
    env.reset(seed=0)
    for _ in range(4):
        rounds.append(env._episodes.round.number.item())
        models.append(env._gradients.tensors()["parameters"].clone())
        while env.agents:  # a sub-band each: 1000 bits are there in a slot or two
            env.step({agent: 4 * (n % 2) for n, agent in enumerate(env.agents)})
        env.reset()
    assert rounds == [0, 0, 1, 1]
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[1], models[2])


@pytest.mark.parametrize("gradients", ["synthetic", "learning"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike_and_apart(gradients: str, copied: Callable[[Any], Any]) -> None:
    """Vectorised environments are copies. One of an episode under way plays the same rounds to
    come, and what was done to one does nothing to the other."""
    one = learning_env(1) if gradients == "learning" else parallel_env("small-cell", max_cycles=2)
    copied(one).reset(seed=0)  # before there is an episode
    one.reset(seed=0)
    one.step(dict.fromkeys(one.agents, 0))
    other = copied(one)

    def play(env: UplinkEnv) -> list[np.ndarray]:
        found = []
        for _ in range(4):
            if not env.agents:
                env.reset()
            env.step({agent: 4 * (n % 2) for n, agent in enumerate(env.agents)})
            found += [env.state(), env._episodes.round.inner.numpy()]
        return found

    assert all(np.array_equal(a, b) for a, b in zip(play(one), play(other), strict=True))
    assert other._gradients is other._episodes.rounds.gradients
    copied(aec_env("ring", max_cycles=2)).reset(seed=0)


def test_recorded_gradients(tmp_path: Path) -> None:
    config = load_config("small-cell", ["run.rounds=2", "learning.local_work=1"])
    record_gradients(config, [0, 1], tmp_path / "gram.npz")
    env = parallel_env("small-cell", max_cycles=2, gradients=str(tmp_path / "gram.npz"))
    env.reset(seed=0)
    recorded = np.load(tmp_path / "gram.npz")["inner"]
    assert recorded.shape == (2, 2, 4, 4)
    assert any(np.array_equal(env._episodes.round.inner[0].numpy(), task[0]) for task in recorded)
    with pytest.raises(UserError, match=r"must be floating-point \[task, round, 10, 10\]"):
        parallel_env("ring", gradients=str(tmp_path / "gram.npz"))


def test_bad_input_is_named() -> None:
    env = parallel_env("small-cell", max_cycles=2)
    env.reset(seed=0)
    with pytest.raises(UserError, match="no action for client_0"):
        env.step({})
    with pytest.raises(UserError, match="action of client_1 = 8 is not allowed"):
        env.step({agent: 8 if agent == "client_1" else 0 for agent in env.agents})
    with pytest.raises(UserError, match="did you mean 'clusters'"):
        parallel_env("ring", radio={"cluster": 3})
    assert parallel_env("ring", **{"radio.clusters": 28}).config.radio.clusters == 28


@pytest.mark.parametrize("action", [1.5, -1, 8, "1", None, float("nan"), np.array([0, 1])])
def test_an_action_that_is_no_choice_is_refused(action: object) -> None:
    env = parallel_env("small-cell", max_cycles=2)
    env.reset(seed=0)
    allowed = "must be a whole number between 0 and 7"
    with pytest.raises(UserError, match=f"action of client_1 = .* is not allowed: it {allowed}"):
        env.step({agent: action if agent == "client_1" else 0 for agent in env.agents})
    env.step(dict.fromkeys(env.agents, np.int64(3)))  # what a space samples is fine


def test_an_action_of_nobody_is_refused() -> None:
    env = parallel_env("small-cell", max_cycles=2)
    env.reset(seed=0)
    with pytest.raises(UserError, match=r"'client_4' is not allowed: .* client_0 to client_3"):
        env.step({f"client_{n}": 0 for n in range(5)})


def test_nothing_is_asked_before_reset() -> None:
    env = parallel_env("ring", max_cycles=2, render_mode="rgb_array")
    for ask in (env.state, env.render, lambda: env.step({})):
        with pytest.raises(UserError, match="call reset first"):
            ask()
    env.reset(seed=0)
    assert env.state().shape == env.state_space.shape


def test_a_render_mode_there_is_not_is_refused_before_an_episode() -> None:
    with pytest.raises(UserError, match=r"render_mode = 'ansi' .* None or 'rgb_array'"):
        parallel_env("ring", render_mode="ansi")
    env = parallel_env("ring", render_mode="human")  # PettingZoo's render_test wants to make one
    with pytest.raises(UserError, match=r"render_mode = 'human' .* None or 'rgb_array'"):
        env.reset(seed=0)


def test_a_configuration_instead_of_a_preset() -> None:
    changes = ["qmix.gradients=synthetic", "radio.clusters=28", "learning.data_dir=d\u00e4ta"]
    config = load_config("small-cell", changes)
    assert parallel_env(config).config == config
    other = parallel_env(config, max_cycles=3, cell={"side_m": 50.0}).config
    assert differences(config, other) == ["radio.slots", "cell.side_m"]
    assert other.cell.side_m == 50.0
    aec_env(config).reset(seed=0)


def test_the_picture_says_what_it_shows() -> None:
    """A client that has sent half has delivered nothing."""
    nothing = np.zeros((4, 2, 3), dtype=np.float32)  # [slot, band, client]
    axes = round_so_far_figure(nothing, nothing[0, 0], slot=0).axes
    assert axes[1].get_xlabel() == "share sent"


def test_torchrl_accepts_the_environment() -> None:
    """Runs where the `peers` extra is installed."""
    envs = pytest.importorskip("torchrl.envs")
    from torchrl.envs.utils import check_env_specs

    warnings.simplefilter("ignore")
    check_env_specs(
        envs.PettingZooWrapper(parallel_env("small-cell"), return_state=True, use_mask=False)
    )
