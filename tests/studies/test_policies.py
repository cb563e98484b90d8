"""Study policies: uploads on channels nobody trained on, and what they are beside the plan's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pandas import DataFrame, read_csv

from fedfade.allocation import load_policy, play_round
from fedfade.config import changed, load_config
from fedfade.errors import UserError
from fedfade.experiments.uploads import Uplink
from fedfade.studies import policies
from fedfade.studies.frames import matching
from fedfade.studies.policies import PolicyCell, compared, compared_by, plan_cells, whole_batch
from fedfade.uplink.gradients import SyntheticGradients
from tests.conftest import TINY

DATA = Path(__file__).parents[2] / "docs" / "data"
SMALL = [word for word in TINY if "clusters" not in word]
CPU = torch.device("cpu")


@contextmanager
def silent(unit: str, total: int) -> Iterator:
    """A bar nobody watches."""
    yield lambda done, doing: None


@pytest.fixture(scope="module")
def some() -> list[PolicyCell]:
    """A setting as it is, one of another size and one whose gains are announced wrongly."""
    cells = plan_cells(SMALL, seeds=2, rounds=2)
    return [cells[1], next(c for c in cells if c.labels["clients"] == 7), cells[-1]]


@pytest.fixture(scope="module")
def seeds(some: list[PolicyCell], tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """What was played in them."""
    return policies.compute(some, tmp_path_factory.mktemp("policies"), silent)["seeds"]


def test_uploads_are_those_of_rounds_played_one_by_one(
    some: list[PolicyCell], seeds: DataFrame
) -> None:
    """A seed alone, a round at a time, with the same random numbers of the policy."""
    for cell in some:
        alone = changed(cell.config, {"run.seed": 1001, "run.seeds": 1})
        gradients = SyntheticGradients(alone)
        uplink = Uplink(alone, gradients.payload_bits, CPU)
        for name, policy in cell.players().items():
            delivered = [
                play_round(
                    policy,
                    uplink.scenario,
                    uplink.round(number, gradients.inner([1001], number)),
                    torch.tensor([2 * number + 1]),
                ).delivered.sum()
                for number in range(2)
            ]
            (found,) = matching(seeds, **cell.labels, policy=name, seed=1001)["uploads"]
            assert found == sum(delivered) / 2, (cell.name, name)


def test_the_tables_of_the_docs_are_of_these_rounds() -> None:
    """One setting at full scale, to the four digits of the table."""
    (cell,) = (c for c in plan_cells([], 20, 10)[:2] if c.labels["clusters"] == 21)
    assert {"size-free", "qmix-hold", "mappo-hold"} <= {*cell.agents}
    batch = whole_batch(cell.config, CPU)
    plan, schedule = (
        policies.uploads_by_seed(load_policy(name), batch, 20)
        for name in (policies.RIVAL, "block-fading-schedule")
    )
    table = read_csv(DATA / "size-free-nine.csv")
    where = {"cell": "paper", "clusters": 21, "speed_mps": 18.12, "policy": "block-fading-schedule"}
    (line,) = matching(table, **where)[[*policies.Compared._fields]].to_numpy()
    assert compared(schedule, plan) == pytest.approx(tuple(line), abs=5.1e-5)


def test_what_is_finished_is_kept(some: list[PolicyCell], seeds: DataFrame, tmp_path: Path) -> None:
    """Stopped before the last setting, it goes on with that one alone and says the same."""
    told: list[str] = []

    @contextmanager
    def impatient(unit: str, total: int) -> Iterator:
        def tell(done: float, doing: str) -> None:
            told.append(doing)
            if len(told) == total:
                raise KeyboardInterrupt

        yield tell

    with pytest.raises(KeyboardInterrupt):
        policies.compute(some, tmp_path, impatient)
    assert told == [cell.name for cell in some]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(files) == len(some) - 1
    again = policies.compute(some, tmp_path, silent)["seeds"]
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert len([*(tmp_path / "runs").iterdir()]) == len(some)
    assert again.equals(seeds)
    # Anything that decides the numbers is a file of its own.
    other = plan_cells([*SMALL, "learning.payload_bits=300000"], 2, 2)[1]
    policies.compute([other], tmp_path, silent)
    assert len([*(tmp_path / "runs").iterdir()]) == len(some) + 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_plays_the_same_rounds(some: list[PolicyCell]) -> None:
    """Nearly the same: rounding may turn a client that is just in time into one that is late."""
    for cell in some:
        here, there = (whole_batch(cell.config, torch.device(name)) for name in ("cpu", "cuda"))
        for name, policy in cell.players().items():
            one, other = (policies.uploads_by_seed(policy, b, 2).cpu() for b in (here, there))
            assert (one - other).abs().max() <= 0.5, (cell.name, name)  # a client in two rounds


def test_ratios_are_of_the_same_rounds() -> None:
    """The plan's own is 1 without an error; a policy always a tenth ahead has no error either."""
    plan = torch.tensor([4.0, 5.0, 6.0])
    assert compared(plan, plan)[2:] == (1.0, 0.0)
    assert compared(1.1 * plan, plan)[2:] == pytest.approx((1.1, 0.0), abs=1e-6)
    columns = {"cell": ["a"] * 4 + ["b"] * 4, "policy": [policies.RIVAL, "random"] * 4}
    lines = DataFrame({**columns, "seed": [0, 0, 1, 1] * 2, "uploads": [2, 1, 4, 2, 0, 1, 0, 1]})
    table = compared_by(lines, ["cell"]).set_index(["cell", "policy"])
    assert table.loc[("a", "random"), "ratio"] == 0.5
    assert table["uploads"].tolist() == [3.0, 1.5, 0.0, 1.0]
    assert table.loc["b", "ratio"].isna().all()  # of nothing


def test_settings_are_planned_once() -> None:
    cells = plan_cells(SMALL, seeds=2, rounds=50)
    assert len(cells) == 2 * 3 * 3 + 3 + 3
    assert {cell.config.run.rounds for cell in cells} == {3}  # as many as the run has
    assert {cell.config.run.seed for cell in cells} == {1000}
    assert len({cell.name for cell in cells}) == len(cells)
    other = plan_cells([*SMALL, "learning.clients=7", "radio.subbands=3"], seeds=2, rounds=1)
    assert len(other) == len(cells) - 1  # one of the sizes is the cells' own
    with pytest.raises(UserError, match="payload_bits = 'auto' is not allowed"):
        plan_cells(["learning.payload_bits=auto"], seeds=2, rounds=1)


def test_without_agents_that_fit_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "shipped_policies_for", lambda config: [])
    cells = plan_cells([*SMALL, "radio.slots=5"], seeds=2, rounds=1)
    drawn = policies.draw(cells, policies.compute(cells, tmp_path, silent))
    assert "No agents that come with the package fit" in drawn.text
    assert {*drawn.tables["policies"]["policy"]} == {*policies.POLICIES}
    assert len(drawn.tables["policies"]) == len(cells) * len(policies.POLICIES)
    assert len(drawn.figures["policies"]().axes) == 4


def test_where_agents_fit_they_are_beside_the_plan() -> None:
    """At the sizes only agents for any size fit: the others' cells of the table are empty."""
    cells = plan_cells([], seeds=1, rounds=1)
    assert "qmix-hold" in cells[0].agents
    for cell in cells:
        if cell.labels["clients"] != load_config("paper").learning.clients:
            assert {*cell.agents} == {"size-free", "size-free-feedback"}
    rows = [
        {**cell.labels, "policy": name, "seed": 1000.0 + seed, "uploads": 4.0 + seed}
        for cell in cells
        for name in cell.policies
        for seed in range(2)
    ]
    text = policies.draw(cells, {"seeds": DataFrame(rows)}).text
    assert "| qmix-hold | 4.50 (1.000 ± 0.000) |  |  |  |" in text
    assert "in cell ring mappo-hold 1.000 ± 0.000" in text
