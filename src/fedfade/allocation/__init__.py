"""Who sends where: the policies, and playing a round under one."""

from fedfade.allocation.genie import genie_bound
from fedfade.allocation.max_sum_rate import max_sum_rate, sum_rate_nats
from fedfade.allocation.play import (
    History,
    Outcome,
    RecordedRounds,
    as_observed,
    make_view,
    play_round,
)
from fedfade.allocation.policy import (
    BUILT_IN,
    GENIE,
    PERFECT,
    ActionChecks,
    Observed,
    Policy,
    Scope,
    View,
    described,
    full_power,
    gradient_aware,
    load_policy,
    policy_names,
)
from fedfade.uplink import Action
from fedfade.uplink.plan import ergodic_rate
