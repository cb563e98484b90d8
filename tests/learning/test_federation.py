"""The engine against an independent loop, itself, and the rules of the server's step."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.bench.federated_round import random_images
from fedfade.config import LearningConfig
from fedfade.learning import Dataset, Federation, ServerState, Updates, build_model, gram, load_data
from fedfade.learning.averaging import by_run
from fedfade.learning.batched import ClientBatch, batchable
from fedfade.learning.fused import NormPool, fuse_norms
from fedfade.learning.local import ModelReplica
from fedfade.learning.model import has_dropout
from fedfade.learning.round import Sent, learning_curve, play_rounds, random_delivery

DIGITS = LearningConfig(data="digits", clients=4, batch_size=20)
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_CUDA)]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(DIGITS)


def everyone(federation: Federation, runs: int = 1) -> Tensor:
    return torch.ones(runs, federation.config.clients, dtype=torch.bool)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def textbook_update(
    federation: Federation, dataset: Dataset, client: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """One client's update by nn.Module and torch.optim, written without fedfade's engines."""
    config = federation.config
    model = build_model(config.model, dataset.shape, len(dataset.classes), seed=0).to(dtype)
    start = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=config.local_rate)
    model.train()
    for batch in federation.mini_batches([0], round=0)[0, client].cpu():
        images = dataset.normalised(dataset.train_images[batch]).to(dtype).contiguous()
        loss = F.cross_entropy(model(images), dataset.train_labels[batch])
        for p, q in zip(model.parameters(), start.parameters(), strict=True):
            loss = loss + config.proximal / 2 * (p - q).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    update = flat(list(start.parameters())) - flat(list(model.parameters()))
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    return update, flat(buffers) if buffers else torch.zeros(0)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double().cpu() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("device", DEVICES)
def test_engines_agree_with_a_textbook_loop(engine: str, device: str) -> None:
    """On images (seed 1) where no two maxima are so close that float32 rounding flips them.

    A flip moves one gradient entry to another pixel: 1e-3 of one client's update, in any float32
    implementation.
    """
    dataset = random_images(120, seed=1)
    config = LearningConfig(clients=2, partition="iid", batch_size=50, proximal=0.3)
    federation = Federation(config, dataset, device=device, engine=engine)  # type: ignore[arg-type]
    updates = federation.train(federation.start([0]), [0], round=0)
    for client in range(2):
        update, buffers = textbook_update(federation, dataset, client)
        # float32 against float64; summing 50 x 32 x 32 values leaves a few 1e-6.
        assert distance(updates.parameters[0, client], update) < 1e-4
        assert distance(updates.buffers[0, client], buffers) < 1e-5


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("device", DEVICES)
def test_bf16_stays_near_the_textbook(engine: str, device: str) -> None:
    """Eight bits of mantissa, and sums that are split into groups where a kernel is small."""
    dataset = random_images(120, seed=1)
    config = LearningConfig(clients=2, partition="iid", batch_size=50, local_work=1)
    federation = Federation(
        config,
        dataset,
        device=device,
        engine=engine,  # type: ignore[arg-type]
        precision="bf16",
    )
    updates = federation.train(federation.start([0]), [0], round=0)
    for client in range(2):
        update, buffers = textbook_update(federation, dataset, client)
        assert distance(updates.parameters[0, client], update) < 0.1
        assert distance(updates.buffers[0, client], buffers) < 1e-3


@pytest.mark.parametrize("steps", [9, 11])
def test_any_number_of_steps(digits: Dataset, steps: int) -> None:
    """Several are one recording where the number can be divided, as nine can; eleven cannot."""
    config = DIGITS.model_copy(update={"local_work": steps, "local_rate": 1e-3})
    one, other = (
        Federation(config, digits, engine=name)  # type: ignore[arg-type]
        for name in ("loop", "vmap")
    )
    state = one.start([0])
    wanted, found = one.train(state, [0], 0), other.train(state, [0], 0)
    assert distance(found.parameters, wanted.parameters.double()) < 5e-3  # flips, as said above
    assert torch.allclose(found.loss, wanted.loss, rtol=1e-4)


def test_engines_pull_towards_the_model_of_the_round(digits: Dataset) -> None:
    """FedProx over two rounds: what the second pulls towards is not what the first did."""
    changes = {"model": f"{__name__}:Small", "proximal": 2.0, "local_rate": 0.1}
    config = DIGITS.model_copy(update=changes)
    both = [
        Federation(config, digits, engine=name)  # type: ignore[arg-type]
        for name in ("loop", "vmap")
    ]
    for wanted, found in zip(*(play_rounds(each, [0], rounds=2) for each in both), strict=True):
        ours, theirs = found.sent.updates.parameters, wanted.sent.updates.parameters
        assert distance(ours, theirs.double()) < 1e-4


@pytest.mark.parametrize("at_once", [1, 3, 5, 7])
def test_blocks_of_clients_are_all_clients(
    digits: Dataset, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten clients of two runs; where blocks do not come out even, some are trained twice."""
    config = DIGITS.model_copy(update={"clients": 5})
    federation = Federation(config, digits, engine="vmap")
    state = federation.start([0, 1])
    wanted = federation.train(state, [0, 1], 0)
    monkeypatch.setattr(ClientBatch, "_clients_at_once", lambda *args: at_once)
    found = federation.train(state, [0, 1], 0)
    assert distance(found.parameters, wanted.parameters.double()) < 1e-5
    assert torch.allclose(found.buffers, wanted.buffers, rtol=1e-5)
    assert torch.allclose(found.loss, wanted.loss, rtol=1e-5)


class Small(nn.Module):
    """No batch norm, no convolution, one frozen layer."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(images) * self.scale
        return logits


def dropout_model(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))


def number(shape: tuple[int, int, int], classes: int) -> int:
    return classes


def wrong_width(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_own_module_without_batch_norm(digits: Dataset, engine: str) -> None:
    config = DIGITS.model_copy(update={"model": f"{__name__}:Small", "payload_bits": "auto"})
    federation = Federation(config, digits, engine=engine)  # type: ignore[arg-type]
    assert federation.payload_bits == 32 * (64 * 10 + 10)
    state = federation.start([0])
    updates = federation.train(state, [0], 0)
    assert updates.buffers.shape == (1, 4, 0)
    model = build_model(config.model, digits.shape, 10, seed=0)
    wanted = [p for p in model.parameters() if p.requires_grad]
    assert torch.equal(state.parameters[0], flat(list(wanted)).float())
    after = federation.average(state, updates, everyone(federation))
    assert federation.evaluate(after)[1] < federation.evaluate(state)[1]


class Noisy(Small):
    """Random numbers in the forward pass, without a layer that would say so."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.dropout(images, 0.5, self.training))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["dropout_model", "Noisy"])
def test_dropout_draws_by_seed_round_and_client(
    digits: Dataset, engine: str, device: str, model: str
) -> None:
    """Nobody's random numbers depend on who is trained beside; the caller's stay as they are."""
    before = torch.random.get_rng_state()
    config = DIGITS.model_copy(update={"model": f"{__name__}:{model}"})
    federation = Federation(config, digits, device=device, engine=engine)  # type: ignore[arg-type]
    state = federation.start([0, 1])
    one = federation.train(state, [0, 1], 3).parameters
    assert torch.equal(one, federation.train(state, [0, 1], 3).parameters)
    alone = federation.train(federation.start([1]), [1], 3).parameters
    assert torch.equal(one[1], alone[0])
    some = federation.train(federation.start([1]), [1], 3, clients=[2, 0]).parameters
    assert torch.equal(one[1, [2, 0]], some[0])
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("model", ["dropout_model", "Noisy"])
def test_engines_draw_the_same_dropout(digits: Dataset, model: str) -> None:
    config = DIGITS.model_copy(update={"model": f"{__name__}:{model}"})
    both = [Federation(config, digits, engine=name) for name in ("loop", "vmap")]  # type: ignore[arg-type]
    wanted, found = (each.train(each.start([0]), [0], 0).parameters for each in both)
    assert distance(found, wanted.double()) < 1e-5  # rounding; other masks would make it 1


def test_looking_for_dropout_leaves_the_model_alone() -> None:
    model = build_model("cnn", (1, 8, 8), 10, seed=0)
    before = copy.deepcopy(model.state_dict())
    assert not has_dropout(model, (1, 8, 8))
    assert has_dropout(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.RReLU()), (1, 8, 8))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_mini_batches(digits: Dataset, unit: str) -> None:
    config = DIGITS.model_copy(update={"local_unit": unit, "local_work": 2})
    federation = Federation(config, digits)
    samples = federation.mini_batches([7, 8, 7], round=5)
    assert torch.equal(samples[0], samples[2])
    assert not torch.equal(samples[0], samples[1])
    assert torch.equal(federation.mini_batches([8], 5)[0], samples[1])
    assert samples.shape == (3, 4, 2 if unit == "step" else 2 * (1437 // 4 // 20), 20)
    for client, part in enumerate(federation.partition(7)):
        assert set(samples[0, client].flatten().tolist()) <= set(part.tolist())
        for batch in samples[0, client]:
            assert len(batch.unique()) == 20
        if unit == "epoch":  # nothing twice in a pass
            first = samples[0, client][: len(samples[0, client]) // 2].flatten()
            assert len(first.unique()) == len(first)


def test_the_order_of_drawing_does_not_matter(digits: Dataset) -> None:
    one, other = Federation(DIGITS, digits), Federation(DIGITS, digits)
    in_order = [one.mini_batches([7, 8], round) for round in range(4)]
    for round in (3, 0, 2, 1, 3):
        other.draw([8], round + 1)
        assert torch.equal(other.mini_batches([7, 8], round), in_order[round])


def test_a_client_with_little_data_sets_the_batch(digits: Dataset) -> None:
    parts = [np.arange(7), np.arange(7, 50), np.arange(50, 100), np.arange(100, 160)]
    federation = Federation(DIGITS, digits, partition=parts)
    assert federation.mini_batches([0], 0).shape[-1] == 7
    by_seed = Federation(DIGITS, digits, partition={3: parts, 4: parts[::-1]})
    assert [len(p) for p in by_seed.partition(4)] == [60, 50, 43, 7]


def test_runs_do_not_influence_each_other(digits: Dataset) -> None:
    federation = Federation(DIGITS, digits)
    together = federation.train(federation.start([3, 5]), [3, 5], 2)
    alone = federation.train(federation.start([5]), [5], 2)
    assert torch.equal(together.parameters[1], alone.parameters[0])
    assert torch.equal(together.buffers[1], alone.buffers[0])


@pytest.mark.parametrize("device", DEVICES)
def test_same_seed_same_bits_after_five_rounds(digits: Dataset, device: str) -> None:
    finals = []
    for threads in (1, 2):
        federation = Federation(DIGITS, digits, device=device, threads=threads)
        *_, last = play_rounds(federation, [11], rounds=5, deliver=2)
        finals.append(last.after)
    assert torch.equal(finals[0].parameters, finals[1].parameters)
    assert torch.equal(finals[0].buffers, finals[1].buffers)


@NO_CUDA
def test_cpu_and_cuda_agree_after_a_round() -> None:
    dataset = random_images(600)
    config = LearningConfig(partition="iid")
    states = []
    for device in ("cpu", "cuda"):
        federation = Federation(config, dataset, device=device)
        *_, last = play_rounds(federation, [0, 1], rounds=1)
        states.append(last.after.parameters.cpu())
    assert (states[0] - states[1]).norm() / states[0].norm() < 1e-4


# --- the server ------------------------------------------------------------------------------


def made_up(runs: int = 2, clients: int = 5, size: int = 7) -> tuple[ServerState, Updates]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    state = ServerState(draw(runs, size), draw(runs, 3), draw(runs, size))
    ones = torch.ones(runs, clients)
    return state, Updates(
        draw(runs, clients, size), draw(runs, clients, 3), ones.bool(), ones,
        torch.arange(1.0, clients + 1).expand(runs, clients),
    )  # fmt: skip


def server(digits: Dataset, **changes: object) -> Federation:
    return Federation(DIGITS.model_copy(update={"clients": 5, **changes}), digits)


def test_average_is_the_mean_of_the_delivered(digits: Dataset) -> None:
    state, updates = made_up()
    delivered = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    after = server(digits, global_rate=0.5).average(state, updates, delivered)
    mean = updates.parameters[0, [0, 2]].mean(0)
    torch.testing.assert_close(after.parameters[0], state.parameters[0] - 0.5 * mean)
    torch.testing.assert_close(after.buffers[0], updates.buffers[0, [0, 2]].mean(0))
    torch.testing.assert_close(after.previous[0], mean)
    # Nobody delivered in the second run: the model stays, to the bit, and clients who compare
    # the two broadcast models find no difference; the last aggregate is kept if asked for.
    assert torch.equal(after.parameters[1], state.parameters[1])
    assert torch.equal(after.buffers[1], state.buffers[1])
    assert not after.previous[1].any()
    kept = server(digits, previous_update="last").average(state, updates, delivered)
    assert torch.equal(kept.previous[1], state.previous[1])


def test_weights_by_sample_count(digits: Dataset) -> None:
    state, updates = made_up()
    delivered = torch.tensor([[1, 1, 0, 0, 1]] * 2).bool()
    after = server(digits, weighting="samples").average(state, updates, delivered)
    share = torch.tensor([1.0, 2.0, 5.0]) / 8
    wanted = (share[:, None] * updates.parameters[0, [0, 1, 4]]).sum(0)
    torch.testing.assert_close(after.previous[0], wanted)


def test_server_momentum_accumulates(digits: Dataset) -> None:
    state, updates = made_up()
    federation = server(digits, server_momentum=0.9)
    state = replace(state, memory=federation.rule.init(state.parameters))
    delivered = torch.ones(2, 5).bool()
    twice = federation.average(federation.average(state, updates, delivered), updates, delivered)
    mean = updates.parameters.mean(1)
    torch.testing.assert_close(twice.parameters, state.parameters - mean - 1.9 * mean)
    # g_{t-1}, which the next deviations are taken from, is what was aggregated, without momentum.
    torch.testing.assert_close(twice.previous, mean)
    same = replace(updates, parameters=mean[:, None].expand(-1, 5, -1))
    assert gram(same, twice.previous).max() < 1e-10


def test_a_client_that_is_not_finite_counts_as_not_delivered(digits: Dataset) -> None:
    federation = Federation(DIGITS, digits)
    state = federation.start([0])
    updates = federation.train(state, [0], 0)
    broken = updates.parameters.clone()
    broken[0, 1, 5] = torch.nan
    broken[0, 2, 0] = torch.inf
    from fedfade.learning.averaging import is_finite

    finite = is_finite(broken, updates.buffers)
    assert finite.tolist() == [[True, False, False, True]]
    bad = replace(updates, parameters=broken, finite=finite)
    after = federation.average(state, bad, everyone(federation))
    good = torch.tensor([[True, False, False, True]])
    assert torch.equal(after.parameters, federation.average(state, updates, good).parameters)
    inner = gram(bad, state.previous)
    assert inner.isfinite().all()
    assert inner[0, 1, 1] == 0


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_diverging_rate_is_reported_not_spread(digits: Dataset, engine: str) -> None:
    config = DIGITS.model_copy(update={"local_rate": 1e30, "model": f"{__name__}:Small"})
    federation = Federation(config, digits, engine=engine)  # type: ignore[arg-type]
    state = federation.start([0])
    updates = federation.train(state, [0], 0)
    assert not updates.finite.any()
    after = federation.average(state, updates, everyone(federation))
    assert torch.equal(after.parameters, state.parameters)


def test_gram_sums_to_the_second_term() -> None:
    """sum over pairs of <d_n, d_n'> = |sum of d_n|^2, what the reward needs (eq. 29)."""
    _, updates = made_up()
    previous = updates.parameters.mean(1) * 0.3
    inner = gram(updates, previous)
    d = previous[:, None] - updates.parameters
    for chosen in ([0], [1, 3], [0, 2, 4]):
        total = inner[:, chosen][:, :, chosen].sum((1, 2))
        torch.testing.assert_close(total, d[:, chosen].sum(1).square().sum(1))
    torch.testing.assert_close(inner.diagonal(dim1=1, dim2=2), d.square().sum(2))


def test_a_model_of_several_runs_is_trained_once(digits: Dataset) -> None:
    """Runs of a seed with the same model, and only they, share the work: the bits of each alone."""
    federation = Federation(LearningConfig(data="digits", local_work=2, batch_size=20), digits)
    seeds, state = [4, 5, 4, 4], federation.start([4, 5, 4, 4])
    state.parameters[3] *= 1.5
    counted: list[object] = []
    load = ModelReplica.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelReplica, "load", lambda *given: (counted.append(0), load(*given)))
        together = federation.train(state, seeds, 0)
    assert len(counted) == 3 * federation.config.clients
    for run, seed in enumerate(seeds):
        alone = federation.train(state.each(lambda rows, run=run: rows[run : run + 1]), [seed], 0)
        for name, wanted in vars(alone).items():
            assert torch.equal(getattr(together, name)[run], wanted[0]), name
    assert not torch.equal(together.parameters[0], together.parameters[3])


@pytest.mark.parametrize("threads", [1, 2])
def test_one_run_after_the_other_gives_the_bits_of_all_at_once(threads: int) -> None:
    """What `by_run` spares is memory traffic: sums over parameters keep their order."""
    generator = torch.Generator().manual_seed(0)
    sent = torch.randn(3, 10, 94410, generator=generator)
    previous = torch.randn(3, 94410, generator=generator)
    share = torch.rand(3, 10, generator=generator)

    def products(previous: Tensor, sent: Tensor) -> Tensor:
        difference = previous[:, None] - sent
        return difference @ difference.mT

    def mean(share: Tensor, sent: Tensor) -> Tensor:
        return (share[..., None] * sent).sum(1)

    def squares(sent: Tensor) -> Tensor:
        return sent.square().sum(-1)

    torch.set_num_threads(threads)
    try:
        products_by_run = by_run(products, previous, sent)
        mean_by_run = by_run(mean, share, sent)
        squares_by_run = by_run(squares, sent)
        length_by_run = by_run(squares, mean_by_run)  # one sum a run, which threads would share
    finally:
        torch.set_num_threads(1)
    assert torch.equal(products_by_run, products(previous, sent))
    assert torch.equal(mean_by_run, mean(share, sent))
    assert torch.equal(squares_by_run, squares(sent))
    assert torch.equal(length_by_run, squares(mean_by_run))
    assert by_run(squares, sent[:0]).shape == (0, 10)


# --- pieces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_evaluation_counts_right(
    digits: Dataset, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfade.learning.batched._EVALUATION_IMAGES", 100)  # the last are fewer
    federation = Federation(DIGITS, digits, engine=engine)  # type: ignore[arg-type]
    state = federation.start([0, 1])
    accuracy, loss = federation.evaluate(state)
    for run, seed in enumerate([0, 1]):
        model = build_model("cnn", digits.shape, 10, seed).eval()
        with torch.no_grad():
            logits = model(digits.normalised(digits.test_images))
        assert accuracy[run] == pytest.approx(
            float((logits.argmax(1) == digits.test_labels).double().mean()), abs=1 / 360
        )  # rounding may flip one image
        wanted = float(F.cross_entropy(logits, digits.test_labels))
        assert loss[run] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("order", ["relu first", "pool first"])
@pytest.mark.parametrize("negative", [False, True])
def test_fused_block_is_the_three_layers(order: str, negative: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    last = [nn.ReLU(), nn.MaxPool2d(2)]
    plain = nn.Sequential(nn.BatchNorm2d(64), *(last if order == "relu first" else last[::-1]))
    with torch.no_grad():
        plain[0].weight.copy_(torch.rand(64, generator=generator) + 0.5)
        plain[0].bias.copy_(torch.randn(64, generator=generator))
        if negative:  # a negative scale turns maxima into minima: the fused form must step aside
            plain[0].weight[3] = -1.0
    fused = fuse_norms(plain)
    assert [type(layer) for layer in fused] == [NormPool, nn.Identity, nn.Identity]
    images = torch.randn(32, 64, 12, 13, generator=generator).to(memory_format=torch.channels_last)
    assert images.numel() >= 2**18
    seed_gradient = torch.randn(32, 64, 6, 6, generator=generator)
    results = []
    for model, dtype in ((plain.double(), torch.float64), (fused, torch.float32)):
        x = images.to(dtype).requires_grad_()
        y = model.train()(x)
        gradients = torch.autograd.grad(y, [x, *model.parameters()], seed_gradient.to(dtype))
        results.append([y, *gradients, model[0].running_mean, model[0].running_var])
    for ours, wanted in zip(results[1], results[0], strict=True):
        assert distance(ours.detach(), wanted.detach()) < (1e-5 if negative else 1e-6)


def test_random_delivery_is_uniform() -> None:
    seeds = range(2000)
    everybody = Updates(*(torch.ones(2000, 10, dtype=torch.bool) for _ in range(5)))
    sent = Sent(3, ServerState(*(torch.zeros(2000, 1) for _ in range(3))), everybody, (None, None))
    chosen = random_delivery(list(seeds), 10, 4)(sent)
    assert chosen.sum(1).unique().tolist() == [4]
    # 2,000 draws of probability 0.4: 4.5 standard deviations of a frequency.
    assert (chosen.float().mean(0) - 0.4).abs().max() < 4.5 * (0.4 * 0.6 / 2000) ** 0.5


def test_learning_learns(digits: Dataset) -> None:
    config = LearningConfig(data="digits")
    points = learning_curve(Federation(config, digits), [0, 1], rounds=8, evaluate_every=3)
    assert [point.rounds for point in points] == [3, 6, 8]
    assert min(points[-1].accuracy) > 0.75  # about 0.9 for either seed


@pytest.mark.parametrize("training", [True, False])
def test_pooling_inside_batch_norm_changes_nothing(training: bool) -> None:
    model = build_model("cnn", (3, 16, 16), 10, seed=0)
    draw = torch.Generator().manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):  # falling lines too
            nn.init.normal_(layer.weight, generator=draw)
            nn.init.normal_(layer.bias, generator=draw)
            nn.init.normal_(layer.running_mean, generator=draw)  # type: ignore[arg-type]
    first = [type(layer).__name__ for layer in batchable(model).features[:4]]
    assert first == ["MatmulConv2d", "PooledBatchNorm", "Identity", "ReLU"]
    images = torch.randn(20, 3, 16, 16, generator=draw)
    labels = torch.arange(20) % 10
    found = []
    for each in (model, batchable(model)):
        each.train(training)
        loss = F.cross_entropy(each(images), labels)
        found.append(torch.autograd.grad(loss, list(each.parameters())))
    assert len(found[0]) == len(found[1])
    for name, plain, pooled in zip(dict(model.named_parameters()), *found, strict=True):
        # A convolution's bias in front of batch norm has no gradient but rounding.
        floor = 1e-6 if name.endswith("bias") else 0.0
        assert (plain - pooled).abs().max() <= 1e-4 * plain.abs().max() + floor, name
