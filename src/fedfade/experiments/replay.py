"""Play one round of a finished comparison again and draw it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedfade.allocation import GENIE, PERFECT
from fedfade.errors import UserError, not_allowed
from fedfade.experiments.comparison import compared_names, compared_policy, stored_grams
from fedfade.experiments.figures import round_figure
from fedfade.experiments.inputs import check_inputs
from fedfade.experiments.run_folder import open_finished
from fedfade.experiments.uploads import Uplink

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def replay_figure(folder: Path, policy_name: str, seed: int | None, number: int) -> Figure:
    """The same channel, gradients and policy as in the run, so the same round.

    Without a seed, the run's first.
    """
    config, record = open_finished(folder)
    if record.get("finished") is None:
        raise UserError(f"{str(folder)!r} is not finished: run the same fedfade compare again.")
    names = [name for name in compared_names(config) if name != GENIE]
    sending = [name for name in names if name != PERFECT]
    if policy_name not in sending:
        why = f"one of {', '.join(sending)}"
        if policy_name in (PERFECT, GENIE):
            why += " (this one is a bound and sends nothing)"
        raise not_allowed("--policy", policy_name, why)
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    seed = config.run.seed if seed is None else seed
    if seed not in seeds:
        raise not_allowed("--seed", seed, f"one of {', '.join(map(str, seeds))}")
    if not 0 <= number < config.run.rounds:
        raise not_allowed("--round", number, f"between 0 and {config.run.rounds - 1}")
    check_inputs(folder, config, record, policy_name)
    stored = stored_grams(folder, config, len(names))
    own = stored.inner[names.index(policy_name) :: len(names), number]  # [seed, client, client]
    inner = torch.from_numpy(own)
    policy = compared_policy(config, policy_name)
    uplink = Uplink(config, stored.payload_bits, torch.device("cpu"))
    outcome = uplink.play(policy, number, inner, record=True)
    assert outcome.history is not None
    episode = seeds.index(seed)
    scenario = uplink.scenario
    alpha = uplink.round(number).alpha[episode]
    snr_db = 10 * torch.log10(alpha * (scenario.full_power_w / scenario.noise_w))
    title = f"{policy_name}, seed {seed}, round {number}"
    return round_figure(outcome.history, episode, scenario, title, snr_db.tolist())
