"""Comparisons of several configurations in one batch give what each gives alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedfade.agents import Trainer
from fedfade.agents.run import save
from fedfade.allocation import play_round
from fedfade.allocation.baselines import MaxIndividualRate
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.experiments import (
    Comparison,
    RunFolder,
    SideBySide,
    Uplink,
    compare_many,
    compared_policy,
    read_rows,
)
from fedfade.experiments.uploads import UploadGroup
from fedfade.learning import Federation, Models, batch_key, load_data
from tests.conftest import TINY

CPU = torch.device("cpu")
CURIOUS = "tests.experiments.test_compare:Curious"
POLICIES = f"allocation.policies=[random, {CURIOUS}, max-sum-rate, perfect, genie]"


def grid(*more: str) -> list[Config]:
    """Four cells of the paper's grid: how data are dealt x how the channel fades."""
    return [
        load_config(
            "paper", [*TINY, POLICIES, f"learning.alpha={alpha}", f"radio.clusters={count}", *more]
        )
        for alpha in (0.1, 10)
        for count in (3, 6)
    ]


def alone(config: Config, folder: Path) -> str:
    compare_many([config], [folder], CPU)
    return facts(folder)


def facts(folder: Path) -> str:
    """All a run folder says about its results."""
    models = RunFolder(folder, load_config(folder / "config.yaml"), CPU).record["models"]
    inner = np.load(folder / "gradients.npz")["inner"]
    return (folder / "metrics.csv").read_text() + str(models) + str(inner.tobytes())


def test_a_grid_in_one_batch_is_every_cell_alone(tmp_path: Path) -> None:
    configs = grid()
    configs.append(load_config("paper", [*TINY, POLICIES, "run.rounds=2", "run.evaluate_every=2"]))
    folders = [tmp_path / f"together-{i}" for i in range(len(configs))]
    said: list[str] = []
    steps: list[int] = []
    rows = compare_many(configs, folders, CPU, lambda done, doing: steps.append(done), said.append)
    # 5 cells x 2 seeds x 4 policies with a model, but where all uploads succeed the channel does
    # not matter; and channels do not depend on how data are dealt.
    assert said == [
        "playing 3 rounds x 4 seeds, 2 rounds x 2 seeds at a time; 36 models trained side by side"
    ]
    assert steps == sorted(steps)
    assert steps[-1] == 4 * 3 + 2
    for i, config in enumerate(configs):
        assert facts(folders[i]) == alone(config, tmp_path / f"alone-{i}")
        assert rows[i] == read_rows(folders[i] / "metrics.csv")


class Waiting(MaxIndividualRate):
    """Claims to look at gradients, so it is played round by round with the round's own."""

    name, gradient_aware = "waiting", True


def test_what_is_played_ahead_is_worth_as_much_as_what_is_not() -> None:
    """The gradients of a round come in when it is played, but the rewards are the same."""
    weights = ["allocation.reward.convergence=3", "allocation.reward.deviation=0.5"]
    config = load_config("paper", [*TINY, *weights, "cell.mobility=ring"])
    uplink = Uplink(config, 4e5, CPU)
    policies = [MaxIndividualRate(), Waiting()]
    group = UploadGroup([uplink], policies, with_genie=False)
    assert group.rounds_ahead == 3
    vectors = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    for number, inner in enumerate(vectors @ vectors.mT):
        group.draw_ahead(number)
        if not group.played:
            played = play_round(policies[0], group.scenario, *group.ahead(policies[0]))
            group.played[policies[0].name] = played
        ahead = group.taken(policies[0], [0], number, inner)
        problem = group.now(policies[1], [0], number, inner, torch.zeros(2, 4))
        now = play_round(policies[1], group.scenario, *problem)
        assert torch.equal(ahead.delivered, now.delivered)
        # sums of twenty float32 of order 1
        torch.testing.assert_close(ahead.reward, now.reward, atol=1e-5, rtol=1e-5)
        alike = uplink.play(policies[0], number, torch.zeros_like(inner))  # as if all agreed
        assert float((alike.reward - now.reward).max()) > 0.1


def test_agents_of_several_trainings(tmp_path: Path) -> None:
    """Agents look at gradients, so every round waits for the last; recorded, and as if not."""
    quick = [*TINY, "qmix.hidden=[8]", "qmix.gradients=synthetic", "allocation.policies=[random]"]
    configs = []
    for seed in (0, 1):
        agents = tmp_path / f"agents-{seed}"
        save(Trainer(load_config("paper", [*quick, f"run.seed={seed}"]), CPU), agents, [])
        asked = [f"allocation.checkpoint={json.dumps(str(agents))}"]
        configs += [load_config("paper", [*quick, *asked, f"radio.clusters={n}"]) for n in (3, 6)]
    folders = [tmp_path / str(i) for i in range(4)]
    rows = compare_many(configs, folders, CPU)
    for i, config in enumerate(configs):
        assert facts(folders[i]) == alone(config, tmp_path / f"alone-{i}")
        stored = np.load(folders[i] / "gradients.npz")
        uplink = Uplink(config, float(stored["payload_bits"]), CPU)
        own = [run for run, name in enumerate(stored["policy"]) if name == "qmix"]
        inner = torch.from_numpy(stored["inner"][own, 2])
        outcome = uplink.play(compared_policy(config, "qmix"), 2, inner)
        bits = [row.bits_sent for row in rows[i] if (row.policy, row.round) == ("qmix", 2)]
        assert bits == outcome.bits.sum(-1).tolist()


def test_finished_folders_are_read_and_interrupted_ones_continued(tmp_path: Path) -> None:
    configs = grid("run.rounds=4")
    folders = [tmp_path / str(i) for i in range(len(configs))]
    alone(configs[0], folders[0])

    def stop(done: int, doing: str) -> None:
        if done == 4 + 3 * 2 and doing == "uploads":
            raise KeyboardInterrupt

    before = (folders[0] / "metrics.csv").stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        compare_many(configs, folders, CPU, stop)
    assert (folders[0] / "metrics.csv").stat().st_mtime_ns == before
    # As after a hard stop: one folder is further than the others, one has lost its checkpoint.
    (folders[2] / "checkpoint.safetensors").unlink()
    rows = compare_many(configs, folders, CPU)
    for i, config in enumerate(configs):
        assert facts(folders[i]) == alone(config, tmp_path / f"alone-{i}")
        assert rows[i] == read_rows(folders[i] / "metrics.csv")


def test_what_cannot_share_a_batch_is_run_after_another(tmp_path: Path) -> None:
    other = load_config("paper", [*TINY, POLICIES, "learning.local_rate=0.1"])
    configs = [*grid()[:1], other]
    said: list[str] = []
    compare_many(configs, [tmp_path / "0", tmp_path / "1"], CPU, say=said.append)
    assert len(said) == 2
    for i, config in enumerate(configs):
        assert facts(tmp_path / str(i)) == alone(config, tmp_path / f"alone-{i}")


def test_memory_bounds_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = grid()
    one = Comparison(configs[0], CPU)
    monkeypatch.setattr("fedfade.experiments.side_by_side._MODEL_BYTES", 13 * one.update_bytes)
    said: list[str] = []
    compare_many(configs, [tmp_path / str(i) for i in range(4)], CPU, say=said.append)
    assert [line.rpartition("; ")[2] for line in said] == ["14 models trained side by side"] * 2


def test_batches_hold_only_what_trains_alike() -> None:
    keys = [
        batch_key(Comparison(config, CPU).federation, [0, 1])
        for config in (
            *grid()[::2],
            *(
                load_config("paper", [*TINY, change])
                for change in ("learning.batch_size=10", "learning.clients=5", "run.precision=bf16")
            ),
        )
    ]
    assert keys[0] == keys[1]
    assert len({str(key) for key in keys}) == 4


def test_plan_of_one_comparison() -> None:
    config = load_config("paper", [*TINY, "run.rounds=30"])
    together = SideBySide([Comparison(config, CPU)])
    assert together.plan == "playing 25 rounds x 2 seeds at a time; 12 models trained side by side"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_grid_on_a_gpu_is_that_of_the_cpu(tmp_path: Path) -> None:
    """Same channel and mini-batches; rounding moves an upload here and there."""
    results = []
    for name in ("cpu", "cuda"):
        folders = [tmp_path / f"{name}-{i}" for i in range(4)]
        rows = compare_many(grid(), folders, torch.device(name))
        results.append([row for part in rows for row in part])
    served = [[row.delivered_clients for row in rows] for rows in results]
    same = [one == other for one, other in zip(*served, strict=True)]
    assert sum(same) >= 0.95 * len(same)
    last = [[row.accuracy for row in rows if row.round == 2] for rows in results]
    assert np.nanmean(last[0]) == pytest.approx(np.nanmean(last[1]), abs=0.02)


def test_clients_whose_upload_fails_need_not_be_trained(tmp_path: Path) -> None:
    """The same models bit for bit; what hangs on everybody's gradients is empty."""
    asked = [*TINY, "learning.codec=int8", "learning.error_feedback=true", "learning.server=mifa"]
    policies = "allocation.policies=[perfect,random,block-fading-schedule]"
    folders = [tmp_path / name for name in ("all", "some")]
    for folder, train in zip(folders, ("true", "false"), strict=True):
        config = load_config("paper", [*asked, policies, f"run.train_absent={train}"])
        compare_many([config], [folder], CPU)
    whole, some = (json.loads((folder / "run.json").read_text())["models"] for folder in folders)
    assert whole == some
    both = [pd.read_csv(folder / "metrics.csv") for folder in folders]
    empty = ["gradient_bias", "reward"]
    assert both[1][empty].isna().all(axis=None)
    gone = [*empty, "train_loss"]
    pd.testing.assert_frame_equal(*(table.drop(columns=gone) for table in both))


@pytest.mark.parametrize("who", [[[True, False, True]], [[False, False, False]]])
def test_a_batch_trains_only_whom_it_is_asked_to(who: list[list[bool]]) -> None:
    """On one client at a time and on all at once: others' updates are 0."""
    task = load_config("paper", [*TINY, "learning.clients=3"]).learning
    for engine in ("loop", "vmap"):
        federation = Federation(task, load_data(task), engine=engine)
        models = Models([(federation, [5])])
        state, mask = models.start(), torch.tensor(who)
        everybody, chosen = models.train(state, 0), models.train(state, 0, who=mask)
        expected = everybody.parameters * mask[..., None]
        torch.testing.assert_close(chosen.parameters, expected, rtol=1e-5, atol=1e-7)
        assert torch.equal(chosen.loss.isnan(), ~mask)


def test_who_looks_at_gradients_needs_everybody_trained(tmp_path: Path) -> None:
    policies = "allocation.policies=[wrap-around-innovation]"
    config = load_config("paper", [*TINY, policies, "run.train_absent=false"])
    with pytest.raises(UserError, match=r"run\.train_absent = False is not allowed: .*innovation"):
        compare_many([config], [tmp_path / "run"], CPU)
