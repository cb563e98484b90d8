"""A whole Flower deployment on this machine: SuperLink, SuperNodes, one run, and everything down.

    python deploy.py --nodes 3 --run-config 'num-server-rounds=3 policy="random"'

All processes speak over the loopback; telemetry, update checks and run-time installs are off.
With --tls every connection is encrypted, by a certificate made for this deployment alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


def free_ports(count: int) -> list[int]:
    """Ports nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine that vouches for itself, and its key: good for a trial. On
    real machines use those of your organisation, with the names of the machines in them."""
    found, key = folder / "server.pem", folder / "server.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    words += ["-keyout", str(key), "-out", str(found)]
    subprocess.run(words, check=True, capture_output=True)
    return found, key


class Deployment:
    """One SuperLink and its SuperNodes, each a process group of its own."""

    def __init__(self, nodes: int, home: Path, tls: bool = False) -> None:
        self.home = home
        # How a server shows who it is, how a client checks it, and what `flwr run` is told.
        self._server, self._client = ["--insecure"], []
        trusted = "insecure = true"
        if tls:
            found, key = certificate(home)
            self._client = ["--root-certificates", str(found)]
            self._server = ["--ssl-certfile", str(found), "--ssl-keyfile", str(key)]
            self._server += ["--ssl-ca-certfile", str(found)]
            trusted = f'root-certificates = "{found}"'
        self.port, *self._node_ports = free_ports(nodes + 1)
        tools = Path(sys.executable).parent
        path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": path}
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n{trusted}\n'
        )
        self.superlink: subprocess.Popen[bytes] | None = None
        self.supernodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """SuperLink first; SuperNodes once it listens."""
        self.superlink = self._process(
            "superlink", ["flower-superlink", *self._server, "--port", str(self.port)]
        )
        self._wait_for(self.port)
        count = len(self._node_ports)
        for number, port in enumerate(self._node_ports):
            words = ["flower-supernode", *self._client, *self._server]
            words += ["--superlink", f"127.0.0.1:{self.port}"]
            words += ["--port", str(port)]
            words += ["--node-config", f"partition-id={number} num-partitions={count}"]
            self.supernodes.append(self._process(f"supernode-{number}", words))

    def run(self, app: Path, run_config: str, timeout_s: float) -> str:
        """`flwr run` until the app is done; what it logged."""
        words = ["flwr", "run", str(app), "here", "--stream"]
        if run_config:
            words += ["--run-config", run_config]
        with (self.home / "run.log").open("w") as log:
            subprocess.run(
                words,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=True,
            )
        return (self.home / "run.log").read_text()

    def kill(self, number: int) -> None:
        """End one SuperNode and its ClientApp at once, as if its machine had lost power."""
        os.killpg(self.supernodes[number].pid, signal.SIGKILL)
        self.supernodes[number].wait()

    def stop(self) -> None:
        """End everything that was started, children included."""
        for process in [*self.supernodes, *([self.superlink] if self.superlink else [])]:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)

    def _process(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                words,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for(self, port: int, patience_s: float = 90.0) -> None:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self.superlink is not None and self.superlink.poll() is not None:
                break
            time.sleep(0.2)
        log = (self.home / "superlink.log").read_text()
        raise SystemExit(f"the SuperLink did not start:\n{log[-2000:]}")


@contextlib.contextmanager
def deployment(nodes: int, home: Path, tls: bool = False) -> Iterator[Deployment]:
    """A running deployment."""
    made = Deployment(nodes, home, tls)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def main() -> None:
    """Start, run, stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10, help="SuperNodes (= clients)")
    parser.add_argument("--run-config", default="", help="as for `flwr run --run-config`")
    parser.add_argument("--app", type=Path, default=Path(__file__).parent)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for the whole run")
    parser.add_argument("--tls", action="store_true", help="encrypt every connection")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="flower-"))
    try:
        with deployment(given.nodes, home, given.tls) as made:
            sys.stdout.write(made.run(given.app, given.run_config, given.timeout))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
