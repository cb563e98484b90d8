"""Doctests are collected from every module; those of an extra only where it is installed."""

from __future__ import annotations

import signal
from importlib.util import find_spec

collect_ignore_glob = (
    []
    if find_spec("flwr")
    else [
        "src/fedfade/flower/*.py",
        "tests/flower/in_process.py",
        "tests/flower/odd_app/*.py",
        "tests/flower/odd_app/*/*.py",
    ]
)
if find_spec("benchmarl") is None:  # extra `peers`
    collect_ignore_glob += ["src/fedfade/uplink/benchmarl.py", "src/fedfade/uplink/torchrl.py"]
if find_spec("triton") is None:  # comes with PyTorch for CUDA
    collect_ignore_glob += ["src/fedfade/*/*_kernels.py"]

# A shell starts what it runs in the background with SIGINT ignored; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
