"""Which lever? The list is sound, runs are not done twice, tables say what runs said."""

from pathlib import Path

import pandas as pd
import pytest
from pandas import DataFrame

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.experiments import read_rows
from fedfade.studies.frames import matching, read_frame, write_figures
from fedfade.studies.levers import page, plan, runs

QUICK = ["--scale", "small", "--only", "paper", "--rounds", "2", "--seeds", "2"]
QUICK += ["--set", "radio.slots=20", "--set", "learning.payload_bits=800000", "--device", "cpu"]


@pytest.mark.parametrize("scale", list(plan.SCALES))
def test_the_list_is_sound(scale: str) -> None:
    """Every word is known, every configuration allowed, every claim about a line that is played."""
    levers = plan.load_levers(scale)
    assert {part.name for part in levers.parts} == {"paper", "heavy", "payload", "clients", "order"}
    planned = runs.planned_runs(levers, Path("out"))
    assert all(isinstance(run.config, Config) for run in planned)
    assert len({run.folder for run in planned}) == len(planned)
    for part in levers.parts:
        assert len(set(part.lines)) == len(part.lines)
        assert {line.allocation for line in part.lines} <= {*levers.allocations}
        assert {word for line in part.lines for word in line[1:]} <= {*levers.fields}
    names = {part.name: {line.name for line in part.lines} for part in levers.parts}
    assert len(levers.claims) == 4
    assert all({claim.one, claim.other} <= names[claim.part] for claim in levers.claims)


def test_agents_are_played_where_they_fit() -> None:
    levers = plan.load_levers("paper", ["payload"])
    (part,) = levers.parts
    played = runs.planned_runs(levers, Path("out"))
    assert any("qmix-hold" in run.config.allocation.policies for run in played)
    assert not plan.fits("qmix-hold", plan.load_levers("paper", ["heavy"]).parts[0].base)
    assert part.config("4S").learning.payload_factors == 4.0


def test_a_word_nobody_knows_is_refused(fedfade, tmp_path: Path) -> None:
    answer = fedfade("levers", "--only", "papers", "--out", tmp_path / "x")
    assert answer.code == 2
    assert "papers is not a known part: did you mean paper?" in answer.err
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match="--scale"):
        plan.load_levers("tiny")
    with pytest.raises(UserError, match="did you mean random int8 mean"):
        plan.load_levers("small", ["heavy"], chosen=["random int8 means"])


def test_lines_are_played_alone() -> None:
    """A claim is judged where both of its lines are, early at most after the last round."""
    two = ["block float32 mean", "block float32 mifa"]
    levers = plan.load_levers("paper", ["paper", "heavy"], ["run.rounds=30"], two)
    (part,), (claim,) = levers.parts, levers.claims
    assert [line.name for line in part.lines] == two
    assert (claim.early, levers.early) == (True, 30)
    assert {run.labels["server"] for run in runs.planned_runs(levers, Path())} == {"mean", "mifa"}


def test_all_of_it(fedfade, tmp_path: Path) -> None:
    """Tables follow from the runs; a second call redoes nothing."""
    answer = fedfade("levers", *QUICK, "--out", tmp_path)
    assert answer.code == 0, answer.err
    lines = read_frame(tmp_path / "levers.csv")
    assert len(lines) == 9
    folders = sorted((tmp_path / "runs").rglob("metrics.csv"))
    assert len(folders) == 4  # float32, int8 and int4 under the mean, float32 under mifa
    (folder,) = (path for path in folders if path.parent.name.startswith("int8-mean"))
    rows = DataFrame(read_rows(folder))
    for policy, word in (("random", "random"), ("wrap-around-choice", "wrap-around")):
        own = matching(rows, policy=policy)
        (line,) = matching(lines, allocation=word, codec="int8").to_dict("records")
        assert line["uploads"] == pytest.approx(own["delivered"].mean(), rel=1e-5)
        last = own[own["round"] == 1]
        assert line["accuracy"] == pytest.approx(last["accuracy"].mean(), rel=1e-5)
        assert line["averaged"] == pytest.approx(last["accuracy_averaged"].mean(), rel=1e-5)
    assert (
        "| wrap-around int8 mean | perfect float32 mean |" in (tmp_path / "levers.md").read_text()
    )
    assert (tmp_path / "levers.png").stat().st_size > 10_000
    stamps = [path.stat().st_mtime_ns for path in folders]
    assert fedfade("levers", *QUICK, "--out", tmp_path).code == 0
    assert [path.stat().st_mtime_ns for path in folders] == stamps
    pd.testing.assert_frame_equal(read_frame(tmp_path / "levers.csv"), lines)


def test_accuracy_against_load_is_drawn(tmp_path: Path) -> None:
    """From the table that the page shows; every line of the picture is one of the part's."""
    levers = plan.load_levers("small", ["payload"])
    assert {*page._SHOWN} <= {line.name for line in levers.parts[0].lines}
    table = read_frame(Path(__file__).parents[2] / "docs/data/levers-small.csv")
    write_figures(tmp_path, page.figures(levers, table))
    assert (tmp_path / "load.png").stat().st_size > 10_000


def test_claims_are_judged_by_differences_over_seeds() -> None:
    levers = plan.load_levers("small", ["heavy"])
    (claim,) = levers.claims
    assert (claim.least, claim.beyond_noise) == (5, True)

    def verdict(gaps: list[float]) -> str:
        rows = []
        for seed, gap in enumerate(gaps):
            for word, accuracy in (("random", 0.3), ("wrap-around", 0.3 + gap)):
                which = {"part": "heavy", "allocation": word, "codec": "int8", "server": "mean"}
                rows.append({**which, "seed": seed, "accuracy": accuracy, "early": 0.0})
        (found,) = runs.judged(levers, DataFrame(rows)).to_dict("records")
        assert found["points"] == pytest.approx(100 * sum(gaps) / len(gaps))
        return str(found["holds"])

    assert verdict([0.08, 0.081, 0.079]) == "yes"
    assert verdict([0.04, 0.041, 0.039]) == "no"  # less than five points
    assert verdict([0.01, 0.2, 0.06]) == "no"  # within noise
