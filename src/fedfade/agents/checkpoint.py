"""Checkpoints of a training: tensors as safetensors, the rest as JSON, no pickle.

checkpoint.json          what was trained, how far, and the names and digests of the two files
agents-N.safetensors     the agent networks: all that execution needs
training-N.safetensors   mixer, targets, optimiser, replay, federated task: all a resume needs

The tensor files are complete on disk before `checkpoint.json` names them, and the old ones go
afterwards, so whenever the process dies there is one whole checkpoint. Trainings of one program are
saved as one: all of them prepare `checkpoint-next.json` before the first takes it for its index, so
that one that has done so tells all others to.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from fedfade.config import Config, check_same_inputs, config_from_tree, differences, inputs_of
from fedfade.errors import UserError
from fedfade.storage import (
    MAX_ARRAY_BYTES,
    read_bytes,
    read_json,
    rename,
    take_back,
    write_json,
    writing,
)

FORMAT = "fedfade qmix checkpoint"
VERSION = 2
INDEX = "checkpoint.json"
_NEXT = "checkpoint-next.json"

# Agents act in another scenario only where what they do means the same there. What they observe
# they bring along.
_BANDS = ("radio.subbands", "radio.bandwidth_hz", "radio.power_levels_dbm")
_SIZES = ("learning.clients", "learning.payload_bits", "radio.slots", "radio.slot_s")
_MEANING = (*_SIZES, *_BANDS)
# What may change between a training and its continuation.
_FREE_RUN = ("run.device", "run.seeds", "run.evaluate_every", "run.checkpoint_s")
_FREE = (*_FREE_RUN, "learning.data_dir", "allocation.policies", "qmix.episodes")

_Count = Annotated[int, Field(ge=0, lt=2**40)]
_Word = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # no name that leads out of the folder
_File = Annotated[dict[Literal["name", "sha256"], _Word], Field(min_length=2)]


class _Index(BaseModel):
    """What `checkpoint.json` must say besides format, version and configuration."""

    model_config = ConfigDict(strict=True)
    batch: _Count
    episodes: _Count
    files: Annotated[dict[Literal["agents", "training"], _File], Field(min_length=2)]
    inputs: dict[str, str] = {}


@dataclass(frozen=True)
class Checkpoint:
    """What `checkpoint.json` says."""

    folder: Path
    config: Config
    batch: int
    episodes: int
    files: dict[str, dict[str, str]]  # part -> name, sha256
    inputs: Mapping[str, str] = field(default_factory=dict)  # a user's code and data -> sha256

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of `agents` or `training`, checked against the digest."""
        path = self.folder / self.files[part]["name"]
        content, file = read_bytes(path, MAX_ARRAY_BYTES), f"checkpoint file {str(path)!r}"
        if hashlib.sha256(content).hexdigest() != self.files[part]["sha256"]:
            why = f"its SHA-256 is not the one in {INDEX}"
            raise UserError(f"{file} was truncated or changed: {why}.")
        try:
            return load_tensors(content)
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise UserError(f"{file} is no safetensors file.") from None


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


def prepare_checkpoint(
    folder: Path,
    config: Config,
    batch: int,
    episodes: int,
    parts: dict[str, dict[str, Tensor]],
    inputs: Mapping[str, str],
) -> None:
    """Write all of a checkpoint, the tensors of `agents` and `training`, beside the last one."""
    files = {}
    for part, tensors in parts.items():
        name = f"{part}-{batch:08d}.safetensors"
        content = dump_tensors({k: t.detach().cpu().contiguous() for k, t in tensors.items()})
        with writing(folder / name) as temporary:
            temporary.write_bytes(content)
        files[part] = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    index = {"format": FORMAT, "version": VERSION, "batch": batch, "episodes": episodes}
    made_of = {"config": config.model_dump(), "inputs": inputs, "files": files}
    write_json(folder / _NEXT, index | made_of)


def take_prepared(folders: Sequence[Path]) -> None:
    """Let what was prepared in all these folders be their checkpoints; the old ones go."""
    for folder in folders:
        rename(folder / _NEXT, folder / INDEX)
    for folder in folders:
        _drop_others(folder)


def settle(folders: Sequence[Path]) -> None:
    """After a kill while these trainings were saved: all have what was prepared, or nobody."""
    begun = [folder for folder in folders if has_checkpoint(folder)]
    taken = {load_checkpoint(folder).batch for folder in begun}
    for folder in folders:
        if (folder / _NEXT).exists():
            if load_checkpoint(folder, _NEXT).batch in taken:
                take_prepared([folder])
            take_back(folder / _NEXT)
    for folder in begun:
        _drop_others(folder)


def forget(folders: Sequence[Path]) -> None:
    """Let these folders hold no checkpoint."""
    for folder in folders:
        take_back(folder / INDEX, folder / _NEXT)


def _drop_others(folder: Path) -> None:
    """Remove the tensors of other checkpoints than the one the index names."""
    named = {entry["name"] for entry in load_checkpoint(folder).files.values()}
    for path in folder.glob("*-*.safetensors"):
        ours = re.fullmatch(r"(agents|training)-\d{8,}\.safetensors", path.name)
        if ours and path.name not in named:
            with suppress(OSError):
                path.unlink()


def load_checkpoint(folder: Path, name: str = INDEX) -> Checkpoint:
    """Read `checkpoint.json`; every fault is one sentence."""
    path = folder / name
    if not path.is_file():
        seeds = [str(place) for place in trained_folders(folder) if place != folder]
        why = f"choose {' or '.join(seeds)}" if seeds else "it is no folder `fedfade train` wrote"
        raise UserError(f"{str(folder)!r} holds no {INDEX}: {why}.")
    index = read_json(path, max_bytes=2**20)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} is no {FORMAT}.")
    if (version := index.get("version")) != VERSION:
        raise UserError(f"{str(path)!r} has version {version}: this fedfade reads {VERSION}.")
    try:
        _Index.model_validate(index)
    except ValidationError:
        wrong = "batch, episodes, files or inputs are wrong"
        raise UserError(f"{str(path)!r} was changed by hand: {wrong}.") from None
    config = config_from_tree(index.get("config"), stored=True)
    counts = index["batch"], index["episodes"]
    return Checkpoint(folder, config, *counts, index["files"], index.get("inputs", {}))


def check_same_training(
    checkpoint: Checkpoint, config: Config, inputs: Mapping[str, str] | None = None
) -> None:
    """A continuation must be of the same training, and of the same code, data and traces."""
    _refuse(checkpoint, config, differences(checkpoint.config, config, _FREE))
    found = inputs_of(config, training=True) if inputs is None else inputs
    check_same_inputs(checkpoint.folder, checkpoint.inputs, found)


def check_same_meaning(checkpoint: Checkpoint, config: Config) -> None:
    """Agents must meet sizes and actions that mean what they meant in training, unless they are
    for any."""
    found = differences(checkpoint.config, config)
    meaning = _MEANING if checkpoint.config.qmix.network == "mlp" else ()
    _refuse(checkpoint, config, [field for field in found if field in meaning])


def _refuse(checkpoint: Checkpoint, config: Config, fields: Sequence[str]) -> None:
    if not fields:
        return
    value = attrgetter(fields[0])
    more = f" (and {len(fields) - 1} more: {', '.join(fields[1:4])})" if fields[1:] else ""
    raise UserError(
        f"the checkpoint in {str(checkpoint.folder)!r} is from another scenario: {fields[0]} is "
        f"{value(checkpoint.config)} there and {value(config)} here{more}."
    )


def check_shapes(folder: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Refuse tensors that are missing, of another shape or type, or not finite."""
    for name, tensor in wanted.items():
        ours, wrong = found.get(name), ""
        if ours is None or ours.shape != tensor.shape:
            shape = "missing" if ours is None else list(ours.shape)
            wrong = f"is {shape}: it must be {list(tensor.shape)}"
        elif ours.dtype != tensor.dtype:
            wrong = f"is {ours.dtype}: it must be {tensor.dtype}"
        elif not bool(ours.isfinite().all()):
            wrong = "holds numbers that are not finite"
        if wrong:
            raise UserError(f"tensor {name!r} of the checkpoint in {str(folder)!r} {wrong}.")
