"""A teacher shows what it would do, in training alone."""

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.agents.mappo import EpisodeMemory
from fedfade.allocation import Action, View, load_policy, play_round
from fedfade.config import Config, load_config
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
    trainer = Trainer(
        taught(overrides, "qmix.algorithm=mappo", "qmix.hold_slots=5", "qmix.power=binary")
    )
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


def test_continued_exactly(overrides: list[str]) -> None:
    config = taught(overrides, "qmix.algorithm=mappo")
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
