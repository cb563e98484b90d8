"""Trained agents that come with the package: known by name, refused where they do not fit."""

from __future__ import annotations

import pytest
import torch

from fedfade.agents import load_shipped_policy, shipped_policies, shipped_policies_for
from fedfade.allocation import Policy, load_policy, play_round
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.experiments.comparison import compared_policy
from fedfade.experiments.uploads import Uplink
from fedfade.uplink import Round

UNSEEN = ["run.seed=2000", "run.seeds=4", "run.rounds=3", "run.device=cpu"]


def uploads(policy: Policy, config: Config) -> float:
    uplink = Uplink(config, float(config.learning.payload_bits), torch.device("cpu"))
    rounds = [uplink.round(number) for number in range(config.run.rounds)]
    batch = Round(*(torch.cat(part) for part in zip(*rounds, strict=True)))
    outcome = play_round(policy, uplink.scenario, batch, torch.arange(len(batch.alpha)))
    return float(outcome.delivered.sum(-1).float().mean())


@pytest.mark.parametrize("preset", ["paper", "ring"])
def test_shipped_agents_beat_the_block_fading_schedule(preset: str) -> None:
    """12 rounds nobody trained on. On hundreds the margin is 14 to 45 %; on these the schedule's
    and the agents' uploads differ by more than half an upload, far beyond rounding."""
    config = load_config(preset, UNSEEN)
    agents = compared_policy(config, "qmix-plus")
    assert agents.name == "qmix-plus"
    assert agents.scope == "local"
    schedule = load_policy("block-fading-schedule")
    assert uploads(agents, config) >= uploads(schedule, config) + 0.3


@pytest.mark.parametrize("name", ["qmix-hold", "mappo-hold"])
def test_agents_that_learned_to_pack_see_no_plan(name: str) -> None:
    """On hundreds of rounds they deliver a tenth more than the schedule; on 12 no less."""
    config = load_config("paper", UNSEEN)
    agents = compared_policy(config, name)
    assert agents.scope == "local"
    assert not {"schedule", "reservation"} & {*agents.observed.observe}
    schedule = load_policy("block-fading-schedule")
    assert uploads(agents, config) >= uploads(schedule, config)


@pytest.mark.parametrize("link", ["capped", "nr"])
def test_they_play_under_another_link(link: str) -> None:
    """Trained over Shannon's; what they see of plans is reckoned with the link at hand."""
    config = load_config("paper", [*UNSEEN, "run.seeds=2", f"radio.link={link}"])
    found = {name: uploads(compared_policy(config, name), config) for name in shipped_policies()}
    assert found.pop("qmix") < 2  # agents of the paper's training deliver next to nothing
    assert all(0.5 < some < 5 for some in found.values()), found


@pytest.mark.parametrize(("clients", "bands"), [(10, 4), (7, 3), (16, 5)])
def test_agents_for_any_size_deliver_nearly_what_the_plan_does(clients: int, bands: int) -> None:
    """On hundreds of rounds 1 % less; the last two sizes they were not trained on."""
    size = [f"learning.clients={clients}", f"radio.subbands={bands}"]
    config = load_config("paper", [*UNSEEN, *size])
    agents = compared_policy(config, "size-free")
    assert agents.scope == "local"
    assert not {"schedule", "reservation"} & {*agents.observed.observe}
    assert uploads(agents, config) >= 0.88 * uploads(load_policy("wrap-around-choice"), config)


def test_agents_that_hear_finishes_deliver_what_their_plan_does() -> None:
    """On hundreds of rounds 1 % less than their teacher, and 1 % more than deadline-feedback."""
    config = load_config("paper", [*UNSEEN, "radio.speed_mps=0.83"])
    agents = compared_policy(config, "size-free-feedback")
    assert agents.scope == "feedback"
    assert uploads(agents, config) >= 0.93 * uploads(load_policy("wrap-around-feedback"), config)


def test_they_fit_the_papers_sizes_and_no_other() -> None:
    """But for those for any."""
    names = shipped_policies()
    assert "qmix-plus" in names
    for preset in ("paper", "ring", "paper-epochs", "paper-nr"):
        assert shipped_policies_for(load_config(preset)) == names
    assert shipped_policies_for(load_config("small-cell")) == ["size-free", "size-free-feedback"]


@pytest.mark.parametrize(
    "change", ["learning.clients=8", "radio.slots=100", "learning.payload_bits=1000"]
)
def test_another_size_is_refused_in_one_sentence(change: str) -> None:
    with pytest.raises(UserError, match=change.partition("=")[0]) as caught:
        load_shipped_policy("qmix-plus", load_config("paper", [change]))
    assert "\n" not in str(caught.value)


def test_what_others_observe_does_not_matter_to_them() -> None:
    config = load_config("ring", [*UNSEEN, "run.rounds=1"])
    other = load_config("ring", [*UNSEEN, "run.rounds=1", "allocation.observe=[slots_left]"])
    found = [uploads(load_shipped_policy("qmix-plus", c), c) for c in (config, other)]
    assert found[0] == found[1]
