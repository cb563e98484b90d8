"""Policies, seeds and rounds that are added to a finished run folder: only what is new is computed.

Runs are independent: what a policy does on a seed does not depend on what runs beside it. So the
folder stays the finished run it was while `FOLDER/more/` holds run folders of what is missing, each
continued like any other. When all are finished, everything is joined in `FOLDER/more/joined/` and
takes the place of the old files, `run.json` last: whenever the process dies, the same command
goes on. More rounds begin from the models that the run has kept, except under a policy that is told
how long a run is: its first rounds would be others.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfade.agents import QmixPolicy, trained_agents
from fedfade.allocation import GENIE, PERFECT, genie_bound
from fedfade.config import (
    Config,
    changed,
    content_of,
    differences,
    inputs_of,
    load_config,
    render_config,
)
from fedfade.device import one_thread
from fedfade.errors import UserError
from fedfade.experiments.comparison import (
    compared_names,
    compared_policy,
    model_name,
    runs_of,
    stored_grams,
    stored_rows,
    write_results,
)
from fedfade.experiments.metrics import Row, bound_row, rows_text
from fedfade.experiments.run_folder import (
    FREE_FIELDS,
    MORE,
    RESULTS,
    RunFolder,
    agents_digest,
    decisive,
    fingerprint,
    mark,
    provenance,
)
from fedfade.experiments.side_by_side import Tell, run_missing
from fedfade.experiments.uploads import Uplink
from fedfade.interrupts import interrupts_held
from fedfade.learning import Payload
from fedfade.storage import folder_lock, read_json, rename, write_json, write_text
from fedfade.wording import counted, listed

_LISTS = ("allocation.policies", "allocation.checkpoint")
_COUNTS = ("run.seed", "run.seeds", "run.rounds")
_FILES = ("config.yaml", *RESULTS, "checkpoint.safetensors", "run.json")  # the last makes it whole


Run = tuple[int, str]
"""Seed and policy."""


class Growth(NamedTuple):
    """A folder's run as it is, and as it is to be: equal where there is nothing to add."""

    there: Config
    whole: Config

    @property
    def seeds(self) -> list[range]:
        """Seeds to add, below and above those that are there."""
        old, new = _seeds(self.there), _seeds(self.whole)
        return [some for some in (range(new.start, old.start), range(old.stop, new.stop)) if some]

    @property
    def policies(self) -> list[str]:
        """Policies to add."""
        there = compared_names(self.there)
        return [name for name in compared_names(self.whole) if name not in there]

    @property
    def longer(self) -> bool:
        return self.whole.run.rounds > self.there.run.rounds

    def restarted(self) -> list[str]:
        """Policies that are there and play other first rounds in a longer run."""
        names = compared_names(self.there) if self.longer else []
        return [name for name in names if _knows_the_length(self.there, name)]

    def words(self) -> str:
        """What is added; nothing if all is there."""
        there, whole = self.there.run, self.whole.run
        parts = [listed(self.policies)] if self.policies else []
        if count := sum(map(len, self.seeds)):
            parts.append(counted(count, "seed"))
        if self.longer:
            parts.append(f"rounds {there.rounds} to {whole.rounds - 1}")
        return "; ".join(parts)

    def blocks(self) -> list[Config]:
        """Comparisons of what is missing; the first goes on from the kept models if the run becomes
        longer. The genie learns nothing and is left to the end."""
        learned = [name for name in compared_names(self.whole) if name != GENIE]
        left_out = (GENIE, *self.restarted())
        known = [name for name in compared_names(self.there) if name not in left_out]
        old, found = _seeds(self.there), []
        if self.longer and known:
            found.append(_part(self.whole, known, old))
        if new := [name for name in learned if name not in known]:
            found.append(_part(self.whole, new, old))
        return found + [_part(self.whole, learned, some) for some in self.seeds]


def _seeds(config: Config) -> range:
    return range(config.run.seed, config.run.seed + config.run.seeds)


def _part(whole: Config, policies: Sequence[str], seeds: range) -> Config:
    """Some policies and seeds of a comparison."""
    agents = {name: str(path) for name, path in trained_agents(whole).items() if name in policies}
    given = whole.allocation.checkpoint
    several = list(agents.values()) or None
    fields = {
        "allocation.policies": list(policies),
        "allocation.checkpoint": given if isinstance(given, str) and agents else several,
        "run.seed": seeds.start,
        "run.seeds": len(seeds),
    }
    return changed(whole, fields)


def _knows_the_length(config: Config, name: str) -> bool:
    """Whether a policy may act on how long a run is; of a user's own nobody knows."""
    if name in (PERFECT, GENIE):
        return False
    policy = compared_policy(config, name)
    if isinstance(policy, QmixPolicy):
        return any(part == "round" or ":" in part for part in policy.observed.observe)
    return not type(policy).__module__.startswith("fedfade.allocation.")


def growth(path: Path, asked: Config) -> Growth | None:
    """What has to be added to the run in a folder to have what is asked besides; None if it has no
    run yet, or one of another kind."""
    _settle(path)
    if not (path / "run.json").is_file() or not (path / "config.yaml").is_file():
        return None
    stored = load_config(path / "config.yaml", stored=True)
    inside = set(_seeds(stored)) <= set(_seeds(asked)) and stored.run.rounds <= asked.run.rounds
    if not inside or differences(stored, asked, (*FREE_FIELDS, *_LISTS, *_COUNTS)):
        return None
    there, wanted = stored.allocation.policies, asked.allocation.policies
    if not set(there) <= set(wanted):
        wanted = [*there, *(name for name in wanted if name not in there)]
    agents = asked.allocation.checkpoint or stored.allocation.checkpoint
    whole = changed(asked, dict(zip(_LISTS, (wanted, agents), strict=True)))
    fields = {section: getattr(stored, section).model_dump() for section in ("allocation", "run")}
    for field in FREE_FIELDS:
        section, name = field.split(".")
        if section in fields:
            fields[section][name] = getattr(getattr(asked, section), name)
    found = Growth(changed(asked, fields), whole)
    parts = found.there, *found.blocks()
    return found if all(_same_meaning(part, whole) for part in parts) else None


def _same_meaning(part: Config, whole: Config) -> bool:
    """Whether every policy of a part goes by the same name in the whole, and is the same."""
    own, every = trained_agents(part), trained_agents(whole)
    names = compared_names(part)
    return {*names} <= {*compared_names(whole)} and all(own.get(n) == every.get(n) for n in names)


def grow(
    folder: RunFolder,
    asked: Growth,
    device: torch.device,
    tell: Tell,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Compute what is missing in a finished folder that is open, and join it to what is there."""
    if not isinstance(folder.record.get("models"), dict):
        why = "it was made by a version that kept no digests of models"
        raise UserError(f"nothing can be added to the run in {str(folder.path)!r}: {why}.")
    with ExitStack() as stack:
        blocks = []
        for config in asked.blocks():
            name = mark(decisive(config), content_of(inputs_of(config)), agents_digest(config))
            block = RunFolder(folder.more / name, config, device, keeps_models=True)
            stack.enter_context(block.open())
            blocks.append(block)
        if asked.longer:
            if restarted := asked.restarted():
                say(f"from round 0 again, as how long a run is may matter: {listed(restarted)}")
            if blocks and set(compared_names(blocks[0].config)) <= set(compared_names(asked.there)):
                _hand_over(folder, blocks[0], say)
        run_missing(blocks, device, tell, say)
        with interrupts_held():
            _join(folder, blocks, asked, device)
    _take_joined(folder.path)


def _hand_over(folder: RunFolder, block: RunFolder, say: Callable[[str], None]) -> None:
    """Let a block begin where the finished run ended, if the run has kept its models."""
    if block.finished or block.checkpoint.exists():
        return
    if (stored := folder.load_checkpoint()) is None:
        say("the run has not kept its models: all rounds are computed again")
        return
    done, tensors, _ = stored
    names, every = compared_names(block.config), block.config.run.evaluate_every
    rows = [row for row in stored_rows(folder) if row.policy in names]
    if done % every:  # the last round was tested for being the last
        untested: dict[str, Any] = dict.fromkeys(
            ("accuracy", "loss", "accuracy_averaged"), math.nan
        )
        rows = [row if row.round < done - 1 else row._replace(**untested) for row in rows]
    runs = [place for place, (_, name) in enumerate(runs_of(folder.config)) if name in names]
    own = {name: _of_runs(name, tensor, runs) for name, tensor in tensors.items()}
    text = rows_text(rows)
    write_text(block.metrics, text)
    block.save_checkpoint(done, own, fingerprint(text))


def _of_runs(name: str, tensor: Tensor, runs: Sequence[int]) -> Tensor:
    """Some runs of a tensor of a checkpoint."""
    return tensor[:, runs] if name == "grams" else tensor[runs]


class _Left(NamedTuple):
    """What finished runs have left, by run."""

    grams: dict[Run, np.ndarray]  # [round, client, client]
    models: dict[str, str]  # digests, by `model_name`
    facts: dict[str, dict[str, str]]  # about policies
    states: dict[Run, dict[str, Tensor]]  # of a checkpoint, if it was kept


def _left_by(parts: Sequence[RunFolder]) -> tuple[_Left, Payload]:
    """All that finished parts of one run have left, and the payload, which is the same in all."""
    left = _Left({}, {}, {"scopes": {}, "about": {}}, {})
    for part in parts:
        runs, record = runs_of(part.config), part.record
        inner, payload = stored_grams(part.path, part.config, len(runs) // part.config.run.seeds)
        left.grams.update(zip(runs, inner, strict=True))
        for known, name in ((left.models, "models"), *((left.facts[n], n) for n in left.facts)):
            found = record.get(name, {})
            if not isinstance(found, dict):
                raise UserError(f"run.json in {str(part.path)!r} is not a run record.")
            known |= found  # noqa: PLW2901 - in place
        if (kept := part.load_checkpoint()) is not None:
            for place, run in enumerate(runs):
                left.states[run] = {n: _of_runs(n, kept[1][n], [place]) for n in kept[1]}
    return left, payload


def _join(
    folder: RunFolder, blocks: Sequence[RunFolder], asked: Growth, device: torch.device
) -> None:
    """Write what the whole run leaves, from finished parts, into a folder of its own."""
    whole, runs, names = asked.whole, runs_of(asked.whole), compared_names(asked.whole)
    joined = RunFolder(folder.more / "joined", whole, device, keeps_models=True)
    shutil.rmtree(joined.path, ignore_errors=True)  # half of one, after a kill
    # A longer run has all its old policies in blocks; the genie's bounds stay what they were.
    rows = [row for row in stored_rows(folder) if row.policy == GENIE or not asked.longer]
    rows += [row for block in blocks for row in stored_rows(block)]
    left, payload = _left_by(blocks if asked.longer and blocks else [folder, *blocks])
    rows = _in_order([*rows, *_missing_bounds(rows, whole, payload, device)], whole)
    write_text(joined.path / "config.yaml", render_config(whole))
    if set(left.states) == set(runs):
        tensors = {
            name: torch.cat([left.states[run][name] for run in runs], int(name == "grams"))
            for name in left.states[runs[0]]
        }
        joined.save_checkpoint(whole.run.rounds, tensors, fingerprint(rows_text(rows)))
    else:
        folder.checkpoint.unlink(missing_ok=True)  # of other runs than the folder will hold
    write_json(joined.path / "run.json", _grown_record(folder, asked, device))
    grams = np.stack([left.grams[run] for run in runs])
    models = {model_name(*run): left.models[model_name(*run)] for run in runs}
    facts = {
        fact: {name: known[name] for name in names if name in known}
        for fact, known in left.facts.items()
    }
    write_results(joined, rows, runs, grams, payload, models, facts)


def _grown_record(folder: RunFolder, asked: Growth, device: torch.device) -> dict[str, Any]:
    """Who made the run, and who added to it; it is not finished before its results are there."""
    made = provenance(asked.whole, device)
    who = ("fedfade", "torch", "device", "commit", "command", "started")
    added = {"what": asked.words(), **{name: made[name] for name in who}}
    record = folder.record
    own = {"agents": made["agents"], "inputs": made["inputs"], "finished": None}
    return record | own | {"grown": [*record.get("grown", []), added]}


def _missing_bounds(
    rows: Iterable[Row], whole: Config, payload: Payload, device: torch.device
) -> list[Row]:
    """The genie's bounds of seeds and rounds that are not among the rows, if it is asked for."""
    if GENIE not in compared_names(whole):
        return []
    known = {(row.seed, row.round) for row in rows if row.policy == GENIE}
    uplink, found = Uplink(whole, payload, device), []
    for number in range(whole.run.rounds):
        if all((seed, number) in known for seed in uplink.seeds):
            continue
        with one_thread():
            bounds = genie_bound(uplink.scenario, uplink.round(number)).tolist()
        each = zip(uplink.seeds, bounds, strict=True)
        found += [bound_row(s, GENIE, number, b) for s, b in each if (s, number) not in known]
    return found


def _in_order(rows: Iterable[Row], config: Config) -> list[Row]:
    """As a run writes them: round by round, the genie's bounds after the runs."""
    place = {run: number for number, run in enumerate(runs_of(config))}

    def order(row: Row) -> tuple[int, int]:
        return row.round, place.get((row.seed, row.policy), len(place) + row.seed)

    return sorted(rows, key=order)


def _settle(path: Path) -> None:
    """After a kill while a joined run took its place: let it have it."""
    record = path / MORE / "joined" / "run.json"
    if record.is_file() and read_json(record).get("finished") is not None:
        with folder_lock(path):
            _take_joined(path)


def _take_joined(path: Path) -> None:
    joined = path / MORE / "joined"
    for name in _FILES:
        if (joined / name).exists():
            rename(joined / name, path / name)
    shutil.rmtree(path / MORE, ignore_errors=True)
