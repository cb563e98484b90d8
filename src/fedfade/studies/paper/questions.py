"""The parts of a reproduction but for the map of regimes: which runs, which table, which picture,
which sentence. `compute_PART` gives tables by PART/NAME, `draw_PART` what is made of them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy.stats import spearmanr

from fedfade.agents import saved_curve
from fedfade.allocation import PERFECT
from fedfade.config import QmixConfig, changed
from fedfade.device import pick_device
from fedfade.experiments.comparison import bound_under
from fedfade.experiments.figures import of_seeds
from fedfade.experiments.run_folder import decisive, mark
from fedfade.learning import class_counts, deal, load_data, payload_bits
from fedfade.learning.plots import class_distribution
from fedfade.studies.frames import Drawn, curve_table, final_table, kept, markdown, matching
from fedfade.studies.noise import Difference, paired
from fedfade.studies.paper import charts, trial
from fedfade.studies.paper.runs import (
    agent_runs,
    agents_mark,
    all_runs,
    compared,
    train_variants,
    trained,
)
from fedfade.studies.paper.setting import (
    BASELINES,
    BOUND_ROUND,
    QMIX,
    QMIX_PLUS,
    Hide,
    PaperCell,
    Setting,
    spread_out,
)
from fedfade.uplink.gradients import SyntheticGradients
from fedfade.wording import counted

HIDDEN: tuple[Hide, ...] = ("gradient", "fading")
_POINTS = 300  # of a curve in the table; each is a mean over its episodes


def compute_partition(setting: Setting) -> dict[str, DataFrame]:
    """Deal the samples of every evaluation seed."""
    dataset = load_data(setting.base.learning)
    labels = dataset.train_labels.numpy()
    tables = []
    for alpha in setting.grid.alphas:
        learning = changed(setting.base, {"learning.alpha": alpha}).learning
        for seed in setting.test_seeds:
            counts = class_counts(labels, deal(learning, labels, seed), len(dataset.classes))
            head = DataFrame({"alpha": alpha, "seed": seed, "client": range(len(counts))})
            tables.append(head.join(DataFrame(counts, columns=list(dataset.classes))))
    return {"partition/classes": pd.concat(tables)}


def draw_partition(setting: Setting) -> Drawn:
    """The paper's stacked bars for the first seed; the spread of class shares over all."""
    lines = setting.table("partition/classes").set_index(["alpha", "seed", "client"])
    seeds, classes = lines.index.unique("seed"), [*lines.columns]
    first = lines.xs(seeds[0], level="seed").astype(int).groupby("alpha", sort=False)
    counts = {alpha: own.to_numpy() for alpha, own in first}
    learning = setting.base.learning
    title = f"{learning.data}, {counted(learning.clients, 'client')}, seed {seeds[0]:.0f}"
    shares = lines.div(lines.sum(axis=1), axis=0)
    spread = shares.std(axis=1, ddof=0).groupby("alpha", sort=False).mean()
    text = "Mean within-client standard deviation of class shares, "
    text += f"{counted(len(seeds), 'seed')}:\n\n"
    text += markdown(["alpha", "deviation"], [[f"{a:g}", f"{s:.3f}"] for a, s in spread.items()])
    facts = {"share_std": {f"{alpha:g}": value for alpha, value in spread.items()}}
    picture = partial(class_distribution, counts, classes, title)
    return Drawn(facts, text, {"partition": picture})


def _training_curve(setting: Setting, hide: Sequence[Hide] = ()) -> DataFrame:
    """Reward and uploads of every training seed, trained where needed, in at most 300 bins."""
    tables = []
    for seed, folder in zip(setting.training_seeds, trained(setting, hide), strict=True):
        curve = DataFrame(saved_curve(folder))
        bins = np.array_split(curve.index, min(_POINTS, len(curve)))
        binned = curve.groupby(np.repeat(range(len(bins)), [*map(len, bins)]))
        figures = binned.agg({"episodes": "last", "reward": "mean", "uploads": "mean"})
        tables.append(DataFrame({"seed": seed}, figures.index).join(figures))
    return pd.concat(tables).assign(hidden=hide[0] if hide else "nothing")


def _by_tenths(lines: DataFrame) -> DataFrame:
    """For every training seed the reward by tenths of the training, and uploads in the last: `best`
    is the best tenth, `last` and `before_last` are where it ended and came from."""
    facts = []
    for seed, own in lines.groupby("seed", sort=False):
        parts = np.array_split(own[["reward", "uploads"]].to_numpy(), min(10, len(own)))
        tenths, uploads = [part[:, 0].mean() for part in parts], parts[-1][:, 1].mean()
        facts.append((seed, tenths[0], max(tenths), tenths[-2:][0], tenths[-1], uploads))
    return DataFrame(facts, columns=["seed", "start", "best", "before_last", "last", "uploads"])


def compute_reward(setting: Setting) -> dict[str, DataFrame]:
    """Train the agents."""
    return {"reward/curve": _training_curve(setting)}


def draw_reward(setting: Setting) -> Drawn:
    """The reward of an episode against training episodes, over all training seeds."""
    lines = setting.table("reward/curve")
    title = f"QMIX, alpha {setting.centre.alpha:g}, n_c {setting.centre.clusters}"
    figure = partial(charts.reward, lines, setting.base.learning.clients, title)
    seeds = _by_tenths(lines)
    rows = [
        [f"{seed:.0f}", *(f"{value:.3f}" for value in rewards), f"{uploads:.2f}"]
        for seed, *rewards, uploads in seeds.itertuples(index=False)
    ]
    heads = ["training seed", "first tenth", "best tenth", "last but one", "last", "uploads, last"]
    episodes = int(lines["episodes"].iloc[-1])
    text = f"Mean reward of an episode by tenths of {counted(episodes, 'episode')}:\n\n"
    facts = {"episodes": episodes, "seeds": seeds.to_dict("records")}
    return Drawn(facts, text + markdown(heads, rows), {"reward": figure})


def compute_accuracy(setting: Setting) -> dict[str, DataFrame]:
    """Train where needed, compare in every cell."""
    return _compared_in(setting, setting.cells, "accuracy", {})


def compute_epochs(setting: Setting) -> dict[str, DataFrame]:
    """The centre cell with E counted in epochs. Agents observe the round as t/T, T being the length
    of this run and not of their training."""
    fields = {"learning.local_unit": "epoch", "run.rounds": setting.grid.epoch_rounds}
    return _compared_in(setting, [setting.centre], "epochs", {**fields, "run.evaluate_every": 1})


def _compared_in(
    setting: Setting, cells: Sequence[PaperCell], part: str, fields: Mapping[str, Any]
) -> dict[str, DataFrame]:
    """All policies in some cells: how they ended, curves, and the bias at the centre."""
    trained(setting)
    runs = []
    for cell in cells:
        runs += all_runs(setting, part, cell._asdict(), {**cell.fields, **fields}, BASELINES)
    rows = compared(setting, runs, part, unit=setting.epoch if part == "epochs" else 1.0)
    rows = rows.iloc[rows["policy"].map(setting.policies.index).argsort(kind="stable")]
    by, centre = ["alpha", "clusters"], matching(rows, **setting.centre._asdict())
    return {
        f"{part}/final": final_table(rows, by, setting.base.learning.clients),
        f"{part}/curves": curve_table(rows, by, "accuracy"),
        f"{part}/bias": curve_table(centre, by, "gradient_bias"),
        f"{part}/inputs": _inputs(setting),
    }


def _inputs(setting: Setting, hide: Sequence[Hide] = ()) -> DataFrame:
    """Uploads at the centre of agents and of the local heuristics, without learning (gradients are
    invented), and with swapped observations."""
    folders, seeds = trained(setting, hide), setting.test_seeds
    rounds = setting.base.run.rounds
    numbers = spread_out(min(setting.grid.regime_rounds, rounds), rounds)
    bits = payload_bits(setting.base.learning)
    config = changed(setting.base, {"allocation.hide": list(hide)})

    def play() -> DataFrame:
        device = pick_device(config.run.device)
        source = SyntheticGradients(config, device, bits)
        agents = dict(zip(setting.training_seeds, folders, strict=True))
        return trial.tried(config, seeds, numbers, source, trial.LOCAL_HEURISTICS, agents, device)

    name = mark(decisive(config), seeds, numbers, [*map(agents_mark, folders)])
    return kept(setting.out / "reward" / "runs" / f"inputs-{name}.csv", play)


def draw_accuracy(setting: Setting, part: str = "accuracy") -> Drawn:
    """Curves, who is served at the centre, and what the claims are judged by."""
    final, curves = setting.table(f"{part}/final"), setting.table(f"{part}/curves")
    grid = partial(charts.accuracy_grid, curves, final["seed"].nunique())
    served = partial(charts.served, matching(final, **setting.centre._asdict()))
    learned = trial.learned_facts(setting.table(f"{part}/inputs"))
    text = f"{_text(final)}\n\n{_swap_text({'nothing': learned})}"
    facts = {**facts_of(final), "learned": learned}
    return Drawn(facts, text, {part: grid, "served": served})


def _swap_text(variants: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether agents use what they observe, a row for each variant of them."""
    parts = list(next(iter(variants.values()))["kept"])
    rows = []
    for hidden, found in variants.items():
        kept_share = (f"{100 * found['kept'][part]:.0f}" for part in parts)
        rows.append([hidden, *kept_share, "yes" if found["learned"] else "no"])
    heads = ["hidden", *parts, "learned"]
    title = "Uploads kept in % when agents see another episode's part of the observation"
    return f"{title}. {trial.LEARNED}\n\n{markdown(heads, rows)}"


def facts_of(final: DataFrame) -> dict[str, Any]:
    """What the claims are judged by."""
    measured = ["accuracy", "uploads", "fairness", "bias"]
    cells = []
    for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False):
        medians = own.groupby("policy", sort=False)[measured].agg(lambda v: v.median(skipna=False))
        cell = {"alpha": alpha, "clusters": clusters, "policies": medians.to_dict("index")}
        above = {"qmix_minus": _above(own, QMIX), "plus_minus": _above(own, QMIX_PLUS)}
        cells.append({**cell, **above})
    return {
        "seeds": [int(seed) for seed in final["seed"].unique()],
        "cells": cells,
        "with_clusters": _steps(final, "clusters", "alpha", "accuracy"),
        "uploads_with_clusters": _steps(final, "clusters", "alpha", "uploads"),
        "with_alpha": _steps(final, "alpha", "clusters", "accuracy"),
    }


def _above(own: DataFrame, agents: str) -> dict[str, Difference]:
    """How far agents end above every other policy; empty if they are not there."""
    names = own["policy"].unique()
    others = [name for name in names if name != agents] if agents in names else []
    return {name: paired(own, {"policy": agents}, {"policy": name}) for name in others}


def _steps(final: DataFrame, along: str, other: str, field: str) -> list[dict[str, Any]]:
    """For each policy: changes of a field from one value of `along` to the next, and overall."""
    values = final[along].unique()
    pairs = [*itertools.pairwise(values), (values[0], values[-1])]
    found = []
    for (fixed, policy), own in final.groupby([other, "policy"], sort=False):
        *steps, overall = (paired(own, {along: to}, {along: start}, field) for start, to in pairs)
        found.append({other: fixed, "policy": policy, "steps": steps, "overall": overall})
    return found


def _text(final: DataFrame) -> str:
    """Final accuracy in every cell, then what the uplink did at each number of clusters."""
    cells = {
        f"alpha {alpha:g}, n_c {clusters:g}": own
        for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False)
    }
    counts = {f"n_c {count:g}": own for count, own in final.groupby("clusters", sort=False)}
    title = f"Final test accuracy in %, {of_seeds(final['seed'].nunique(), 'unseen seed')}:"
    uplink = "Uploads per round, Jain's index of who was served, share of bits wasted:"
    sections = []
    for head, tables, shown in ((title, cells, _accuracy), (uplink, counts, _uplink)):
        rows = [
            [policy, *(shown(matching(own, policy=policy)) for own in tables.values())]
            for policy in final["policy"].unique()
        ]
        sections += [head, markdown(["policy", *tables], rows)]
    return "\n\n".join(sections)


def _accuracy(lines: DataFrame) -> str:
    low, middle, high = 100 * np.percentile(lines["accuracy"], [10, 50, 90])
    return f"{middle:.1f}" + (f" ({low:.1f}-{high:.1f})" if len(lines) > 1 else "")


def _uplink(lines: DataFrame) -> str:
    uploads, fairness, wasted = lines[["uploads", "fairness", "wasted"]].mean()
    return f"{uploads:.2f}, {fairness:.2f}, {100 * wasted:.0f} %".replace("nan", "-")


def compute_ablation(setting: Setting) -> dict[str, DataFrame]:
    """Train each variant and test it at the centre."""
    variants: dict[str, Sequence[Hide]] = {"nothing": (), **{hide: (hide,) for hide in HIDDEN}}
    train_variants(setting, [*variants.values()])
    curve = pd.concat([_training_curve(setting, hide) for hide in variants.values()])
    runs, centre = [], setting.centre
    for name, hide in variants.items():
        # With nothing hidden these are the runs of the accuracy part, made there or here.
        part = "ablation" if hide else "accuracy"
        own = agent_runs(setting, part, centre._asdict(), centre.fields, hide)
        for run in own:
            labels = {"hidden": name, "training": run.labels["training"]}
            runs.append(run._replace(labels=labels))
    inputs = [_inputs(setting, hide).assign(hidden=name) for name, hide in variants.items()]
    rows = compared(setting, runs, "ablation")
    return {
        "ablation/curve": curve,
        "ablation/final": final_table(rows, ["hidden"], setting.base.learning.clients),
        "ablation/curves": curve_table(rows, ["hidden"], "accuracy"),
        "ablation/inputs": pd.concat(inputs),
    }


def draw_ablation(setting: Setting) -> Drawn:
    """What agents lose without the gradient deviation, or without the small-scale fading."""
    training, final = setting.table("ablation/curve"), setting.table("ablation/final")
    rows, variants = [], []
    for hidden, own in final.groupby("hidden", sort=False):
        low, middle, high = np.percentile(own["accuracy"], [10, 50, 90])
        last = _by_tenths(matching(training, hidden=hidden))["last"]
        uploads, reward = own["uploads"].mean(), last.median()
        fact = {"hidden": hidden, "accuracy": middle, "band": high - low}
        variants.append({**fact, "uploads": uploads, "reward": reward})
        accuracy = f"{100 * middle:.1f} ({100 * low:.1f}-{100 * high:.1f})"
        rewards = f"{reward:.3f} ({last.min():.3f}-{last.max():.3f})"
        rows.append([hidden, accuracy, f"{uploads:.2f}", rewards])
    heads = ["hidden", "final accuracy in %", "uploads per round", "reward, last tenth"]
    inputs = setting.table("ablation/inputs").groupby("hidden", sort=False)
    learned = {str(hidden): trial.learned_facts(own) for hidden, own in inputs}
    text = (
        f"{QMIX} retrained, {counted(training['seed'].nunique(), 'seed')}, and tested at the "
        f"centre, each on {counted(final['seed'].nunique(), 'seed')}:\n\n"
        f"{markdown(heads, rows)}\n\n{_swap_text(learned)}"
    )
    facts = {
        "learned": learned["nothing"],
        "learned_variants": learned,
        "variants": variants,
        "hurt": {hide: paired(final, {"hidden": "nothing"}, {"hidden": hide}) for hide in HIDDEN},
        "fading_more": paired(final, {"hidden": "gradient"}, {"hidden": "fading"}),
    }
    figure = partial(charts.ablation, training, final)
    return Drawn(facts, text, {"ablation": figure})


def compute_bound(setting: Setting) -> dict[str, DataFrame]:
    """The nine cells' runs (made by `accuracy`), and all terms of the bound (paper: eq. 25) along
    one run per policy."""
    tables = compute_accuracy(setting)
    fields = {"run.seed": setting.test_seeds[0], "run.seeds": 1}
    fields |= {"run.rounds": setting.grid.bound_rounds}
    # Nobody is trained.
    config = changed(setting.base, {**fields, "qmix": QmixConfig().model_dump()})

    def terms(policy: str) -> DataFrame:
        setting.chat(f"bound: terms under {policy}")
        rows = []
        for row in bound_under(config, policy, pick_device(config.run.device)):
            rows.append(asdict(row))
            setting.work.add(BOUND_ROUND, policy)
        return DataFrame(rows).astype(float)

    for policy in BASELINES:  # perfect among them, which has no second term
        name = f"terms-{policy}-{mark(decisive(config), policy)}.csv"
        path = setting.out / "bound" / "runs" / name
        tables[f"bound/terms-{policy}"] = kept(path, partial(terms, policy))
    return tables


def draw_bound(setting: Setting) -> Drawn:
    """Rank correlations, the scatter behind them, and the terms."""
    final, biases = setting.table("accuracy/final"), setting.table("accuracy/bias")
    terms = {policy: setting.table(f"bound/terms-{policy}") for policy in BASELINES}
    cells = [
        {"alpha": alpha, "clusters": clusters, **correlation(own)}
        for (clusters, alpha), own in final.groupby(["clusters", "alpha"], sort=False)
    ]
    rows = [
        [f"alpha {alpha:g}, n_c {clusters:g}", *(f"{value:.2f}" for value in found)]
        for alpha, clusters, _, *found in (cell.values() for cell in cells)
    ]
    heads = ["cell", "second term, all runs", "second term, within a seed", "uploads, all runs"]
    text = "Spearman's rank correlation with final accuracy:\n\n" + markdown(heads, rows)
    held = []
    for policy, own in terms.items():
        means = own[["first", "second", "third", "measured", "delivered"]].mean().to_dict()
        count = int((own["measured"] <= own["bound"]).sum())
        held.append({"policy": policy, "rounds": len(own), "held": count, **means})
    rows = [
        [policy, rounds, count, *(f"{mean:.3g}" for mean in (first, second, third, measured))]
        for policy, rounds, count, first, second, third, measured, _ in (h.values() for h in held)
    ]
    heads = ["policy", "rounds", "held", "C1 term", "C2 term", "C3", "measured change"]
    text += "\n\nAlong the first evaluation seed, means over rounds:\n\n" + markdown(heads, rows)
    centre = matching(final, **setting.centre._asdict())
    figures = {
        "bound": partial(charts.second_term, centre),
        "by-round": partial(charts.second_term_by_round, biases, centre["seed"].nunique()),
        "terms": partial(charts.bound_terms, terms),
    }
    facts = {"cells": cells, "terms": held}
    return Drawn(facts, text, figures, {"bound/correlation": DataFrame(cells)})


def correlation(lines: DataFrame) -> dict[str, float]:
    """Runs that send only: perfect upload has no second term and would flatter the figure. Of
    several trainings the mean, so that no policy counts for more."""
    sending = lines[lines["policy"] != PERFECT]
    fields = ["accuracy", "bias", "uploads"]
    sending = sending.groupby(["policy", "seed"], sort=False)[fields].mean().reset_index()
    within = [_spearman(own, "bias") for _, own in sending.groupby("seed", sort=False)]
    return {
        "runs": float(len(sending)),
        "all_runs": _spearman(sending, "bias"),
        "within_seeds": float(np.mean(within)),
        "uploads": _spearman(sending, "uploads"),
    }


def _spearman(lines: DataFrame, field: str) -> float:
    """Of a field and final accuracy; NaN where either is the same in all runs."""
    varied = lines[[field, "accuracy"]].nunique().min() > 1
    return float(spearmanr(lines[field], lines["accuracy"]).statistic) if varied else math.nan
