"""The federated round: what it does, what may be put in its place, and what may not."""

import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedfade.config import LearningConfig, load_config
from fedfade.errors import UserError
from fedfade.experiments import compare_many
from fedfade.learning import (
    Arrived,
    Dataset,
    Encoded,
    Federation,
    Models,
    Sent,
    federated_round,
    gram,
    load_data,
    receive,
    send,
)
from tests.learning.stopped import CPU, stopped_and_continued, two_configs

CONFIG = LearningConfig(data="digits", clients=4, local_work=2, batch_size=20)
PAGES = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(CONFIG)


@pytest.fixture(scope="module")
def written() -> types.ModuleType:
    """The classes a page shows, as a user's own module `from_the_page`."""
    module = types.ModuleType("from_the_page")
    for page in PAGES.rglob("*.md"):
        for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            if "class Rounded:" in text or "class Adam:" in text:
                exec(compile(text, page.name, "exec"), module.__dict__)
    sys.modules["from_the_page"] = module
    return module


def some(sent: Sent) -> Tensor:
    """Clients 0 and 2."""
    return torch.tensor([[True, False, True, False]]).expand(len(sent.inner), -1)


def test_a_round_is_its_steps(digits: Dataset) -> None:
    """Train, Gram matrix, who delivered, the mean of those, the test set: one by one."""
    federation = Federation(CONFIG, digits)
    models = Models([(federation, [0, 3])])
    state = models.start()
    told: list[str] = []
    for number in range(2):
        done = federated_round(models, state, number, some, tell=told.append)
        updates = federation.train(state, [0, 3], number)
        assert torch.equal(done.sent.updates.parameters, updates.parameters)
        assert torch.equal(done.sent.inner, gram(updates, state.previous))
        mean = updates.parameters[:, [0, 2]].mean(1)
        torch.testing.assert_close(done.after.parameters, state.parameters - mean)
        torch.testing.assert_close(done.after.buffers, updates.buffers[:, [0, 2]].mean(1))
        assert torch.equal(done.accuracy, federation.evaluate(done.after)[0])
        bias = (updates.parameters.mean(1) - mean).square().sum(1)
        torch.testing.assert_close(done.bias, bias)
        state = done.after
    assert told == ["local training", "uploads", "evaluation"] * 2


def test_two_halves_make_a_round(digits: Dataset) -> None:
    models = Models([(Federation(CONFIG, digits), [5])])
    whole = federated_round(models, models.start(), 0, some, test=False)
    sent = send(models, models.start(), 0)
    after, _ = receive(models, sent, some(sent))
    assert all(torch.equal(t, whole.after.tensors()[n]) for n, t in after.tensors().items())
    assert whole.accuracy.isnan().all()


def test_half_precision_halves_the_payload_and_rounds(digits: Dataset) -> None:
    plain, half = (
        Federation(CONFIG.model_copy(update={"codec": name}), digits)
        for name in ("none", "float16")
    )
    assert half.payload_bits == plain.payload_bits / 2 == 9_932_960 / 2
    auto = CONFIG.model_copy(update={"codec": "float16", "payload_bits": "auto"})
    assert Federation(auto, digits).payload_bits == 16 * plain.values_sent
    models = Models([(half, [0])])
    done = federated_round(models, models.start(), 0, some)
    mean = done.sent.updates.parameters[:, [0, 2]].half().float().mean(1)
    torch.testing.assert_close(done.after.previous, mean)
    assert not torch.equal(done.received.parameters, done.sent.updates.parameters)


def test_what_overflows_half_precision_does_not_count(digits: Dataset) -> None:
    federation = Federation(CONFIG.model_copy(update={"codec": "float16"}), digits)
    models = Models([(federation, [0])])
    sent = send(models, models.start(), 0)
    sent.updates.parameters[0, 2, 0] = 1e6
    halves = Encoded((sent.updates.parameters.half(),), sent.encoded.statistics)
    sent = Sent(0, sent.before, sent.updates, halves)
    after, received = receive(models, sent, some(sent))
    assert received.finite.tolist() == [[True, True, False, True]]
    assert after.parameters.isfinite().all()


def test_a_codec_and_a_rule_of_the_pages(written: types.ModuleType, digits: Dataset) -> None:
    """8 bits move a value by half a step of the client's largest; the rule is Adam by hand."""
    changes = {"codec": "from_the_page:Rounded", "server": "from_the_page:Adam"}
    federation = Federation(CONFIG.model_copy(update=changes), digits)
    statistics = federation.buffer_layout.total  # in float32
    bits = 8 * federation.parameter_layout.total + 32 + 32 * statistics
    share = bits / (32 * federation.values_sent)
    assert federation.payload_bits == pytest.approx(9_932_960 * share)
    models = Models([(federation, [0])])
    done = federated_round(models, models.start(), 0, some)
    trained, received = done.sent.updates.parameters, done.received.parameters
    step = trained.abs().amax(-1, keepdim=True) / 127
    assert bool(((trained - received).abs() <= 0.5001 * step).all())
    mean = received[:, [0, 2]].mean(1)
    by_hand = 0.01 * (0.1 * mean) / ((0.01 * mean.square()).sqrt() + 1e-3)
    torch.testing.assert_close(done.sent.before.parameters - done.after.parameters, by_hand)
    assert set(done.after.memory) == {"first", "second"}


def test_a_rules_memory_survives_an_interrupt(written: types.ModuleType, tmp_path: Path) -> None:
    """So does a run of several configurations: what a rule remembers is stored for each."""
    own = ["learning.codec=from_the_page:Rounded", "learning.server=from_the_page:Adam"]
    configs = two_configs(*own)
    whole = compare_many(configs, [tmp_path / "b0", tmp_path / "b1"], CPU)
    assert stopped_and_continued(configs, tmp_path / "a") == whole


class Broken:
    """A codec with one thing wrong."""

    def __init__(self, config: LearningConfig, sizes: Sequence[int]) -> None:
        self.rounds = 0

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return (values,)

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        return sent[0][..., :1]


class Raising(Broken):
    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        raise OverflowError("too much")


class Free(Broken):
    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return (values[..., :0],)


class Bare(Broken):
    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return values  # type: ignore[return-value]


class Shared(Broken):
    """What one client sends is no part of the others'."""

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        return values, values[:, 0]


class Growing(Broken):
    """Cheap when it is asked what an update takes, and dear when one is sent."""

    def encode(self, values: Tensor, keys: Tensor) -> Sequence[Tensor]:
        self.rounds += 1
        return (values.half(),) if self.rounds == 1 else (values,)


class Whole(Broken):
    statistics = torch.int8


class Silent:
    """No codec at all."""

    def __init__(self, *given: object) -> None:
        pass


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"codec": f"{__name__}:Broken"},
            r"learning.codec = '.*Broken' decoded \[1, 4, 1\]",
        ),
        (
            {"codec": f"{__name__}:Raising"},
            r"learning.codec = '.*Raising' raised OverflowError in encode \(.*\): too much\.",
        ),
        ({"codec": f"{__name__}:Free"}, "learning.codec = '.*Free' sends nothing of an update."),
        (
            {"codec": f"{__name__}:Bare"},
            r"Bare' encoded \[1, 1, .*\]: it must be a tuple of tensors",
        ),
        (
            {"codec": f"{__name__}:Shared"},
            r"Shared' encoded \[1, .*\]: it must be a tuple of tensors",
        ),
        ({"codec": f"{__name__}:Whole"}, "Whole' has statistics = torch.int8: it must be"),
        ({"codec": f"{__name__}:Growing"}, "sends .* bits of an update: it must be"),
        (
            {"codec": f"{__name__}:Silent"},
            "codec '.*Silent' has no 'encode': fedfade.learning.Codec",
        ),
        ({"codec": "nowhere:Codec"}, "learning.codec = 'nowhere:Codec' cannot be loaded"),
        ({"server": f"{__name__}:Silent"}, "server '.*Silent' has no 'init'"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    digits: Dataset, changes: dict[str, str], sentence: str
) -> None:
    def play() -> None:
        federation = Federation(CONFIG.model_copy(update=changes), digits)
        assert federation.payload_bits > 0
        models = Models([(federation, [0])])
        federated_round(models, models.start(), 0, some)

    with pytest.raises(UserError, match=sentence):
        play()


@pytest.mark.parametrize("field", ["codec", "server"])
def test_unknown_names_are_refused_with_what_there_is(field: str) -> None:
    with pytest.raises(UserError, match=rf"learning.{field} = 'zip' is not allowed"):
        load_config("paper", [f"learning.{field}=zip"])


def test_momentum_is_what_server_momentum_asks_for(digits: Dataset) -> None:
    """`server: momentum` and, as ever, `server_momentum` alone."""
    states = []
    for server in ("mean", "momentum"):
        changes = {"server": server, "server_momentum": 0.9}
        models = Models([(Federation(CONFIG.model_copy(update=changes), digits), [0])])
        state = models.start()
        for number in range(3):
            state = federated_round(models, state, number, some, test=False).after
        states.append(state)
    assert torch.equal(states[0].parameters, states[1].parameters)
    assert set(states[0].memory) == {"momentum"}


def test_a_rule_is_told_who_arrived(digits: Dataset) -> None:
    """Weights by sample count, zero for the absent; the mean is theirs."""
    seen: list[Arrived] = []
    federation = Federation(CONFIG.model_copy(update={"weighting": "samples"}), digits)
    original: Callable[..., object] = federation.rule.apply

    def apply(memory: object, arrived: Arrived) -> object:
        seen.append(arrived)
        return original(memory, arrived)

    federation.rule.apply = apply  # type: ignore[method-assign, assignment]
    models = Models([(federation, [0])])
    federated_round(models, models.start(), 0, some, test=False)
    samples = torch.tensor([[float(len(part)) for part in federation.partition(0)]])
    assert torch.equal(seen[0].weight, samples * torch.tensor([[1.0, 0, 1, 0]]))
    assert seen[0].anyone.tolist() == [[True]]
