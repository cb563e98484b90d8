"""Targets, gradients and mixers against hand and plain-Python calculations."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedfade.agents.learner import Learner
from fedfade.agents.networks import (
    AgentNetworks,
    DuplexMixer,
    MonotonicMixer,
    RankedMixer,
    StackedLinear,
    make_mixer,
)
from fedfade.agents.trained import ClientNetwork
from fedfade.agents.transitions import Batch, ReplayMemory
from fedfade.config import QmixConfig


def random_batch(learner_sizes: tuple[int, int, int, int], size: int, seed: int) -> Batch:
    agents, width, state, actions = learner_sizes
    g = torch.Generator().manual_seed(seed)
    return Batch(
        observation=torch.randn(agents, size, width, generator=g),
        state=torch.randn(1, size, state, generator=g),
        choice=torch.randint(actions, (agents, size), generator=g),
        reward=torch.randn(1, size, generator=g),
        next_observation=torch.randn(agents, size, width, generator=g),
        next_state=torch.randn(1, size, state, generator=g),
        discount=torch.where(torch.rand(1, size, generator=g) < 0.3, 0.0, 0.95),
    )


def test_the_target_by_hand() -> None:
    """Two agents, one observed number, sum mixer; linear networks written down here.

    Online: agent 0 values actions (2z, 1), agent 1 (z, 3 - z); target: agent 0 (z, 10), agent 1
    (5z, 2). For z' = (1, 1) the online choice is action 0 (2 > 1) and action 1 (2 > 1), which the
    target networks value 1 and 2. So y = 0.5 + 0.9 (1 + 2) = 3.2, and 0.5 where the episode ends.
    The target networks' own best actions, as the paper's formula has it, would give 14.
    """
    config = QmixConfig(mixer="vdn", hidden=[4])
    learner = Learner(config, agents=2, width=1, state_width=1, actions=2, seeds=[0])

    def write(networks: AgentNetworks, slopes: list, offsets: list) -> None:
        with torch.no_grad():
            for parameter in networks.parameters():
                parameter.zero_()
            networks.weights[0][:, 0, 0] = 1.0  # first hidden = relu(z), and z is positive
            networks.weights[1][:, 0] = torch.tensor(slopes)
            networks.biases[1].copy_(torch.tensor(offsets)[:, None, :])

    write(learner.agents, [[2.0, 0.0], [1.0, -1.0]], [[0.0, 1.0], [0.0, 3.0]])
    write(learner.target_agents, [[1.0, 0.0], [5.0, 0.0]], [[0.0, 10.0], [0.0, 2.0]])
    one = torch.ones(2, 2, 1)
    state = torch.zeros(1, 2, 1)
    batch = Batch(
        one, state, torch.zeros(2, 2, dtype=torch.int64), torch.tensor([[0.5, 0.5]]), one, state,
        torch.tensor([[0.9, 0.0]]),
    )  # fmt: skip
    torch.testing.assert_close(learner.target(batch), torch.tensor([[[3.2, 0.5]]]))


def plain_values(networks: AgentNetworks, agent: int, observation: list[float]) -> list[float]:
    x = observation
    for layer, (weight, bias) in enumerate(zip(networks.weights, networks.biases, strict=True)):
        w, b = weight[agent].tolist(), bias[agent, 0].tolist()
        x = [b[j] + sum(x[i] * w[i][j] for i in range(len(x))) for j in range(len(b))]
        if layer < len(networks.weights) - 1:
            x = [max(v, 0.0) for v in x]
    return x


def plain_mix(mixer: MonotonicMixer, q: list[float], state: list[float]) -> float:
    def linear(layer: StackedLinear, x: list[float]) -> list[float]:
        w, b = layer.weight[0].T.tolist(), layer.bias[0, 0].tolist()
        return [b[j] + sum(v * w[j][i] for i, v in enumerate(x)) for j in range(len(b))]

    first, second, value, bias = torch.tensor(linear(mixer.enter, state)).split(mixer.parts)
    w1 = [abs(v) for v in linear(mixer.first, first.relu().tolist())]
    w2 = [abs(v) for v in linear(mixer.second, second.relu().tolist())]
    last = linear(mixer.value, value.relu().tolist())[0]
    for unit in range(mixer.width):
        x = float(bias[unit])
        x += sum(q[n] * w1[n * mixer.width + unit] for n in range(len(q)))
        last += w2[unit] * (x if x > 0 else math.expm1(x))
    return last


def test_the_target_of_qmix_in_plain_python() -> None:
    sizes = (3, 5, 7, 4)
    learner = Learner(QmixConfig(hidden=[6, 5]), 3, 5, 7, 4, seeds=[1])
    other = Learner(QmixConfig(hidden=[6, 5]), 3, 5, 7, 4, seeds=[2])
    learner.target_agents.load_state_dict(other.agents.state_dict())
    learner.target_mixer.load_state_dict(other.mixer.state_dict())
    batch = random_batch(sizes, 6, seed=3)
    wanted = []
    for i in range(6):
        q = []
        for agent in range(3):
            z = batch.next_observation[agent, i].tolist()
            online = plain_values(learner.agents, agent, z)
            q.append(plain_values(other.agents, agent, z)[online.index(max(online))])
        total = plain_mix(other.mixer, q, batch.next_state[0, i].tolist())
        wanted.append(float(batch.reward[0, i]) + float(batch.discount[0, i]) * total)
    # float32 against Python floats: a few roundings of values of order 1
    torch.testing.assert_close(
        learner.target(batch)[0, 0], torch.tensor(wanted), atol=2e-6, rtol=2e-5
    )


@pytest.mark.parametrize("mixer", ["qmix", "qplex", "vdn", "independent"])
@pytest.mark.parametrize(("share", "dueling"), [(False, False), (True, False), (True, True)])
def test_an_update_is_torchs_rmsprop_on_the_squared_error(
    mixer: str, share: bool, dueling: bool
) -> None:
    config = QmixConfig(
        mixer=mixer, hidden=[6], share_parameters=share, dueling=dueling, agent_rate=1e-2
    )
    learner = Learner(config, 3, 5, 7, 4, seeds=[1])
    mirror = Learner(config, 3, 5, 7, 4, seeds=[1])
    groups = [{"params": list(mirror.agents.parameters()), "lr": config.agent_rate}]
    if mixer in ("qmix", "qplex"):
        groups.append({"params": list(mirror.mixer.parameters()), "lr": config.mixer_rate})
    reference = torch.optim.RMSprop(groups, alpha=0.99, eps=1e-8)
    for step in range(5):
        batch = random_batch((3, 5, 7, 4), 16, seed=step)
        learner.update(batch)
        target = mirror.target(batch)
        values = mirror.agents(batch.observation)
        q = values.gather(-1, batch.choice[..., None])[..., 0]
        reference.zero_grad()
        total = mirror.mixer(q, batch.state, values, batch.choice)
        (total - target).square().mean().backward()
        reference.step()
        for a, b in zip(learner.agents.parameters(), mirror.agents.parameters(), strict=True):
            # sqrt(v) + eps magnifies float32 rounding of tiny gradients: a hundredth of a step
            torch.testing.assert_close(a, b, atol=1e-2 * config.agent_rate, rtol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 30.0))
def test_q_tot_never_falls_when_an_agents_value_rises(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    mixer = MonotonicMixer(4, 9, width=8, hypernet=16, generators=[generator])
    q = (scale * torch.randn(4, 64, generator=generator)).requires_grad_()
    state = scale * torch.randn(1, 64, 9, generator=generator)
    values, choice = q.detach()[..., None], torch.zeros(4, 64, dtype=torch.int64)
    (slope,) = torch.autograd.grad(mixer(q, state, values, choice).sum(), q)
    assert bool((slope >= 0).all())
    assert bool((slope > 0).any())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 10.0))
def test_the_best_joint_action_is_everybodys_own_best(seed: int, scale: float) -> None:
    """All 64 joint actions of three agents in 20 states of two runs."""
    generators = [torch.Generator().manual_seed(seed + run) for run in range(2)]
    # In double precision: next to a large value float32 rounds a small advantage away.
    mixer = DuplexMixer(3, 5, actions=4, hypernet=16, generators=generators).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(scale)
    values = scale * torch.randn(2 * 3, 20, 4, generator=generators[0]).double()
    state = torch.randn(2, 20, 5, generator=generators[0]).double()
    joint = torch.cartesian_prod(*[torch.arange(4)] * 3)  # [64, agent]
    choice = joint.T.repeat(2, 20)  # [run x agent, state x joint]
    values, state = values.repeat_interleave(64, 1), state.repeat_interleave(64, 1)
    q = values.gather(-1, choice[..., None])[..., 0]
    total = mixer(q, state, values, choice).view(2, 20, 64)
    own = values.view(2, 3, 20, 64, 4)[:, :, :, 0].argmax(-1).movedim(1, -1)  # [run, state, agent]
    assert torch.equal(joint[total.argmax(-1)], own)


def test_the_importance_of_an_advantage_depends_on_the_joint_action() -> None:
    generator = torch.Generator().manual_seed(0)
    mixer = DuplexMixer(2, 3, actions=4, hypernet=16, generators=[generator])
    state = torch.ones(1, 4, 3)
    mine, theirs = torch.zeros(4, dtype=torch.int64), torch.arange(4)
    importance = mixer.importances(state, torch.stack([mine, theirs]))[0, :, 0]
    assert len(importance.unique()) == 4
    assert bool((importance > 0).all())


def test_values_and_weights_learn_as_if_every_lambda_were_one() -> None:
    """What lambda adds changes lambda alone: agents, w and b have the gradients of a plain sum."""
    generator = torch.Generator().manual_seed(0)
    mixer = DuplexMixer(3, 5, actions=4, hypernet=16, generators=[generator])
    values = torch.randn(3, 20, 4, generator=generator, requires_grad=True)
    state = torch.randn(1, 20, 5, generator=generator)
    choice = torch.randint(4, (3, 20), generator=generator)
    upstream = torch.randn(1, 1, 20, generator=generator)
    parts = (mixer.enter, mixer.weight, mixer.value)
    learned = [values, *(p for part in parts for p in part.parameters())]

    def mixed() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        q = values.gather(-1, choice[..., None])[..., 0]
        total = mixer(q, state, values, choice)
        return total.detach(), torch.autograd.grad(total, learned, upstream)

    total, found = mixed()
    with torch.no_grad():
        for parameter in mixer.importance.parameters():
            parameter.zero_()  # lambda = e^0
    plain, wanted = mixed()
    assert float((total - plain).abs().max()) > 0.1
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def mixed_without(
    mixer: nn.Module, q: Tensor, state: Tensor, values: Tensor, choice: Tensor, out: Tensor
) -> Tensor:
    """Q_tot [batch] of one run, a sum over the agents that are not `out` [agent, batch]: their
    terms are left away instead of their values put to 0."""
    if isinstance(mixer, RankedMixer):  # agents in the order the state ends in
        agents, sample = len(q), torch.arange(q.shape[1])
        order = (agents * state[:, -agents:]).round().long().T  # [place, batch]
        state, mixer = state[:, :-agents], mixer.mixer
        q, values, choice, out = (x[order, sample] for x in (q, values, choice, out))
    total = torch.zeros_like(q[0])
    if isinstance(mixer, DuplexMixer):
        for_weight, for_value = mixer.enter(state[None]).relu().chunk(2, dim=-1)
        taken = F.one_hot(choice.T, mixer.actions).flatten(1).float()
        met = mixer.meet(torch.cat([state, taken], -1)[None]).relu()
        importance, weight = (
            torch.exp(5 * torch.tanh(x[0].T / 5))
            for x in (mixer.importance(met), mixer.weight(for_weight))
        )
        total = mixer.value(for_value)[0, :, 0]
        for n in range(len(q)):
            behind = (weight[n] * (q[n] - values[n].amax(-1))).detach()
            term = weight[n] * q[n] + behind * (importance[n] - 1)
            total = total + term.where(~out[n], 0.0)
    elif isinstance(mixer, MonotonicMixer):
        first, second, value, hidden = mixer.enter(state[None])[0].split(mixer.parts, dim=-1)
        weight = mixer.first(first.relu()[None])[0].abs().unflatten(-1, (len(q), -1))
        for n in range(len(q)):
            hidden = hidden + (q[n, :, None] * weight[:, n]).where(~out[n, :, None], 0.0)
        rest = mixer.value(value.relu()[None])[0, :, 0]
        total = rest + (F.elu(hidden) * mixer.second(second.relu()[None])[0].abs()).sum(-1)
    else:
        total = torch.stack([q[n].where(~out[n], 0.0) for n in range(len(q))]).sum(0)
    return total


@pytest.mark.parametrize(
    ("mixer", "ranked"),
    [("qmix", False), ("qmix", True), ("qplex", False), ("qplex", True), ("vdn", False)],
)
def test_who_has_finished_is_left_away(mixer: str, ranked: bool) -> None:
    """Targets, loss and steps of a learner that masks; one that does not has others."""
    config = QmixConfig(
        mixer=mixer,
        hidden=[6],
        agent_rate=1e-2,
        rmsprop_epsilon=1e-5,
        mask_finished=True,
        state="order" if ranked else "client",
    )
    sizes = (3, 5, 7 + 3 * ranked, 4)
    learner, mirror = (Learner(config, *sizes, seeds=[1]) for _ in "ab")
    unmasked = Learner(config.model_copy(update={"mask_finished": False}), *sizes, seeds=[1])
    modules = [mirror.agents, mirror.mixer] if mixer != "vdn" else [mirror.agents]
    rates = [config.agent_rate, config.mixer_rate]
    pairs = zip(modules, rates, strict=False)
    groups = [{"params": list(module.parameters()), "lr": rate} for module, rate in pairs]
    optimiser = torch.optim.RMSprop(groups, alpha=0.99, eps=1e-5)
    for step in range(3):
        g, batch = torch.Generator().manual_seed(step), random_batch(sizes, 16, seed=step)
        masks = torch.rand(2, 3, 16, generator=g) < 0.4
        masks[1] |= masks[0]  # for good
        if ranked:
            order = torch.rand(2, 16, 3, generator=g).argsort(-1) / 3
            batch.state[0, :, -3:], batch.next_state[0, :, -3:] = order
        batch = batch._replace(finished=masks[0], next_finished=masks[1])
        with torch.no_grad():
            best = mirror.agents(batch.next_observation).argmax(-1)
            values = mirror.target_agents(batch.next_observation)
            q = values.gather(-1, best[..., None])[..., 0]
            next_ = (mirror.target_mixer, q, batch.next_state[0], values, best)
            target = batch.reward[0] + batch.discount[0] * mixed_without(*next_, masks[1])
        torch.testing.assert_close(learner.target(batch)[0, 0], target, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(unmasked.target(batch)[0, 0], target, atol=1e-3)
        loss, _ = learner.update(batch)
        values = mirror.agents(batch.observation)
        q = values.gather(-1, batch.choice[..., None])[..., 0]
        total = mixed_without(mirror.mixer, q, batch.state[0], values, batch.choice, masks[0])
        wanted = (total - target).square().mean()
        torch.testing.assert_close(loss[0], wanted.detach(), atol=1e-5, rtol=1e-5)
        optimiser.zero_grad()
        wanted.backward()
        optimiser.step()
    for ours, theirs in ((learner.agents, mirror.agents), (learner.mixer, mirror.mixer)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_shared_network_knows_who_it_is() -> None:
    shared = AgentNetworks(3, 5, [8], 4, [torch.Generator().manual_seed(0)], share=True)
    z = torch.randn(1, 7, 5).expand(3, -1, -1)
    values = shared(z)
    assert not torch.equal(values[0], values[1])
    for agent in range(3):  # the id folded into the bias gives the same values
        torch.testing.assert_close(ClientNetwork(shared, agent)(z[agent]), values[agent])


def test_a_shared_network_without_client_number_treats_all_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    shared = AgentNetworks(3, 5, [8], 4, [generator] * 2, share=True, client_id=False)
    assert shared.sizes == [5, 8, 4]
    z = torch.randn(6, 7, 8, generator=generator)  # two runs; rows are padded
    assert torch.equal(shared(z), shared(z[..., :5]))
    order = torch.tensor([2, 0, 1, 3, 5, 4])  # each run's agents change places
    torch.testing.assert_close(shared(z[order]), shared(z)[order])
    first = AgentNetworks(3, 5, [8], 4, [generator], share=True, client_id=False)
    first.load_state_dict({name: tensor[:1] for name, tensor in shared.state_dict().items()})
    for agent in range(3):
        client = ClientNetwork(first, agent)
        torch.testing.assert_close(client(z[agent, :, :5]), shared(z)[agent])


@pytest.mark.parametrize("mixer", ["qmix", "qplex"])
def test_a_ranked_mixer_does_not_care_for_numbers(mixer: str) -> None:
    """The n-th number of a state and a mixer's n-th weight belong to rank n, whoever has it."""
    generator = torch.Generator().manual_seed(0)
    config = QmixConfig(mixer=mixer, state="order")
    ranked = make_mixer(config, 4, 9 + 4, 3, [generator] * 2)
    values = torch.randn(8, 20, 3, generator=generator)  # [run x agent, batch, action]
    choice = torch.randint(3, (8, 20), generator=generator)
    state = torch.randn(2, 20, 9, generator=generator)
    clients = torch.rand(2, 20, 4, generator=generator).argsort(-1)

    def total(values: torch.Tensor, choice: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
        q = values.gather(-1, choice[..., None])[..., 0]
        return ranked(q, torch.cat([state, clients / 4], -1), values, choice)

    new = torch.tensor([2, 0, 3, 1])  # client n is now called by the place of n in it
    by_run = (torch.arange(2)[:, None] * 4 + new).flatten()
    wanted = total(values, choice, clients)
    found = total(values[by_run], choice[by_run], new.argsort()[clients])
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(total(values, choice, new.argsort()[clients]), wanted)


def test_what_a_client_carries_is_what_its_agent_does() -> None:
    """The value of the slot and the head start of the planned action are folded in."""
    generator = torch.Generator().manual_seed(0)
    preference = (torch.randn(5, 4, generator=generator), torch.randn(4, generator=generator))
    agents = AgentNetworks(3, 5, [8], 4, [generator], True, True, preference)
    with torch.no_grad():
        for parameter in agents.parameters():
            parameter.normal_(generator=generator)
    z = torch.randn(3, 200, 5, generator=generator)
    choice = agents.choose(z, agents(z))
    assert not torch.equal(choice, agents(z).argmax(-1))
    for agent in range(3):
        assert torch.equal(ClientNetwork(agents, agent)(z[agent]).argmax(-1), choice[agent])


@pytest.mark.parametrize("n_step", [1, 3, 6])
def test_replay_returns_what_was_stored(n_step: int) -> None:
    """Rewards and observations are numbered, so each sampled transition can be checked."""
    slots, episodes, gamma = 5, 4, 0.9
    replay = ReplayMemory(40, episodes, agents=2, width=1, state_width=1, slots=slots, seeds=[0])

    def number(batch: int, slot: int) -> torch.Tensor:
        return (1000.0 * batch + slot) + 100.0 * torch.arange(episodes)

    for batch in range(7):
        for slot in range(slots):
            seen = number(batch, slot)
            replay.see(torch.tensor([slot]), seen.expand(2, -1)[..., None], seen[None, :, None])
            if batch or slot >= n_step:
                update = torch.tensor(10 * batch + slot)
                replay.draw_ahead(update, 1, 64)
                drawn = replay.sample(update, gamma, n_step)
                check(drawn, slots, gamma, n_step)
            replay.act(torch.full((2, episodes), slot), seen[None])
    assert replay.rows == 11  # ten rows of four, and the one being written


def test_three_steps_by_hand() -> None:
    """Rewards 1, 2, 4, 8, 16 halved a step: 1 + 1 + 1 from the first slot, and an eighth of what
    follows; from the third on the episode ends within three steps, and nothing follows."""
    replay = ReplayMemory(20, 1, agents=1, width=1, state_width=1, slots=5, seeds=[0])
    for row in range(8):  # an episode, and the beginning of the next
        place = torch.full((1, 1, 1), float(row))
        replay.see(torch.tensor([row % 5]), place, place)
        replay.act(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[2.0 ** (row % 5)]]))
    replay.see(torch.tensor([3]), place, place)
    replay.draw_ahead(torch.tensor(0), 1, 200)
    drawn = replay.sample(torch.tensor(0), 0.5, 3)
    seen = torch.stack([drawn.state[0, :, 0], drawn.reward[0], drawn.discount[0]], -1)
    assert set(map(tuple, seen.tolist())) == {
        (0, 3.0, 0.125),
        (1, 6.0, 0.125),
        (2, 12.0, 0.0),
        (3, 16.0, 0.0),
        (4, 16.0, 0.0),
        (5, 3.0, 0.125),
    }


def check(drawn: Batch, slots: int, gamma: float, n_step: int) -> None:
    here = drawn.state[0, :, 0]
    assert torch.equal(drawn.observation[0, :, 0], here)
    slot = drawn.choice[0]
    assert torch.equal(slot, (here % 100).long())
    left = torch.clamp(slots - slot, max=n_step)
    total = sum(torch.where(k < left, gamma**k * (here + k), 0.0) for k in range(n_step))
    torch.testing.assert_close(drawn.reward[0], total)
    goes_on = slot + n_step < slots
    assert torch.equal(drawn.discount[0], torch.where(goes_on, gamma**n_step, 0.0))
    assert torch.equal(drawn.next_state[0, goes_on, 0], here[goes_on] + n_step)
    assert torch.equal(drawn.next_observation[1, goes_on, 0], here[goes_on] + n_step)


def test_replay_draws_every_transition_alike() -> None:
    replay = ReplayMemory(100, 10, agents=1, width=1, state_width=1, slots=1000, seeds=[0])
    for slot in range(25):
        place = 10.0 * slot + torch.arange(10)
        replay.see(torch.tensor([slot]), place[None, :, None], place[None, :, None])
        replay.act(torch.zeros(1, 10, dtype=torch.int64), place[None])
    replay.see(torch.tensor([25]), torch.zeros(1, 10, 1), torch.zeros(1, 10, 1))
    replay.draw_ahead(torch.tensor(0), 200, 512)
    drawn = torch.cat([replay.sample(torch.tensor(u), 0.9).reward[0] for u in range(200)])
    counts = torch.bincount(drawn.long(), minlength=250)
    assert counts[:150].sum() == 0  # only the newest 100 are kept
    # 102400 draws over 100 places: 1024 each, standard deviation 32
    assert int((counts[150:] - 1024).abs().max()) < 5 * 32
