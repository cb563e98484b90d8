"""Several configurations in one program: each is what it is alone, whatever becomes of the rest."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedfade.agents import Trainer, programs, saved_curve, train_together
from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.trainer import OWN, Diverged
from fedfade.config import Config, load_config
from tests.agents.folders import Interrupted, final_tensors, same_bits, same_run, stop_at

WALKS = "cell.mobility=reflect"
FEDERATED = ("qmix.gradients=learning", "learning.local_work=1")
APART = [
    [],
    ["run.seed=5"],
    ["cell.mobility=fixed"],
    [WALKS, "radio.noise_figure_db=14", "radio.noise_density_dbm_hz=-169"],
    [WALKS, "radio.antenna_gain_dbi=11", "radio.client_antenna_gain_dbi=6"],
    [WALKS, "qmix.gain_spread_db=6"],
    ["cell.ring_snr_db=25", "cell.ring_spread_db=3"],
    ["radio.speed_mps=1", "run.repeat_fading=true"],
    ["allocation.reward.rate=0.3", "allocation.reward.deviation=0.1"],
    ["allocation.reward.finished=0.02", "allocation.reward.convergence=2"],
    ["allocation.hide=[fading]"],
    ["allocation.hide=[gradient]"],
    ["qmix.agent_rate=0.002", "qmix.mixer_rate=0.002"],
    ["qmix.gamma=0.9"],
    ["qmix.advance=1"],
    ["qmix.target_every=25"],
    ["qmix.clip_gradient=0.1"],
    ["qmix.standardise_rewards=true"],
    ["run.restart=same"],
    [*FEDERATED],
    [*FEDERATED, "learning.alpha=0.1", "learning.batch_size=100", "learning.local_unit=epoch"],
    ["run.seed=7", "qmix.average_weights=0.9"],
    ["run.seed=8", "qmix.candidates=3", "qmix.candidate_rounds=4"],
    ["run.seed=6"],  # a neighbour of the first two, but for their place
]


@pytest.fixture
def make(overrides: list[str]) -> Callable[..., Config]:
    """Some finish, tasks start again, and what rounding does to a gradient stays small."""
    common = ["learning.payload_bits=2e5", "run.rounds=2", "qmix.rmsprop_epsilon=0.1"]
    return lambda *changes: load_config("small-cell", [*overrides, *common, *changes])


def test_every_run_is_what_it_is_alone(make: Callable[..., Config]) -> None:
    """Four batches: rewards, uploads, losses, and all that a continuation would need."""
    configs = [make(*changes) for changes in APART]
    together = Trainer(configs)
    reports = [together.play_batch() for _ in range(4)]
    plain = together.snapshot(0)
    for run, config in enumerate(configs):
        alone = Trainer(config)
        for ours in reports:
            (wanted,) = alone.play_batch()
            assert ours[run][:6] == pytest.approx(wanted[:6], rel=1e-4, nan_ok=True), APART[run]
        found = together.snapshot(run)
        same_run(alone.snapshot(), found)
        # What makes a run its own does so.
        assert not run or not same_bits(
            {"replay": plain["replay/reward"], "agents": plain["learner/online"]},
            {"replay": found["replay/reward"], "agents": found["learner/online"]},
        ), APART[run]
    uploads = torch.tensor([report.uploads for report in reports[-1]])
    assert int((uploads > 0).sum()) > 0


def test_accuracy_is_known_where_there_is_a_model(make: Callable[..., Config]) -> None:
    each = [make("qmix.evaluate_every=1", *more) for more in ((), FEDERATED, ("run.seed=2",))]
    (report,) = Trainer(each[1]).play_batch()
    found = [run.accuracy for run in Trainer(each).play_batch()]
    assert found[1] == report.accuracy > 0
    assert found[0] != found[0]
    assert found[2] != found[2]


def test_programs_share_what_decides_their_shapes(make: Callable[..., Config]) -> None:
    """What is not a run's own, or its cell's or reward's, takes a program of its own; the order
    within a program is the order asked for."""
    assert programs([make(*changes) for changes in APART]) == [[*range(len(APART))]]
    other = ["qmix.batch_size=16", "radio.slots=10", "qmix.mixer=vdn", "qmix.layouts=2"]
    mixed = [make("run.seed=3"), *map(make, other), make(WALKS), make("radio.slots=10", WALKS)]
    assert programs(mixed) == [[0, 5], [1], [2, 6], [3], [4]]
    assert programs([]) == []
    with pytest.raises(AssertionError, match="cannot be trained side by side"):
        Trainer([make(), make("qmix.n_step=2")])


def test_whatever_may_differ_is_tried(make: Callable[..., Config]) -> None:
    """A field added to `OWN` needs a line above; those that fading here does not have are left."""
    tried = {change.partition("=")[0] for changes in APART for change in changes}
    assert {*OWN} - tried == {"run.seeds", "radio.clusters"}


def test_clusters_may_differ(make: Callable[..., Config]) -> None:
    common = ["radio.source=clustered", "radio.subcarriers=2", WALKS]
    configs = [make(*common, f"radio.clusters={clusters}") for clusters in (4, 8)]
    together = Trainer(configs).rounds.round(0)
    for part, config in zip((slice(20), slice(20, 40)), configs, strict=True):
        alone = Trainer(config).rounds.round(0)
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[part], theirs)


def test_runs_of_policy_gradients_are_what_they_are_alone(make: Callable[..., Config]) -> None:
    """Also where others have finished at another time, and each has its own discount."""
    common = ["qmix.algorithm=mappo", "qmix.mappo.value_hidden=[8]", "qmix.hold_slots=5"]
    apart = [[], ["qmix.gamma=0.8"], [WALKS], ["allocation.hide=[fading]"], ["run.seed=4"]]
    configs = [make(*common, *changes) for changes in apart]
    together = Trainer(configs)
    reports = [together.play_batch() for _ in range(3)]
    for run, config in enumerate(configs):
        alone = Trainer(config)
        for ours in reports:
            (wanted,) = alone.play_batch()
            assert ours[run][:6] == pytest.approx(wanted[:6], rel=1e-4), apart[run]
        same_run(alone.snapshot(), together.snapshot(run))


# --- folders ------------------------------------------------------------------------------------

BREAKS = "qmix.agent_rate=0.003"


def break_it(trainer: Trainer, reports: object) -> None:
    """Parameters of the runs that `BREAKS` marks become infinite after the third batch."""
    for run, config in enumerate(trainer.configs):
        if trainer.batch == 3 and config.qmix.agent_rate == 0.003:
            trainer.learner.agents.weights[0].data.chunk(len(trainer.configs))[run].fill_(torch.inf)


@pytest.fixture
def mixed(make: Callable[..., Config]) -> list[Config]:
    kept = ["qmix.average_weights=0.5", "qmix.candidates=4", "qmix.candidate_rounds=6"]
    changes = [(), FEDERATED, (WALKS, "qmix.target_every=25"), ("run.seed=1",), kept]
    return [make(*own) for own in changes]


def below(folder: Path, configs: list[Config]) -> list[Path]:
    return [folder / str(number) for number in range(len(configs))]


def test_an_interrupted_program_ends_in_the_same_bits(mixed: list[Config], tmp_path: Path) -> None:
    whole, parts = (below(tmp_path / name, mixed) for name in ("whole", "parts"))
    train_together(mixed, whole)
    for batch in (2, 4):
        with pytest.raises(Interrupted):
            train_together(mixed, parts, stop_at(batch), checkpoint_s=0.0)
    train_together(mixed, parts)
    for config, one, other in zip(mixed, whole, parts, strict=True):
        assert same_bits(final_tensors(one), final_tensors(other))
        assert load_checkpoint(other).config == config


def test_a_run_that_diverges_leaves_the_others_whole(
    mixed: list[Config], make: Callable[..., Config], tmp_path: Path
) -> None:
    """Bit by bit what they are beside one that does not, and all its own is its last checkpoint."""
    quiet, loud = (below(tmp_path / name, mixed) for name in ("quiet", "loud"))
    train_together(mixed, quiet)
    broken = [mixed[0], make(BREAKS), *mixed[2:]]
    with pytest.raises(Diverged, match=r"at episode 60 because parameters .* is kept") as caught:
        train_together(broken, loud, break_it, checkpoint_s=0.0)
    assert caught.value.folders == [loud[1]]
    for run in (0, 2, 3):
        assert same_bits(final_tensors(quiet[run]), final_tensors(loud[run]))
        assert len(saved_curve(loud[run])) == 6
    assert len(saved_curve(loud[1])) == load_checkpoint(loud[1]).batch == 2


def test_who_waits_for_one_that_diverges_is_trained_to_the_end(
    make: Callable[..., Config], tmp_path: Path
) -> None:
    """Stopped by hand after one has diverged and lags behind: that is an interrupt, and the same
    command finishes the others before it says who diverged."""
    configs = [make(BREAKS), make(), make(WALKS)]
    folders = below(tmp_path, configs)

    def stop_by_hand(trainer: Trainer, reports: object) -> None:
        break_it(trainer, reports)
        if trainer.batch == 4:
            assert [*trainer.lost] == [0]
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_together(configs, folders, stop_by_hand, checkpoint_s=0.0)
    assert [load_checkpoint(folder).batch for folder in folders] == [2, 4, 4]
    with pytest.raises(Diverged) as caught:
        train_together(configs, folders, break_it, checkpoint_s=0.0)
    assert caught.value.folders == folders[:1]
    assert [load_checkpoint(folder).batch for folder in folders] == [2, 6, 6]
