"""How much work every part of a reproduction is, for the bar."""

from collections.abc import Iterable

from fedfade.learning import load_data
from fedfade.studies.paper.setting import Setting
from fedfade.studies.paper.work import BOUND_ROUND, EPISODE, PLAYED_ROUND

_NEEDS = {
    "accuracy": ("reward",),
    "epochs": ("reward",),
    "ablation": ("reward",),
    "regimes": ("reward",),
    "bound": ("reward", "accuracy"),
}
"""Parts whose runs others begin with."""


def epoch_rounds(setting: Setting) -> float:
    """A round in epochs, in rounds as the base configuration has them."""
    learning = setting.base.learning
    if learning.local_unit == "epoch":
        return 1.0
    return len(load_data(learning).train_labels) / learning.clients / learning.batch_size


def amounts(setting: Setting, parts: Iterable[str]) -> dict[str, float]:
    """The work of some parts in federated rounds of one run, if nothing is there yet."""
    base, grid = setting.base, setting.grid
    tests, trainings, rounds = len(setting.test_seeds), len(setting.training_seeds), base.run.rounds
    runs = tests * (len(setting.policies) - 1 + trainings)  # of a cell
    training = EPISODE * base.qmix.episodes * trainings
    coarse = len(grid.coarse_snrs_db) * len(grid.coarse_spreads_db)
    played = len(grid.snrs_db) * len(grid.spreads_db) * grid.regime_rounds * PLAYED_ROUND
    each = {
        "partition": 1.0,
        "reward": training,
        "accuracy": len(setting.cells) * runs * rounds,
        "epochs": runs * grid.epoch_rounds * epoch_rounds(setting),
        "ablation": 2 * (training + tests * trainings * rounds),
        "bound": 5 * grid.bound_rounds * BOUND_ROUND,
        "regimes": coarse * runs * rounds + runs * played,
        "readings": training,
    }
    counted: set[str] = set()
    found = {}
    for part in parts:
        needed = {part, *_NEEDS.get(part, ())} - counted
        found[part] = sum(each[name] for name in needed)
        counted |= needed
    return found
