"""Part `regimes`: who wins where. Mean SNR x spread of large-scale gain, all clients on one ring.

Uploads per round are played without learning (agents that look at gradients see invented ones);
final accuracy comes from federated runs on a coarser grid. Two maps of each: all policies, and
those that need no more than a client can know.

Agents observe the round as t/T, T being the length of the run they play, here as in every part.
None was trained on the seeds played, but settings of the deadline policies were chosen on seeds
1000 to 1004, those that `run.seed` 0 plays.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from fedfade.agents import load_policy_checkpoint, load_shipped_policy
from fedfade.allocation import PERFECT, load_policy
from fedfade.config import Config, changed
from fedfade.device import one_thread, pick_device
from fedfade.experiments.run_folder import mark
from fedfade.experiments.uploads import Uplink
from fedfade.learning import Payload, payload_bits, plain_payload
from fedfade.studies.frames import Drawn, final_table, kept, markdown, means
from fedfade.studies.noise import beyond, paired
from fedfade.studies.paper import charts
from fedfade.studies.paper.runs import agent_folders, agents_mark, all_runs, compared, trained
from fedfade.studies.paper.setting import QMIX, QMIX_PLUS, SCHEDULE, Clock, Setting
from fedfade.studies.paper.trial import CellPlayed, Player, play_cells
from fedfade.uplink.gradients import SyntheticGradients
from fedfade.wording import counted

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
"""What counts as paying: 5 % more uploads, 1 point of accuracy, and beyond noise."""
_CELL = ["snr", "spread"]


def compute(setting: Setting) -> dict[str, DataFrame]:
    """Uploads on the fine grid, accuracy of federated runs on the coarse one."""
    trained(setting)
    uploads, runs = _uploads(setting), []
    for snr, spread in product(setting.grid.coarse_snrs_db, setting.grid.coarse_spreads_db):
        labels = {"snr": snr, "spread": spread}
        runs += all_runs(setting, "regimes", labels, ring(snr, spread), LEARNING)
    rows = compared(setting, runs, "regimes")
    accuracies = final_table(rows, _CELL, setting.base.learning.clients)
    return {"regimes/uploads": uploads, "regimes/accuracy": accuracies}


def ring(snr_db: float, spread_db: float) -> dict[str, Any]:
    """A cell of the map as overrides."""
    return {
        "cell.mobility": "ring",
        "cell.shadowing_db": 0.0,
        "cell.ring_snr_db": snr_db,
        "cell.ring_spread_db": spread_db,
    }


def _uploads(setting: Setting) -> DataFrame:
    """Uploads of every policy, seed and cell; a file for each SNR, so that it can go on."""
    clock, bits = Clock(setting.chat), payload_bits(setting.base.learning)
    played = {"run.seed": setting.test_seeds[0], "run.rounds": setting.grid.regime_rounds}

    def play(number: int, configs: Sequence[Config]) -> DataFrame:
        clock(f"regimes: uploads, {number} of {len(setting.grid.snrs_db)} rows of the map")
        with one_thread():
            return _row_of_the_map(setting, configs, bits)

    tables = []
    for number, snr_db in enumerate(setting.grid.snrs_db):
        cells = [ring(snr_db, spread) for spread in setting.grid.spreads_db]
        configs = [changed(setting.base, {**cell, **played}) for cell in cells]
        name = f"uploads-{snr_db:g}-{_mark(setting, configs, bits)}.csv"
        path = setting.out / "regimes" / "runs" / name
        tables.append(kept(path, partial(play, number, configs)))
    return pd.concat(tables, ignore_index=True)


def _mark(setting: Setting, configs: Sequence[Config], bits: Payload) -> str:
    """Digest of all that decides a row of the map."""
    trees = [config.model_dump(include={"radio", "cell", "run"}) for config in configs]
    for tree in trees:
        del tree["run"]["device"], tree["run"]["checkpoint_s"], tree["run"]["train_absent"]
    # A number is part of what agents are trained for, so their digests stand for it.
    counted = [plain_payload(bits)] if setting.base.learning.payload_bits == "auto" else []
    agents = [*map(agents_mark, agent_folders(setting))]
    return mark(trees, agents, "on every seed", setting.plus, PLAYED, *counted)


def _row_of_the_map(setting: Setting, configs: Sequence[Config], bits: Payload) -> DataFrame:
    """All spreads of one SNR in one batch."""
    device, (config, *_) = pick_device(setting.base.run.device), configs
    cells = []
    for own in configs:
        labels = {"snr": own.cell.ring_snr_db, "spread": own.cell.ring_spread_db}
        cells.append(CellPlayed(labels, Uplink(own, bits, device)))
    players = [Player(name, load_policy(name)) for name in PLAYED]
    for seed, folder in zip(setting.training_seeds, agent_folders(setting), strict=True):
        players.append(Player(QMIX, load_policy_checkpoint(folder, config), str(seed)))
    if setting.plus:
        players.append(Player(QMIX_PLUS, load_shipped_policy(QMIX_PLUS, config)))
    source = SyntheticGradients(config, device, bits)
    table = play_cells(cells, range(config.run.rounds), source, players)
    return table[[*_CELL, "policy", "training", "seed", "uploads"]]


def winners(lines: DataFrame, field: str, allowed: Sequence[str]) -> DataFrame:
    """The best policy of every cell and its margin over the next: its error, and whether it is
    within the noise of a map of so many cells."""
    found, margins = [], []
    for (snr, spread), own in lines[lines["policy"].isin(allowed)].groupby(_CELL, sort=False):
        mean = means(own, "policy", field).sort_values(ascending=False, kind="stable")
        first, second = mean.index[:2]
        margins.append(paired(own, {"policy": first}, {"policy": second}, field))
        found.append((snr, spread, first, mean.iloc[0], second, *margins[-1][:2]))
    columns = [*_CELL, "winner", "value", "next", "margin", "error"]
    table = DataFrame(found, columns=columns)
    return table.assign(level=[not clear for clear in beyond(margins, unknown=True)])


def gains(lines: DataFrame, field: str, policies: Sequence[str]) -> DataFrame:
    """What the best of some policies adds to the best schedule made once a round, by cell: whether
    it is `above` or `below` beyond the noise of so many cells, and whether it is worth having."""
    found, added = [], []
    for (snr, spread), own in lines.groupby(_CELL, sort=False):
        mean = means(own, "policy", field)
        best, base = (
            mean.reindex([name for name in group if name in mean.index]).idxmax()
            for group in (policies, ONCE_A_ROUND)
        )
        added.append(paired(own, {"policy": best}, {"policy": base}, field))
        found.append((snr, spread, best, base, mean[base], *added[-1][:2]))
    columns = [*_CELL, "policy", "over", "schedule", "gain", "error"]
    table = DataFrame(found, columns=columns)
    worth = WORTH_UPLOADS * table["schedule"] if field == "uploads" else WORTH_ACCURACY
    table["below"] = beyond([gain.turned for gain in added], unknown=True)
    table["pays"] = Series(beyond(added, unknown=True)) & (table["gain"] >= worth)
    return table


def draw(setting: Setting) -> Drawn:
    """Four maps, and the answer in numbers."""
    tables = {field: setting.table(f"regimes/{field}") for field in ("uploads", "accuracy")}
    everybody = [name for name in tables["uploads"]["policy"].unique() if name != PERFECT]
    allowed = {"all": everybody, "local": LOCAL}
    maps = {
        (field, who): winners(tables[field], field, allowed[who])
        for field, who in product(tables, allowed)
    }
    answers, text = {}, []
    for (field, lines), (who, group) in product(tables.items(), GROUPS.items()):
        there = [name for name in group if name in set(lines["policy"])]
        found = gains(lines, field, there)
        answers[f"{field}: {who}"] = found.to_dict("records")
        text.append(sentence(field, f"{who} ({', '.join(there)})", found))
        text.append(_matrix(found, field, bold=not setting.rehearsal))
    text += [_table(lines, field, bold=not setting.rehearsal) for field, lines in tables.items()]
    facts = {
        "winners": {f"{f} {who}": cells.to_dict("records") for (f, who), cells in maps.items()},
        "gains": answers,
    }
    made = {f"regimes/map-{field}-{who}": cells for (field, who), cells in maps.items()}
    return Drawn(facts, "\n\n".join(text), {"regimes": partial(charts.regimes, maps)}, made)


def sentence(field: str, who: str, found: DataFrame) -> str:
    """When does looking at the fading pay?"""
    worth = "5 % more uploads" if field == "uploads" else "1 point of accuracy"
    paying, sizes = found[found["pays"]], _sizes(found["gain"], field)
    losing = found["below"].sum()
    known = found["error"].notna().all()
    noise = ", and beyond noise," if known else ", in the one seed that was run,"
    cells = ", ".join(f"{snr:g}/{spread:g} dB" for snr, spread in paying[_CELL].to_numpy())
    where = f" ({cells})" if 0 < len(paying) < len(found) else ""
    below = f"; below it{' beyond noise' if known else ''} in {losing}" if losing else ""
    return (
        f"{who}: at least {worth} beyond the best schedule made once a round{noise} in "
        f"{len(paying)} of {len(found)} cells{where}{below}; in the other "
        f"{len(found) - len(paying) - losing} the schedule is enough. "
        f"From {sizes.min():+.2f} to {sizes.max():+.2f}."
    )


def _sizes(values: Series, field: str) -> Series:
    return 100 * values if field == "accuracy" else values


def _matrix(found: DataFrame, field: str, bold: bool) -> str:
    """Gains over the schedule: a row per spread, a column per SNR; bold where they pay."""
    shown = _sizes(found["gain"], field).map("{:+.2f}".format)
    shown = shown.mask(found["pays"], "**" + shown + "**") if bold else shown
    by_spread = shown.groupby(found["spread"], sort=False)
    heads = ["spread \\ SNR", *(f"{snr:g} dB" for snr in found["snr"].unique())]
    return markdown(heads, [[f"{spread:g} dB", *cells] for spread, cells in by_spread])


def _table(lines: DataFrame, field: str, bold: bool) -> str:
    policies, digits = [*lines["policy"].unique()], 1 if field == "accuracy" else 2
    rows = []
    for (snr, spread), own in lines.groupby(_CELL, sort=False):
        shown = _sizes(means(own, "policy", field), field)
        best = shown.drop(PERFECT, errors="ignore").max() if bold else None
        cells = [f"**{v:.{digits}f}**" if v == best else f"{v:.{digits}f}" for v in shown[policies]]
        rows.append([f"{snr:g}", f"{spread:g}", *cells])
    unit = "Final accuracy in %" if field == "accuracy" else "Uploads per round"
    seeds = counted(lines["seed"].nunique(), "seed")
    head = f"{unit}, mean over {seeds}{' (best of those that send in bold)' if bold else ''}:"
    return f"{head}\n\n" + markdown(["SNR dB", "spread dB", *policies], rows)
