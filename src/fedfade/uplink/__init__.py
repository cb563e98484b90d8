"""One round of uploads: slots, observations, reward, and the whole as an environment."""

from fedfade.uplink.cost import Bill, Spent, client_speeds, ready_slots
from fedfade.uplink.gradients import (
    GradientSource,
    SyntheticGradients,
    gradient_source,
    record_gradients,
)
from fedfade.uplink.observation import (
    fill_observation,
    fill_state,
    global_state,
    observation_width,
    observe,
    part_columns,
    plan_preference,
    ranked_clients,
    state_width,
    static_observation,
)
from fedfade.uplink.parallel import env, parallel_env, uplink_config
from fedfade.uplink.parts import Part, load_part
from fedfade.uplink.reward import normalised_inner, round_reward, slot_reward
from fedfade.uplink.rounds import ManyRounds, Rounds, layout_seeds
from fedfade.uplink.scenario import RewardWeights, Scenario, scenario_from_config
from fedfade.uplink.slot import (
    Action,
    Air,
    Progress,
    Round,
    SlotAir,
    arrived,
    as_announced,
    decode_action,
    draw_chance,
    encode_action,
    hop,
    is_over,
    mean_snr,
    noise_rise_db,
    plain_round,
    play_slot,
    slot_air,
    start_round,
)
