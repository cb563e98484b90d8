"""What a reproduction runs: one training cell, a grid of test cells, seeds, a folder.

The training cell is the base configuration (the paper: alpha 0.5, 21 clusters). Agents are trained
with seeds `run.seed`, `run.seed` + 1, ...; evaluation seeds are FIRST_UNSEEN + `run.seed`, ..., and
the agents of every training seed meet each of them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pandas import DataFrame

from fedfade.agents import QmixPolicy, load_shipped_policy, shipped_policies_for
from fedfade.allocation import PERFECT
from fedfade.config import Config
from fedfade.errors import UserError, not_allowed
from fedfade.experiments.run_folder import digest
from fedfade.learning import load_data
from fedfade.studies.frames import read_frame
from fedfade.uplink.rounds import cycle_seed, layout_seeds

FIRST_UNSEEN = 1000
"""Evaluation seeds start here; no training cycle ever uses them (checked before anything runs)."""

FIRST_OF_READINGS = 1500
"""Part `readings` has evaluation seeds of its own: the reading it points out is then tested on
others, and settings of the deadline policies were chosen on seeds 1000 to 1004."""

SCHEDULE = "block-fading-schedule"
HEURISTICS = ("random", "max-individual-rate", "max-sum-rate")
"""The paper's baselines."""
BASELINES = (*HEURISTICS, SCHEDULE, PERFECT)
QMIX, QMIX_PLUS = "qmix", "qmix-plus"

EPISODE = 0.25  # training on one: roughly, in federated rounds of one run
PLAYED_ROUND = 0.05  # a round without learning, likewise
BOUND_ROUND = 5.0  # a round with all of the bound's estimates

Hide = Literal["gradient", "fading"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """The cells that are tested."""

    alphas: tuple[float, ...] = (0.5, 5.0, 50.0)
    clusters: tuple[int, ...] = (14, 21, 28)
    snrs_db: tuple[float, ...] = (10.0, 15.0, 20.0, 25.0, 30.0)
    spreads_db: tuple[float, ...] = (0.0, 3.0, 6.0, 9.0, 12.0)
    regime_rounds: int = 20  # played in every cell of the map of uploads
    coarse_snrs_db: tuple[float, ...] = (10.0, 20.0, 30.0)  # the map of accuracy
    coarse_spreads_db: tuple[float, ...] = (0.0, 6.0, 12.0)
    epoch_rounds: int = 20
    bound_rounds: int = 20
    reading_seeds: int = 10  # that agents of a reading are tried on, and rounds of each
    reading_rounds: int = 10
    reading_trainings: int = 3  # of many readings rather than of few


@dataclass(frozen=True)
class PaperScale:
    """How much of it: overrides of the preset, and the grid."""

    overrides: list[str]
    grid: Grid


# The same code on digits, a fifth of the slots for a fifth of the bits, minutes on two cores.
_SMALL = """
    learning.data=digits learning.batch_size=20 learning.payload_bits=1986592
    radio.slots=50 radio.subcarriers=5
    qmix.hidden=[64,64] qmix.agent_rate=0.0005 qmix.batch_size=128 qmix.update_every=100
    qmix.target_every=1000 qmix.episodes=1000 qmix.epsilon_episodes=600
    run.episodes_per_round=100 run.seeds=2 run.rounds=8 run.evaluate_every=2
"""
_SMALL_GRID = Grid(
    regime_rounds=5,
    epoch_rounds=2,
    bound_rounds=5,
    reading_seeds=4,
    reading_rounds=2,
    reading_trainings=2,
)
SCALES = {"paper": PaperScale([], Grid()), "small": PaperScale(_SMALL.split(), _SMALL_GRID)}


class PaperCell(NamedTuple):
    """One of the nine test cells."""

    alpha: float
    clusters: int

    @property
    def fields(self) -> dict[str, Any]:
        return {"learning.alpha": self.alpha, "radio.clusters": self.clusters}


def cell_name(labels: Mapping[str, float]) -> str:
    """A cell of a table as a folder.

    >>> cell_name(PaperCell(0.5, 21)._asdict())
    'alpha-0.5_clusters-21'
    """
    return "_".join(f"{name}-{value:g}" for name, value in labels.items())


class Search(NamedTuple):
    """What part `readings` is asked for."""

    file: Path | None = None  # the list of readings, ours if not given
    only: tuple[str, ...] = ()  # those to train and try now, all if none is named
    together: int = 15  # trainings in one program, at most


WHOLE_LIST = Search()


class Asked(NamedTuple):
    """What a user named besides the scale, for studies whose configurations are not the base."""

    preset: str = "paper"
    overrides: tuple[str, ...] = ()


THE_PAPER = Asked()


class WorkDone:
    """What is done of all parts, as a share.

    >>> work = WorkDone(lambda share, doing: print(f"{share:.0%} {doing}"))
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


@dataclass(frozen=True)
class Setting:
    """One reproduction."""

    out: Path
    base: Config
    grid: Grid
    scale: str
    plus: str  # mark of the agents qmix-plus that come with the package; empty if none fit
    say: Say
    search: Search
    chat: Say  # for lines of progress, which a bar replaces
    work: WorkDone
    asked: Asked

    @property
    def rehearsal(self) -> bool:
        """Whether this checks the code, not the paper."""
        return self.scale != "paper"

    @property
    def centre(self) -> PaperCell:
        """The cell agents are trained in."""
        return PaperCell(self.base.learning.alpha, self.base.radio.clusters)

    @property
    def cells(self) -> list[PaperCell]:
        """The test cells, row by row."""
        return [PaperCell(a, clusters) for clusters in self.grid.clusters for a in self.grid.alphas]

    @property
    def training_seeds(self) -> list[int]:
        return list(range(self.base.run.seed, self.base.run.seed + self.base.run.seeds))

    @property
    def test_seeds(self) -> list[int]:
        """The evaluation seeds, as many as training seeds."""
        return [FIRST_UNSEEN + seed for seed in self.training_seeds]

    @property
    def reading_seeds(self) -> list[int]:
        """The evaluation seeds of part `readings`, which learns nothing and can have more."""
        first = FIRST_OF_READINGS + self.base.run.seed
        return list(range(first, first + self.grid.reading_seeds))

    def table(self, name: str) -> DataFrame:
        """A table that was computed, by PART/NAME."""
        return read_frame(self.out / f"{name}.csv")

    @property
    def epoch(self) -> float:
        """Work of a round in epochs, in rounds as the base configuration has them."""
        learning = self.base.learning
        if learning.local_unit == "epoch":
            return 1.0
        return len(load_data(learning).train_labels) / learning.clients / learning.batch_size

    @property
    def policies(self) -> list[str]:
        """All policies tested, in the order of tables."""
        return [*HEURISTICS, SCHEDULE, QMIX, *([QMIX_PLUS] if self.plus else []), PERFECT]


def seeds_used(config: Config, seed: int) -> set[int]:
    """Every seed of a layout, channel or partition that a training with `seed` meets."""
    rounds = -(-config.qmix.episodes // (config.run.episodes_per_round * config.qmix.layouts))
    cycles = range(-(-rounds // config.run.rounds))
    tasks = layout_seeds(seed, config.qmix.layouts)  # themselves, where one layout stays
    return {*tasks, *(cycle_seed(task, cycle) for task in tasks for cycle in cycles)}


def check_unseen(setting: Setting, trained: Config | None = None) -> tuple[int, int]:
    """How many seeds are trained and evaluated on; refused if the two sets meet."""
    config = trained or setting.base
    used = {s for seed in setting.training_seeds for s in seeds_used(config, seed)}
    if used & {*setting.test_seeds, *setting.reading_seeds}:
        wanted = "one whose evaluation seeds are not trained on"
        raise not_allowed("run.seed", setting.base.run.seed, wanted)
    return len(used), len(setting.test_seeds)


def checked_setting(
    out: Path,
    base: Config,
    scale: str,
    grid: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
    search: Search = WHOLE_LIST,
    chat: Say | None = None,
    work: WorkDone | None = None,
    asked: Asked = THE_PAPER,
) -> Setting:
    """A reproduction around a training cell; refused where tests would not be tests."""
    wanted = {name: value for name, value in (grid or {}).items() if value is not None}
    chosen = Grid(**{**vars(SCALES[scale].grid), **wanted})
    plus = ""
    if QMIX_PLUS in shipped_policies_for(base):
        policy = load_shipped_policy(QMIX_PLUS, base)
        assert isinstance(policy, QmixPolicy)
        plus = digest(policy.agents.state_dict())[:8]
    telling = (chat or say, work or WorkDone())
    setting = Setting(out, base, chosen, scale, plus, say, search, *telling, asked)
    if setting.centre not in setting.cells:
        raise UserError(
            f"the training cell {cell_name(setting.centre._asdict())} is none of the nine test "
            f"cells: learning.alpha must be one of {chosen.alphas}, radio.clusters one of "
            f"{chosen.clusters}."
        )
    check_unseen(setting)
    return setting


def spread_out(count: int, rounds: int) -> tuple[int, ...]:
    """Rounds evenly spread over a run, because clients walk on from one to the next.

    >>> spread_out(4, 100)
    (0, 25, 50, 75)
    """
    if not 1 <= count <= rounds:
        raise not_allowed("--rounds", count, f"between 1 and run.rounds = {rounds}")
    return tuple(place * rounds // count for place in range(count))


class Clock:
    """Lines of progress, at most one in a few seconds.

    >>> clock = Clock(print, every_s=60)
    >>> clock("part 0")
    part 0
    >>> clock("part 1")
    """

    def __init__(self, say: Say, every_s: float = 10.0) -> None:
        self._say, self._every_s, self._due = say, every_s, 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._due:
            self._say(text)
            self._due = time.monotonic() + self._every_s
