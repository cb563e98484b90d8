"""Settings that another setting makes idle: a user who gives one is told that it does nothing."""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from fedfade.config.tree import CappedConfig, Config, MappoConfig, NrConfig
from fedfade.seams import CODECS, PARTS


def _one_of(*values: object) -> Callable[[Any], bool]:
    return values.__contains__


def _nobody_announces(parts: list[str]) -> bool:
    """Whether no part of an observation is others' fading, as far as parts are ours."""
    return "others_fading" not in parts and set(parts) <= PARTS.built_in.keys()


# Implementations of a user's own are given a whole branch of the tree, and may use all of it.
_UNCLUSTERED = _one_of("rayleigh", "gamma", "traces")
_UNMOVED = _one_of("gamma", "traces")
_NOT_WALKING = _one_of("redraw", "fixed", "ring")
_WITHOUT_CHOICE = CODECS.built_in.keys() - {"topk", "topk-progressive"}
_WITHOUT_RANK = CODECS.built_in.keys() - {"lowrank"}
_REMEMBERING = ("mifa", "fedvarp", "scaffold")
_MAPPO = " ".join(f"qmix.mappo.{name}" for name in MappoConfig.model_fields)
_CAPPED = " ".join(f"radio.capped.{name}" for name in CappedConfig.model_fields)
_NR = " ".join(f"radio.nr.{name}" for name in NrConfig.model_fields)
_OF_QMIX = """
    qmix.mixer qmix.mixing_width qmix.hypernet_width qmix.optimiser qmix.agent_rate qmix.mixer_rate
    qmix.final_rate qmix.rmsprop_decay qmix.rmsprop_epsilon qmix.clip_gradient qmix.loss
    qmix.standardise_rewards qmix.mask_finished qmix.n_step qmix.replay_size qmix.batch_size
    qmix.update_every qmix.target_every qmix.epsilon_start qmix.epsilon_end qmix.epsilon_episodes
    qmix.explore_decisions qmix.lesson_margin
"""
_OF_THE_PLACE = """
    radio.antenna_gain_dbi radio.client_antenna_gain_dbi
    cell.side_m cell.min_distance_m cell.bs_height_m cell.client_height_m
"""
_ON_RING = {"cell.mobility": _one_of("ring"), "cell.interference_cells": _one_of(0)}
_SUMMED = {"qmix.mixer": _one_of("vdn", "independent"), "qmix.algorithm": _one_of("qmix")}

IDLE: list[tuple[str, dict[str, Callable[[Any], bool]]]] = [
    ("radio.clusters radio.cluster_draw radio.subcarriers", {"radio.source": _UNCLUSTERED}),
    ("radio.subband_gain", {"radio.source": _one_of("rayleigh", "gamma")}),
    ("radio.subcarriers", {"radio.subband_gain": _one_of("centre")}),
    ("radio.speed_mps", {"radio.source": _UNMOVED, "cell.mobility": _NOT_WALKING}),
    ("radio.carrier_hz", {"radio.source": _UNMOVED} | _ON_RING),
    (_OF_THE_PLACE, {"radio.source": _UNCLUSTERED} | _ON_RING),
    ("radio.receiver", {"radio.receive_antennas": _one_of(1)}),
    ("cell.interference_activity", {"cell.interference_cells": _one_of(0)}),
    ("radio.link_overhead", {"radio.link": _one_of("shannon")}),
    ("radio.link_delay_slots", {"radio.link": _one_of("shannon", "capped")}),
    (_CAPPED, {"radio.link": _one_of("shannon", "nr")}),
    (_NR, {"radio.link": _one_of("shannon", "capped")}),
    ("radio.nr.block_bits radio.nr.gap_db", {"radio.nr.curves": lambda path: path is not None}),
    ("cell.round_s", {"cell.mobility": _NOT_WALKING}),
    ("cell.shadowing_db cell.shadowing_decorrelation_m", _ON_RING),
    ("cell.ring_snr_db cell.ring_spread_db", {"cell.mobility": lambda how: how != "ring"}),
    ("learning.alpha", {"learning.partition": _one_of("iid", "shards")}),
    ("learning.shards_per_client", {"learning.partition": _one_of("iid", "dirichlet")}),
    ("learning.codec_fraction", {"learning.codec": _one_of(*_WITHOUT_CHOICE)}),
    ("learning.codec_rank", {"learning.codec": _one_of(*_WITHOUT_RANK)}),
    ("learning.error_feedback", {"learning.codec": _one_of("none", "float32")}),
    (
        "learning.server_beta1 learning.server_beta2 learning.server_tau",
        {"learning.server": _one_of("mean", "momentum", *_REMEMBERING)},
    ),
    ("learning.server_momentum", {"learning.server": _one_of("adam", "yogi", *_REMEMBERING)}),
    ("learning.data_dir", {"learning.data": lambda data: data != "cifar10"}),
    ("allocation.csi_delay_slots", {"allocation.observe": _nobody_announces}),
    ("cost.samples_per_s cost.speed_spread", {"cost.speeds": lambda file: file is not None}),
    (
        "allocation.reward.delivered allocation.reward.deviation",
        {"allocation.reward.convergence": _one_of(0)},
    ),
    (_MAPPO, {"qmix.algorithm": _one_of("qmix")}),
    (_OF_QMIX, {"qmix.algorithm": _one_of("mappo")}),
    ("qmix.mixing_width qmix.hypernet_width qmix.mixer_rate qmix.state", _SUMMED),
    ("qmix.mixing_width", {"qmix.mixer": _one_of("qplex")}),
    ("qmix.rmsprop_decay qmix.rmsprop_epsilon", {"qmix.optimiser": _one_of("adam")}),
    ("qmix.lessons qmix.lesson_episodes qmix.lesson_margin", {"qmix.teacher": _one_of("none")}),
    ("qmix.candidate_rounds", {"qmix.candidates": _one_of(1)}),
    ("qmix.payload_episodes", {"qmix.payload_start": _one_of(1)}),
    ("qmix.evaluate_every", {"qmix.gradients": lambda source: source != "learning"}),
    ("run.deadline_clients", {"run.deadline": _one_of("fixed")}),
    ("run.repeat_fading", {"run.episodes_per_round": _one_of(1)}),
    ("run.precision", {"run.precision": _one_of("tf32"), "run.device": _one_of("cpu")}),
]
"""Fields that are idle while all of some settings are such."""


def idle(config: Config, given: Iterable[str]) -> Iterator[str]:
    """What there is to say about the fields a user has given.

    >>> from fedfade.config import load_config
    >>> list(idle(load_config("paper", ["radio.source=rayleigh"]), ["radio.clusters"]))
    ['radio.clusters has no effect while radio.source is rayleigh']
    """
    for field in given:
        for fields, settings in IDLE:
            values = {name: attrgetter(name)(config) for name in settings}
            if field in fields.split() and all(settings[name](values[name]) for name in settings):
                reason = " and ".join(f"{name} is {value}" for name, value in values.items())
                yield f"{field} has no effect while {reason}"
                break
