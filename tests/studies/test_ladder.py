"""The ladder of channel knowledge: a comparison's rounds, nothing redone, agents placed."""

import json
from pathlib import Path

import pandas as pd
import pytest

from fedfade.agents import train
from fedfade.config import changed, load_config, render_config
from fedfade.errors import UserError
from fedfade.studies.frames import matching, read_frame
from fedfade.studies.ladder import rungs

QUICK = ["--scale", "small", "--set", "radio.slots=24", "--set", "learning.payload_bits=1000000"]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents that see everybody's fading of seven slots ago, hardly trained, two seeds."""
    folder = tmp_path_factory.mktemp("agents")
    config = load_config(
        "paper",
        [
            *rungs.SCALES["small"].overrides,
            "radio.slots=24",
            "learning.payload_bits=1000000",
            "allocation.observe=[alphas, fading, others_fading, finished, remaining, round]",
            "allocation.csi_delay_slots=7",
            "qmix.gradients=synthetic",
            "qmix.hidden=[8]",
            "qmix.episodes=20",
            "run.device=cpu",
        ],
    )
    train(config, folder, seeds=[0, 1])
    return folder


def test_all_of_it(fedfade, agents: Path, tmp_path: Path) -> None:
    words = ["ladder", "--out", tmp_path, *QUICK, "--checkpoint", f"mine={agents}"]
    answer = fedfade(*words)
    assert answer.code == 0, answer.err
    assert "own fading" in answer.out
    made_by = json.loads((tmp_path / "ladder.json").read_text())
    assert made_by["started"] <= made_by["finished"]
    table = read_frame(tmp_path / "ladder.csv")
    asked = rungs.make_ladder(
        "paper", "small", checkpoints=[f"mine={agents}"], overrides=QUICK[3::2]
    )
    names = [rung.name for rung in asked.rungs]
    assert "CSI 7 old" in names  # a rung for what these agents know
    for cell in asked.cells:
        own = matching(table, **cell.labels)
        assert [*own["rung"]] == names
        # Those who know more can do all that those who know less can.
        assert own["uploads"].is_monotonic_increasing
        assert own["uploads"].max() <= 10
    policies = read_frame(tmp_path / "policies.csv")
    mine = matching(policies, policy="mine")
    assert len(mine) == len(asked.cells)
    assert {*zip(mine["rung"], mine["learned"], strict=True)} == {("CSI 7 old", "yes")}
    for _, own in policies.groupby(["cell", "speed"]):
        assert own["uploads"].max() == matching(own, policy="genie")["uploads"].item()
    assert (tmp_path / "ladder.png").stat().st_size > 10_000
    page = (tmp_path / "ladder.md").read_text()
    assert "seeds 2000 to 2001" in page
    assert "| mine |" in page

    # Again: nothing is played that is there, and what is missing comes out the same.
    files = sorted((tmp_path / "runs").iterdir())
    assert len(files) == 2 * len(asked.cells)
    before = {path: (path.stat().st_mtime_ns, path.read_text()) for path in files}
    files[0].unlink()
    assert fedfade(*words).code == 0
    after = {path: (path.stat().st_mtime_ns, path.read_text()) for path in files}
    assert [path for path in files if after[path][0] != before[path][0]] == files[:1]
    assert after[files[0]][1] == before[files[0]][1]

    files[0].write_text("policy,seed\nrandom,here\n")
    answer = fedfade(*words)
    assert answer.code == 2
    assert "is damaged" in answer.err


def test_same_rounds_as_a_comparison(fedfade, tmp_path: Path) -> None:
    """Uploads are those `fedfade compare` counts in the same cell, seeds and rounds."""
    assert fedfade("ladder", "--out", tmp_path / "ladder", *QUICK, "--rounds", 2).code == 0
    names = ["wrap-around-choice", "deadline-feedback", "shortest-remaining-first@5"]
    asked = rungs.make_ladder("paper", "small", overrides=QUICK[3::2])
    cell = next(cell for cell in asked.cells if cell.name == "20 dB, spread 3 dB")
    config = changed(cell.config, {"allocation.policies": names, "learning.local_work": 1})
    (tmp_path / "cell.yaml").write_text(render_config(config))
    assert fedfade("compare", tmp_path / "cell.yaml", "--out", tmp_path / "compared").code == 0
    compared = pd.read_csv(tmp_path / "compared" / "metrics.csv")
    found = matching(read_frame(tmp_path / "ladder" / "policies.csv"), **cell.labels)
    for name in names:
        delivered = matching(compared, policy=name)["delivered"]
        assert len(delivered) == 4  # 2 seeds, 2 rounds
        uploads = matching(found, policy=name)["uploads"].item()
        assert uploads == pytest.approx(delivered.mean())


def test_accuracy_in_two_cells(fedfade, agents: Path, tmp_path: Path) -> None:
    words = ["--out", tmp_path, *QUICK, "--accuracy", "--checkpoint", f"mine={agents}"]
    small = ["--set", "learning.local_work=1", "--seeds", "1", "--rounds", "1"]
    small += ["--set", "learning.model=tests.studies.small_model:linear"]
    answer = fedfade("ladder", *words, *small)
    assert answer.code == 0, answer.err
    table = read_frame(tmp_path / "accuracy.csv")
    assert {*table["cell"]} == {"20 dB, spread 3 dB", "own"}
    assert table["accuracy"].between(0.0, 1.0).all()
    assert {*table["seeds"]} == {2}
    assert {*matching(table, policy="perfect")["uploads"]} == {10.0}
    assert len(matching(table, policy="mine")) == 4  # two cells, two speeds
    assert (tmp_path / "accuracy.png").is_file()


def test_what_agents_know_is_their_rung(agents: Path) -> None:
    some = rungs.load_agents([f"a={agents}"])[0]
    assert len(some.folders) == 2
    assert (some.rung, some.age) == ("CSI 7 old", 7)
    assert rungs.load_agents([f"a={agents / 'seed-1'}"])[0].folders == [agents / "seed-1"]
    shipped = rungs.load_agents([f"{name}={name}" for name in ("qmix-hold", "size-free-feedback")])
    assert [one.rung for one in shipped] == ["gains", "finished"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--checkpoint", "nothing"], "NAME=FOLDER"),
        (["--checkpoint", "a=nowhere"], "holds no checkpoint.json"),
        (["--checkpoint", "max-sum-rate=nowhere"], "'max-sum-rate' is the name of a policy"),
        (["--checkpoint", "perfect=nowhere"], "'perfect' is the name of a policy"),
        (["--scale", "huge"], "paper or small"),
        (["--rounds", "1000"], "between 1 and run.rounds"),
        (["--set", "learning.payload_bits=auto"], "learning.payload_bits"),
    ],
)
def test_wrong_words(words: list[str], sentence: str, fedfade, tmp_path: Path) -> None:
    answer = fedfade("ladder", "--out", tmp_path / "out", *words)
    assert answer.code == 2
    assert sentence in answer.err
    assert not (tmp_path / "out").exists()


def test_agents_do_not_play_what_they_were_trained_on(agents: Path) -> None:
    some = rungs.load_agents([f"a={agents}"])[0]
    config = load_config("paper", ["run.seed=0", "run.seeds=2"])
    with pytest.raises(UserError, match="trained on the seeds"):
        rungs.check_unseen(some, config)


def test_scales_have_the_names_of_other_commands() -> None:
    assert rungs.make_ladder("paper") == rungs.make_ladder("paper", "paper")
    assert rungs.make_ladder("paper", "paper") == rungs.make_ladder("paper", "full")
