"""Flower's own runtimes: the simulation on Ray, and a deployment of real processes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest

from fedfade.config import load_config
from tests.conftest import TINY

pytest.importorskip("flwr", reason="needs fedfade[flower]")
pytest.importorskip("ray", reason="needs fedfade[flower]")

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedfade.flower import FederatedTask, UplinkMod, WirelessStrategy
from tests.flower.in_process import InProcessGrid

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [*TINY, "learning.payload_bits=auto", "radio.slots=100", "learning.clients=3"]


def example_deployment():
    """The module of examples/flower that starts real processes."""
    path = ROOT / "examples" / "flower" / "deploy.py"
    spec = importlib.util.spec_from_file_location("deploy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("decide", ["server", "client"])
def test_simulation_gives_what_one_process_gives(decide: str, ray_home) -> None:
    """Flower's simulation on Ray, against the same app without any runtime, to the last bit."""
    from flwr.simulation import run_simulation

    config = load_config("paper", SETTINGS)
    policy = "block-fading-schedule"
    histories, losses = [], []

    def play(grid, task: FederatedTask) -> None:
        strategy = WirelessStrategy(FedAvg(fraction_evaluate=0.0), config, policy, decide=decide)
        result = strategy.start(grid, task.initial_arrays(), 3, evaluate_fn=task.evaluate)
        histories.append(strategy.history)
        losses.append([m["loss"] for m in result.evaluate_metrics_serverapp.values()])

    settings = {"preset": "paper", "set": " ".join(SETTINGS)}
    client = ClientApp(mods=[UplinkMod(policy)])
    client.train()(lambda m, c: FederatedTask.from_run_config(settings).train(m, c))
    play(InProcessGrid(client, 3), FederatedTask(config))
    server = ServerApp()
    server.main()(lambda grid, context: play(grid, FederatedTask(config)))
    run_simulation(
        server,
        client,
        num_supernodes=3,
        backend_config={
            "init_args": {"num_cpus": 2, "include_dashboard": False},
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
        },
    )
    assert len(histories) == 2
    assert histories[0] == histories[1]
    # FedAvg adds up in the order in which replies arrive.
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_deployment_without_tls_starts(tmp_path: Path) -> None:
    with example_deployment().deployment(0, tmp_path) as made:
        assert made.superlink.poll() is None
    assert "insecure = true" in (tmp_path / "config.toml").read_text()
    assert not list(tmp_path.glob("*.pem"))


def test_deployment_survives_what_goes_wrong(tmp_path: Path) -> None:
    """Three SuperNodes, three rounds: NaN, then nobody delivers, then a SuperNode is killed. All
    connections are encrypted, where there is a tool to make a certificate."""
    tls = shutil.which("openssl") is not None
    settings = [*SETTINGS, "radio.slots=250"]  # time for everybody
    changes = f'set="{" ".join(settings)}" folder="{tmp_path}"'
    app = ROOT / "tests" / "flower" / "odd_app"
    home = tmp_path / "home"
    home.mkdir()
    with example_deployment().deployment(3, home, tls) as made:
        if tls:
            trusted = ssl.create_default_context(cafile=str(home / "server.pem"))
            with (
                socket.create_connection(("127.0.0.1", made.port)) as plain,
                trusted.wrap_socket(plain, server_hostname="127.0.0.1") as shown,
            ):
                assert shown.getpeercert()

        def kill_when_hanging() -> None:
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline and not (tmp_path / "hanging").exists():
                time.sleep(0.2)
            made.kill(1)

        watcher = Thread(target=kill_when_hanging, daemon=True)
        watcher.start()
        try:
            log = made.run(app, changes, timeout_s=400)
        except subprocess.TimeoutExpired:
            logs = [path.read_text()[-3000:] for path in home.glob("*.log")]
            pytest.fail("the run did not end:\n" + "\n---\n".join(logs))
        watcher.join()
    assert (tmp_path / "history.json").exists(), log[-3000:]
    history = json.loads((tmp_path / "history.json").read_text())
    poisoned, silent, killed = history["rounds"]
    assert poisoned["not_finite"] == 1
    assert poisoned["trained"] == 3
    assert set(poisoned["delivered"]) == {0, 1}
    assert silent["delivered"] == []
    assert silent["bits_sent"] == 0
    assert silent["slots"] == 250
    assert killed["trained"] == 2
    assert set(killed["delivered"]) == {0, 2}
    before, first, second, third = history["loss"]
    assert first != before
    assert second == first  # nobody delivered: the same model
    assert third != second
