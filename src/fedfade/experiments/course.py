"""One comparison on its way through the rounds: its rows, its checkpoint, its end."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.experiments.metrics import Row, check_complete, read_rows, write_rows
from fedfade.experiments.run_folder import RunFolder
from fedfade.learning import ServerState
from fedfade.storage import read_npz, write_npz

if TYPE_CHECKING:
    from fedfade.experiments.comparison import Comparison


class Reached(NamedTuple):
    """How far all runs are."""

    rounds: int
    state: ServerState
    uploads: Tensor  # [run, client] rounds in which each client delivered


class Played(NamedTuple):
    """What a round brought: where it leads, its rows, and its Gram matrices."""

    after: Reached
    rows: list[Row]
    inner: Tensor  # [run, client, client]


class Course:
    """A comparison with its folder, from wherever the folder's checkpoint left off."""

    def __init__(self, comparison: Comparison, folder: RunFolder) -> None:
        self._comparison, self._folder = comparison, folder
        self.rounds = comparison.config.run.rounds
        self.at = comparison.start()
        self.rows: list[Row] = []
        runs, clients = self.at.uploads.shape
        # One block for all rounds: a small tensor kept from each would hold on to the memory
        # that the large ones around it leave behind.
        self._grams = torch.empty(self.rounds, runs, clients, clients)
        self._resume()
        self._saved = time.monotonic()

    def add(self, new: Played) -> None:
        """One more round."""
        self.rows += new.rows
        self._grams[self.at.rounds] = new.inner
        self.at = new.after  # one assignment: an interrupt finds a whole number of rounds done

    def save_if_due(self) -> None:
        """A checkpoint every `run.checkpoint_s`."""
        if time.monotonic() - self._saved >= self._comparison.config.run.checkpoint_s:
            self.save()

    def save(self) -> None:
        """A checkpoint."""
        at = self.at
        # Metrics first: rows of rounds the checkpoint does not know are dropped on resuming.
        write_rows(self._folder.metrics, (row for row in self.rows if row.round < at.rounds))
        self._folder.save_checkpoint(at.rounds, self._tensors(at))
        self._saved = time.monotonic()

    def finish(self) -> None:
        """Write what a finished run leaves: rows, and Gram matrices for `replay` and training."""
        runs = self._comparison.runs
        write_rows(self._folder.metrics, self.rows)
        write_npz(
            self._folder.path / "gradients.npz",
            {
                "inner": self._grams.transpose(0, 1).numpy(),  # [run, round, client, client]
                "seed": np.array(runs.seed_of_run),
                "policy": np.array(runs.policies * len(runs.seeds)),
                "payload_bits": np.array(self._comparison.uplink.scenario.payload_bits),
            },
        )
        self._comparison.reached = self.at

    def _tensors(self, at: Reached) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        tensors = {field.name: getattr(at.state, field.name) for field in fields(at.state)}
        tensors |= {"uploads": at.uploads}
        return tensors | ({"grams": self._grams[: at.rounds]} if at.rounds else {})

    def _resume(self) -> None:
        stored, comparison = self._folder.load_checkpoint(), self._comparison
        if stored is None:
            return
        done, tensors = stored
        self._check(done, tensors)
        rows = [row for row in read_rows(self._folder.metrics) if row.round < done]
        names = comparison.all_policies
        check_complete(rows, self._folder.metrics, names, comparison.config, done)
        parts = {f.name: tensors[f.name].to(comparison.device) for f in fields(ServerState)}
        if done:
            self._grams[:done] = tensors["grams"]
        self.rows, self.at = rows, Reached(done, ServerState(**parts), tensors["uploads"])

    def _check(self, done: int, tensors: dict[str, Tensor]) -> None:
        """Refuse tensors that are not those of this comparison after `done` rounds."""
        wanted = self._tensors(self.at._replace(rounds=done))
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in wanted.items()}
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if found != shapes or done > self.rounds:
            raise self._folder.damaged()


class Grams(NamedTuple):
    """What `gradients.npz` keeps of a finished run."""

    inner: np.ndarray  # [run, round, client, client]
    payload_bits: float


def stored_grams(folder: Path, config: Config, policies: int) -> Grams:
    """The Gram matrices of a run of so many policies that learn; refused if they are not its."""
    path, clients = folder / "gradients.npz", config.learning.clients
    stored = read_npz(path, ("inner", "payload_bits"))
    inner, payload = (stored.get(name, np.zeros(0)) for name in Grams._fields)
    wanted = (config.run.seeds * policies, config.run.rounds, clients, clients)
    if inner.shape != wanted or inner.dtype != np.float32:
        raise UserError(f"{str(path)!r} does not belong to this run: it must hold {list(wanted)}.")
    if payload.size != 1 or payload.dtype.kind != "f" or not 0 < payload.item() < np.inf:
        raise UserError(f"{str(path)!r} does not belong to this run: payload_bits is missing.")
    return Grams(inner, payload.item())
