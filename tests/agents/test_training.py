"""Interrupting, resuming and breaking a training."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfade.agents import Trainer, load_policy_checkpoint, train
from fedfade.agents import run as run_module
from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.trainer import Diverged
from fedfade.config import Config, changed, load_config
from fedfade.errors import UserError
from fedfade.graphs import WARM_UP
from fedfade.radio import Channel
from fedfade.uplink import Progress, Rounds, gradient_source
from fedfade.uplink.observation import part_columns
from tests.agents.folders import Interrupted, final_tensors, same_bits, same_run, stop_at


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


RESUMED = {
    "synthetic": [],
    "learning": ["qmix.gradients=learning", "learning.local_work=1"],
    "qplex": ["qmix.mixer=qplex", "qmix.payload_start=0.3", "qmix.payload_episodes=80"],
    "mappo": ["qmix.algorithm=mappo", "qmix.hold_slots=5", "qmix.average_weights=0.9"],
    "layouts": [
        *("qmix.gradients=learning", "learning.local_work=1", "qmix.layouts=2"),
        *("run.restart=same", "cell.mobility=reflect", "qmix.gain_spread_db=6"),
    ],
    "options": [
        *("qmix.candidates=4", "qmix.candidate_rounds=6", "qmix.average_weights=0.5"),
        *("qmix.optimiser=adam", "qmix.final_rate=0.1", "qmix.mask_finished=true"),
        *("qmix.hold_slots=5", "qmix.n_step=2", "qmix.clip_gradient=1"),
    ],
    "coded": [
        *("qmix.gradients=learning", "learning.local_work=1", "learning.codec=int8-progressive"),
        *("learning.error_feedback=true", "learning.count_partial=true", "run.restart=same"),
        *("learning.payload_factors=0.5", "qmix.candidates=2", "qmix.candidate_rounds=2"),
    ],
}


@pytest.mark.parametrize("kind", RESUMED)
def test_resumed_training_ends_in_the_same_bits(
    kind: str, overrides: list[str], tmp_path: Path
) -> None:
    config = load_config("small-cell", [*overrides, *RESUMED[kind]])
    train(config, tmp_path / "whole")
    for batch in (1, 3, 5):  # each time the batch after the checkpoint is lost and played again
        with pytest.raises(Interrupted):
            train(config, tmp_path / "parts", stop_at(batch), checkpoint_s=0.0)
    train(config, tmp_path / "parts")
    assert same_bits(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "parts"))


def test_killed_training_resumes_to_the_same_bits(
    tiny: Config, overrides: list[str], tmp_path: Path
) -> None:
    """kill -9 at arbitrary moments of the real command, checkpointing all the time."""
    train(tiny, tmp_path / "whole")
    program = (
        "import torch; torch.set_num_threads(1)\n"
        "from pathlib import Path; from fedfade.config import load_config\n"
        "from fedfade.agents import train\n"
        f"train(load_config('small-cell', {overrides!r}), Path({str(tmp_path / 'killed')!r}), "
        "checkpoint_s=0.0)\n"
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program])
        index = tmp_path / "killed" / "checkpoint.json"
        before = index.stat().st_mtime_ns if index.exists() else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if index.exists() and index.stat().st_mtime_ns != before:
                break
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", program], check=True)
    assert same_bits(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "killed"))


def test_the_paper_schedule_of_updates(overrides: list[str]) -> None:
    """One update every 30 transitions, a target copy every 210, none before a full batch."""
    config = load_config(
        "small-cell",
        [*overrides, "qmix.update_every=30", "qmix.target_every=210", "qmix.episodes=100"],
    )
    trainer = Trainer(config)
    copies = []
    copy = trainer.learner.copy_target
    trainer.learner.copy_target = lambda due: (
        copies.append(int(trainer.learner.updates)) or copy(due)
    )
    while trainer.batch < trainer.batches:
        trainer.play_batch()
    transitions = 100 * 12
    # after 20 transitions 20 // 30 = 0 updates are due, after 40 (>= 32 stored) one, and so on
    assert int(trainer.learner.updates) == transitions // 30
    assert copies == [n * 7 for n in range(1, transitions // 210 + 1)]


def test_epsilon_falls_linearly_and_stays(tiny: Config) -> None:
    trainer = Trainer(tiny)
    seen = []
    for batch in range(6):
        trainer.batch = batch
        seen.append(trainer.epsilon())
    assert seen == pytest.approx([1.0, 0.7525, 0.505, 0.2575, 0.01, 0.01])


def test_the_payload_grows_linearly_and_stays(overrides: list[str]) -> None:
    config = load_config(
        "small-cell", [*overrides, "qmix.payload_start=0.2", "qmix.payload_episodes=80"]
    )
    trainer = Trainer(config)
    shares, uploads = [], []
    for _ in range(6):
        shares.append(trainer.payload())
        uploads.append(trainer.play_batch()[0].uploads)
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    # 12 slots are too few for a whole payload (20 slots alone on a sub-band), not for a fifth.
    assert uploads[0] > 0.0
    assert uploads[4:] == [0.0, 0.0]


def test_what_need_not_be_sent_counts_as_sent(overrides: list[str]) -> None:
    """Observations and state begin with the share left; all else is as in any round."""
    whole = Trainer(load_config("small-cell", overrides))
    part = Trainer(load_config("small-cell", [*overrides, "qmix.payload_start=0.25"]))
    seen = []
    for trainer in (whole, part):
        round_ = trainer.rounds.round(0)
        trainer.rollout.begin(round_, 1.0, 0, trainer.replay, trainer.payload())
        seen.append(trainer.rollout._seen[..., : trainer.rollout._width].clone())
    column = part_columns(whole.scenario)["remaining"]
    assert bool((seen[0][..., column] == 1.0).all())
    assert bool((seen[1][..., column] == 0.25).all())
    for observation in seen:
        observation[..., column] = 0.0
    assert torch.equal(*seen)


def test_the_last_episode_decides_the_federated_update(overrides: list[str]) -> None:
    config = load_config(
        "small-cell",
        [
            *overrides,
            "qmix.gradients=learning",
            "learning.local_work=1",
            "learning.payload_bits=2e5",  # so that some deliver, in every episode others
            "qmix.parallel_episodes=5",
        ],
    )
    trainer = Trainer(config)
    delivered = []
    deliver = trainer.rounds.groups[0].gradients.deliver
    trainer.rounds.groups[0].gradients.deliver = lambda who: (
        delivered.append(who.clone()) or deliver(who)
    )
    for batch in range(8):
        trainer.play_batch()
        assert len(delivered) == (batch + 1) // 4  # 4 batches of 5 episodes are a round
    *earlier, last = trainer.rollout.delivered[0]
    assert torch.equal(delivered[-1], last[None])
    assert not any(torch.equal(who, last) for who in (earlier[0], torch.zeros_like(last)))


def test_the_task_starts_again_after_the_last_round(tiny: Config) -> None:
    trainer = Trainer(tiny)
    rounds = [trainer.rounds.round(batch) for batch in range(4)]
    assert [int(r.number[0]) for r in rounds] == [0, 1, 2, 0]
    assert not torch.equal(rounds[0].fading, rounds[3].fading)
    assert not torch.equal(rounds[0].inner, rounds[3].inner)


@pytest.mark.parametrize("mobility", ["fixed", "waypoint"])
def test_a_fixed_layout_outlasts_the_task(overrides: list[str], mobility: str) -> None:
    """With the task everything starts again elsewhere, but for a layout that is one and fixed."""
    config = load_config("small-cell", [*overrides, f"cell.mobility={mobility}"])
    rounds = Trainer(config, seeds=[0, 1]).rounds
    first, *later = (rounds.round(batch) for batch in range(7))  # three rounds, again, and again
    assert not torch.equal(first.alpha[0], first.alpha[20])  # another run, another layout
    for number, one in enumerate(later, 1):
        assert torch.equal(one.alpha, first.alpha) == (mobility == "fixed")
        assert not torch.equal(one.inner, first.inner)
        assert int(one.number[0]) == number % 3


def test_episodes_repeat_their_fading_when_told_to(tiny: Config, overrides: list[str]) -> None:
    fresh = Trainer(tiny).rounds.round(0).fading
    assert not torch.equal(fresh[0], fresh[1])
    config = load_config("small-cell", [*overrides, "run.repeat_fading=true"])
    same = Trainer(config).rounds.round(0).fading
    assert torch.equal(same[0], same[19])


@pytest.mark.parametrize("parallel", [20, 5])
def test_fading_drawn_ahead_is_used(
    overrides: list[str], parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds at a time, with one batch of episodes a round and with four: each fading is drawn
    once, and is what it is without drawing ahead."""
    config = load_config("small-cell", [*overrides, f"qmix.parallel_episodes={parallel}"])
    batches = 2 * 3 * 20 // parallel  # two cycles of three rounds
    plain = Rounds(config, gradient_source(config), parallel, [0])
    wanted = [plain.round(batch).fading for batch in range(batches)]
    rounds = Rounds(config, gradient_source(config), parallel, [0])
    rounds._at_once = 2
    drawn: list[tuple[int, int]] = []
    small_scale = Channel.small_scale

    def count(self: Channel, seeds: list[int], rounds: range, episodes: range, *rest: Any) -> Any:
        drawn.extend((round, episode) for round in rounds for episode in episodes)
        return small_scale(self, seeds, rounds, episodes, *rest)

    monkeypatch.setattr(Channel, "small_scale", count)
    for batch in range(batches):
        assert torch.equal(rounds.round(batch).fading, wanted[batch])
    assert sorted(drawn) == sorted(2 * [(r, e) for r in range(3) for e in range(20)])
    assert not rounds._ahead


def test_what_is_paid_in_advance_is_taken_back(overrides: list[str]) -> None:
    """Discounted, the potential adds up to nothing in every episode, whoever finishes; who does
    gives all of it back in that slot."""
    easy = [*overrides, "learning.payload_bits=2e5"]
    plain, paid = (
        Trainer(load_config("small-cell", [*easy, f"qmix.advance={weight}"])) for weight in (0, 1)
    )
    for trainer in (plain, paid):
        trainer.play_batch()
    slots, episodes = paid.scenario.slots, paid.rollout.episodes
    assert torch.equal(plain.replay.choice, paid.replay.choice)  # all is explored in this batch
    extra = (paid.replay.reward - plain.replay.reward)[0, : slots * episodes].view(slots, episodes)
    assert 0 < int(paid.rollout.delivered.sum()) < paid.rollout.delivered.numel()
    assert float(extra.max()) > 0.1
    assert float(extra.min()) < -0.1
    discount = paid.config.qmix.gamma ** torch.arange(slots)
    # sums of twelve float32 of order 1, the rewards themselves of order 1 too
    assert float((discount @ extra).abs().max()) < 1e-5
    # Undiscounted it does not, and what is reported is what was earned.
    assert float(extra.sum(0).abs().max()) > 1e-2
    assert torch.equal(plain.rollout.returns, paid.rollout.returns)


def test_the_advance_by_hand(overrides: list[str]) -> None:
    """Shares 1/4, 3/4, all, 0 become 1/2, all, all, 0: the potential falls from 1 to 1/2, because
    who finishes has none; after the last slot nobody has."""
    rollout = Trainer(load_config("small-cell", [*overrides, "qmix.advance=2"])).rollout
    payload = rollout.scenario.payload_bits
    before, after = (
        Progress(payload * torch.tensor([left]))
        for left in ([0.75, 0.25, 0.0, 1.0], [0.5, 0.0, 0.0, 1.0])
    )
    for slot, wanted in ((0, 2 * (0.98 * 0.5 - 1)), (10, 2 * (0.98 * 0.5 - 1)), (11, -2.0)):
        rollout.decision.fill_(slot)
        assert rollout._advance(before, after).unique().tolist() == pytest.approx([wanted])


def test_several_seeds_in_one_program_are_each_what_they_are_alone(
    tiny_federated: Config, tmp_path: Path
) -> None:
    train(tiny_federated, tmp_path / "many", seeds=[3, 4, 5])
    for seed in (3, 5):
        alone = changed(tiny_federated, {"run.seed": seed})
        train(alone, tmp_path / str(seed))
        one = final_tensors(tmp_path / str(seed))
        same_run(one, final_tensors(tmp_path / "many" / f"seed-{seed}"))
        assert load_checkpoint(tmp_path / "many" / f"seed-{seed}").config == alone
    with pytest.raises(UserError, match=r"choose .*seed-3 or .*seed-4 or .*seed-5"):
        load_checkpoint(tmp_path / "many")


def test_random_numbers_reach_for_recording_an_update(overrides: list[str]) -> None:
    """A recording runs the first update of a batch a few times, however few the batch has."""
    trainer = Trainer(load_config("small-cell", [*overrides, "qmix.update_every=100000"]))
    trainer.play_batch()
    trainer.replay.draw_ahead(trainer.learner.updates, trainer._most_updates, 8)
    for _ in range(WARM_UP):
        trainer._update()


def test_the_command_tells_and_draws_seeds_apart_and_together(
    fedfade, overrides: list[str], tmp_path: Path
) -> None:
    words = [word for change in overrides for word in ("--set", change)]
    answer = fedfade("train", "small-cell", *words, "--seeds", 2, "--out", tmp_path)
    assert answer.code == 0
    assert [line[:7] for line in answer.out.splitlines() if "uploads per round" in line] == [
        "seed-0:",
        "seed-1:",
    ]
    pictures = [tmp_path / part / "curve.png" for part in ("", "seed-0", "seed-1")]
    assert len({path.read_bytes() for path in pictures}) == 3


@pytest.mark.parametrize(
    "change",
    [
        "share_parameters=false",
        "share_parameters=true",
        "share_parameters=true client_id=false state=order",
        "mixer=qplex state=order",
        "mixer=qplex",
        "mixer=vdn",
    ],
)
def test_several_seeds_of_other_networks(overrides: list[str], change: str) -> None:
    changes = [f"qmix.{one}" for one in change.split()]
    config = load_config("small-cell", [*overrides, *changes])
    both, alone = Trainer(config, seeds=[0, 1]), Trainer(config, seeds=[1])
    for _ in range(3):
        ours, theirs = both.play_batch()[1], alone.play_batch()[0]
        assert ours[:6] == pytest.approx(theirs[:6], rel=1e-4, nan_ok=True)


def test_seeds_saved_at_different_moments_draw_level(tiny: Config, tmp_path: Path) -> None:
    """One seed is two batches behind, having been stopped alone. The other is trained
    without it for a while, which rounds sums differently."""
    train(tiny, tmp_path / "whole", seeds=[0, 1])
    with pytest.raises(Interrupted):
        train(tiny, tmp_path / "parts", stop_at(2), checkpoint_s=0.0, seeds=[0, 1])
    with pytest.raises(Interrupted):
        train(tiny, tmp_path / "parts" / "seed-0", stop_at(4), checkpoint_s=0.0)
    train(tiny, tmp_path / "parts", seeds=[0, 1])
    for seed in ("seed-0", "seed-1"):
        one = final_tensors(tmp_path / "whole" / seed)
        same_run(one, final_tensors(tmp_path / "parts" / seed))


def test_a_kill_at_any_moment_of_a_save_of_two_seeds(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go on from the old save or both from the new: to the bits of a run nobody killed."""
    config, rename = load_config("small-cell", [*overrides, "qmix.episodes=60"]), os.replace
    seeds = {"checkpoint_s": 0.0, "seeds": [0, 1]}
    train(config, tmp_path / "whole", None, **seeds)
    # Two renames of config.yaml; a save: two tensor files and the index of a seed prepared, then
    # that of the other, then both taken. The last three of the first save, and all of the second.
    for stop in range(8, 2 + 8 * 2 + 1):
        left = iter(range(1, stop))

        def dying(*paths: Path, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Interrupted
            rename(*paths)

        monkeypatch.setattr(os, "replace", dying)
        with pytest.raises(Interrupted):
            train(config, tmp_path / str(stop), None, **seeds)
        monkeypatch.setattr(os, "replace", rename)
        train(config, tmp_path / str(stop), None, **seeds)
        for seed in ("seed-0", "seed-1"):
            one, other = (tmp_path / name / seed for name in ("whole", str(stop)))
            assert same_bits(final_tensors(one), final_tensors(other)), stop
            assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


def test_who_lags_behind_is_not_trained_past_the_end(overrides: list[str], tmp_path: Path) -> None:
    """One seed at batch 4 and one at 2, then fewer episodes are asked for than the first had."""

    def asked(batches: int) -> Config:
        return load_config("small-cell", [*overrides, f"qmix.episodes={20 * batches}"])

    train(asked(2), tmp_path, seeds=[0, 1])
    train(asked(4), tmp_path / "seed-0")
    for batches, reached in ((1, [4, 2]), (3, [4, 3])):
        train(asked(batches), tmp_path, seeds=[0, 1])
        folders = [tmp_path / "seed-0", tmp_path / "seed-1"]
        assert [load_checkpoint(folder).batch for folder in folders] == reached


# --- bad input ---------------------------------------------------------------------------------


@pytest.fixture
def trained(tiny: Config, tmp_path: Path) -> Path:
    config = tiny.model_copy(update={"qmix": tiny.qmix.model_copy(update={"episodes": 40})})
    train(config, tmp_path / "trained")
    return tmp_path / "trained"


def test_another_scenario_is_named(trained: Path, overrides: list[str]) -> None:
    with pytest.raises(UserError, match=r"radio\.slots is 12 there and 50 here"):
        load_policy_checkpoint(trained, load_config("small-cell"))
    # what agents observe they bring along
    hidden = load_config("small-cell", [*overrides, "allocation.hide=[fading]"])
    assert load_policy_checkpoint(trained, hidden).observed.hide == ()
    # what the paper varies between training and test is no other scenario
    load_policy_checkpoint(trained, load_config("small-cell", [*overrides, "radio.clusters=28"]))
    with pytest.raises(UserError, match=r"qmix\.gamma is 0\.98 there and 0\.9 here"):
        train(load_config("small-cell", [*overrides, "qmix.gamma=0.9"]), trained)


def test_broken_files_are_refused_in_a_sentence(trained: Path, tiny: Config) -> None:
    agents = next(trained.glob("agents-*.safetensors"))
    whole = agents.read_bytes()
    for wrong in (whole[:-1], whole[:-1] + b"x", b"", pickle.dumps({"weights": [1, 2]})):
        agents.write_bytes(wrong)
        with pytest.raises(UserError, match="truncated or changed"):
            load_policy_checkpoint(trained, tiny)
    agents.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        load_policy_checkpoint(trained, tiny)


def test_a_broken_index_is_refused_in_a_sentence(trained: Path, tiny: Config) -> None:
    index = trained / "checkpoint.json"
    good = json.loads(index.read_text())
    index.write_bytes(pickle.dumps(good))
    with pytest.raises(UserError, match="not valid JSON"):
        load_policy_checkpoint(trained, tiny)
    outside = {part: {"name": "../../secret", "sha256": ""} for part in ("agents", "training")}
    for change in ({"format": "x"}, {"version": 9}, {"batch": -1}, {"files": outside}):
        index.write_text(json.dumps(good | change))
        with pytest.raises(UserError):
            load_policy_checkpoint(trained, tiny)
    with pytest.raises(UserError, match=r"holds no checkpoint\.json"):
        load_policy_checkpoint(trained / "nowhere", tiny)


def test_a_pickle_with_a_matching_digest_is_still_not_loaded(trained: Path, tiny: Config) -> None:
    import hashlib

    content = pickle.dumps({"weights.0": 1})
    next(trained.glob("agents-*.safetensors")).write_bytes(content)
    index = json.loads((trained / "checkpoint.json").read_text())
    index["files"]["agents"]["sha256"] = hashlib.sha256(content).hexdigest()
    (trained / "checkpoint.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="no safetensors file"):
        load_policy_checkpoint(trained, tiny)


@pytest.mark.parametrize(
    "curve", [torch.full((2, 7), torch.nan), torch.ones(7) * 1j, torch.ones(5)]
)
def test_a_curve_that_is_none(curve: torch.Tensor) -> None:
    with pytest.raises(UserError, match="tensor 'curve' of the checkpoint does not hold"):
        run_module._read_curve({"curve": curve})


def test_a_diverging_training_keeps_its_last_good_checkpoint(tiny: Config, tmp_path: Path) -> None:
    def poison(trainer: Trainer, report: object) -> None:
        if trainer.batch == 3:
            run_module.save(trainer, tmp_path, [])
            trainer.replay.reward.fill_(float("nan"))

    with pytest.raises(Diverged) as caught:
        train(tiny, tmp_path, poison, checkpoint_s=0.0)
    assert str(caught.value) == (
        "training stopped at episode 80 because the loss became infinite or not a number; "
        "the last checkpoint before it is kept."
    )
    assert load_checkpoint(tmp_path).batch == 3
    load_policy_checkpoint(tmp_path, tiny)


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
@pytest.mark.parametrize("what", ["the loss", "parameters"])
def test_a_training_that_diverges_at_once_claims_no_checkpoint(
    tiny: Config, tmp_path: Path, seeds: list[int], what: str
) -> None:
    def poison(trainer: Trainer, report: object) -> None:
        if what == "the loss":
            trainer.replay.reward.fill_(float("nan"))
        else:
            trainer.learner.agents.weights[0].data.fill_(float("inf"))

    pause = 1e9 if what == "the loss" else 0.0
    with pytest.raises(Diverged, match=f"{what} became .*; no checkpoint had been written yet"):
        train(tiny, tmp_path, poison, checkpoint_s=pause, seeds=seeds)
    assert not list(tmp_path.rglob("checkpoint*"))
    train(tiny, tmp_path, seeds=seeds)  # the folder is free for another try


def test_broken_parameters_are_not_saved_over_good_ones(tiny: Config, tmp_path: Path) -> None:
    trainer = Trainer(tiny)
    trainer.play_batch()
    run_module.save(trainer, tmp_path, [])
    trainer.learner.agents.weights[0].data[0, 0, 0] = float("inf")
    trainer.batch += 1
    with pytest.raises(Diverged, match="parameters became"):
        run_module.save(trainer, tmp_path, [])
    assert load_checkpoint(tmp_path).batch == 1


def test_rewards_that_are_no_numbers_stop_the_training(tiny: Config) -> None:
    trainer = Trainer(tiny)
    trainer.rounds.groups[0].gradients.inner = lambda seeds, round: torch.full(
        (1, 4, 4), float("nan")
    )
    with pytest.raises(Diverged, match="rewards became"):
        trainer.play_batch()


def test_the_command_reports_errors_with_exit_code_2(
    fedfade, tmp_path: Path, trained: Path
) -> None:
    wrong = fedfade("train", "small-cell", "--out", trained, "--seed", 7)
    assert wrong.code == 2
    assert "error: the checkpoint in" in wrong.err
    assert "Traceback" not in wrong.err
    words = ["--out", tmp_path / "o", "--set", "qmix.parallel_episodes=7"]
    odd = fedfade("train", "small-cell", *words)
    assert odd.code == 2
    assert "a divisor of run.episodes_per_round = 20" in odd.err.replace("\n", " ")
