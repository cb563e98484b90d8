"""The typed tree: every setting a run depends on, its default, what it may be, what it means.

The defaults are the paper's. A field's description is its documentation: `fedfade config PRESET`
prints it beside the value.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import log10
from numbers import Integral
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedfade.errors import not_allowed
from fedfade.seams import CODECS, FADING, LINKS, PARTS, POLICIES, SERVER_RULES

SILENT_DBM = -100.0
"""A power level at or below this means: do not send (the paper's -100 dBm)."""

Precision = Literal["fp32", "tf32", "bf16"]

# --- kinds of fields -------------------------------------------------------------------------

T = TypeVar("T")


def _is(default: T, meaning: str, **limits: Any) -> T:
    """A field's default (pydantic copies a list), its meaning, and the range it must be in."""
    return Field(default, description=meaning, **limits)  # type: ignore[no-any-return]


def _whole_to_int(value: object) -> object:
    """People write 1e4 for ten thousand, and NumPy has integers of its own."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _folders(value: object) -> object:
    """Refuse all but text, a list of texts and null, in one sentence."""
    listed = value if isinstance(value, list) and value else [value]
    if value is not None and not all(isinstance(one, str) for one in listed):
        raise not_allowed("allocation.checkpoint", value, "a folder or a list of folders")
    return value


# Text that names an implementation of a seam: built in, installed or module:factory.
CodecName = Annotated[str, AfterValidator(CODECS.check), CODECS]
ServerRuleName = Annotated[str, AfterValidator(SERVER_RULES.check), SERVER_RULES]
FadingName = Annotated[str, AfterValidator(FADING.check), FADING]
LinkName = Annotated[str, AfterValidator(LINKS.check), LINKS]
_TEACHERS = replace(POLICIES, field="qmix.teacher")
TeacherName = Annotated[
    str, AfterValidator(lambda name: _TEACHERS.check(name, others=("none",))), _TEACHERS
]
PartName = Annotated[str, AfterValidator(PARTS.check), PARTS]
Folders = Annotated[str | list[str] | None, BeforeValidator(_folders)]
# Ranges are wider than anything sensible and narrow enough that no power, rate or time leaves
# what float32 can hold.
Whole = Annotated[int, BeforeValidator(_whole_to_int)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Kept = Annotated[float, Field(ge=0, lt=1)]
Decibel = Annotated[float, Field(ge=-100, le=100)]
Spread = Annotated[float, Field(ge=0, le=60)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
Factor = Annotated[float, Field(ge=0.01, le=100)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Metres = Annotated[float, Field(ge=0.01, le=1e6)]
Watts = Annotated[float, Field(ge=0, le=1e6)]
SLOWEST, FASTEST = 1e-6, 1e15  # samples a second
_SPEED = {"ge": SLOWEST, "le": FASTEST}
Some = Annotated[list[T], Field(min_length=1)]
Listed = Annotated[list[T], Field(min_length=1, max_length=32)]
Width = Annotated[Whole, Field(ge=1, le=100_000)]


_Faults = Iterator[tuple[str, object, str]]
"""(field, value, what is allowed) where fields that are each allowed contradict one another."""


class _Branch(BaseModel):
    # Strict: text is no number, and neither is `true`, which would count as 1.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False
    )

    def model_post_init(self, context: Any, /) -> None:
        for field, value, allowed in self._faults():
            raise not_allowed(field, value, allowed)

    def _faults(self) -> _Faults:
        yield from ()


# --- the tree --------------------------------------------------------------------------------


class CappedConfig(_Branch):
    """Shannon's curve, worse by some decibel, with a ceiling (radio.link: capped)."""

    gap_db: Spread = _is(1.5, "what the SINR is worse by")
    ceiling_bps_hz: float = _is(5.5547, "most bit/s/Hz: 64QAM at 948/1024", gt=0, le=100)


class NrConfig(_Branch):
    """Schemes, block errors and retransmissions of 5G NR (radio.link: nr)."""

    table: str = _is(
        "64qam", "schemes: 64qam or 256qam (TS 38.214, tables 5.1.3.1-1 and -2), or a .json file"
    )
    block_bits: Whole = _is(8448, "longest code block, in bits (TS 38.212)", ge=24, le=10**9)
    gap_db: Spread = _is(0.75, "SINR that codes need beyond the normal approximation")
    curves: str | None = _is(None, "measured block errors instead: a .json file")
    target_error: float = _is(0.1, "error of a first transmission to adapt to", gt=0, lt=1)
    step_db: float = _is(0.5, "step of the outer loop after a sure error; 0: no loop", ge=0, le=10)
    retransmissions: Whole = _is(3, "times a lost block is sent again at most", ge=0, le=16)
    feedback: Literal["sampled", "expected"] = _is(
        "sampled", "draw who gets through, or count every block by its probability"
    )


class RadioConfig(_Branch):
    """What a slot of the uplink looks like."""

    source: FadingName = _is("clustered", "where small-scale fading comes from")
    traces: str | None = _is(None, "folder or .npz of recorded gains; needed by source: traces")
    carrier_hz: float = _is(3.5e9, "carrier frequency", ge=1e8, le=1e12)
    bandwidth_hz: float = _is(5e6, "bandwidth of one sub-band (paper: B)", ge=1, le=1e12)
    subbands: Whole = _is(4, "shared sub-bands (paper: C)", ge=1, le=64)
    subband_gain: Literal["average", "centre"] = _is(
        "average", "a sub-band's gain: mean over its subcarriers, or at its centre"
    )
    subcarriers: Whole = _is(25, "frequencies a sub-band average is taken over", ge=1, le=1000)
    clusters: Whole = _is(
        21, "clusters of the fading (paper: n_c), the absent direct path included", ge=2, le=10_000
    )
    cluster_draw: Literal["quadriga", "tr38901"] = _is(
        "quadriga", "how clusters are drawn: as QuaDRiGa does, or clause 7.5 to the letter"
    )
    speed_mps: float = _is(18.12, "client speed; at 18.12, 0.423/f_D is 2 ms", ge=0, le=1e4)
    slot_s: float = _is(0.002, "length of a slot (paper: T_d)", ge=1e-9, le=1e3)
    slots: Whole = _is(250, "slots in a round (paper: T_s)", ge=1, le=100_000)
    power_levels_dbm: Listed[float] = _is(
        [23.0, 10.0, 5.0, SILENT_DBM], "transmit power levels; -100 or less means silent"
    )
    noise_density_dbm_hz: float = _is(-174.0, "thermal noise density", ge=-200, le=0)
    noise_figure_db: Decibel = _is(5.0, "receiver noise figure")
    antenna_gain_dbi: Decibel = _is(8.0, "base-station antenna gain")
    client_antenna_gain_dbi: Decibel = _is(0.0, "antenna gain of a client")
    receive_antennas: Whole = _is(
        1, "antennas of the base station, in a line half a wavelength apart", ge=1, le=64
    )
    receiver: Literal["mrc", "mmse"] = _is(
        "mmse",
        "what several antennas are combined for: most signal, or most signal over interference "
        "and noise",
    )
    link: LinkName = _is("shannon", "what gets through of a slot at an SINR")
    link_overhead: Kept = _is(0.0, "link capped, nr: share of a slot for pilots and control")
    link_delay_slots: Whole = _is(1, "age of the SINR that a link adapts to (nr)", ge=0, le=100_000)
    capped: CappedConfig = _is(CappedConfig(), "link capped")
    nr: NrConfig = _is(NrConfig(), "link nr")

    def _faults(self) -> _Faults:
        if self.source == "traces" and self.traces is None:
            yield "radio.traces", "null", "a path when radio.source is 'traces'"
        if self.source != "traces" and self.traces is not None:
            yield "radio.traces", self.traces, "null unless radio.source is 'traces'"
        if self.source == "traces" and self.receive_antennas > 1:
            allowed = "1 when radio.source is 'traces', whose gains are those of one antenna"
            yield "radio.receive_antennas", self.receive_antennas, allowed
        levels = self.power_levels_dbm
        for wrong, allowed in (
            (max(levels) <= SILENT_DBM, "a list with at least one level above -100 dBm"),
            (max(levels) > 60, "levels of at most 60 dBm"),
            (min(levels) > SILENT_DBM, "a list with a silent level (-100 or less)"),
        ):
            if wrong:
                yield "radio.power_levels_dbm", levels, allowed
        if self.bandwidth_hz * self.subbands >= self.carrier_hz:
            allowed = "so narrow that all sub-bands together stay below radio.carrier_hz"
            yield "radio.bandwidth_hz", self.bandwidth_hz, allowed

    @property
    def noise_dbm(self) -> float:
        """Noise power in one sub-band."""
        return self.noise_density_dbm_hz + 10 * log10(self.bandwidth_hz) + self.noise_figure_db

    @property
    def antennas_dbi(self) -> float:
        """Antenna gain of both ends."""
        return self.antenna_gain_dbi + self.client_antenna_gain_dbi

    @property
    def fading_shape(self) -> int:
        """Shape of the gamma distribution nearest to a sub-band's fading at one antenna.

        Rayleigh, 1, at one frequency; a mean over a sub-band of the clustered channel spreads by
        3.5 dB instead of 5.6, as a gamma variable of shape 2 does.
        """
        averaged = self.subband_gain == "average" and self.subcarriers > 1
        return 2 if self.source == "gamma" or (self.source == "clustered" and averaged) else 1

    @property
    def full_level(self) -> int:
        """Index of the strongest power level."""
        return self.power_levels_dbm.index(max(self.power_levels_dbm))

    @property
    def silent_level(self) -> int:
        """Index of the first silent level."""
        return next(i for i, level in enumerate(self.power_levels_dbm) if level <= SILENT_DBM)


class CellConfig(_Branch):
    """Where clients are and how they move between rounds."""

    mobility: Literal["reflect", "waypoint", "redraw", "fixed", "ring"] = _is(
        "reflect",
        "clients walk and turn at the edges (reflect), walk between random places and so drift "
        "inwards (waypoint), are placed anew every round (redraw), stay (fixed) or are on a ring",
    )
    side_m: Metres = _is(500.0, "side of the hexagonal cell")
    min_distance_m: float = _is(10.0, "no client is nearer to the antenna", ge=0, le=1e6)
    bs_height_m: float = _is(10.0, "height of the base station", ge=1.5, le=1e4)
    client_height_m: float = _is(1.5, "height of the clients", ge=1.5, le=22.5)
    round_s: Seconds = _is(1.0, "time between rounds, in which clients move")
    shadowing_db: Spread = _is(7.82, "standard deviation of shadowing")
    shadowing_decorrelation_m: Metres = _is(13.0, "distance at which its correlation is 1/e")
    ring_snr_db: Decibel = _is(20.0, "ring: mean SNR of every client at full power")
    ring_spread_db: Spread = _is(0.0, "ring: standard deviation of gains, drawn anew every round")
    announced_error_db: Spread = _is(
        0.0, "standard deviation of what announced gains are off, by client and round"
    )
    announced_above_db: Decibel = _is(
        0.0, "how far announced gains are above the real ones; below 0: a margin"
    )
    interference_cells: Whole = _is(
        0,
        "neighbouring cells of the same size whose clients are heard here; 6 all around",
        ge=0,
        le=6,
    )
    interference_activity: Share = _is(
        1.0, "share of slots and sub-bands in which somebody sends in a neighbouring cell"
    )

    def _faults(self) -> _Faults:
        if self.min_distance_m >= self.inner_radius_m:
            yield "cell.min_distance_m", self.min_distance_m, "less than the hexagon's inner radius"

    @property
    def told_exactly(self) -> bool:
        """Whether announced gains are the real ones."""
        return self.announced_error_db == self.announced_above_db == 0

    @property
    def inner_radius_m(self) -> float:
        """From the base station to the middle of an edge."""
        return self.side_m * 3**0.5 / 2


class LearningConfig(_Branch):
    """The federated learning task."""

    clients: Whole = _is(10, "clients (paper: N)", ge=1, le=1000)
    data: str = _is("cifar10", "digits, cifar10, or a path to .npz files with images and labels")
    data_dir: str | None = _is(None, "folder of the data sets; FEDFADE_DATA when null")
    partition: Literal["dirichlet", "iid", "shards"] = _is("dirichlet", "how samples are dealt")
    alpha: float = _is(
        0.5, "Dirichlet concentration: small means clients with few classes", ge=0.001, le=1e6
    )
    shards_per_client: Whole = _is(2, "partition shards: shards a client gets", ge=1, le=1_000_000)
    model: str = _is("cnn", "cnn (the paper's), or module:factory of your own")
    local_unit: Literal["step", "epoch"] = _is(
        "step", "what local_work counts: mini-batch steps or passes over the data"
    )
    local_work: Whole = _is(3, "local steps or epochs a round (paper: E)", ge=1, le=100_000)
    batch_size: Whole = _is(50, "mini-batch size (paper: B_D)", ge=1, le=10_000_000)
    local_rate: Rate = _is(0.01, "clients' learning rate (paper: eta_l)")
    global_rate: Rate = _is(1.0, "server's learning rate (paper: eta_g)")
    proximal: Weight = _is(0.0, "FedProx weight; 0 is FedAvg")
    codec: CodecName = _is("none", "how an update becomes the bits that are sent; none: float32")
    codec_fraction: float = _is(0.01, "codec topk: share of the values sent", gt=0, le=1)
    codec_rank: Whole = _is(4, "codec lowrank: rank of every matrix sent", ge=1, le=10_000)
    error_feedback: bool = _is(
        False, "clients send what the codec lost of earlier updates with the next"
    )
    count_partial: bool = _is(
        False, "an unfinished upload counts with what arrived; needs a progressive codec"
    )
    server: ServerRuleName = _is("mean", "what the server does with what arrived")
    server_momentum: float = _is(
        0.0, "momentum of the server update; above 0, server mean is momentum", ge=0, lt=1
    )
    server_beta1: Kept = _is(0.9, "server adam, yogi: what is kept of the mean update")
    server_beta2: Kept = _is(0.99, "server adam, yogi: what is kept of its square")
    server_tau: Rate = _is(1e-3, "server adam, yogi: added to the square's root")
    average_models: Kept = _is(
        0.0, "kept of the mean of global models every round; tested beside the last; 0: no mean"
    )
    previous_update: Literal["broadcast", "last"] = _is(
        "broadcast",
        "g_(t-1) after a round in which nobody delivered: 0, the difference of two broadcast "
        "models (paper), or the last update there was",
    )
    weighting: Literal["equal", "samples"] = _is(
        "equal", "weights of the average: equal (paper: 1/N) or by sample count"
    )
    # float64 counts single bits up to 2^53, 9e15 (uplink/scenario.py).
    payload_bits: Annotated[float, Field(ge=1e-6, le=9e15)] | Literal["auto"] = _is(
        9_932_960, "bits a client must deliver (paper: S); auto: what the codec sends"
    )
    payload_factors: Factor | list[Factor] = _is(
        1.0, "what payload_bits is multiplied by, one number or one a client"
    )

    def _faults(self) -> _Faults:
        if self.server == "momentum" and not self.server_momentum:
            allowed = "greater than 0 when learning.server is 'momentum'"
            yield "learning.server_momentum", self.server_momentum, allowed
        ordered = ("int8-progressive", "topk-progressive", "topk")
        if self.count_partial and self.codec in {*CODECS.built_in} - {*ordered}:
            allowed = f"false unless learning.codec is one of {', '.join(ordered)}, or your own"
            yield "learning.count_partial", self.count_partial, allowed
        if self.server == "scaffold" and self.local_unit != "step":
            allowed = "step when learning.server is 'scaffold', which divides by their number"
            yield "learning.local_unit", self.local_unit, allowed
        factors = self.payload_factors
        if isinstance(factors, list) and len(factors) != self.clients:
            allowed = f"a number, or a list of learning.clients = {self.clients} numbers"
            yield "learning.payload_factors", factors, allowed

    @property
    def remembers(self) -> bool:
        """Whether the server takes the last update of clients that do not deliver."""
        return self.server in ("mifa", "fedvarp")

    @property
    def vectors_sent(self) -> int:
        """Vectors of the model's size in an upload: SCAFFOLD sends a control beside the update."""
        return 2 if self.server == "scaffold" else 1


class CostConfig(_Branch):
    """What a round costs clients in seconds and joules; speeds decide who is late to send."""

    samples_per_s: float = _is(
        150.0, "training samples a client gets through in a second", **_SPEED
    )
    speed_spread: float = _is(
        0.0,
        "standard deviation of the logarithm of clients' speeds around samples_per_s, drawn with "
        "the seed; 0: all are as fast",
        ge=0,
        le=5,
    )
    speeds: str | None = _is(
        None, "text file of every client's samples a second, instead of these two"
    )
    downlink_bps: float = _is(
        1e8, "rate at which all receive the model, 32 bits a value", ge=1, le=1e15
    )
    amplifier_efficiency: float = _is(
        0.3, "transmit power over what the amplifier draws for it", ge=1e-6, le=1
    )
    circuit_w: Watts = _is(0.2, "drawn by a radio that sends or receives, beside the amplifier")
    compute_w: Watts = _is(3.0, "drawn while a client trains")


class RewardConfig(_Branch):
    """Weights of the slot reward; the defaults make both parts of order 1 a round."""

    convergence: Weight = _is(1.0, "weight of the convergence part (lambda_c)")
    rate: Weight = _is(
        1.0, "weight of the sum rate (lambda_t), a round at 1 payload per sub-band being 1"
    )
    delivered: Weight = _is(0.1, "reward for a delivered client (lambda_1)")
    deviation: Weight = _is(
        0.002, "cost of the squared summed deviation (lambda_2), per round's mean square"
    )
    finished: Weight = _is(0.0, "paid in every slot for each client that has finished")


class AllocationConfig(_Branch):
    """Who sends where: the policies compared, what agents see, what they are paid for."""

    policies: Some[str] = _is(
        [
            "random",
            "max-individual-rate",
            "block-fading-schedule",
            "max-sum-rate",
            "shortest-remaining-first",
            "perfect",
        ],
        "policies `fedfade compare` runs; built-in names or module:factory",
    )
    checkpoint: Folders = _is(
        None, "folder of fedfade train: its agents are policy qmix; of several: qmix-seed-0, ..."
    )
    observe: Some[PartName] = _is(
        ["alphas", "fading", "remaining", "slots_left", "deviation", "round"],
        "parts of an agent's observation, in order",
    )
    csi_delay_slots: Whole = _is(0, "age of others' fading; 0 dB before that", ge=0, le=100_000)
    hide: list[Literal["gradient", "fading"]] = _is(
        [], "ablation: these observations are set to 1 in training and test"
    )
    reward: RewardConfig = _is(RewardConfig(), "slot reward")

    def _faults(self) -> _Faults:
        for field in ("policies", "observe", "hide"):
            names = getattr(self, field)
            if len(set(names)) != len(names):
                yield f"allocation.{field}", names, "a list without repetitions"


class MappoConfig(_Branch):
    """Training of the agents by policy gradients (qmix.algorithm: mappo)."""

    rate: Rate = _is(5e-4, "Adam rate of the agents, falling linearly to 0")
    critic_rate: Rate = _is(5e-4, "Adam rate of the critic, falling likewise")
    clip: float = _is(0.2, "a probability ratio farther from 1 than this earns no more", gt=0, le=1)
    epochs: Count = _is(4, "passes over a batch of episodes")
    minibatches: Count = _is(4, "parts of a batch, one update each")
    gae_lambda: Share = _is(0.95, "weight of later decisions in an advantage")
    entropy_start: Weight = _is(0.1, "weight of the agents' entropy at the first episode")
    entropy_end: Weight = _is(0.0, "and at the last; linear between")
    value_hidden: Listed[Width] = _is([128, 128], "hidden layers of the central critic")
    max_grad_norm: Rate = _is(10.0, "longer gradients are cut to this length")


_OF_SETS: dict[str, object] = {"share_parameters": True, "client_id": False, "power": "binary"}
_OF_SETS |= {"dueling": False, "trust": 0.0}  # what a network over the set of clients goes with
_FIRST_OF_SETS = {"set": ["order", "slots_left", "fading"]}
_FIRST_OF_SETS["set-feedback"] = [*_FIRST_OF_SETS["set"], "finished_order"]
_FIRST_OF_SETS["set-csi"] = [*_FIRST_OF_SETS["set-feedback"], "order_fading"]
_OF_ANY_SIZE = {"remaining", "deviation", "round", "time_to_finish", "slack"}


class QmixConfig(_Branch):
    """Training of the agents (paper: table II)."""

    algorithm: Literal["qmix", "mappo"] = _is(
        "qmix", "Q-learning, or policy gradients with a central critic (fields in mappo)"
    )
    mixer: Literal["qmix", "qplex", "vdn", "independent"] = _is(
        "qmix", "how agents' values combine: monotonic mixing, duplex dueling, a sum, or not"
    )
    state: Literal["client", "order"] = _is(
        "client",
        "the mixer's and critic's state: clients by number, or shortest expected time first",
    )
    network: Literal["mlp", "set", "set-feedback", "set-csi"] = _is(
        "mlp",
        "an agent's network: layers as wide as the scenario is large, or one over the set of "
        "clients that fits any number of clients and sub-bands; set-feedback hears who has "
        "finished, set-csi sees everybody's fading as well",
    )
    sizes: list[list[Count]] = _is(
        [],
        "network set: [clients, sub-bands] to train on, batch by batch in turn; none: "
        "learning.clients and radio.subbands",
    )
    share_parameters: bool = _is(False, "one network for all agents, told apart by an agent id")
    client_id: bool = _is(
        True, "a shared network is told the client's number; false: not even that"
    )
    hidden: Listed[Width] = _is([250, 120, 120], "hidden layers of an agent network")
    mixing_width: Whole = _is(32, "hidden units of the mixing network", ge=1, le=10_000)
    hypernet_width: Whole = _is(64, "hidden units of the hypernetworks", ge=1, le=10_000)
    optimiser: Literal["rmsprop", "adam"] = _is("rmsprop", "how gradients become steps")
    agent_rate: Rate = _is(1e-5, "learning rate of the agent networks")
    mixer_rate: Rate = _is(5e-4, "learning rate of the mixer")
    final_rate: float = _is(
        1.0, "share of both rates left at the last episode; they fall linearly", ge=0, le=1
    )
    rmsprop_decay: float = _is(0.99, "RMSProp: what a squared gradient keeps", ge=0, lt=1)
    rmsprop_epsilon: float = _is(
        1e-8, "added to the root of the mean squared gradient", gt=0, le=1e3
    )
    clip_gradient: Weight = _is(0.0, "longest gradient of agents and mixer together; 0: any")
    loss: Literal["squared", "huber"] = _is(
        "squared", "of the TD error; huber is linear beyond an error of 1"
    )
    standardise_rewards: bool = _is(
        False, "an update sees rewards less their mean over its batch, by their deviation"
    )
    mask_finished: bool = _is(False, "the value of an agent that has finished counts 0 in Q_tot")
    average_weights: float = _is(
        0.0,
        "the agents kept are an exponential mean over updates with this factor; 0: the last ones",
        ge=0,
        lt=1,
    )
    candidates: Whole = _is(
        1,
        "agents at so many points of the last half are tried on rounds of their own, and the best "
        "are kept; 1: the last ones",
        ge=1,
        le=1000,
    )
    candidate_rounds: Count = _is(100, "rounds each of them is tried on")
    gamma: Share = _is(0.95, "discount factor")
    trust: Weight = _is(0.0, "value by which an agent's choice must beat its plan (`reservation`)")
    advance: Weight = _is(
        0.0,
        "potential-based reward while training: paid for the share of a payload sent, taken back "
        "when a client finishes or the round ends",
    )
    hold_slots: Whole = _is(
        1, "slots a decision is held; the last one of a round may be shorter", ge=1, le=100_000
    )
    play_hold_slots: Whole = _is(
        0, "slots that trained agents hold a decision; 0: as many as in training", ge=0, le=100_000
    )
    hop_subbands: bool = _is(
        False,
        "sub-bands that agents see and choose are logical: logical b is physical (b + slot) mod C, "
        "so that all hop in step and nobody is left with a bad one",
    )
    power: Literal["levels", "binary"] = _is(
        "levels", "an agent chooses a sub-band and any power level, or a sub-band or silence"
    )
    dueling: bool = _is(False, "outputs for a state's value and what actions add; all start at 0")
    n_step: Whole = _is(
        1, "decisions whose rewards are summed before bootstrapping", ge=1, le=100_000
    )
    replay_size: Count = _is(10_000, "transitions kept")
    batch_size: Count = _is(512, "transitions in an update")
    update_every: Count = _is(30, "transitions stored between two updates")
    target_every: Count = _is(
        6300,
        "transitions stored between target copies (paper: 210, read as updates; read as slots, "
        "values diverge where clients walk)",
    )
    teacher: TeacherName = _is(
        "none", "policy that shows agents what it would do while they are trained, and only then"
    )
    lessons: Weight = _is(
        1.0,
        "weight of the teacher at the first episode: in mappo's loss; in Q-learning the share of "
        "episodes that it plays, and the weight of lesson_margin",
    )
    lesson_margin: Weight = _is(
        0.0,
        "Q-learning: the value of what the teacher would do is raised until it leads by some of "
        "this, as long as there are lessons; 0: it is not",
    )
    lesson_episodes: Whole = _is(
        50_000, "episodes until that weight is 0; linear between", ge=1, le=10**12
    )
    gradients: str = _is("learning", "learning (federated rounds), synthetic, or a recording: .npz")
    evaluate_every: Count = _is(20, "federated rounds between test accuracies while training")
    episodes: Whole = _is(30_000, "training episodes", ge=1, le=10**12)
    parallel_episodes: Whole = _is(20, "episodes played side by side", ge=1, le=1_000_000)
    layouts: Whole = _is(
        1,
        "federated tasks side by side, each in a cell of its own, that parallel_episodes are "
        "dealt to",
        ge=1,
        le=1_000_000,
    )
    gain_spread_db: Spread = _is(
        0.0,
        "training: all gains of a layout are shifted by some dB between minus and plus this, "
        "drawn with the layout, so that agents meet easier and harder cells",
    )
    epsilon_start: Share = _is(1.0, "exploration at the first episode")
    epsilon_end: Share = _is(0.001, "exploration after epsilon_episodes")
    epsilon_episodes: Whole = _is(20_000, "episodes of linear decay", ge=1, le=10**12)
    explore_decisions: Whole = _is(
        1,
        "decisions in a row in which an exploring agent keeps to what it drew; 1: each is drawn",
        ge=1,
        le=100_000,
    )
    payload_start: float = _is(
        1.0,
        "share of its payload a client has to send in the first training episode (the rest counts "
        "as sent); plans stay those of a whole payload",
        gt=0,
        le=1,
    )
    payload_episodes: Whole = _is(10_000, "episodes until that share is 1", ge=1, le=10**12)
    mappo: MappoConfig = _is(MappoConfig(), "algorithm mappo")

    def _faults(self) -> _Faults:
        if self.parallel_episodes % self.layouts:
            dealt = f"a divisor of qmix.parallel_episodes = {self.parallel_episodes}"
            yield "qmix.layouts", self.layouts, dealt
        if self.teacher != "none" and self.algorithm == "qmix" and self.lessons > 1:
            allowed = "at most 1, a share of the episodes, when qmix.algorithm is 'qmix'"
            yield "qmix.lessons", self.lessons, allowed
        if not (self.client_id or self.share_parameters):
            yield "qmix.client_id", False, "true unless qmix.share_parameters is true"
        for field, wanted in _OF_SETS.items() if self.network != "mlp" else ():
            if (value := getattr(self, field)) != wanted:
                yield f"qmix.{field}", value, f"{wanted!r} where qmix.network is {self.network!r}"
        any_size = self.algorithm == "mappo" or self.mixer in ("vdn", "independent")
        if self.sizes and not (self.network != "mlp" and any_size):
            fits = "[] unless qmix.network is over a set, and qmix.mixer 'vdn' or 'independent' in "
            yield "qmix.sizes", self.sizes, fits + "Q-learning"
        if any(len(size) != 2 or size[0] > 1000 or size[1] > 64 for size in self.sizes):
            fits = "a list of [clients, sub-bands], at most 1000 and 64"
            yield "qmix.sizes", self.sizes, fits
        if self.algorithm == "mappo" and self.parallel_episodes % self.mappo.minibatches:
            fits = f"a divisor of qmix.parallel_episodes = {self.parallel_episodes}"
            yield "qmix.mappo.minibatches", self.mappo.minibatches, fits
        size = f"qmix.replay_size = {self.replay_size}"
        if self.batch_size > self.replay_size:
            yield "qmix.batch_size", self.batch_size, f"at most {size}"
        rows = -(-self.replay_size // self.parallel_episodes)  # slots of all episodes
        if self.n_step > rows:
            allowed = (
                f"at most {rows}, the slots in {size} transitions of qmix.parallel_episodes = "
                f"{self.parallel_episodes}"
            )
            yield "qmix.n_step", self.n_step, allowed


class RunConfig(_Branch):
    """How long, how often, on what."""

    seed: Whole = _is(0, "first seed; run i uses seed + i", ge=0, lt=2**31)
    seeds: Whole = _is(5, "independent repetitions", ge=1, le=1000)
    rounds: Whole = _is(100, "federated rounds (paper: T)", ge=1, le=1_000_000)
    episodes_per_round: Whole = _is(
        20, "training episodes on one round; the last decides the update", ge=1, le=1_000_000
    )
    repeat_fading: bool = _is(False, "the episodes of a round see the same small-scale fading")
    restart: Literal["new", "same"] = _is(
        "new",
        "training goes through run.rounds again and again: with a new layout, walk and partition, "
        "or the same",
    )
    deadline: Literal["fixed", "wait-for-k", "adaptive"] = _is(
        "fixed",
        "when a round ends before its last slot: once all have delivered, once deadline_clients "
        "have, or once as many have as are waited for: all at first, fewer with every slot, "
        "deadline_clients in the last",
    )
    deadline_clients: Whole = _is(
        1,
        "deadline wait-for-k: uploads that end the round; adaptive: in its last slot",
        ge=1,
        le=1000,
    )
    evaluate_every: Count = _is(1, "rounds between evaluations of the model")
    train_absent: bool = _is(
        True,
        "compare: train clients whose upload fails too; false saves their time and changes no "
        "model, but leaves gradient_bias and reward empty",
    )
    checkpoint_s: Seconds = _is(20.0, "seconds between checkpoints")
    device: Literal["auto", "cpu", "cuda"] = _is("auto", "auto: CUDA when there is one")
    precision: Precision = _is(
        "fp32", "tf32 for all matrix products on CUDA; bf16 for local training, on a CPU too"
    )


class Config(_Branch):
    """The whole tree."""

    radio: RadioConfig = _is(RadioConfig(), "the uplink")
    cell: CellConfig = _is(CellConfig(), "clients in the cell")
    learning: LearningConfig = _is(LearningConfig(), "the FL task")
    cost: CostConfig = _is(CostConfig(), "seconds and joules")
    allocation: AllocationConfig = _is(AllocationConfig(), "policies, observations, reward")
    qmix: QmixConfig = _is(QmixConfig(), "training of agents")
    run: RunConfig = _is(RunConfig(), "length, seeds, device")

    def _faults(self) -> _Faults:
        if self.qmix.trust and "reservation" not in self.allocation.observe:
            yield "qmix.trust", self.qmix.trust, "0 unless allocation.observe has 'reservation'"
        seen, network = self.allocation.observe, self.qmix.network
        first = _FIRST_OF_SETS.get(network, [])
        known = seen[: len(first)] == first and _OF_ANY_SIZE.issuperset(seen[len(first) :])
        if network != "mlp" and not known:
            fits = f"{', '.join(first)}, then some of {', '.join(sorted(_OF_ANY_SIZE))}"
            yield "allocation.observe", seen, f"{fits}, where qmix.network is {network!r}"
        if self.qmix.hold_slots > self.radio.slots:
            allowed = f"at most radio.slots = {self.radio.slots}"
            yield "qmix.hold_slots", self.qmix.hold_slots, allowed
        if self.run.deadline != "fixed" and self.run.deadline_clients > self.learning.clients:
            allowed = f"at most learning.clients = {self.learning.clients}"
            yield "run.deadline_clients", self.run.deadline_clients, allowed
        step_m, mobility = self.radio.speed_mps * self.cell.round_s, self.cell.mobility
        walk_m = step_m * self.run.rounds
        if mobility in ("reflect", "waypoint") and walk_m > 1e5 * self.cell.side_m:
            allowed = "so short that clients walk at most 100,000 times cell.side_m in run.rounds"
            yield "cell.round_s", self.cell.round_s, allowed
        if mobility == "reflect" and step_m > self.cell.inner_radius_m:
            allowed = (
                "so short that clients walk at most the hexagon's inner radius, "
                f"{self.cell.inner_radius_m:g} m, in a round when cell.mobility is 'reflect'"
            )
            yield "cell.round_s", self.cell.round_s, allowed
