"""One round of uploads: slots, observations, reward, and the whole as an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedfade.uplink.gradients import GradientSource, gradient_source, record_gradients
from fedfade.uplink.observation import (
    StaticObservation,
    fill_observation,
    fill_state,
    global_state,
    observation_width,
    observe,
    plan_preference,
    state_width,
    static_observation,
)
from fedfade.uplink.reward import normalised_inner, round_reward, slot_reward, squared_sum
from fedfade.uplink.rounds import Rounds
from fedfade.uplink.scenario import Scenario, scenario_from_config
from fedfade.uplink.slot import (
    Action,
    Progress,
    Round,
    SlotResult,
    decode_action,
    play_slot,
    slot_gain,
    start_round,
)

if TYPE_CHECKING:
    from fedfade.uplink.parallel import env, parallel_env


def __getattr__(name: str) -> Any:
    """The environments when they are asked for: PettingZoo is not needed to train."""
    if name not in ("env", "parallel_env"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedfade.uplink import parallel

    return getattr(parallel, name)


__all__ = [
    "Action",
    "GradientSource",
    "Progress",
    "Round",
    "Rounds",
    "Scenario",
    "SlotResult",
    "StaticObservation",
    "decode_action",
    "env",
    "fill_observation",
    "fill_state",
    "global_state",
    "gradient_source",
    "normalised_inner",
    "observation_width",
    "observe",
    "parallel_env",
    "plan_preference",
    "play_slot",
    "record_gradients",
    "round_reward",
    "scenario_from_config",
    "slot_gain",
    "slot_reward",
    "squared_sum",
    "start_round",
    "state_width",
    "static_observation",
]
