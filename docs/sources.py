"""How the numbers of a page follow from the tables in docs/data.

A source is the start of a block, the tables, and the block's measured numbers in their order on the
page, nested as is convenient. None stands for a number that no table has.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series
from scipy.stats import spearmanr

from fedfade.studies.frames import matching, read_frame
from fedfade.studies.noise import mean_error, paired
from fedfade.studies.paper.questions import _by_tenths

Source = tuple[Any, ...]
BLOCK, PLAN, CHOICE = "block-fading-schedule", "wrap-around-schedule", "wrap-around-choice"
PLUS, SUM_RATE, SHORTEST = "qmix-plus", "max-sum-rate", "shortest-remaining-first"
HEURISTICS = ("random", "max-individual-rate", SUM_RATE)
SPEEDS = (18.12, 7.67, 0.83)


@cache
def read(name: str) -> DataFrame:
    return read_frame(Path(__file__).parent / "data" / f"{name}.csv")


def wide(frame: DataFrame, rows: Any, columns: Any, value: str = "uploads") -> DataFrame:
    """Means by rows and columns, both in the order in which the table has them."""
    return frame.pivot_table(index=rows, columns=columns, values=value, sort=False)


def span(values: Any) -> list[float]:
    """Least and greatest."""
    return [np.min(values), np.max(values)]


def band(values: Series) -> list[float]:
    """Median, and the 10-90 % band."""
    return list(np.percentile(100 * values, [50, 10, 90]))


def gap(frame: DataFrame, one: dict[str, Any], other: dict[str, Any], field: str = "accuracy") -> list[float]:
    """How far one set of runs ends above another, in points, with its standard error."""
    found = paired(frame, one, other, field)
    return [100 * found.mean, 100 * found.error]


def policies(frame: DataFrame, one: str, other: str) -> list[float]:
    return gap(frame, {"policy": one}, {"policy": other})


def claims() -> Iterator[Source]:
    name = "results-accuracy"
    final, epochs, hidden = read(name), read("results-epochs"), read("results-ablation")
    everybody = list(final["policy"].unique())
    cells = 100 * wide(final, ["alpha", "clusters"], "policy", "accuracy")
    above = {other: cells["qmix"] - cells[other] for other in (*HEURISTICS, BLOCK)}
    yield "| others |", [name], [span(difference) for difference in above.values()]

    own = [matching(final, alpha=0.5, clusters=count) for count in (14, 21, 28)]
    medians = DataFrame([100 * t.groupby("policy")["accuracy"].median() for t in [*own, epochs]])
    shown = ["qmix", SUM_RATE, BLOCK, PLUS]
    yield "| | n_c 14 | n_c 21", [name, "results-epochs"], [medians["perfect"] - medians[p] for p in shown]

    rate = matching(final, policy=SUM_RATE)
    wider = [gap(matching(rate, alpha=a), {"clusters": 28}, {"clusters": 14}) for a in (0.5, 5, 50)]
    fewer = paired(rate, {"clusters": 28}, {"clusters": 14}, "uploads").mean
    yield "Table 3", [name], fewer
    yield "| alpha | 0.5 | 5 | 50 |", [name], wider

    steps = {p: cells[p].loc[50] - cells[p].loc[0.5] for p in HEURISTICS}
    yield "| random | max individual rate | max sum rate |", [name], span(steps["random"]), [steps[p].mean() for p in HEURISTICS[1:]]

    lost = {h: gap(hidden, {"hidden": h}, {"hidden": "nothing"}) for h in ("gradient", "fading")}
    more = gap(hidden, {"hidden": "gradient"}, {"hidden": "fading"})
    bands = {h: [*band(t["accuracy"]), t["uploads"].mean()] for h, t in hidden.groupby("hidden")}
    widths = {h: high - low for h, (_, low, high, _) in bands.items()}
    full, blind, deaf = (bands[h] for h in ("nothing", "gradient", "fading"))
    lines = [full[0], full[3], widths["nothing"], blind[0], lost["gradient"], blind[3]]
    lines += [deaf[0], lost["fading"], more, deaf[3], widths["fading"]]
    yield "| hidden | final accuracy, median |", ["results-ablation"], lines
    last = read("results-ablation-reward").groupby("hidden", sort=False)
    ends = {h: _by_tenths(t)["last"].mean() for h, t in last}
    yield "| hidden | final accuracy in %, median (band)", ["results-ablation", "results-ablation-reward"], [[*bands[h], ends[h] if h == "nothing" else None] for h in ends]

    tenths = _by_tenths(read("results-reward"))
    yield "| seed | 0 | 1 | 2 | 3 | 4 | |---|---|---|---|---|---| | first", ["results-reward"], [tenths[c] for c in ("start", "last", "best")]
    bound = read("results-bound")
    yield "| second term |", ["results-bound"], [span(bound[c])[:: -1 if c != "uploads" else 1] for c in ("all_runs", "within_seeds", "uploads")]
    low = cells.loc[0.5]
    centre = matching(final, alpha=0.5, clusters=21)
    yield "| above the block-fading schedule |", [name], policies(centre, PLUS, BLOCK), span(low[PLUS] - low["qmix"]), span([low[PLUS] - low[p] for p in HEURISTICS[:2]])

    order = list(product((14, 21, 28), (0.5, 5, 50)))
    each = {key: t["accuracy"] for key, t in final.groupby(["policy", "clusters", "alpha"])}
    yield "| policy | alpha 0.5, n_c 14 |", [name], [[band(each[p, *cell]) for cell in order] for p in everybody]
    uplink = final.assign(wasted=100 * final["wasted"])
    means = uplink.groupby(["policy", "clusters"])[["uploads", "fairness", "wasted"]].mean()
    yield "| uploads a round | |", [name], None, None, [means.loc[(p, 21), "uploads"] for p in ("qmix", BLOCK, PLUS)]
    yield "| policy | n_c 14 | n_c 21", [name], [means.loc[p].to_numpy() for p in everybody]
    yield "QMIX serves four or five", [name], 100 * matching(centre, policy="qmix")["accuracy"]

    uplink = epochs.assign(wasted=100 * epochs["wasted"]).groupby("policy")[["uploads", "fairness", "wasted"]].mean()
    rows = []
    for policy in everybody:
        ends = band(matching(epochs, policy=policy)["accuracy"])
        below = [policies(t, "perfect", policy) if policy != "perfect" else [] for t in (epochs, centre)]
        rows.append([ends, below[0], uplink.loc[policy], below[1]])
    yield "| policy | final accuracy in %, median (band)", ["results-epochs", name], rows
    pairs = [("qmix", "random"), ("qmix", "max-individual-rate"), (BLOCK, "qmix"), (SUM_RATE, "qmix"), (PLUS, BLOCK), (PLUS, SUM_RATE)]
    yield "| | with epochs | with steps |", ["results-epochs", name], [policies(epochs, *pair) for pair in pairs], policies(centre, PLUS, SUM_RATE)
    rounds = read("results-epochs-rounds")
    late = rounds[rounds["round"] >= 7].pivot_table(index=["seed", "round"], columns="policy", values="accuracy")
    moves = 100 * late.groupby("seed").diff().abs()
    gaps = [[policies(t, "perfect", p)[0] for p in everybody[:-1]] for t in (epochs, centre)]
    yield "- Gaps are", ["results-epochs", name], span(np.divide(*gaps))
    yield "| QMIX | max sum rate, schedule |", ["results-epochs-rounds"], moves["qmix"].median(), moves[[SUM_RATE, BLOCK]].median().mean(), moves[PLUS].median(), moves["perfect"].median()

    groups = [[PLUS, SUM_RATE, BLOCK], ["random", "max-individual-rate", "qmix"]]
    ranks = [[spearmanr(t["bias"], t["accuracy"])[0] for _, t in final[final["policy"].isin(g)].groupby(["alpha", "clusters"])] for g in groups]
    yield "| group | rank correlation |", [name], [span(r)[::-1] for r in ranks]
    terms = read("results-bound-terms").groupby("policy", sort=False)[["first", "second", "third", "measured"]].mean()
    yield "| policy | rounds the bound held |", ["results-bound-terms"], terms.to_numpy()

    ring = read("results-regimes-accuracy")
    points = ["qmix", BLOCK, PLAN, CHOICE, SUM_RATE, SHORTEST, "deadline-matching", "perfect"]
    final_mean, sent = (wide(ring, ["snr", "spread"], "policy", f)[points] for f in ("accuracy", "uploads"))
    yield "| mean SNR | spread | qmix |", ["results-regimes-accuracy"], np.stack([100 * final_mean, sent], axis=-1)
    played = wide(read("results-regimes"), ["snr", "spread"], "policy")
    once, central = played[[BLOCK, PLAN]].max(axis=1), played[["deadline-matching", SUM_RATE, SHORTEST]].max(axis=1)
    choice = played[CHOICE] - once
    yield "| question | answer |", ["results-regimes"], span(central - once), None, None, span(choice.loc[10]), choice.drop(10).max(), played["qmix"].max(), None
    yield "- At 10 dB without spread", ["results-regimes"], played.loc[(10, 0), CHOICE], central[10, 0]
    ends = 100 * final_mean
    once = ends[[BLOCK, PLAN]].max(axis=1)
    own = {cell: matching(ring, snr=cell[0], spread=cell[1]) for cell in ends.index}
    central = (ends[["deadline-matching", SUM_RATE, SHORTEST]].max(axis=1) - once).drop((10, 0))
    silent = ends.loc[(10, 0)]
    most = [span(central[central > 1]), silent[SHORTEST] - silent[PLAN], silent[CHOICE] - silent[PLAN], silent[CHOICE]]
    yield "| question | gain in points |", ["results-regimes-accuracy"], most, ends.loc[(10, 6), CHOICE] - once[10, 6], [policies(own[20, spread], PLAN, BLOCK) for spread in (0, 6, 12)]
    yield "- At 20 dB max sum rate starves", ["results-regimes-accuracy"], ends.loc[(20, 0), SUM_RATE], (ends["perfect"] - ends.drop(columns="qmix").min(axis=1)).loc[30].max()


def ladder() -> Iterator[Source]:
    rungs, played = read("ladder"), read("ladder-policies")
    walking = matching(rungs, cell="own")
    columns = list(rungs["rung"].unique())
    slow_first = SPEEDS[::-1]
    mean = wide(rungs, "speed", "rung").loc[list(slow_first), columns]
    head = "| m/s | gains |"
    yield head, ["ladder"], mean.to_numpy()
    each = [wide(walking, "speed", "rung", f).loc[list(slow_first), columns] for f in ("uploads", "error")]
    yield head, ["ladder"], np.stack(each, axis=-1)
    by_policy = wide(played, "policy", "speed")[list(slow_first)]
    shown = matching(played, learned="no")["policy"].unique()
    yield "| policy | 0.83 m/s |", ["ladder-policies"], by_policy.loc[shown].to_numpy()
    plan, block, genie = (by_policy.loc[p] for p in (PLAN, BLOCK, "genie"))
    yield "**Planning is worth more", ["ladder-policies"], span(100 * (plan / block - 1))
    yield "| at 18.12 m/s | knows |", ["ladder-policies"], [by_policy.loc[p, 18.12] for p in (PLAN, SHORTEST, SUM_RATE)]
    deadline = by_policy.loc["deadline-matching"]
    yield "Looking at the deadline", ["ladder-policies"], [span(100 * (deadline / by_policy.loc[SHORTEST] - 1)), span(100 * deadline / genie)]
    none = by_policy.loc["deadline-matching@250"]
    each = wide(rungs, ["cell", "speed"], "rung")
    own, told = (each[r] - each[b] for r, b in (("own fading", "gains"), ("finished", "own fading")))
    yield "| where | uploads gained |", ["ladder"], own.groupby("speed").mean().max(), own.max(), None, None
    yield "**Finish feedback", ["ladder"], span(told.groupby("speed").sem())
    yield "| where | uploads gained |", ["ladder"], told.groupby("speed").mean()[list(SPEEDS[::-1])][::-1], told["20 dB, spread 0 dB"].max()
    yield "Slow fading makes", ["ladder"], (mean["progress"] - mean["finished"]).max()
    fresh = mean["CSI fresh"] - mean["progress"]
    yield "**Everybody's fading, if it is fresh", ["ladder"], span(100 * fresh / mean["progress"]), fresh.iloc[0], fresh.iloc[1:].mean()
    rows = []
    for speed, age in ((0.83, 1), (0.83, 5), (7.67, 1), (0.83, 20), (18.12, 1), (7.67, 5), (18.12, 5), (7.67, 20), (18.12, 20)):
        gain = by_policy.loc[f"deadline-matching@{age}", speed] - none[speed]
        rows.append([gain, gain / (deadline[speed] - none[speed]), None])
    yield "| wavelengths | m/s |", ["ladder-policies"], rows
    agents = [[by_policy.loc[p, list(slow_first)], wide(matching(played, cell="own"), "policy", "speed").loc[p, list(slow_first)]] for p in ("qmix", PLUS, BLOCK)]
    yield "| agents | 0.83 m/s |", ["ladder-policies"], agents
    ends = 100 * wide(read("ladder-accuracy"), ["cell", "speed"], "rung", "accuracy")[columns]
    gained = ends.mean() - ends["gains"].mean()
    rise = (ends["CSI fresh"] - ends["gains"]).groupby("cell").mean()
    yield "- *Fresh CSI*", ["ladder-accuracy"], rise["20 dB, spread 3 dB"], rise["own"]
    slow = matching(read("ladder-accuracy"), cell="own", speed=0.83).set_index("rung")
    yield "- *Slow walks*", ["ladder-accuracy"], [[100 * slow["accuracy"][r], slow["uploads"][r]] for r in ("gains", "CSI fresh")]
    yield "| cell | m/s | gains |", ["ladder-accuracy"], ends.to_numpy(), gained[columns[1:]]


def levers() -> Iterator[Source]:
    table, seeds = read("levers-paper"), read("levers-paper-seeds")
    head = ["allocation", "codec", "server"]

    def runs(part: str, *names: str, point: str = "") -> dict[str, Any]:
        allocation, codec, server = names
        where = {"part": part, "allocation": allocation, "codec": codec, "server": server}
        return where | ({"point": point} if point else {})

    def end(*names: str, part: str = "paper", point: str = "") -> float:
        return 100 * matching(table, **runs(part, *names, point=point))["accuracy"].item()

    def over(one: Any, other: Any, field: str = "accuracy") -> list[float]:
        return gap(seeds, one, other, field)

    order = [("perfect", "float32", "mean"), ("wrap-around", "int4", "mean"), ("wrap-around", "int8", "mean"), ("random", "int8", "mean"), ("block", "float32", "mifa")]
    plain = [(a, "float32", "mean") for a in ("wrap-around", "max-sum-rate", "block", "random")]
    rows = []
    for names in [*order, *plain]:
        line = matching(table, **runs("paper", *names)).iloc[0]
        known = [] if np.isnan(line["seconds"]) else [line["seconds"]]
        rows.append([line["uploads"], *(100 * line[f] for f in ("accuracy", "error", "averaged", "early")), *known])
    yield "| allocation | codec | server | uploads |", ["levers-paper"], rows
    perfect, int8, random8 = order[0], order[2], order[3]
    packed = ("wrap-around", "float32", "mean")
    heavy = over(runs("heavy", *int8), runs("heavy", *random8))
    claimed = [
        over(runs("paper", *random8), runs("paper", *packed)),
        over(runs("paper", *order[4]), runs("paper", "block", "float32", "mean"), "early"),
        heavy,
        over(runs("paper", *int8), runs("paper", *perfect)),
    ]
    yield "| above | below | after |", ["levers-paper-seeds"], claimed, None
    remembers = over(runs("clients", "wrap-around", "int8", "mifa", point="10"), runs("clients", *perfect, point="10"))
    worst = [end(*names) for names in plain]
    lifted = over(runs("payload", "wrap-around", "float32", "mifa", point="S"), runs("payload", *packed, point="S"))
    yield "Code the updates first", ["levers-paper"], end(*random8), span(worst), end(*int8), end(*perfect), end("wrap-around", "int8", "mifa", part="clients", point="10"), lifted[0], heavy[0]
    tight = over(runs("paper", *order[1]), runs("paper", *perfect))
    smooth = over(runs("paper", *int8), runs("paper", *perfect), "averaged")
    sent = matching(table, **runs("paper", *int8))["uploads"].item()
    yield "8-bit updates under the plan", ["levers-paper-seeds"], -claimed[3][0], None, sent, tight, smooth, remembers
    calm = over(runs("paper", *order[4]), runs("paper", "block", "float32", "mean"), "averaged")
    yield "From one test to the next", ["levers-paper-seeds"], calm

    def grid(part: str, start: str) -> Source:
        own = matching(table, part=part)
        both = [wide(own, head, "point", f) for f in ("accuracy", "uploads")]
        text = (Path(__file__).parent / "results" / "levers.md").read_text()
        names = re.findall(r"^\| ([\w-]+) \| (\w+) \| (\w+) \| [\d.]+ \(", text.partition(start)[2].partition("\n\n")[0], re.M)
        points = [cell.strip() for cell in start.split("|")[4:-1]]
        return start, ["levers-paper"], [[[100 * both[0].loc[n, p], both[1].loc[n, p]] for p in points] for n in names]

    own = matching(table, part="paper")
    yield "5. `average_models", ["levers-paper"], 100 * (own["averaged"] - own["accuracy"]).max()
    yield "Final accuracy in % (uploads a round), five seeds; perfect", ["levers-paper"], end(*perfect, part="payload", point="S")
    yield grid("payload", "| allocation | codec | server | S/8 | S/4 | S/2 | S | 2S | 4S |")
    yield grid("clients", "| allocation | codec | server | 10 | 20 | 30 | 40 | 50 |")
    forty = [end(*names, part="clients", point="40") for names in (int8, random8, perfect)]
    yield "The preset `heavy`", ["levers-paper"], forty
    alphas = ("alpha 0.5", "alpha 0.1")
    mifa = ("wrap-around", "float32", "mifa")
    by = [over(runs("order", a, "float32", "mifa", point=p), runs("order", *mifa, point=p)) for a in ("by-age", "by-innovation") for p in alphas]
    yield "Serving by age", ["levers-paper-seeds"], by
    better = [[over(runs("order", "wrap-around", "float32", s, point=p), runs("order", *packed, point=p)) for p in alphas] for s in ("mifa", "fedvarp")]
    yield "| points above the plain mean |", ["levers-paper-seeds"], better


def real_link() -> Iterator[Source]:
    table = read("real-link")
    where = ["updates", "link", "antennas", "neighbours"]
    both = [wide(table, where, "policy", f) for f in ("uploads", "error")]
    names = ["random", "max-individual-rate", BLOCK, PLAN, "wrap-around-pairs", CHOICE, SHORTEST, SUM_RATE, "deadline-matching"]
    apart = ["packing - knowing", "own fading"]

    def cell(line: Any, name: str) -> list[float]:
        return [values.loc[line, name] for values in both]

    def lines(updates: str) -> list[Any]:
        return list(product([updates], ("shannon", "nr"), (1, 4), (0, 6)))

    for updates in ("float32", "int8"):
        rows = [[[cell(line, n) for n in names], cell(line, "genie")[0], [cell(line, n) for n in apart]] for line in lines(updates)]
        yield "| link | antennas | neighbours | random |", ["real-link"], rows
    base, beside = ("float32", "shannon", 1, 0), ("float32", "shannon", 1, 6)
    nr, nr_beside = ("float32", "nr", 1, 0), ("float32", "nr", 1, 6)
    four, four_nr = ("float32", "shannon", 4, 0), ("float32", "nr", 4, 0)
    knowing, own = apart
    yield "It does with Shannon's rates", ["real-link"], cell(base, knowing)
    yield "- **Neighbours**", ["real-link"], cell(beside, knowing)
    yield "- **NR**", ["real-link"], cell(nr, knowing)
    yield "- **Four antennas**", ["real-link"], cell(four, knowing), cell(four_nr, knowing), both[0].loc[four, "max-individual-rate"], both[0].loc[four, PLAN]
    light = [both[0].loc[("int8", "nr", *rest), knowing] for rest in product((1, 4), (0, 6))]
    yield "- **8-bit updates**", ["real-link"], cell(("int8", "shannon", 1, 0), knowing), span(light)[::-1]
    pairs = both[0]["pairs - one at a time"]
    three = [cell(line, pairs.name) for line in (four, ("float32", "shannon", 4, 6), four_nr)]
    yield "With four antennas a plan", ["real-link"], three, span(pairs.sort_values()[:-3])
    matched = [[both[0].loc[line, n] for n in ("deadline-matching", SUM_RATE)] for line in (base, nr, ("int8", "nr", 1, 0))]
    yield "What stands is a weaker", ["real-link"], matched
    weak = [beside, nr, nr_beside, ("float32", "nr", 4, 6)]
    worth = both[0][own]
    shares = [100 * worth[line] / both[0].loc[line, PLAN] for line in weak]
    yield "In the wrap-around plan", ["real-link"], cell(base, own), worth.drop(weak).max(), [cell(line, own) for line in weak], span(shares)
    alone = both[0]["max-individual-rate"] - both[0]["random"]
    yield "Without a plan", ["real-link"], span(alone.xs(4, level="antennas"))
    light = {line[1:]: both[0].loc[line] for line in lines("int8")}
    best = [[both[0].loc[line, names].max(), light[line[1:]]["random"], light[line[1:]][CHOICE]] for line in lines("float32")]
    yield "| | best policy with float32 |", ["real-link"], best
    yield "Sending a quarter", ["real-link"], light["nr", 1, 0]["random"]

    rungs = read("ladder-nr")
    columns = list(rungs["rung"].unique())[:-1]
    mean = wide(rungs, ["antennas", "neighbours", "speed"], "rung")[columns]
    unknown = [None] * len(columns)
    first = [[unknown, mean.loc[1, 0, speed]] for speed in SPEEDS[::-1]]
    rest = [mean.loc[a, n, speed] for a, n in ((1, 6), (4, 0), (4, 6)) for speed in SPEEDS[::-1]]
    yield "| link | antennas | neighbours | m/s |", ["ladder-nr"], first, rest
    cells = wide(rungs, ["antennas", "neighbours", "speed", "cell"], "rung")

    def step(antennas: int, neighbours: int, upper: str, lower: str, speed: float = 18.12) -> Any:
        own = cells.loc[antennas, neighbours, speed]
        return mean_error(own[upper] - own[lower])

    fading = [step(1, n, "own fading", "gains") for n in (0, 6)]
    yield "- Own fading is worth +0.21", ["ladder-nr"], fading, None
    yield "- Fresh knowledge of all fading", ["ladder-nr"], [step(1, n, "CSI fresh", "CSI 1 old") for n in (0, 6)]
    yield "- Own fading is worth 0.01", ["ladder-nr"], [step(4, n, "own fading", "gains") for n in (0, 6)]
    yield "- Fresh knowledge seems", ["ladder-nr"], step(4, 0, "CSI fresh", "CSI 1 old"), None

    final = read("real-link-accuracy")
    three = [wide(final, "policy", "run", f) for f in ("accuracy", "error", "uploads")]
    order = ["random", "max-individual-rate", BLOCK, CHOICE, "size-free", SUM_RATE, "perfect"]
    yield "| | NR, one antenna, float32 |", ["real-link-accuracy"], np.stack([t.loc[order] for t in three], axis=-1)
    ends, _, sent = three
    gained = (ends["int8"] - ends["float32"]).drop("perfect")
    level = matching(final, run="int8").set_index("policy")["to_plan"].loc[[SUM_RATE, "size-free"]].abs().max()
    ahead = matching(final, run="urban", policy=SUM_RATE)[["to_plan", "to_plan_error"]].to_numpy()
    yield "Two uploads a round are too few", ["real-link-accuracy"], span(gained), level, ahead, sent["urban"][SUM_RATE] - sent["urban"][CHOICE], None, ends["int8"]["random"]


def readings() -> Iterator[Source]:
    table = read("results-readings")
    names = ["qmix", "random", "max-individual-rate", SUM_RATE, BLOCK, PLAN, CHOICE]
    uploads, reward, fairness = (table[[f"{f} {n}" for n in names]] for f in ("uploads", "reward", "fairness"))
    rows = [*uploads.to_numpy().T, table["least"], table["most"], table["claims"]]
    yield "| reading | differs in |", ["results-readings"], np.transpose(rows)
    yield "| reading | qmix |", ["results-readings"], reward.to_numpy()
    yield "| reading | qmix |", ["results-readings"], [row[~np.isnan(row)] for row in fairness.to_numpy()]
    kept = [name for name in table if name.startswith("kept ")]
    yield "| reading | alphas |", ["results-readings"], 100 * table[kept].to_numpy()


def qmix_hold() -> Iterator[Source]:
    nine = read("size-free-nine")
    agents = [BLOCK, "qmix-hold", "mappo-hold", "size-free", CHOICE]
    mean = wide(nine, ["cell", "speed_mps"], "policy")
    yield "| cell | m/s | block-fading schedule | `qmix-hold`", ["size-free-nine"], [mean.loc[("paper", s), agents] for s in SPEEDS], [None] * 15
    uniform = matching(nine, cell="paper")
    ratio = wide(uniform, ["clusters", "speed_mps"], "policy", "ratio")
    errors = matching(uniform, policy="size-free")["ratio_error"]
    shares = [ratio["size-free"].mean(), span(ratio["size-free"]), span(errors)]
    yield "Over the nine settings", ["size-free-nine"], shares, None, ratio["mappo-hold"].mean(), ratio["qmix-hold"].mean(), [None] * 8
    sizes = read("size-free-sizes")
    rows = [[own.set_index("policy")["uploads"][[BLOCK, "size-free", CHOICE]], matching(own, policy="size-free")[["ratio", "ratio_error"]].to_numpy()] for _, own in sizes.groupby("clients")]
    yield "| clients, sub-bands |", ["size-free-sizes"], rows

    taught = read("qmix-taught")
    seeds = [f"seed-{number}" for number in range(5)]
    rows = []
    for mobility, count in (("reflect", 14), ("reflect", 21), ("reflect", 28), ("waypoint", 21), ("ring", 21)):
        own = matching(taught, mobility=mobility, clusters=count, speed_mps=18.12).set_index("policy")
        sent = own["uploads"].to_dict()
        rate = [sent[SUM_RATE]] if SUM_RATE in sent else [None] * (mobility == "reflect" and count == 21)
        rows.append([[sent[s] for s in seeds], sent[BLOCK], rate, sent[CHOICE], span(own.loc[seeds, "ratio"])])
    yield "| cell, 18.12 m/s | seeds 0 to 4 |", ["qmix-taught"], rows

    feedback = read("size-free-feedback").set_index(["mobility", "speed_mps", "clusters", "policy"]).sort_index()
    names = ["deadline-feedback", "size-free-feedback", "wrap-around-feedback"]

    def row(*places: tuple[Any, ...]) -> list[Any]:
        sent = [[feedback.loc[(*place, name), "uploads"] for place in places] for name in names]
        return [*sent, [feedback.loc[(*place, names[1]), "ratio"] for place in places]]

    rows = [row(*(("reflect", speed, count) for count in (14, 21, 28))) for speed in SPEEDS]
    rows += [row(("waypoint", 18.12, 21)), row(*(("ring", speed, 21) for speed in SPEEDS))]
    yield "| cell | m/s | deadline-feedback |", ["size-free-feedback"], rows
    every = feedback.loc["reflect"].xs(names[1], level="policy")
    ring = 100 * (1 - feedback.loc["ring"].xs(names[1], level="policy")["ratio"])
    teacher = 100 * (1 - feedback.loc["ring"].xs(names[2], level="policy")["ratio"])
    yield "In the nine settings", ["size-free-feedback"], every["ratio"].mean(), span(every["ratio_error"]), span(ring), span(teacher)
    csi = read("size-free-csi")
    rows = [[own.set_index("policy")["uploads"][["deadline-matching", "csi-matching", "size-free-csi"]], matching(own, policy="size-free-csi")[["ratio", "ratio_error"]].to_numpy()] for _, own in csi.groupby("speed_mps", sort=False)]
    yield "| m/s | deadline-matching |", ["size-free-csi"], rows

    plan = 100 * (feedback.loc["reflect"].xs(names[2], level="policy")["ratio"] - 1)
    yield "`size-free-feedback` also hears", ["size-free-feedback"], span(plan), None, None
    taught = read("mappo-hold")
    five = taught[[f"mappo-hold-{number}" for number in range(5)]]
    rows = [five.min(axis=1), five.max(axis=1), taught["qmix-hold"], taught[BLOCK], taught[CHOICE]]
    rows += [end / taught[BLOCK] for end in rows[:2]]
    yield "| cell | five trainings |", ["mappo-hold"], np.transpose(rows)
    gain = 100 * (five.div(taught[BLOCK], axis=0) - 1)
    ahead = 100 * (1 / five.div(taught[CHOICE], axis=0) - 1)
    sets = 100 * ratio["size-free"].mean(), span(100 * (ratio["size-free"] / ratio[BLOCK] - 1))
    yield "**In short.**", ["size-free-nine", "mappo-hold"], sets, span(gain[:9]), span(gain[9:10]), span(ahead[:10])
    own = read("qmix-hold")
    rows = [*(own[f"qmix-hold-{number}"] for number in range(3)), own[BLOCK], own[CHOICE], own["qmix-hold-2"] / own[BLOCK]]
    yield "| cell | three trainings", ["qmix-hold"], np.transpose(rows)
    final = read("qmix-hold-accuracy")
    ends = wide(final, ["alpha", "n"], "policy", "acc")
    shown = ["random", "max-individual-rate", BLOCK, SUM_RATE, "qmix-hold"]
    yield "| alpha, n_c | random |", ["qmix-hold-accuracy"], ends[shown].sort_index().to_numpy()
    above = [ends["qmix-hold"] - ends[name] for name in shown]
    yield "Paired over seeds", ["qmix-hold-accuracy"], span(above[:2]), above[3].mean()
    share = read("qmix-hold").iloc[:10]
    trained = share[[f"qmix-hold-{number}" for number in range(3)]]
    over = 100 * (trained.div(share[BLOCK], axis=0) - 1)
    short = 100 * (1 - trained.div(share[CHOICE], axis=0))
    yield "So: in the uniform", ["qmix-hold"], span(over), span(short)


def qmix_plus() -> Iterator[Source]:
    table = read("qmix-plus")
    sent = wide(table, ["cell", "speed_mps", "clusters"], "policy")
    rows = [sent[n] for n in (BLOCK, PLAN, CHOICE, PLUS)]
    rows += [100 * (sent[PLUS] / sent[BLOCK] - 1), sent[SUM_RATE], sent[SHORTEST]]
    yield "| cell | n_c | m/s | block-fading schedule |", ["qmix-plus"], np.transpose(rows)


SOURCES: dict[str, Callable[[], Iterator[Source]]] = {
    "docs/results/claims.md": claims,
    "docs/results/ladder.md": ladder,
    "docs/results/levers.md": levers,
    "docs/results/qmix-hold.md": qmix_hold,
    "docs/results/qmix-plus.md": qmix_plus,
    "docs/results/readings.md": readings,
    "docs/results/real-link.md": real_link,
}
