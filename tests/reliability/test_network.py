"""Tests do not reach beyond this machine, and neither does fedfade unless it is asked to."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from tests.conftest import NetworkUsed


def test_the_guard_lets_nothing_out() -> None:
    with pytest.raises(NetworkUsed):
        socket.getaddrinfo("example.org", 80)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        with pytest.raises(NetworkUsed):
            channel.sendto(b"x", ("192.0.2.1", 9))
        with pytest.raises(NetworkUsed):
            channel.connect(("192.0.2.1", 9))
    with pytest.raises(NetworkUsed):
        urllib.request.urlopen("http://192.0.2.1/", timeout=1)


def test_the_guard_lets_this_machine_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.accept)
        thread.start()
        with socket.create_connection(server.getsockname(), timeout=10):
            pass
        thread.join()


def test_commands_open_no_socket() -> None:
    """Of all commands only `data` and `sweep --ray` have a reason to; the audit hook sees any."""
    program = (
        "import sys\n"
        "seen = []\n"
        "def watch(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.bind'):\n"
        "        seen.append((event, arguments[1:]))\n"
        "sys.addaudithook(watch)\n"
        "from fedfade.cli import main\n"
        "for words in (['presets'], ['config', 'paper'], ['partition', '--data', 'digits']):\n"
        "    sys.argv = ['fedfade', *words]\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "assert not seen, seen\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
