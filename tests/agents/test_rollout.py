"""What a training stores of its episodes against a plain loop over slots."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedfade import uplink
from fedfade.agents import Trainer
from fedfade.config import Config, load_config

EPISODES, CLIENTS = 20, 4


@pytest.fixture
def held(overrides: list[str], request: pytest.FixtureRequest) -> Config:
    """Eleven slots in decisions of four, four and three; some finish in the middle of one."""
    changes = ["radio.slots=11", "qmix.hold_slots=4", "learning.payload_bits=2e5"]
    changes += ["allocation.reward.finished=0.05", "qmix.mask_finished=true", "qmix.batch_size=20"]
    return load_config("small-cell", [*overrides, *changes, *request.param])


class Decision(NamedTuple):
    """What was seen, and earned until the next: [episode, ...]."""

    seen: Tensor
    state: Tensor
    finished: Tensor
    reward: Tensor


def played_plainly(config: Config, choices: Tensor) -> tuple[list[Decision], Tensor]:
    """The first batch with these choices [decision, episode, client] a slot at a time; and who
    delivered [episode, client]."""
    rounds = uplink.Rounds(config, uplink.gradient_source(config), EPISODES, [config.run.seed])
    scenario, round_ = rounds.scenario, rounds.round(0)
    hold, slots, weight = config.qmix.hold_slots, config.radio.slots, config.qmix.advance
    inner = uplink.normalised_inner(round_.inner)
    progress, found = uplink.start_round(scenario, EPISODES), []

    def potential(progress: uplink.Progress) -> Tensor:
        sent = 1 - progress.remaining_bits / scenario.payload_bits
        return weight * torch.where(progress.finished, 0.0, sent).sum(-1)

    for number, choice in enumerate(choices):
        first = number * hold
        seen = uplink.observe(scenario, round_, progress, first)
        state = uplink.global_state(scenario, round_, progress, first)
        finished, reward = progress.finished, -potential(progress)
        for slot in range(first, min(first + hold, slots)):
            action = uplink.decode_action(scenario, choice, slot)
            air = uplink.slot_air(scenario, round_, slot)
            after, result = uplink.play_slot(scenario, progress, air, action)
            reward = reward + uplink.slot_reward(scenario, inner, progress, after, result)
            progress = after
        if number < len(choices) - 1:
            reward = reward + config.qmix.gamma * potential(progress)
        found.append(Decision(seen, state, finished, reward))
    return found, progress.finished


@pytest.mark.parametrize(
    "held",
    [
        [],
        ["qmix.hop_subbands=true", "qmix.advance=0.7"],
        ["qmix.power=binary", "qmix.hop_subbands=true"],
        ["qmix.hold_slots=1", "qmix.state=order"],
        ["cost.speed_spread=0.01", "run.deadline=adaptive", "allocation.observe=[ready, order]"],
        ["radio.link=nr", "learning.payload_bits=5e4"],
        ["radio.receive_antennas=2", "cell.interference_cells=2", "learning.payload_bits=3e5"],
    ],
    indirect=True,
)
def test_a_batch_of_episodes_is_a_plain_loop(held: Config) -> None:
    """Everything is explored in the first batch, so that the memory says what was done."""
    trainer = Trainer(held)
    (report,) = trainer.play_batch()
    memory, decisions = trainer.replay, trainer.scenario.decisions
    assert decisions == (11 if held.qmix.hold_slots == 1 else 3)

    def rows(stored: Tensor) -> Tensor:  # [part, row x episode, ...] -> [row, episode, part, ...]
        by_row = stored.unflatten(1, (memory.rows, EPISODES))
        return by_row[:, :decisions].permute(1, 2, 0, *range(3, by_row.ndim))

    choices = rows(memory.choice)
    assert choices.unique().tolist() == [*range(trainer.scenario.actions)]
    wanted, delivered = played_plainly(held, choices)
    assert 0 < int(delivered.sum()) < delivered.numel()
    assert torch.equal(trainer.rollout.delivered[0], delivered)
    width = uplink.observation_width(trainer.scenario)
    seen, state, finished, reward = (torch.stack(parts) for parts in zip(*wanted, strict=True))
    torch.testing.assert_close(rows(memory.observation)[..., :width], seen, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(rows(memory.state)[:, :, 0], state, atol=2e-6, rtol=1e-5)
    assert torch.equal(rows(memory.finished), finished)
    assert bool(finished.any())
    torch.testing.assert_close(rows(memory.reward)[..., 0], reward, atol=2e-6, rtol=1e-5)
    if not held.qmix.advance:
        assert report.reward == pytest.approx(float(reward.sum(0).mean()), rel=1e-5)


@pytest.mark.parametrize("held", [["qmix.hold_slots=1", "qmix.explore_decisions=4"]], indirect=True)
def test_a_whim_lasts_and_begins_at_any_decision(held: Config) -> None:
    """Who explores keeps to what was drawn for four decisions, or until the round ends."""
    trainer = Trainer(held)
    trainer.play_batch()
    decisions = trainer.scenario.decisions
    choices = trainer.replay.choice.unflatten(1, (-1, EPISODES))[:, :decisions]  # of all explored
    rows = choices.transpose(1, 2).flatten(0, 1)  # [agent x episode, decision]
    begins = torch.zeros(4)
    for row in rows:
        kept = [phase for phase in range(4) if _constant(row, phase)]
        assert kept
        if len(kept) == 1:
            begins[kept[0]] += 1
    assert (begins > 5).all()
    assert len(rows.unique()) == trainer.scenario.actions


def _constant(row: Tensor, phase: int) -> bool:
    """Whether a row changes at decisions 4 - phase, 8 - phase and so on alone."""
    change = 1 + (row[1:] != row[:-1]).nonzero()
    return not ((change + phase) % 4).any()


def test_whims_are_as_frequent_as_single_choices(overrides: list[str]) -> None:
    shares = []
    for lasting in (1, 5):
        changes = [f"qmix.explore_decisions={lasting}", "qmix.epsilon_start=0.3"]
        trainer = Trainer(load_config("small-cell", [*overrides, *changes, "radio.slots=100"]))
        trainer.play_batch()
        shares.append(float(trainer.rollout._explores.float().mean()))
    assert shares == pytest.approx([0.3, 0.3], abs=0.03)


@pytest.mark.parametrize("held", [["qmix.hold_slots=3"]], indirect=True)
@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_steps_to_look_ahead_are_decisions(held: Config, n_step: int) -> None:
    """Rewards of n decisions, each a sum over its slots, discounted by decisions; nothing follows
    the last one, which is held for two slots."""
    trainer = Trainer(held)
    trainer.play_batch()
    memory = trainer.replay
    choices = memory.choice[:, : 4 * EPISODES].view(CLIENTS, 4, EPISODES).permute(1, 2, 0)
    wanted, _ = played_plainly(held, choices)
    memory.draw_ahead(torch.tensor(0), 1, 200)
    gamma = torch.tensor([[0.9]])
    drawn = memory.sample(torch.tensor(0), gamma, n_step)
    states = torch.stack([decision.state for decision in wanted])  # [decision, episode, width]
    places = set()
    for sample in range(200):
        apart = (states - drawn.state[0, sample]).abs().amax(-1)
        decision, episode = divmod(int(apart.argmin()), EPISODES)
        assert float(apart.min()) < 1e-5
        places.add((decision, episode))
        following = range(decision, min(decision + n_step, 4))
        total = sum(0.9 ** (n - decision) * float(wanted[n].reward[episode]) for n in following)
        assert float(drawn.reward[0, sample]) == pytest.approx(total, rel=1e-5, abs=1e-6)
        goes_on = decision + n_step < 4
        assert float(drawn.discount[0, sample]) == pytest.approx(0.9**n_step * goes_on)
        assert torch.equal(drawn.finished[:, sample], wanted[decision].finished[episode])
        if goes_on:
            later = wanted[decision + n_step]
            assert torch.equal(drawn.next_finished[:, sample], later.finished[episode])
            following = drawn.next_state[0, sample]
            torch.testing.assert_close(following, later.state[episode], atol=2e-6, rtol=1e-5)
    assert {decision for decision, _ in places} == {*range(4 - n_step + 1)}


@pytest.mark.parametrize("held", [["qmix.algorithm=mappo"]], indirect=True)
def test_policy_gradients_play_the_same_rounds(held: Config) -> None:
    """What they drew, played plainly; who has finished has no say, and figures are means."""
    trainer = Trainer(held)
    figures = []
    update = trainer.learner.update
    trainer.learner.update = lambda *given: figures.append(update(*given)) or figures[-1]
    (report,) = trainer.play_batch()
    memory = trainer.memory
    wanted, delivered = played_plainly(held, memory.choice.mT)
    assert torch.equal(trainer.rollout.delivered[0], delivered)
    width = uplink.observation_width(trainer.scenario)
    for number, decision in enumerate(wanted):
        assert torch.equal(memory.active[number].T == 0, decision.finished)
        seen = memory.observation[number].transpose(0, 1)[..., :width]
        torch.testing.assert_close(seen, decision.seen, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(memory.reward[number, 0], decision.reward, atol=2e-6, rtol=1e-5)
    assert bool((memory.active[:-1] == 0).any())
    ((loss, value),) = figures
    assert report[3:5] == pytest.approx((float(loss), float(value)))
    assert trainer.learned == int(trainer.learner.updates) == 16
