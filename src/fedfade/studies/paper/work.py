"""One bar for a whole reproduction: how much work every part is, and how much of it is done."""

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from fedfade.learning import load_data

if TYPE_CHECKING:
    from fedfade.studies.paper.setting import Setting

EPISODE = 0.25  # training on one, in federated rounds of one run; measured at both scales
PLAYED_ROUND = 0.05  # a round without learning
BOUND_ROUND = 5.0  # a round with all of the bound's estimates

_NEEDS = {
    "accuracy": ("reward",),
    "epochs": ("reward",),
    "ablation": ("reward",),
    "regimes": ("reward",),
    "bound": ("reward", "accuracy"),
}
"""Parts whose runs others begin with."""


class Work:
    """What is done of all parts, as a share.

    >>> work = Work(lambda share, doing: print(f"{share:.0%} {doing}"))
    >>> work.plan({"reward": 30.0, "accuracy": 70.0})
    >>> work.begin("accuracy")
    30% accuracy
    >>> work.add(35.0, "training")
    65% accuracy: training
    """

    def __init__(self, tell: Callable[[float, str], None] = lambda share, doing: None) -> None:
        self._tell, self._part, self._done, self._end = tell, "", 0.0, 1.0
        self._spans: dict[str, tuple[float, float]] = {}
        self._total = 1.0

    def plan(self, parts: dict[str, float]) -> None:
        """How much every part is, in any unit."""
        ends = list(accumulate(parts.values(), initial=0.0))
        self._spans = dict(zip(parts, pairwise(ends), strict=True))
        self._total = max(ends[-1], 1e-9)

    def begin(self, part: str) -> None:
        """All before this part is done."""
        self._part, (self._done, self._end) = part, self._spans.get(part, (0.0, 0.0))
        self._tell(self._done / self._total, part)

    def add(self, amount: float, doing: str) -> None:
        """So much more is done; no more than the part was thought to be."""
        self._done = min(self._done + amount, self._end)
        self._tell(self._done / self._total, f"{self._part}: {doing}")

    def finish(self) -> None:
        """All parts are done."""
        self._tell(1.0, "done")


def epoch_rounds(setting: "Setting") -> float:
    """A round in epochs, in rounds as the base configuration has them."""
    learning = setting.base.learning
    if learning.local_unit == "epoch":
        return 1.0
    return len(load_data(learning).train_labels) / learning.clients / learning.batch_size


def amounts(setting: "Setting", parts: Iterable[str]) -> dict[str, float]:
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
