"""What is compared, kept as data: allocation x codec x server rule over the load, by parts."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fedfade.agents import shipped_policies, shipped_policies_for
from fedfade.config import Config, changed, load_config, parse_yaml
from fedfade.errors import not_allowed, unknown

FIRST_SEED = 2000
"""No agents that come with the package, and no settings of policies, were made on these."""
KEPT = 0.9  # of the mean of models every round

# Digits, two fifths of the slots for two fifths of the bits: minutes on two cores.
_SMALL = """
    learning.data=digits learning.batch_size=20 learning.payload_bits=3973184
    radio.slots=100 radio.subcarriers=5 run.seeds=3 run.rounds=20 run.evaluate_every=2
"""


class Scale(NamedTuple):
    """How large the study is."""

    changes: Sequence[str]
    early: int  # rounds after which runs are looked at for the first time


SCALES = {"small": Scale(_SMALL.split(), early=8), "paper": Scale(["run.seeds=5"], early=40)}


class Line(NamedTuple):
    """One combination, by the words of the list."""

    allocation: str
    codec: str
    server: str

    @property
    def name(self) -> str:
        return " ".join(self)


class LeverPart(NamedTuple):
    """Lines over some loads."""

    name: str
    says: str
    base: Config
    points: Mapping[str, Mapping[str, Any]]  # fields and `load` by name
    lines: Sequence[Line]

    def config(self, point: str) -> Config:
        """At a load."""
        return changed(self.base, {k: v for k, v in self.points[point].items() if k != "load"})


class LeverClaim(NamedTuple):
    """A difference that has to be at least so large, in points of accuracy."""

    part: str
    one: str
    other: str
    least: float
    beyond_noise: bool
    early: bool = False  # at the first look, not at the end


class Levers(NamedTuple):
    """The whole list."""

    allocations: Mapping[str, str]  # policies
    fields: Mapping[str, Mapping[str, Any]]  # of codecs and server rules
    parts: Sequence[LeverPart]
    claims: Sequence[LeverClaim]
    early: int  # rounds until the first look


def load_levers(
    scale: str, only: Sequence[str] = (), overrides: Sequence[str] = (), chosen: Sequence[str] = ()
) -> Levers:
    """The list at a scale: all parts or some, with all lines or those chosen."""
    if scale not in SCALES:
        raise not_allowed("--scale", scale, f"one of {', '.join(SCALES)}")
    tree = parse_yaml(Path(__file__).with_name("levers.yaml").read_text("utf-8"))
    asked = _known("part", only, tree["parts"])
    lines = _known("line", chosen, chain(*(tree["parts"][name]["lines"] for name in asked)))
    fixed = [f"run.seed={FIRST_SEED}", f"learning.average_models={KEPT}", "run.checkpoint_s=60"]
    changes = [*SCALES[scale].changes, *fixed, *overrides]
    parts = []
    for name in asked:
        own = tree["parts"][name]
        names = own.get("small", own["points"]) if scale == "small" else own["points"]
        points = {point: own["points"][point] for point in names}
        kept = [Line(*line.split()) for line in own["lines"] if line in lines]
        if kept:
            base = load_config(own["preset"], changes)
            parts.append(LeverPart(name, own["says"], base, points, kept))
    played = {(part.name, line.name) for part in parts for line in part.lines}
    claims = [LeverClaim(**own) for own in tree["claims"]]
    claims = [one for one in claims if {(one.part, one.one), (one.part, one.other)} <= played]
    early = min(SCALES[scale].early, parts[0].base.run.rounds)
    return Levers(tree["allocations"], tree["codecs"] | tree["servers"], parts, claims, early)


def _known(kind: str, asked: Sequence[str], there: Iterable[str]) -> list[str]:
    """What was asked for of a list, in its order; all of it if nothing was."""
    known = list(dict.fromkeys(there))
    for name in asked:
        if name not in known:
            raise unknown(name, kind, "the list", known)
    return [name for name in known if not asked or name in asked]


def fits(policy: str, config: Config) -> bool:
    """Whether agents that come with the package were trained for such a scenario; others do."""
    return policy not in shipped_policies() or policy in shipped_policies_for(config)
