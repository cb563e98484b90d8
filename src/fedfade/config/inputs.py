"""A user's code, data, traces and speeds, known by content: no run is continued with others."""

import ast
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from fedfade.config.tree import Config
from fedfade.errors import UserError
from fedfade.seams import source_file
from fedfade.storage import read_bytes, sha256_of

_MAX_SOURCE_BYTES = 16 * 2**20
_BUILT_IN = {"digits", "cifar10", "learning", "synthetic", "64qam", "256qam", None}


def content_digest(place: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder's arrays; None if not there."""
    if place.is_file():
        return sha256_of(place)
    if not place.is_dir():
        return None
    parts = [f"{path.name} {content_digest(path)}" for path in sorted(place.glob("*.npz"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def code_digest(source: bytes) -> str | None:
    """SHA-256 of what a module does: comments, docstrings, blank lines and layout do not count.

    >>> code_digest(b"x = 1  # one") == code_digest(b"'A module.'\\n\\nx = (1)")
    True
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # loading it will say so
    for node in ast.walk(tree):
        match body := getattr(node, "body", None):
            case [ast.Expr(ast.Constant(str())), *_]:  # a docstring
                del body[0]
    return hashlib.sha256(ast.dump(tree).encode(errors="surrogatepass")).hexdigest()


def inputs_of(
    config: Config, training: bool = False, digest: Callable[[Path], str | None] = content_digest
) -> dict[str, str]:
    """SHA-256 of a user's modules, data, traces and speeds, by what the configuration calls them.

    What is not there is left out. Of a module only its own file counts, not what it imports; a
    second digest is of its code alone, which another version of Python may see differently. A
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
    known = {name: found for name, found in digests.items() if found is not None}
    for name in known:
        place = places[name]
        if place is not None and place.suffix == ".py":
            code = code_digest(read_bytes(place, _MAX_SOURCE_BYTES))
            known[name] += f" {code}" if code else ""
    return known


def content_of(inputs: Mapping[str, str]) -> dict[str, str]:
    """What `inputs_of` found, by what counts: of modules their code."""
    return {name: digests.split()[-1] for name, digests in inputs.items()}


def check_same_inputs(path: Path, then: object, now: Mapping[str, str]) -> None:
    """Refuse what is not as it was when the run in `path` began; old runs do not say."""
    for name, found in now.items():
        before = then.get(name) if isinstance(then, dict) else None
        if before is not None and not {*str(before).split()} & {*found.split()}:
            what = " (more than comments)" if ":" in name else ""
            raise UserError(
                f"{name!r} has changed{what} since the run in {str(path)!r} began: give the new "
                "one a folder of its own by --out, begin anew by --overwrite, or bring the old one "
                "back."
            )
