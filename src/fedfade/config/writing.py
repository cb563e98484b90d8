"""A configuration as commented YAML, and what two of them differ in."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from fedfade.config.tree import Config, Named


def render_config(config: Config) -> str:
    """The full tree as YAML with each field's description as a comment."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(branch: BaseModel, pad: str) -> Iterator[str]:
    for name, field in type(branch).model_fields.items():
        value = getattr(branch, name)
        if isinstance(value, BaseModel):
            yield f"{pad}{name}:  # {field.description}"
            yield from _lines(value, pad + "  ")
        else:
            choices = " | ".join(_choices(field.annotation, field.metadata))
            note = f"{field.description}{choices and f' ({choices})'}"
            yield f"{pad}{name}: {_quoted(value)}  # {note}"


def _quoted(value: object) -> str:
    """As YAML reads it: JSON, but YAML takes an escaped pair of surrogates for two characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _choices(kind: Any, marks: Iterable[object] = ()) -> list[str]:
    """The alternatives of a field or of a list's entries, for its comment."""
    for mark in marks:
        if isinstance(mark, Named):
            return [*mark.seam.names(), "module:factory"]
    if hasattr(kind, "__metadata__"):
        return _choices(kind.__origin__, kind.__metadata__)
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return _choices(get_args(kind)[0]) if get_origin(kind) is list else []


def differences(one: Config, other: Config, ignore: Sequence[str] = ()) -> list[str]:
    """Dotted names of the fields in which two configs differ."""
    theirs = dict(_leaves(other.model_dump()))
    ours = _leaves(one.model_dump())
    return [path for path, value in ours if value != theirs[path] and path not in ignore]


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
