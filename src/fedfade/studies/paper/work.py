"""One bar for a whole reproduction: how much of the work is done."""

from collections.abc import Callable
from itertools import accumulate, pairwise

EPISODE = 0.25  # training on one: roughly, in federated rounds of one run
PLAYED_ROUND = 0.05  # a round without learning, likewise
BOUND_ROUND = 5.0  # a round with all of the bound's estimates


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
