"""The list of readings, kept as data: factors with levels, and which of them a reading takes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedfade.config import Config, changed, parse_yaml
from fedfade.errors import UserError, not_allowed, unknown
from fedfade.storage import read_bytes

OURS = Path(__file__).with_name("readings.yaml")
_MAX_BYTES = 100_000
NAME = r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,59}"
ALLOWED = "letters, digits and . + _ - alone, at most 60"


class Level(NamedTuple):
    """One way to read something the paper leaves open."""

    says: str
    fields: Mapping[str, Any]


class Reading(NamedTuple):
    """One reading of the whole paper: the levels that differ from the defaults, and all fields."""

    name: str
    levels: Mapping[str, str]
    fields: Mapping[str, Any]


class Plan(NamedTuple):
    """What is tried."""

    factors: Mapping[str, Mapping[str, Level]]  # of each factor the default first
    readings: Sequence[Reading]

    def chosen(self, only: Sequence[str]) -> list[Reading]:
        """Those named, or all."""
        names = [reading.name for reading in self.readings]
        for name in only:
            if name not in names:
                raise unknown(name, "reading", "the list", names)
        return [reading for reading in self.readings if not only or reading.name in only]


def load_plan(file: Path | None, base: Config) -> Plan:
    """Read a list of readings, ours if no file is given, and try each on the configuration."""
    path = file or OURS
    where = "the list of readings" if file is None else f"--readings {str(file)!r}"
    try:
        tree = parse_yaml(read_bytes(path, _MAX_BYTES).decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one
        raise UserError(f"{where} is not valid YAML ({error}).") from None
    found = _mapping(tree, where, ("factors", "readings"), needed=("factors", "readings"))
    plain = _mapping(found["factors"], f"factors of {where}")
    factors = {name: _levels(name, content, base) for name, content in plain.items()}
    owner: dict[str, str] = {}
    for factor, levels in factors.items():
        for field in dict.fromkeys(field for level in levels.values() for field in level.fields):
            if field in owner:
                raise UserError(f"factors {owner[field]!r} and {factor!r} both set {field}.")
            owner[field] = factor
    if not isinstance(found["readings"], list) or not found["readings"]:
        raise not_allowed(f"readings of {where}", found["readings"], "a list of readings")
    readings: list[Reading] = []
    for content in found["readings"]:
        reading = _reading(content, factors)
        for other in readings:
            if reading.name == other.name or reading.levels == other.levels:
                raise UserError(f"readings {other.name!r} and {reading.name!r} are the same twice.")
        _applied(base, reading.fields)
        readings.append(reading)
    return Plan(factors, readings)


def _mapping(
    value: object, what: str, keys: Sequence[str] = (), needed: Sequence[str] = ()
) -> dict[str, Any]:
    """A mapping of names; where `keys` are given of these alone, those `needed` among them."""
    if not isinstance(value, dict) or not value:
        raise not_allowed(what, value, "a mapping")
    for key in map(str, value):
        if keys and key not in keys:
            raise unknown(key, "key", what, keys)
        if not re.fullmatch(NAME, key):
            raise not_allowed(f"a name in {what}", key, ALLOWED)
    for key in needed:
        if key not in value:
            raise UserError(f"{what} has no {key!r}.")
    return {str(key): content for key, content in value.items()}


def _levels(factor: str, content: object, base: Config) -> dict[str, Level]:
    what = f"factor {factor!r}"
    asked = _mapping(content, what, ("default", "levels"), needed=("default", "levels"))
    levels = {}
    for name, level in _mapping(asked["levels"], f"levels of {what}").items():
        here = f"level {name!r} of {what}"
        own = _mapping(level, here, ("says", "set"), needed=("says",))
        fields = _mapping(own["set"], f"set of {here}") if own.get("set") else {}
        _applied(base, fields)
        levels[name] = Level(str(own["says"]), fields)
    default = str(asked["default"])
    if default not in levels:
        raise unknown(default, "level", what, levels)
    return {default: levels.pop(default), **levels}


def _reading(content: object, factors: Mapping[str, Mapping[str, Level]]) -> Reading:
    asked = _mapping(content, "a reading", ("name", "levels"), needed=("name",))
    name = str(asked["name"])
    if not re.fullmatch(NAME, name):
        raise not_allowed("name of a reading", name, ALLOWED)
    levels = {}
    plain = _mapping(asked["levels"], f"levels of reading {name!r}") if asked.get("levels") else {}
    for factor, level in plain.items():
        if factor not in factors:
            raise unknown(factor, "factor", f"reading {name!r}: the list", factors)
        if str(level) not in factors[factor]:
            raise unknown(str(level), "level", f"factor {factor!r}", factors[factor])
        if str(level) != next(iter(factors[factor])):
            levels[factor] = str(level)
    fields: dict[str, Any] = {}
    for factor, of_factor in factors.items():
        fields |= of_factor[levels.get(factor, next(iter(of_factor)))].fields
    return Reading(name, levels, fields)


def _applied(base: Config, fields: Mapping[str, Any]) -> Config:
    """The configuration with these fields; refused where one does not exist."""
    tree = base.model_dump()
    for field in fields:
        *sections, _ = field.split(".")
        branch: Any = tree
        for section in sections:
            branch = branch.get(section) if isinstance(branch, dict) else None
        if not sections or not isinstance(branch, dict):
            raise unknown(field, "field", "the configuration", tree)
    return changed(base, fields)
