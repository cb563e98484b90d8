"""The whole configuration space: what is valid runs, what is not is one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedfade.agents import Trainer
from fedfade.config import Config, config_from_tree, render_config
from fedfade.errors import UserError
from fedfade.experiments import Comparison, RunFolder, SideBySide
from fedfade.storage import write_npz
from tests.reliability import EXAMPLES
from tests.reliability.configurations import Tree, configurations
from tests.reliability.loaders import one_sentence


def checked(tree: Tree) -> Config:
    """The configuration, or no example at all where the tree's cross-checks refuse it."""
    try:
        config = config_from_tree(tree)
    except UserError as error:
        one_sentence(error)
        assume(False)
    return config


QUICK = settings(
    max_examples=12 * EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """So few that an epoch is over in a moment."""
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "few.npz"
    images = random.integers(0, 255, (60, 8, 8, 1), dtype=np.uint8)
    write_npz(path, {"images": images, "labels": np.arange(60) % 3})
    return str(path)


@QUICK
@given(tree=configurations())
def test_every_valid_configuration_compares(tree: Tree, few_images: str, tmp_path_factory) -> None:
    """Two rounds of every policy; what is measured is finite, or said to be not measured."""
    tree["run"] |= {"rounds": 2, "evaluate_every": 1}
    tree["learning"]["data"] = few_images
    config = checked(tree)
    cpu = torch.device("cpu")
    folder = RunFolder(tmp_path_factory.mktemp("any") / "run", config, cpu)
    try:
        comparison = Comparison(config, cpu)
    except UserError as error:  # what only the data show: too few samples for so many clients
        one_sentence(error)
        return
    with folder.open():
        SideBySide([comparison], [folder]).run(lambda done, doing: None)
    for row in comparison.rows:
        measured = ["delivered", "bits_sent", "bits_wasted", "sum_rate_bps", "reward"]
        for name in measured:
            value = getattr(row, name)
            skipped = row.policy in ("perfect", "genie") and name not in ("delivered",)
            skipped |= name == "reward" and not config.run.train_absent
            assert math.isfinite(value) or skipped, (name, row)
        assert 0 <= row.delivered <= config.learning.clients
        assert row.bits_wasted <= row.bits_sent * (1 + 1e-6) or row.policy == "genie"


@QUICK
@given(tree=configurations())
def test_every_valid_configuration_trains(tree: Tree, few_images: str) -> None:
    """Two batches of episodes; a training that diverges says so in a sentence."""
    tree["learning"]["data"] = few_images
    per_round = tree["run"]["episodes_per_round"]
    tree["run"]["episodes_per_round"] = per_round * tree["qmix"]["parallel_episodes"]
    config = checked(tree)
    try:
        trainer = Trainer(config)
        reports = [trainer.play_batch()[0] for _ in range(2)]
    except UserError as error:
        one_sentence(error)
        return
    assert all(math.isfinite(report.reward) for report in reports)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


def leaves(tree: Tree, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in tree.items():
        found.append((*prefix, name))
        if isinstance(value, dict):
            found += leaves(value, (*prefix, name))
    return found


@settings(max_examples=400 * EXAMPLES, deadline=None, derandomize=True)
@given(place=st.sampled_from(leaves(Config().model_dump())), value=VALUES, key=st.text(max_size=9))
def test_anything_else_is_one_sentence(place: tuple[str, ...], value: Any, key: str) -> None:
    """Any value in any place, and any key beside it."""
    for path in (place, (*place[:-1], key)):
        tree: Tree = {}
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
        try:
            config = config_from_tree(tree)
        except UserError as error:
            one_sentence(error)
        else:
            render_config(config)


@settings(max_examples=60 * EXAMPLES, deadline=None, derandomize=True)
@given(tree=configurations())
def test_valid_configurations_survive_printing(tree: Tree, tmp_path_factory) -> None:
    from fedfade.config import load_config

    config = checked(tree)
    path = tmp_path_factory.mktemp("printed") / "config.yaml"
    path.write_text(render_config(config))
    assert load_config(path) == config
