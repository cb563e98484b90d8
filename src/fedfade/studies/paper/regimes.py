"""Who wins where: mean SNR x spread of large-scale gain, all clients on one ring.

Uploads per round are played without learning (agents that look at gradients see invented ones);
final accuracy comes from federated runs on a coarser grid. Two maps of each: all policies, and
those that need no more than a client can know.

Agents observe the round as t/T, T being the length of the run they play, here as in every part.
None was trained on the seeds played, but settings of the deadline policies were chosen on seeds
1000 to 1004, those that `run.seed` 0 plays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedfade.agents import load_policy_checkpoint, load_shipped_policy
from fedfade.agents.checkpoint import load_checkpoint
from fedfade.agents.run import seed_folder
from fedfade.allocation import PERFECT, Policy, load_policy, play_round
from fedfade.config import Config, changed
from fedfade.device import one_thread, pick_device
from fedfade.experiments.run_folder import mark
from fedfade.experiments.uploads import Uplink, joined
from fedfade.learning import Federation, load_data
from fedfade.studies.paper import pictures
from fedfade.studies.paper.runs import (
    agent_jobs,
    baseline_jobs,
    compared,
    plus_jobs,
    trained,
    training_folder,
)
from fedfade.studies.paper.setting import (
    QMIX,
    QMIX_PLUS,
    SCHEDULE,
    Clock,
    Setting,
    unseen,
)
from fedfade.studies.paper.summaries import final_lines, means, paired
from fedfade.studies.paper.tables import (
    Line,
    distinct,
    markdown,
    matching,
    read_table,
    write_table,
)
from fedfade.uplink import Round
from fedfade.uplink.gradients import SyntheticGradients

PART = "regimes"
ONCE_A_ROUND = (SCHEDULE, "wrap-around-schedule")
"""Made from large-scale gains alone before the first slot."""
OWN_FADING = ("wrap-around-choice", "max-individual-rate")
CENTRAL = ("max-sum-rate", "shortest-remaining-first", "deadline-matching")
FEEDBACK = ("block-fading-schedule-feedback", "deadline-feedback")
AGENTS = (QMIX, QMIX_PLUS)
PLAYED = ("random", *ONCE_A_ROUND, *OWN_FADING, *FEEDBACK, *CENTRAL)
LEARNING = (*ONCE_A_ROUND, OWN_FADING[0], *CENTRAL, PERFECT)
LOCAL = ("random", *ONCE_A_ROUND, *OWN_FADING, *AGENTS)
"""A client alone can follow these."""
GROUPS = {
    "Seeing everybody's fading": CENTRAL,
    "Seeing the own fading": OWN_FADING,
    "Trained agents": AGENTS,
}

WORTH_UPLOADS, WORTH_ACCURACY = 0.05, 0.01
"""What counts as paying: 5 % more uploads, 1 point of accuracy, and twice the standard error."""


def compute(setting: Setting) -> None:
    """`uploads.csv` from the fine grid, `accuracy.csv` from the coarse one."""
    trained(setting)
    write_table(setting.out / PART / "uploads.csv", _uploads(setting))
    write_table(setting.out / PART / "accuracy.csv", _accuracies(setting))


def ring(snr_db: float, spread_db: float) -> dict[str, Any]:
    """A cell of the map as overrides."""
    return {
        "cell.placement": "ring",
        "cell.shadowing_db": 0.0,
        "cell.ring_snr_db": snr_db,
        "cell.ring_spread_db": spread_db,
    }


# --- uploads -----------------------------------------------------------------------------------


def _uploads(setting: Setting) -> list[Line]:
    """Uploads of every policy, seed and cell; a file for each SNR, so that it can go on."""
    clock, lines, bits = Clock(setting.say), [], _payload_bits(setting.base)
    for number, snr_db in enumerate(setting.grid.snrs_db):
        configs = [
            changed(setting.base, {**ring(snr_db, spread), **_played(setting)})
            for spread in setting.grid.spreads_db
        ]
        name = f"uploads-{snr_db:g}-{_mark(setting, configs, bits)}.csv"
        path = setting.out / PART / "runs" / name
        if not path.is_file():
            clock(f"regimes: uploads, {number} of {len(setting.grid.snrs_db)} rows of the map")
            with one_thread():
                write_table(path, _row_of_the_map(setting, configs, bits))
        lines += read_table(path)
    return lines


def _played(setting: Setting) -> dict[str, Any]:
    return {"run.seed": unseen(setting.base.run.seed), "run.rounds": setting.grid.regime_rounds}


def _payload_bits(config: Config) -> float:
    """As in federated runs, where `auto` counts the values of the model."""
    if config.learning.payload_bits != "auto":
        return float(config.learning.payload_bits)
    return Federation(config.learning, load_data(config.learning)).payload_bits


def _mark(setting: Setting, configs: Sequence[Config], bits: float) -> str:
    """Digest of all that decides a row of the map."""
    folder = training_folder(setting)
    agents = [
        load_checkpoint(seed_folder(folder, seed)).files["agents"]["sha256"]
        for seed in setting.training_seeds
    ]
    trees = [config.model_dump(include={"radio", "cell", "run"}) for config in configs]
    for tree in trees:
        del tree["run"]["device"], tree["run"]["checkpoint_s"]
    # A number is part of what agents are trained for, so their digests stand for it.
    counted = [bits] if setting.base.learning.payload_bits == "auto" else []
    return mark(trees, agents, setting.plus, PLAYED, *counted)


def _row_of_the_map(setting: Setting, configs: Sequence[Config], bits: float) -> list[Line]:
    """All spreads of one SNR in one batch: [spread, seed, round] episodes."""
    device = pick_device(setting.base.run.device)
    uplinks = [Uplink(config, bits, device) for config in configs]
    seeds, rounds = uplinks[0].seeds, range(configs[0].run.rounds)
    batch = joined([uplink.rounds(rounds) for uplink in uplinks])
    source = SyntheticGradients(changed(configs[0], {"learning.payload_bits": bits}), device)
    inner = torch.stack([source.inner(seeds, number) for number in rounds], 1).flatten(0, 1)
    batch = batch._replace(inner=inner.repeat(len(configs), 1, 1))
    shape = (len(configs), len(seeds), len(rounds))

    def play(policy: Policy, episodes: Round, runs: slice = slice(None)) -> Tensor:
        """Uploads of these seeds: [spread, seed, round]."""
        keys = uplinks[0].keys(policy.name, *rounds).reshape(shape[1:])[runs].flatten()
        outcome = play_round(policy, uplinks[0].scenario, episodes, keys.repeat(len(configs)))
        return outcome.delivered.sum(-1).reshape(shape[0], -1, shape[2])

    uploads = {name: play(load_policy(name), batch) for name in PLAYED}
    own = []
    for run, seed in enumerate(setting.training_seeds):
        parts = (part.reshape(*shape, *part.shape[1:])[:, run].flatten(0, 1) for part in batch)
        own.append(play(_agents(setting, seed, configs[0]), Round(*parts), slice(run, run + 1)))
    uploads[QMIX] = torch.cat(own, 1)
    if setting.plus:
        uploads[QMIX_PLUS] = play(load_shipped_policy(QMIX_PLUS, configs[0]), batch)
    return [
        {
            "snr": config.cell.ring_snr_db,
            "spread": config.cell.ring_spread_db,
            "policy": name,
            "seed": float(seed),
            "uploads": float(counts[place, run].float().mean()),
        }
        for name, counts in uploads.items()
        for place, config in enumerate(configs)
        for run, seed in enumerate(seeds)
    ]


def _agents(setting: Setting, seed: int, config: Config) -> Policy:
    return load_policy_checkpoint(seed_folder(training_folder(setting), seed), config)


# --- accuracy ----------------------------------------------------------------------------------


def _accuracies(setting: Setting) -> list[Line]:
    """Final accuracy and uploads on the coarse grid."""
    grid = setting.grid
    places = list(itertools.product(grid.coarse_snrs_db, grid.coarse_spreads_db))
    jobs = {}
    for snr, spread in places:
        cell, fields = f"snr-{snr:g}_spread-{spread:g}", ring(snr, spread)
        jobs[snr, spread] = [
            *baseline_jobs(setting, PART, cell, fields, LEARNING),
            *agent_jobs(setting, PART, cell, fields),
            *plus_jobs(setting, PART, cell, fields),
        ]
    rows = iter(compared(setting, [job for some in jobs.values() for job in some], PART))
    lines: list[Line] = []
    for (snr, spread), some in jobs.items():
        own = [row for _ in some for row in next(rows)]
        head: Line = {"snr": snr, "spread": spread}
        lines += final_lines(own, setting.base.learning.clients, head)
    return lines


# --- winners -----------------------------------------------------------------------------------


def winners(lines: Sequence[Line], field: str, allowed: Sequence[str]) -> list[Line]:
    """The best policy of every cell and its margin over the next, with the margin's error."""
    found = []
    for snr, spread, cell in cells_of(lines):
        own = [line for line in cell if line["policy"] in allowed]
        mean = means(own, "policy", field)
        first, second = sorted(mean, key=lambda policy: -mean[policy])[:2]
        margin, error = paired(own, {"policy": first}, {"policy": second}, field)
        found.append(
            {
                "snr": snr,
                "spread": spread,
                "winner": first,
                "value": mean[first],
                "next": second,
                "margin": margin,
                "error": error,
            }
        )
    return found


def cells_of(lines: Sequence[Line]) -> list[tuple[float, float, list[Line]]]:
    """The lines of every cell of a map."""
    return [
        (snr, spread, matching(lines, snr=snr, spread=spread))
        for snr in distinct(lines, "snr")
        for spread in distinct(lines, "spread")
    ]


def gains(lines: Sequence[Line], field: str, policies: Sequence[str]) -> list[Line]:
    """What the best of some policies adds to the best schedule made once a round, by cell."""
    found = []
    for snr, spread, own in cells_of(lines):
        mean = means(own, "policy", field)
        rivals = [policy for policy in policies if policy in mean]
        if not rivals:
            continue
        best = max(rivals, key=lambda policy: mean[policy])
        base = max((p for p in ONCE_A_ROUND if p in mean), key=lambda policy: mean[policy])
        gain, error = paired(own, {"policy": best}, {"policy": base}, field)
        found.append(
            {
                "snr": snr,
                "spread": spread,
                "policy": best,
                "over": base,
                "schedule": mean[base],
                "gain": gain,
                "error": error,
                "pays": pays(gain, error, mean[base], field),
            }
        )
    return found


def pays(gain: float, error: float, base: float, field: str) -> bool:
    """Whether a gain over the schedule is worth having and beyond noise.

    >>> pays(0.5, 0.1, 4.0, "uploads"), pays(0.1, 0.01, 4.0, "uploads")
    (True, False)
    """
    worth = WORTH_UPLOADS * base if field == "uploads" else WORTH_ACCURACY
    return gain >= worth and (math.isnan(error) or gain > 2 * error)


def draw(setting: Setting) -> tuple[dict[str, object], str]:
    """Four maps, and the answer in numbers."""
    folder = setting.out / PART
    tables = {
        "uploads": read_table(folder / "uploads.csv"),
        "accuracy": read_table(folder / "accuracy.csv"),
    }
    everybody = [p for p in distinct(tables["uploads"], "policy") if p != PERFECT]
    local = [policy for policy in LOCAL if policy in everybody]
    maps = {
        (field, who): winners(lines, field, [p for p in allowed if p in distinct(lines, "policy")])
        for field, lines in tables.items()
        for who, allowed in (("all", everybody), ("local", local))
    }
    pictures.put(folder / "regimes.png", pictures.regimes, maps)
    for (field, who), cells in maps.items():
        write_table(folder / f"map-{field}-{who}.csv", cells)
    answers, text = {}, []
    for field, lines in tables.items():
        for who, group in GROUPS.items():
            found = gains(lines, field, group)
            answers[f"{field}: {who}"] = found
            there = [name for name in group if name in distinct(lines, "policy")]
            text.append(_sentence(field, f"{who} ({', '.join(there)})", found))
            text.append(_matrix(found, field))
    text.append(_table(tables["uploads"], "uploads"))
    text.append(_table(tables["accuracy"], "accuracy"))
    facts: dict[str, object] = {
        "winners": {f"{f} {w}": cells for (f, w), cells in maps.items()},
        "gains": answers,
    }
    return facts, "\n\n".join(text)


def _sentence(field: str, who: str, found: Sequence[Line]) -> str:
    """When does looking at the fading pay?"""
    worth = "5 % more uploads" if field == "uploads" else "1 point of accuracy"
    paying = [cell for cell in found if cell["pays"]]
    losing = [cell for cell in found if cell["gain"] < -2 * _known(cell["error"])]
    sizes = [100 * cell["gain"] if field == "accuracy" else cell["gain"] for cell in found]
    noise = ", and beyond noise," if _noise_known(found) else ", in the one seed that was run,"
    text = (
        f"{who}: at least {worth} beyond the best schedule made once a round{noise} in "
        f"{len(paying)} of {len(found)} cells"
    )
    text += f" ({_places(paying)})" if 0 < len(paying) < len(found) else ""
    beyond = " beyond noise" if _noise_known(found) else ""
    text += f"; below it{beyond} in {len(losing)}" if losing else ""
    text += f"; in the other {len(found) - len(paying) - len(losing)} the schedule is enough."
    return f"{text} From {min(sizes):+.2f} to {max(sizes):+.2f}."


def _matrix(found: Sequence[Line], field: str) -> str:
    """Gains over the schedule: a row per spread, a column per SNR; bold where they pay."""
    snrs = distinct(found, "snr")
    rows = []
    for spread in distinct(found, "spread"):
        gain = {cell["snr"]: cell for cell in matching(found, spread=spread)}
        sizes = [(100 if field == "accuracy" else 1) * gain[snr]["gain"] for snr in snrs]
        cells = [
            f"**{size:+.2f}**" if gain[snr]["pays"] else f"{size:+.2f}"
            for snr, size in zip(snrs, sizes, strict=True)
        ]
        rows.append([f"{spread:g} dB", *cells])
    return markdown(["spread \\ SNR", *(f"{snr:g} dB" for snr in snrs)], rows)


def _noise_known(found: Sequence[Line]) -> bool:
    return not any(math.isnan(cell["error"]) for cell in found)


def _known(error: float) -> float:
    return 0.0 if math.isnan(error) else error


def _places(cells: Sequence[Line]) -> str:
    return ", ".join(f"{cell['snr']:g}/{cell['spread']:g} dB" for cell in cells)


def _table(lines: Sequence[Line], field: str) -> str:
    policies = distinct(lines, "policy")
    rows = []
    for snr, spread, own in cells_of(lines):
        mean = means(own, "policy", field)
        shown = [100 * mean[p] if field == "accuracy" else mean[p] for p in policies]
        digits = 1 if field == "accuracy" else 2
        best = max((v for v, p in zip(shown, policies, strict=True) if p != PERFECT), default=0)
        cells = [f"**{v:.{digits}f}**" if v == best else f"{v:.{digits}f}" for v in shown]
        rows.append([f"{snr:g}", f"{spread:g}", *cells])
    unit = "Final accuracy in %" if field == "accuracy" else "Uploads per round"
    seeds = len(distinct(lines, "seed"))
    head = f"{unit}, mean over {seeds} seeds (best of those that send in bold):"
    return f"{head}\n\n" + markdown(["SNR dB", "spread dB", *policies], rows)
