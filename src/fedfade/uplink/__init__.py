"""One round of uploads: slots, observations, reward."""

from fedfade.uplink.observation import global_state, observation_width, observe, state_width
from fedfade.uplink.reward import round_reward, slot_reward, squared_sum
from fedfade.uplink.scenario import Scenario, scenario_from_config
from fedfade.uplink.slot import (
    Action,
    Progress,
    Round,
    SlotResult,
    play_slot,
    slot_gain,
    start_round,
)

__all__ = [
    "Action",
    "Progress",
    "Round",
    "Scenario",
    "SlotResult",
    "global_state",
    "observation_width",
    "observe",
    "play_slot",
    "round_reward",
    "scenario_from_config",
    "slot_gain",
    "slot_reward",
    "squared_sum",
    "start_round",
    "state_width",
]
