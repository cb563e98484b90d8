"""What is beyond noise: differences of policies over seeds, paired, corrected for their number.

Agents of every training meet every evaluation seed. A difference is taken evaluation seed by
evaluation seed, each a mean over trainings; how far it moves from training to training is kept
beside it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, Series
from scipy.stats import t as student

from fedfade.studies.frames import matching, means

CHANCE = 0.05
"""How often chance alone may pass a test, all comparisons of a verdict together."""
TIE = 1e-5
"""What is left of equal means when tables keep six digits."""
RULE = (
    "Differences are paired: evaluation seed by evaluation seed, each a mean over trainings. "
    "*Beyond noise*: Student's t over evaluation seeds, one-sided, 5 %, by Holm's correction for "
    "all comparisons of a verdict together; and more than twice the standard error over trainings."
)


class Difference(NamedTuple):
    """How far one policy is above another."""

    mean: float
    error: float  # standard error over evaluation seeds, NaN for one
    seeds: int
    training_error: float = math.nan  # standard error over trainings, NaN for fewer than two

    @property
    def chance(self) -> float:
        """How often chance alone gives as much, one-sided; NaN for one seed."""
        if self.error == 0:
            return 0.0 if self.mean > TIE else 1.0
        return float(student.sf(self.mean / self.error, self.seeds - 1))

    @property
    def turned(self) -> "Difference":
        """How far the other is above the one."""
        return self._replace(mean=-self.mean)


def paired(
    frame: DataFrame, one: Mapping[str, Any], other: Mapping[str, Any], field: str = "accuracy"
) -> Difference:
    """The difference of two sets of runs, `seed` by `seed` and, if there are any, over `training`.

    >>> frame = DataFrame({"policy": [*"xxyy"], "seed": [0, 1, 0, 1], "accuracy": [5, 7, 4, 4]})
    >>> paired(frame, {"policy": "x"}, {"policy": "y"})
    Difference(mean=2.0, error=1.0, seeds=2, training_error=nan)
    """
    ours, theirs = (matching(frame, **where) for where in (one, other))
    by_seed = (means(ours, "seed", field) - means(theirs, "seed", field)).dropna()
    mean, error = mean_error(by_seed)
    moved = math.nan
    if "training" in frame and len(by_seed):
        trained = [means(lines, "training", field) for lines in (ours, theirs)]
        # Policies that nobody trained meet all trainings alike.
        one_by_one = [own if len(own) > 1 else own.iloc[0] for own in trained]
        apart = one_by_one[0] - one_by_one[1]
        moved = float(apart.sem()) if isinstance(apart, Series) else math.nan
    return Difference(mean, error, len(by_seed), moved)


def mean_error(values: Series) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value."""
    return float(values.mean()), float(values.sem())


def holm(chances: Sequence[float]) -> list[float]:
    """Chances of several comparisons, corrected so that all together err as rarely as one
    (Holm 1979): the smallest times their number, the next times one less, never falling.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(chances)
    steps = np.asarray(chances)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(chance) for chance in corrected]


def beyond(differences: Sequence[Difference], unknown: bool = False) -> list[bool]:
    """Which differences are above zero beyond noise, all of them being one family; `unknown` is
    the answer for one seed, which shows no noise.

    >>> beyond([Difference(1.0, 0.1, 5), Difference(0.3, 0.1, 5)])
    [True, True]
    >>> beyond([Difference(0.3, 0.1, 5)] * 3)
    [False, False, False]
    """
    known = [one for one in differences if not math.isnan(one.error)]
    corrected = iter(holm([one.chance for one in known]))
    found = []
    for one in differences:
        if math.isnan(one.error):
            found.append(unknown and one.mean > TIE)
        else:
            moves = 0.0 if math.isnan(one.training_error) else one.training_error
            found.append(next(corrected) <= CHANCE and one.mean > max(TIE, 2 * moves))
    return found
