"""Checkpoints of a training: tensors as safetensors, the rest as JSON, no pickle.

checkpoint.json          what was trained, how far, and the names and digests of the two files
agents-N.safetensors     the agent networks: all that execution needs
training-N.safetensors   mixer, targets, optimiser, replay, federated task: all a resume needs

The tensor files are complete on disk before `checkpoint.json` names them, and the old ones go
afterwards, so whenever the process dies there is one whole checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from fedfade.config import Config, config_from_tree, differences
from fedfade.errors import UserError
from fedfade.storage import MAX_ARRAY_BYTES, read_bytes, read_json, write_json, writing

FORMAT = "fedfade qmix checkpoint"
VERSION = 2
INDEX = "checkpoint.json"

# Agents act in another scenario only where what they see and do means the same there.
_MEANING = (
    "learning.clients",
    "learning.payload_bits",
    "radio.subbands",
    "radio.bandwidth_hz",
    "radio.slots",
    "radio.slot_s",
    "radio.power_levels_dbm",
    "allocation.observe",
    "allocation.hide",
    "allocation.csi_delay_slots",
)
# Agents shipped with the package observe what they were trained on, whatever others observe.
_OBSERVED = ("allocation.observe", "allocation.hide", "allocation.csi_delay_slots")
# What may change between a training and its continuation.
_FREE = (
    "run.device",
    "run.seeds",
    "run.evaluate_every",
    "run.checkpoint_s",
    "learning.data_dir",
    "allocation.policies",
    "qmix.episodes",
)


@dataclass(frozen=True)
class Checkpoint:
    """What `checkpoint.json` says."""

    folder: Path
    config: Config
    batch: int
    episodes: int
    files: dict[str, dict[str, str]]  # part -> name, sha256

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of `agents` or `training`, checked against the digest."""
        path = self.folder / self.files[part]["name"]
        content = read_bytes(path, MAX_ARRAY_BYTES)
        if hashlib.sha256(content).hexdigest() != self.files[part]["sha256"]:
            raise UserError(
                f"checkpoint file {str(path)!r} was truncated or changed: its SHA-256 is not the "
                f"one in {INDEX}."
            )
        try:
            return load_tensors(content)
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise UserError(f"checkpoint file {str(path)!r} is no safetensors file.") from None


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return (folder / INDEX).exists()


def trained_folders(folder: Path) -> list[Path]:
    """The folder itself or, where several seeds were trained, one for each in it."""
    found = [path.parent for path in folder.glob(f"seed-*/{INDEX}")]
    seeds = [place for place in found if re.fullmatch(r"seed-\d+", place.name)]
    if has_checkpoint(folder) or not seeds:
        return [folder]
    return sorted(seeds, key=lambda place: int(place.name.removeprefix("seed-")))


def save_checkpoint(
    folder: Path,
    config: Config,
    batch: int,
    episodes: int,
    agents: dict[str, Tensor],
    training: dict[str, Tensor],
) -> None:
    """Write a checkpoint whole or not at all."""
    files = {}
    for part, tensors in (("agents", agents), ("training", training)):
        name = f"{part}-{batch:08d}.safetensors"
        content = dump_tensors({k: t.detach().cpu().contiguous() for k, t in tensors.items()})
        with writing(folder / name) as temporary:
            temporary.write_bytes(content)
        files[part] = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    index = {
        "format": FORMAT,
        "version": VERSION,
        "batch": batch,
        "episodes": episodes,
        "config": config.model_dump(),
        "files": files,
    }
    write_json(folder / INDEX, index)
    for path in folder.glob("*-*.safetensors"):
        ours = re.fullmatch(r"(agents|training)-\d{8,}\.safetensors", path.name)
        if ours and path.name not in {entry["name"] for entry in files.values()}:
            with suppress(OSError):
                path.unlink()


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read `checkpoint.json`; every fault is one sentence."""
    path = folder / INDEX
    if not path.is_file():
        seeds = [str(place) for place in trained_folders(folder) if place != folder]
        why = f"choose {' or '.join(seeds)}" if seeds else "it is no folder `fedfade train` wrote"
        raise UserError(f"{str(folder)!r} holds no {INDEX}: {why}.")
    index = read_json(path, max_bytes=2**20)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} is no {FORMAT}.")
    if index.get("version") != VERSION:
        raise UserError(
            f"{str(path)!r} has version {index.get('version')}: this fedfade reads {VERSION}."
        )
    counts = [index.get("batch"), index.get("episodes")]
    if not (all(map(_is_count, counts)) and _are_files(index.get("files"))):
        raise UserError(f"{str(path)!r} was changed by hand: batch, episodes or files are wrong.")
    config = config_from_tree(index.get("config"), stored=True)
    return Checkpoint(folder, config, index["batch"], index["episodes"], index["files"])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40


def _are_files(files: Any) -> bool:
    """Two names, none of which leads out of the folder."""
    if not isinstance(files, dict) or set(files) != {"agents", "training"}:
        return False
    for entry in files.values():
        if not isinstance(entry, dict) or set(entry) != {"name", "sha256"}:
            return False
        name = entry["name"]
        if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
            return False
        if not isinstance(entry["sha256"], str):
            return False
    return True


def check_same_training(checkpoint: Checkpoint, config: Config) -> None:
    """A continuation must be of the same training."""
    _refuse(checkpoint, config, differences(checkpoint.config, config, _FREE))


def check_same_meaning(
    checkpoint: Checkpoint, config: Config, own_observation: bool = False
) -> None:
    """Agents must meet observations and actions that mean what they meant in training."""
    found = differences(checkpoint.config, config, _OBSERVED if own_observation else ())
    _refuse(checkpoint, config, [field for field in found if field in _MEANING])


def _refuse(checkpoint: Checkpoint, config: Config, fields: list[str]) -> None:
    if not fields:
        return
    field = fields[0]
    more = f" (and {len(fields) - 1} more: {', '.join(fields[1:4])})" if fields[1:] else ""
    raise UserError(
        f"the checkpoint in {str(checkpoint.folder)!r} is from another scenario: {field} is "
        f"{_value(checkpoint.config, field)} there and {_value(config, field)} here{more}."
    )


def _value(config: Config, field: str) -> object:
    found: Any = config
    for part in field.split("."):
        found = getattr(found, part)
    return found


def check_shapes(folder: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Refuse tensors that are missing, of another shape, or not finite."""
    for name, tensor in wanted.items():
        if name not in found or found[name].shape != tensor.shape:
            shape = list(found[name].shape) if name in found else "missing"
            raise UserError(
                f"tensor {name!r} of the checkpoint in {str(folder)!r} is {shape}: it must be "
                f"{list(tensor.shape)}."
            )
        if found[name].dtype != tensor.dtype:
            raise UserError(
                f"tensor {name!r} of the checkpoint in {str(folder)!r} is {found[name].dtype}: it "
                f"must be {tensor.dtype}."
            )
        if not bool(torch.isfinite(found[name]).all()):
            raise UserError(
                f"tensor {name!r} of the checkpoint in {str(folder)!r} holds numbers that are not "
                "finite."
            )
