"""Agents outside PyTorch, and the training's scalars inside TensorBoard."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from fedfade.agents import ClientNetwork, Trainer, train
from fedfade.agents.events import ScalarWriter
from fedfade.agents.export import export_agents, normalisation
from fedfade.agents.run import save
from fedfade.config import load_config
from fedfade.seams import PARTS
from fedfade.uplink import observation_width, observe, scenario_from_config, start_round


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trainer]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    config = load_config(
        "small-cell", ["radio.slots=10", "qmix.episodes=60", "qmix.batch_size=32", "run.device=cpu"]
    )
    return folder, train(config, folder)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("preset", ["ring", "qmix-plus"])
@pytest.mark.parametrize(("share", "numbered"), [(False, True), (True, True), (True, False)])
def test_onnx_runtime_takes_the_same_actions(
    preset: str, share: bool, numbered: bool, tmp_path: Path
) -> None:
    config = load_config(
        preset,
        [
            "qmix.gradients=synthetic",
            f"qmix.share_parameters={share}",
            f"qmix.client_id={numbered}",
            "radio.slots=2",
            "qmix.episodes=20",
            "qmix.batch_size=16",
            "run.device=cpu",
        ],
    )
    agents = train(config, tmp_path).learner.agents
    files = export_agents(tmp_path, tmp_path / "onnx")
    assert len(files) == 10
    z = torch.randn(10, 10_000, agents.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values = torch.stack([ClientNetwork(agents, n)(z[n]) for n in range(10)])
    assert torch.equal(agents.choose(z, agents(z)), values.argmax(-1))
    for client, path in enumerate(files):
        action, found = session(path).run(None, {"observation": z[client].numpy()})
        np.testing.assert_allclose(found, values[client].numpy(), atol=2e-6)
        same = action == values[client].argmax(-1).numpy()
        # two values nearer than float32 rounding may be taken either way, about one in 100,000
        two = values[client].topk(2).values
        assert bool((torch.from_numpy(same) | ((two[:, 0] - two[:, 1]) < 2e-6)).all())
        assert same.mean() >= 0.9995


@pytest.mark.parametrize("silent", [False, True])
def test_normalisation_rebuilds_the_observation(
    trained: tuple[Path, Trainer], silent: bool, tmp_path: Path
) -> None:
    """A device that follows normalisation.json sees what the agents saw in training; also where a
    sub-band is dead and the gradient deviates by nothing."""
    folder, trainer = trained
    export_agents(folder, tmp_path)
    rules = json.loads((tmp_path / "normalisation.json").read_text())
    scenario, round_ = trainer.scenario, trainer.rounds.round(trainer.batch)
    if silent:
        round_.fading[5, 3, 1, 0], round_.fading[5, 3, 1, 1] = 0.0, 1e-7
        round_ = round_._replace(inner=torch.zeros_like(round_.inner))
    progress = start_round(scenario, 20)
    wanted = observe(scenario, round_, progress, 3)[5, 1]
    snr = round_.alpha[5] * scenario.full_power_w / scenario.noise_w
    quantity = {
        "alphas": 10 * torch.log10(snr),
        "fading": 10 * torch.log10(round_.fading[5, 3, 1]),
        "remaining": progress.remaining_bits[5, 1],
        "slots_left": torch.tensor(float(scenario.slots - 3)),
        "deviation": torch.log10(round_.inner[5, 1, 1]),
        "round": round_.number[5],
    }
    found = torch.zeros_like(wanted)
    for part in rules["inputs"]:
        scaled = (quantity[part["name"]] - part["subtract"]) / part["divide"]
        found[part["first"] : part["stop"]] = scaled.clamp(part["low"], part["high"])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_payload_counted_from_the_model_is_a_number() -> None:
    config = load_config(
        "small-cell",
        ["learning.data=digits", "learning.payload_bits=auto", "qmix.gradients=learning"],
    )
    (part,) = (p for p in normalisation(config)["inputs"] if p["name"] == "remaining")
    assert part["divide"] == 32 * (94410 + 448)  # parameters and running statistics


def test_normalisation_of_every_part() -> None:
    """A device is told about whatever an agent may have been trained on."""
    parts = PARTS.built_in
    config = load_config("paper", [f"allocation.observe=[{', '.join(parts)}]"])
    inputs = normalisation(config)["inputs"]
    assert [part["name"] for part in inputs] == list(parts)
    assert inputs[-1]["stop"] == observation_width(scenario_from_config(config, 1.0))
    hidden = config.allocation.model_copy(update={"hide": ["fading"]})
    inputs = normalisation(config.model_copy(update={"allocation": hidden}))["inputs"]
    hidden = {p["name"] for p in inputs if "constant" in p}
    assert hidden == {"fading", "others_fading", "order_fading"}


def test_a_device_is_told_how_long_to_hold() -> None:
    told = normalisation(load_config("paper", ["qmix.hold_slots=25", "qmix.hop_subbands=true"]))
    assert (told["hold_slots"], told["hop_subbands"]) == (25, True)
    assert normalisation(load_config("paper"))["hold_slots"] == 1


def test_a_device_is_told_what_an_action_means() -> None:
    levels, binary = (
        normalisation(load_config("paper", [f"qmix.power={power}"]))["action"]
        for power in ("levels", "binary")
    )
    assert levels.startswith("sub-band * levels + level, decided in slots 0, hold_slots")
    assert binary.startswith("sub-band at full power, subbands: silent, decided in slots 0, hold")


def test_tensorboard_reads_the_scalars(trained: tuple[Path, Trainer]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = trained
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    wanted = {"return", "uploads per round", "TD loss", "Q", "epsilon"}
    assert wanted | {"slots per second", "updates per second"} <= set(events.Tags()["scalars"])
    epsilon = events.Scalars("epsilon")
    assert [event.step for event in epsilon] == [20, 40, 60]
    later = ScalarWriter(folder / "tensorboard", first_step=41)  # as a resume at episode 40 does
    later.write(60, {"epsilon": 0.5})
    later.close()
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("epsilon")] == [20, 40, 60]
    assert events.Scalars("epsilon")[-1].value == 0.5
    assert epsilon[1].value == pytest.approx(1 - 0.99 * 20 / 4000)


def test_a_resumed_training_leaves_no_step_twice(tmp_path: Path) -> None:
    """Killed at episode 60 with a checkpoint of episode 20: what was written after it is hidden."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    changes = ["radio.slots=5", "qmix.episodes=80", "qmix.batch_size=32", "run.device=cpu"]
    config = load_config("small-cell", changes)

    def stop(trainer: Trainer, reports: object) -> None:
        if trainer.batch == 1:
            save(trainer, tmp_path, list(reports))
        if trainer.batch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, stop, checkpoint_s=1e9)
    train(config, tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert [event.step for event in events.Scalars("return")] == [20, 40, 60, 80]


def test_the_command(trained: tuple[Path, Trainer], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedfade", "export", str(trained[0]), "--onnx"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "microseconds" in done.stdout
    assert "4 clients," in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *(f"client-{n}.onnx" for n in range(4)),
        "normalisation.json",
    ]
    wrong = subprocess.run(
        [sys.executable, "-m", "fedfade", "export", str(tmp_path), "--onnx", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert "holds no checkpoint.json" in wrong.stderr
