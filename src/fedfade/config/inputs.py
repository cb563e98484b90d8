"""A user's code, data, traces and speeds, known by content: no run is continued with others."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from fedfade.config.tree import Config
from fedfade.errors import UserError
from fedfade.seams import source_file
from fedfade.storage import sha256_of

_BUILT_IN = {"digits", "cifar10", "learning", "synthetic", "64qam", "256qam", None}


def content_digest(place: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder's arrays; None if not there."""
    if place.is_file():
        return sha256_of(place)
    if not place.is_dir():
        return None
    parts = [f"{path.name} {content_digest(path)}" for path in sorted(place.glob("*.npz"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def inputs_of(
    config: Config,
    training: bool = False,
    digest: Callable[[Path], str | None] = content_digest,
) -> dict[str, str]:
    """SHA-256 of a user's modules, data, traces and speeds, by what the configuration calls them.

    What is not there is left out. Of a module only its own file counts, not what it imports. A
    training is made without the policies but for its teacher, and perhaps from recorded gradients.
    """
    learning, allocation, radio = config.learning, config.allocation, config.radio
    replaced = [*allocation.observe, learning.model, learning.codec, learning.server, radio.source]
    replaced += [radio.link]
    replaced += [config.qmix.teacher] if training else allocation.policies
    gradients = config.qmix.gradients if training else None
    files = {learning.data, radio.traces, radio.nr.table, radio.nr.curves, config.cost.speeds}
    files = (files | {gradients}) - _BUILT_IN
    places = {name: source_file(name) for name in replaced if ":" in name}
    places |= {name: Path(name) for name in sorted(map(str, files))}
    digests = {name: digest(place) for name, place in places.items() if place is not None}
    return {name: found for name, found in digests.items() if found is not None}


def check_same_inputs(path: Path, then: object, now: Mapping[str, str]) -> None:
    """Refuse what is not as it was when the run in `path` began; old runs do not say."""
    for name, found in now.items():
        if isinstance(then, dict) and then.get(name) not in (None, found):
            raise UserError(
                f"{name!r} has changed since the run in {str(path)!r} began: choose another folder "
                "for a run of it, or bring the old one back."
            )
