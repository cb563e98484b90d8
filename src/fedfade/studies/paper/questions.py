"""Parts `partition`, `reward`, `ablation` and `bound` of a reproduction: which runs, which table,
which picture, which sentence. `compute_PART` gives tables by PART/NAME, `draw_PART` what is made
of them."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy.stats import spearmanr

from fedfade.agents import saved_curve
from fedfade.allocation import PERFECT
from fedfade.config import QmixConfig, changed
from fedfade.device import pick_device
from fedfade.experiments.comparison import bound_under
from fedfade.experiments.run_folder import decisive, mark
from fedfade.learning import class_counts, deal, load_data
from fedfade.learning.plots import class_distribution
from fedfade.studies.frames import Drawn, curve_table, final_table, kept, markdown, matching
from fedfade.studies.noise import paired
from fedfade.studies.paper import charts, trial
from fedfade.studies.paper.accuracy import compute_accuracy, inputs_table, inputs_text
from fedfade.studies.paper.runs import agent_runs, compared, train_variants, trained
from fedfade.studies.paper.setting import BASELINES, BOUND_ROUND, QMIX, Hide, Setting
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


def by_tenths(lines: DataFrame) -> DataFrame:
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
    seeds = by_tenths(lines)
    rows = [
        [f"{seed:.0f}", *(f"{value:.3f}" for value in rewards), f"{uploads:.2f}"]
        for seed, *rewards, uploads in seeds.itertuples(index=False)
    ]
    heads = ["training seed", "first tenth", "best tenth", "last but one", "last", "uploads, last"]
    episodes = int(lines["episodes"].iloc[-1])
    text = f"Mean reward of an episode by tenths of {counted(episodes, 'episode')}:\n\n"
    facts = {"episodes": episodes, "seeds": seeds.to_dict("records")}
    return Drawn(facts, text + markdown(heads, rows), {"reward": figure})


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
    inputs = [inputs_table(setting, hide).assign(hidden=name) for name, hide in variants.items()]
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
        last = by_tenths(matching(training, hidden=hidden))["last"]
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
        f"{markdown(heads, rows)}\n\n{inputs_text(learned)}"
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
