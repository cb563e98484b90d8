"""Server rules against plain loops in float64, on quadratics, under both engines, resumed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfade.config import Config, LearningConfig, load_config
from fedfade.errors import UserError
from fedfade.experiments import compare_many, read_rows
from fedfade.learning import (
    Dataset,
    Federation,
    Models,
    ServerState,
    Updates,
    federated_round,
    gram,
    load_data,
)
from fedfade.learning.averaging import Arrived, mean_of_arrived
from fedfade.seams import SERVER_RULES
from tests.conftest import TINY
from tests.learning.stopped import CPU, stopped_and_continued

CLIENTS, SIZE = 4, 5
CONFIG = LearningConfig(data="digits", clients=CLIENTS, local_work=2, batch_size=20)
PRESENT = [[0, 2], [], [1, 2, 3], [0]]
"""Who delivers, round after round: client 1 not in the first, nobody in the second."""

Array = np.ndarray
Local = Callable[[Array, Array], Array]  # model, added to every gradient -> update


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(CONFIG)


# --- the textbook, with plain loops ---------------------------------------------------------------


class Book:
    """A server of the textbook: `round` moves its model by who is present."""

    def __init__(self, config: LearningConfig, start: Array) -> None:
        self.c, self.model = config, start.copy()
        self.last = [np.zeros_like(start) for _ in range(config.clients)]  # of every client
        self.first, self.second = np.zeros_like(start), np.full_like(start, config.server_tau**2)
        self.control = np.zeros_like(start)

    def round(self, present: Sequence[int], local: Sequence[Local], samples: Sequence[float]):
        weigh = samples if self.c.weighting == "samples" else [1.0] * self.c.clients
        added = [self.control - own for own in self.last]
        if self.c.server != "scaffold":
            added = [np.zeros_like(own) for own in self.last]
        updates = [work(self.model, extra) for work, extra in zip(local, added, strict=True)]
        step = getattr(self, self.c.server)(present, updates, weigh)
        self.model = self.model - self.c.global_rate * step

    def mean(self, present, updates, weigh):
        total = sum(weigh[n] for n in present)
        return sum((weigh[n] / total * updates[n] for n in present), np.zeros_like(self.model))

    def momentum(self, present, updates, weigh):
        if not present:
            return 0.0
        self.first = self.c.server_momentum * self.first + self.mean(present, updates, weigh)
        return self.first

    def adam(self, present, updates, weigh, yogi=False):
        if not present:
            return 0.0
        delta, c = self.mean(present, updates, weigh), self.c
        self.first = c.server_beta1 * self.first + (1 - c.server_beta1) * delta
        if yogi:
            sign = np.sign(self.second - delta**2)
            self.second = self.second - (1 - c.server_beta2) * delta**2 * sign
        else:
            self.second = c.server_beta2 * self.second + (1 - c.server_beta2) * delta**2
        return self.first / (np.sqrt(self.second) + c.server_tau)

    def yogi(self, present, updates, weigh):
        return self.adam(present, updates, weigh, yogi=True)

    def mifa(self, present, updates, weigh):
        for n in present:
            self.last[n] = updates[n]
        return self.mean(range(self.c.clients), self.last, weigh)

    def fedvarp(self, present, updates, weigh):
        moved = [new - old for new, old in zip(updates, self.last, strict=True)]
        step = self.mean(range(self.c.clients), self.last, weigh)
        if present:
            step = step + self.mean(present, moved, weigh)
        for n in present:
            self.last[n] = updates[n]
        return step

    def scaffold(self, present, updates, weigh):
        """Algorithm 1 of the paper, option II, with its running update of c."""
        change = np.zeros_like(self.control)
        for n in present:
            gradient = updates[n] / (self.c.local_work * self.c.local_rate)
            new = self.last[n] - self.control + gradient
            change += new - self.last[n]
            self.last[n] = new
        step = self.mean(present, updates, weigh)
        self.control = self.control + change / self.c.clients
        return step


def played(config: LearningConfig, start: Array, local, samples, rounds) -> tuple[Array, Array]:
    """The models of the textbook and of the rule after some rounds."""
    book, rule = Book(config, start), SERVER_RULES.make(config.server, config)
    model = torch.tensor(start, dtype=torch.float32)[None]
    memory = rule.init(model)
    correct = getattr(rule, "correction", None)
    for present in rounds:
        book.round(present, local, samples)
        zeros = torch.zeros(1, config.clients, model.shape[1])
        added = zeros if correct is None else correct(memory)
        found = [
            w(model[0].double().numpy(), a.double().numpy())
            for w, a in zip(local, added[0], strict=True)
        ]
        parameters = torch.tensor(np.stack(found), dtype=torch.float32)[None]
        delivered = torch.zeros(1, config.clients)
        delivered[0, list(present)] = 1.0
        weights = torch.tensor([samples], dtype=torch.float32)
        counted = delivered * weights if config.weighting == "samples" else delivered
        everybody = torch.ones(1, config.clients, dtype=torch.bool)
        updates = Updates(parameters, zeros[..., :1], everybody, delivered, weights)
        step, memory = rule.apply(memory, mean_of_arrived(updates, counted))
        model = model - step
    return book.model, model[0].double().numpy()


def quadratics(config: LearningConfig) -> tuple[list[Local], Array]:
    """Clients that go down parabolas of their own, and the minimum of the mean of these."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(config.clients, SIZE))
    curves = rng.uniform(0.5, 2.0, size=(config.clients, SIZE))

    def work(n: int) -> Local:
        def local(model: Array, added: Array) -> Array:
            w = model.copy()
            for _ in range(config.local_work):
                w = w - config.local_rate * (curves[n] * (w - centres[n]) + added)
            return model - w

        return local

    best = (curves * centres).sum(0) / curves.sum(0)
    return [work(n) for n in range(config.clients)], best


RULES = [*SERVER_RULES.built_in]


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize("server", RULES)
def test_a_rule_is_the_textbooks(server: str, weighting: str) -> None:
    rate = 0.05 if server in ("adam", "yogi") else 0.7
    changes = {"server": server, "weighting": weighting, "server_momentum": 0.8}
    config = CONFIG.model_copy(update={**changes, "global_rate": rate, "local_rate": 0.1})
    local, _ = quadratics(config)
    start = np.random.default_rng(0).normal(size=SIZE)
    wanted, found = played(config, start, local, [1.0, 2.0, 3.0, 4.0], PRESENT)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert np.abs(found - start).max() > 0.01


@pytest.mark.parametrize("server", ["mifa", "fedvarp", "scaffold"])
def test_who_is_missing_does_not_move_the_fixed_point(server: str) -> None:
    """Client 0 in one round of three: a plain mean is drawn to the others, these rules are not."""
    fields = {"local_work": 1, "local_rate": 0.08, "server_momentum": 0.0}
    rounds = [[0, 1], [2, 3], [1, 2, 3]] * 150

    def error(name: str) -> float:
        config = CONFIG.model_copy(update={**fields, "server": name})
        local, best = quadratics(config)
        _, found = played(config, np.zeros(SIZE), local, [1.0] * CLIENTS, rounds)
        return float(np.abs(found - best).max())

    assert error(server) < 0.2 * error("mean")


@pytest.mark.parametrize("server", ["momentum", "adam", "yogi", "scaffold"])
def test_with_everybody_present_the_minimum_is_found(server: str) -> None:
    """With one local step all rules have the minimum of the mean as their fixed point; with
    several only scaffold."""
    steps = 4 if server == "scaffold" else 1
    rate = 0.005 if server in ("adam", "yogi") else 0.3
    changes = {"server": server, "server_momentum": 0.5, "global_rate": rate}
    config = CONFIG.model_copy(update={**changes, "local_work": steps, "local_rate": 0.1})
    local, best = quadratics(config)
    everybody = [range(CLIENTS)] * 700
    _, found = played(config, np.zeros(SIZE), local, [1.0] * CLIENTS, everybody)
    assert np.abs(found - best).max() < 0.01


# --- in the round ---------------------------------------------------------------------------------


def some(sent) -> Tensor:
    """Another two clients every round."""
    delivered = torch.zeros_like(sent.updates.finite)
    delivered[:, [sent.number % CLIENTS, (sent.number + 1) % CLIENTS]] = True
    return delivered


def states(digits: Dataset, rounds: int = 3, engine="loop", seeds=(0,), **changes) -> ServerState:
    federation = Federation(CONFIG.model_copy(update=changes), digits, engine=engine)
    models = Models([(federation, seeds)])
    state = models.start()
    for number in range(rounds):
        state = federated_round(models, state, number, some, test=False).after
    return state


def test_both_engines_add_the_correction(digits: Dataset) -> None:
    loop, batch = (states(digits, engine=name, server="scaffold") for name in ("loop", "vmap"))
    torch.testing.assert_close(loop.parameters, batch.parameters, rtol=1e-3, atol=1e-4)
    assert float(loop.memory["controls"].abs().max()) > 0
    assert not torch.allclose(loop.parameters, states(digits).parameters, atol=1e-4)


@pytest.mark.parametrize("server", RULES)
def test_runs_side_by_side_are_runs_alone(server: str, digits: Dataset) -> None:
    fields = {"server": server, "server_momentum": 0.5, "average_models": 0.9}
    both, alone = (states(digits, seeds=seeds, **fields) for seeds in ((4, 7), (7,)))
    for name, tensor in alone.tensors().items():
        assert torch.equal(both.tensors()[name][1:], tensor), name


def test_running_statistics_come_from_those_present(digits: Dataset) -> None:
    """Remembered updates are of the trained parameters alone."""
    federation = Federation(CONFIG.model_copy(update={"server": "mifa"}), digits)
    models = Models([(federation, [0])])
    state = models.start()
    for number in range(3):
        done = federated_round(models, state, number, some, test=False)
        present = done.arrived[0]
        wanted = done.received.buffers[0, present].mean(0)
        torch.testing.assert_close(done.after.buffers[0], wanted)
        state = done.after


def test_innovations_are_measured_from_the_memory(digits: Dataset) -> None:
    federation = Federation(CONFIG.model_copy(update={"server": "mifa"}), digits)
    models = Models([(federation, [0])])
    before = federated_round(models, models.start(), 0, some, test=False).after
    sent = federated_round(models, before, 1, some, test=False).sent
    remembered = before.memory["remembered"]
    assert remembered.shape == (1, CLIENTS, federation.parameter_layout.total)
    difference = (sent.updates.parameters - remembered)[0]
    torch.testing.assert_close(sent.inner[0], difference @ difference.T, rtol=1e-4, atol=1e-4)
    assert bool((remembered[0, 2:] == 0).all())  # who never delivered
    assert not torch.allclose(sent.inner, gram(sent.updates, before.previous))


def test_an_update_that_is_not_finite_is_not_remembered() -> None:
    for server in ("mifa", "fedvarp", "scaffold"):
        config = CONFIG.model_copy(update={"server": server})
        rule = SERVER_RULES.make(server, config)
        memory = rule.init(torch.zeros(1, SIZE))
        parameters = torch.ones(1, CLIENTS, SIZE)
        parameters[0, 1] = torch.nan
        ones = torch.ones(1, CLIENTS)
        finite = torch.tensor([[True, False, True, True]])
        updates = Updates(parameters, ones[..., None], finite, ones, ones)
        step, memory = rule.apply(memory, mean_of_arrived(updates, ones))
        assert bool(step.isfinite().all()), server
        (kept,) = memory.values()
        assert bool((kept[0, 1] == 0).all()), server


def test_the_mean_of_models_is_the_weighted_mean(digits: Dataset) -> None:
    """Weights 1, 0.8, 0.64, ... from the newest model back; the first weights do not count."""
    config = CONFIG.model_copy(update={"average_models": 0.8})
    federation = Federation(config, digits)
    models = Models([(federation, [0])])
    state, found = models.start(), []
    for number in range(4):
        done = federated_round(models, state, number, some)
        state = done.after
        found.append((state.parameters, state.buffers))
    weights = [0.8 ** (3 - n) for n in range(4)]
    mean = federation.averaged(state)
    assert mean is not None
    for own, parts in zip((mean.parameters, mean.buffers), zip(*found, strict=True), strict=True):
        wanted = sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights)
        torch.testing.assert_close(own, wanted)
    assert torch.equal(done.accuracy_averaged, federation.evaluate(mean)[0])
    plain = federated_round(*_plain(digits))
    assert bool(plain.accuracy_averaged.isnan().all())
    assert not plain.after.memory


def _plain(digits: Dataset):
    models = Models([(Federation(CONFIG, digits), [0])])
    return models, models.start(), 0, some


def test_scaffold_sends_twice_and_counts_steps(digits: Dataset) -> None:
    plain, twice = (
        Federation(CONFIG.model_copy(update={"server": name}), digits).payload_bits
        for name in ("mean", "scaffold")
    )
    assert twice == 2 * plain
    with pytest.raises(UserError, match=r"learning.local_unit = 'epoch' is not"):
        load_config("paper", ["learning.server=scaffold", "learning.local_unit=epoch"])


# --- of a user's own ------------------------------------------------------------------------------


class Own:
    """Answers what it was made of."""

    def __init__(self, config: LearningConfig) -> None:
        self.remembered: object = {}
        self.step: Callable[[Tensor], object] = lambda mean: (mean, {})

    def init(self, parameters: Tensor) -> object:
        return self.remembered

    def apply(self, memory: object, arrived: Arrived) -> object:
        return self.step(arrived.mean)


def own(**answers: object) -> Callable[[LearningConfig], Own]:
    def make(config: LearningConfig) -> Own:
        rule = Own(config)
        vars(rule).update(answers)
        return rule

    return make


raises = own(step=lambda mean: mean / 0 + {}["nothing"])
no_memory = own(remembered=None)
numbers = own(remembered={"a": 0.5})
without_runs = own(remembered={"a": torch.zeros(3)})
servers_own = own(remembered={"parameters": torch.zeros(1, 2)})
step_alone = own(step=lambda mean: mean)
too_short = own(step=lambda mean: (mean[:, 1:], {}))
one_number = own(step=lambda mean: (mean.sum(), {}))
forgets = own(step=lambda mean: (mean, None))
corrects = own(correction=lambda memory: None)
no_number = own(step=lambda mean: (mean * torch.nan, {}))
one_infinite = own(step=lambda mean: (mean.index_fill(1, torch.tensor([3]), torch.inf), {}))
too_much = own(step=lambda mean: (mean + 1e20, {}))
doubles = own(step=lambda mean: (mean.double(), {}))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("raises", r"raised KeyError in apply .*: 'nothing'\.$"),
        ("no_memory", r"answered NoneType in init: it must be a dict of what to remember\.$"),
        ("numbers", r"answered float in init: it must be a tensor \[1, \.\.\.\] as 'a'\.$"),
        ("without_runs", r"answered \[3\] in init: it must be a tensor \[1, \.\.\.\] as 'a'\.$"),
        ("servers_own", r"remembers 'parameters': the server has that name itself\.$"),
        ("step_alone", r"answered .* in apply: it must be a step and what to remember\.$"),
        ("too_short", r"answered .* in apply: it must be a tensor \[1, \d+\]\.$"),
        ("one_number", r"answered \[\] in apply: it must be a tensor \[1, \d+\]\.$"),
        ("forgets", r"answered NoneType in apply: it must be a dict of what to remember\.$"),
        ("corrects", r"answered NoneType in correction: it must be a tensor \[1, 4, \d+\]\.$"),
        ("no_number", r"answered NaN or too much in apply: it must be finite, .*1e\+15\.$"),
        ("one_infinite", "answered NaN or too much in apply: "),
        ("too_much", "answered NaN or too much in apply: "),
    ],
)
def test_a_rule_that_misbehaves_ends_in_a_sentence(
    name: str, sentence: str, digits: Dataset
) -> None:
    with pytest.raises(UserError, match=rf"^learning\.server = '{__name__}:{name}' {sentence}"):
        states(digits, rounds=1, server=f"{__name__}:{name}")


def test_a_step_in_double_precision_is_taken(digits: Dataset) -> None:
    found = states(digits, server=f"{__name__}:doubles").parameters
    assert torch.equal(found, states(digits).parameters)


# --- in a comparison ------------------------------------------------------------------------------


def small(*changes: str) -> Config:
    policies = "allocation.policies=[random,wrap-around-age,wrap-around-innovation,perfect]"
    return load_config(
        "paper", [*TINY, policies, "run.rounds=3", "radio.slots=40", "run.seeds=1", *changes]
    )


@pytest.mark.parametrize("server", ["adam", "mifa", "fedvarp", "scaffold"])
def test_resumed_is_the_same(server: str, tmp_path: Path) -> None:
    """Stopped after two rounds and continued: memory, mean of models, ages and all."""
    config = small(f"learning.server={server}", "learning.average_models=0.9")
    compare_many([config], [tmp_path / "whole"], CPU)
    stopped_and_continued([config], tmp_path)
    whole, cut = ((tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "0"))
    assert whole == cut
    assert b"accuracy_averaged" in whole


def test_without_a_mean_of_models_files_have_no_column(tmp_path: Path) -> None:
    compare_many([small()], [tmp_path], CPU)
    text = (tmp_path / "metrics.csv").read_text()
    assert "averaged" not in text
    assert all(np.isnan(row.accuracy_averaged) for row in read_rows(tmp_path / "metrics.csv"))
