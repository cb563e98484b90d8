"""The best of several agents of one training: when they are tried, on what, and which is kept."""

import pytest
import torch
from torch import Tensor

from fedfade import uplink
from fedfade.agents import Trainer
from fedfade.agents.candidates import Audition
from fedfade.agents.trained import agents_for
from fedfade.config import Config, changed, load_config

CPU = torch.device("cpu")


@pytest.fixture
def tried(overrides: list[str]) -> Config:
    changes = ["qmix.candidates=3", "qmix.candidate_rounds=30", "learning.payload_bits=2e5"]
    return load_config("small-cell", [*overrides, *changes])


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_the_best_is_kept_and_the_first_of_equals(
    tried: Config, average: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six batches, so after the fourth, fifth and sixth. The first run is best in the middle, the
    second at the end, the third at first and again later."""
    trainer = Trainer(changed(tried, {"qmix.average_weights": average}), seeds=[0, 1, 2])
    scores = [[1.0, 0.5, 2.0], [3.0, 0.5, 1.0], [2.0, 4.0, 2.0]]  # [point, run]
    tried_at: list[tuple[int, dict[str, Tensor]]] = []

    def uploads(self: Audition, agents: dict[str, Tensor]) -> float:
        point, run = divmod(len(tried_at), 3)
        tried_at.append((trainer.batch, {name: t.clone() for name, t in agents.items()}))
        return scores[point][run]

    monkeypatch.setattr(Audition, "uploads", uploads)
    for batch in range(1, 7):
        trainer.play_batch()
        if batch == 3:  # none was tried yet: the last ones
            now, kept = trainer.learner.kept.candidate(1), trainer.learner.kept.of(1)
            assert all(torch.equal(kept[name], now[name]) for name in now)
    assert [batch for batch, _ in tried_at] == [4, 4, 4, 5, 5, 5, 6, 6, 6]
    for run, best in enumerate((1, 2, 0)):
        kept, (_, wanted) = trainer.learner.kept.of(run), tried_at[3 * best + run]
        last = tried_at[6 + run][1]
        assert all(torch.equal(kept[name], tensor) for name, tensor in wanted.items())
        assert (best == 2) == torch.equal(kept["weights.0"], last["weights.0"])
        assert float(trainer.snapshot(run)["score"]) == max(row[run] for row in scores)
    online = trainer.learner.agents.weights[0].chunk(3)[1]
    assert torch.equal(tried_at[7][1]["weights.0"], online) == (average == 0.0)


def test_a_score_is_what_the_agents_deliver(tried: Config) -> None:
    """Played slot by slot."""
    audition = Audition(tried, 2e5, CPU)
    agents = agents_for(tried)
    for parameter in agents.parameters():
        parameter.normal_(generator=torch.Generator().manual_seed(len(parameter)))
    scenario = uplink.scenario_from_config(tried, 2e5)
    round_, progress = audition._round, uplink.start_round(scenario, 30)
    for slot in range(scenario.slots):
        seen = uplink.observe(scenario, round_, progress, slot).transpose(0, 1)
        action = uplink.decode_action(scenario, agents(seen).argmax(-1).T, slot)
        progress, _ = uplink.play_slot(
            scenario, progress, uplink.slot_air(scenario, round_, slot), action
        )
    wanted = float(progress.finished.sum(-1).float().mean())
    assert 0 < wanted < 4
    assert audition.uploads(dict(agents.state_dict())) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["qmix.layouts=4"],
        ["run.restart=same", "qmix.layouts=4"],
        ["run.restart=same", "run.repeat_fading=true"],
        ["cell.mobility=fixed", "qmix.layouts=4", "qmix.gain_spread_db=6"],
    ],
    ids=str,
)
def test_candidates_meet_rounds_of_their_own(overrides: list[str], changes: list[str]) -> None:
    """No fading and no start that was trained on; where a training has its layouts for good, those
    and all of them."""
    common = ["cell.mobility=reflect", "run.rounds=3", "qmix.candidate_rounds=24"]
    config = load_config("small-cell", [*overrides, *common, *changes])
    found = Audition(config, 1e6, CPU)._round
    trainer = Trainer(config)
    trained = [trainer.rounds.round(batch) for batch in range(18)]
    seen = {tuple(gains.tolist()) for round_ in trained for gains in round_.fading.flatten(1)}
    own = {tuple(gains.tolist()) for gains in found.fading.flatten(1)}
    assert len(own) == 24
    assert not own & seen
    assert found.number.unique().tolist() == [0.0, 1.0, 2.0]
    layouts = {tuple(alpha.tolist()) for round_ in trained for alpha in round_.alpha}
    tried_on = {tuple(alpha.tolist()) for alpha in found.alpha}
    if config.run.restart == "same" or config.cell.mobility == "fixed":
        assert tried_on <= layouts
        tasks, places = config.qmix.layouts, len(layouts)
        assert places == (tasks if config.cell.mobility == "fixed" else 3 * tasks)
        assert len(tried_on) == places
    else:
        assert not tried_on & layouts
