"""Objects users bring along, named `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys

from fedfade.errors import UserError, not_allowed


def load_dotted(field: str, path: str) -> object:
    """The object `module:attribute` names; modules in the working folder are found too.

    >>> load_dotted("learning.model", "math:sqrt")(9)
    3.0
    """
    module_name, separator, attribute = path.partition(":")
    if not (separator and module_name and attribute):
        raise not_allowed(field, path, "a built-in name or of the form module:attribute")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise UserError(f"{field} = {path!r} cannot be loaded: {one_line(error)}.") from None
    finally:
        if added:
            sys.path.remove(here)
    return found


def one_line(error: Exception) -> str:
    """What a user's code raised, to end a sentence with."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:200]
