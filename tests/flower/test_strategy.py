"""The wrapped strategy against fedfade's own engine, and what it does with odd replies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfade.config import Config, changed, load_config
from fedfade.errors import UserError
from tests.conftest import TINY

pytest.importorskip("flwr", reason="needs fedfade[flower]")

from flwr.app import Array, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
    Result,
)

from fedfade.agents import AgentNetworks, QmixPolicy
from fedfade.allocation import load_policy, play_round
from fedfade.experiments import Comparison, RunFolder, SideBySide, read_rows
from fedfade.experiments.uploads import Uplink
from fedfade.flower import FederatedTask, UplinkMod, WirelessStrategy, choose_policy
from fedfade.flower.decisions import (
    Decisions,
    OneAgent,
    Seen,
    decide,
    play_with_clients,
    policy_of_client,
)
from fedfade.flower.records import REPORT, is_running_statistic, payload_bits
from fedfade.uplink import Bill, Progress, observation_width, start_round
from tests.flower.in_process import InProcessGrid

CLIENTS, ROUNDS = 4, 3


@pytest.fixture(scope="module")
def config() -> Config:
    """100 slots for a real payload of 3 Mbit: some clients finish, some do not."""
    changes = [
        "learning.payload_bits=auto",
        "radio.slots=100",
        "run.seeds=1",
        "run.evaluate_every=1",
    ]
    return load_config("paper", [*TINY, *changes])


@pytest.fixture(scope="module")
def task(config: Config) -> FederatedTask:
    return FederatedTask(config)


def grid_of(
    task: FederatedTask, policy: str = "random", uplink: Config | None = None
) -> InProcessGrid:
    app = ClientApp(mods=[UplinkMod(uplink=uplink)])
    app.train()(task.train)
    return InProcessGrid(app, CLIENTS, {"policy": policy})


def run(strategy: WirelessStrategy, grid: InProcessGrid, task: FederatedTask) -> Result:
    return strategy.start(grid, task.initial_arrays(), ROUNDS, evaluate_fn=task.evaluate)


def fedavg() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize("policy", ["max-sum-rate", "block-fading-schedule", "perfect"])
def test_same_model_as_fedfades_own_engine(
    policy: str, weighting: str, config: Config, tmp_path: Path
) -> None:
    """Same seed, policy, clients: same deliveries, and the same model to rounding.

    1e-5 is a hundred times float32's resolution: the two average in a different order (weights
    there, updates here) and local training passes the difference on.
    """
    allocation = config.allocation.model_copy(update={"policies": [policy]})
    learning = config.learning.model_copy(update={"weighting": weighting})
    config = config.model_copy(update={"allocation": allocation, "learning": learning})
    task = FederatedTask(config)
    strategy = WirelessStrategy(fedavg(), config, policy)
    result = run(strategy, grid_of(task), task)
    ours = _final_state(config, tmp_path)
    theirs = task.state(result.arrays)
    for name in ("parameters", "buffers"):
        one, other = getattr(theirs, name), getattr(ours, name)
        assert torch.linalg.vector_norm(one - other) <= 1e-5 * torch.linalg.vector_norm(other)
    rows = read_rows(tmp_path / "run" / "metrics.csv")
    for row, report in zip(rows, strategy.history, strict=True):
        assert row.delivered_clients == " ".join(map(str, report.delivered))
        assert report.bits_sent == pytest.approx(row.bits_sent, rel=1e-6)
        assert report.bits_wasted == pytest.approx(row.bits_wasted, rel=1e-6, abs=1)
        measured = result.evaluate_metrics_serverapp[report.round]["accuracy"]
        assert measured == pytest.approx(row.accuracy, abs=2 / 360)  # a test image or two


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize(
    ("codec", "slots", "partial"),
    [
        ("int8", 12, False),
        ("int4", 12, False),
        ("topk", 12, False),
        ("lowrank", 12, False),
        ("float16", 50, False),
        ("int8-progressive", 8, True),
        ("topk-progressive", 4, True),
    ],
)
def test_encoded_updates_make_the_engines_model(
    codec: str, slots: int, partial: bool, feedback: bool, config: Config, tmp_path: Path
) -> None:
    """Mod and strategy send what the engine counts, byte by byte, and remember what it does.

    Some deliver and some do not, so what is left is kept by some and replaced by others.
    A value on the edge of two levels may fall on the other side after a model differs in its last
    bits; with one level off in a hundred thousand, updates still agree to 1e-5 of the model.
    """
    changes = {"codec": codec, "error_feedback": feedback, "count_partial": partial}
    config = coded(config, **changes, codec_fraction=0.1)
    allocation = config.allocation.model_copy(update={"policies": ["random"]})
    radio = config.radio.model_copy(update={"slots": slots})
    config = config.model_copy(update={"allocation": allocation, "radio": radio})
    task = FederatedTask(config)
    sizes = []
    grid = grid_of(task, uplink=config)

    def weigh(reply: Message) -> Message:
        arrays = [a for record in reply.content.array_records.values() for a in record.values()]
        sizes.append(sum(array.numpy().nbytes for array in arrays))
        return reply

    grid.tamper = weigh
    strategy = WirelessStrategy(fedavg(), config, "random")
    theirs = task.state(run(strategy, grid, task).arrays)
    assert {8 * size for size in sizes} == {task.federation.wire.bits}
    ours = _final_state(config, tmp_path)
    for name in ("parameters", "buffers"):
        one, other = getattr(theirs, name), getattr(ours, name)
        assert torch.linalg.vector_norm(one - other) <= 1e-5 * torch.linalg.vector_norm(other)
    rows = read_rows(tmp_path / "run" / "metrics.csv")
    delivered = [" ".join(map(str, report.delivered)) for report in strategy.history]
    assert [row.delivered_clients for row in rows] == delivered
    assert 0 < sum(len(report.delivered) for report in strategy.history) < CLIENTS * ROUNDS
    assert partial == any(share < 1 for _, share in strategy._counted.values())
    for row, report in zip(rows, strategy.history, strict=True):
        assert report.bits_wasted == pytest.approx(row.bits_wasted, rel=1e-6, abs=1)


def coded(config: Config, **changes: object) -> Config:
    learning = config.learning.model_copy(update=changes)
    return config.model_copy(update={"learning": learning})


def test_a_reply_that_is_not_encoded_as_agreed_is_refused(config: Config) -> None:
    int8, int4 = (coded(config, codec=name) for name in ("int8", "int4"))
    for mods, uplink, sentence in (
        (None, int8, "no reply can be read: it is not encoded: UplinkMod"),
        (int4, int8, "no reply can be read: it is not encoded by learning.codec = int8"),
    ):
        task = FederatedTask(uplink)
        with pytest.raises(UserError, match=sentence):
            run(WirelessStrategy(fedavg(), uplink, "perfect"), grid_of(task, uplink=mods), task)
    # A client that encodes though nobody asked it to has nothing to send.
    task, strategy = FederatedTask(config), WirelessStrategy(fedavg(), config, "perfect")
    run(strategy, grid_of(task, uplink=int8), task)
    assert all("WirelessStrategy" in line for r in strategy.history for line in r.left_out)
    assert [len(report.left_out) for report in strategy.history] == [CLIENTS] * ROUNDS


def test_payloads_of_their_own(config: Config) -> None:
    """Factors multiply what each client sends; a light one gets through, a heavy one does not."""
    config = coded(config, payload_factors=[0.05, 100.0, 0.05, 100.0])
    task = FederatedTask(config)
    strategy = WirelessStrategy(fedavg(), config, "block-fading-schedule", decide="client")
    run(strategy, grid_of(task, "block-fading-schedule"), task)
    assert {client for r in strategy.history for client in r.delivered} == {0, 2}


def _final_state(config: Config, folder: Path):
    """The engine's model after the last round."""
    states = []
    comparison = Comparison(config, torch.device("cpu"))
    original = comparison.federation.average

    def average(*arguments):
        states.append(original(*arguments))
        return states[-1]

    comparison.federation.average = average  # type: ignore[method-assign]
    run_folder = RunFolder(folder / "run", config, torch.device("cpu"))
    with run_folder.open():
        SideBySide([comparison], [run_folder]).run(lambda done, doing: None)
    return states[-1]


@pytest.mark.parametrize(
    "policy",
    [
        "random",
        "max-individual-rate",
        "block-fading-schedule",
        "block-fading-schedule-feedback",
        "wrap-around-age",
    ],
)
def test_clients_decide_as_the_server_would(policy: str, config: Config, task) -> None:
    histories, models = [], []
    for place in ("server", "client"):
        strategy = WirelessStrategy(fedavg(), config, policy, decide=place)
        models.append(run(strategy, grid_of(task, policy), task).arrays)
        histories.append(strategy.history)
    for one, other in zip(*histories, strict=True):
        assert one._replace(exchanges=0) == other._replace(exchanges=0)
        assert one.exchanges == 0
        assert 2 <= other.exchanges <= 8  # far below the bound of one a slot
    for name in models[0]:
        assert np.array_equal(models[0][name].numpy(), models[1][name].numpy())


ON_CLIENTS = ["wrap-around-schedule", "wrap-around-choice", "block-fading-schedule-feedback"]


@pytest.mark.parametrize(("link", "payload"), [("shannon", 2e6), ("nr", 5e5)])
@pytest.mark.parametrize("name", ON_CLIENTS)
def test_unequal_clients_decide_as_the_server_would(
    name: str, link: str, payload: float, make_round
) -> None:
    """Some have all to send, some a quarter, some nothing."""
    small = ("radio.slots=60", f"learning.payload_bits={payload}", f"radio.link={link}")
    scenario, round_ = make_round(12, 4, episodes=1, overrides=small)
    share = torch.tensor([[1.0, 0.0, 0.25, 0.0, 0.25, 1.0, 0.0, 0.0, 1.0, 0.5]])
    start, keys = Progress(scenario.payload_bits * share), torch.zeros(1, dtype=torch.int64)
    policy = load_policy(name)

    def ask(questions: list[Seen]) -> dict[int, Decisions]:
        return {seen.client: decide(policy, scenario, seen) for seen in questions}

    found, _ = play_with_clients(policy, scenario, round_, keys, start, ask)
    wanted = play_round(policy, scenario, round_, keys, start=start)
    assert torch.equal(found.bits, wanted.bits)
    assert torch.equal(found.finish_slot, wanted.finish_slot)
    assert 5 < int(wanted.delivered.sum()) < 10  # four have nothing to send


@pytest.mark.parametrize("name", ON_CLIENTS)
@pytest.mark.parametrize("quorum", [(10, 10), (7, 7), (10, 5)])
def test_late_clients_decide_as_the_server_would(
    name: str, quorum: tuple[int, int], make_round
) -> None:
    """Some are late, one for good, and rounds may end early."""
    small = ("radio.slots=30", "learning.payload_bits=8e5")
    scenario, round_ = make_round(25, 4, episodes=1, overrides=small)
    scenario = replace(scenario, quorum=quorum)
    round_ = round_._replace(ready_slot=torch.tensor([[0, 5, 0, 10, 2, 0, 30, 0, 0, 0]]))
    start, keys = start_round(scenario, 1), torch.zeros(1, dtype=torch.int64)
    policy = load_policy(name)

    def ask(questions: list[Seen]) -> dict[int, Decisions]:
        return {seen.client: decide(policy, scenario, seen) for seen in questions}

    found, _ = play_with_clients(policy, scenario, round_, keys, start, ask)
    wanted = play_round(policy, scenario, round_, keys)
    for one, other in zip(found[:-1], wanted[:-1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["wrap-around-choice", "deadline-feedback"])
def test_clients_hear_of_antennas_and_other_cells_what_they_need(name: str) -> None:
    """The gain of all antennas is their own fading; of other cells they are told the mean."""
    changes = ["radio.receive_antennas=3", "cell.interference_cells=6", "radio.slots=60"]
    config = load_config("paper", [*changes, "radio.source=gamma", "run.seeds=1"])
    uplink = Uplink(config, 1e6, torch.device("cpu"))
    scenario, round_, keys = uplink.scenario, uplink.round(0), uplink.keys(name, 0)
    start, policy = start_round(scenario, 1), load_policy(name)

    def ask(questions: list[Seen]) -> dict[int, Decisions]:
        return {seen.client: decide(policy, scenario, seen) for seen in questions}

    found, _ = play_with_clients(policy, scenario, round_, keys, start, ask)
    wanted = play_round(policy, scenario, round_, keys, start=start)
    assert torch.equal(found.bits, wanted.bits)
    assert 0 < int(wanted.delivered.sum()) < 10


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_trained_agents_decide_as_on_the_server(
    share: bool, finished: bool, config: Config, tmp_path: Path
) -> None:
    """The client carries one agent's network; the server would have run them all in one batch."""
    from fedfade.agents import train

    parts = [*config.allocation.observe, *(["finished"] if finished else [])]
    allocation = config.allocation.model_copy(update={"observe": parts})
    qmix = config.qmix.model_copy(
        update={
            "episodes": 8,
            "parallel_episodes": 4,
            "hidden": [32],
            "batch_size": 64,
            "share_parameters": share,
        }
    )
    run_config = config.run.model_copy(update={"episodes_per_round": 4, "device": "cpu"})
    radio = config.radio.model_copy(update={"slots": 30})
    changes = {"allocation": allocation, "qmix": qmix, "run": run_config, "radio": radio}
    config = config.model_copy(update=changes)
    train(config, tmp_path / "agents")
    task = FederatedTask(config)
    histories = []
    for place in ("server", "client"):
        policy = str(tmp_path / "agents")
        strategy = WirelessStrategy(fedavg(), config, policy, payload_bits=3e5, decide=place)
        strategy.start(grid_of(task, policy), task.initial_arrays(), num_rounds=2)
        histories.append(strategy.history)
    assert any(report.delivered for report in histories[0])  # so there is somebody to hear of
    for one, other in zip(*histories, strict=True):
        assert one == other._replace(exchanges=0)
        assert other.exchanges >= 2


@pytest.mark.parametrize("hold", [1, 7, 60])
def test_agents_that_hold_decide_as_on_the_server(hold: int, make_round) -> None:
    """Sub-bands hop, the hold need not divide the round, and answers are made of one network."""
    small = ["radio.slots=60", "learning.payload_bits=2e6", "qmix.hidden=[32]"]
    config = load_config("paper", [*small, f"qmix.hold_slots={hold}", "qmix.hop_subbands=true"])
    scenario, round_ = make_round(18, 4, episodes=1, overrides=tuple(small))
    sizes = (scenario.clients, observation_width(scenario), config.qmix.hidden, scenario.actions)
    networks = AgentNetworks(*sizes, [torch.Generator().manual_seed(2)], False, False, None)
    policy = QmixPolicy(networks.requires_grad_(False), config)
    start, keys = start_round(scenario, 1), torch.zeros(1, dtype=torch.int64)

    def ask(questions: list[Seen]) -> dict[int, Decisions]:
        return {n.client: decide(OneAgent(policy, n.client), scenario, n) for n in questions}

    found, exchanges = play_with_clients(policy, scenario, round_, keys, start, ask)
    wanted = play_round(policy, scenario, round_, keys, record=True)
    assert torch.equal(found.bits, wanted.bits)
    assert torch.equal(found.finish_slot, wanted.finish_slot)
    assert wanted.history.band.unique().numel() == scenario.bands
    assert exchanges <= scenario.slots // hold + 2  # each makes a decision final, at least


def test_agents_that_come_with_the_package_go_by_name() -> None:
    """A client carries its own network of them, as of any trained agents."""
    paper = load_config("paper")
    assert isinstance(choose_policy("qmix-plus", paper), QmixPolicy)
    assert isinstance(policy_of_client("qmix-plus", paper, client=3), OneAgent)
    with pytest.raises(UserError, match="subbands is 4 there and 2 here"):
        choose_policy("qmix-plus", load_config("paper", ["radio.subbands=2"]))


def test_late_clients_and_early_ends_are_those_of_a_comparison(
    config: Config, tmp_path: Path
) -> None:
    policy = "block-fading-schedule"
    changes = {"cost.speed_spread": 0.05, "run.deadline": "wait-for-k", "run.deadline_clients": 2}
    config = changed(config, {**changes, "allocation.policies": [policy]})
    task = FederatedTask(config)
    strategy = WirelessStrategy(fedavg(), config, policy)
    run(strategy, grid_of(task), task)
    _final_state(config, tmp_path)
    for row, report in zip(
        read_rows(tmp_path / "run" / "metrics.csv"), strategy.history, strict=True
    ):
        assert row.delivered_clients == " ".join(map(str, report.delivered))
        # A comparison counts the broadcast and the training of the fastest too.
        bill = Bill(config, [config.run.seed], task.federation.values_sent)
        first = bill.seconds(config.run.seed, torch.tensor(0.0))
        assert row.seconds == pytest.approx(float(first) + report.seconds)
    assert any(report.slots < config.radio.slots for report in strategy.history)


def test_metrics_and_clock(config: Config, task: FederatedTask) -> None:
    strategy = WirelessStrategy(fedavg(), config, "max-sum-rate", local_s=0.5)
    result = run(strategy, grid_of(task), task)
    for number, metrics in result.train_metrics_clientapp.items():
        report = strategy.history[number - 1]
        assert metrics["uplink-delivered"] == len(report.delivered)
        assert metrics["uplink-trained"] == CLIENTS
        assert metrics["uplink-seconds"] == pytest.approx(0.5 + 0.002 * report.slots)
        assert "train-loss" in metrics  # the wrapped strategy's own
    assert strategy.clock_s == pytest.approx(sum(r.seconds for r in strategy.history))


def test_the_user_says_which_arrays_are_not_trained(config: Config, task: FederatedTask) -> None:
    """Clients know of running statistics alone, so their norm counts what the server leaves out."""

    def also_the_first_layer(name: str) -> bool:
        return is_running_statistic(name) or name.startswith("features.0")

    strategy = WirelessStrategy(fedavg(), config, "perfect", is_buffer=also_the_first_layer)
    run(strategy, grid_of(task), task)
    assert [report.refused for report in strategy.history] == [0] * ROUNDS


def test_the_payload_is_the_reply(config: Config, task: FederatedTask) -> None:
    arrays = task.initial_arrays()
    assert payload_bits(_content(arrays)) == task.federation.payload_bits
    sent = WirelessStrategy(fedavg(), config, "perfect")
    run(sent, grid_of(task), task)
    assert sent.history[0].bits_sent == CLIENTS * task.federation.payload_bits
    # A payload that no channel carries: nobody delivers, ever; the model is the first one.
    strategy = WirelessStrategy(fedavg(), config, "max-sum-rate", payload_bits=1e12)
    result = run(strategy, grid_of(task), task)
    assert all(report.delivered == () for report in strategy.history)
    assert all(report.slots == config.radio.slots for report in strategy.history)
    for name, array in result.arrays.items():
        assert np.array_equal(array.numpy(), arrays[name].numpy())


def _content(arrays):
    return RecordDict({"arrays": arrays})


def test_a_client_that_is_not_finite_is_left_out(config: Config, task: FederatedTask) -> None:
    """Its upload takes airtime like any other, its numbers go nowhere."""
    grid = grid_of(task)

    def poison(reply: Message) -> Message:
        if reply.metadata.src_node_id == 699:  # partition 1
            record = reply.content["arrays"]
            name = next(iter(record))
            record[name] = Array(np.full_like(record[name].numpy(), np.nan))
        return reply

    clean = WirelessStrategy(fedavg(), config, "max-sum-rate")
    run(clean, grid_of(task), task)
    grid.tamper = poison
    strategy = WirelessStrategy(fedavg(), config, "max-sum-rate")
    result = run(strategy, grid, task)
    for with_all, without in zip(clean.history, strategy.history, strict=True):
        assert without.not_finite == 1
        assert set(without.delivered) == set(with_all.delivered) - {1}
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_lost_clients_make_no_noise(config: Config, task: FederatedTask) -> None:
    grid = grid_of(task)
    grid.lost = {700, 698}
    strategy = WirelessStrategy(fedavg(), config, "max-individual-rate")
    run(strategy, grid, task)
    for report in strategy.history:
        assert report.trained == 2
        assert set(report.delivered) <= {1, 3}
    everybody = WirelessStrategy(fedavg(), config, "max-individual-rate")
    run(everybody, grid_of(task), task)
    # Without two interferers the others get more through.
    for few, all_ in zip(strategy.history, everybody.history, strict=True):
        assert set(few.delivered) >= set(all_.delivered) & {1, 3}


def test_a_client_lost_while_deciding_stays_silent(config: Config, task: FederatedTask) -> None:
    grid = grid_of(task, "max-individual-rate")
    train = grid.send_and_receive

    def send_and_receive(messages, *, timeout=None):
        messages = list(messages)
        asking = "fedfade.question" in messages[0].content if messages else False
        grid.lost = {699} if asking else set()
        return train(messages, timeout=timeout)

    grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
    strategy = WirelessStrategy(fedavg(), config, "max-individual-rate", decide="client")
    run(strategy, grid, task)
    for report in strategy.history:
        assert report.trained == CLIENTS
        assert 1 not in report.delivered


def test_replies_nobody_can_place_are_refused(config: Config, task: FederatedTask) -> None:
    grid = grid_of(task)
    wrong = {700: {"partition-id": 99}, 699: {"partition-id": 2}, 697: {"update-norm": 1e6}}

    def change(reply: Message) -> Message:
        changes = wrong.get(reply.metadata.src_node_id, {})
        reply.content[REPORT] = ConfigRecord(dict(reply.content[REPORT]) | changes)
        return reply

    grid.tamper = change
    strategy = WirelessStrategy(fedavg(), config, "perfect")
    run(strategy, grid, task)
    assert [report.delivered for report in strategy.history] == [(2,)] * ROUNDS
    assert strategy.history[0].refused == 3
    bare = ClientApp()
    bare.train()(task.train)
    with pytest.raises(UserError, match="UplinkMod"):
        run(WirelessStrategy(fedavg(), config, "perfect"), InProcessGrid(bare, CLIENTS), task)


@pytest.mark.parametrize("decide", ["server", "client"])
def test_the_order_of_mods_is_told(decide, config: Config, task: FederatedTask) -> None:
    """A mod behind ours may change the update; one in front cannot be told from a forger."""

    def clipped(*mods) -> WirelessStrategy:
        app = ClientApp(mods=list(mods))
        app.train()(task.train)
        inner = DifferentialPrivacyClientSideFixedClipping(fedavg(), 0.0, 0.01, CLIENTS)
        strategy = WirelessStrategy(inner, config, "block-fading-schedule", decide=decide)
        run(strategy, InProcessGrid(app, CLIENTS, {"policy": "block-fading-schedule"}), task)
        return strategy

    history = clipped(UplinkMod(), fixedclipping_mod).history
    assert [report.refused for report in history] == [0] * ROUNDS
    assert all(report.delivered for report in history)
    with pytest.raises(UserError, match=r"norm .* reported .*: mods .* behind UplinkMod"):
        clipped(fixedclipping_mod, UplinkMod())


def test_fedprox_is_the_configurations_own(config: Config) -> None:
    """What FedProx sends is what `learning.proximal` does, and it decides where both are given."""

    def model(inner: FedAvg, proximal: float) -> np.ndarray:
        learning = config.learning.model_copy(update={"local_work": 3, "proximal": proximal})
        task = FederatedTask(config.model_copy(update={"learning": learning}))
        result = run(WirelessStrategy(inner, config, "perfect"), grid_of(task), task)
        return np.concatenate([array.numpy().ravel() for array in result.arrays.values()])

    prox = partial(FedProx, fraction_evaluate=0.0)
    wanted = model(fedavg(), 5.0)
    assert np.array_equal(model(prox(proximal_mu=5.0), 0.0), wanted)
    assert np.array_equal(model(prox(proximal_mu=0.0), 5.0), model(fedavg(), 0.0))
    assert not np.array_equal(model(fedavg(), 0.0), wanted)


@pytest.mark.parametrize("strength", [-1.0, float("nan"), "much"])
def test_a_proximal_term_that_is_none_is_refused(strength, task: FederatedTask) -> None:
    with pytest.raises(UserError, match=r"^proximal-mu = .* a number of at least 0"):
        task._as_asked(ConfigRecord({"server-round": 1, "proximal-mu": strength}))


def test_settings_without_effect_are_told(task: FederatedTask, caplog) -> None:
    for _ in range(2):
        task._as_asked(ConfigRecord({"server-round": 1, "clipping_norm": 0.1, "lr": 0.5}))
    assert caplog.messages == [
        "FederatedTask takes no 'lr' from a strategy: set its own configuration."
    ]


ODD = {
    "nan": lambda values: np.full_like(values, np.nan),
    "infinite": lambda values: np.full_like(values, np.inf),
    "enormous": lambda values: np.full_like(values, 1e30),
    "zero": np.zeros_like,
    "wrong shape": lambda values: np.zeros((3, 5), values.dtype),
}


@pytest.mark.parametrize("kind", ODD)
def test_the_round_goes_on_whatever_a_client_sends(kind: str, config: Config, task) -> None:
    """Client 1 sends it in every round; the others are averaged and the report says why not it."""
    grid = grid_of(task)

    def spoil(reply: Message) -> Message:
        if reply.metadata.src_node_id == 699:
            record = reply.content["arrays"]
            name = next(iter(record))
            record[name] = Array(ODD[kind](record[name].numpy()))
            report = dict(reply.content[REPORT])
            report.pop("update-norm")  # a liar would make it fit
            reply.content[REPORT] = ConfigRecord(report)
        return reply

    grid.tamper = spoil
    strategy = WirelessStrategy(fedavg(), config, "perfect")
    result = run(strategy, grid, task)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    for report in strategy.history:
        if kind == "zero":  # numbers like any other
            assert report.delivered == (0, 1, 2, 3)
            assert report.left_out == ()
            continue
        assert report.delivered == (0, 2, 3)
        (line,) = report.left_out
        assert ("node 699: reply refused" if kind == "wrong shape" else "client 1:") in line
        assert ("shaped" if kind == "wrong shape" else "not finite") in line


def test_duplicates_errors_and_silence_are_told_apart(config: Config, task) -> None:
    grid = grid_of(task)
    grid.lost = {698}
    send = grid.send_and_receive

    def send_and_receive(messages, *, timeout=None):
        to = {message.metadata.dst_node_id: message for message in messages}
        replies = list(send(to.values(), timeout=timeout))
        for place, reply in enumerate(replies):
            if reply.metadata.src_node_id == 697:
                trace = "\x1b[36mray::run()\x1b[39m" + "\n File a.py" * 50 + "\nout of\nmemory"
                replies[place] = Message(Error(code=1, reason=trace), reply_to=to[697])
        # Client 0 answers twice; where nobody was asked, nobody answers.
        return [*replies, *(send([to[700]], timeout=timeout) if to else [])]

    grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
    strategy = WirelessStrategy(fedavg(), config, "perfect")
    run(strategy, grid, task)
    for report in strategy.history:
        assert report.delivered == (0, 1)
        error, silent, twice = report.left_out
        assert error.startswith("node 697: error, ...")
        assert error.endswith(" File a.py out of memory")  # the cause, behind a long trace
        assert silent == "node 698: no reply"
        assert twice == "node 700: reply refused, a second reply for partition id 0"


@pytest.mark.parametrize("policy", ["perfect", "max-sum-rate"])
def test_all_clients_gone_and_back(policy: str, config: Config, task: FederatedTask) -> None:
    """Nobody answers in the first round; the next ones go on from the model there was."""
    grid = grid_of(task)
    send, rounds = grid.send_and_receive, []

    def send_and_receive(messages, *, timeout=None):
        rounds.append(1)
        grid.lost = {700, 699, 698, 697} if len(rounds) == 1 else set()
        return send(messages, timeout=timeout)

    grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
    strategy = WirelessStrategy(fedavg(), config, policy)
    run(strategy, grid, task)
    assert strategy.history[0].delivered == ()
    assert len(strategy.history[0].left_out) == 4
    assert [report.trained for report in strategy.history] == [0, 4, 4]


def test_any_strategy_can_be_inside(config: Config, task: FederatedTask) -> None:
    strategy = WirelessStrategy(FedAdam(fraction_evaluate=0.0), config, "max-sum-rate")
    result = run(strategy, grid_of(task), task)
    assert strategy.history[-1].delivered
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_gram_matrix_is_the_engines(config: Config, task: FederatedTask) -> None:
    """What a gradient-aware policy sees is what it sees in `fedfade compare`."""
    seen = []

    class Watcher:
        name, scope, gradient_aware = "watcher", "central", True

        def begin(self, view):
            seen.append(view.inner[0])

        def act(self, view, memory):
            from fedfade.allocation import full_power

            return full_power(view, torch.zeros_like(view.active, dtype=torch.int64))

    run(WirelessStrategy(fedavg(), config, Watcher(), payload_bits=1.0), grid_of(task), task)
    from fedfade.learning import gram

    state = task.federation.start([0])
    for number in range(ROUNDS):
        updates = task.federation.train(state, [0], number)
        inner = gram(updates, state.previous)
        assert torch.allclose(seen[number], inner[0], rtol=1e-3, atol=1e-4 * float(inner.max()))
        state = task.federation.average(state, updates, torch.ones(1, CLIENTS, dtype=torch.bool))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"policy": "genie"}, "only a bound"),
        ({"policy": "no-such"}, "policy = 'no-such'"),
        ({"policy": "max-sum-rate", "decide": "client"}, "decide = 'client'"),
        ({"policy": "perfect", "decide": "client"}, "decide = 'client'"),
        ({"policy": "random", "decide": "nobody"}, "decide = 'nobody'"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, sentence: str, config: Config) -> None:
    with pytest.raises(UserError, match=sentence):
        WirelessStrategy(fedavg(), config, **arguments)


def test_no_more_rounds_than_the_channel_has(config: Config, task: FederatedTask) -> None:
    strategy = WirelessStrategy(fedavg(), config, "random")
    with pytest.raises(UserError, match=r"at most run\.rounds = 3"):
        strategy.start(grid_of(task), task.initial_arrays(), num_rounds=4)


def test_the_code_in_the_docs(task: FederatedTask) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "flower.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    names = {"initial_arrays": task.initial_arrays()}
    exec(code.replace("num_rounds=20", "num_rounds=1"), names)
    grid = grid_of(task)
    counted = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
    grid.app.evaluate()(lambda message, context: Message(counted, reply_to=message))
    names["main"](grid, None)
    assert grid.messages >= CLIENTS


def test_what_flower_does_itself_is_not_set_here(config: Config) -> None:
    with pytest.raises(UserError, match=r"learning\.server = .* under Flower"):
        FederatedTask(coded(config, server="my_rule:Own"))
