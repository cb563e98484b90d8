"""A run folder: what was asked, on what, how far it got.

config.yaml       the resolved configuration, a comment per field
run.json          version, commit, environment, command, times, whether it is finished
metrics.csv       one row per seed, policy and round
checkpoint.safetensors   where to go on; gone when the run is finished
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfade import __version__
from fedfade.config import Config, differences, load_config, render_config
from fedfade.errors import UserError
from fedfade.storage import folder_lock, read_json, write_json, write_text, writing

# Where a run happens does not change what it computes.
_FREE_FIELDS = ("run.device", "learning.data_dir")


def provenance(config: Config, device: torch.device) -> dict[str, Any]:
    """Who made this run: version, commit, environment, command."""
    return {
        "fedfade": __version__,
        "commit": _commit(),
        "command": shlex.join(["fedfade", *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "started": _now(),
        "finished": None,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str | None:
    """The commit of the source tree, None when installed without one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


class RunFolder:
    """One folder for one configuration; opened under a lock, continued by the same command."""

    def __init__(self, path: Path, config: Config, device: torch.device) -> None:
        self.path = path
        self.config = config
        self.metrics = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.safetensors"
        self._record = path / "run.json"
        self._device = device

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder, refusing one of another configuration or in use."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {str(self.path)!r} is a file: it must be a folder.")
        with folder_lock(self.path):
            self._check_config()
            if not self._record.exists():
                write_text(self.path / "config.yaml", render_config(self.config))
                write_json(self._record, provenance(self.config, self._device))
            yield

    def _check_config(self) -> None:
        stored = self.path / "config.yaml"
        if not stored.exists():
            others = [p.name for p in self.path.iterdir() if p.name != ".lock"]
            if others:
                raise UserError(
                    f"--out {str(self.path)!r} holds other things ({others[0]!r}): choose an "
                    "empty or new folder."
                )
            return
        differing = differences(load_config(stored), self.config, ignore=_FREE_FIELDS)
        if differing:
            raise UserError(
                f"--out {str(self.path)!r} holds a run of another configuration, differing in "
                f"{', '.join(differing)}: choose another folder or the same configuration."
            )

    @property
    def record(self) -> dict[str, Any]:
        """The run's provenance."""
        answer = read_json(self._record)
        if not isinstance(answer, dict):
            raise UserError(f"{str(self._record)!r} is not a run record.")
        return answer

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self._record.exists() and self.record.get("finished") is not None

    def finish(self, **facts: object) -> None:
        """Mark the run as done, note facts about it, and drop its checkpoint."""
        write_json(self._record, self.record | facts | {"finished": _now()})
        self.checkpoint.unlink(missing_ok=True)

    def save_checkpoint(self, rounds_done: int, tensors: Mapping[str, Tensor]) -> None:
        """Everything needed to go on after `rounds_done` rounds."""
        from safetensors.torch import save_file

        with writing(self.checkpoint) as temporary:
            plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(plain, temporary, metadata={"rounds_done": str(rounds_done)})

    def load_checkpoint(self) -> tuple[int, dict[str, Tensor]] | None:
        """What `save_checkpoint` wrote, or None at the beginning."""
        if not self.checkpoint.exists():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                rounds_done = int((file.metadata() or {})["rounds_done"])
                return rounds_done, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError):
            raise UserError(
                f"{str(self.checkpoint)!r} is damaged: remove it to start this run again."
            ) from None


def open_finished(path: Path) -> tuple[Config, dict[str, Any]]:
    """Config and provenance of an existing run folder, for commands that only read."""
    if not (path / "config.yaml").is_file() or not (path / "run.json").is_file():
        raise UserError(f"{str(path)!r} is no run folder: it has no config.yaml and run.json.")
    return load_config(path / "config.yaml"), read_json(path / "run.json")
