"""Clients that send nonsense, or nothing: the round goes on, the report says who and why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfade.config import Config, LearningConfig, load_config
from fedfade.experiments import Comparison, Row, RunFolder, SideBySide
from fedfade.experiments.findings import left_out_lines
from fedfade.experiments.report import write_report
from fedfade.learning import ServerState, Updates, gram
from fedfade.learning.averaging import is_finite, mean_of_arrived
from fedfade.learning.local import LocalWork, Trained
from fedfade.learning.server_rules import Mean, Momentum
from fedfade.uplink import normalised_inner
from tests.conftest import TINY

CPU = torch.device("cpu")
LEARNING = LearningConfig(server_momentum=0.9)


@pytest.fixture(scope="module")
def config() -> Config:
    policies = "allocation.policies=[max-sum-rate, perfect]"
    more = ["radio.slots=60", "learning.server_momentum=0.5", "run.evaluate_every=1"]
    return load_config("paper", [*TINY, policies, *more])


def run(
    config: Config, folder: Path, spoil: Callable[[Trained, int], None]
) -> tuple[list[Row], ServerState]:
    """A comparison in which something happens to the updates of each round."""
    comparison = Comparison(config, CPU)
    engine = comparison.federation.engine
    train = engine.train

    def spoiled(state: ServerState, work: LocalWork) -> Trained:
        trained = train(state, work)
        spoil(trained, work.round)
        return trained

    engine.train = spoiled  # type: ignore[method-assign]
    place = RunFolder(folder / "run", config, CPU)
    with place.open():
        SideBySide([comparison], [place]).run(lambda done, doing: None)
        write_report(place.path, config, place.record, comparison.rows)
    return comparison.rows, comparison.at.state


@pytest.mark.usefixtures("no_pictures")  # of numbers that are finite all the same
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 3e38])
def test_a_client_that_sends_nonsense(value: float, config: Config, tmp_path: Path) -> None:
    """Client 2 of the second run sends it in rounds 0 and 2; the model never sees it."""

    def spoil(updates: Trained, number: int) -> None:
        if number != 1:
            updates.parameters[1, 2, 7] = value

    rows, state = run(config, tmp_path, spoil)
    assert bool(state.parameters.isfinite().all())
    for row in rows:
        spoiled = (row.policy, row.seed) == ("perfect", 0) and row.round != 1
        assert row.not_finite == spoiled
        assert row.not_finite_clients == ("2" if spoiled else "")
        assert not (spoiled and "2" in row.delivered_clients.split())
        assert math.isfinite(row.accuracy)
        assert math.isfinite(row.gradient_bias)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "perfect, seed 0: client 2 in rounds 0, 2." in page
    assert "not a number, infinite, or of enormous norm" in page


@pytest.mark.usefixtures("no_pictures")
def test_running_statistics_count_too(config: Config, tmp_path: Path) -> None:
    def spoil(updates: Trained, number: int) -> None:
        updates.buffers[0, 1, 0] = math.nan

    rows, state = run(config, tmp_path, spoil)
    assert bool(state.buffers.isfinite().all())
    assert left_out_lines(rows)[1:] == ["max-sum-rate, seed 0: client 1 in rounds 0-2."]


@pytest.mark.usefixtures("no_pictures")
def test_clients_that_send_zeros_are_averaged_like_any_other(config: Config, tmp_path) -> None:
    def spoil(updates: Trained, number: int) -> None:
        updates.parameters.zero_()

    rows, state = run(config, tmp_path, spoil)
    assert bool(state.parameters.isfinite().all())
    assert all(row.not_finite == 0 for row in rows)
    assert all(row.delivered == 4 for row in rows if row.policy == "perfect")
    assert all(math.isfinite(row.reward) for row in rows if row.policy != "perfect")


def test_all_clients_gone(config: Config, tmp_path: Path) -> None:
    """Nobody sends a number: every round is empty and the model stays the first one."""

    def spoil(updates: Trained, number: int) -> None:
        updates.parameters.fill_(math.nan)

    rows, state = run(config, tmp_path, spoil)
    first = Comparison(config, CPU).at.state
    assert torch.equal(state.parameters, first.parameters)
    assert torch.equal(state.buffers, first.buffers)
    assert all(row.delivered == 0 and row.not_finite == 4 for row in rows)
    assert len(left_out_lines(rows)) == 1 + 4 * 4  # runs x clients


def test_a_model_that_explodes_is_reported_not_raised(tmp_path: Path) -> None:
    """A server step of a million: updates stop being numbers, the comparison goes on."""
    config = load_config("paper", [*TINY, "learning.global_rate=1e6", "learning.local_rate=1e3"])
    rows, _ = run(config, tmp_path, lambda updates, number: None)
    assert sum(row.not_finite for row in rows) > 0
    assert "were left out" in (tmp_path / "run" / "report.html").read_text()


def test_every_string_in_the_report_is_escaped(config: Config, tmp_path: Path) -> None:
    """Names and values as a stranger's folder may hold them, and nothing is loaded from outside."""
    evil = "<script src=//x>'\"&</script>"
    rows, _ = run(
        config, tmp_path, lambda updates, number: updates.parameters[0, 0].fill_(math.nan)
    )
    rows = [row._replace(policy=evil if row.policy == "perfect" else row.policy) for row in rows]
    rows = [row._replace(policy="<i>" if row.policy != evil else evil) for row in rows]
    learning = config.learning.model_copy(update={"data": evil})
    changed = config.model_copy(update={"learning": learning})
    folder = tmp_path / "run"
    (folder / "config.yaml").write_text(f"# {evil}\n")
    names = ["fedfade", "commit", "torch", "device", "started", "command"]
    record = dict.fromkeys(names, evil) | {"scopes": {"<i>": evil}}
    page = write_report(folder, changed, record, rows).read_text()
    assert "<script src" not in page
    assert "<i>" not in page
    assert page.count("&lt;script") >= len(names) + 4
    parser = Tags()
    parser.feed(page)
    assert not {*parser.names} & {"link", "iframe", "object", "embed", "base", "form"}
    assert parser.names.count("script") == page.count("<script type=") + 1  # data, and our own
    assert all(re.match("data:image/png;base64,|#", value) for value in parser.sources)


class Tags(HTMLParser):
    """What a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.sources += [v or "" for name, v in attributes if name in ("src", "href", "onload")]


NUMBERS = st.one_of(
    st.just(0.0),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e-45, 1e14, 1e15, 1e19, 1e20, 3e38]),
    st.floats(-1e6, 1e6, width=32),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    updates=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=5),
    delivered=st.lists(st.booleans(), min_size=5, max_size=5),
    previous=st.lists(st.floats(-(2.0**48), 2.0**48, width=32), min_size=3, max_size=3),
)
def test_no_update_makes_the_server_stumble(
    updates: list[list[float]], delivered: list[bool], previous: list[float]
) -> None:
    """Whatever arrives: model, Gram matrix and what the reward is made of stay finite."""
    g = torch.tensor([updates])
    count = g.shape[1]
    none, ones = torch.zeros(1, count, 0), torch.ones(1, count)
    sent = Updates(g, none, is_finite(g, none), ones, ones)
    before = torch.tensor([previous])
    inner = gram(sent, before)
    assert bool(inner.isfinite().all())
    assert bool(normalised_inner(inner).isfinite().all())
    weight = torch.tensor([delivered[:count]], dtype=torch.float32)
    arrived = mean_of_arrived(sent, weight)
    for rule in (Mean(LEARNING), Momentum(LEARNING)):
        step, memory = rule.apply(rule.init(before), arrived)
        assert bool(step.isfinite().all())
        assert all(bool(tensor.isfinite().all()) for tensor in memory.values())
        if not bool((weight.bool() & sent.finite).any()):
            assert not step.any()
