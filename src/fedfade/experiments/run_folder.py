"""A run folder: what was asked, of which agents, code and data, how far it got.

config.yaml       the resolved configuration, a comment per field
run.json          version, commit, environment, command, agents, times, whether it is finished
metrics.csv       one row per seed, policy and round
checkpoint.safetensors   where to go on; of a finished run: from which more rounds can be played
more/             policies, seeds and rounds that are being added (`growth.py`)
"""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, reduce
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfade import __version__, storage
from fedfade.agents import has_checkpoint, load_checkpoint, trained_agents
from fedfade.config import (
    BEFORE,
    RENAMED,
    Config,
    check_same_inputs,
    content_digest,
    content_of,
    differences,
    inputs_of,
    load_config,
    preset_names,
    render_config,
)
from fedfade.errors import UserError

# Where a run happens does not change what it computes.
FREE_FIELDS = ("run.device", "run.checkpoint_s", "learning.data_dir")

RESULTS = ("metrics.csv", "gradients.npz")
"""Files that a finished run is read from."""

MORE = "more"
"""The folder in a run folder in which runs are added to it."""


def provenance(config: Config, device: torch.device) -> dict[str, Any]:
    """Who made this run: version, commit, environment, command, and what it was made from."""
    return {
        **_rounding(device),
        "commit": _own_commit(),
        "command": shlex.join(["fedfade", *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "agents": agents_digest(config),
        "inputs": inputs_of(config),
        "started": _now(),
        "finished": None,
    }


def ended(record: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of what is done now."""
    return {**record, "finished": _now()}


def _rounding(device: torch.device) -> dict[str, str]:
    """What decides the last bits of a number."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"fedfade": __version__, "torch": str(torch.__version__), "device": name}


def changes_since(record: Mapping[str, Any], device: torch.device) -> list[str]:
    """What is not as it was when a run began and may move its last bits."""
    now = _rounding(device)
    other = [what for what in now if record.get(what) != now[what]]
    return [f"{what} was {record.get(what)}, is {now[what]}" for what in other]


def agents_digest(config: Config) -> str | list[str] | None:
    """SHA-256 of the trained agents in `allocation.checkpoint`, if it names any that are there."""
    folders = trained_agents(config).values()
    if not folders or not all(map(has_checkpoint, folders)):
        return None
    digests = [load_checkpoint(folder).files["agents"]["sha256"] for folder in folders]
    return digests[0] if isinstance(config.allocation.checkpoint, str) else digests


def check_inputs(
    path: Path, config: Config, record: Mapping[str, Any], policy: str | None = None
) -> None:
    """Refuse agents, code or files other than the run's.

    Old records do not say what a run was made from, and it may be gone. With a policy, only what
    its rounds are played with counts.
    """
    acting = policy is None or policy in trained_agents(config)
    then, now = record.get("agents"), agents_digest(config) if acting else None
    if None not in (then, now) and then != now:
        raise UserError(
            f"the agents in {str(config.allocation.checkpoint)!r} are not those of the run in "
            f"{str(path)!r}: choose another folder for a run of them, or bring the old ones back."
        )
    needed = inputs_of(config)
    if policy is not None:
        own = (policy, config.radio.traces, config.cost.speeds)
        needed = {name: found for name, found in needed.items() if name in own}
    check_same_inputs(path, record.get("inputs"), needed)


def decisive(config: Config) -> dict[str, Any]:
    """All fields of a configuration but those of where it is run.

    A later field with the value of before is left out too, and a field has its oldest name, so
    that folders named by a digest of these keep their names.
    """
    tree = config.model_dump()
    for field in (*FREE_FIELDS, *BEFORE):
        *parts, name = field.split(".")
        branch = reduce(getitem, parts, tree)
        if field in FREE_FIELDS or branch[name] == BEFORE[field]:
            del branch[name]
    for old, new in RENAMED.items():
        part, name = new.split(".")
        tree[part][old.split(".")[1]] = tree[part].pop(name)
    return tree


def fingerprint(plain: object) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def changed_files(
    path: Path, record: Mapping[str, Any], *files: str
) -> Iterator[tuple[str, object, str | None]]:
    """What of a finished run is not as the run left it: name, SHA-256 then and now.

    The models' digests, the configuration and some files. Older runs do not say.
    """
    left = record.get("left")
    if isinstance(left, dict):
        for name, now in _left(path, record.get("models"), *files).items():
            if left.get(name) != now:
                yield name, left.get(name), now


def check_unchanged(path: Path, record: Mapping[str, Any], *files: str) -> None:
    """Refuse a finished run if what it is read from is not what it left."""
    for name, *_ in changed_files(path, record, *files):
        raise UserError(
            f"{name} in {str(path)!r} is not what the run left there: it was changed or is "
            "damaged; start the run again in another folder."
        )


def _left(path: Path, models: object, *files: str) -> dict[str, str | None]:
    digests = {name: content_digest(path / name) for name in ("config.yaml", *files)}
    return {"models": fingerprint(models), **digests}


def mark(*content: object) -> str:
    """A short digest of plain data, for names of files."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def in_words(varied: Mapping[str, Any]) -> str:
    """Fields and their values as part of a file's name.

    >>> in_words({"radio.clusters": 14, "allocation.checkpoint": "runs/small"})
    'clusters=14_checkpoint=runs-small'
    """
    words = [f"{name.rpartition('.')[2]}={value}" for name, value in varied.items()]
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "-", "_".join(words))


def folder_name(preset: str, asked: Config, config: Config) -> str:
    """A name that no other configuration, agents, code or data have: that of a shipped preset as
    it is, else with what was asked for besides and a digest, `quickstart_rounds=5-1f0c2a9e`."""
    inputs, name = content_of(inputs_of(config)), Path(preset).stem
    differing = differences(load_config(preset), asked, FREE_FIELDS)
    varied = {path: attrgetter(path)(asked) for path in differing}
    if preset in preset_names() and not varied and not inputs:
        return name
    words = in_words(varied)[:60]
    short = mark(decisive(config), agents_digest(config), inputs)
    return f"{name}{words and '_'}{words}-{short}"


def default_folder(name: str, given: Mapping[str, Any]) -> Path:
    """Where a command writes that was not told where: what was asked for besides is in the name.

    >>> str(default_folder("levers-small", {"run.seeds": None}))
    'runs/levers-small'
    >>> str(default_folder("levers-small", {"run.seeds": 2}))
    'runs/levers-small_seeds=2-6315be8a'
    """
    asked = {field: value for field, value in given.items() if value not in (None, [], (), False)}
    words = in_words(asked)[:60]
    return Path("runs") / (f"{name}_{words}-{mark(asked)}" if asked else name)


def commit_of(file: Path) -> str | None:
    """The commit of the source tree a file belongs to, None when installed without one."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.check_output(command, stderr=subprocess.PIPE, text=True, timeout=10)

    try:
        git("ls-files", "--error-unmatch", file.name)  # a .venv may lie in somebody's repository
        return git("rev-parse", "HEAD").strip()
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _own_commit() -> str | None:
    """Asked for once: what was imported stays, whatever is checked out meanwhile."""
    return commit_of(Path(__file__))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunFolder:
    """One folder for one configuration; opened under a lock, continued by the same command."""

    def __init__(
        self, path: Path, config: Config, device: torch.device, keeps_models: bool = False
    ) -> None:
        """`keeps_models`: a finished run keeps its checkpoint, so that rounds can be added."""
        self.path, self.config, self._device = path, config, device
        self.keeps_models, self.more = keeps_models, path / MORE
        self.metrics = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.safetensors"
        self._record, self._asked = path / "run.json", path / "config.yaml"

    @contextmanager
    def open(self, overwrite: bool = False) -> Iterator[None]:
        """Hold the folder, refusing one of another configuration, of other agents or in use.

        `overwrite`: begin anew, whatever run it holds.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {str(self.path)!r} is a file: it must be a folder.")
        with storage.folder_lock(self.path):
            self._check_content()
            if overwrite:
                self._clear()
            self._check_config()
            new = not self._record.exists()
            if new:
                record = provenance(self.config, self._device)  # may refuse the agents
                storage.write_text(self._asked, render_config(self.config))
                storage.write_json(self._record, record)
            else:
                check_inputs(self.path, self.config, self.record)
            try:
                yield
            except UserError:
                if new and not self.metrics.exists() and not self.checkpoint.exists():
                    # Refused before it began: the corrected command may have the folder.
                    storage.take_back(self._record, self._asked)
                raise

    def _clear(self) -> None:
        """Remove what a run has left, and nothing else; its record last, by which it is known."""
        pictures = sorted((self.path / "figures").glob("*.png"))
        names = ("gradients.npz", "report.html")
        files = [self.checkpoint, self.metrics, *pictures, *(self.path / name for name in names)]
        storage.take_back(*files, self._asked, self._record)
        shutil.rmtree(self.more, ignore_errors=True)

    def _check_content(self) -> None:
        own = {".lock", self._asked.name}  # all that a run killed at its birth leaves
        found = {p.name for p in self.path.iterdir() if not storage.is_temporary(p)}
        if (others := found - own) and not self._record.exists():
            raise UserError(
                f"--out {str(self.path)!r} holds other things ({min(others)!r}): choose an "
                "empty or new folder."
            )

    def _check_config(self) -> None:
        asked = load_config(self._asked, stored=True) if self._asked.exists() else self.config
        if differing := differences(asked, self.config, ignore=FREE_FIELDS):
            for agents in trained_agents(self.config).values():
                load_checkpoint(agents)  # a folder without agents is the mistake to speak of
            raise UserError(
                f"--out {str(self.path)!r} holds a run of another configuration, differing in "
                f"{', '.join(differing)}: choose another folder or the same configuration "
                "(policies, seeds and rounds may be added), or --overwrite it."
            )

    @property
    def record(self) -> dict[str, Any]:  # the run's provenance
        return read_record(self._record)

    @property
    def finished(self) -> bool:
        return self._record.exists() and self.record.get("finished") is not None

    def changes(self) -> list[str]:
        """What is not as it was when this run began and may move its last bits."""
        return changes_since(self.record, self._device)

    def finish(self, models: Mapping[str, str], **facts: object) -> None:
        """Mark the run as done, note facts about it, and drop its checkpoint if nobody wants it."""
        left = _left(self.path, models, *RESULTS)
        done = {"models": models, "left": left}
        storage.write_json(self._record, ended(self.record | facts | done))
        if not self.keeps_models:
            self.checkpoint.unlink(missing_ok=True)

    def save_checkpoint(self, rounds_done: int, tensors: Mapping[str, Tensor], rows: str) -> None:
        """Everything needed to go on after `rounds_done` rounds; `rows`: a digest of their rows."""
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        facts = {"rounds_done": str(rounds_done), "sha256": digest(plain), "rows": rows}
        facts["config"] = fingerprint(decisive(self.config))
        with storage.writing(self.checkpoint) as temporary:
            temporary.write_bytes(save(plain, facts))

    def load_checkpoint(self) -> tuple[int, dict[str, Tensor], str | None] | None:
        """What `save_checkpoint` wrote, or None at the beginning.

        Checkpoints of older versions do not say of which configuration and rows they are.
        """
        if not self.checkpoint.exists():
            return None
        try:
            with safe_open(storage.regular(self.checkpoint), framework="pt") as file:
                facts = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            rounds_done = int(facts["rounds_done"])
            if facts["sha256"] != digest(tensors) or rounds_done < 0:
                raise ValueError("not what was written")
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError):
            raise self.damaged() from None
        if facts.get("config") not in (None, fingerprint(decisive(self.config))):
            raise self.damaged("is of another configuration than config.yaml")
        return rounds_done, tensors, facts.get("rows")

    def damaged(self, why: str = "is damaged") -> UserError:
        """What to say of a checkpoint that cannot be continued from."""
        return UserError(f"{str(self.checkpoint)!r} {why}: remove it to start this run again.")


def open_finished(path: Path) -> tuple[Config, dict[str, Any]]:
    """Config and provenance of a finished run, for commands that only read."""
    if not (path / "config.yaml").is_file() or not (path / "run.json").is_file():
        raise UserError(f"{str(path)!r} is not a run folder: it has no config.yaml and run.json.")
    config = load_config(path / "config.yaml", stored=True)
    record = read_record(path / "run.json")
    if record.get("finished") is None:
        raise UserError(f"{str(path)!r} is not finished: run the same fedfade compare again.")
    return config, record


def read_record(path: Path) -> dict[str, Any]:
    """What `run.json` says."""
    answer = storage.read_json(path)
    record = answer if isinstance(answer, dict) else {"scopes": None}
    for words in (record.get(name, {}) for name in ("scopes", "about")):  # by policy
        if not isinstance(words, dict) or not all(isinstance(one, str) for one in words.values()):
            raise UserError(f"{str(path)!r} is not a run record.")
    return dict(record)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and every bit of some tensors."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
