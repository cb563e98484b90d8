"""`fedfade reproduce readings`: a list kept as data, trained and tried in portions, judged."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas import DataFrame
from scipy.stats import false_discovery_control, ttest_rel

from fedfade import agents
from fedfade.allocation import Action, View, load_policy, play_round
from fedfade.config import Config, changed, load_config
from fedfade.errors import UserError
from fedfade.experiments.uploads import Uplink
from fedfade.studies.frames import matching, read_frame
from fedfade.studies.noise import Difference, beyond, holm, paired
from fedfade.studies.paper import SCALES, plan, readings, trial
from fedfade.studies.swap import ALL, AS_IS, swap_test
from fedfade.uplink import decode_action, part_columns
from fedfade.uplink.gradients import SyntheticGradients
from tests.studies.test_reproduce import GRID, SETTINGS

LIST = """
factors:
  layout:
    default: walking
    levels:
      walking: {says: clients walk, set: {cell.mobility: reflect}}
      fixed: {says: clients stay, set: {cell.mobility: fixed}}
      ring: {says: clients on a ring, set: {cell.mobility: ring, cell.ring_snr_db: 20}}
  local-work:
    default: steps
    levels:
      steps: {says: E counts steps}
      epochs: {says: E counts epochs, set: {learning.local_unit: epoch}}
readings:
  - {name: default}
  - {name: fixed, levels: {layout: fixed}}
  - {name: ring+epochs, levels: {layout: ring, local-work: epochs}}
"""
CHANCES = [0.01, 0.04, 0.03, 0.005]


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(LIST)
    return path


@pytest.fixture
def search(
    fedfade: Callable[..., Any], listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """`fedfade reproduce readings` in seconds."""
    grid = replace(GRID, reading_seeds=3, reading_rounds=2)
    monkeypatch.setitem(SCALES, "small", replace(SCALES["small"], grid=grid))

    def run(*more: object) -> Any:
        words = ["--scale", "small", "--out", tmp_path / "out", "--readings", listed]
        return fedfade("reproduce", "readings", *words, *SETTINGS, *more)

    return run


# --- the list -----------------------------------------------------------------------------------


def test_our_list_is_what_the_issue_asks_for() -> None:
    """Each factor alone, then combinations; the default is the preset as it is."""
    base = load_config("paper")
    found = plan.load_plan(None, base)
    assert len(found.readings) >= 24
    assert changed(base, found.readings[0].fields) == base
    alone = {
        (*reading.levels.items(),)[0] for reading in found.readings if len(reading.levels) == 1
    }
    for factor, levels in found.factors.items():
        assert {(factor, level) for level in list(levels)[1:]} <= alone
        assert all(level.says for level in levels.values())
    assert sum(len(reading.levels) > 1 for reading in found.readings) >= 10
    v2x = next(reading for reading in found.readings if reading.name == "v2x")
    preset = load_config("paper-v2x")
    assert changed(base, v2x.fields).radio == preset.radio


WRONG = [
    ("layout: fixed}}", "layot: fixed}}", "layot is not a known factor: did you mean layout?"),
    ("layout: fixed}}", "layout: fxed}}", "fxed is not a known level: did you mean fixed?"),
    ("learning.local_unit: epoch", "cell.mobility: ring", "both set cell.mobility"),
    ("name: fixed", "name: default", "'default' and 'default' are the same twice"),
    ("layout: fixed}}", "layout: walking}}", "'default' and 'fixed' are the same twice"),
    ("cell.mobility: fixed", "cell.mobilty: fixed", "cell.mobilty is not a known field"),
    ("cell.mobility: fixed", "sell.mobility: fixed", "sell.mobility is not a known field"),
    ("cell.mobility: fixed", "cell.mobility: dance", "cell.mobility = 'dance' is not allowed"),
    ("    default: steps\n", "", "factor 'local-work' has no 'default'"),
    ("default: steps", "default: leaps", "leaps is not a known level"),
    ("says: E counts steps", "sets: {}", "sets is not a known key"),
    ("name: fixed", "name: ../fixed", "name of a reading = '../fixed' is not allowed"),
    ("factors:", "factors: {", "is not valid YAML"),
    (LIST, "3", "--readings"),
]


@pytest.mark.parametrize(("right", "wrong", "sentence"), WRONG)
def test_a_wrong_list_is_one_sentence(
    right: str, wrong: str, sentence: str, search: Callable[..., Any], listed: Path
) -> None:
    listed.write_text(LIST.replace(right, wrong))
    answer = search()
    assert answer.code == 2
    assert sentence in " ".join(answer.err.split())


def test_wrong_options_are_one_sentence(search: Callable[..., Any], fedfade: Any) -> None:
    answer = search("--only", "fixd")
    assert answer.code == 2
    assert "did you mean fixed?" in answer.err
    answer = fedfade("reproduce", "reward", "--only", "fixed")
    assert answer.code == 2
    assert "--only belongs to part readings" in answer.err


# --- the search ---------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Which trainings were asked for, program by program."""
    programs: list[list[str]] = []
    real = agents.train_together

    def together(configs: Any, folders: Sequence[Path], *more: Any) -> None:
        programs.append([f"{folder.parent.name}/{folder.name}" for folder in folders])
        real(configs, folders, *more)

    monkeypatch.setattr(agents, "train_together", together)
    return programs


def test_portions_add_up(
    search: Callable[..., Any], tmp_path: Path, asked: list[list[str]]
) -> None:
    out = tmp_path / "out" / "readings"
    answer = search("--only", "fixed")
    assert answer.code == 0, answer.err
    assert asked == [["fixed/seed-0", "fixed/seed-1"]]
    assert [*read_frame(out / "readings.csv")["reading"]] == ["fixed"]
    assert "1 of 3 readings" in (out / "readings.md").read_text()
    answer = search("--together", 3)
    assert answer.code == 0, answer.err
    assert asked[1:] == [
        ["default/seed-0", "default/seed-1", "ring+epochs/seed-0"],
        ["ring+epochs/seed-1"],
    ]
    recorded = {path.name.rpartition("-")[0] for path in out.glob("runs/*.npz")}
    assert recorded == {
        f"gradients-{k}-{u}" for k in ("training", "test") for u in ("step", "epoch")
    }
    times = {path: path.stat().st_mtime_ns for path in out.glob("runs/*")}
    tables = {path: path.read_bytes() for path in (out / "lines.csv", out / "readings.csv")}
    assert search().code == 0
    assert len(asked) == 3  # nothing is left to do
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*")} == times
    for path in (out / "readings.csv", out / "readings.png", out / "readings.md"):
        path.unlink()
    assert search("--redraw").code == 0
    assert {path: path.read_bytes() for path in tables} == tables
    assert (out / "readings.png").read_bytes()[:4] == b"\x89PNG"

    lines, summary = read_frame(out / "lines.csv"), read_frame(out / "readings.csv")
    assert [*summary["reading"]] == ["default", "fixed", "ring+epochs"]
    own = matching(lines, policy="qmix", swapped=AS_IS, reading="default")
    crossed = sorted((s, t) for s in (1500, 1501, 1502) for t in "01")
    assert sorted(zip(own["seed"], own["training"], strict=True)) == crossed
    # A layout that stays is the training's own, for everybody; others meet all seeds once.
    for reading, trainings in (("fixed", {"0", "1"}), ("default", {""})):
        assert {*matching(lines, policy="random", reading=reading)["training"]} == trainings
    facts = json.loads((out / "readings.json").read_text())
    assert len(facts["claims"]) == 2 * len(readings.CLAIMS)
    for verdict in facts["claims"].values():
        named = [name for names in verdict.values() for name in names]
        assert sorted(named) == ["default", "fixed", "ring+epochs"]
    assert not (tmp_path / "out" / "reward").exists()


def test_what_diverges_is_an_answer(
    search: Callable[..., Any], listed: Path, tmp_path: Path
) -> None:
    """One training of the program leaves the numbers; the others end as they would without it."""
    wild = "{says: far too fast, set: {qmix.agent_rate: 1.0e+6, qmix.mixer_rate: 1.0e+6}}"
    factor = f"  rate:\n    default: slow\n    levels: {{slow: {{says: slow}}, wild: {wild}}}\n"
    text = LIST.replace(
        "readings:\n", f"{factor}readings:\n  - {{name: wild, levels: {{rate: wild}}}}\n"
    )
    listed.write_text(text)
    out = tmp_path / "out" / "readings"
    answer = search("--only", "wild", "--only", "default")
    assert answer.code == 0, answer.err
    assert (out / "training" / "wild" / "seed-0" / readings.DIVERGED).is_file()
    summary = read_frame(out / "readings.csv").set_index("reading")
    assert [*summary["diverged"]] == [2.0, 0.0]
    assert math.isnan(summary["uploads qmix"]["wild"])
    assert summary["uploads random"]["wild"] == summary["uploads random"]["default"]
    facts = json.loads((out / "readings.json").read_text())
    assert all("wild" in verdict["not reproduced"] for verdict in facts["claims"].values())
    assert "2 diverged" in (out / "readings.md").read_text()
    together = read_frame(out / "lines.csv")
    shutil.rmtree(out)
    assert search("--only", "default").code == 0
    alone = read_frame(out / "lines.csv")
    both = matching(together, reading="default")
    assert [*both["uploads"]] == [*alone["uploads"]]


def test_another_list_in_the_same_folder_is_refused(
    search: Callable[..., Any], listed: Path
) -> None:
    assert search("--only", "fixed").code == 0
    listed.write_text(LIST.replace("cell.mobility: fixed", "cell.mobility: redraw"))
    answer = search("--only", "fixed")
    assert answer.code == 2
    assert "cell.mobility is fixed there and redraw here" in " ".join(answer.err.split())


def test_trials_play_what_a_comparison_plays(tiny: Config) -> None:
    """And in a layout of its own, clients are where that seed puts them, on other fading."""
    seeds, numbers = [7, 8], (0, 2)
    config = changed(tiny, {"run.seed": 7, "run.seeds": 2})
    device, source = torch.device("cpu"), SyntheticGradients(config)
    uplink = Uplink(config, source.payload_bits, device)
    players = [trial.Player("random", load_policy("random"))]
    table = trial.play_cells([trial.CellPlayed({}, uplink)], numbers, source, players)
    for seed, uploads in zip(table["seed"], table["uploads"], strict=True):
        alone = Uplink(
            changed(config, {"run.seed": seed, "run.seeds": 1}), source.payload_bits, device
        )
        outcomes = [
            alone.play(players[0].policy, number, source.inner([seed], number))
            for number in numbers
        ]
        assert uploads == np.mean([int(outcome.delivered.sum()) for outcome in outcomes])
    assert [*table["seed"]] == seeds
    fixed = changed(config, {"cell.mobility": "fixed"})
    at_home, away = (Uplink(fixed, 1e6, device, layout) for layout in (7, None))
    one, other = at_home.rounds([1]), away.rounds([1])
    assert torch.equal(one.alpha[0], one.alpha[1])
    assert torch.equal(one.alpha[0], other.alpha[0])
    assert not torch.equal(one.alpha[1], other.alpha[1])
    assert torch.equal(one.fading[0], other.fading[0])
    assert at_home.key != away.key


# --- the swap test ------------------------------------------------------------------------------


class Reader:
    """Sends at full power, on the first or second sub-band by one number it observes."""

    name, scope, observes = "reader", "local", True

    def __init__(self, part: str) -> None:
        self.part = part

    def begin(self, view: View) -> None:
        return None

    def act(self, view: View, memory: None) -> Action:
        assert view.observation is not None
        column = part_columns(view.scenario)[self.part].start
        self.seen = view.observation[..., column]
        band = (self.seen > 0.5).long()
        return decode_action(view.scenario, band * view.scenario.levels)


def test_swapping_changes_what_is_read_and_nothing_else(make_round: Any) -> None:
    scenario, round_ = make_round(snr_db=20.0, spread_db=10.0, episodes=6)
    keys = torch.arange(6)
    for part in ("alphas", "fading", "remaining", "slots_left", "deviation", "round"):
        reader: Any = Reader(part)
        found = swap_test(reader, scenario, round_, keys)
        assert [*found] == [AS_IS, *part_columns(scenario), ALL]
        seen = reader.seen.reshape(len(found), 6, -1)  # in the last slot
        plain = play_round(Reader(part), scenario, round_, keys)  # type: ignore[arg-type]
        for place, (name, outcome) in enumerate(found.items()):
            if name not in (part, ALL):
                assert torch.equal(outcome.bits, plain.bits)
            elif part == "slots_left":
                assert torch.allclose(seen[place], torch.ones(()))  # as if it were the first
            elif part != "remaining":  # which the swap itself changes
                assert torch.equal(seen[place], seen[0].roll(3, 0))
        if part in ("alphas", "fading", "slots_left"):
            assert not torch.equal(found[part].bits, plain.bits)
    with pytest.raises(UserError, match="at least two episodes"):
        swap_test(reader, scenario, type(round_)(*(x[:1] for x in round_)), keys[:1])


# --- noise --------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    """Sorted: .005, .01, .03, .04 times 4, 3, 2, 1, never falling."""
    assert np.allclose(holm(CHANCES), [0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    # Never below what is corrected for false discoveries alone, nor above Bonferroni's.
    for chances in np.random.default_rng(0).uniform(0, 0.1, (20, 6)):
        assert (np.array(holm(chances)) >= false_discovery_control(chances) - 1e-12).all()
        assert (np.array(holm(chances)) <= np.minimum(6 * chances, 1) + 1e-12).all()


def crossed(values: np.ndarray, policy: str, trained: bool = True) -> DataFrame:
    """A table of [training, seed]."""
    return DataFrame(
        {"policy": policy, "training": str(t) if trained else "", "seed": s, "accuracy": value}
        for t, row in enumerate(values)
        for s, value in enumerate(row)
    )


def test_paired_is_students_test_over_evaluation_seeds() -> None:
    generator = np.random.default_rng(1)
    agents_of, others = generator.normal(1, 1, (3, 5)), generator.normal(0, 1, (1, 5))
    frame = pd.concat([crossed(agents_of, "x"), crossed(others, "y", trained=False)])
    found = paired(frame, {"policy": "x"}, {"policy": "y"})
    wanted = ttest_rel(agents_of.mean(0), others[0], alternative="greater")
    assert math.isclose(found.chance, wanted.pvalue)
    assert math.isclose(found.mean, agents_of.mean() - others.mean())
    assert math.isclose(found.training_error, agents_of.mean(1).std(ddof=1) / math.sqrt(3))
    assert paired(frame, {"policy": "y"}, {"policy": "x"}) == found.turned
    both = pd.concat([crossed(agents_of, "x"), crossed(agents_of - 2, "y")])
    found = paired(both, {"policy": "x"}, {"policy": "y"})
    assert math.isclose(found.mean, 2)
    assert found.training_error < 1e-12  # training by training they are the same


def test_beyond_noise_needs_seeds_and_trainings() -> None:
    clear = Difference(1.0, 0.1, 5, 0.1)
    assert beyond([clear]) == [True]
    assert beyond([clear._replace(training_error=0.6)]) == [False]
    assert beyond([clear._replace(error=0.6)]) == [False]
    assert beyond([clear._replace(error=math.nan)]) == [False]
    assert beyond([clear._replace(error=math.nan)], unknown=True) == [True]
    assert beyond([clear._replace(error=0.0), clear._replace(mean=0.0, error=0.0)]) == [True, False]
    weak = Difference(0.3, 0.1, 5)  # p = 0.02
    assert beyond([weak]) == [True]
    assert beyond([weak, *[Difference(0.0, 0.1, 5)] * 9]) == [False] * 10


# --- verdicts -----------------------------------------------------------------------------------


def test_only_where_agents_learned_a_claim_is_judged() -> None:
    def use(above: float, swapped: float) -> trial.Use:
        found = dict.fromkeys(trial.LOCAL_HEURISTICS, Difference(above, 0.01, 5))
        return trial.Use(found, Difference(swapped, 0.01, 5), {})

    uses = {"a": use(1.0, 0.5), "b": use(1.0, 0.0), "c": use(-1.0, 0.5), "d": use(1.0, 0.5)}
    learned = readings.who_learned(uses)
    assert learned == {"a": True, "b": False, "c": False, "d": True}
    gaps = {
        name: Difference(gap, 0.01, 5)
        for name, gap in zip("abcd", (1.0, 1.0, 1.0, -1.0), strict=True)
    }
    assert readings.judged(gaps, learned) == {
        "holds": ["a"],
        "does not hold": ["d"],
        "not reproduced": ["b", "c"],
    }


def test_use_of_inputs_reads_the_table() -> None:
    uploads = {AS_IS: 4.0, "alphas": 3.0, "fading": 4.0, ALL: 1.0}
    lines = [
        {"policy": "qmix", "training": t, "seed": s, "swapped": part, "uploads": value + 0.1 * s}
        for t in "01"
        for s in range(5)
        for part, value in uploads.items()
    ]
    lines += [
        {"policy": p, "training": "", "seed": s, "swapped": AS_IS, "uploads": 1.0 + 0.1 * s}
        for p in trial.LOCAL_HEURISTICS
        for s in range(5)
    ]
    facts = trial.learned_facts(DataFrame(lines))
    assert facts["learned"]
    assert math.isclose(facts["swapped"].mean, 3.0)
    assert math.isclose(facts["kept"]["alphas"], 3.2 / 4.2)
    assert math.isclose(facts["kept"]["fading"], 1.0)
    useless = DataFrame(lines)
    useless.loc[useless["swapped"] == ALL, "uploads"] += 3.0
    assert not trial.learned_facts(useless)["learned"]


def test_the_list_comes_with_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'"studies/\*/\*\.yaml"', text)
