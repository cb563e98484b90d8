"""Configurations as YAML: presets and `--set` to a checked tree, and a tree to a commented file."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from importlib import resources
from operator import getitem
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedfade.config.tree import Config
from fedfade.errors import UserError, not_allowed, unknown
from fedfade.seams import Seam
from fedfade.storage import read_bytes

_MAX_PRESET_BYTES = 100_000
_MAX_DIGITS = 300  # of a whole number: more are no float, and past 4,300 Python prints none
_PRESETS = resources.files("fedfade") / "presets"

_ADDED = """
    radio.client_antenna_gain_dbi radio.link radio.link_overhead radio.link_delay_slots
    radio.capped radio.nr learning.codec learning.codec_fraction
    learning.error_feedback learning.count_partial learning.payload_factors learning.server
    allocation.reward.finished
    run.restart qmix.algorithm qmix.mappo qmix.state qmix.client_id qmix.hold_slots
    qmix.hop_subbands qmix.power qmix.optimiser qmix.final_rate qmix.rmsprop_decay
    qmix.rmsprop_epsilon qmix.clip_gradient qmix.loss qmix.standardise_rewards qmix.mask_finished
    qmix.average_weights qmix.candidates qmix.candidate_rounds qmix.layouts qmix.gain_spread_db
    qmix.network qmix.sizes learning.server_beta1 learning.server_beta2 learning.server_tau
    learning.average_models learning.codec_rank qmix.teacher qmix.lessons qmix.lesson_episodes
    qmix.play_hold_slots qmix.lesson_margin
    cost run.deadline run.deadline_clients run.train_absent
    radio.receive_antennas radio.receiver cell.interference_cells cell.interference_activity
    cell.announced_error_db cell.announced_above_db qmix.explore_decisions
"""  # fields whose default is what was done before them
_OTHERWISE = {"learning.previous_update": "last"}

_DEFAULTS = Config().model_dump()
BEFORE: dict[str, Any] = {p: reduce(getitem, p.split("."), _DEFAULTS) for p in _ADDED.split()}
BEFORE |= _OTHERWISE
"""What runs did before a field existed. The configuration a run leaves behind names every field its
version knew, so one it lacks is one of these."""

RENAMED = {"cell.placement": "cell.mobility"}
"""Old names of fields, which are still read."""


def preset_names() -> list[str]:
    """Names of the presets shipped with the package."""
    names = [file.name for file in _PRESETS.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def preset_summary(name: str) -> str:
    """The preset's own first comment line."""
    return _preset_text(name).partition("\n")[0].removeprefix("#").strip()


def load_config(
    preset: str | Path = "paper", overrides: Iterable[str] = (), stored: bool = False
) -> Config:
    """A preset (shipped name, or path of a YAML file) with `section.field=value` overrides.

    `stored`: the file is the config.yaml of a run, perhaps one of an older version.

    >>> load_config("paper", ["radio.clusters=28"]).radio.clusters
    28
    """
    try:
        tree = parse_yaml(_preset_text(str(preset)))
    except ValueError as error:
        raise UserError(f"{str(preset)!r} is not valid YAML ({error}).") from None
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise not_allowed(f"preset {str(preset)!r}", tree, "a mapping of sections to fields")
    tree = _with_new_names(tree)  # before overrides, which may use either name
    for override in overrides:
        _apply_override(tree, override)
    return config_from_tree(tree, stored)


def config_from_tree(tree: object, stored: bool = False) -> Config:
    """Check nested plain data; `stored`: a run left it, perhaps one of an older version."""
    if not isinstance(tree, dict):
        raise not_allowed("config", tree, "a mapping of sections to fields")
    tree = _with_new_names(tree)
    if stored:
        for path, value in _OTHERWISE.items():
            section, name = path.split(".")
            fields = tree.get(section, {})
            if isinstance(fields, dict):
                tree = tree | {section: {name: value} | fields}
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _first_fault(error) from None


def _with_new_names(tree: dict[str, Any]) -> dict[str, Any]:
    for path, new_path in RENAMED.items():
        (section, old), new = path.split("."), new_path.split(".")[1]
        fields = tree.get(section)
        if not isinstance(fields, dict) or old not in fields:
            continue
        if new in fields:
            raise not_allowed(path, fields[old], f"left out where its new name, {new_path}, is")
        renamed = {new if name == old else name: value for name, value in fields.items()}
        tree = tree | {section: renamed}
    return tree


def changed(config: Config, fields: Mapping[str, Any]) -> Config:
    """The same configuration with other values in some fields.

    >>> changed(load_config("paper"), {"radio.clusters": 28}).radio.clusters
    28
    """
    tree = config.model_dump()
    for path, value in fields.items():
        *sections, name = path.split(".")
        reduce(getitem, sections, tree)[name] = value
    return config_from_tree(tree)


def _preset_text(name: str) -> str:
    if name in preset_names():
        return (_PRESETS / f"{name}.yaml").read_text("utf-8")
    if not name.endswith((".yaml", ".yml")):
        known = ", ".join(preset_names())
        raise not_allowed("preset", name, f"one of {known}, or the path of a .yaml file")
    try:
        return read_bytes(name, _MAX_PRESET_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"preset {name!r} cannot be read: it is not UTF-8 text.") from None


# --- YAML ------------------------------------------------------------------------------------


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few hundred bytes of them can unfold to gigabytes, or to a value
    that holds itself. A key given twice is refused, for one of its values would be lost."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases, *name, are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if isinstance(key, yaml.ScalarNode) and name in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {key.value[:80]!r} is given twice")
            seen.add(name)
        return super().construct_mapping(node, deep)


# Numbers as YAML 1.2 has them. PyYAML's are of 1.1: 010 is 8, 1:30 is 90, 3e9 and 5.4e6 are text.
_WHOLE, _NUMBER = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_OTHERS = {_WHOLE, _NUMBER, "tag:yaml.org,2002:timestamp"}  # which 1.2 does not have
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OTHERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in (
    (_WHOLE, r"([-+]?\d+|0o[0-7]+|0x[\da-fA-F]+)$"),
    (_NUMBER, r"([-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"),
):
    _PlainLoader.add_implicit_resolver(_tag, re.compile(_pattern, re.ASCII), list("-+.0123456789"))


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if len(text) > _MAX_DIGITS:
        raise yaml.YAMLError(f"a number has {len(text)} digits")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_PlainLoader.add_constructor(_WHOLE, _whole)


def parse_yaml(text: str) -> Any:
    """Plain data from YAML; any fault is a ValueError with a short reason.

    >>> parse_yaml("a: [1, two]")
    {'a': [1, 'two']}
    """
    try:
        return _PlainLoader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise ValueError(f"line {mark.line + 1}" if mark else "its structure") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError):
        # What constructors of dates, numbers and tags leave uncaught.
        raise ValueError("a value is malformed") from None


def _apply_override(tree: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    *sections, name = RENAMED.get(path.strip(), path.strip()).split(".")
    if not separator or not all([*sections, name]):
        raise not_allowed("--set", override, "of the form section.field=value")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        allowed = f"section.field=value with a valid YAML value ({error})"
        raise not_allowed("--set", override, allowed) from None
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise not_allowed("--set", override, f"a field; {section!r} has no fields below it")
    tree[name] = value


# --- what the tree refuses -------------------------------------------------------------------


def _first_fault(error: ValidationError) -> UserError:
    """The first fault as the standard sentence; of a union, all that would be allowed."""
    faults = error.errors(include_url=False)
    first = faults[0]
    place = _place(first)
    if first["type"] == "extra_forbidden":
        fields: Any = Config.model_fields
        for parent in place[:-1]:
            fields = fields[parent].annotation.model_fields
        where = ".".join(place[:-1]) or "the top level"
        return unknown(".".join(place), "field", where, fields, quote="'")
    allowed = dict.fromkeys(_allowed(fault) for fault in faults if _place(fault) == place)
    return not_allowed(".".join(place), first.get("input"), " or ".join(allowed))


def _place(fault: ErrorDetails) -> list[str]:
    """Where it is, without the types of a union's members, which pydantic names too."""
    parts = [str(part) for part in fault["loc"]]
    if fault["type"] == "extra_forbidden":  # ends in a key of the user's
        return parts
    tags = ("constrained-float", "float", "int")
    return [part for part in parts if "[" not in part and part not in tags]


_ALLOWED = {
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a list of at least {min_length} entry",  # no list needs more
    "too_long": "a list of at most {max_length} entries",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "model_type": "a mapping of fields",
}


def _allowed(fault: ErrorDetails) -> str:
    context = fault.get("ctx", {})
    if fault["type"] == "literal_error":
        choices = str(context["expected"])
        return f"one of {choices}" if " or " in choices else choices
    words = _ALLOWED.get(fault["type"])
    return words.format(**context) if words else fault["msg"].lower()


# --- the file a run leaves -------------------------------------------------------------------


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
        if isinstance(mark, Seam):
            return [*mark.names(), "module:factory"]
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
