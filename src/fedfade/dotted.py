"""Objects users bring along, named `module:attribute`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfade.errors import UserError, not_allowed


def load_dotted(field: str, path: str) -> object:
    """The object `module:attribute` names; modules in the working folder are found too.

    >>> load_dotted("learning.model", "math:sqrt")(9)
    3.0
    """
    module_name, separator, attribute = path.partition(":")
    if not (separator and module_name and attribute):
        raise not_allowed(field, path, "a built-in name or of the form module:attribute")
    try:
        with _working_folder():
            found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise UserError(f"{field} = {path!r} cannot be loaded: {one_line(error)}.") from None
    return found


def source_file(path: str) -> Path | None:
    """The file of the module `module:attribute` names, if it has one.

    >>> source_file("fedfade.dotted:source_file").name
    'dotted.py'
    """
    with _working_folder():
        try:
            spec = importlib.util.find_spec(path.partition(":")[0])
        except Exception:  # a parent package that does not load; loading it will say so
            return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


@contextmanager
def _working_folder() -> Iterator[None]:
    """Modules are looked for in the working folder too."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)


def one_line(error: Exception) -> str:
    """What a user's code raised, to end a sentence with."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:200]
