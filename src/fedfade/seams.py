"""What users can replace: policies, codecs, server rules, fading, links, observation parts, sweeps.

Each seam is a small protocol with a table of what is built in. An implementation is named by its
entry in the table, by an entry point of the seam's group, or as `module:factory`; a built-in name
stands for such a dotted path too, so that this file imports nothing of what it lists.
"""

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fedfade.errors import UserError, not_allowed, out_of_memory


def load_dotted(field: str, path: str) -> object:
    """The object `module:attribute` names; modules in the working folder are found too.

    >>> load_dotted("learning.model", "math:sqrt")(9)
    3.0
    """
    if not all(path.partition(":")):
        raise not_allowed(field, path, "a built-in name or of the form module:attribute")
    try:
        with _working_folder():
            return pkgutil.resolve_name(path)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise _not_loaded(field, path, error) from None


def _not_loaded(field: str, name: str, error: Exception) -> UserError:
    return UserError(f"{field} = {name!r} cannot be loaded: {one_line(error)}.")


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


def ask(who: str, made: object, question: str, *given: object) -> Any:
    """What an implementation answers; whatever a user's raises becomes one sentence.

    A fault of our own stays one: its trace is what is needed to mend it.
    """
    try:
        return getattr(made, question)(*given)
    except UserError:
        raise
    except Exception as error:
        ours = type(made).__module__.startswith("fedfade.")
        if ours or out_of_memory(error, "") is not None:
            raise
        inside = error.__traceback__ and error.__traceback__.tb_next
        place = ""  # where it could not even be called
        if inside is not None:
            file = Path(inside.tb_frame.f_code.co_filename).name
            place = f" ({file}, line {inside.tb_lineno})"
        kind = type(error).__name__
        raise UserError(f"{who} raised {kind} in {question}{place}: {one_line(error)}.") from error


@cache
def entries(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, listed once: that reads a file of every installed package."""
    return tuple(entry_points(group=group))


@dataclass(frozen=True)
class Seam:
    """One kind of thing a user can replace."""

    field: str  # where it is asked for
    group: str  # of entry points
    protocol: str  # where to read what is needed
    members: tuple[str, ...]  # what every implementation has
    built_in: Mapping[str, str]  # name -> module:factory

    def names(self) -> list[str]:
        """Everything that can be asked for by name."""
        return [*self.built_in, *(entry.name for entry in entries(self.group))]

    def check(self, name: str, *, others: Sequence[str] = ()) -> str:
        """Refuse a name nobody knows; `others` are names the caller knows.

        >>> CODECS.check("float16")
        'float16'
        >>> CODECS.check("zip")
        Traceback (most recent call last):
        fedfade.errors.UserError: learning.codec = 'zip' is not allowed: it must be one of none, \
float32, float16, int8, int4, sign, topk, lowrank, int8-progressive, topk-progressive, or \
module:factory.
        """
        if ":" in name or name in self.built_in or name in others:  # entry points are slow to list
            return name
        if name not in (known := [*self.names(), *others]):
            allowed = f"one of {', '.join(known)}, or module:factory"
            raise not_allowed(self.field, name, allowed, known)
        return name

    def make(self, name: str, *given: object, others: Sequence[str] = ()) -> Any:
        """The implementation a name stands for, made from what its factory is given.

        A dotted path is code of the user's that will run.
        """
        factory = self._factory(self.check(name, others=others))
        try:
            made = factory(*given) if callable(factory) else factory
        except UserError:
            raise
        except Exception as error:
            if name in self.built_in:  # a fault of our own: its trace is what is needed
                raise
            raise UserError(f"{self.field} {name!r} cannot be made: {one_line(error)}.") from None
        for member in self.members:
            if not hasattr(made, member):
                needed = f"{self.protocol} says what is needed"
                raise UserError(f"{self.field} {name!r} has no {member!r}: {needed}.")
        return made

    def own(self, name: str) -> Any:
        """The factory of a built-in name; None for any other, of which nothing is loaded."""
        return pkgutil.resolve_name(self.built_in[name]) if name in self.built_in else None

    def _factory(self, name: str) -> Any:
        if name in self.built_in:  # and never a module of the working folder in its place
            return self.own(name)
        for entry in entries(self.group):
            if entry.name == name:
                try:
                    return entry.load()
                except Exception as error:  # whatever the package raises while it is imported
                    raise _not_loaded(self.field, name, error) from None
        return load_dotted(self.field, name)


POLICIES = Seam(
    "policy",
    "fedfade.policies",
    "fedfade.allocation.Policy",
    ("name", "scope", "begin", "act"),
    {
        "random": "fedfade.allocation.baselines:RandomBand",
        "max-individual-rate": "fedfade.allocation.baselines:MaxIndividualRate",
        "max-sum-rate": "fedfade.allocation.max_sum_rate:MaxSumRate",
        "block-fading-schedule": "fedfade.allocation.schedules:BlockFadingSchedule",
        "wrap-around-schedule": "fedfade.allocation.schedules:WrapAroundSchedule",
        "wrap-around-choice": "fedfade.allocation.schedules:WrapAroundChoice",
        "wrap-around-feedback": "fedfade.allocation.schedules:WrapAroundFeedback",
        "wrap-around-pairs": "fedfade.allocation.schedules:WrapAroundPairs",
        "wrap-around-age": "fedfade.allocation.schedules:WrapAroundAge",
        "wrap-around-innovation": "fedfade.allocation.schedules:WrapAroundInnovation",
        "block-fading-schedule-feedback": "fedfade.allocation.schedules:FinishFeedbackSchedule",
        "shortest-remaining-first": "fedfade.allocation.schedules:ShortestRemainingFirst",
        "deadline-feedback": "fedfade.allocation.deadline:DeadlineFeedback",
        "deadline-matching": "fedfade.allocation.deadline:DeadlineMatching",
        "deadline-progress": "fedfade.allocation.deadline:DeadlineProgress",
        "csi-matching": "fedfade.allocation.deadline:CsiMatching",
        "progressive-schedule": "fedfade.allocation.progressive:ProgressiveSchedule",
        "progressive-matching": "fedfade.allocation.progressive:ProgressiveMatching",
    },
)
"""Who sends where; made without arguments."""

CODECS = Seam(
    "learning.codec",
    "fedfade.codecs",
    "fedfade.learning.Codec",
    ("encode", "decode"),
    {
        "none": "fedfade.learning.codecs:AsTrained",
        "float32": "fedfade.learning.codecs:AsTrained",
        "float16": "fedfade.learning.codecs:Float16",
        "int8": "fedfade.learning.codecs:Int8",
        "int4": "fedfade.learning.codecs:Int4",
        "sign": "fedfade.learning.codecs:Sign",
        "topk": "fedfade.learning.codecs:TopK",
        "lowrank": "fedfade.learning.codecs:LowRank",
        "int8-progressive": "fedfade.learning.codecs:Int8Planes",
        "topk-progressive": "fedfade.learning.codecs:TopK",
    },
)
"""Update -> bits -> update; made from the learning configuration and the sizes of its tensors."""

SERVER_RULES = Seam(
    "learning.server",
    "fedfade.server_rules",
    "fedfade.learning.ServerRule",
    ("init", "apply"),
    {
        "mean": "fedfade.learning.server_rules:Mean",
        "momentum": "fedfade.learning.server_rules:Momentum",
        "adam": "fedfade.learning.server_rules:Adam",
        "yogi": "fedfade.learning.server_rules:Yogi",
        "mifa": "fedfade.learning.server_rules:Mifa",
        "fedvarp": "fedfade.learning.server_rules:FedVarp",
        "scaffold": "fedfade.learning.server_rules:Scaffold",
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
        "gamma": "fedfade.radio.fading:GammaFading",
        "traces": "fedfade.radio.traces:TraceFading",
    },
)
"""Where small-scale gains come from; made from radio and cell configuration, clients, device."""

LINKS = Seam(
    "radio.link",
    "fedfade.links",
    "fedfade.radio.Link",
    ("send", "efficiency"),
    {
        "shannon": "fedfade.radio.links:Shannon",
        "capped": "fedfade.radio.links:Capped",
        "nr": "fedfade.radio.nr:Nr",
    },
)
"""What gets through of a slot; made from the radio configuration and the device."""

_PARTS = ["alphas", "fading", "remaining", "slots_left", "deviation", "round", "finished"]
_PARTS += ["others_fading", "schedule", "reservation", "time_to_finish", "order", "slack"]
_PARTS += ["finished_order", "order_fading", "ready"]
PARTS = Seam(
    "allocation.observe",
    "fedfade.observation_parts",
    "fedfade.uplink.Part",
    ("told", "width", "static"),
    {name: f"fedfade.uplink.parts:{name.upper()}" for name in _PARTS},
)
"""One named part of an agent's observation; made without arguments."""

SWEEP_COMMANDS = Seam(
    "sweep field command",
    "fedfade.sweep_commands",
    "fedfade.experiments.sweep_commands.SweepCommand",
    ("marker", "run", "lines"),
    {
        "compare": "fedfade.experiments.sweep_commands:Compare",
        "train": "fedfade.experiments.sweep_commands:Train",
        "reproduce": "fedfade.studies.reproduction:Reproduce",
    },
)
"""What every point of a sweep runs; made without arguments."""
