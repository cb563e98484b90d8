"""What users can replace: policies, codecs, server rules, fading sources, observation parts.

Each seam is a small protocol with a table of what is built in. An implementation is named by its
entry in the table, by an entry point of the seam's group, or as `module:factory`; a built-in name
stands for such a dotted path too, so that this file imports nothing of what it lists.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

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

    >>> source_file("fedfade.seams:source_file").name
    'seams.py'
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


@dataclass(frozen=True)
class Seam:
    """One kind of thing a user can replace."""

    field: str  # what an error calls it
    group: str  # of entry points
    protocol: str  # where to read what is needed
    members: tuple[str, ...]  # what every implementation has
    built_in: Mapping[str, str]  # name -> module:factory

    def names(self) -> list[str]:
        """Everything that can be asked for by name."""
        return [*self.built_in, *(entry.name for entry in entry_points(group=self.group))]

    def check(self, name: str, others: Sequence[str] = ()) -> str:
        """Refuse a name nobody knows; `others` are names the caller knows.

        >>> CODECS.check("float16")
        'float16'
        >>> CODECS.check("zip")
        Traceback (most recent call last):
        fedfade.errors.UserError: learning.codec = 'zip' is not allowed: it must be one of none, \
float16, or module:factory.
        """
        if ":" in name or name in self.built_in:  # entry points are slow to list
            return name
        if name not in (known := [*self.names(), *others]):
            raise not_allowed(self.field, name, f"one of {', '.join(known)}, or module:factory")
        return name

    def make(self, name: str, *given: object, others: Sequence[str] = ()) -> Any:
        """The implementation a name stands for, made from what its factory is given.

        A dotted path is code of the user's that will run.
        """
        self.check(name, others)
        factory = self._factory(name)
        try:
            made = factory(*given) if callable(factory) else factory
        except UserError:
            raise
        except Exception as error:
            if name in self.built_in:  # a fault of our own: its trace is what is needed
                raise
            kind = self.field.rpartition(".")[2]
            raise UserError(f"{kind} {name!r} cannot be made: {one_line(error)}.") from None
        for member in self.members:
            if not hasattr(made, member):
                kind = self.field.rpartition(".")[2]
                raise UserError(
                    f"{kind} {name!r} has no {member!r}: {self.protocol} says what is needed."
                )
        return made

    def _factory(self, name: str) -> Any:
        if name in self.built_in:
            return load_dotted(self.field, self.built_in[name])
        for entry in entry_points(group=self.group):
            if entry.name == name:
                try:
                    return entry.load()
                except Exception as error:  # whatever the package raises while it is imported
                    reason = one_line(error)
                    raise UserError(
                        f"{self.field} = {name!r} cannot be loaded: {reason}."
                    ) from None
        return load_dotted(self.field, name)


POLICIES = Seam(
    "policy",
    "fedfade.policies",
    "fedfade.allocation.Policy",
    ("name", "scope", "begin", "act"),
    {
        "random": "fedfade.allocation.random_band:RandomBand",
        "max-individual-rate": "fedfade.allocation.max_individual_rate:MaxIndividualRate",
        "max-sum-rate": "fedfade.allocation.max_sum_rate:MaxSumRate",
        "block-fading-schedule": "fedfade.allocation.schedules:BlockFadingSchedule",
        "wrap-around-schedule": "fedfade.allocation.schedules:WrapAroundSchedule",
        "wrap-around-choice": "fedfade.allocation.schedules:WrapAroundChoice",
        "block-fading-schedule-feedback": "fedfade.allocation.schedules:FinishFeedbackSchedule",
        "shortest-remaining-first": "fedfade.allocation.schedules:ShortestRemainingFirst",
        "deadline-feedback": "fedfade.allocation.deadline:DeadlineFeedback",
        "deadline-matching": "fedfade.allocation.deadline:DeadlineMatching",
    },
)
"""Who sends where; made without arguments."""

CODECS = Seam(
    "learning.codec",
    "fedfade.codecs",
    "fedfade.learning.Codec",
    ("bits", "encode", "decode"),
    {
        "none": "fedfade.learning.codecs:AsTrained",
        "float16": "fedfade.learning.codecs:Float16",
    },
)
"""Update -> bits -> update; made from the learning configuration."""

SERVER_RULES = Seam(
    "learning.server",
    "fedfade.server_rules",
    "fedfade.learning.ServerRule",
    ("init", "apply"),
    {
        "mean": "fedfade.learning.server_rules:Mean",
        "momentum": "fedfade.learning.server_rules:Momentum",
    },
)
"""What is averaged and remembered; made from the learning configuration."""

FADING = Seam(
    "radio.source",
    "fedfade.fading",
    "fedfade.radio.FadingSource",
    ("gains",),
    {
        "clustered": "fedfade.radio.fading:ClusteredFading",
        "rayleigh": "fedfade.radio.fading:RayleighFading",
        "traces": "fedfade.radio.traces:TraceFading",
    },
)
"""Where small-scale gains come from; made from radio and cell configuration, clients, device."""

PARTS = Seam(
    "allocation.observe",
    "fedfade.observation_parts",
    "fedfade.uplink.Part",
    ("width", "fill"),
    {},
)
"""One named part of an agent's observation."""
