"""Part `partition`: who owns which classes, for each Dirichlet concentration."""

from functools import partial

import pandas as pd
from pandas import DataFrame

from fedfade.config import changed
from fedfade.learning import class_counts, deal, load_data
from fedfade.learning.figures import class_distribution
from fedfade.studies.frames import markdown
from fedfade.studies.paper.plots import Drawn
from fedfade.studies.paper.setting import Setting, unseen


def compute(setting: Setting) -> dict[str, DataFrame]:
    """Deal the samples of every evaluation seed."""
    dataset = load_data(setting.base.learning)
    labels = dataset.train_labels.numpy()
    tables = []
    for alpha in setting.grid.alphas:
        learning = changed(setting.base, {"learning.alpha": alpha}).learning
        for seed in map(unseen, setting.training_seeds):
            counts = class_counts(labels, deal(learning, labels, seed), len(dataset.classes))
            head = DataFrame({"alpha": alpha, "seed": seed, "client": range(len(counts))})
            tables.append(head.join(DataFrame(counts, columns=list(dataset.classes))))
    return {"partition/classes": pd.concat(tables)}


def draw(setting: Setting, lines: DataFrame) -> Drawn:
    """The paper's stacked bars for the first seed; the spread of class shares over all."""
    lines = lines.set_index(["alpha", "seed", "client"])
    seeds, classes = lines.index.unique("seed"), [*lines.columns]
    first = lines.xs(seeds[0], level="seed").astype(int).groupby("alpha", sort=False)
    counts = {alpha: own.to_numpy() for alpha, own in first}
    learning = setting.base.learning
    title = f"{learning.data}, {learning.clients} clients, seed {seeds[0]:.0f}"
    shares = lines.div(lines.sum(axis=1), axis=0)
    spread = shares.std(axis=1, ddof=0).groupby("alpha", sort=False).mean()
    text = f"Mean within-client standard deviation of class shares, {len(seeds)} seeds:\n\n"
    text += markdown(["alpha", "deviation"], [[f"{a:g}", f"{s:.3f}"] for a, s in spread.items()])
    facts = {"share_std": {f"{alpha:g}": value for alpha, value in spread.items()}}
    return Drawn(facts, text, {"partition": partial(class_distribution, counts, classes, title)})
