"""Several federated tasks in one training, and which seeds a training meets at all."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.config import load_config
from fedfade.radio import Cell, Channel
from fedfade.studies.paper.setting import seeds_used
from fedfade.uplink import Rounds, gradient_source, layout_seeds
from fedfade.uplink.gradients import SyntheticGradients

FEDERATED = ["qmix.gradients=learning", "learning.local_work=1", "learning.payload_bits=2e5"]


def test_every_layout_has_a_federated_task(overrides: list[str]) -> None:
    """Two tasks, ten episodes each: the last of its own episodes decides what a task averages, its
    gradients are those of the task alone, and accuracy is the mean of both."""
    changes = [*overrides, *FEDERATED, "qmix.layouts=2", "qmix.evaluate_every=1", "run.seed=3"]
    config = load_config("small-cell", changes)
    trainer = Trainer(config)
    alone = [Rounds(config, gradient_source(config), 10, [seed]) for seed in layout_seeds(3, 2)]
    accuracies, delivered = [], []
    for batch in range(4):  # two make a round
        inner = trainer.rounds.round(batch).inner
        wanted = [rounds.round(batch).inner for rounds in alone]
        torch.testing.assert_close(inner, torch.cat(wanted), rtol=1e-3, atol=1e-6)
        assert not torch.allclose(wanted[0], wanted[1], rtol=1e-2)
        (report,) = trainer.play_batch()
        by_task = trainer.rollout.delivered.view(2, 1, 10, -1)
        for rounds, own in zip(alone, by_task, strict=True):
            rounds.deliver(batch, own)
        delivered.append(by_task[:, 0, -1])
        if batch % 2:
            accuracies = [float(rounds.gradients.accuracy()) for rounds in alone]
            assert report.accuracy == pytest.approx(sum(accuracies) / 2, abs=2e-3)
    assert accuracies[0] != accuracies[1]
    assert not torch.equal(delivered[1][0], delivered[1][1])


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["run.restart=same"],
        ["run.restart=same", "run.repeat_fading=true"],
        ["cell.mobility=fixed", "qmix.layouts=5"],
        ["run.restart=same", "qmix.layouts=2", "qmix.gain_spread_db=3"],
    ],
    ids=str,
)
def test_no_other_seed_is_met(
    overrides: list[str], changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts, fading and data of a whole training have the seeds that evaluations keep off."""
    common = ["cell.mobility=reflect", "run.seed=7", "run.rounds=2"]
    config = load_config("small-cell", [*overrides, *common, *changes])
    met: set[int] = set()

    def spy(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def look(self: Any, seeds: Sequence[int], *rest: Any, **more: Any) -> Any:
            met.update(seeds)
            return real(self, seeds, *rest, **more)

        monkeypatch.setattr(owner, name, look)

    spy(Cell, "trajectory")
    spy(Channel, "small_scale_gains")
    spy(SyntheticGradients, "inner")
    trainer = Trainer(config)
    while trainer.batch < trainer.batches:
        trainer.play_batch()
    assert met <= seeds_used(config, 7)
    tasks = {*layout_seeds(7, config.qmix.layouts)}
    one_layout = config.run.restart == "same" or config.cell.mobility == "fixed"
    assert tasks <= met if one_layout else not tasks & met
