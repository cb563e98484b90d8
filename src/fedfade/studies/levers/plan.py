"""What is compared, kept as data: allocation x codec x server rule over the load, by parts."""

from collections.abc import Mapping, Sequence
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
SCALES = {"small": _SMALL.split(), "paper": ["run.seeds=5"]}


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
    after: float = 1.0  # share of the rounds


class Levers(NamedTuple):
    """The whole list."""

    allocations: Mapping[str, str]  # policies
    fields: Mapping[str, Mapping[str, Any]]  # of codecs and server rules
    parts: Sequence[LeverPart]
    claims: Sequence[LeverClaim]
    scale: str


def load_levers(scale: str, only: Sequence[str] = (), overrides: Sequence[str] = ()) -> Levers:
    """The list at a scale, all parts or some."""
    if scale not in SCALES:
        raise not_allowed("--scale", scale, f"one of {', '.join(SCALES)}")
    tree = parse_yaml(Path(__file__).with_name("levers.yaml").read_text("utf-8"))
    for name in only:
        if name not in tree["parts"]:
            raise unknown(name, "part", "the list", tree["parts"])
    fixed = [f"run.seed={FIRST_SEED}", f"learning.average_models={KEPT}", "run.checkpoint_s=60"]
    changes = [*SCALES[scale], *fixed, *overrides]
    parts = []
    for name, own in tree["parts"].items():
        if only and name not in only:
            continue
        names = own.get("small", own["points"]) if scale == "small" else own["points"]
        points = {point: own["points"][point] for point in names}
        lines = [Line(*text.split()) for text in own["lines"]]
        parts.append(
            LeverPart(name, own["says"], load_config(own["preset"], changes), points, lines)
        )
    names = {part.name for part in parts}
    claims = [LeverClaim(**own) for own in tree["claims"] if own["part"] in names]
    return Levers(tree["allocations"], tree["codecs"] | tree["servers"], parts, claims, scale)


def fits(policy: str, config: Config) -> bool:
    """Whether agents that come with the package were trained for such a scenario; others do."""
    return policy not in shipped_policies() or policy in shipped_policies_for(config)
