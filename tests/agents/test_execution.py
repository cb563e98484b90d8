"""Execution is decentralised: own parameters, own observation, nothing else."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfade.agents import (
    ClientNetwork,
    QmixPolicy,
    Trainer,
    check_same_training,
    load_checkpoint,
    load_policy_checkpoint,
    train,
)
from fedfade.agents.trained import agents_for, scope_of, trained_agents
from fedfade.allocation import Action, View, play_round
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.uplink import Progress, observe, scenario_from_config, start_round

# One client as a program of its own: NumPy, its own parameters, its own observations by line, a
# line a slot. It holds what it decides by itself.
CLIENT = """
import json, sys
import numpy as np
layers = np.load(sys.argv[1])
depth = len(layers.files) // 2
for slot, line in enumerate(sys.stdin):
    if slot % int(sys.argv[2]):
        print(held, flush=True)
        continue
    x = np.array(json.loads(line), dtype=np.float32)
    for layer in range(depth):
        x = x @ layers[f"w{layer}"] + layers[f"b{layer}"]
        if layer < depth - 1:
            x = np.maximum(x, 0)
    held = json.dumps(x.argmax(-1).tolist())
    print(held, flush=True)
"""


class Distributed:
    """A policy whose every client is a process; only its own row goes down its pipe."""

    name = "distributed"
    scope = "local"
    observes = True

    def __init__(
        self, networks: list[ClientNetwork], folder: Path, hold: int = 1, hops: bool = False
    ) -> None:
        self.clients, self.hop_subbands = [], hops
        for client, network in enumerate(networks):
            arrays = {f"w{i}": w.numpy() for i, w in enumerate(network.weights)}
            arrays |= {f"b{i}": b.numpy() for i, b in enumerate(network.biases)}
            np.savez(folder / f"client-{client}.npz", **arrays)
            own = str(folder / f"client-{client}.npz")
            command = [sys.executable, "-c", CLIENT, own, str(hold)]
            pipe = subprocess.PIPE
            self.clients.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))

    def begin(self, view: View) -> None:
        pass

    def act(self, view: View, memory: None) -> Action:
        answers = []
        for client, process in enumerate(self.clients):
            process.stdin.write(json.dumps(view.observation[:, client].tolist()) + "\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
        choice = torch.tensor(answers).T
        levels = view.scenario.levels
        return Action(choice // levels, choice % levels)

    def close(self) -> None:
        for process in self.clients:
            process.stdin.close()
            process.stdout.close()
            process.wait()


RANKS = [
    "qmix.share_parameters=true",
    "qmix.client_id=false",
    "qmix.state=order",
    "allocation.observe=[order, slack, fading]",
]
"""Clients are told apart by rank alone."""


@pytest.mark.parametrize(
    ("kind", "hold", "hops"),
    [("own", 1, False), ("shared", 1, False), ("shared", 5, True), ("ranked", 5, True)],
)
def test_one_process_per_agent_takes_the_same_actions(
    kind: str, hold: int, hops: bool, overrides: list[str], tmp_path: Path
) -> None:
    held = [f"qmix.hold_slots={hold}", f"qmix.hop_subbands={hops}"]
    kinds = {"own": [], "shared": ["qmix.share_parameters=true"], "ranked": RANKS}
    config = load_config("small-cell", [*overrides, *held, *kinds[kind]])
    trainer = Trainer(config)
    for _ in range(3):
        trainer.play_batch()
    agents = trainer.learner.agents
    round_, keys = trainer.rounds.round(3), torch.arange(20)
    together = play_round(QmixPolicy(agents, config), trainer.scenario, round_, keys, record=True)
    networks = [ClientNetwork(agents, client) for client in range(trainer.scenario.clients)]
    distributed = Distributed(networks, tmp_path, hold, hops)
    try:
        apart = play_round(distributed, trainer.scenario, round_, keys, record=True)
    finally:
        distributed.close()
    assert torch.equal(together.history.band, apart.history.band)
    assert torch.equal(together.history.level, apart.history.level)
    assert together.history.level.unique().numel() > 1


def test_nobody_elses_observation_matters(tiny: Config) -> None:
    agents = Trainer(tiny).learner.agents
    observation = torch.randn(4, 50, agents.weights[0].shape[1])
    changed = observation.clone()
    changed[[0, 1, 3]] += 1.0
    assert torch.equal(agents(observation)[2], agents(changed)[2])


@pytest.mark.parametrize("changes", [[], RANKS])
def test_agents_from_a_checkpoint_act_as_those_trained(
    changes: list[str], overrides: list[str], tmp_path: Path
) -> None:
    tiny = load_config("small-cell", [*overrides, *changes])
    trainer = train(tiny, tmp_path)
    policy = load_policy_checkpoint(tmp_path, tiny)
    assert (policy.name, policy.scope) == ("qmix", "local")
    round_, keys = trainer.rounds.round(trainer.batch), torch.arange(20)
    mine = play_round(QmixPolicy(trainer.learner.agents, tiny), trainer.scenario, round_, keys)
    loaded = play_round(policy, trainer.scenario, round_, keys)
    assert torch.equal(mine.bits, loaded.bits)


def test_agents_hold_as_they_were_trained_to(overrides: list[str], tmp_path: Path) -> None:
    """Whatever the configuration says that they are compared under."""
    held = ["qmix.hold_slots=5", "qmix.hop_subbands=true"]
    trainer = train(load_config("small-cell", [*overrides, *held]), tmp_path)
    round_, keys = trainer.rounds.round(trainer.batch), torch.arange(20)
    found = []
    for says in ([], held, ["qmix.hold_slots=3"]):
        config = load_config("small-cell", [*overrides, *says])
        policy = load_policy_checkpoint(tmp_path, config)
        scenario = scenario_from_config(config, trainer.scenario.payload_bits)
        found.append(play_round(policy, scenario, round_, keys, record=True).history)
    for other in found[1:]:
        assert all(torch.equal(*both) for both in zip(found[0], other, strict=True))
    logical = (found[0].band - torch.arange(12)[:, None, None]) % 2
    for first in (0, 5, 10):
        same = logical[first : first + 5] == logical[first]
        assert bool(same.all())
    with pytest.raises(UserError, match=r"qmix.hold_slots is 5 there and 1 here"):
        check_same_training(load_checkpoint(tmp_path), load_config("small-cell", overrides))


def test_agents_go_by_the_algorithm_that_trained_them(tiny: Config, tmp_path: Path) -> None:
    train(tiny, tmp_path)
    config = load_config("small-cell", [f"allocation.checkpoint={tmp_path}"])
    assert trained_agents(config) == {"qmix": tmp_path}
    index = tmp_path / "checkpoint.json"
    index.write_text(index.read_text().replace('"algorithm": "qmix"', '"algorithm": "mappo"'))
    assert trained_agents(config) == {"mappo": tmp_path}
    assert load_policy_checkpoint(tmp_path, tiny).name == "mappo"


def test_seeing_who_finished_needs_feedback(overrides: list[str]) -> None:
    observe = "allocation.observe=[fading,remaining,slots_left,finished]"
    config = load_config("small-cell", [*overrides, observe])
    policy = QmixPolicy(Trainer(config).learner.agents, config)
    assert policy.scope == "feedback"
    assert not policy.gradient_aware


@pytest.mark.parametrize(
    ("observed", "hidden", "scope"),
    [
        ("alphas, fading, remaining, schedule, time_to_finish", "", "local"),
        ("order, slack", "", "local"),
        ("fading, finished", "", "feedback"),
        ("order, finished_order", "", "feedback"),
        ("order, order_fading", "", "csi"),
        ("fading, others_fading", "", "csi"),
        ("finished, others_fading", "", "csi"),
        ("fading, others_fading", "fading", "local"),
    ],
)
def test_agents_declare_what_they_are_told(observed: str, hidden: str, scope: str) -> None:
    config = load_config(
        "paper", [f"allocation.observe=[{observed}]", f"allocation.hide=[{hidden}]"]
    )
    assert scope_of(config) == scope


@pytest.mark.parametrize("hops", [False, True])
def test_agents_that_send_at_full_power_or_not_at_all(make_round, hops: bool) -> None:
    """Whatever the powers of others are in that scenario."""
    changes = ("radio.slots=6", "learning.payload_bits=3e5")
    scenario, round_ = make_round(18, 5, overrides=changes)
    own = [*changes, "qmix.power=binary", f"qmix.hop_subbands={hops}", "qmix.hidden=[8]"]
    config = load_config("paper", own)
    agents, g = agents_for(config), torch.Generator().manual_seed(0)
    assert agents.sizes[-1] == 5
    for parameter in agents.parameters():
        parameter.normal_(generator=g)
    keys = torch.arange(3)
    played = play_round(QmixPolicy(agents, config), scenario, round_, keys, record=True).history
    progress, seen = start_round(scenario, 3), replace(scenario, hop_subbands=hops)
    silent = []
    for slot in range(6):
        values = agents(observe(seen, round_, progress, slot).transpose(0, 1))
        choice = values.argmax(-1).T
        sends = (choice < 4) & ~progress.finished
        band = (choice + slot) % 4 if hops else choice
        assert torch.equal(played.level[slot] == scenario.full_level, sends)
        assert torch.equal(played.level[slot] == scenario.silent_level, ~sends)
        assert torch.equal(played.band[slot][sends], band[sends])
        progress = Progress(played.remaining_bits[slot])
        silent.append(choice == 4)
    assert 0 < int(torch.stack(silent).sum()) < 180
