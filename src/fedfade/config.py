"""One typed tree for everything a run depends on.

The tree has six branches: radio, cell, learning, allocation, qmix, run. Each field's
description is its documentation (`fedfade config PRESET` prints it beside the value). Presets
are YAML files in `fedfade/presets` that name only what differs from the defaults here, which
are the paper's; `--set radio.clusters=28` overrides on top.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from fedfade.errors import UserError, not_allowed
from fedfade.seams import CODECS, FADING, SERVER_RULES
from fedfade.storage import read_bytes

SILENT_DBM = -100.0
"""A power level at or below this means: do not send (the paper's -100 dBm)."""

MAX_PRESET_BYTES = 100_000

Precision = Literal["fp32", "tf32", "bf16"]

ObservationPart = Literal[
    "alphas",
    "fading",
    "remaining",
    "slots_left",
    "deviation",
    "round",
    "finished",
    "others_fading",
    "schedule",
    "reservation",
    "time_to_finish",
]


def _whole_to_int(value: object) -> object:
    """People write 1e4 for ten thousand, and NumPy has integers of its own."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


_Whole = Annotated[int, BeforeValidator(_whole_to_int)]

# Bounds are wider than anything sensible and narrow enough that no power, rate or time leaves
# what float32 can hold.
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Decibel = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_Spread = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
_Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Metres = Annotated[float, Field(ge=0.01, le=1e6, allow_inf_nan=False)]


class _Branch(BaseModel):
    # Strict: text is no number, and neither is `true`, which would count as 1.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True)


class RadioConfig(_Branch):
    """What a slot of the uplink looks like."""

    source: Annotated[str, AfterValidator(FADING.check)] = Field(
        "clustered",
        description="where small-scale fading comes from: clustered, rayleigh, traces, or "
        "module:factory of your own",
    )
    traces: str | None = Field(
        None, description="folder or .npz of recorded gains; needed by source: traces"
    )
    carrier_hz: Annotated[float, Field(ge=1e8, le=1e12, allow_inf_nan=False)] = Field(
        3.5e9, description="carrier frequency"
    )
    bandwidth_hz: Annotated[float, Field(ge=1.0, le=1e12, allow_inf_nan=False)] = Field(
        5e6, description="bandwidth of one sub-band (paper: B)"
    )
    subbands: _Whole = Field(4, ge=1, le=64, description="shared sub-bands (paper: C)")
    subband_gain: Literal["average", "centre"] = Field(
        "average", description="a sub-band's gain: mean over its subcarriers, or at its centre"
    )
    subcarriers: _Whole = Field(
        25, ge=1, le=1000, description="frequencies a sub-band average is taken over"
    )
    clusters: _Whole = Field(
        21,
        ge=2,
        le=10_000,
        description="clusters of the fading (paper: n_c), counted as QuaDRiGa does: the direct "
        "path, absent here, is one of them",
    )
    cluster_draw: Literal["quadriga", "tr38901"] = Field(
        "quadriga",
        description="how clusters are drawn: as QuaDRiGa does, or clause 7.5 to the letter",
    )
    speed_mps: Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)] = Field(
        18.12, description="client speed; 18.12 m/s makes 0.423/f_D the paper's slot of 2 ms"
    )
    slot_s: Annotated[float, Field(ge=1e-9, le=1e3, allow_inf_nan=False)] = Field(
        0.002, description="length of a slot (paper: T_d)"
    )
    slots: _Whole = Field(250, ge=1, le=100_000, description="slots in a round (paper: T_s)")
    power_levels_dbm: list[_Finite] = Field(
        [23.0, 10.0, 5.0, SILENT_DBM],
        min_length=1,
        max_length=32,
        description="transmit power levels; -100 or less means silent",
    )
    noise_density_dbm_hz: Annotated[float, Field(ge=-200, le=0, allow_inf_nan=False)] = Field(
        -174.0, description="thermal noise density"
    )
    noise_figure_db: _Decibel = Field(5.0, description="receiver noise figure")
    antenna_gain_dbi: _Decibel = Field(8.0, description="base-station antenna gain")

    @model_validator(mode="after")
    def _consistent(self) -> RadioConfig:
        if self.source == "traces" and self.traces is None:
            raise not_allowed("radio.traces", "null", "a path when radio.source is 'traces'")
        if self.source != "traces" and self.traces is not None:
            raise not_allowed("radio.traces", self.traces, "null unless radio.source is 'traces'")
        levels = self.power_levels_dbm
        if all(level <= SILENT_DBM for level in levels):
            raise not_allowed(
                "radio.power_levels_dbm", levels, "a list with at least one level above -100 dBm"
            )
        if any(level > 60 for level in levels):
            raise not_allowed("radio.power_levels_dbm", levels, "levels of at most 60 dBm")
        if self.silent_level is None:
            raise not_allowed(
                "radio.power_levels_dbm", levels, "a list with a silent level (-100 or less)"
            )
        if self.bandwidth_hz * self.subbands >= self.carrier_hz:
            raise not_allowed(
                "radio.bandwidth_hz",
                self.bandwidth_hz,
                "so narrow that all sub-bands together stay below radio.carrier_hz",
            )
        return self

    @property
    def noise_dbm(self) -> float:
        """Noise power in one sub-band."""
        from math import log10

        return self.noise_density_dbm_hz + 10 * log10(self.bandwidth_hz) + self.noise_figure_db

    @property
    def full_level(self) -> int:
        """Index of the strongest power level."""
        return max(range(len(self.power_levels_dbm)), key=self.power_levels_dbm.__getitem__)

    @property
    def silent_level(self) -> int | None:
        """Index of the silent level (None only while a config is being checked)."""
        for index, level in enumerate(self.power_levels_dbm):
            if level <= SILENT_DBM:
                return index
        return None


class CellConfig(_Branch):
    """Where clients are and how they move between rounds."""

    placement: Literal["waypoint", "fixed", "redraw", "ring"] = Field(
        "waypoint",
        description="waypoint: clients walk; fixed: one layout; redraw: a new layout every round; "
        "ring: all at one distance",
    )
    side_m: _Metres = Field(500.0, description="side of the hexagonal cell")
    min_distance_m: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        10.0, description="no client is nearer to the antenna"
    )
    bs_height_m: Annotated[float, Field(ge=1.5, le=1e4, allow_inf_nan=False)] = Field(
        10.0, description="height of the base station"
    )
    client_height_m: Annotated[float, Field(ge=1.5, le=22.5, allow_inf_nan=False)] = Field(
        1.5, description="height of the clients"
    )
    round_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        1.0, description="time between rounds, in which clients move"
    )
    shadowing_db: _Spread = Field(7.82, description="standard deviation of shadowing")
    shadowing_decorrelation_m: _Metres = Field(
        13.0, description="distance over which shadowing falls to 1/e correlation"
    )
    ring_snr_db: _Decibel = Field(
        20.0, description="placement ring: mean SNR of every client at full power"
    )
    ring_spread_db: _Spread = Field(
        0.0, description="placement ring: standard deviation of the gain, drawn anew every round"
    )

    @model_validator(mode="after")
    def _consistent(self) -> CellConfig:
        if self.min_distance_m >= self.side_m * 3**0.5 / 2:
            raise not_allowed(
                "cell.min_distance_m", self.min_distance_m, "less than the hexagon's inner radius"
            )
        return self


class LearningConfig(_Branch):
    """The federated learning task."""

    clients: _Whole = Field(10, ge=1, le=1000, description="clients (paper: N)")
    data: str = Field(
        "cifar10", description="digits, cifar10, or a path to .npz files with images and labels"
    )
    data_dir: str | None = Field(
        None, description="folder data sets are kept in; FEDFADE_DATA when null"
    )
    partition: Literal["dirichlet", "iid", "shards"] = Field(
        "dirichlet", description="how samples are dealt to clients"
    )
    alpha: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)] = Field(
        0.5, description="Dirichlet concentration: small means clients with few classes"
    )
    shards_per_client: _Whole = Field(
        2, ge=1, le=1_000_000, description="partition shards: shards a client gets"
    )
    model: str = Field("cnn", description="cnn (the paper's), or module:factory of your own")
    local_unit: Literal["step", "epoch"] = Field(
        "step", description="what local_work counts: mini-batch steps or passes over the data"
    )
    local_work: _Whole = Field(
        3, ge=1, le=100_000, description="local steps or epochs a round (paper: E)"
    )
    batch_size: _Whole = Field(50, ge=1, le=10_000_000, description="mini-batch size (paper: B_D)")
    local_rate: _Rate = Field(0.01, description="clients' learning rate (paper: eta_l)")
    global_rate: _Rate = Field(1.0, description="server's learning rate (paper: eta_g)")
    proximal: _Weight = Field(0.0, description="FedProx weight; 0 is FedAvg")
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="momentum of the server update; 0 is FedAvg"
    )
    codec: Annotated[str, AfterValidator(CODECS.check)] = Field(
        "none", description="how updates are encoded"
    )
    server: Annotated[str, AfterValidator(SERVER_RULES.check)] = Field(
        "mean", description="what the server makes of the updates that arrive"
    )
    previous_update: Literal["broadcast", "last"] = Field(
        "broadcast", description="g_{t-1} after a round without uploads"
    )
    weighting: Literal["equal", "samples"] = Field(
        "equal", description="weights of the average: equal (paper: 1/N) or by sample count"
    )
    payload_bits: (
        Annotated[float, Field(ge=1e-20, le=1e20, allow_inf_nan=False)] | Literal["auto"]
    ) = Field(9_932_960, description="bits a client must deliver (paper: S); auto: 32 a value sent")


class RewardConfig(_Branch):
    """Weights of the slot reward; the defaults make both parts of order 1 a round."""

    convergence: _Weight = Field(1.0, description="weight of the convergence part (lambda_c)")
    rate: _Weight = Field(
        1.0,
        description="weight of the sum rate (lambda_t), a round at 1 payload per sub-band being 1",
    )
    delivered: _Weight = Field(0.1, description="reward for a delivered client (lambda_1)")
    deviation: _Weight = Field(
        0.002,
        description="cost of the squared summed deviation (lambda_2), in units of the mean "
        "squared deviation of the round",
    )


class AllocationConfig(_Branch):
    """Who sends where: the policies compared, what agents see, what they are paid for."""

    policies: list[str] = Field(
        [
            "random",
            "max-individual-rate",
            "block-fading-schedule",
            "max-sum-rate",
            "shortest-remaining-first",
            "perfect",
        ],
        min_length=1,
        description="policies `fedfade compare` runs; built-in names or module:factory",
    )
    checkpoint: str | list[str] | None = Field(
        None,
        description="folder of fedfade train; its agents are compared as policy qmix, "
        "those of several by folder: qmix-seed-0, ...",
    )
    observe: list[ObservationPart] = Field(
        ["alphas", "fading", "remaining", "slots_left", "deviation", "round"],
        min_length=1,
        description="parts of an agent's observation, in order",
    )
    csi_delay_slots: _Whole = Field(
        0, ge=0, le=100_000, description="age of what `others_fading` shows; 0 dB before that"
    )
    hide: list[Literal["gradient", "fading"]] = Field(
        [], description="ablation: these observations are set to 1 in training and test"
    )
    reward: RewardConfig = Field(default_factory=RewardConfig, description="slot reward")

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _folders(cls, given: object) -> object:
        listed = given if isinstance(given, list) and given else [given]
        if given is not None and not all(isinstance(one, str) for one in listed):
            raise not_allowed("allocation.checkpoint", given, "a folder or a list of folders")
        return given

    @model_validator(mode="after")
    def _consistent(self) -> AllocationConfig:
        for field in ("policies", "observe", "hide"):
            names = getattr(self, field)
            if len(set(names)) != len(names):
                raise not_allowed(f"allocation.{field}", names, "a list without repetitions")
        return self


class QmixConfig(_Branch):
    """Training of the agents (the paper's table of hyperparameters)."""

    mixer: Literal["qmix", "qplex", "vdn", "independent"] = Field(
        "qmix",
        description="how agents' values combine: monotonic mixing, duplex dueling, sum, or not at "
        "all",
    )
    share_parameters: bool = Field(
        False, description="one network for all agents, told apart by an agent id"
    )
    hidden: list[Annotated[_Whole, Field(ge=1, le=100_000)]] = Field(
        [250, 120, 120],
        min_length=1,
        max_length=32,
        description="hidden layers of an agent network",
    )
    mixing_width: _Whole = Field(
        32, ge=1, le=10_000, description="hidden units of the mixing network"
    )
    hypernet_width: _Whole = Field(
        64, ge=1, le=10_000, description="hidden units of the hypernetworks"
    )
    agent_rate: _Rate = Field(1e-5, description="RMSProp rate of the agent networks")
    mixer_rate: _Rate = Field(5e-4, description="RMSProp rate of the mixer")
    gamma: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        0.95, description="discount factor"
    )
    trust: _Weight = Field(
        0.0,
        description="agents take another action than the planned one (observation `reservation`) "
        "only if it promises this much more",
    )
    advance: _Weight = Field(
        0.0,
        description="potential-based reward while training: paid for the share of a payload sent, "
        "taken back when a client finishes or the round ends",
    )
    dueling: bool = Field(
        False,
        description="an agent's value of a slot is one output, what an action adds to it another; "
        "both start at 0",
    )
    n_step: _Whole = Field(
        1, ge=1, le=100_000, description="slots of reward summed before bootstrapping"
    )
    replay_size: _Whole = Field(10_000, ge=1, le=10**9, description="transitions kept")
    batch_size: _Whole = Field(512, ge=1, le=10**9, description="transitions in an update")
    update_every: _Whole = Field(30, ge=1, le=10**9, description="slots stored between two updates")
    target_every: _Whole = Field(
        6300,
        ge=1,
        le=10**9,
        description="slots stored between target copies (paper: 210, read as updates; read as "
        "slots, values diverge where clients walk)",
    )
    gradients: str = Field(
        "learning",
        description="gradients while training: learning (real federated rounds), synthetic, or "
        "the path of a recording (.npz)",
    )
    evaluate_every: _Whole = Field(
        20, ge=1, le=10**9, description="federated rounds between test accuracies while training"
    )
    episodes: _Whole = Field(30_000, ge=1, le=10**12, description="training episodes")
    parallel_episodes: _Whole = Field(
        20, ge=1, le=1_000_000, description="episodes played side by side"
    )
    epsilon_start: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        1.0, description="exploration at the first episode"
    )
    epsilon_end: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        0.001, description="exploration after epsilon_episodes"
    )
    epsilon_episodes: _Whole = Field(
        20_000, ge=1, le=10**12, description="episodes of linear decay"
    )
    payload_start: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        1.0,
        description="share of its payload a client has to send in the first training episode (the "
        "rest counts as sent); plans stay those of a whole payload",
    )
    payload_episodes: _Whole = Field(
        10_000, ge=1, le=10**12, description="episodes in which that share rises to 1"
    )

    @model_validator(mode="after")
    def _consistent(self) -> QmixConfig:
        if self.batch_size > self.replay_size:
            raise not_allowed(
                "qmix.batch_size", self.batch_size, f"at most qmix.replay_size = {self.replay_size}"
            )
        rows = -(-self.replay_size // self.parallel_episodes)  # slots of all episodes
        if self.n_step > rows:
            raise not_allowed(
                "qmix.n_step",
                self.n_step,
                f"at most {rows}, the slots in qmix.replay_size = {self.replay_size} transitions "
                f"of qmix.parallel_episodes = {self.parallel_episodes}",
            )
        return self


class RunConfig(_Branch):
    """How long, how often, on what."""

    seed: _Whole = Field(0, ge=0, lt=2**31, description="first seed; run i uses seed + i")
    seeds: _Whole = Field(5, ge=1, le=1000, description="independent repetitions")
    rounds: _Whole = Field(100, ge=1, le=1_000_000, description="federated rounds (paper: T)")
    episodes_per_round: _Whole = Field(
        20,
        ge=1,
        le=1_000_000,
        description="training episodes on one round; the last decides the update",
    )
    repeat_fading: bool = Field(
        False, description="the episodes of a round see the same small-scale fading"
    )
    evaluate_every: _Whole = Field(
        1, ge=1, le=10**9, description="rounds between evaluations of the model"
    )
    checkpoint_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        20.0, description="seconds between checkpoints"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA when there is one"
    )
    precision: Precision = Field(
        "fp32",
        description="tf32 for all matrix products on CUDA; bf16 for local training, on a CPU too",
    )


class Config(_Branch):
    """The whole tree."""

    radio: RadioConfig = Field(default_factory=RadioConfig, description="the uplink")
    cell: CellConfig = Field(default_factory=CellConfig, description="clients in the cell")
    learning: LearningConfig = Field(default_factory=LearningConfig, description="the FL task")
    allocation: AllocationConfig = Field(
        default_factory=AllocationConfig, description="policies, observations, reward"
    )
    qmix: QmixConfig = Field(default_factory=QmixConfig, description="training of agents")
    run: RunConfig = Field(default_factory=RunConfig, description="length, seeds, device")

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.qmix.trust and "reservation" not in self.allocation.observe:
            raise not_allowed(
                "qmix.trust", self.qmix.trust, "0 unless allocation.observe has 'reservation'"
            )
        walk_m = self.radio.speed_mps * self.cell.round_s * self.run.rounds
        if self.cell.placement == "waypoint" and walk_m > 1e5 * self.cell.side_m:
            raise not_allowed(
                "cell.round_s",
                self.cell.round_s,
                "so short that clients walk at most 100,000 times cell.side_m in run.rounds",
            )
        return self


# --- reading ---------------------------------------------------------------------------------


def preset_names() -> list[str]:
    """Names of the presets shipped with the package."""
    folder = resources.files("fedfade") / "presets"
    return sorted(
        p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")
    )


def preset_summary(name: str) -> str:
    """The preset's own first comment line."""
    first = _preset_text(name).splitlines()[0]
    return first.removeprefix("#").strip()


def load_config(preset: str | Path = "paper", overrides: Iterable[str] = ()) -> Config:
    """A preset (shipped name, or path of a YAML file) with `section.field=value` overrides.

    >>> load_config("paper", ["radio.clusters=28"]).radio.clusters
    28
    """
    tree = _parse_preset(_preset_text(str(preset)), str(preset))
    for override in overrides:
        _apply_override(tree, override)
    return config_from_tree(tree)


def config_from_tree(tree: object) -> Config:
    """Validate nested plain data; every fault becomes one sentence."""
    if not isinstance(tree, dict):
        raise not_allowed("config", tree, "a mapping of sections to fields")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UserError(_first_fault(error)) from None


def changed(config: Config, fields: Mapping[str, Any]) -> Config:
    """The same configuration with other values in some fields.

    >>> changed(load_config("paper"), {"radio.clusters": 28}).radio.clusters
    28
    """
    tree: dict[str, Any] = config.model_dump()
    for name, value in fields.items():
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[last] = value
    return config_from_tree(tree)


def _preset_text(name: str) -> str:
    if name in preset_names():
        return (resources.files("fedfade") / "presets" / f"{name}.yaml").read_text("utf-8")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            return read_bytes(path, MAX_PRESET_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"preset {name!r} cannot be read: it is not UTF-8 text.") from None
    known = ", ".join(preset_names())
    raise not_allowed("preset", name, f"one of {known}, or the path of a .yaml file")


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few hundred bytes of them can unfold to gigabytes, or to a value
    that holds itself. A key given twice is refused, for one of its values would be lost."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse a reference to an anchor."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases, *name, are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a second value for a key."""
        seen = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if isinstance(key, yaml.ScalarNode) and name in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {key.value[:80]!r} is given twice")
            seen.add(name)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a point and a signed exponent, and reads 3e9 and 5.4e6 as text.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII),
    list("-+.0123456789"),
)


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
        raise ValueError("a value that is none") from None


def _parse_preset(text: str, origin: str) -> dict[str, Any]:
    try:
        tree = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"{origin!r} is not valid YAML ({error}).") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise not_allowed(f"preset {origin!r}", tree, "a mapping of sections to fields")
    return tree


def _apply_override(tree: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    parts = path.strip().split(".")
    if not separator or not all(parts):
        raise not_allowed("--set", override, "of the form section.field=value")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise not_allowed(
            "--set", override, f"section.field=value with a valid YAML value ({error})"
        ) from None
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise not_allowed("--set", override, f"a field; {part!r} has no fields below it")
        node = child
    node[parts[-1]] = value


def _first_fault(error: ValidationError) -> str:
    """The first fault as the standard sentence; of a union, all that would be allowed."""
    faults = error.errors(include_url=False)
    first = faults[0]
    if first["type"] == "extra_forbidden":
        return _unknown_key([str(part) for part in first["loc"]])
    place = _place(first)
    allowed = dict.fromkeys(_allowed(fault) for fault in faults if _place(fault) == place)
    return str(not_allowed(".".join(place), first.get("input"), " or ".join(allowed)))


def _place(fault: ErrorDetails) -> list[str]:
    return [str(part) for part in fault["loc"] if not _is_union_tag(part)]


def _is_union_tag(part: int | str) -> bool:
    """Pydantic puts the union member's type into the location; users have no such field."""
    return isinstance(part, str) and ("[" in part or part in ("constrained-float", "float", "int"))


def _unknown_key(place: list[str]) -> str:
    *parents, last = place
    model: Any = Config
    for parent in parents:
        model = model.model_fields[parent].annotation
    known = list(model.model_fields)
    near = difflib.get_close_matches(last, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    where = ".".join(parents) or "the top level"
    name = ".".join([*parents, last[:80]])
    return f"{name} is not a known field: {hint}{where} has {', '.join(known)}."


def _allowed(fault: ErrorDetails) -> str:
    context = fault.get("ctx", {})
    kind = fault["type"]
    bounds = {
        "greater_than": ("greater than", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("less than", "lt"),
        "less_than_equal": ("at most", "le"),
    }
    if kind in bounds:
        words, key = bounds[kind]
        return f"{words} {context[key]:g}"
    if kind == "literal_error":
        choices = str(context["expected"])
        return f"one of {choices}" if " or " in choices else choices
    if kind in ("too_short", "too_long"):
        most = kind == "too_long"
        count = context["max_length" if most else "min_length"]
        entries = "entry" if count == 1 else "entries"
        return f"a list of at {'most' if most else 'least'} {count} {entries}"
    plain = {
        "int_type": "a whole number",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "float_parsing": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "string_type": "text",
        "list_type": "a list",
        "model_type": "a mapping of fields",
        "model_attributes_type": "a mapping of fields",
    }
    return plain.get(kind, fault["msg"].lower())


# --- writing ---------------------------------------------------------------------------------


def render_config(config: Config) -> str:
    """The full tree as YAML with each field's description as a comment."""
    lines: list[str] = []
    _render_branch(config, lines, indent=0)
    return "\n".join(lines) + "\n"


def _render_branch(branch: BaseModel, lines: list[str], indent: int) -> None:
    pad = "  " * indent
    for name, field in type(branch).model_fields.items():
        value = getattr(branch, name)
        if isinstance(value, BaseModel):
            lines.append(f"{pad}{name}:  # {field.description}")
            _render_branch(value, lines, indent + 1)
        else:
            choices = _choices(field.annotation)
            note = f"{field.description}{f' ({choices})' if choices else ''}"
            lines.append(f"{pad}{name}: {_quoted(value)}  # {note}")


def _quoted(value: object) -> str:
    """As YAML reads it: JSON, but YAML takes an escaped pair of surrogates for two characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _choices(annotation: Any) -> str:
    """The literal alternatives of a field, for its comment."""
    if get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) is list:
        return _choices(get_args(annotation)[0])
    return ""


def differences(one: Config, other: Config, ignore: Sequence[str] = ()) -> list[str]:
    """Dotted names of the fields in which two configs differ."""
    found: list[str] = []

    def walk(a: dict[str, Any], b: dict[str, Any], prefix: str) -> None:
        for key, value in a.items():
            path = f"{prefix}{key}"
            if isinstance(value, dict):
                walk(value, b[key], path + ".")
            elif value != b[key] and path not in ignore:
                found.append(path)

    walk(one.model_dump(), other.model_dump(), "")
    return found
