"""Settings that others make idle: the table names them all, and none that does something."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import pytest
import torch

from fedfade.agents import Trainer
from fedfade.config import Config, RadioConfig, changed, idle, load_config
from fedfade.config.idle import IDLE
from fedfade.learning import Federation, learning_curve, load_data
from fedfade.radio import Cell, Channel, OtherCells, load_link, sample_drops, sinr
from fedfade.storage import write_npz
from fedfade.uplink.cost import ready_slots, training_seconds

SMALL = ["radio.slots=6", "learning.clients=3", "learning.data=digits", "run.rounds=4"]
TRAINED = [
    *SMALL, "qmix.gradients=synthetic", "qmix.hidden=[8]", "qmix.batch_size=20", "run.device=cpu",
    "qmix.parallel_episodes=8", "qmix.episodes=32", "qmix.update_every=8", "qmix.target_every=16",
    "qmix.replay_size=200", "qmix.agent_rate=0.01", "run.episodes_per_round=8",
]  # fmt: skip

OTHER = {  # another value of each field, where half of it or its other name will not do
    "radio.cluster_draw": "tr38901", "radio.subband_gain": "centre", "cell.round_s": 0.5,
    "allocation.csi_delay_slots": 2, "qmix.mixer": "vdn", "qmix.optimiser": "adam",
    "qmix.loss": "huber", "qmix.state": "order", "qmix.n_step": 2, "qmix.clip_gradient": 0.01,
    "qmix.explore_decisions": 3,
    "qmix.standardise_rewards": True, "qmix.mask_finished": True, "qmix.mappo.value_hidden": [4],
    "qmix.mappo.entropy_end": 0.5, "run.repeat_fading": True, "learning.data_dir": "elsewhere",
    "learning.error_feedback": True, "learning.server_momentum": 0.5, "cell.ring_spread_db": 3.0,
    "radio.client_antenna_gain_dbi": 3.0, "cell.client_height_m": 3.0,
    "cell.min_distance_m": 200.0, "run.precision": "tf32", "qmix.mappo.gae_lambda": 0.5,
    "cost.speed_spread": 0.5, "run.deadline_clients": 2,
    "radio.receiver": "mrc", "radio.link_overhead": 0.5, "radio.link_delay_slots": 2,
    "radio.nr.table": "256qam", "radio.nr.curves": "no.json", "radio.nr.feedback": "expected",
}  # fmt: skip


def other(config: Config, field: str) -> object:
    value = attrgetter(field)(config)
    if field in OTHER:
        return OTHER[field]
    return value // 2 if isinstance(value, int) else value / 2


def gains(config: Config) -> torch.Tensor:
    """What the uplink sees of radio and cell, and what everybody together on a sub-band is."""
    radio, cell, clients = config.radio, config.cell, config.learning.clients
    places = Cell(cell, radio, clients).trajectory([0, 1], rounds=3)
    drawn = Channel(radio, cell, clients).small_scale([0, 1], [0, 2], [0], places)
    others = OtherCells(cell, radio, clients).levels_w([0, 1], [0, 1], [0, 2], [0])
    seen = [drawn.gain, places.gain_db, others]
    if radio.receive_antennas > 1:
        alike = torch.ones(drawn.gain.shape[:-1])
        gain, direction = drawn
        seen.append(sinr(gain, alike.long(), alike, 1.0, direction, radio.receiver))
    seen.append(rates(radio, 20.0 * drawn.gain[..., 0].flatten(0, 2)))
    return torch.cat([part.flatten() for part in seen])


def rates(radio: RadioConfig, ratio: torch.Tensor) -> torch.Tensor:
    """What the link carries of SINRs [episode, slot, client]."""
    link, found = load_link(radio), []
    state = link.initial.repeat(*ratio[:, 0].shape, 1)
    for slot in range(ratio.shape[1]):
        earlier = max(slot - radio.link_delay_slots, 0) if link.adapts else slot
        chance = torch.full_like(ratio[:, 0], 0.5)
        state, rate = link.send(state, ratio[:, slot], ratio[:, earlier], chance)
        found.append(rate)
    return torch.stack(found)


def agents(config: Config) -> torch.Tensor:
    trainer = Trainer([config], torch.device("cpu"))
    for _ in range(trainer.batches):
        trainer.play_batch()
    return torch.cat([t.flatten() for t in trainer.learner.kept.of(0).values()])


def learned(config: Config) -> torch.Tensor:
    federation = Federation(config.learning, load_data(config.learning))
    points = learning_curve(federation, [0], rounds=2, evaluate_every=1, delivered=2)
    return torch.tensor([point.loss for point in points])


def lateness(config: Config) -> torch.Tensor:
    return torch.cat([training_seconds(config, [0, 1]), ready_slots(config, [0, 1])])


PLACES = {  # what to play, and with which settings, for the fields of a section
    "radio": (gains, [["radio.source=rayleigh", "cell.mobility=ring"],
                      ["radio.link=capped"], ["radio.link=nr"],
                      ["radio.source=gamma", "cell.mobility=ring"],
                      ["radio.source=traces", "cell.mobility=ring"],
                      ["radio.subband_gain=centre"]]),
    "cell": (gains, [["cell.mobility=ring"], ["cell.mobility=redraw"], ["cell.mobility=fixed"],
                     ["radio.source=rayleigh", "cell.mobility=ring"]]),
    "learning": (learned, [["learning.partition=iid"], ["learning.partition=shards"],
                           ["learning.server=adam"], ["learning.server=scaffold"]]),
    "cost": (lateness, [["cost.speeds=speeds.txt"]]),
    "qmix": (agents, [["qmix.algorithm=mappo"], ["qmix.mixer=vdn"], ["qmix.mixer=qplex"],
                      ["qmix.optimiser=adam"], ["allocation.reward.convergence=0"],
                      ["run.episodes_per_round=1", "qmix.layouts=8"]]),
}  # fmt: skip
FIELDS = dict.fromkeys(field for fields, _ in IDLE for field in fields.split())
CASES = [(room, changes) for room, (_, all_changes) in PLACES.items() for changes in all_changes]


@pytest.mark.parametrize(("room", "changes"), CASES)
def test_what_is_called_idle_changes_no_bit(
    room: str, changes: list[str], tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speeds.txt").write_text("100 120 150")
    if "radio.source=traces" in changes:
        paper = load_config("paper", SMALL)
        write_npz(tmp_path / "t.npz", sample_drops(paper.radio, paper.cell, 9, seed=0))
        changes = [*changes, f'radio.traces="{tmp_path / "t.npz"}"']
    base = load_config("paper", [*(TRAINED if room == "qmix" else SMALL), *changes])
    own = ("qmix", "allocation", "run") if room == "qmix" else (room,)
    found = {f: other(base, f) for f in FIELDS if f.startswith(own) and any(idle(base, [f]))}
    assert found
    play: Callable[[Config], torch.Tensor] = PLACES[room][0]
    assert torch.equal(play(changed(base, found)), play(base)), found


HEARD = [field for field in FIELDS if field.startswith(("radio", "cell"))]


@pytest.mark.parametrize("field", [field for field in HEARD if field != "radio.nr.curves"])
def test_what_is_not_called_idle_does_something(field: str) -> None:
    where = {"cell.ring": "cell.mobility=ring", "cell.interference": "cell.interference_cells=2"}
    where |= {"radio.receiver": "radio.receive_antennas=2", "radio.capped": "radio.link=capped"}
    where |= {"radio.nr": "radio.link=nr", "radio.link_": "radio.link=nr"}
    base = load_config("paper", [*SMALL, *(where[k] for k in where if field.startswith(k))])
    assert not any(idle(base, [field]))
    assert not torch.equal(gains(changed(base, {field: other(base, field)})), gains(base))


def test_every_row_is_tried() -> None:
    cases = [changes for _, changes in CASES if "radio.source=traces" not in changes]
    bases = [load_config("paper", [*TRAINED, *changes]) for changes in cases]
    tried = {field for field in FIELDS for base in bases if any(idle(base, [field]))}
    assert FIELDS.keys() - tried == {"run.precision"}  # on a CPU, tf32 alone is idle
    assert any(idle(load_config("paper", ["run.precision=tf32", "run.device=cpu"]), FIELDS))
    base = bases[-1]
    assert not torch.equal(agents(base), agents(changed(base, {"qmix.agent_rate": 0.02})))


def test_a_user_is_told(fedfade, tmp_path) -> None:
    words = ("partition", "--data", "digits", "--clients", 2, "--alpha", 5)
    told = fedfade(*words, "--set", "learning.partition=iid").err
    assert told == "learning.alpha has no effect while learning.partition is iid.\n"
    assert fedfade(*words).err == ""
    preset = tmp_path / "mine.yaml"
    preset.write_text("radio: {clusters: 4, source: gamma}")  # what a file says, its user said
    tiny = [
        word for change in (*SMALL, "run.rounds=1", "run.seeds=1") for word in ("--set", change)
    ]
    answer = fedfade("compare", preset, "--policies", "random", "--out", tmp_path / "out", *tiny)
    assert answer.code == 0
    assert "radio.clusters has no effect while radio.source is gamma.\n" in answer.err
    report = (tmp_path / "out" / "report.html").read_text()
    assert "fading gamma" in report
    assert "clusters" not in report.partition("<table")[0]


def test_a_sweep_tells_once(fedfade, tmp_path, monkeypatch) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "preset: paper\ngrid: {radio.source: [gamma, clustered], radio.clusters: [4, 5]}"
    )
    monkeypatch.setattr("fedfade.experiments.sweep.run_sweep", lambda *given: {})
    err = fedfade("sweep", path, "--out", tmp_path / "out").err
    assert err.count("radio.clusters has no effect while radio.source is gamma.\n") == 1
