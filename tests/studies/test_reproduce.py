"""`fedfade reproduce`: every part from one command, resumed anywhere, judged by stated rules."""

import json
import math
import shutil
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas import DataFrame

from fedfade import __version__
from fedfade.agents.checkpoint import load_checkpoint
from fedfade.config import changed, load_config
from fedfade.errors import UserError
from fedfade.experiments import compare_many, read_rows, series
from fedfade.experiments.comparison import bound_under
from fedfade.experiments.sweep import load_sweep
from fedfade.seams import SWEEP_COMMANDS
from fedfade.studies import reproduction
from fedfade.studies.frames import matching, read_frame, write_frame
from fedfade.studies.paper import SCALES, charts, claims, questions, regimes, runs, setting
from fedfade.studies.paper.accuracy import facts_of
from fedfade.studies.paper.setting import Asked, Grid, checked_setting, seeds_used
from fedfade.studies.reproduction import PAPER, PARTS, STUDIES, reproduce
from tests.conftest import TINY

MICRO = [
    *(word for word in TINY if "clusters" not in word),
    "learning.batch_size=60",
    "learning.model=tests.studies.small_model:linear",
    "qmix.hidden=[8]",
    "qmix.batch_size=16",
    "qmix.episodes=60",
    "run.episodes_per_round=20",
    "run.rounds=2",
    "run.evaluate_every=1",
]
SETTINGS = [word for override in MICRO for word in ("--set", override)]
GRID = Grid(
    alphas=(0.5, 5.0),
    clusters=(14, 21),
    snrs_db=(15.0, 25.0),
    spreads_db=(0.0, 6.0),
    coarse_snrs_db=(15.0, 25.0),
    coarse_spreads_db=(6.0,),
    regime_rounds=2,
    epoch_rounds=1,
    bound_rounds=1,
)


@pytest.fixture(autouse=True)
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale small in seconds: the same parts on a grid of 2 x 2."""
    for name, scale in SCALES.items():
        monkeypatch.setitem(SCALES, name, replace(scale, grid=GRID))


def results(out: Path) -> dict[str, bytes]:
    """What a reproduction says: everything but pictures and run folders."""
    found = {}
    for pattern in ("*/*.csv", "*/*.json", "*/*.md", "*.md"):
        found |= {str(p.relative_to(out)): p.read_bytes() for p in out.glob(pattern)}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One reproduction nobody interrupts."""
    out = tmp_path_factory.mktemp("reproduce") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "small", replace(SCALES["small"], grid=GRID))
        base = load_config("paper", [*SCALES["small"].overrides, *MICRO])
        reproduce(checked_setting(out, base, "small"), [*PAPER])
    return out


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """The same to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "copied"))


@pytest.fixture
def small(fedfade):
    """`fedfade reproduce PART --out OUT` at the smallest scale."""

    def run(part: str, out: Path, *more: object):
        return fedfade("reproduce", part, "--scale", "small", "--out", out, *SETTINGS, *more)

    return run


def test_every_part_leaves_table_picture_and_facts(small, whole: Path, copied: Path) -> None:
    for part in PAPER:
        assert list((whole / part).glob("*.csv")), part
        assert all(p.read_bytes()[:4] == b"\x89PNG" for p in (whole / part).glob("*.png"))
        assert (whole / part / f"{part}.png").exists()
        facts = json.loads((whole / part / f"{part}.json").read_text())
        assert facts["setting"]["seeds_evaluated_on"] == 2
        text = (whole / part / f"{part}.md").read_text()
        assert 0 < text.count("\n|---|") == text.count("*Rehearsal: this checks the code")
        assert "**" not in text
    assert read_frame(whole / "epochs" / "curves.csv")["round"].unique().tolist() == [0]
    page = (whole / "claims.md").read_text()
    assert all(f"| {says} |" in page for says, *_ in claims.CLAIMS)
    assert "checks the code, not the paper" in page
    assert "come with the package" not in page  # they do not fit this scenario
    assert "**" not in page
    whole_page = (whole / "results.md").read_text()
    for part in PAPER:
        assert f"({part}/{part}.png)" in whole_page
    everything = json.loads((whole / "results.json").read_text())
    made_by = everything["made_by"]
    assert made_by == json.loads((whole / "reproduce.json").read_text())
    assert made_by["fedfade"] == __version__
    assert made_by["started"] <= made_by["finished"]
    assert set(everything["parts"]) == set(PAPER)
    assert {"reward/training/seed-0", "ablation/training-no-fading/seed-1"} < {
        *everything["agents"]
    }
    # The same command again computes nothing and says the same.
    times = {p: p.stat().st_mtime_ns for p in copied.rglob("*.safetensors")}
    times |= {p: p.stat().st_mtime_ns for p in copied.rglob("metrics.csv")}
    for part in ("accuracy", "ablation"):
        answer = small(part, copied)
        assert answer.code == 0, answer.err
    shown = answer.out.partition("claim ")[2].splitlines()  # a table, then where to read on
    assert "verdict" in shown[0]
    assert shown[-3] == "A rehearsal: this checks the code, not the paper."
    assert [line.rpartition("/")[2] for line in shown[-2:]] == ["claims.md", "results.md"]
    assert max(map(len, shown[:-2])) <= 100
    words = " ".join(" ".join(shown).split())
    assert "not measured" in words or "does not hold" in words
    assert not any(mark in words for mark in ("|", "**", "# "))
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert results(copied) == results(whole)


def test_verdicts_are_bold_where_they_count() -> None:
    held = [claims.CLAIMS[0]._replace(verdict="holds", measured="1")]
    assert "| **holds** |" in claims.page(held, "")
    assert "| holds |" in claims.page(held, "", rehearsal=True)


def test_one_bar_for_all_parts(tmp_path: Path) -> None:
    """Shares of the whole never fall and end at 1; parts that others begin with count once."""
    base = load_config("paper", [*SCALES["small"].overrides, *MICRO])
    told: list[float] = []
    counting = setting.WorkDone(lambda share, doing: told.append(share))
    one = checked_setting(tmp_path, base, "small", work=counting)
    alone, after = (
        reproduction.amounts(one, ["accuracy"]),
        reproduction.amounts(one, ["reward", "accuracy"]),
    )
    assert sum(alone.values()) == sum(after.values())
    assert after["accuracy"] < alone["accuracy"]
    reproduce(one, ["partition", "reward"])
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len({*told}) > 3  # training is told of while it goes on


@pytest.fixture
def impatient() -> type[setting.Clock]:
    """A clock whose user presses Ctrl-C when `left` more lines have been told."""

    class Impatient(setting.Clock):
        left = math.inf

        def __call__(self, text: str) -> None:
            Impatient.left -= 1
            if Impatient.left < 0:
                raise KeyboardInterrupt
            super().__call__(text)

    return Impatient


def test_interrupted_anywhere_it_ends_in_the_same_files(
    small, whole: Path, tmp_path: Path, impatient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at every few lines of progress: in trainings and in comparisons."""
    monkeypatch.setattr(runs, "Clock", impatient)
    monkeypatch.setattr(regimes, "Clock", impatient)
    out = tmp_path / "broken"
    stops = 0
    for part in ("accuracy", "regimes"):
        while True:
            impatient.left = 4 if stops else 2  # the training alone tells three times
            answer = small(part, out)
            if answer.code == 0:
                break
            assert answer.code == 130, answer.err
            assert "the same command continues" in answer.err
            assert json.loads((out / "reproduce.json").read_text())["finished"] is None
            stops += 1
    assert stops >= 3
    same = {name: text for name, text in results(out).items() if "/" in name}
    assert len(same) > 10
    assert same.items() <= results(whole).items()


def test_redraw_needs_only_the_tables(small, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("runs", "training*", "*.png", "*.md"))
    for part in ("reward", "bound", "regimes"):
        answer = small(part, out, "--redraw")
        assert answer.code == 0, answer.err
    same = {name: text for name, text in results(out).items() if name != "results.md"}
    assert same.items() <= results(whole).items()
    assert (out / "regimes" / "regimes.png").exists()
    (out / "bound" / "bound.json").write_text('{"cells": 3}')
    answer = small("reward", out, "--redraw")
    assert answer.code == 2
    assert "not of this version" in answer.err
    (out / "accuracy" / "final.csv").unlink()
    answer = small("accuracy", out, "--redraw")
    assert answer.code == 2
    assert "final.csv" in answer.err


def test_without_matplotlib_tables_must_do(
    small, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "plain"
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("runs", "training*", "*.png"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(reproduction, "find_spec", lambda name: None)
    answer = small("reward", out, "--redraw")
    assert answer.code == 0, answer.err
    assert "no pictures" in answer.out
    assert not list(out.rglob("*.png"))
    assert (out / "claims.md").read_bytes() == (whole / "claims.md").read_bytes()


# --- studies that go on from the paper ----------------------------------------------------------


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ladder, levers, link and policies that nobody interrupts."""
    out = tmp_path_factory.mktemp("studies") / "whole"
    base = load_config("paper", [*SCALES["small"].overrides, *MICRO])
    told: list[float] = []
    one = checked_setting(
        out,
        base,
        "small",
        work=setting.WorkDone(lambda share, doing: told.append(share)),
        asked=Asked("paper", tuple(MICRO)),
    )
    reproduce(one, [*STUDIES])
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len({*told}) > 20  # each of them is told of while it goes on
    return out


def test_studies_are_parts(studies: Path) -> None:
    """Tables, pictures, a page that says what it is, and their lines as records in results.json."""
    parts = json.loads((studies / "results.json").read_text())["parts"]
    assert set(parts) == set(STUDIES)
    summaries = {"ladder": ["ladder", "policies", "accuracy"], "levers": ["levers", "claims"]}
    summaries |= {"link": ["link"], "policies": ["policies"]}
    for part, names in summaries.items():
        assert parts[part]["setting"]["scale"] == "small"
        for name in names:
            table = read_frame(studies / part / f"{name}.csv")
            assert [*parts[part][name][0]] == [*table.columns]
            assert len(parts[part][name]) == len(table)
        text = (studies / part / f"{part}.md").read_text()
        assert 0 < text.count("\n|---|") == text.count("*Rehearsal: this checks the code")
        assert (studies / part / f"{part}.png").read_bytes()[:4] == b"\x89PNG"
        assert f"({part}/{part}.png)" in (studies / "results.md").read_text()
    page = (studies / "claims.md").read_text()
    assert "None of the paper's parts has been run here." in page


def test_differences_of_links_are_of_the_same_rounds(studies: Path) -> None:
    table = read_frame(studies / "link" / "link.csv")
    assert len(table) == 16 * 12  # nine policies, the genie, two differences
    for _, own in table.groupby(["updates", "link", "antennas", "neighbours"]):
        uploads = own.set_index("policy")["uploads"]
        packing = uploads["wrap-around-schedule"]
        assert uploads["packing - knowing"] == pytest.approx(packing - uploads["max-sum-rate"])
        assert uploads["own fading"] == pytest.approx(uploads["wrap-around-choice"] - packing)
        assert uploads.max() == uploads["genie"] <= 4  # clients
    light, heavy = (matching(table, updates=u, policy="random") for u in ("int8", "float32"))
    assert light["uploads"].mean() >= heavy["uploads"].mean()


def test_studies_go_on_where_they_stopped(
    small, studies: Path, tmp_path: Path, impatient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in each of them; then the command computes what is missing and nothing else."""
    out = tmp_path / "broken"
    monkeypatch.setattr(reproduction, "Clock", impatient)
    for part in STUDIES:
        impatient.left = 3
        answer = small(part, out)
        assert answer.code == 130, answer.err
        impatient.left = 10**6
        begun = {p: p.stat().st_mtime_ns for p in (out / part / "runs").glob("*.csv")}
        answer = small(part, out)
        assert answer.code == 0, answer.err
        assert {p: p.stat().st_mtime_ns for p in begun} == begun
    same = {name: text for name, text in results(out).items() if "/" in name}
    assert same == {name: text for name, text in results(studies).items() if "/" in name}
    # Again, of several parts those that are there.
    shutil.rmtree(out / "link")
    answer = small("all", out, "--redraw")
    assert answer.code == 0, answer.err
    assert same.items() >= {n: t for n, t in results(out).items() if "/" in n}.items()


def test_what_words_stand_for(tmp_path: Path) -> None:
    """`all` is all, `paper` the paper's own; the search is last and counted by its trainings."""
    assert reproduction.WORDS["all"] == (*PAPER, *STUDIES, "readings") == tuple(PARTS)
    assert reproduction.WORDS["paper"] == tuple(PAPER)
    base = load_config("paper", [*SCALES["small"].overrides, *MICRO])
    some = setting.Search(only=reproduction.REHEARSED_READINGS)
    one, two = (
        checked_setting(tmp_path, base, "small", search=s) for s in (some, setting.Search())
    )
    few, many = (reproduction.amounts(s, ["readings"])["readings"] for s in (one, two))
    assert few == 2 * 3 * setting.EPISODE * 60  # readings, trainings, episodes
    assert many > 10 * few


BAD = [
    (["levers", "--only", "paper"], "--only belongs to part readings: leave it out of part levers"),
    (
        ["all", "--scale", "small", "--set", "learning.payload_bits=auto"],
        "learning.payload_bits = 'auto'",
    ),
    (["dance"], "part = 'dance' is not allowed: it must be one of partition, reward"),
    (["all", "--scale", "large"], "--scale = 'large' is not allowed: it must be one of paper"),
    (["all", "--preset", "nowhere"], "preset = 'nowhere'"),
    (["all", "--scale", "small", "--set", "radio.clusters=9"], "none of the nine test cells"),
    (["all", "--scale", "small", "--seeds", "0"], "run.seeds = 0"),
    (["reward", "--scale", "small", "--redraw"], "run this part of fedfade reproduce first"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_bad_input_is_one_sentence(words, sentence: str, fedfade, tmp_path: Path) -> None:
    answer = fedfade("reproduce", *words, "--out", tmp_path / "out")
    assert answer.code == 2
    assert sentence in answer.err.replace("\n", " ")


def test_other_options_in_the_same_folder_are_refused(small, copied: Path) -> None:
    for field in ("learning.local_rate", "qmix.gamma"):  # of the runs, of the training before them
        answer = small("accuracy", copied, "--set", f"{field}=0.5")
        assert answer.code == 2
        assert field in answer.err


def test_the_bound_is_that_of_its_own_options(
    small, whole: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms and runs that are there are used only where they were made with the same options."""
    times = {p: p.stat().st_mtime_ns for p in copied.glob("bound/runs/*.csv")}
    assert len(times) == 5  # policies
    answer = small("bound", copied)
    assert answer.code == 0, answer.err
    assert {p: p.stat().st_mtime_ns for p in copied.glob("bound/runs/*.csv")} == times
    assert results(copied) == results(whole)
    answer = small("bound", copied, "--set", "learning.local_rate=0.5")
    assert answer.code == 2
    assert "learning.local_rate" in answer.err
    longer = replace(SCALES["small"], grid=replace(GRID, bound_rounds=2))
    monkeypatch.setitem(SCALES, "small", longer)
    assert small("bound", copied).code == 0
    facts = json.loads((copied / "bound" / "bound.json").read_text())
    assert {terms["rounds"] for terms in facts["terms"]} == {2}
    one, two = (read_frame(folder / "bound" / "terms-random.csv") for folder in (whole, copied))
    assert two[:1].equals(one)  # seed and policy as before, a round more


def test_agents_that_were_trained_longer_are_refused(small, whole: Path, tmp_path: Path) -> None:
    """They are not those of a training of so many episodes, nor may seeds differ in length."""
    out = tmp_path / "longer"
    shutil.copytree(whole / "reward" / "training" / "seed-0", out / "reward/training/seed-0")
    for part in ("reward", "accuracy"):
        answer = small(part, out, "--episodes", 40)
        assert answer.code == 2
        assert "were trained for 60 episodes" in answer.err.replace("\n", " ")
    assert [p.name for p in (out / "reward" / "training").iterdir()] == ["seed-0"]
    assert trained_for(out, 41) == trained_for(out, 60) == [60]  # whole batches of 20


def trained_for(out: Path, episodes: int) -> list[int]:
    """Episodes of the agents that a reproduction with one seed takes."""
    overrides = [*SCALES["small"].overrides, *MICRO, "run.seeds=1", f"qmix.episodes={episodes}"]
    folders = runs.trained(checked_setting(out, load_config("paper", overrides), "small"))
    return [load_checkpoint(folder).episodes for folder in folders]


def test_agents_are_tested_in_another_precision(small, copied: Path) -> None:
    """Runs are refused, as their numbers would differ; the agents they test are not."""
    answer = small("epochs", copied, "--precision", "bf16")
    assert answer.code == 2
    assert "run.precision" in answer.err
    assert "holds a run of another configuration" in answer.err
    shutil.rmtree(copied / "epochs")
    assert small("epochs", copied, "--precision", "bf16").code == 0
    trained = copied / "reward" / "training" / "seed-0" / "config.yaml"
    assert load_config(trained).run.precision == "fp32"


# --- seeds --------------------------------------------------------------------------------------


def test_evaluation_seeds_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    base = load_config("paper")
    paper = checked_setting(Path("x"), base, "paper")
    used = {s for seed in paper.training_seeds for s in seeds_used(base, seed)}
    # 30,000 episodes are 1,500 rounds of 20, a restart every 100; and the trainings' own seeds.
    assert len(used) == 5 * (15 + 1)
    tested = set(paper.test_seeds)
    assert tested == {1000, 1001, 1002, 1003, 1004}
    assert not used & tested
    assert setting.check_unseen(paper) == (80, 5)
    layouts = changed(base, {"qmix.layouts": 20})  # a task each, of 75 rounds
    assert len(seeds_used(layouts, 0)) == 20 * 2
    monkeypatch.setattr(setting, "cycle_seed", lambda seed, cycle: 1003)
    with pytest.raises(UserError, match="not trained on"):
        checked_setting(Path("x"), base, "paper")


def test_agents_of_every_training_meet_every_evaluation_seed(whole: Path) -> None:
    found = {}
    for path in whole.glob("*/runs/*/qmix*/config.yaml"):
        config = load_config(path)
        assert config.allocation.checkpoint is not None
        found.setdefault(config.run.seed, set()).add(Path(config.allocation.checkpoint).name)
        hidden = config.allocation.hide
        assert ("ablation" in config.allocation.checkpoint) == bool(hidden)
    assert found == {1000: {"seed-0", "seed-1"}, 1001: {"seed-0", "seed-1"}}
    for table, cells in (("accuracy/final", 4), ("regimes/uploads", 4), ("ablation/final", 3)):
        lines = matching(read_frame(whole / f"{table}.csv"), policy="qmix")
        pairs = [(seed, training) for seed in (1000, 1001) for training in "01"]
        assert sorted(zip(lines["seed"], lines["training"], strict=True)) == sorted(cells * pairs)


def test_training_on_gives_other_agents_and_new_runs(small, copied: Path) -> None:
    """Baselines stay, runs of agents that were trained further are made anew."""
    kept = {p: p.stat().st_mtime_ns for p in copied.glob("accuracy/runs/*/baselines*/metrics.csv")}
    before = len(list(copied.glob("accuracy/runs/*/qmix*")))
    answer = small("accuracy", copied, "--episodes", 80)
    assert answer.code == 0, answer.err
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    assert len(list(copied.glob("accuracy/runs/*/qmix*"))) == 2 * before


def test_agents_that_come_with_the_package_join(
    small, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of training seed 0, shipped as qmix-plus, do in seed 1000 what they do as qmix."""
    shelf = tmp_path / "shelf"
    shutil.copytree(copied / "reward" / "training" / "seed-0", shelf / "qmix-plus")
    monkeypatch.setattr("fedfade.agents.trained._shelf", lambda: shelf)
    for part, table in (("accuracy", "final.csv"), ("regimes", "uploads.csv")):
        answer = small(part, copied)
        assert answer.code == 0, answer.err
        lines = read_frame(copied / part / table)
        ours, theirs = (
            [*matching(lines, seed=1000, policy=policy, training=training)["uploads"]]
            for policy, training in (("qmix", "0"), ("qmix-plus", ""))
        )
        assert len(ours) == 4
        assert ours == theirs
    policies = read_frame(copied / "accuracy" / "final.csv")["policy"].unique()
    assert [*policies][-2:] == ["qmix-plus", "perfect"]
    assert "the same agents that come with the package." in (copied / "claims.md").read_text()


# --- the same numbers from two ways --------------------------------------------------------------


def test_the_map_plays_what_comparisons_play(whole: Path) -> None:
    keys = ["snr", "spread", "seed", "policy"]
    played, compared = (
        read_frame(whole / "regimes" / f"{name}.csv").set_index(keys)["uploads"]
        for name in ("uploads", "accuracy")
    )
    compared = compared.drop(["perfect", "qmix"], level="policy")
    assert (played[compared.index] == compared).all()
    sending = len(regimes.LEARNING) - 1  # all but perfect
    assert len(compared) == 2 * 2 * sending  # cells, seeds, policies


def test_both_maps_are_of_the_same_payload(tmp_path: Path) -> None:
    """Under `auto` it is the model's, whether it is trained there or not."""
    overrides = ["learning.payload_bits=auto", "radio.slots=100", "run.seeds=1"]
    overrides += ["learning.model=cnn"]  # of 3 Mbit, which not everybody gets through
    base = load_config("paper", [*SCALES["small"].overrides, *MICRO, *overrides])
    grid = {"snrs_db": (25.0,), "spreads_db": (6.0,), "coarse_snrs_db": (25.0,)}
    tables = regimes.compute(checked_setting(tmp_path, base, "small", grid)).values()
    for name in regimes.ONCE_A_ROUND:
        one, other = (matching(lines, policy=name)["uploads"].item() for lines in tables)
        assert one == other > 0


def test_tables_give_back_what_was_written(tmp_path: Path) -> None:
    lines = DataFrame(
        {"policy": name, "seed": float(seed), "uploads": 1 / 3, "training": "", "error": math.nan}
        for name in ("5", "1e3", "nan")
        for seed in (2_001_000, 2_001_001)
    )
    path = tmp_path / "table.csv"
    write_frame(path, lines)
    assert path.read_text().splitlines()[:2] == [",".join(lines), "5,2001000,0.333333,,"]
    found = read_frame(path)
    for name in ("policy", "seed", "training"):
        assert [*found[name]] == [*lines[name]]
    assert {*found["uploads"]} == {0.333333}
    assert found["error"].isna().all()
    for damaged in ("seed,policy\n1\n", "seed,policy\n1,random,2\n", ""):
        path.write_text(damaged)
        with pytest.raises(UserError, match="is not a table"):
            read_frame(path)


@pytest.mark.parametrize("seeds", [1, 2])
def test_figures_of_one_seed_say_so(seeds: int) -> None:
    training = DataFrame(
        {"seed": seed, "episodes": 20.0 * n, "reward": 0.1, "uploads": 1.0, "hidden": "nothing"}
        for seed in range(seeds)
        for n in (1, 2)
    )
    final = DataFrame({"hidden": "nothing", "accuracy": 0.1 * seed} for seed in range(seeds))
    figures = charts.reward(training, 4, "QMIX"), charts.ablation(training, final)
    for figure in figures:
        for panel in figure.axes:
            words = [panel.get_title("left")]
            words += [text.get_text() for text in (panel.legend_ or panel).texts]
            for word in filter(None, words):
                assert ("one" in word) == (seeds == 1)
                assert ("median" in word) == (seeds > 1)
    if seeds > 1:
        with pytest.raises(UserError, match="of unequal length"):
            charts.reward(training[:-1], 4, "QMIX")


def test_the_bound_under_a_policy_is_the_bias_a_comparison_records(tmp_path: Path) -> None:
    device = torch.device("cpu")
    config = load_config("paper", [*TINY, "run.seeds=1", "allocation.policies=[max-sum-rate]"])
    (rows,) = compare_many([config], [tmp_path / "run"], device)
    measured = [row.deviation for row in bound_under(config, "max-sum-rate", device, draws=2)]
    recorded = series(rows, "max-sum-rate", "gradient_bias")[0]
    # Two ways of summing 94,410 float32 values.
    assert np.allclose(measured, recorded, rtol=1e-3)
    assert all(row.deviation < 1e-9 for row in bound_under(config, "perfect", device, draws=2))


def test_bound_command_under_a_policy(fedfade, tmp_path: Path) -> None:
    words = [word for override in TINY for word in ("--set", override)]
    table = tmp_path / "bound.csv"
    answer = fedfade("bound", "paper", "--policy", "random", "--table", table, *words)
    assert answer.code == 0, answer.err
    assert len(table.read_text().splitlines()) == 4
    for bad, sentence in (
        (["--policy", "random", "--delivered", 2], "exclude each other"),
        (["--policy", "genie"], "--policy = 'genie'"),
        (["--policy", "magic"], "--policy = 'magic'"),
        (["--policy", "randon"], "did you mean random?"),
    ):
        answer = fedfade("bound", "paper", *words, *bad)
        assert answer.code == 2
        assert sentence in answer.err


def test_rank_correlation_is_that_of_ranks() -> None:
    """Equal values share their mean rank; perfect upload, which has no second term, is left out."""

    def ranks(values: np.ndarray) -> np.ndarray:
        below, equal = (values < values[:, None]).sum(1), (values == values[:, None]).sum(1)
        return below + (equal - 1) / 2

    generator = np.random.default_rng(0)
    for _ in range(20):
        accuracy, bias, uploads = generator.integers(0, 6, (3, 12)).astype(float)
        lines = DataFrame({"accuracy": accuracy, "bias": bias, "uploads": uploads, "seed": 0})
        perfect = DataFrame([{"policy": "perfect", "accuracy": 9, "bias": 0, "uploads": 4}])
        lines["policy"] = [f"policy {number}" for number in range(12)]
        found = questions.correlation(pd.concat([lines, perfect]))
        for name, values in (("all_runs", bias), ("within_seeds", bias), ("uploads", uploads)):
            wanted = np.corrcoef(ranks(values), ranks(accuracy))[0, 1]
            assert math.isclose(found[name], wanted, abs_tol=1e-12)
    found = questions.correlation(lines.assign(bias=1.0))
    assert math.isnan(found["all_runs"])


# --- a sweep ------------------------------------------------------------------------------------


def test_a_point_of_a_sweep(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("command: reproduce\npreset: paper\ngrid: {cell.mobility: [ring, waypoint]}\n")
    assert len(load_sweep(path).points) == 2
    command = SWEEP_COMMANDS.make("reproduce")
    base = load_config("paper", [*SCALES["small"].overrides, *MICRO, "run.seeds=1"])
    out, told = tmp_path / "point", []
    assert command.lines(base, out) is None
    command.run(base, out, lambda done, total: told.append((done, total)))
    assert told == [(done, len(PAPER)) for done in range(len(PAPER))]
    lines = command.lines(base, out)
    assert [line["policy"] for line in lines][-2:] == ["qmix", "perfect"]
    one = matching(read_frame(whole / "accuracy" / "final.csv"), seed=1000, policy="perfect")
    assert lines[-1]["accuracy"] == matching(one, alpha=0.5, clusters=21)["accuracy"].item()


# --- rules --------------------------------------------------------------------------------------


answer = claims.answer_of


def made_up_cells(gap: dict[str, float], error: float = 0.01) -> list[dict[str, Any]]:
    """Nine cells in which QMIX is this much above others."""
    qmix = 0.5
    policies = {"qmix": qmix, **{name: qmix - value for name, value in gap.items()}}
    return [
        {
            "alpha": alpha,
            "clusters": clusters,
            "policies": {name: {"accuracy": value} for name, value in policies.items()},
            "qmix_minus": {name: [value, error, 5] for name, value in gap.items()},
        }
        for clusters in (14, 21, 28)
        for alpha in (0.5, 5, 50)
    ]


BELOW = {"random": 0.2, "max-individual-rate": 0.2, "max-sum-rate": 0.1, "perfect": -0.01}


def test_rule_above_every_heuristic() -> None:
    cells = made_up_cells(BELOW)
    facts = {"cells": cells}
    assert answer(claims.above_every_heuristic, facts)[1:] == ("holds", "")
    cells[4]["qmix_minus"]["max-sum-rate"] = [0.1, 0.06, 5]  # within noise
    measured, verdict, when = answer(claims.above_every_heuristic, facts)
    assert verdict == "holds only when"
    assert when == "not at alpha 5, n_c 21"
    assert "max-sum-rate in 8" in measured
    for cell in cells:
        cell["qmix_minus"]["max-sum-rate"] = [-0.1, 0.01, 5]
    _, verdict, when = answer(claims.above_every_heuristic, facts)
    assert verdict == "holds only when"
    assert when == "compared with random alone; compared with max-individual-rate alone"
    for cell in cells:
        cell["qmix_minus"] |= {name: [-0.1, 0.01, 5] for name in BELOW}
    assert answer(claims.above_every_heuristic, facts)[1:] == ("does not hold", "")


def test_rule_above_the_schedule_and_close_to_perfect() -> None:
    facts = {"cells": made_up_cells(BELOW | {"block-fading-schedule": 0.0})}
    assert answer(claims.above_the_schedule, facts)[1] == "does not hold"
    assert answer(claims.close_to_perfect, facts)[1] == "holds"  # 1 point below perfect
    facts["cells"][0]["policies"]["perfect"]["accuracy"] = 0.53
    assert answer(claims.close_to_perfect, facts)[1:] == (
        "holds only when",
        "at alpha 0.5, n_c 21; at alpha 0.5, n_c 28",
    )
    facts["cells"][1]["policies"]["perfect"]["accuracy"] = 0.9  # alpha 5: not asked
    assert answer(claims.close_to_perfect, facts)[1] == "holds only when"


def test_rule_sum_rate_declines() -> None:
    def lines(fall: float, other: float) -> list[dict[str, Any]]:
        return [
            {
                "alpha": alpha,
                "policy": policy,
                "overall": [value, 0.005, 5],
                "steps": [[value, 0.005, 5]],
            }
            for alpha in (0.5, 5)
            for policy, value in (("max-sum-rate", fall), ("random", other), ("perfect", 0.2))
        ]

    facts = {"with_clusters": lines(-0.05, 0.0), "uploads_with_clusters": lines(-1, 0)}
    assert answer(claims.sum_rate_declines, facts)[1] == "holds"
    assert "its uploads -1.00 a round" in answer(claims.sum_rate_declines, facts)[0]
    facts["with_clusters"] = lines(-0.005, 0.0)  # within noise
    assert answer(claims.sum_rate_declines, facts)[1] == "does not hold"
    facts["with_clusters"] = lines(-0.05, -0.05)
    measured, verdict, _ = answer(claims.sum_rate_declines, facts)
    assert verdict == "does not hold"
    assert "moved too: random" in measured


def test_rule_heuristics_improve() -> None:
    steps = {"overall": [0.05, 0.01, 5], "steps": [[0.04, 0.01, 5], [0.01, 0.01, 5]]}
    policies = ("random", "max-individual-rate", "max-sum-rate", "qmix")
    lines = [{"clusters": n, "policy": p, **deepcopy(steps)} for n in (14, 21) for p in policies]
    facts = {"with_alpha": lines}
    assert answer(claims.heuristics_improve, facts)[1] == "holds"
    facts["with_alpha"][0]["steps"][1] = [-0.03, 0.01, 5]
    assert answer(claims.heuristics_improve, facts)[1:] == (
        "holds only when",
        "for max-individual-rate; for max-sum-rate",
    )


def judged(alpha: float, seeds: Sequence[int], learned: bool = True) -> dict[str, claims.Claim]:
    """One cell in which the paper's order of policies holds."""
    policies = [*setting.HEURISTICS, setting.SCHEDULE, "qmix", "qmix-plus", "perfect"]
    final = DataFrame(
        {"policy": policy, "seed": seed, "alpha": alpha, "clusters": 21.0}
        | dict.fromkeys(("accuracy", "uploads", "fairness", "bias"), 0.5 + 0.01 * place)
        for place, policy in enumerate(policies)
        for seed in seeds
    )
    facts = {**facts_of(final), "learned": {"learned": learned}}
    return {claim.says: claim for claim in claims.judge({"accuracy": facts})}


@pytest.mark.parametrize(("alpha", "measured"), [(0.5, True), (5.0, False)])
def test_one_cell_says_nothing_of_other_cells(alpha: float, measured: bool) -> None:
    """Claims over n_c and alpha need several, those at alpha 0.5 need that."""
    found = judged(alpha, (1000, 1001))
    for says in (
        "max sum rate declines with n_c, the others stay",
        "heuristics improve with alpha",
    ):
        assert found[says].verdict == "not measured"
        assert "alone was run" in found[says].measured
    assert found["QMIX above every heuristic in all nine cells"].verdict == "holds"
    for says, claim in found.items():
        if "alpha 0.5" in says:
            assert (claim.verdict != "not measured") == measured


def test_one_seed_shows_no_noise_to_be_beyond() -> None:
    found = judged(0.5, (1000,))
    above = found["QMIX above every heuristic in all nine cells"]
    assert above.verdict == "not measured"
    assert "one seed alone was run" in above.measured
    assert found["close to perfect upload at alpha 0.5"].verdict != "not measured"  # needs none
    cell = {"snr": 10.0, "spread": 0.0, "gain": 1.0, "error": math.nan}
    cell |= {"pays": True, "below": False}
    sentence = regimes.sentence("uploads", "agents", DataFrame([cell]))
    assert "a round, in the one seed that was run, in 1 of 1 cells" in sentence
    assert "noise" not in sentence


def test_what_agents_did_not_learn_is_not_reproduced() -> None:
    """Neither held nor refuted; claims about others are judged all the same."""
    verdicts = {
        learned: {says: claim.verdict for says, claim in judged(0.5, (0, 1), learned).items()}
        for learned in (True, False)
    }
    changed_too = {says for says in verdicts[True] if verdicts[True][says] != verdicts[False][says]}
    assert changed_too == {
        "QMIX above every heuristic in all nine cells",
        "(not in the paper) QMIX above a schedule made once a round",
        "close to perfect upload at alpha 0.5",
    }
    assert {verdicts[False][says] for says in changed_too} == {"not reproduced"}


def test_rules_of_the_ablation() -> None:
    facts = {
        "hurt": {"gradient": [0.03, 0.01, 5], "fading": [0.1, 0.01, 5]},
        "fading_more": [0.07, 0.01, 5],
        "variants": [
            {"hidden": "nothing", "band": 0.01, "uploads": 4.0},
            {"hidden": "gradient", "band": 0.01, "uploads": 4.0},
            {"hidden": "fading", "band": 0.05, "uploads": 1.0},
        ],
    }
    assert answer(claims.hidden_gradient_hurts, facts)[1] == "holds"
    assert answer(claims.hidden_fading_hurts_more, facts)[1] == "holds"
    facts["fading_more"] = [0.01, 0.01, 5]
    assert answer(claims.hidden_fading_hurts_more, facts)[1:] == (
        "holds only when",
        "it hurts at all; its 10-90 % band is wider",
    )
    facts["hurt"] = {"gradient": [0.01, 0.01, 5], "fading": [-0.1, 0.01, 5]}
    assert answer(claims.hidden_gradient_hurts, facts)[1] == "does not hold"
    assert answer(claims.hidden_fading_hurts_more, facts)[1] == "does not hold"


def test_rule_reward_converges() -> None:
    good = {"seed": 0.0, "start": 0.1, "best": 1.1, "before_last": 1.08, "last": 1.09}
    facts = {"episodes": 30_000, "seeds": [good, good | {"seed": 1.0}]}
    assert answer(claims.reward_converges, facts)[1] == "holds"
    facts["seeds"][1] = good | {"seed": 1.0, "last": 0.6}  # collapsed at the end
    assert answer(claims.reward_converges, facts)[1:] == ("holds only when", "in training seed 0")
    facts["seeds"][0] = good | {"before_last": 0.9, "last": 1.1}  # still rising
    assert answer(claims.reward_converges, facts)[1] == "does not hold"
    facts["episodes"] = 2_000
    assert answer(claims.reward_converges, facts)[1] == "not measured"


def test_rule_second_term_tracks() -> None:
    cells = [
        {"alpha": alpha, "clusters": 21, "all_runs": -0.9, "within_seeds": -0.9, "uploads": 0.9}
        for alpha in (0.5, 5)
    ]
    assert answer(claims.second_term_tracks, {"cells": cells})[1] == "holds"
    cells[0]["all_runs"] = -0.4
    verdict = answer(claims.second_term_tracks, {"cells": cells})[1:]
    assert verdict == ("holds only when", "at alpha 5, n_c 21")


def test_rule_plus_not_below_local() -> None:
    cells = made_up_cells(BELOW | {"block-fading-schedule": 0.0})
    facts = {"cells": cells}
    assert answer(claims.plus_not_below_local, facts)[1] == "not measured"
    for cell in cells:
        cell["plus_minus"] = {name: [-0.01, 0.01, 5] for name in claims.DECENTRALISED}
    assert answer(claims.plus_not_below_local, facts)[1] == "holds"
    cells[3]["plus_minus"]["qmix"] = [-0.03, 0.01, 5]
    assert answer(claims.plus_not_below_local, facts)[1:] == (
        "holds only when",
        "at alpha 0.5, n_c 14; at alpha 0.5, n_c 28",
    )


def test_what_was_not_run_is_not_judged() -> None:
    assert {claim.verdict for claim in claims.judge({})} == {"not measured"}


def test_winners_and_what_fading_is_worth() -> None:
    lines = DataFrame(
        {"snr": 20.0, "spread": 0.0, "policy": policy, "seed": seed, "uploads": value + 0.1 * seed}
        for policy, value in (("block-fading-schedule", 4.0), ("max-sum-rate", 0.3), ("qmix", 4.0))
        for seed in (0.0, 1.0)
    )
    found = regimes.winners(lines, "uploads", ["block-fading-schedule", "max-sum-rate"])
    (cell,) = found.to_dict("records")
    assert (cell["winner"], cell["next"]) == ("block-fading-schedule", "max-sum-rate")
    assert math.isclose(cell["margin"], 3.7)
    (gain,) = regimes.gains(lines, "uploads", regimes.CENTRAL).to_dict("records")
    assert not gain["pays"]
    (gain,) = regimes.gains(lines, "uploads", ["qmix"]).to_dict("records")
    assert gain["gain"] == 0
    assert not gain["pays"]


def test_rows_of_a_finished_run_are_read_whole(whole: Path) -> None:
    folder = next(whole.glob("accuracy/runs/*/baselines-seed-1000"))
    rows = read_rows(folder / "metrics.csv")
    assert {row.seed for row in rows} == {1000}
    final = read_frame(whole / "accuracy" / "final.csv")
    config = load_config(folder / "config.yaml")
    where = {"alpha": config.learning.alpha, "clusters": config.radio.clusters}
    uploads = matching(final, policy="random", seed=1000, **where)["uploads"].item()
    assert math.isclose(uploads, series(rows, "random", "delivered").mean(), rel_tol=1e-5)
    assert changed(config, {"run.seeds": 2}).run.seeds == 2
