"""The wanted figures: their arithmetic, their floors, and the command; nothing about clocks."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedfade.agents import Trainer
from fedfade.bench import floors, targets
from fedfade.bench.stage import Measurement, Stage
from fedfade.config import RadioConfig, load_config
from fedfade.learning import PaperCNN

Command = Callable[..., Any]
CPU = torch.device("cpu")


def flop(layers: list[floors.Layer]) -> float:
    return sum(layer.flop for layer in layers)


def counted(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def test_floor_of_local_training_is_what_pytorch_counts() -> None:
    """Forward and backward of the model itself; images need no gradient.

    With eight colours no row has to be filled up.
    """
    model, images = PaperCNN((8, 32, 32), 10), torch.randn(5, 8, 32, 32)
    layers = floors.local_layers((8, 32, 32), 2, 5, torch.float32)
    assert flop(layers) == 2 * counted(lambda: model(images).sum().backward())


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    stage = Stage(CPU, "fp32", folder=None, full=False)  # type: ignore[arg-type]
    return Trainer(stage.config("qmix.gradients=synthetic"))


def test_floor_of_training_is_what_pytorch_counts(trainer: Trainer) -> None:
    trainer.play_batch()
    trainer.replay.draw_ahead(trainer.learner.updates, 1, trainer.config.qmix.batch_size)
    agents, seen = trainer.learner.agents, trainer.rollout._seen
    assert flop(floors.slot_layers(trainer)) == counted(lambda: agents(seen))
    assert flop(floors.update_layers(trainer)) == counted(trainer.update)


def test_floor_of_the_channel() -> None:
    """3 client-rounds: 60 complex paths at 100 frequencies in 256 slots, 8 operations each."""
    layers = floors.fading_layers(RadioConfig(), 3)
    assert flop(layers) == 3 * 8 * 60 * 100 * 256


def test_bare_products_compute_them() -> None:
    layer = floors.Layer((2, 3, 4), 5, learns=True, passes_on=True)
    assert counted(floors.products([layer], CPU)) == layer.flop == 3 * 2 * 2 * 3 * 4 * 5


def test_the_papers_training_adds_up() -> None:
    """1,500 batches of 250 slots and 166.7 updates, 14 restarts of the federated task."""
    config = load_config("paper")
    assert 1500 * targets.updates_in_a_batch(config) == pytest.approx(250_000)
    found = targets.Training(
        start=0.0,
        batch=60.0,
        task=500.0,
        parts={},
        floors={"slot": 0.01, "update": 0.06},
        calls={"slot": 250, "update": 500 / 3},
        batches=1500,
        tasks=15,
    )
    assert found.whole_s == pytest.approx(90 + 7)
    assert found.floor == pytest.approx(2.5 + 10)


def test_small_sizes_are_compared_with_nothing() -> None:
    small = Stage(CPU, "fp32", folder=None, full=False)  # type: ignore[arg-type]
    assert small.size(5.0, None) is None
    assert Stage(CPU, "fp32", folder=None).size(5.0, None) == 5.0  # type: ignore[arg-type]


def test_every_figure_on_a_cpu(fedfade: Command) -> None:
    answer = fedfade("bench", "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    assert found["failed"] == {}
    assert list(found["figures"]) == list(found["took_s"]) == list(targets.FIGURES)
    assert found["data"] == "digits"
    assert not found["full_size"]
    for figures in found["figures"].values():
        assert figures
        for figure in figures:
            assert not {"wanted", "reached"} & set(figure)
            assert figure["name"].strip() in answer.out
    one, more = found["figures"]["training"][0], found["figures"]["seeds"][0]
    assert one["share_of_floor"] == pytest.approx(one["floor"] / one["measured"], rel=1e-3)
    assert more["unit"] == "x"


def test_a_figure_that_fails_leaves_the_others(
    fedfade: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(stage: Stage) -> Iterable[Measurement]:
        yield Measurement("first half", "ms", 1.0)
        raise RuntimeError("CUDA [went] away\nsomewhere")

    monkeypatch.setitem(targets.FIGURES, "round", broken)
    answer = fedfade("bench", "--device", "cpu", "--json", "--only", "round,channel")
    found = json.loads(answer.out.splitlines()[-1])
    assert answer.code == 0
    assert found["failed"] == {"round": "RuntimeError: CUDA [went] away somewhere"}
    assert [f["name"] for f in found["figures"]["round"]] == ["first half"]
    assert [f["unit"] for f in found["figures"]["channel"]] == ["client-rounds/s"]
    assert "round failed: RuntimeError: CUDA [went] away somewhere" in answer.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only", "rounds"], "--only = 'rounds' is not allowed: it must be some of training,"),
        (["--device", "tpu"], "--device = 'tpu' is not allowed: it must be auto, cpu or cuda."),
        (["--device", "cpu", "train"], "'cpu' is not allowed: it must be after the command train."),
        (["--precision", "fp8", "--device", "cpu"], "it must be one of fp32, tf32, bf16."),
    ],
)
def test_bad_options(fedfade: Command, words: list[str], sentence: str) -> None:
    answer = fedfade("bench", *words)
    assert answer.code == 2
    assert sentence in answer.err
