"""A teacher shows what it would do, in training alone."""

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.agents.learner import Learner
from fedfade.agents.mappo import EpisodeMemory
from fedfade.agents.transitions import Batch
from fedfade.allocation import Action, View, load_policy, play_round
from fedfade.config import Config, QmixConfig, load_config
from fedfade.errors import UserError
from fedfade.randomness import streams

SMALL = ["radio.slots=12", "learning.payload_bits=2e5", "qmix.batch_size=20"]


def taught(overrides: list[str], *changes: str) -> Config:
    teacher = ["qmix.teacher=wrap-around-schedule", "qmix.lesson_episodes=60"]
    return load_config("small-cell", [*overrides, *SMALL, *teacher, *changes])


@pytest.mark.parametrize(
    "changes", [[], ["qmix.power=binary"], ["qmix.power=binary", "qmix.hop_subbands=true"]]
)
def test_what_the_teacher_plays_is_what_the_policy_plays(
    overrides: list[str], changes: list[str]
) -> None:
    """The whole first batch: the same bits get through as under the policy."""
    trainer = Trainer(taught(overrides, *changes))
    round_ = trainer.rounds.round(0)
    trainer.play_batch()
    keys = streams(range(trainer.rollout.episodes), "any")
    played = play_round(load_policy("wrap-around-schedule"), trainer.scenario, round_, keys)
    sent = trainer.scenario.payload_bits - trainer.rollout.remaining_bits
    torch.testing.assert_close(sent, played.bits)
    assert played.delivered.any()


def test_a_share_of_the_episodes_is_taught(overrides: list[str]) -> None:
    """The others are as they would be without a teacher."""
    trainer, alone = (
        Trainer(taught(overrides, *changes))
        for changes in (["qmix.lessons=0.25"], ["qmix.teacher=none"])
    )
    trainer.play_batch(), alone.play_batch()
    same = (trainer.rollout.remaining_bits == alone.rollout.remaining_bits).all(-1)
    quarter = len(same) // 4
    assert same[quarter:].all()
    assert not same[:quarter].any()


def test_lessons_end(overrides: list[str]) -> None:
    trainer = Trainer(taught(overrides))
    weights = [trainer.lessons()]
    for _ in range(4):
        trainer.play_batch()
        weights.append(trainer.lessons())
    assert weights == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0, 0.0])


def test_a_decision_that_is_held_is_that_of_its_middle(overrides: list[str]) -> None:
    """Under MAPPO every decision is remembered with what the teacher would have done."""
    changes = ["qmix.algorithm=mappo", "qmix.hold_slots=5", "qmix.power=binary"]
    trainer = Trainer(taught(overrides, *changes, "allocation.observe=[alphas,slots_left]"))
    round_, scenario = trainer.rounds.round(0), trainer.scenario
    trainer.play_batch()
    assert isinstance(trainer.memory, EpisodeMemory)
    policy = load_policy("wrap-around-schedule")
    keys = streams(range(trainer.rollout.episodes), "any")
    played = play_round(policy, scenario, round_, keys, record=True)
    assert played.history is not None
    # Before anybody is done, what the plan says is a matter of the slot alone.
    for decision, slot in enumerate((2, 7, 11)):
        band, level = played.history.band[slot], played.history.level[slot]
        sends = level == scenario.full_level
        lesson = trainer.memory.lesson[decision].T
        early = (played.history.remaining_bits[slot] > 0) & (lesson < scenario.bands)
        assert torch.equal(lesson[early & sends], band[early & sends])


def test_agents_that_see_their_fading_are_shown_the_slot_they_see(overrides: list[str]) -> None:
    """What the plan does in the first slot of a held decision, sub-band chosen by its fading."""
    changes = ["qmix.algorithm=mappo", "qmix.hold_slots=5", "qmix.power=binary"]
    changes += ["allocation.observe=[order,slots_left,fading]", "qmix.teacher=wrap-around-choice"]
    trainer = Trainer(taught(overrides, *changes))
    round_, scenario = trainer.rounds.round(0), trainer.scenario
    trainer.play_batch()
    assert isinstance(trainer.memory, EpisodeMemory)
    keys = streams(range(trainer.rollout.episodes), "any")
    played = play_round(load_policy("wrap-around-choice"), scenario, round_, keys, record=True)
    assert played.history is not None
    band, level = played.history.band[0], played.history.level[0]
    wanted = torch.where(level == scenario.full_level, band, scenario.bands)
    assert torch.equal(trainer.memory.lesson[0].T, wanted)


@pytest.mark.parametrize("masked", [True, False])
def test_values_are_drawn_to_what_the_teacher_did(masked: bool) -> None:
    """One update against autograd: TD error and cross entropy of values by the margin."""
    options = {"mixer": "vdn", "hidden": [6], "optimiser": "adam", "mask_finished": masked}
    config = QmixConfig(**options, agent_rate=0.01, lesson_margin=0.2)  # type: ignore[arg-type]
    learner = Learner(config, agents=3, width=5, state_width=2, actions=4, seeds=[1])
    g = torch.Generator().manual_seed(2)
    seen, then = torch.randn(2, 3, 8, 5, generator=g)
    choice, lesson = torch.randint(4, (2, 3, 8), generator=g)
    finished, nobody = torch.rand(3, 8, generator=g) < 0.3, torch.zeros(3, 8, dtype=torch.bool)
    state, reward = torch.zeros(1, 8, 2), torch.randn(1, 8, generator=g)
    masks = (finished, nobody) if masked else (None, None)
    fields = (seen, state, choice, reward, then, state, torch.full((1, 8), 0.9))
    batch = Batch(*fields, *masks, lesson)
    weights = [parameter.detach().clone() for parameter in learner.agents.parameters()]
    target = learner.target(batch)[0, 0]
    learner.update(batch, torch.tensor(0.5))

    parameters = [weight.clone().requires_grad_() for weight in weights]
    w0, w1, b0, b1 = parameters  # padded to quadruples
    padded = torch.nn.functional.pad(seen, (0, w0.shape[1] - 5))
    values = (padded @ w0 + b0).relu() @ w1 + b1  # [agent, batch, action]
    active = ~finished if masked else ~nobody
    total = (values.gather(-1, choice[..., None])[..., 0] * active).sum(0)
    loss = (total - target).square().mean()
    own = torch.nn.functional.cross_entropy(values[active] / 0.2, lesson[active], reduction="sum")
    (loss + 0.5 * 0.2 * own / 8).backward()
    torch.optim.Adam(parameters, lr=0.01).step()
    for mine, wanted in zip(learner.agents.parameters(), parameters, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", ["qmix.algorithm=mappo", "qmix.lesson_margin=0.1"])
def test_continued_exactly(overrides: list[str], change: str) -> None:
    config = taught(overrides, change)
    whole, first, then = (Trainer(config) for _ in range(3))
    for _ in range(3):
        whole.play_batch()
    first.play_batch()
    then.restore(first.batch, [first.snapshot()])
    for _ in range(2):
        then.play_batch()
    for name, tensor in whole.snapshot().items():
        assert torch.equal(tensor, then.snapshot()[name]), name


def test_agents_come_to_do_as_they_are_shown(overrides: list[str]) -> None:
    """With nothing else to go by, the share of decisions that agree grows."""

    def agreement(trainer: Trainer) -> float:
        trainer.play_batch()
        memory = trainer.memory
        assert isinstance(memory, EpisodeMemory)
        agents, seen = trainer.learner.agents, memory.observation[:-1]
        chosen = torch.stack([agents(one).argmax(-1) for one in seen])
        return float((chosen == memory.lesson).float()[memory.active[:-1] > 0].mean())

    changes = ["qmix.algorithm=mappo", "qmix.power=binary", "qmix.lessons=10"]
    changes += ["qmix.hop_subbands=true"]  # as the plan does
    changes += ["qmix.lesson_episodes=1000000", "qmix.mappo.rate=0.003", "qmix.hidden=[32]"]
    changes += ["allocation.observe=[order,slack,slots_left]", "qmix.share_parameters=true"]
    trainer = Trainer(taught(overrides, *changes, "qmix.episodes=100000"))
    first = agreement(trainer)
    for _ in range(30):
        trainer.play_batch()
    assert agreement(trainer) > max(0.75, first + 0.2)


def test_a_teacher_nobody_knows_is_one_sentence() -> None:
    allowed = "it must be one of random, .* none, or module:factory"
    with pytest.raises(UserError, match=f"qmix.teacher = 'nobody' is not allowed: {allowed}"):
        load_config("paper", ["qmix.teacher=nobody"])


def test_a_share_of_the_episodes_is_at_most_1() -> None:
    """Under Q-learning; in MAPPO's loss it is a weight."""
    changes = ["qmix.teacher=random", "qmix.lessons=5"]
    with pytest.raises(UserError, match=r"qmix\.lessons = 5\.0 is not allowed: .* at most 1"):
        load_config("small-cell", changes)
    load_config("small-cell", [*changes, "qmix.algorithm=mappo"])


class Raises:
    name, scope = "own", "local"

    def begin(self, view: View) -> None:
        pass

    def act(self, view: View, memory: None) -> object:
        raise KeyError("what")


class Nothing(Raises):
    def act(self, view: View, memory: None) -> object:
        return None


class OfAnotherShape(Raises):
    def act(self, view: View, memory: None) -> object:
        return Action(*torch.zeros(2, 1, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("teacher", "sentence"),
    [
        ("Raises", r"qmix\.teacher = '.*:Raises' raised KeyError in act \(.*\): 'what'\.$"),
        ("Nothing", r"policy 'own' answered NoneType: it must answer Action\(band, level\)\.$"),
        ("OfAnotherShape", r"policy 'own' answered a band of shape \[1, 1\]: it must be .*\.$"),
    ],
)
def test_a_teacher_that_misbehaves_ends_in_a_sentence(
    overrides: list[str], teacher: str, sentence: str
) -> None:
    trainer = Trainer(taught(overrides, f"qmix.teacher={__name__}:{teacher}"))
    with pytest.raises(UserError, match=sentence):
        trainer.play_batch()
