"""Who owns which classes, for each Dirichlet concentration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfade.config import changed
from fedfade.studies.paper import pictures
from fedfade.studies.paper.setting import Setting, unseen
from fedfade.studies.paper.tables import (
    Line,
    distinct,
    markdown,
    matching,
    read_table,
    write_table,
)

PART = "partition"


def compute(setting: Setting) -> None:
    """Deal the samples of every evaluation seed; `classes.csv`."""
    from fedfade.learning import class_counts, deal, load_data

    dataset = load_data(setting.base.learning)
    labels = dataset.train_labels.numpy()
    lines: list[Line] = []
    for alpha in setting.grid.alphas:
        learning = changed(setting.base, {"learning.alpha": alpha}).learning
        for seed in map(unseen, setting.training_seeds):
            counts = class_counts(labels, deal(learning, labels, seed), len(dataset.classes))
            lines += [
                {
                    "alpha": alpha,
                    "seed": float(seed),
                    "client": float(client),
                    **{
                        name: float(count) for name, count in zip(dataset.classes, row, strict=True)
                    },
                }
                for client, row in enumerate(counts)
            ]
    write_table(setting.out / PART / "classes.csv", lines)


def draw(setting: Setting) -> tuple[dict[str, object], str]:
    """The paper's stacked bars for the first seed; the spread of class shares over all."""
    from fedfade.learning.plots import class_distribution

    folder = setting.out / PART
    lines = read_table(folder / "classes.csv")
    classes = [name for name in lines[0] if name not in ("alpha", "seed", "client")]
    seeds = distinct(lines, "seed")
    counts = {
        alpha: _counts(matching(lines, alpha=alpha, seed=seeds[0]), classes)
        for alpha in distinct(lines, "alpha")
    }
    data = setting.base.learning.data
    title = f"{data}, {setting.base.learning.clients} clients, seed {seeds[0]:.0f}"
    pictures.put(folder / "partition.png", class_distribution, counts, classes, title)
    spread = {
        alpha: float(
            np.mean(
                [_spread(_counts(matching(lines, alpha=alpha, seed=s), classes)) for s in seeds]
            )
        )
        for alpha in counts
    }
    text = f"Mean within-client standard deviation of class shares, {len(seeds)} seeds:\n\n"
    text += markdown(["alpha", "deviation"], [[f"{a:g}", f"{s:.3f}"] for a, s in spread.items()])
    return {"share_std": {f"{alpha:g}": value for alpha, value in spread.items()}}, text


def _counts(lines: list[Line], classes: list[str]) -> NDArray[np.int64]:
    return np.array([[int(line[name]) for name in classes] for line in lines])


def _spread(counts: NDArray[np.int64]) -> float:
    return float((counts / counts.sum(1, keepdims=True)).std(1).mean())
