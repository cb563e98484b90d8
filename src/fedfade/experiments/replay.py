"""Play one round of a finished comparison again and draw it."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from fedfade.allocation import GENIE, PERFECT
from fedfade.errors import not_allowed
from fedfade.experiments.comparison import (
    compared_names,
    compared_policy,
    deliveries,
    stored_grams,
)
from fedfade.experiments.figures import round_figure
from fedfade.experiments.metrics import read_rows
from fedfade.experiments.run_folder import RESULTS, check_inputs, check_unchanged, open_finished
from fedfade.experiments.uploads import Uplink, ages_after
from fedfade.uplink import mean_snr


def replay_figure(folder: Path, policy_name: str, seed: int | None, number: int) -> Figure:
    """The same channel, gradients and policy as in the run, so the same round.

    Without a seed, the run's first.
    """
    config, record = open_finished(folder)
    names = [name for name in compared_names(config) if name != GENIE]
    sending = [name for name in names if name != PERFECT]
    if policy_name not in sending:
        bound = policy_name in (PERFECT, GENIE)
        why = " (this one is a bound and sends nothing)" if bound else ""
        raise not_allowed("--policy", policy_name, f"one of {', '.join(sending)}{why}")
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    seed = config.run.seed if seed is None else seed
    if seed not in seeds:
        raise not_allowed("--seed", seed, f"one of {', '.join(map(str, seeds))}")
    if not 0 <= number < config.run.rounds:
        raise not_allowed("--round", number, f"between 0 and {config.run.rounds - 1}")
    check_inputs(folder, config, record, policy_name)
    check_unchanged(folder, record, *RESULTS)
    inner, payload_bits = stored_grams(folder, config, len(names))
    own = inner[names.index(policy_name) :: len(names), number]  # [seed, client, client]
    uplink = Uplink(config, payload_bits, torch.device("cpu"))
    policy = compared_policy(config, policy_name)
    rows = [row for row in read_rows(folder / "metrics.csv") if row.round < number]
    before = [deliveries(rows, one, policy_name) for one in seeds]
    age = torch.stack([ages_after(rounds, config.learning.clients) for rounds in before])
    outcome = uplink.play(policy, number, torch.from_numpy(own), record=True, age=age)
    assert outcome.history is not None
    episode, scenario = seeds.index(seed), uplink.scenario
    snr = mean_snr(scenario, uplink.round(number))[episode] * scenario.antennas
    snr_db = 10 * torch.log10(snr)
    title = f"{policy_name}, seed {seed}, round {number}"
    return round_figure(outcome.history, episode, scenario, title, snr_db.tolist())
