"""Networks over the set of clients: whatever the numbers, the same weights."""

import math
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from fedfade.agents import (
    QmixPolicy,
    Trainer,
    check_same_training,
    client_network,
    load_checkpoint,
    load_policy_checkpoint,
    train,
)
from fedfade.agents.export import export_agents
from fedfade.agents.networks import spread
from fedfade.agents.sets import SetCritic, SetNetworks, clearing_prices, free_tokens
from fedfade.agents.trained import agents_for
from fedfade.allocation import load_policy, play_round
from fedfade.allocation.assignment import assign
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.experiments import Comparison, RunFolder, SideBySide
from fedfade.uplink import (
    Progress,
    Round,
    Rounds,
    Scenario,
    gradient_source,
    observation_width,
    observe,
    scenario_from_config,
)

SHORT = [
    "allocation.observe=[order, slots_left, fading, remaining, slack]",
    "radio.source=gamma",
    "radio.slots=20",
    "learning.payload_bits=794637",  # a round is as long for it as the paper's is for the whole
    "cell.mobility=redraw",
    "qmix.network=set",
    "qmix.mixer=vdn",
    "qmix.hold_slots=4",
    "qmix.n_step=5",
    "qmix.hidden=[32, 32]",
    "qmix.parallel_episodes=50",
    "qmix.layouts=50",
    "qmix.batch_size=128",
    "qmix.replay_size=10000",
    "qmix.target_every=3200",
    "qmix.average_weights=0.95",
    "run.rounds=5",
    "run.device=cpu",
]


FEEDBACK = ["qmix.network=set-feedback"]
FEEDBACK += ["allocation.observe=[order, slots_left, fading, finished_order, remaining]"]
CSI = ["qmix.network=set-csi", "qmix.hop_subbands=false"]
CSI += ["allocation.observe=[order, slots_left, fading, finished_order, order_fading]"]
KINDS = pytest.mark.parametrize("kind", [[], FEEDBACK, CSI], ids=["set", "feedback", "csi"])


def short(*more: str, clients: int = 4, bands: int = 2) -> Config:
    size = [f"learning.clients={clients}", f"radio.subbands={bands}"]
    return load_config("qmix-hold", [*SHORT, *size, *more])


def some_rounds(config: Config, count: int) -> tuple[Scenario, Round]:
    """Rounds of layouts that nobody trained on."""
    rounds = Rounds(config, gradient_source(config), 1, range(10**6, 10**6 + count))
    return rounds.scenario, rounds.round(0)


def seen_by_all(config: Config, episodes: int = 6) -> tuple[SetNetworks, Tensor]:
    """Networks for a scenario, and what everybody observes in slot 8: [client, episode, width]."""
    torch.manual_seed(3)
    networks = agents_for(config)
    assert isinstance(networks, SetNetworks)
    for parameter in networks.parameters():
        parameter.data.normal_(std=0.3)
    scenario, round_ = some_rounds(config, episodes)
    left = scenario.payload_bits * (torch.rand(episodes, scenario.clients) - 0.2).clamp(min=0)
    return networks, observe(scenario, round_, Progress(left), 8).transpose(0, 1)


def by_hand(networks: SetNetworks, x: list[float], clients: int, bands: int) -> list[float]:
    """One agent's values from lists and loops."""

    def layer(module: torch.nn.Module, x: list[float]) -> list[float]:
        weight, bias = module.weight[0].tolist(), module.bias[0, 0].tolist()
        return [
            b + sum(v * row[o] for v, row in zip(x, weight, strict=True))
            for o, b in enumerate(bias)
        ]

    def relu(x: list[float]) -> list[float]:
        return [max(v, 0.0) for v in x]

    def through(modules: torch.nn.ModuleList, x: list[float]) -> list[float]:
        for module in modules[:-1]:
            x = relu(layer(module, x))
        return layer(modules[-1], x)

    rank = x[:clients].index(1.0)
    need, ahead = x[clients : 2 * clients], x[2 * clients]
    work, left = x[2 * clients + 1 : 3 * clients + 1], x[3 * clients + 1]
    fading = x[3 * clients + 2 : 3 * clients + 2 + bands]
    heard = []
    for place in range(clients):
        after = need[place + 1] if place + 1 < clients else 2.0
        full = max(-2.0, min(2.0, 20 * (work[place] - 1)))
        token = [need[place], work[place], full, after, (place + 1) / bands, 1 / bands]
        heard.append(relu(through(networks.listen, token)))
    columns = list(zip(*heard, strict=True))
    pooled = [sum(column) / bands for column in columns] + [max(column) for column in columns]
    said = [through(networks.judge, one + pooled) for one in heard]
    odds = [
        math.exp(8 * one[0] - 20 * (max(1 - w, 0) + 3 * max(w - 1, 0)))
        for one, w in zip(said, work, strict=True)
    ]
    last = [odd / sum(odds) for odd in odds]
    served = sum(last[rank:])
    stretch = sum(
        share * min(1.0 / max(1e-3, min(1.0, w)), 1.0 + math.log1p(math.exp(one[1] - 1.0)))
        for share, one, w in zip(last, said, work, strict=True)
    )
    row = stretch * bands * sum(share * w for share, w in zip(last, work, strict=True))
    start = stretch * bands * ahead
    end = start + min(1.0, stretch * need[rank])
    here = [band + 1.0 - left for band in range(bands)]
    busy, below = (sum(place < edge for place in here) for edge in (row, start))
    own = x[3 * clients + 2 + bands : networks.width]
    own += [need[rank], left, served, (end + left) % 1.0, stretch, ahead, clients / bands, *pooled]
    (silent,) = through(networks.silence, own)
    values = []
    for band in range(bands):
        edges = [here[band] - start, end - here[band], row - here[band]]
        token = [*edges, *(20 * edge for edge in edges)]
        token += [band - busy, band - below, 2 * busy - 1 - below - band]
        token = [max(-2.0, min(2.0, value)) for value in token] + [fading[band]]
        token += [float(rank % bands == band), band / bands]
        sides = layer(networks.own_side, own), layer(networks.band_side, token)
        met = relu([a + b for a, b in zip(*sides, strict=True)])
        values.append(silent + through(networks.score, met)[0])
    return [*values, silent]


@pytest.mark.parametrize(("clients", "bands"), [(1, 1), (4, 2), (7, 3)])
def test_values_are_those_of_plain_loops(clients: int, bands: int) -> None:
    networks, seen = seen_by_all(short(clients=clients, bands=bands))
    values = networks(seen)
    for client in range(clients):
        for episode in range(3):
            row = seen[client, episode].tolist()
            wanted = torch.tensor(by_hand(networks, row, clients, bands))
            torch.testing.assert_close(values[client, episode], wanted, rtol=1e-4, atol=1e-4)


def test_what_is_free_is_that_of_plain_loops() -> None:
    """Rows of turns in which some have finished, at random times."""
    generator = torch.Generator().manual_seed(0)
    clients, bands, stretch = 7, 3, 1.1
    for _ in range(40):
        need = 0.2 + 0.7 * torch.rand(clients, generator=generator).sort().values
        work, left = need.cumsum(0) / bands, torch.rand(1, generator=generator)
        done = torch.rand(clients, generator=generator) < 0.3
        serves = int((stretch * work < 1.0).sum())  # the first so many
        last = torch.eye(clients)[serves - 1]
        start = [
            stretch * bands * (float(work[n]) - float(need[n]) / bands) for n in range(clients)
        ]
        end = [start[n] + min(1.0, stretch * float(need[n])) for n in range(clients)]
        now = 1.0 - float(left)
        open_ = [n for n in range(serves) if not done[n]]
        holder = {
            band: n for band in range(bands) for n in open_ if start[n] <= band + now < end[n]
        }
        free = [band for band in range(bands) if band not in holder]
        waits = [n for n in open_ if n not in holder.values()]
        late = [n for n in waits if math.floor(start[n] + 1e-4) + now >= end[n]]
        queue = late + [n for n in waits if n not in late]
        for me in range(clients):
            wanted = []
            for band in range(bands):
                far = [2.0, 2.0, 2.0]
                if band in free:
                    card = free.index(band)
                    if me in queue:
                        far[me not in late] = min(2.0, abs(card - queue.index(me)))
                    if card >= len(queue):
                        hand = (card - len(queue)) % max(1, len(open_))
                        behind = sum(n >= me for n in open_) - 1
                        far[2] = min(2.0, abs(hand - behind))
                wanted.append([float(holder.get(band) == me), float(band in free), *far])
            parts = [torch.eye(clients)[me], need, work[:1], work, left, torch.zeros(bands)]
            parts = [part[None, None] for part in (*parts, done.float())]
            found = free_tokens(parts, last[None, None], torch.full((1, 1, 1), stretch))
            torch.testing.assert_close(found[0, 0], torch.tensor(wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("clients", "bands"), [(10, 4), (3, 5), (16, 3)])
def test_prices_clear(clients: int, bands: int) -> None:
    """Where there are enough clients, each sub-band is wanted by one in all. Who wants which
    most is the matching that SciPy finds but for near ties."""
    worth = 300.0 * torch.rand(1, 400, clients, bands, generator=torch.Generator().manual_seed(1))
    beyond = worth - clearing_prices(worth)
    odds = torch.nn.functional.pad(beyond, (0, 1)).softmax(-1)[..., :-1].sum(-2)
    assert clients < bands or ((odds - 1.0).abs() < 0.1).float().mean() > 0.9
    value, choice = beyond.max(-1)
    matched = torch.where(value > 0, choice, -1)
    assert (matched == assign(worth)[0]).all(-1).float().mean() > 0.9


@KINDS
def test_the_same_weights_in_every_size(kind: list[str]) -> None:
    """A network moved to another size is the one made for it."""
    moved, _ = seen_by_all(short(*kind))
    for clients, bands in ((7, 3), (30, 8), (2, 5)):
        made, seen = seen_by_all(short(*kind, clients=clients, bands=bands))
        made.load_state_dict(moved.state_dict())
        moved.resize(clients, seen.shape[-1], bands + 1)
        assert torch.equal(moved(seen), made(seen))
        assert moved(seen).shape == (clients, 6, bands + 1)


@KINDS
def test_clients_numbered_differently_do_the_same(kind: list[str]) -> None:
    config = short(*kind, clients=7, bands=3)
    networks, _ = seen_by_all(config)
    scenario, round_ = some_rounds(config, 20)
    left = scenario.payload_bits * (torch.rand(20, 7) - 0.2).clamp(min=0)
    new = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    renamed = round_._replace(alpha=round_.alpha[:, new], fading=round_.fading[:, :, new])
    values, theirs = (
        networks(observe(scenario, rounds, Progress(bits), 8).transpose(0, 1))
        for rounds, bits in ((round_, left), (renamed, left[:, new]))
    )
    torch.testing.assert_close(values[new], theirs)


@KINDS
def test_an_agent_goes_by_its_own_observation_alone(kind: list[str]) -> None:
    networks, seen = seen_by_all(short(*kind, clients=7, bands=3))
    values = networks(seen)
    for client in range(7):
        others = torch.randn(seen.shape)
        others[client] = seen[client]
        torch.testing.assert_close(networks(others)[client], values[client])
        torch.testing.assert_close(client_network(networks, client)(seen[client]), values[client])
    # room that makes rows start on 16 bytes is not read
    room = torch.cat([seen, torch.randn(*seen.shape[:-1], 3)], dim=-1)
    assert torch.equal(networks(room), values)


def test_gradients_are_autograds() -> None:
    """What `descend` writes, for runs side by side, is what each run has alone."""
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    both = SetNetworks(4, 19, [16, 8], 3, generators)
    _, seen = seen_by_all(short())
    seen = seen[..., :19].repeat(2, 1, 1)
    choice, slope = torch.randint(0, 3, (8, 6)), torch.randn(8, 6)
    slopes = spread(slope, choice, 3)
    both.descend(both.layers(seen), slopes, both.make_room(6), None)  # type: ignore[arg-type]
    for run in range(2):
        alone = SetNetworks(4, 19, [16, 8], 3, [torch.Generator().manual_seed(run)])
        own = slice(4 * run, 4 * run + 4)
        values = alone(seen[own]).gather(-1, choice[own, :, None])[..., 0]
        (values * slope[own]).sum().backward()
        for (name, mine), theirs in zip(alone.named_parameters(), both.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            torch.testing.assert_close(theirs.grad[run], mine.grad[0], msg=name)


def test_a_critic_of_any_size_adds_up_clients() -> None:
    """Against plain loops; the fading, which only agents see, does not count."""
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    agents = SetNetworks(4, 19, [16, 8], 3, generators)
    critic = SetCritic(agents, [8, 6], generators)
    for clients, bands in ((4, 2), (7, 3)):
        agents.resize(clients, 3 * clients + 2 + bands + 3, bands + 1)
        state = torch.rand(2, 5, clients * (bands + 4) + 2)
        found = critic(state)
        for run, row in ((0, 0), (1, 4)):
            x = state[run, row]
            heard = torch.zeros(8)
            for rank in range(clients):
                left = x[clients * (1 + bands) + rank]
                token = torch.tensor([x[rank], left, rank / bands])
                heard += (token @ critic.listen.weight[run] + critic.listen.bias[run, 0]).relu()
            clock = x[clients * (2 + bands)]
            size = torch.tensor([clock, clients / bands, bands / 4])
            z = torch.cat([heard / bands, size])
            first, second = critic.layers
            z = (z @ first.weight[run] + first.bias[run, 0]).relu()
            wanted = (z @ second.weight[run] + second.bias[run, 0])[0]
            torch.testing.assert_close(found[run, row], wanted)


MAPPO = ["qmix.algorithm=mappo", "qmix.mappo.rate=0.005", "qmix.mappo.epochs=1", "qmix.lessons=50"]
MAPPO += ["qmix.mappo.minibatches=5", "qmix.mappo.entropy_start=0"]
VDN = ["qmix.lesson_margin=0.3", "qmix.agent_rate=0.005", "qmix.update_every=50", "qmix.lessons=1"]
VDN += ["qmix.replay_size=2000"]


HEARS = [*MAPPO, *FEEDBACK, "qmix.teacher=wrap-around-feedback"]
SEES = [*MAPPO, *CSI, "qmix.teacher=csi-matching", "qmix.hold_slots=1", "qmix.episodes=1000"]


@pytest.mark.parametrize(
    "algorithm", [MAPPO, VDN, HEARS, SEES], ids=["mappo", "vdn", "feedback", "csi"]
)
def test_pupils_of_a_plan_deliver_in_sizes_they_never_met(
    tmp_path: Path, algorithm: list[str]
) -> None:
    """Seconds of lessons on two sizes, decisions held; then a third size slot by slot, slots of
    half the length, and another payload. Longer trainings deliver nearly what the plan does."""
    lessons = ["qmix.teacher=wrap-around-choice", "qmix.lesson_episodes=1000000"]
    lessons += ["qmix.episodes=3000"]
    sizes = ["qmix.sizes=[[3, 2], [6, 3]]", "qmix.gain_spread_db=4", "qmix.play_hold_slots=1"]
    train(short(*lessons, *sizes, *algorithm), tmp_path)
    longer = ["radio.slots=40", "radio.slot_s=0.001", "learning.payload_bits=600000"]
    for config, hold in ((short(clients=7, bands=4), 1), (short(*longer, clients=5, bands=2), 2)):
        policy = load_policy_checkpoint(tmp_path, config)
        assert isinstance(policy, QmixPolicy)
        assert policy.hold_slots == hold  # as many decisions in a round
        scenario, round_ = some_rounds(config, 200)
        pupils, plan = (
            play_round(one, scenario, round_, torch.arange(200)).delivered.sum(-1).float().mean()
            for one in (policy, load_policy("wrap-around-choice"))
        )
        assert pupils > 0.75 * plan, (pupils, plan)


def test_a_comparison_takes_them_in_another_size(tmp_path: Path) -> None:
    train(short("qmix.episodes=50"), tmp_path / "agents")
    asked = [f"allocation.checkpoint={tmp_path / 'agents'}", "allocation.policies=[random, qmix]"]
    few = ["run.rounds=2", "run.seeds=1", "learning.data=digits", "radio.slots=30"]
    scenario = ["learning.clients=7", "radio.subbands=3", "run.device=cpu"]
    config = load_config("paper", [*asked, *few, *scenario])  # whose agents observe other things
    cpu = torch.device("cpu")
    comparison, folder = Comparison(config, cpu), RunFolder(tmp_path / "run", config, cpu)
    with folder.open():
        SideBySide([comparison], [folder]).run(lambda done, doing: None)
    assert {row.policy for row in comparison.rows} >= {"random", "qmix"}


def test_a_training_on_several_sizes_continues_exactly(tmp_path: Path) -> None:
    sizes = ["qmix.sizes=[[3, 2], [5, 3]]", "qmix.batch_size=64", "qmix.final_rate=1"]
    whole = train(short(*sizes, "qmix.episodes=400"), tmp_path / "whole")
    train(short(*sizes, "qmix.episodes=250"), tmp_path / "parts")  # five batches: in mid-turn
    parts = train(short(*sizes, "qmix.episodes=400"), tmp_path / "parts")
    assert whole.learned == parts.learned > 0
    for name, tensor in whole.snapshot().items():
        assert torch.equal(tensor, parts.snapshot()[name]), name
    assert {"replay/reward", "replay1/reward"} <= set(whole.snapshot())
    check_same_training(load_checkpoint(tmp_path / "parts"), short(*sizes))


def test_seeds_side_by_side_are_each_alone() -> None:
    config = short("qmix.sizes=[[3, 2], [5, 3]]", "qmix.batch_size=64", "qmix.episodes=200")
    both, alone = Trainer(config, seeds=[4, 5]), Trainer(config, seeds=[5])
    for _ in range(4):
        together, (mine,) = both.play_batch(), alone.play_batch()
        np.testing.assert_allclose(together[1], mine, rtol=1e-4, equal_nan=True)


def test_learning_waits_for_a_batch_of_the_size() -> None:
    """The first batch of episodes of a size is not enough, though another size has as many."""
    some = ["qmix.batch_size=200", "qmix.n_step=1", "qmix.episodes=200"]
    trainer = Trainer(short("qmix.sizes=[[3, 2], [5, 3]]", *some))
    learned = [(trainer.play_batch(), trainer.learned)[1] for _ in range(3)]
    # 250 transitions a batch, the first update after 200 of the size's own
    assert learned == [1, 2, 6]


def test_layers_as_wide_as_the_scenario_are_for_that_size(tmp_path: Path) -> None:
    plain = ["qmix.network=mlp", "qmix.episodes=50"]
    train(short(*plain), tmp_path)
    with pytest.raises(UserError, match=r"radio\.subbands is 2 there and 3 here"):
        load_policy_checkpoint(tmp_path, short(*plain, clients=7, bands=3))


@KINDS
def test_onnx_files_do_what_the_network_does(tmp_path: Path, kind: list[str]) -> None:
    config = short("qmix.episodes=50", *kind, clients=6, bands=3)
    agents = train(config, tmp_path).learner.agents
    files = export_agents(tmp_path, tmp_path / "onnx")
    assert len(files) == 6
    networks, seen = seen_by_all(config, 300)
    networks.load_state_dict(agents.state_dict())
    wanted = networks(seen)
    for client, path in enumerate(files):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        action, values = session.run(None, {"observation": seen[client].numpy()})
        np.testing.assert_allclose(values, wanted[client].numpy(), rtol=1e-4, atol=1e-4)
        assert (action == wanted[client].argmax(-1).numpy()).mean() > 0.99


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("qmix.client_id=true", r"qmix\.client_id = True .* must be False where"),
        ("qmix.power=levels", r"qmix\.power = 'levels' .* must be 'binary' where"),
        ("qmix.sizes=[[4]]", r"qmix\.sizes = \[\[4\]\] .* \[clients, sub-bands\]"),
        (
            "allocation.observe=[order, remaining, slack]",
            r"allocation\.observe .* must be order, slots_left, fading, then",
        ),
        (
            "allocation.observe=[slack]",
            r"allocation\.observe .* must be order, slots_left, fading, then",
        ),
    ],
)
def test_what_a_network_over_the_set_needs(change: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        short(change)


def test_sizes_need_a_sum() -> None:
    with pytest.raises(UserError, match=r"qmix\.sizes .* must be \[\] unless"):
        short("qmix.sizes=[[4, 2]]", "qmix.mixer=qmix")


@pytest.mark.parametrize("change", ["qmix.mixer=qmix", "qmix.algorithm=mappo"])
def test_any_algorithm_trains_one_size(change: str) -> None:
    trainer = Trainer(short(change, "qmix.mappo.minibatches=2"))
    before = [parameter.clone() for parameter in trainer.learner.agents.parameters()]
    for _ in range(3):
        trainer.play_batch()
    after = trainer.learner.agents.parameters()
    assert not any(torch.equal(*both) for both in zip(before, after, strict=True))
    assert trainer.learner.agents.width == observation_width(scenario_from_config(short(), 1.0))
