"""How the numbers of a page follow from the tables in docs/data.

A source is the start of a block, its tables, and the block's measured numbers in their order on the
page, nested as is convenient; NONE stands for one that no table has. A block without a source is
recorded as it stands.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from fedfade.studies.frames import matching, means, read_frame
from fedfade.studies.noise import paired
from fedfade.studies.paper.questions import by_tenths
from fedfade.studies.paper.readings import MEASURED
from fedfade.studies.paper.trial import use_of_inputs
from fedfade.studies.swap import ALL, AS_IS

Source = tuple[Any, ...]
NONE = math.nan
BLOCK, PLAN, CHOICE = "block-fading-schedule", "wrap-around-schedule", "wrap-around-choice"
RATE, SHORTEST, DEADLINE = "max-sum-rate", "shortest-remaining-first", "deadline-matching"
FEEDBACK, PROGRESS = "wrap-around-feedback", "deadline-progress"
PLUS, ALONE, HOLD = "qmix-plus", "max-individual-rate", "qmix-hold"
HEURISTICS = ("random", ALONE, RATE, BLOCK)
FADING_MORE = {"hidden": "gradient"}, {"hidden": "fading"}
"""How much more it costs to hide the fading."""
FAST_FIRST, SLOW_FIRST = [18.12, 7.67, 0.83], [0.83, 7.67, 18.12]


@cache
def read(name: str) -> DataFrame:
    """A table, shares of pictures and of bits in %."""
    table = read_frame(Path(__file__).parent / "data" / f"{name}.csv")
    if "accuracy" in table and table["accuracy"].max() <= 1:
        shares = [f for f in ("accuracy", "error", "averaged", "early", "wasted") if f in table]
        table[shares] *= 100
    return table


def wide(frame: DataFrame, rows: Any, columns: Any, value: str = "uploads") -> DataFrame:
    """Means by rows and columns, both in the order in which the table has them."""
    return frame.pivot_table(index=rows, columns=columns, values=value, sort=False)


def grid(
    frame: DataFrame, rows: Any, columns: Any, picked: Sequence[Any], *values: str
) -> np.ndarray:
    """Several values in every cell, some of the columns."""
    return np.stack([wide(frame, rows, columns, value)[picked] for value in values], axis=-1)


def span(values: Any) -> list[float]:
    return [np.min(values), np.max(values)]


def more(one: Any, other: Any) -> Any:
    """By how many per cent."""
    return 100 * (one / other - 1)


def band(values: Series) -> list[float]:
    return list(np.percentile(values, [50, 10, 90]))


def gap(frame: DataFrame, one: Any, other: Any, field: str = "accuracy") -> list[float]:
    """How far one set of runs is above another, and the standard error; a name is a policy's."""
    where = [{"policy": each} if isinstance(each, str) else each for each in (one, other)]
    found = paired(frame, *where, field)
    return [found.mean, found.error]


def claims() -> Iterator[Source]:
    yield from uniform()
    yield from favourable()
    yield from drifting()


def uniform() -> Iterator[Source]:
    name, final = ["uniform-accuracy"], read("uniform-accuracy")
    tenths = by_tenths(read("uniform-reward")).drop(columns="seed")
    ranks = read("uniform-bound")
    low, rate = matching(final, alpha=0.5), matching(final, policy=RATE)
    short = low.groupby(["clusters", "policy"])["accuracy"].median().unstack()
    below = (short["perfect"] - short["qmix"]).to_numpy()
    ends = {"clusters": 28}, {"clusters": 14}
    change = [gap(matching(rate, alpha=alpha), *ends) for alpha in (0.5, 5, 50)]
    cells = wide(final, ["alpha", "clusters"], "policy", "accuracy")
    rise = [cells[p].loc[50] - cells[p].loc[0.5] for p in ("random", ALONE, RATE)]
    plus = [gap(own, PLUS, BLOCK)[0] for _, own in low.groupby("clusters")]
    moved = span([mean for mean, _ in change])
    yield "| claim | verdict | numbers |", name, below, moved, span(rise), span(plus)
    yield "| seed | first tenth |", ["uniform-reward"], tenths.to_numpy()
    yield from nine_cells("uniform")
    rows = []
    for (_, _), own in final.groupby(["clusters", "alpha"]):
        others = ("random", ALONE, RATE, BLOCK, PLUS, "perfect")
        rows.append([gap(own, "qmix", policy) for policy in others])
    yield "| n_c | alpha | above random", name, rows
    centre = matching(final, alpha=0.5, clusters=21)
    each = matching(centre, policy="qmix").groupby("training")
    known = [span(each[field].mean()) for field in ("accuracy", "uploads")]
    yield "Beyond noise (Student", name, known
    yield from swapped("uniform")
    yield from epochs(centre)
    lost = read("uniform-ablation")
    yield "Neither hidden part", ["uniform-ablation"], gap(lost, *FADING_MORE)
    yield from ablation("uniform")
    sent = lost.groupby(["hidden", "training"])["uploads"].mean()
    ranges = [span(sent[hidden]) for hidden in ("fading", "nothing")]
    yield "Without the fading trainings deliver", ["uniform-ablation"], ranges
    falling = [span(ranks[field])[::-1] for field in ("all_runs", "within_seeds")]
    yield "| second term |", ["uniform-bound"], falling, span(ranks["uploads"])
    terms = read("uniform-bound-terms").groupby("policy", sort=False)
    means_of = terms[["first", "second", "third", "measured"]].mean()
    yield "| policy | rounds the bound held |", ["uniform-bound-terms"], means_of.to_numpy()
    early = terms["delivered"].mean()
    yield "In 20 rounds QMIX gets", ["uniform-bound-terms"], early["qmix"], early[BLOCK]
    yield from who_wins_where()
    tables = [*name, "uniform-ablation", "uniform-inputs", "uniform-bound"]
    use = use_of_inputs(read("uniform-inputs")).kept
    uses = [100 * use[part] for part in (ALL, "fading", "deviation")]
    above = [[gap(centre, "qmix", p), span(cells["qmix"] - cells[p])] for p in HEURISTICS]
    hidden = [gap(lost, {"hidden": h}, {"hidden": "nothing"}) for h in ("fading", "gradient")]
    tracks = [span(ranks["all_runs"]), span(ranks["uploads"])]
    ours = [*above, span(below), change, [span(one) for one in rise], hidden, tracks, uses]
    # How many numbers the two other cells have in a row, which stand as they are.
    others = (4, 4, 4, 4, 4, 4, 0, 8, 8, 3)
    rows = [[own, [NONE] * unknown] for own, unknown in zip(ours, others, strict=True)]
    yield "| claim | clients uniform in the cell |", tables, rows


def nine_cells(cell: str) -> Iterator[Source]:
    """How all policies ended, and how many they served."""
    name, final = [f"{cell}-accuracy"], read(f"{cell}-accuracy")
    everybody = list(final["policy"].unique())
    each = {key: t["accuracy"] for key, t in final.groupby(["policy", "clusters", "alpha"])}
    order = product(everybody, (14, 21, 28), (0.5, 5, 50))
    yield "| policy | alpha 0.5, n_c 14 |", name, [band(each[key]) for key in order]
    uplink = final.groupby(["policy", "clusters"])[["uploads", "fairness", "wasted"]].mean()
    yield "| policy | n_c 14 | n_c 21", name, flat_known([uplink.loc[p] for p in everybody])


def swapped(cell: str) -> Iterator[Source]:
    kept = 100 * np.array([*use_of_inputs(read(f"{cell}-inputs")).kept.values()])
    yield "| hidden | alphas |", [f"{cell}-inputs"], kept


def epochs(centre: DataFrame) -> Iterator[Source]:
    """Local epochs beside steps in the same cell."""
    tables, final = ["uniform-epochs", "uniform-accuracy"], read("uniform-epochs")
    uplink, rows = final.groupby("policy")[["uploads", "fairness", "wasted"]].mean(), []
    for policy in final["policy"].unique():
        short = [gap(t, "perfect", policy) if policy != "perfect" else [] for t in (final, centre)]
        ends = band(matching(final, policy=policy)["accuracy"])
        rows.append([ends, short[0], uplink.loc[policy], short[1]])
    yield "| policy | final accuracy in %, median (band)", tables, rows
    pairs = [("qmix", "random"), ("qmix", ALONE), (BLOCK, "qmix"), (RATE, "qmix"), (PLUS, BLOCK)]
    apart = [[gap(t, *pair) for t in (final, centre)] for pair in [*pairs, (PLUS, RATE)]]
    yield "| | with epochs | with steps |", tables, apart


def who_wins_where() -> Iterator[Source]:
    played, ends = read("uniform-regimes"), read("uniform-regimes-accuracy")
    sent = wide(played, ["snr", "spread"], "policy")
    once = sent[[BLOCK, PLAN]].max(axis=1)
    central = sent[[RATE, SHORTEST, DEADLINE]].max(axis=1) - once
    own = sent[CHOICE] - once
    weak, strong = own.loc[10].iloc[1:], own.loc[15:].max()
    found = [span(central), [5, 25], span(weak), strong, NONE, sent["qmix"].max(), NONE]
    yield "| question | answer | in how many", ["uniform-regimes"], found
    picked = ["qmix", BLOCK, PLAN, CHOICE, RATE, SHORTEST, DEADLINE, "perfect"]
    rows = grid(ends, ["snr", "spread"], "policy", picked, "accuracy", "uploads")
    name = ["uniform-regimes-accuracy"]
    yield "| mean SNR | spread | qmix |", name, rows
    cells = {key: t for key, t in ends.groupby(["snr", "spread"])}
    mean = wide(ends, ["snr", "spread"], "policy", "accuracy")
    schedule = mean[[BLOCK, PLAN]].max(axis=1)
    gained = (mean[[RATE, SHORTEST, DEADLINE]].max(axis=1) - schedule).drop((10, 0))
    yield (
        *("| question | gain in points | where |", name),
        *(gap(cells[10, 0], SHORTEST, PLAN), span(gained)),
        *(gap(cells[10, 0], CHOICE, PLAN), mean[CHOICE].iloc[0]),
        gap(cells[10, 6], CHOICE, BLOCK),
        [gap(cells[20, spread], PLAN, BLOCK) for spread in (0, 6, 12)],
    )
    each = wide(ends, ["snr", "spread"], "policy")
    more_sent = (each[DEADLINE] - each[[BLOCK, PLAN]].max(axis=1)).loc[20:]
    last = mean.loc[30, 0]
    yield "- `deadline-matching` delivers", name, span(more_sent), last[DEADLINE] - last[PLAN]
    yield "- At 20 dB max sum rate starves", name, mean.loc[20, 0][RATE], NONE
    held = wide(read("regimes-agents"), ["snr", "spread"], "policy")
    rows = held[[BLOCK, RATE, CHOICE, "trained here", "mappo-hold", HOLD, "size-free"]]
    yield "| mean SNR | spread | schedule |", ["regimes-agents"], rows.to_numpy()
    here = more(held["trained here"], held[BLOCK]).loc[20]
    pupils = max(1 - (held["size-free"] / held[CHOICE]).iloc[1:])
    yield "Trained for its cell", ["regimes-agents"], span(here), 100 * pupils


def favourable() -> Iterator[Source]:
    yield from nine_cells("ring-20-3")
    yield from swapped("ring-20-3")
    tenths = by_tenths(read("ring-20-3-reward")).drop(columns="seed")
    yield "| seed | first tenth |", ["ring-20-3-reward"], tenths.to_numpy()
    more_lost = gap(read("ring-20-3-ablation"), *FADING_MORE)
    yield "Hiding the gradient deviation costs nothing.", ["ring-20-3-ablation"], more_lost, NONE
    yield from ablation("ring-20-3")
    lines, rewards = read("ring-20-3-hidden"), read("ring-20-3-hidden-reward")
    agents, rows = matching(lines, policy="qmix", swapped=AS_IS), []
    for hidden in ("nothing", "gradient", "fading"):
        own, lost = matching(agents, hidden=hidden), []
        if hidden != "nothing":
            found = paired(agents, {"hidden": hidden}, {"hidden": "nothing"}, "uploads")
            lost = [found.mean, found.error, found.training_error]
        least_most = span(means(own, "training", "uploads"))
        last = by_tenths(matching(rewards, hidden=hidden))["last"].mean()
        kept = 100 * use_of_inputs(matching(lines, hidden=hidden)).kept[ALL]
        rows.append([own["uploads"].mean(), least_most, lost, last, kept])
    start = "| hidden | uploads per round |"
    yield start, ["ring-20-3-hidden", "ring-20-3-hidden-reward"], rows


def drifting() -> Iterator[Source]:
    name, final = ["drifting-accuracy"], read("drifting-accuracy")
    cells = wide(final, ["alpha", "clusters"], "policy", "accuracy")
    apart = [span(cells["qmix"] - cells[p]) for p in (*HEURISTICS[:-1], BLOCK)]
    yield "| others |", name, apart
    yield from nine_cells("drifting")
    final, rows = read("drifting-ablation"), []
    for hidden in ("nothing", "gradient", "fading"):
        own, lost = matching(final, hidden=hidden), []
        if hidden != "nothing":
            lost = gap(final, {"hidden": hidden}, {"hidden": "nothing"})
        rows.append([band(own["accuracy"]), lost, own["uploads"].mean()])
    yield "| hidden | final accuracy in %, median (band)", ["drifting-ablation"], rows
    final = read("drifting-epochs")
    apart = [gap(final, "qmix", "random"), gap(final, "perfect", "qmix")]
    yield "With E = 3 epochs", ["drifting-epochs"], apart


def ablation(cell: str) -> Iterator[Source]:
    final, inputs, rows = read(f"{cell}-ablation"), read(f"{cell}-ablation-inputs"), []
    for hidden in ("nothing", "gradient", "fading"):
        own, lost = matching(final, hidden=hidden), []
        if hidden != "nothing":
            found = paired(final, {"hidden": hidden}, {"hidden": "nothing"})
            lost = [found.mean, found.error, found.training_error]
        kept = 100 * use_of_inputs(matching(inputs, hidden=hidden)).kept[ALL]
        rows.append([band(own["accuracy"]), lost, own["uploads"].mean(), kept])
    tables = [f"{cell}-ablation", f"{cell}-ablation-inputs"]
    yield "| hidden | final accuracy in %, median (band) | against", tables, rows


def flat_known(frames: Sequence[DataFrame]) -> list[float]:
    """The numbers of tables that are there: who serves nobody has no fairness."""
    numbers = np.concatenate([frame.to_numpy().ravel() for frame in frames])
    return [*numbers[~np.isnan(numbers)]]


def ladder() -> Iterator[Source]:
    rungs, played = read("ladder"), read("ladder-policies")
    columns = list(rungs["rung"].unique())
    mean = wide(rungs, "speed", "rung").loc[SLOW_FIRST, columns]
    yield "| m/s | gains |", ["ladder"], mean.to_numpy()
    walking = matching(rungs, cell="own")
    yield "| m/s | gains |", ["ladder"], grid(walking, "speed", "rung", columns, "uploads", "error")
    name, each = ["ladder-policies"], wide(played, "policy", "speed")[SLOW_FIRST]
    yield "| policy | 0.83 m/s |", name, each.to_numpy()
    yield "**Planning is worth more", name, span(more(each.loc[PLAN], each.loc[BLOCK]))
    yield "| at 18.12 m/s | knows |", name, [each.loc[p, 18.12] for p in (PLAN, SHORTEST, RATE)]
    matched, none = each.loc[DEADLINE], each.loc[f"{DEADLINE}@250"]
    of_bound = span(100 * matched / each.loc["genie"])
    yield "Looking at the deadline", name, span(more(matched, each.loc[SHORTEST])), of_bound
    fresh = mean["CSI fresh"] - mean["progress"]
    worth = [span(100 * fresh / mean["progress"]), fresh.iloc[0], fresh.iloc[1:].mean()]
    yield "**Everybody's fading, if it is fresh", ["ladder"], worth
    aged, rows = [(0.83, 1), (0.83, 5), (7.67, 1), (0.83, 20), (18.12, 1), (7.67, 5)], []
    for speed, age in [*aged, (18.12, 5), (7.67, 20), (18.12, 20)]:
        gain = each.loc[f"{DEADLINE}@{age}", speed] - none[speed]
        rows.append([gain, gain / (matched[speed] - none[speed]), NONE])
    yield "| wavelengths | m/s |", name, rows
    everybody = pd.concat([played, read("ladder-agents")])
    both = [
        wide(t, "policy", "speed")[SLOW_FIRST] for t in (everybody, matching(everybody, cell="own"))
    ]
    pupils = ("size-free", "size-free-feedback")
    rows = [[t.loc[p] for t in both] for p in ("qmix", HOLD, "mappo-hold", *pupils, PLUS, BLOCK)]
    yield "| agents | rung |", ["ladder-agents", "ladder-policies"], rows
    ends = wide(read("ladder-accuracy"), ["cell", "speed"], "rung", "accuracy")[columns]
    gained = (ends.mean() - ends["gains"].mean())[columns[1:]]
    seeds = read("ladder-accuracy-seeds")
    fresh, own = ({"rung": "CSI fresh"}, {"rung": "gains"}), matching(seeds, cell="own")
    apart = [gap(t, *fresh) for t in (seeds[seeds["cell"] != "own"], own)]
    yield "Fresh CSI is worth a point", ["ladder-accuracy-seeds"], apart
    yield "| cell | m/s | gains |", ["ladder-accuracy"], ends.to_numpy(), gained
    yield "Final accuracy in %, means", ["ladder-accuracy-seeds"], gap(seeds, *fresh)


def announced() -> Iterator[Source]:
    table, field = read("announced-error"), "cell.announced_error_db"
    order = [BLOCK, CHOICE, FEEDBACK, PROGRESS, DEADLINE, RATE, HOLD, "mappo-hold"]
    for cell in ("paper", "ring"):
        by_error = wide(matching(table, cell=cell), "policy", field)
        rows = by_error.loc[[*order, "size-free", "size-free-feedback"]]
        yield "| | is told besides gains |", ["announced-error"], rows.to_numpy()
    rungs = ["gains", "own fading", "finished", "progress", "CSI 5 old", "CSI fresh", "bound"]
    climbed = [wide(read(name), "speed", "rung")[rungs] for name in ("ladder", "ladder-error")]
    rows = [found.to_numpy() for found in climbed]
    yield "| gains announced | m/s |", ["ladder", "ladder-error"], rows
    paper, ring = (wide(matching(table, cell=c), "policy", field) for c in ("paper", "ring"))
    lost = -more(paper.loc[CHOICE], paper.loc[CHOICE, 0])
    yield "- **The plan needs gains", ["announced-error"], lost[[1, 2, 3]]
    finishes = paper.loc[FEEDBACK] - paper.loc[CHOICE]
    progress = [by.loc[PROGRESS, 4] - by.loc[CHOICE, 4] for by in (paper, ring)]
    yield "- **Feedback is worth most", ["announced-error"], finishes[[0, 4]], progress
    names = ["announced-trained", "announced-error"]
    trained = wide(read(names[0]), ["policy", field], "cell")
    told = wide(table, ["policy", field], "cell")
    rows = [trained.loc[f"seed {seed}"] for seed in range(3)]
    rows += [told.loc[policy] for policy in ("mappo-hold", CHOICE)]
    yield "| | 0 dB | 1 dB |", names, [own.to_numpy() for own in rows]
    above, columns = read("announced-above"), ["worse_db", "margin_db"]
    cells = [wide(matching(above, cell=cell), columns, "policy") for cell in ("paper", "ring")]
    shown = [(BLOCK, 0), (CHOICE, 0), (CHOICE, 1), (CHOICE, 2), (PROGRESS, 0), (HOLD, 0)]
    shown += [("size-free", 0), ("size-free", 1)]
    rows = [
        [found.loc[(worse, margin), policy] for policy, margin in shown for found in cells]
        for worse in (0, 1, 2, 4)
    ]
    yield "| worse than believed by |", ["announced-above"], rows
    careful = [more(by[CHOICE].xs(1, level=1), by[CHOICE].xs(0, level=1)) for by in cells]
    margin = [-careful[0][0], -careful[1][0], careful[0][1], careful[0][2]]
    yield "- **A margin of 1 dB", ["announced-above"], margin
    own = wide(read("announced-margin"), "policy", field).loc[CHOICE]
    both = own[[2, 3, 4]], paper.loc[CHOICE, [2, 3, 4]]
    yield "- A margin does little", ["announced-margin", "announced-error"], both
    rogue = wide(read("rogue"), "policy", "cell")
    order = ["random", BLOCK, CHOICE, FEEDBACK, PROGRESS, HOLD, "mappo-hold", "size-free"]
    yield "| random | block-fading", ["rogue"], rogue.loc[[*order, "size-free-feedback"]].to_numpy()


def lever(part: str, *names: str, point: str | None = None) -> dict[str, Any]:
    """Runs of `fedfade levers`: allocation, codec and server, which may be left out."""
    keys = ("allocation", "codec", "server")
    named = dict(zip(keys, [*names, "float32", "mean"][:2] + [*names[2:], "mean"][:1], strict=True))
    return {"part": part, **named} | ({"point": point} if point else {})


def levers() -> Iterator[Source]:
    table, seeds = read("levers-paper"), read("levers-paper-seeds")
    name, paired_by = ["levers-paper"], ["levers-paper-seeds"]

    def end(*names: str, part: str = "paper", point: str | None = None) -> float:
        return matching(table, **lever(part, *names, point=point))["accuracy"].item()

    lines = [("perfect",), ("wrap-around", "int4"), ("wrap-around", "int8"), ("random", "int8")]
    plain = [(allocation,) for allocation in ("wrap-around", RATE, "block", "random")]
    rows = []
    for names in [*lines, ("block", "float32", "mifa"), *plain]:
        line = matching(table, **lever("paper", *names)).iloc[0]
        fields = ["uploads", "accuracy", "error", "averaged", "early", "seconds"]
        rows.append(line[fields].dropna())  # seconds: never
    yield "| allocation | codec | server | uploads |", name, rows
    perfect, packed, random = (lever("paper", *names) for names in (lines[0], lines[2], lines[3]))
    heavy = gap(seeds, packed | {"part": "heavy"}, random | {"part": "heavy"})
    remembers, forgets = lever("paper", "block", "float32", "mifa"), lever("paper", "block")
    rows = [gap(seeds, random, lever("paper", "wrap-around"))]
    rows += [gap(seeds, remembers, forgets, "early"), heavy, gap(seeds, packed, perfect)]
    yield "| above | below | after |", paired_by, rows, NONE
    at_s = [
        lever("payload", "wrap-around", "float32", rule, point="S") for rule in ("mifa", "mean")
    ]
    best = end("wrap-around", "int8", "mifa", part="clients", point="10")
    ends = [end("random", "int8"), span([end(*names) for names in plain])]
    ends += [end("wrap-around", "int8"), end("perfect")]
    yield "Code the updates first", name, ends
    yield "Then change the server", [*name, *paired_by], best, gap(seeds, *at_s)[0]
    yield "Packing, which means", paired_by, heavy[0]
    for part, points in (("payload", "S/8 S/4 S/2 S 2S 4S"), ("clients", "10 20 30 40 50")):
        keys, columns = ["allocation", "codec", "server"], points.split()
        own = matching(table, part=part)
        start = f"| allocation | codec | server | {' | '.join(columns)} |"
        both = [wide(own, keys, "point", field)[columns] for field in ("accuracy", "uploads")]
        shown = PAYLOADS if part == "payload" else list(both[0].index)
        yield start, name, np.stack([values.loc[shown] for values in both], axis=-1)
    rows = [RATE, SHORTEST, DEADLINE, "deadline-feedback", CHOICE, BLOCK, ALONE, "random"][::-1]
    sent = read("heavy").set_index("policy")["uploads"]
    rows[5:] = [DEADLINE, SHORTEST, RATE]
    yield "| random | max individual rate | block-fading", ["heavy"], sent[rows]
    alphas, base = ("alpha 0.5", "alpha 0.1"), ("wrap-around", "float32")
    rows = [
        gap(seeds, lever("order", *base, rule, point=alpha), lever("order", *base, point=alpha))
        for rule, alpha in product(("mifa", "fedvarp"), alphas)
    ]
    yield "| points above the plain mean |", paired_by, rows


PAYLOADS = [
    *((a, "float32", "mean") for a in ("random", "max-individual", "block", "learned", RATE)),
    *(("wrap-around", "float32", rule) for rule in ("mean", "mifa")),
    ("deadline", "float32", "mean"),
    *((a, "int8", "mean") for a in ("random", "learned", RATE, "wrap-around")),
    *(
        (a, c, "mean")
        for a, c in (("random", "int4"), ("wrap-around", "topk"), ("wrap-around", "int4"))
    ),
]


def real_link() -> Iterator[Source]:
    table, name = read("real-link"), ["real-link"]
    order = ["random", ALONE, BLOCK, PLAN, "wrap-around-pairs", CHOICE, SHORTEST, RATE, DEADLINE]
    keys, apart = ["link", "antennas", "neighbours"], ["packing - knowing", "own fading"]
    own = {bits: matching(table, updates=bits) for bits in ("float32", "int8")}
    for each in own.values():
        rows = grid(each, keys, "policy", [*order, "genie", *apart], "uploads", "error").reshape(
            8, -1
        )
        genie = 2 * len(order)
        yield "| link | antennas | neighbours | random |", name, np.delete(rows, genie + 1, axis=1)
    full, coded = (wide(each, keys, "policy") for each in own.values())
    both = [full[order].max(axis=1), coded["random"], coded[CHOICE]]
    yield "| | best policy with float32 |", name, np.transpose(both)
    paired_by = matching(own["float32"], policy="packing - knowing").set_index(keys)
    knowing = paired_by[["uploads", "error"]]
    yield "It does with Shannon's rates", name, knowing.loc["shannon", 1, 0]
    yield "- **Neighbours**", name, knowing.loc["shannon", 1, 6]
    yield "- **NR**", name, knowing.loc["nr", 1, 0]
    four = [*knowing.loc["shannon", 4, 0], *knowing.loc["nr", 4, 0]]
    yield "- **Four antennas**", name, four, full.loc[("shannon", 4, 0), [ALONE, PLAN]]

    rungs = read("ladder-nr")
    columns = list(rungs["rung"].unique())[:-1]
    mean = wide(rungs, ["antennas", "neighbours", "speed"], "rung")[columns]
    first = [[[NONE] * len(columns), mean.loc[1, 0, speed]] for speed in SLOW_FIRST]
    rest = [mean.loc[a, n, s] for a, n in ((1, 6), (4, 0), (4, 6)) for s in SLOW_FIRST]
    yield "| link | antennas | neighbours | m/s |", ["ladder-nr"], first, rest
    final = read("real-link-accuracy").set_index("policy")
    order = ["random", ALONE, BLOCK, CHOICE, "size-free", RATE, "perfect"]
    fields, runs = ["accuracy", "error", "uploads"], ("float32", "int8", "urban")
    rows = [[matching(final.loc[[p]], run=run)[fields].to_numpy() for run in runs] for p in order]
    yield "| | NR, one antenna, float32 |", ["real-link-accuracy"], rows


def performance() -> Iterator[Source]:
    """What `fedfade bench` measured last; figures of other versions are known by hand."""
    name, table = ["bench-h200"], read("bench-h200").set_index(["part", "figure"])
    fields = ["measured", "floor"]
    seeds = table.loc[("seeds", "5 seeds against 1")]
    rounds = table.loc["round"].iloc[:4][fields].to_numpy()
    before = [2, 2, 3, 2]  # figures of other versions, or goals, in a row
    rows = [[[NONE] * n, row] for n, row in zip(before, rounds, strict=True)]
    channel = table.loc[("channel", "clustered channel")]
    found = [1e-6 * table.loc["max-sum-rate"]["measured"]]
    shown = [NONE, NONE, table.loc[("training", "training")][fields]]
    shown += [seeds["wanted"], NONE, NONE, seeds[fields], rows, channel["wanted"], NONE, NONE]
    shown += [channel[fields], 0.1, [NONE] * 8, found, [NONE] * 3]
    yield "| figure | wanted | 0.1.0 |", name, shown
    parts = table.loc["training"].iloc[1:8]
    batch = np.array([250.0, 5000 / 30, 1, 1, 1, 1, 1])
    ms = parts["measured"] * np.where(parts["unit"] == "us", 1e-3, 1.0)
    share = 100 * ms * batch / (ms * batch).sum()
    lines = np.column_stack([parts["measured"], batch, share])
    found = [table.loc[("training", "slot step")]["floor"], lines[0], lines[1, 1:], lines[2:]]
    yield "| part | one call |", name, found
    beside = read("bench-peers")[["ours", "peer", "ratio"]].to_numpy()
    in_order = [0, 3, 4, 5, 6, 7, 8, 10, 1, 2]  # the page leaves one out, and has Flower last
    yield "| what | unit | fedfade |", ["bench-peers"], beside[in_order]


def speed_of_rounds() -> Iterator[Source]:
    beside = read("bench-peers")
    ours, loop, flower = (
        beside.iloc[3]["ours"],
        *(beside.iloc[row][["peer", "ratio"]] for row in (3, 4)),
    )
    found = [ours, loop["peer"], 1 / loop["ratio"], NONE, NONE, flower["peer"], 1 / flower["ratio"]]
    yield "| on one thread of an AMD EPYC", ["bench-peers"], found


def readings() -> Iterator[Source]:
    table, name = read("results-readings"), ["results-readings"]
    order = ["qmix", "random", ALONE, RATE, BLOCK, PLAN, CHOICE]
    fields = {field: [f"{field} {policy}" for policy in order] for field in MEASURED}

    def there(columns: list[str], scale: float = 1.0) -> Any:
        numbers = scale * table[columns].to_numpy().ravel()
        return numbers[~np.isnan(numbers)]  # who serves nobody has no fairness; some diverged

    kept = [column for column in table if column.startswith("kept ")]
    yield "| reading | differs in |", name, there([*fields["uploads"], "least", "most", "claims"])
    yield "| reading | qmix |", name, there(fields["reward"])
    yield "| reading | qmix |", name, there(fields["fairness"])
    yield "| reading | alphas |", name, there(kept, 100.0)
    rows, ring = table.set_index("reading"), "ring-25-3"
    sent, earned, best = rows["uploads qmix"], rows["reward qmix"], f"{ring}+1e-4+best"
    kept_there = sent[[f"{ring}+1e-4+mean", best, f"{ring}+1e-4", ring]]
    both = earned[[f"{ring}+1e-4+mean", ring]]
    weights = [*sent[["mean-weights", "best-weights", "default"]], rows[f"uploads {BLOCK}"].iloc[0]]
    layout = sent[["v2x+fixed+1e-4+best", "v2x+fixed+1e-4"]]
    yield "- **Which weights are kept", name, kept_there, both, weights, layout
    alone = sent[["masked", "default", "clipped", "layouts-20"]]
    many = "v2x+1e-4+layouts+1M"
    yield "- **Common remedies", name, alone, [sent[many], rows["uploads random"][many]]
    yield "- **Two changes of the reward", name, sent[["paid", "standardised", "default"]]
    yield "- **The same restart", name, sent[["v2x+same+1e-4", "v2x+1e-4", "v2x"]]
    hurt = ["replay-1M", "reward-uploads", "fixed+1e-4+uploads", "fixed+1e-4"]
    yield "- **What hurts", name, sent[hurt]
    agents = matching(read("results-readings-lines"), reading=best, policy="qmix")
    lost = paired(agents, {"swapped": AS_IS}, {"swapped": ALL}, "uploads")
    found = [*sent[["ring-25-0+1e-4", best]], rows["least"]["ring-25-0+1e-4"]]
    found += [100 * rows["kept all"][best], lost.mean, 2 * lost.training_error]
    yield "- **Two readings with clients", [*name, "results-readings-lines"], found


def qmix_hold() -> Iterator[Source]:
    nine = read("size-free-nine")
    order = [BLOCK, HOLD, "mappo-hold", "size-free", CHOICE]
    sent, start = (
        wide(nine, ["cell", "speed_mps"], "policy"),
        "| cell | m/s | block-fading schedule |",
    )
    rows = [sent.loc[(cell, speed), order] for cell in ("paper", "ring") for speed in FAST_FIRST]
    yield start, ["size-free-nine"], rows
    ratio = wide(matching(nine, cell="paper"), ["clusters", "speed_mps"], "policy", "ratio")
    errors = matching(nine, cell="paper", policy="size-free")["ratio_error"]
    found = [ratio["size-free"].mean(), span(ratio["size-free"]), span(errors), NONE]
    found += [ratio["mappo-hold"].mean(), ratio[HOLD].mean(), NONE]
    yield "Over the nine settings", ["size-free-nine"], found
    for name, by, start, order in (
        ("size-free-sizes", "clients", "| clients, sub-bands |", [BLOCK, "size-free", CHOICE]),
        ("size-free-csi", "speed_mps", "| m/s |", [DEADLINE, "csi-matching", "size-free-csi"]),
    ):
        table, pupil = read(name), next(p for p in order if p.startswith("size-free"))
        own = matching(table, policy=pupil)[["ratio", "ratio_error"]]
        yield start, [name], np.hstack([wide(table, by, "policy")[order], own])
    five = read("size-free-five").query("policy.str.startswith('seed-')")
    own, sizes = five.query("clients == 10"), five.query("clients != 10")["ratio"]
    by_cell = own.groupby(["cell", "policy"])["ratio"].mean()
    found = [span(by_cell["paper"]), span(by_cell["ring"]), span(sizes)]
    yield "Five trainings agree", ["size-free-five"], found
    differ = read("payloads").set_index("policy")
    sent = differ["uploads"][[BLOCK, CHOICE, "mappo-hold", "size-free"]]
    pupil = differ.loc["size-free", ["ratio", "ratio_error"]]
    yield "Clients that send between half", ["payloads"], sent, pupil
    final = wide(read("qmix-hold-accuracy"), ["alpha", "n"], "policy", "acc").sort_index()
    start = "| alpha, n_c | random |"
    yield start, ["qmix-hold-accuracy"], final[["random", ALONE, BLOCK, RATE, HOLD]].to_numpy()
    above = [final[HOLD] - final[policy] for policy in ("random", ALONE, RATE)]
    yield "Paired over seeds", ["qmix-hold-accuracy"], span(above[:2]), above[2].mean()
    yield from trainings(ratio)


def five_trainings() -> tuple[DataFrame, DataFrame]:
    """Uploads of five seeds of `qmix-hold` and others, and by how many per cent the seeds are above
    the schedule: by cell, mobility, speed and clusters."""
    where = ["cell", "mobility", "speed_mps", "clusters"]
    sent = read("qmix-hold-five").pivot(index=where, columns="policy", values="uploads")
    seeds = [f"seed-{number}" for number in range(5)]
    return sent, more(sent[seeds].T, sent[BLOCK]).T


def five_from_scratch(earlier: DataFrame) -> Iterator[Source]:
    """Five seeds of `qmix-hold`, and the three trainings of which one comes with the package."""
    (sent, above), name = five_trainings(), "qmix-hold-five"
    seeds, plan = list(above), sent[CHOICE]
    uniform, drifting = above.loc["paper", "reflect"], above.loc["paper", "waypoint"]
    below = -more(sent.loc["paper", seeds].T, plan.loc["paper"]).T
    where = [("paper", "reflect", speed, n) for speed in FAST_FIRST for n in (14, 21, 28)]
    where += [
        ("paper", "waypoint", 18.12, 21),
        *(("ring", "ring", speed, 21) for speed in (18.12, 0.83)),
    ]
    ratio = sent[seeds].div(sent[BLOCK], axis=0)
    rows = [[*sent.loc[w, [*seeds, BLOCK, CHOICE]], *span(ratio.loc[w])] for w in where]
    yield "| cell | training seeds 0 to 4", [name], rows
    found = [span(uniform), uniform.to_numpy().mean(), span(drifting), span(below)]
    yield "In the uniform cell all five", [name], found
    one = uniform.mean()
    ring = [span(above.loc["ring"][seed]) for seed in ("seed-0", "seed-1")]
    found = [one["seed-0"], one["seed-2"], sent[RATE].dropna(), ring[0], np.negative(ring[1][::-1])]
    yield "The trainings differ more", [name], found
    here = sent.loc["paper", "reflect", 18.12, 21]
    yield "One H200 trained all five", [name], here["seed-0 on a CPU"], here["seed-0"]
    three = earlier[earlier["mobility"] == "reflect"]
    own = three.filter(like=f"{HOLD}-")
    found = [span(own), span(more(own.T, three[BLOCK])), here["seed-2"]]
    yield "The agents that come with the package are the best", [HOLD, name], found


def trainings(nine: DataFrame) -> Iterator[Source]:
    """Several seeds of a training beside each other."""
    five, three = read("mappo-hold"), read(HOLD)
    taught, own = five.filter(like="mappo-hold-"), three.filter(like=f"{HOLD}-")
    ends = [taught.min(axis=1), taught.max(axis=1)]
    rows = [*ends, *(five[p] for p in (HOLD, BLOCK, CHOICE)), *(end / five[BLOCK] for end in ends)]
    yield "| cell | five trainings |", ["mappo-hold"], np.transpose(rows)
    yield from five_from_scratch(three)
    gain = more(taught.T, five[BLOCK]).T
    ahead = more(1, taught.T / five[CHOICE]).T
    found = [100 * nine["size-free"].mean(), span(more(nine["size-free"], nine[BLOCK]))]
    yield "**In short.**", ["size-free-nine"], found
    found = [span(gain[:9]), span(gain[9:10]), span(ahead[:10])]
    yield "Every one of five trainings of", ["mappo-hold"], found
    cpu = read("qmix-hold-cpu").query("policy != @BLOCK")
    yield "Two more trainings", ["qmix-hold-cpu"], span(cpu["uploads"]), span(cpu["ratio"])

    seeds, rows = [f"seed-{number}" for number in range(5)], []
    for (_, count), own in (
        read("qmix-taught")
        .query("speed_mps == 18.12")
        .groupby(["mobility", "clusters"], sort=False)
    ):
        line = own.set_index("policy")
        rate = [line["uploads"][RATE]] if RATE in line.index else [NONE][: int(count == 21)]
        sent = [line["uploads"][seeds], line["uploads"][BLOCK], rate, line["uploads"][CHOICE]]
        rows.append([*sent, span(line.loc[seeds, "ratio"])])
    rows[:3] = [rows[1], rows[0], rows[2]]  # n_c 14, 21, 28
    yield "| cell, 18.12 m/s | seeds 0 to 4 |", ["qmix-taught"], rows
    keys = ["mobility", "speed_mps", "clusters", "policy"]
    told = read("size-free-feedback").set_index(keys).sort_index()
    order, rows = ["deadline-feedback", "size-free-feedback", "wrap-around-feedback"], []
    places = [[("reflect", speed, count) for count in (14, 21, 28)] for speed in FAST_FIRST]
    places += [[("waypoint", 18.12, 21)], [("ring", speed, 21) for speed in FAST_FIRST]]
    for row in places:
        rows += [told.loc[(*place, name), "uploads"] for name in order for place in row]
        rows += [told.loc[(*place, order[1]), "ratio"] for place in row]
    yield "| cell | m/s | deadline-feedback |", ["size-free-feedback"], rows


def qmix_plus() -> Iterator[Source]:
    sent = wide(read("qmix-plus"), ["cell", "speed_mps", "clusters"], "policy")
    rows = [*(sent[p] for p in (BLOCK, PLAN, CHOICE, PLUS)), more(sent[PLUS], sent[BLOCK])]
    start = "| cell | n_c | m/s | block-fading schedule |"
    yield start, ["qmix-plus"], np.transpose([*rows, sent[RATE], sent[SHORTEST]])
    final = read("uniform-accuracy")
    centre = (matching(final, clusters=21, alpha=alpha) for alpha in (0.5, 5, 50))
    above = [gap(own, PLUS, BLOCK) for own in centre]
    yield "Seed by seed on CIFAR-10", ["uniform-accuracy"], above
    low = matching(final, alpha=0.5).groupby(["policy", "clusters"])["accuracy"].median()
    ends = [low[policy] for policy in (PLUS, BLOCK, RATE, "random", ALONE)]
    digits = read("qmix-plus-digits").set_index("policy")["accuracy"]
    order = [PLUS, PLAN, BLOCK, RATE, "random", ALONE, "perfect"]
    shown = [ends, low["perfect"].mean(), digits[order]]
    yield "| final accuracy in % |", ["uniform-accuracy", "qmix-plus-digits"], shown


def findings() -> dict[str, Any]:
    """What the front page and the page to cite have from the others."""
    played, rungs = (
        wide(read("ladder-policies"), "policy", "speed"),
        wide(read("ladder"), "speed", "rung"),
    )
    old, none, now = (played.loc[f"{DEADLINE}{age}", 18.12] for age in ("@1", "@250", ""))
    nine = wide(matching(read("size-free-nine"), cell="paper"), ["clusters", "speed_mps"], "policy")
    above = five_trainings()[1]
    held = wide(read("qmix-hold-accuracy"), ["alpha", "n"], "policy", "acc")
    return {
        "plan": span(more(played.loc[PLAN], played.loc[BLOCK])),
        "own": (rungs["own fading"] - rungs["gains"]).max(),
        "fresh": span(more(rungs["CSI fresh"], rungs["progress"])),
        "old": 100 * (old - none) / (now - none),
        "uniform": above.loc["paper", "reflect"].to_numpy(),
        "drifting": span(above.loc["paper", "waypoint"]),
        "pupils": span(more(nine["size-free"], nine[BLOCK])),
        "of plan": 100 * (nine["size-free"] / nine[CHOICE]).mean(),
        "held": span([held[HOLD] - held[p] for p in ("random", ALONE)]),
    }


def verdict() -> list[Any]:
    """The front page on the paper: uniform at its centre, then the reading that favours agents."""
    final, ring = read("uniform-accuracy"), read("ring-20-3-accuracy")
    centre = matching(final, alpha=0.5, clusters=21)
    cells, on_ring = (wide(t, ["alpha", "clusters"], "policy", "accuracy") for t in (final, ring))
    short, ring_short = (
        matching(table, **own).groupby(["clusters", "policy"])["accuracy"].median().unstack()
        for table, own in ((centre, {}), (ring, {"alpha": 0.5}))
    )
    rise = [cells[p].loc[50] - cells[p].loc[0.5] for p in ("random", ALONE, RATE)]
    ends = {"clusters": 28}, {"clusters": 14}
    change = [gap(matching(ring, policy=RATE, alpha=alpha), *ends) for alpha in (0.5, 5, 50)]
    largest = max(change, key=lambda found: abs(found[0]))
    return [
        *(gap(centre, "qmix", other) for other in ("random", ALONE, RATE)),
        span(on_ring["qmix"] - on_ring[RATE]),
        *(span(t["perfect"] - t["qmix"])[-size:] for t, size in ((short, 1), (ring_short, 2))),
        gap(matching(final, policy=RATE, alpha=0.5), *ends),
        [abs(largest[0]), largest[1]],
        span(rise),
        *(
            gap(read(f"{cell}-ablation"), {"hidden": hidden}, {"hidden": "nothing"})
            for cell, hidden in product(("uniform", "ring-20-3"), ("fading", "gradient"))
        ),
        *(span(read(f"{cell}-bound")["all_runs"]) for cell in ("uniform", "ring-20-3")),
    ]


def readme() -> Iterator[Source]:
    found, table = findings(), matching(read("levers-paper"), part="paper")
    centre = matching(read("uniform-accuracy"), policy="qmix", alpha=0.5, clusters=21)
    first, uniform = centre["uploads"].mean(), found["uniform"]
    numbers = [first, uniform.mean(), span(uniform), found["pupils"], found["of plan"]]
    tables = ["uniform-accuracy", "qmix-hold-five", "size-free-nine"]
    yield "Agents trained as in the paper", tables, numbers
    ends = table.set_index(["allocation", "codec", "server"])["accuracy"]
    plain = [ends[a, "float32", "mean"] for a in ("random", "block", RATE, "wrap-around")]
    numbers = [ends["random", "int8", "mean"], span(plain), ends["wrap-around", "int8", "mean"]]
    numbers.append(ends["perfect", "float32", "mean"])
    yield "On CIFAR-10 at the paper's load", ["levers-paper"], numbers
    numbers = [found[key] for key in ("plan", "fresh")]
    yield "On rings and in the paper's cell", ["ladder", "ladder-policies"], numbers
    field = "cell.announced_error_db"
    told = wide(matching(read("announced-error"), cell="paper"), "policy", field)
    lost = [-more(told.loc[policy, 3], told.loc[policy, 0]) for policy in (CHOICE, PROGRESS)]
    yield "The gains must be accurate", ["announced-error"], lost
    parts = product(("uniform", "ring-20-3"), ("ablation", "bound"))
    tables = ["uniform-accuracy", "ring-20-3-accuracy", *map("-".join, parts)]
    yield "| the paper says |", tables, verdict()
    yield "*Held decisions.*", ["qmix-hold-accuracy"], found["held"]


def packing_not_fading() -> Iterator[Source]:
    found, played = findings(), wide(read("ladder-policies"), "policy", "speed")[SLOW_FIRST]
    rows = played.loc[[BLOCK, RATE, PLAN, CHOICE, DEADLINE, "genie"]]
    yield "| | knows |", ["ladder-policies"], rows.to_numpy()
    yield "- The plan delivers", ["ladder-policies"], found["plan"]
    yield "- A client's own fading", ["ladder"], found["own"]
    numbers = [found[key] for key in ("fresh", "old")]
    yield "- Everybody's fading", ["ladder", "ladder-policies"], numbers
    agents = matching(read("uniform-accuracy"), policy="qmix", alpha=0.5, clusters=21)
    yield "With the paper's observation", ["uniform-accuracy"], agents["uploads"].mean()
    nine = wide(matching(read("size-free-nine"), cell="paper"), "policy", "speed_mps")[FAST_FIRST]
    rows = nine.loc[[BLOCK, HOLD, "mappo-hold", "size-free", CHOICE]]
    yield "| | learned by |", ["size-free-nine"], rows.to_numpy()
    uniform, drifting = found["uniform"], found["drifting"]
    yield "- **From scratch**", ["qmix-hold-five"], span(uniform), uniform.mean(), drifting
    numbers = [found[key] for key in ("of plan", "pupils")]
    yield "- **`size-free`**", ["size-free-nine"], numbers
    cases = matching(read("announced-above"), cell="paper")
    told, worse, careful = (
        matching(cases, worse_db=worse, margin_db=margin).set_index("policy")["uploads"]
        for worse, margin in ((0, 0), (2, 0), (2, 1))
    )
    fallen = [told[CHOICE], worse[CHOICE], told[HOLD], worse[HOLD], careful[CHOICE]]
    fallen += [worse[PROGRESS]]
    yield "This changes where the channel", ["announced-above"], fallen
    lines = [("random",), ("block",), ("wrap-around",), ("block", "float32", "mifa")]
    lines += [("random", "int8"), ("wrap-around", "int8"), ("perfect",)]
    own = [matching(read("levers-paper"), **lever("paper", *names)) for names in lines]
    fields = ["uploads", "accuracy", "error"]
    yield "| who sends where |", ["levers-paper"], [line[fields].to_numpy() for line in own]
    seeds, coded = read("levers-paper-seeds"), [("random", "int8"), ("wrap-around", "int8")]
    first = gap(seeds, lever("paper", *coded[0]), lever("paper", "wrap-around"))
    heavy = gap(seeds, lever("heavy", *coded[1]), lever("heavy", *coded[0]))
    yield "Random allocation of 8-bit", ["levers-paper-seeds"], first, heavy
    above, _, below, on_ring, *_ = verdict()
    ours = [above, -below[0], below[1], *(-value for value in reversed(on_ring))]
    yield "The paper's main claim", ["uniform-accuracy", "ring-20-3-accuracy"], ours
    yield "Agents that hold decisions", ["qmix-hold-accuracy"], found["held"]
    link = matching(read("real-link"), updates="float32", policy="packing - knowing", neighbours=0)
    apart = link.set_index(["link", "antennas"])[["uploads", "error"]]
    cases = [("shannon", 1), ("nr", 1), ("shannon", 4)]
    yield "- **The link.**", ["real-link"], [apart.loc[case] for case in cases]


def faq() -> Iterator[Source]:
    taught = read("mappo-hold")[:9]
    gains = more(taught.filter(regex=r"hold-\d").T, taught[BLOCK]).to_numpy()
    gains = np.append(gains, findings()["uniform"])
    yield "That is a failure of the training", ["mappo-hold", "qmix-hold-five"], span(gains)


SOURCES: dict[str, Callable[[], Iterator[Source]]] = {
    "README.md": readme,
    "docs/faq.md": faq,
    "docs/explanation/packing-not-fading.md": packing_not_fading,
    "docs/results/announced.md": announced,
    "docs/results/claims.md": claims,
    "docs/results/ladder.md": ladder,
    "docs/results/levers.md": levers,
    "docs/results/qmix-hold.md": qmix_hold,
    "docs/results/qmix-plus.md": qmix_plus,
    "docs/results/learning.md": speed_of_rounds,
    "docs/results/performance.md": performance,
    "docs/results/readings.md": readings,
    "docs/results/real-link.md": real_link,
}
