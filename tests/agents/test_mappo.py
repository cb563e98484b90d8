"""MAPPO against plain loops and torch.nn, run by run, and on a packing problem by hand."""

import math

import pytest
import torch
from torch import nn

from fedfade.agents.mappo import EpisodeMemory, MappoLearner, advantages
from fedfade.agents.networks import AgentNetworks
from fedfade.config import QmixConfig, load_config
from fedfade.errors import UserError
from fedfade.randomness import fold, streams

AGENTS, WIDTH, STATE, ACTIONS = 3, 5, 7, 4


def config_of(share: bool = False, **mappo: object) -> QmixConfig:
    return QmixConfig(
        algorithm="mappo",
        hidden=[6, 5],
        share_parameters=share,
        client_id=not share,
        gamma=0.9,
        parallel_episodes=12,
        mappo={"value_hidden": [8], "rate": 0.01, "critic_rate": 0.02, **mappo},
    )


def played(runs: int, seed: int, decisions: int = 4, episodes: int = 12) -> EpisodeMemory:
    """Any numbers. An agent that has finished stays so; the log-probabilities are of agents that
    have since changed their minds."""
    generator = torch.Generator().manual_seed(seed)
    memory = EpisodeMemory(decisions, episodes, AGENTS, WIDTH, STATE, runs)
    by_agent = (runs * AGENTS, episodes)
    finished = torch.zeros(by_agent, dtype=torch.bool)
    for number in range(decisions):
        place = torch.tensor([number])
        seen = torch.randn(*by_agent, WIDTH, generator=generator)
        state = torch.randn(runs, episodes, STATE, generator=generator)
        memory.see(place, seen, state, finished)
        choice = torch.randint(ACTIONS, by_agent, generator=generator)
        log_prob = math.log(1 / ACTIONS) + 0.3 * torch.randn(by_agent, generator=generator)
        reward = 2.0 + torch.randn(runs, episodes, generator=generator)
        memory.act(choice, reward, torch.randint(ACTIONS, by_agent, generator=generator))
        memory.log_prob[number] = log_prob
        finished = finished | (torch.rand(by_agent, generator=generator) > 0.7)
    return memory


def part_of(memory: EpisodeMemory, run: int) -> EpisodeMemory:
    """One run's episodes by themselves."""
    alone = EpisodeMemory(memory.decisions, memory.episodes, AGENTS, WIDTH, STATE, 1)
    for name in ("observation", "choice", "lesson", "log_prob", "active"):
        getattr(alone, name).copy_(getattr(memory, name).chunk(memory.state.shape[1], 1)[run])
    for name in ("state", "reward"):
        getattr(alone, name).copy_(getattr(memory, name)[:, run : run + 1])
    return alone


@pytest.mark.parametrize(("gamma", "trace"), [(0.9, 0.8), (1.0, 1.0), (0.5, 0.0)])
def test_advantages_by_a_plain_loop(gamma: float, trace: float) -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn(2, 2, 6, 3, generator=generator)  # [run, decision, episode]
    found, returns = advantages(reward, value, torch.full((2, 1, 1), gamma), trace)
    for run in range(2):
        for episode in range(3):
            ahead, following = 0.0, 0.0
            for t in reversed(range(6)):
                here = float(value[run, t, episode])
                ahead *= gamma * trace
                ahead += float(reward[run, t, episode]) + gamma * following - here
                following = here
                assert float(found[run, t, episode]) == pytest.approx(ahead, abs=1e-5)
                assert float(returns[run, t, episode]) == pytest.approx(ahead + here, abs=1e-5)


class Plain:
    """One run, with torch.nn: own networks or one for all, and a critic."""

    def __init__(self, learner: MappoLearner, share: bool) -> None:
        self.share, self.mappo, self.gamma = share, learner.config.mappo, learner.config.gamma
        self.actors = nn.ModuleList(self.perceptron(6, 5, ACTIONS) for _ in range(AGENTS))
        if share:
            self.actors = nn.ModuleList([self.actors[0]])
        self.critic = nn.Sequential(nn.Linear(STATE, 8), nn.ReLU(), nn.Linear(8, 1))
        self.copy_from(learner)
        self.optimisers = [
            torch.optim.Adam(self.actors.parameters(), lr=self.mappo.rate, eps=1e-5),
            torch.optim.Adam(self.critic.parameters(), lr=self.mappo.critic_rate, eps=1e-5),
        ]
        self.batches: list[torch.Tensor] = []  # returns of each batch

    @staticmethod
    def perceptron(first: int, second: int, out: int) -> nn.Sequential:
        layers = [nn.Linear(WIDTH, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(second, out))

    def copy_from(self, learner: MappoLearner) -> None:
        for mine, theirs in self.pairs(learner):
            mine.data.copy_(theirs)

    def pairs(self, learner: MappoLearner) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Our parameters and those of the learner, cut to size."""
        found = []
        for agent, actor in enumerate(self.actors):
            linear = [layer for layer in actor if isinstance(layer, nn.Linear)]
            weights = zip(linear, learner.agents.weights, learner.agents.biases, strict=True)
            for layer, weight, bias in weights:
                rows, columns = layer.in_features, layer.out_features
                found.append((layer.weight, weight[agent, :rows, :columns].T))
                found.append((layer.bias, bias[agent, 0, :columns]))
        for layer, theirs in zip(self.critic[::2], learner.critic.layers, strict=True):
            found += [(layer.weight, theirs.weight[0].T), (layer.bias, theirs.bias[0, 0])]
        return found

    def normal(self) -> tuple[float, float]:
        weights = [0.99 ** (len(self.batches) - 1 - i) for i in range(len(self.batches))]
        if not weights:
            return 0.0, 1.0

        def mean(power: int) -> float:
            parts = zip(weights, self.batches, strict=True)
            return sum(w * float((b.double() ** power).mean()) for w, b in parts) / sum(weights)

        return mean(1), math.sqrt(mean(2) - mean(1) ** 2)

    def update(self, memory: EpisodeMemory, done: float, lessons: float) -> None:
        decisions, episodes = memory.decisions, memory.episodes
        state, reward = memory.state[:-1, 0], memory.reward[:, 0]  # [decision, episode, ...]
        mean, deviation = self.normal()
        with torch.no_grad():
            value = mean + deviation * self.critic(state)[..., 0]
        advantage, returns = torch.zeros_like(value), torch.zeros_like(value)
        for e in range(episodes):
            for t in range(decisions):
                total, decay = 0.0, 1.0
                for s in range(t, decisions):
                    after = float(value[s + 1, e]) if s + 1 < decisions else 0.0
                    total += decay * float(reward[s, e] + self.gamma * after - value[s, e])
                    decay *= self.gamma * self.mappo.gae_lambda
                advantage[t, e], returns[t, e] = total, total + float(value[t, e])
        self.batches.append(returns)
        mean, deviation = self.normal()
        say = [(t, n, e) for t in range(decisions) for n in range(AGENTS) for e in range(episodes)
               if memory.active[t, n, e] > 0]  # fmt: skip
        heard = torch.stack([advantage[t, e] for t, _, e in say])
        advantage = (advantage - heard.mean()) / heard.std(correction=0)
        losses, clip = [], self.mappo.clip
        start, end = self.mappo.entropy_start, self.mappo.entropy_end
        for t, n, e in say:
            actor = self.actors[0 if self.share else n]
            policy = torch.distributions.Categorical(logits=actor(memory.observation[t, n, e]))
            ratio = (policy.log_prob(memory.choice[t, n, e]) - memory.log_prob[t, n, e]).exp()
            gain = torch.min(
                ratio * advantage[t, e], ratio.clamp(1 - clip, 1 + clip) * advantage[t, e]
            )
            losses.append(-gain - (start + (end - start) * done) * policy.entropy())
            losses[-1] = losses[-1] - lessons * policy.log_prob(memory.lesson[t, n, e])
        loss = torch.stack(losses).mean()
        error = (self.critic(state)[..., 0] - (returns - mean) / deviation).square().mean()
        rates = (self.mappo.rate, self.mappo.critic_rate)
        parts = zip(self.optimisers, (self.actors, self.critic), (loss, error), rates, strict=True)
        for optimiser, module, cost, rate in parts:
            optimiser.zero_grad()
            cost.backward()
            nn.utils.clip_grad_norm_(module.parameters(), self.mappo.max_grad_norm)
            optimiser.param_groups[0]["lr"] = rate * (1 - done)
            optimiser.step()


@pytest.mark.parametrize("longest", [10.0, 0.1])
@pytest.mark.parametrize("share", [False, True])
def test_updates_are_those_of_a_plain_implementation(
    share: bool, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four updates, so that moments, step counts and the running returns are in play."""
    config = config_of(share, epochs=1, minibatches=1, max_grad_norm=longest)
    learner = MappoLearner(config, AGENTS, WIDTH, STATE, ACTIONS, seeds=[1])
    plain = Plain(learner, share)
    for number in range(4):
        memory, done = played(1, seed=number), number / 10
        monkeypatch.setattr(learner, "_remember_odds", lambda memory: None)  # of agents of before
        lessons = 0.3 * number
        learner.update(memory, torch.tensor(done), torch.tensor(lessons))
        plain.update(memory, done, lessons)
        for mine, theirs in plain.pairs(learner):
            # a hundredth of a step: Adam magnifies the rounding of tiny gradients
            torch.testing.assert_close(theirs, mine.detach(), atol=1e-4, rtol=1e-4)


def test_who_has_finished_has_no_say() -> None:
    learners = [MappoLearner(config_of(), AGENTS, WIDTH, STATE, ACTIONS, seeds=[1]) for _ in "ab"]
    memory, other = played(1, seed=0), played(1, seed=0)
    silent = other.active[:-1] == 0
    other.choice[silent] = (other.choice[silent] + 1) % ACTIONS
    other.observation[:-1][silent] += 1.0
    for learner, one in zip(learners, (memory, other), strict=True):
        learner.update(one, torch.tensor(0.0))
    for name, tensor in learners[0].tensors().items():
        torch.testing.assert_close(tensor, learners[1].tensors()[name])


@pytest.mark.parametrize("share", [False, True])
def test_runs_side_by_side_are_those_alone(share: bool) -> None:
    config = config_of(share, epochs=2, minibatches=3)
    sizes = (AGENTS, WIDTH, STATE, ACTIONS)
    both = MappoLearner(config, *sizes, seeds=[4, 5])
    alone = [MappoLearner(config, *sizes, seeds=[seed]) for seed in (4, 5)]
    for number in range(3):
        memory = played(2, seed=number)
        figures = both.update(memory, torch.tensor(0.1))
        for run, learner in enumerate(alone):
            found = learner.update(part_of(memory, run), torch.tensor(0.1))
            for ours, theirs in zip(figures, found, strict=True):
                torch.testing.assert_close(ours[run : run + 1], theirs, rtol=1e-4, atol=1e-5)
            for name, tensor in learner.take(0).items():
                torch.testing.assert_close(both.take(run)[name], tensor, rtol=1e-4, atol=1e-5)
            for name, tensor in learner.kept.of(0).items():
                torch.testing.assert_close(both.kept.of(run)[name], tensor, rtol=1e-4, atol=1e-5)
    keys, seen = streams([4, 5], "test"), memory.observation[0]
    for run, learner in enumerate(alone):
        own = seen.chunk(2)[run]
        choice = learner.agents.draw(own, learner.agents(own), keys[run : run + 1])
        together = both.agents.draw(seen, both.agents(seen), keys)
        assert torch.equal(together.chunk(2)[run], choice)


def test_a_run_may_have_its_own_discount() -> None:
    configs = [config_of(), config_of().model_copy(update={"gamma": 0.5})]
    sizes = (AGENTS, WIDTH, STATE, ACTIONS)
    both, memory = MappoLearner(configs, *sizes, seeds=[4, 5]), played(2, seed=0)
    both.update(memory, torch.tensor(0.0))
    for run, config in enumerate(configs):
        alone = MappoLearner(config, *sizes, seeds=[4 + run])
        alone.update(part_of(memory, run), torch.tensor(0.0))
        torch.testing.assert_close(both.take(run)["critic"], alone.take(0)["critic"])


def test_the_mean_of_the_agents_forgets_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The initial weights count nothing after one step; later ones for less and less."""
    config = config_of(epochs=3, minibatches=2).model_copy(update={"average_weights": 0.25})
    learner = MappoLearner(config, AGENTS, WIDTH, STATE, ACTIONS, seeds=[1])
    steps: list[torch.Tensor] = []
    update = learner.kept.update
    monkeypatch.setattr(
        learner.kept,
        "update",
        lambda count: steps.append(learner.agents.weights[0].detach().clone()) or update(count),
    )
    learner.update(played(1, seed=0), torch.tensor(0.0))
    wanted = torch.full_like(steps[0], torch.nan)
    for number, now in enumerate(steps):
        weight = max(0.75, 10 / (number + 10))
        wanted = weight * now + (1 - weight) * wanted if number else now
    assert len(steps) == 6
    torch.testing.assert_close(learner.kept.of(0)["weights.0"], wanted)


def test_a_continuation_is_exact() -> None:
    config, sizes = config_of(epochs=2, minibatches=2), (AGENTS, WIDTH, STATE, ACTIONS)
    whole, later = (MappoLearner(config, *sizes, seeds=[1, 2]) for _ in "ab")
    for number in range(4):
        if number == 2:
            taken = [{n: t.clone() for n, t in whole.take(run).items()} for run in range(2)]
            for run, found in enumerate(taken):
                later.put(run, found)
        whole.update(played(2, seed=number), torch.tensor(number / 4))
        if number >= 2:
            later.update(played(2, seed=number), torch.tensor(number / 4))
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, later.tensors()[name]), name


def test_every_pass_takes_every_episode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(epochs=3, minibatches=2)
    learner = MappoLearner(config, AGENTS, WIDTH, STATE, ACTIONS, seeds=[1, 2])
    taken: list[torch.Tensor] = []
    pick = learner._pick

    def note(memory: EpisodeMemory, episodes: torch.Tensor) -> object:
        taken.append(episodes)
        sample = pick(memory, episodes)
        for run in range(2):  # [decision, episode] of the reward's place, in a row
            wanted = memory.advantage[run][:, episodes[run]].flatten()
            assert torch.equal(sample.advantage[run], wanted)
            for agent in range(AGENTS):
                row = run * AGENTS + agent
                seen = memory.observation[:-1, row][:, episodes[run]].flatten(0, 1)
                assert torch.equal(sample.observation[row], seen)
        return sample

    monkeypatch.setattr(learner, "_pick", note)
    learner.update(played(2, seed=0), torch.tensor(0.0))
    for first in range(0, 6, 2):
        both = torch.cat(taken[first : first + 2], -1)
        assert torch.equal(both.sort(-1).values, torch.arange(12).expand(2, -1))
    assert not torch.equal(taken[0], taken[2])


def test_actions_are_drawn_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]])[:, None].expand(2, 50_000, 3)
    networks = AgentNetworks(2, 1, [4], 3, [torch.Generator()])
    choice = networks.draw(torch.zeros(2, 50_000, 1), logits, torch.tensor([3]))
    wanted = logits[:, 0].softmax(-1)
    for agent in range(2):
        share = torch.bincount(choice[agent], minlength=3) / 50_000
        # standard deviation of a share: at most 0.0023
        torch.testing.assert_close(share, wanted[agent], atol=0.01, rtol=0.0)


def test_two_clients_learn_to_pack() -> None:
    """Three decisions, two sub-bands, a shared network that knows ranks and no numbers. A sub-band
    used alone pays 1; in decision 1 only the second one pays, and only for rank 0."""
    config = QmixConfig(
        algorithm="mappo",
        hidden=[16],
        share_parameters=True,
        client_id=False,
        mappo={"rate": 0.01, "critic_rate": 0.01, "value_hidden": [16]},
    )
    runs, episodes, decisions, batches = 3, 64, 3, 30
    learner = MappoLearner(config, 2, 5, 3, 3, seeds=range(runs))  # sub-band 0, 1, or silence
    memory = EpisodeMemory(decisions, episodes, 2, 5, 3, runs)
    keys = streams(range(runs), "actions")
    generator = torch.Generator().manual_seed(0)

    def play(number: int, greedy: bool) -> torch.Tensor:
        rank = torch.rand(runs, 2, episodes, generator=generator).argsort(1).flatten(0, 1)
        total = torch.zeros(runs, episodes)
        for t in range(decisions):
            clock = torch.eye(decisions)[t]
            seen = torch.cat([torch.eye(2)[rank], clock.expand(2 * runs, episodes, 3)], -1)
            nobody = torch.zeros(2 * runs, episodes, dtype=torch.bool)
            memory.see(torch.tensor([t]), seen, clock.expand(runs, episodes, 3), nobody)
            values = learner.agents(seen)
            choice = learner.agents.draw(seen, values, fold(fold(keys, number), t))
            choice = learner.agents.choose(seen, values) if greedy else choice
            by_run, first = choice.view(runs, 2, -1), (rank == 0).view(runs, 2, -1)
            reward = torch.zeros(runs, episodes)
            for band in (0, 1):
                users = by_run == band
                good = users.sum(1) == 1
                if t == 1:
                    good &= (band == 1) & (users & first).any(1)
                reward += good.float()
            memory.act(choice, reward)
            total += reward
        return total.mean(1)

    assert float(play(-1, greedy=False).max()) < 3.5
    for number in range(batches):
        play(number, greedy=False)
        learner.update(memory, torch.tensor(number / batches))
    assert play(batches, greedy=True).tolist() == [5.0] * runs  # 2 + 1 + 2


def test_the_critic_does_not_see_numbers_of_clients() -> None:
    config = config_of().model_copy(update={"state": "order"})
    learner = MappoLearner(config, AGENTS, WIDTH, STATE + AGENTS, ACTIONS, seeds=[1])
    assert learner.critic.layers[0].weight.shape == (1, STATE, 8)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"qmix\.mappo\.minibatches = 3 .* divisor of .* = 20"):
        load_config("paper", ["qmix.algorithm=mappo", "qmix.mappo.minibatches=3"])
    with pytest.raises(UserError, match=r"qmix\.client_id = False .* true unless qmix\.share"):
        load_config("paper", ["qmix.client_id=false"])
