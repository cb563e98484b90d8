"""The seam of observation parts: a user's own, found, checked, and used wherever ours are."""

import re
from pathlib import Path

import pytest
import torch

from fedfade import seams
from fedfade.agents import scope_of
from fedfade.agents.export import normalisation
from fedfade.allocation import load_policy, play_round
from fedfade.config import Config, inputs_of, load_config
from fedfade.errors import UserError
from fedfade.uplink import (
    Progress,
    Round,
    Scenario,
    load_part,
    observe,
    parallel_env,
    parts,
    scenario_from_config,
    start_round,
    static_observation,
)

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-observation-part.md"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_loaded", {})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The part of the page, in the working folder."""
    blocks = re.findall(r"```python\n(# my_part\.py\n.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "my_part.py").write_text(blocks[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(seams.sys.modules, "my_part", raising=False)
    return "my_part:OwnRank"


def seeing(*names: str, hide: str = "") -> Config:
    observed = f"allocation.observe=[{', '.join(names)}]"
    return load_config("paper", [observed, f"allocation.hide=[{hide}]", "radio.slots=12"])


def of(config: Config) -> Scenario:
    return scenario_from_config(config, 9_932_960)


@pytest.fixture
def round_(make_round) -> Round:
    return make_round(20, 8, episodes=4, overrides=("radio.slots=12",))[1]


def test_the_pages_part_is_observed(own: str, round_: Round) -> None:
    scenario = of(seeing("fading", own, "schedule"))
    left = start_round(scenario, 4).remaining_bits
    left[2, 5] = 0.0
    seen = observe(scenario, round_, Progress(left), 3)  # [episode, client, width]
    rank, wanted = seen[..., 4], seen[..., -1].clone()  # the schedule's last column is a rank too
    wanted[2, 5] = 1.0
    assert torch.equal(rank, wanted)


def test_the_pages_part_goes_wherever_parts_go(own: str) -> None:
    config = seeing("fading", own, "finished")
    env = parallel_env(config, gradients="synthetic")
    seen, _ = env.reset(seed=0)
    assert seen["client_0"].shape == (4 + 1 + 10,)
    while env.agents:
        seen, *_ = env.step({agent: 3 for agent in env.agents})
        assert all(env.observation_space(agent).contains(x) for agent, x in seen.items())
    assert scope_of(config) == "feedback"
    described = normalisation(config)["inputs"][1]
    assert (described["name"], described["first"], described["stop"]) == (own, 4, 5)
    assert list(inputs_of(config)) == [own]  # a run whose part changes is not continued


def test_a_part_by_entry_point(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "own-rank"

        def load(self) -> object:
            return seams.load_dotted("part", own)

    asked: list[str] = []

    def entries(group: str) -> list[Entry]:
        asked.append(group)
        return [Entry()]

    monkeypatch.setattr(seams, "entries", entries)
    scenario = of(seeing("own-rank"))
    assert asked == ["fedfade.observation_parts"]
    load_part("own-rank")
    asked.clear()
    assert load_part("own-rank").width(scenario) == 1
    assert asked == []  # a slot does not look for entry points


class Part:
    """Answers what it is told to."""

    told = "nothing"

    def __init__(self, answer: object = None, width: object = 2) -> None:
        self._answer, self._width = answer, width

    def width(self, scenario: Scenario) -> object:
        return self._width

    def static(self, scenario: Scenario, round_: Round, slots: torch.Tensor) -> object:
        return self._answer(round_) if callable(self._answer) else self._answer


def one_and_a_half() -> Part:
    return Part(torch.zeros(1, 1, 1, 2), width=1.5)


def three_columns() -> Part:
    return Part(torch.zeros(1, 1, 1, 3))


def a_list() -> Part:
    return Part([0.0, 0.0])


def doubles() -> Part:
    return Part(torch.zeros(1, 1, 1, 2, dtype=torch.float64))


def not_a_number() -> Part:
    return Part(torch.full((1, 1, 1, 2), torch.nan))


def no_such_field() -> Part:
    return Part(lambda round_: round_.colour)


def gossip() -> Part:
    part = Part()
    part.told = "everything"
    return part


def wide_update() -> Part:
    part = Part(torch.zeros(1, 1, 1, 2))
    part.update = lambda scenario, columns, share: columns.copy_(torch.zeros(7, 7, 7))
    return part


WRONG = {
    "one_and_a_half": r"answered width 1\.5: it must be a whole number above 0\.",
    "three_columns": r"answered shape \[1, 1, 1, 3\]: it must be, or broadcast to, "
    r"\[slot, client, episode, width\] = \[1, 10, 4, 2\]\.",
    "a_list": r"answered list: it must answer a float32 tensor\.",
    "doubles": r"answered torch\.float64: it must answer a float32 tensor\.",
    "not_a_number": r"answered numbers that are not finite\.",
    "no_such_field": r"raised AttributeError in static \(test_parts\.py, line \d+\): .*colour.*\.",
    "gossip": r"= 'everything' is not allowed: it must be one of nothing, finished, fading\.",
    "wide_update": r"raised RuntimeError in update .*\.",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_ends_in_one_sentence(name: str, round_: Round) -> None:
    scenario = of(seeing("fading", f"{__name__}:{name}"))
    with pytest.raises(UserError, match=rf"part '{__name__}:{name}'.*{WRONG[name]}$"):
        observe(scenario, round_, start_round(scenario, 4), 0)


def test_a_name_nobody_knows() -> None:
    sentence = r"allocation\.observe = 'colour' .* one of alphas, .*, or module:factory\.$"
    with pytest.raises(UserError, match=sentence):
        seeing("fading", "colour")
    with pytest.raises(UserError, match=r"observe 'fractions:Fraction' has no 'told': fedfade\.up"):
        load_part("fractions:Fraction")


def bare() -> Part:
    def look(round_: Round) -> torch.Tensor:
        own = 1e3 * round_.fading.mean((1, 3)) + round_.deviation  # [episode, client]
        return own.T[None, :, :, None].expand(1, -1, -1, 2)

    return Part(look)


def test_a_part_sees_nothing_hidden_and_shows_nothing_out_of_bounds(round_: Round) -> None:
    name = f"{__name__}:bare"
    seen = static_observation(of(seeing(name)), round_).observation
    assert bool((seen == parts.BOUND).all())
    other = round_._replace(fading=2 * round_.fading, inner=3 * round_.inner)
    hidden = of(seeing(name, "alphas", hide="fading, gradient"))
    assert torch.equal(
        static_observation(hidden, round_).observation,
        static_observation(hidden, other).observation,
    )


def test_a_part_is_thought_to_look_at_gradients_unless_it_says_not(own: str) -> None:
    assert load_part(f"{__name__}:bare").gradient_aware
    assert not load_part(own).gradient_aware


def test_policies_without_agents_load_no_part(round_: Round, monkeypatch) -> None:
    scenario = of(seeing(f"{__name__}:gossip"))
    play_round(load_policy("random"), scenario, round_, torch.arange(4))
    assert parts._loaded == {}
