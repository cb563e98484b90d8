"""What a run takes from outside, known by its content: agents, a user's code, a user's files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfade.agents import has_checkpoint, load_checkpoint, trained_agents
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.seams import source_file
from fedfade.storage import sha256_of


def inputs_of(config: Config) -> dict[str, str]:
    """SHA-256 of a user's modules, data and traces, by what the configuration calls them.

    What is not there is left out. Of a module only its own file counts, not what it imports.

    >>> from fedfade.config import load_config
    >>> inputs_of(load_config("quickstart"))
    {}
    """
    learning, replaced = config.learning, [*config.allocation.policies, *config.allocation.observe]
    replaced += [learning.model, learning.codec, learning.server, config.radio.source]
    code = [name for name in replaced if ":" in name]
    files = {learning.data, config.radio.traces} - {"digits", "cifar10", None}
    places = {name: source_file(name) for name in code}
    places |= {name: Path(name) for name in sorted(map(str, files))}
    digests = {name: _digest(place) for name, place in places.items() if place is not None}
    return {name: found for name, found in digests.items() if found is not None}


def _digest(place: Path) -> str | None:
    """Of a file, or of the names and contents of a folder's arrays."""
    if place.is_file():
        return sha256_of(place)
    if not place.is_dir():
        return None
    parts = [f"{path.name} {_digest(path)}" for path in sorted(place.glob("*.npz"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


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
    known = record.get("inputs")
    for name, found in inputs_of(config).items():
        before = known.get(name) if isinstance(known, dict) else None
        needed = policy is None or name in (policy, config.radio.traces)
        if needed and before not in (None, found):
            raise UserError(
                f"{name!r} has changed since the run in {str(path)!r} began: choose another folder "
                "for a run of it, or bring the old one back."
            )
