"""Codecs against plain implementations; error feedback; bits; numbers that are not numbers."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfade.config import LearningConfig, load_config
from fedfade.errors import UserError
from fedfade.experiments import compare_many, read_rows
from fedfade.learning import (
    Dataset,
    Federation,
    Models,
    PaperCNN,
    Sent,
    Wire,
    federated_round,
    load_data,
    payload_bits,
    play_rounds,
    send,
)
from fedfade.learning.codecs import AsTrained, to_bits, to_bytes
from fedfade.learning.model import buffer_layout, parameter_layout
from fedfade.learning.wire import ERROR_FEEDBACK
from fedfade.randomness import fold, streams, uniform
from fedfade.seams import CODECS
from tests.conftest import TINY
from tests.learning.stopped import CPU, stopped_and_continued, two_configs

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
SHAPES = [torch.Size(shape) for shape in ((8, 5), (1,), (3, 3), (13,))]
SIZES = [shape.numel() for shape in SHAPES]  # 63 values
CODEC = LearningConfig(codec_fraction=0.25, codec_rank=2)
CONFIG = LearningConfig(data="digits", clients=4, local_work=2, batch_size=20)
LOSSY = ["float16", "int8", "int4", "sign", "topk", "lowrank", "int8-progressive"]
Values = NDArray[np.float32]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(CONFIG)


def updates(runs: int = 2, clients: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(runs)
    return 1e-3 * torch.randn(runs, clients, sum(SIZES), generator=generator) ** 3


def keys(runs: int = 2, clients: int = 3, number: int = 0) -> Tensor:
    return fold(fold(streams(range(runs), "codec"), number)[:, None], torch.arange(clients))


def made(name: str, config: LearningConfig = CODEC) -> Any:
    """A codec for the sizes above."""
    codec = CODECS.make(name, config, SIZES)
    if name == "lowrank":
        codec.shaped(SHAPES)
    return codec


def some(sent: Sent) -> Tensor:
    """Clients 0 and 2."""
    return torch.tensor([[True, False, True, False]]).expand(len(sent.inner), -1)


# --- one client's update, by hand: what it decodes to, and how many bytes it takes ----------------


def by_tensor(values: Values) -> list[Values]:
    return np.split(values, np.cumsum(SIZES)[:-1])


def half(values: Values, above: Values) -> tuple[Values, int]:
    return values.astype(np.float16).astype(np.float32), 2 * len(values)


def whole(levels: int, bits: int, values: Values, above: Values) -> tuple[Values, int]:
    found = []
    for part, random in zip(by_tensor(values), by_tensor(above), strict=True):
        scale = np.float32(np.abs(part).max() / np.float32(levels))
        found.append(np.clip(np.floor(part / scale + random), -levels, levels) * scale)
    return np.concatenate(found), 4 * len(SIZES) + math.ceil(bits * len(values) / 8)


def sign(values: Values, above: Values) -> tuple[Values, int]:
    parts = [np.where(p >= 0, 1, -1) * np.abs(p).mean(dtype=np.float32) for p in by_tensor(values)]
    return np.concatenate(parts).astype(np.float32), 4 * len(SIZES) + math.ceil(len(values) / 8)


def largest(values: Values, above: Values) -> tuple[Values, int]:
    kept = math.ceil(0.25 * len(values))
    found = np.zeros_like(values)
    chosen = np.argsort(-np.abs(values))[:kept]
    found[chosen] = values[chosen]
    return found, math.ceil(kept * (32 + 6) / 8)  # places 0 ... 62 take 6 bits


PLAIN = {
    "float16": half,
    "int8": lambda v, u: whole(127, 8, v, u),
    "int4": lambda v, u: whole(7, 4, v, u),
    "sign": sign,
    "topk": largest,
    "topk-progressive": largest,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_codec_is_its_plain_implementation(name: str) -> None:
    codec = made(name)
    values, above = updates(), uniform(keys(), (sum(SIZES),))
    sent = codec.encode(values, keys())
    found = codec.decode(sent)
    assert found.dtype == torch.float32
    for run, client in np.ndindex(2, 3):
        plain, size = PLAIN[name](values[run, client].numpy(), above[run, client].numpy())
        np.testing.assert_allclose(found[run, client].numpy(), plain, rtol=1e-6)
        assert sum(part[run, client].numpy().nbytes for part in sent) == size


def test_low_rank_is_nearly_the_best_there_is() -> None:
    """Exact of what has the rank; else little worse than the singular values that are left out. The
    8 x 5 matrix alone is worth its factors, 2 (8 + 5) values instead of 40; 3 x 3 is not."""
    codec, values = made("lowrank"), updates()
    sent = codec.encode(values, keys())
    assert [list(part.shape[2:]) for part in sent] == [[8, 2], [5, 2], [1], [9], [13]]
    found = codec.decode(sent)
    assert torch.equal(found[..., 40:], values[..., 40:])
    left, right = (
        torch.randn(2, 3, n, 2, generator=torch.Generator().manual_seed(n)) for n in (8, 5)
    )
    low = torch.cat([(left @ right.mT).flatten(2), values[..., 40:]], -1)
    torch.testing.assert_close(codec.decode(codec.encode(low, keys())), low, rtol=1e-4, atol=1e-5)
    missed = (found - values).norm(dim=-1)
    best = torch.linalg.svdvals(values[..., :40].unflatten(-1, (8, 5)))[..., 2:].norm(dim=-1)
    assert bool((missed >= 0.999 * best).all())
    assert float(missed.sum()) <= 1.2 * float(best.sum())


def test_planes_say_what_int8_says() -> None:
    one, other = (made(name) for name in ("int8", "int8-progressive"))
    sent = other.encode(updates(), keys())
    assert torch.equal(other.decode(sent), one.decode(one.encode(updates(), keys())))
    # Signs first, then magnitudes from the highest bit on, 63 values in 8 bytes each.
    _, levels = one.encode(updates(), keys())
    assert sent[1].shape == (2, 3, 8, 8)
    signs = to_bits(sent[1][:, :, 0], 63)
    powers = (2 ** torch.arange(6, -1, -1))[:, None]
    sizes = (to_bits(sent[1][:, :, 1:], 63) * powers).sum(2)
    assert torch.equal(torch.where(signs > 0, -sizes, sizes), levels.long())


@pytest.mark.parametrize("name", ["int8-progressive", "topk"])
def test_more_bits_make_a_better_update(name: str) -> None:
    codec, values = made(name), updates()
    sent = codec.encode(values, keys())
    total = 8 * sum(part[0, 0].numel() * part.element_size() for part in sent)
    errors = []
    for bits in range(0, total + 1, 4):
        found = codec.decode_part(sent, torch.full((2, 3), bits))
        errors.append((found - values).square().sum())
        if bits < codec.least_bits:
            assert not found.any()
    assert torch.equal(found, codec.decode(sent))
    # Values whose bits have not come are 0 and not wrong, so no bit does harm beyond rounding.
    assert all(later <= 1.02 * earlier for earlier, later in itertools.pairwise(errors))


def test_a_part_is_each_clients_own() -> None:
    codec, values = made("int8-progressive"), updates()
    sent, bits = codec.encode(values, keys()), torch.tensor([[0, 260, 10**6], [300, 400, 500]])
    found = codec.decode_part(sent, bits)
    for run, client in np.ndindex(2, 3):
        own = tuple(part[run : run + 1, client : client + 1] for part in sent)
        alone = codec.decode_part(own, bits[run : run + 1, client : client + 1])
        assert torch.equal(found[run, client], alone[0, 0])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_rounding_is_right_on_average(name: str) -> None:
    """The mean of n draws is off by at most half a step / sqrt(n), times 5 for 63 values."""
    codec, clients = made(name), 4000
    values = updates(1, 1).expand(1, clients, -1)
    sent = codec.encode(values, keys(1, clients))
    step = sent[0][0, 0].repeat_interleave(torch.tensor(SIZES))
    error = (codec.decode(sent) - values)[0].mean(0)
    assert bool((error.abs() <= 5 * 0.5 * step / clients**0.5).all())
    assert bool((codec.decode(sent) - values).abs().le(1.001 * step).all())


@pytest.mark.parametrize("name", LOSSY)
def test_alone_and_in_a_batch_alike(name: str) -> None:
    codec, values = made(name), updates()
    found = codec.decode(codec.encode(values, keys()))
    for run, client in np.ndindex(2, 3):
        part = (slice(run, run + 1), slice(client, client + 1))
        alone = codec.decode(codec.encode(values[part], keys()[part]))
        assert torch.equal(alone[0, 0], found[run, client])


@NO_CUDA
@pytest.mark.parametrize("name", LOSSY)
def test_cpu_and_cuda_agree(name: str) -> None:
    """Up to a level where a value lies on the edge between two; power iteration adds up more."""
    codec, values = made(name), updates()
    here, there = (
        codec.decode(codec.encode(values.to(device), keys().to(device))).cpu()
        for device in ("cpu", "cuda")
    )
    close = 1e-4 if name == "lowrank" else 1e-6
    assert ((here - there).abs() > close * values.abs().amax()).float().mean() < 0.02


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("value", [0.0, 1e-42, -1e-38, 3e4])
def test_equal_values(name: str, value: float) -> None:
    """Zero, too small to have all digits, large: no division by zero, no wrap-around."""
    codec = made(name, LearningConfig(codec_fraction=1.0, codec_rank=1))
    values = torch.full((1, 2, sum(SIZES)), value)
    found = codec.decode(codec.encode(values, keys(1, 2)))
    torch.testing.assert_close(found, values, rtol=1e-3, atol=2e-38)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_who_sends_no_numbers_does_not_count(digits: Dataset, name: str, wrong: float) -> None:
    """And spoils neither the others nor what it has left itself."""
    config = CONFIG.model_copy(update={"codec": name, "error_feedback": True})
    models = Models([(Federation(config, digits), [0])])
    wire, state = models.lead.wire, models.start()
    sent = send(models, state, 0)
    sent.updates.parameters[0, 2, 7] = wrong
    again = wire.encode(sent.updates, state.memory[ERROR_FEEDBACK], models.codec_keys(0))
    sent.updates.finite[0, 2] = False
    everybody = torch.ones(1, 4, dtype=torch.bool)
    received = wire.decode(sent.updates, again, everybody)
    assert received.finite.tolist() == [[True, True, False, True]]
    assert not received.parameters[0, 2].isfinite().all()
    after = models.lead.average(state, received, everybody)
    assert after.parameters.isfinite().all()


@pytest.mark.parametrize("values", [1, 2, 9])
@pytest.mark.parametrize("name", LOSSY)
def test_models_of_a_few_values(name: str, values: int) -> None:
    """All of them are kept where k would be more than there are."""
    codec = CODECS.make(name, LearningConfig(codec_fraction=1.0), [values])
    given = torch.linspace(0.5, -1.0, values).expand(1, 1, -1)
    found = codec.decode(codec.encode(given, keys(1, 1)))
    assert found.shape == given.shape
    if name == "topk":
        assert torch.equal(found, given)
    least = CODECS.make("topk", LearningConfig(codec_fraction=1e-9), [values])
    assert (least.decode(least.encode(given, keys(1, 1))) != 0).sum() == 1


def test_bits_and_bytes() -> None:
    bits = torch.randint(2, (3, 21), generator=torch.Generator().manual_seed(0))
    packed = to_bytes(bits)
    assert np.array_equal(packed.numpy(), np.packbits(bits.numpy(), axis=-1))
    assert torch.equal(to_bits(packed, 21).long(), bits)


# --- in the round ---------------------------------------------------------------------------------


class Odd(nn.Module):
    """Half precision, a frozen layer, a tensor without values, buffers of every kind."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(math.prod(shape), 6)
        self.frozen.requires_grad_(False)
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, classes).half()
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("steps", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.last(self.norm(self.frozen(images.flatten(1))))
        return found


@pytest.mark.parametrize("name", ["none", *LOSSY])
def test_a_model_of_many_kinds(name: str, digits: Dataset) -> None:
    """Sent are trained values by the codec, and float statistics, 12, in float32 or float16."""
    changes = {"codec": name, "model": f"{__name__}:Odd", "codec_fraction": 1.0}
    federation = Federation(CONFIG.model_copy(update=changes), digits)
    trained, tensors = 12 + 6 * 10 + 10, 4
    bits = {
        "none": 32 * trained + 32 * 12,
        "float16": 16 * trained + 16 * 12,
        "int8": 8 * trained + 32 * tensors + 32 * 12,
        "int4": 4 * trained + 32 * tensors + 32 * 12,
        "sign": 8 * 11 + 32 * tensors + 32 * 12,  # 82 bits in 11 bytes
        "topk": 8 * math.ceil(trained * (32 + 7) / 8) + 32 * 12,
        "lowrank": 32 * trained + 32 * 12,  # 10 x 6 has fewer values than factors of rank 4
        "int8-progressive": 8 * 8 * 11 + 32 * tensors + 32 * 12,
    }[name]
    assert federation.wire.bits == bits
    done = federated_round(Models([(federation, [0])]), federation.start([0]), 0, some)
    assert done.arrived.tolist() == [[True, False, True, False]]
    assert done.after.parameters.isfinite().all()


def test_a_payload_is_what_is_sent() -> None:
    """`auto` counts it; a number shrinks by what the codec saves; factors multiply both."""
    plain = CONFIG.model_copy(update={"payload_bits": "auto"})
    every = payload_bits(plain)
    coded = plain.model_copy(update={"codec": "int8"})
    federation = Federation(coded, load_data(coded))
    assert payload_bits(coded) == federation.payload_bits == federation.wire.bits
    given = coded.model_copy(update={"payload_bits": 1e6})
    assert payload_bits(given) == pytest.approx(1e6 * federation.wire.bits / every)
    assert payload_bits(given.model_copy(update={"payload_factors": 2.0})) == 2 * payload_bits(
        given
    )
    own = payload_bits(given.model_copy(update={"payload_factors": [1.0, 0.5, 2.0, 1.0]}))
    assert isinstance(own, Tensor)
    assert own.tolist() == pytest.approx([payload_bits(given) * f for f in (1, 0.5, 2, 1)])
    # Nothing is loaded where it does not matter.
    assert payload_bits(CONFIG.model_copy(update={"data": "nowhere.npz"})) == 9_932_960


@pytest.mark.parametrize("name", ["int4", "sign", "topk", "lowrank"])
def test_what_a_codec_loses_is_sent_later(name: str, digits: Dataset) -> None:
    """Of a client that always delivers, everything trained is decoded or still left; one that
    never does keeps nothing but what it had."""
    config = CONFIG.model_copy(update={"codec": name, "error_feedback": True})
    trained = decoded = torch.zeros(1)
    for done in play_rounds(Federation(config, digits), [0, 1], 3, some):
        trained = trained + done.sent.updates.parameters
        decoded = decoded + done.received.parameters
        left = done.after.memory[ERROR_FEEDBACK]
        torch.testing.assert_close((decoded + left)[:, [0, 2]], trained[:, [0, 2]])
        assert left[:, [0, 2]].any(-1).all()
        assert not left[:, [1, 3]].any()


def test_a_missed_round_keeps_what_is_left(digits: Dataset) -> None:
    config = CONFIG.model_copy(update={"codec": "int4", "error_feedback": True})
    models = Models([(Federation(config, digits), [0])])
    everybody = torch.ones(1, 4, dtype=torch.bool)
    first = federated_round(models, models.start(), 0, lambda sent: everybody, test=False).after
    after = federated_round(models, first, 1, some, test=False).after
    had, left = first.memory[ERROR_FEEDBACK], after.memory[ERROR_FEEDBACK]
    assert torch.equal(left[:, [1, 3]], had[:, [1, 3]])
    assert not torch.equal(left[:, [0, 2]], had[:, [0, 2]])


def test_nothing_is_left_of_what_is_sent_as_it_is(digits: Dataset) -> None:
    config = CONFIG.model_copy(update={"codec": "float32", "error_feedback": True})
    assert not Federation(config, digits).start([0]).memory


def test_side_by_side_and_resumed_alike(tmp_path: Path) -> None:
    """Two configurations, interrupted and continued, and each alone."""
    coded = ["learning.codec=int4", "learning.error_feedback=true", "learning.server_momentum=0.5"]
    configs = two_configs(*coded)
    alone = [compare_many([c], [tmp_path / f"b{n}"], CPU)[0] for n, c in enumerate(configs)]
    assert stopped_and_continued(configs, tmp_path / "a") == alone


def test_a_part_of_an_upload_counts(digits: Dataset) -> None:
    """By the share of its bits: nothing, too little to be of use, half, all."""
    changes = {"codec": "int8-progressive", "count_partial": True, "error_feedback": True}
    models = Models([(Federation(CONFIG.model_copy(update=changes), digits), [0])])
    share = torch.tensor([[0.0, 0.1, 0.5, 1.0]])
    done = federated_round(models, models.start(), 0, lambda sent: share)
    assert done.arrived.tolist() == [[False, False, True, True]]
    trained, received = done.sent.updates.parameters, done.received.parameters
    error = (received - trained).norm(dim=-1)[0] / trained.norm(dim=-1)[0]
    assert error[3] < 0.05 < error[2] < 0.7
    torch.testing.assert_close(done.after.previous, received[:, 2:].mean(1))
    left = done.after.memory[ERROR_FEEDBACK]
    torch.testing.assert_close(left[:, 2:], (trained - received)[:, 2:])
    assert not left[:, :2].any()
    # All or nothing, the default.
    whole = CONFIG.model_copy(update={"codec": "int8-progressive"})
    models = Models([(Federation(whole, digits), [0])])
    done = federated_round(models, models.start(), 0, lambda sent: share)
    assert done.arrived.tolist() == [[False, False, False, True]]


def test_only_an_order_of_importance_counts_in_part(digits: Dataset) -> None:
    with pytest.raises(UserError, match=r"learning\.count_partial = True is not allowed"):
        Federation(CONFIG.model_copy(update={"codec": "int8", "count_partial": True}), digits)


def test_a_wire_counts_the_papers_model() -> None:
    """114,186 values in 14 tensors and 448 statistics: a quarter, an eighth, a thirty-second."""
    model = PaperCNN((3, 32, 32), 10)
    bits = {
        name: Wire(
            LearningConfig(codec=name, codec_fraction=0.08),
            parameter_layout(model),
            buffer_layout(model),
        ).bits
        for name in ("float32", "int8", "int4", "sign", "topk", "lowrank")
    }
    beside = 32 * 448
    assert bits == {
        "float32": 3_668_288,
        "int8": 8 * 114_186 + 32 * 14 + beside,
        "int4": 4 * 114_186 + 32 * 14 + beside,
        "sign": 114_192 + 32 * 14 + beside,
        "topk": 8 * math.ceil(9_135 * (32 + 17) / 8) + beside,
        # Of rank 4, three convolutions and the last layer; biases and batch norm as they are.
        "lowrank": 32 * (4 * (59 + 352 + 704 + 2058) + 682) + beside,
    }


class LosesClientTwo(AsTrained):
    """Its update is no number when it is decoded."""

    def decode(self, sent: Sequence[Tensor]) -> Tensor:
        return sent[0].index_fill(1, torch.tensor([2]), torch.nan)


def test_what_a_codec_made_infinite_is_told(tmp_path: Path) -> None:
    """As of a client that trained it: in metrics.csv, from which the report speaks of it."""
    changes = [f"learning.codec={__name__}:LosesClientTwo", "allocation.policies=[perfect]"]
    config = load_config("paper", [*TINY, *changes, "run.rounds=1", "run.seeds=1"])
    compare_many([config], [tmp_path], CPU)
    (row,) = read_rows(tmp_path / "metrics.csv")
    assert row.not_finite_clients == "2"
    assert "2" not in row.delivered_clients.split()
