"""One round of uploads: slots, observations, reward, and the whole as an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedfade.uplink.gradients import GradientSource, gradient_source, record_gradients
from fedfade.uplink.observation import (
    Backdrop,
    fill_observation,
    fill_state,
    global_state,
    make_backdrop,
    observation_width,
    observe,
    plan_preference,
    state_width,
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
    from pettingzoo import AECEnv

    from fedfade.config import Config
    from fedfade.uplink.parallel import UplinkEnv


def parallel_env(
    preset: str | Config = "paper",
    render_mode: str | None = None,
    max_cycles: int | None = None,
    gradients: str | None = None,
    **overrides: Any,
) -> UplinkEnv:
    """The uplink of a preset, or of a whole configuration, as a PettingZoo ParallelEnv.

    `fedfade.uplink.parallel.parallel_env`, which this calls, says what the parameters do.
    """
    from fedfade.uplink import parallel  # PettingZoo is not needed to train

    return parallel.parallel_env(preset, render_mode, max_cycles, gradients, **overrides)


def env(
    preset: str | Config = "paper",
    render_mode: str | None = None,
    max_cycles: int | None = None,
    gradients: str | None = None,
    **overrides: Any,
) -> AECEnv[str, Any, Any]:
    """The same with agents acting in turn (PettingZoo AEC)."""
    from fedfade.uplink import parallel

    return parallel.env(preset, render_mode, max_cycles, gradients, **overrides)


__all__ = [
    "Action",
    "Backdrop",
    "GradientSource",
    "Progress",
    "Round",
    "Rounds",
    "Scenario",
    "SlotResult",
    "decode_action",
    "env",
    "fill_observation",
    "fill_state",
    "global_state",
    "gradient_source",
    "make_backdrop",
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
]
