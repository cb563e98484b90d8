"""Draw the pictures of the results pages again, from the tables in docs/data: `make pictures`.

The tables are copied from what `fedfade reproduce`, `ladder` and `levers` left; the pictures are
drawn by the functions with which these commands draw theirs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from pandas import DataFrame

from fedfade.allocation import PERFECT
from fedfade.storage import save_figure
from fedfade.studies.frames import matching, read_frame
from fedfade.studies.ladder import page as ladder_page
from fedfade.studies.ladder.rungs import Agents, make_ladder
from fedfade.studies.levers import page as levers_page
from fedfade.studies.levers.plan import load_levers
from fedfade.studies.paper import charts, regimes

DOCS = Path(__file__).parent


def read(name: str) -> DataFrame:
    return read_frame(DOCS / "data" / f"{name}.csv")


def ladder(field: str) -> Figure:
    """Rungs of knowledge, without the folders of the agents that were tried."""
    asked = make_ladder("paper", overrides=["cell.mobility=waypoint"])
    named = [Agents(name, [], [], []) for name in ("qmix", "qmix-plus")]
    asked = asked._replace(agents=named)
    if field == "uploads":
        played = read("ladder-policies")
        marked = (played["learned"] == "yes") | played["policy"].isin([*ladder_page.KNOWN])
        return ladder_page.ladder_figure(asked, asked.names, read("ladder"), played[marked], field)
    ends = read("ladder-accuracy")
    best, learned = (matching(ends, learned=answer) for answer in ("no", "yes"))
    return ladder_page.ladder_figure(asked, [*best["cell"].unique()], best, learned, field)


def levers(scale: str, *only: str) -> Figure:
    """Parts whose tables are kept."""
    return levers_page.levers_figure(load_levers(scale, only), read(f"levers-{scale}"))


def maps() -> Figure:
    """Who wins where."""
    tables = {"uploads": read("results-regimes"), "accuracy": read("results-regimes-accuracy")}
    tables = {field: table.assign(training="") for field, table in tables.items()}
    everybody = [name for name in tables["uploads"]["policy"].unique() if name != PERFECT]
    allowed = {"all": everybody, "local": regimes.LOCAL}
    return charts.regimes(
        {
            (field, who): regimes.winners(table, field, names)
            for field, table in tables.items()
            for who, names in allowed.items()
        }
    )


def at_the_centre(table: DataFrame) -> DataFrame:
    return matching(table, alpha=0.5, clusters=21)


PICTURES: dict[str, Callable[[], Figure]] = {
    "ladder": partial(ladder, "uploads"),
    "ladder-accuracy": partial(ladder, "accuracy"),
    "levers": partial(levers, "small", "paper", "heavy", "payload", "order"),
    "levers-paper": partial(levers, "paper", "paper"),
    "results-regimes": maps,
    "results-accuracy": lambda: charts.accuracy_grid(read("results-accuracy-curves"), 5),
    "results-epochs": lambda: charts.accuracy_grid(read("results-epochs-curves"), 5),
    "results-served": lambda: charts.served(at_the_centre(read("results-accuracy"))),
    "results-reward": lambda: charts.reward(
        read("results-reward"), 10, "QMIX, alpha 0.5, 21 clusters"
    ),
    "results-readings": lambda: charts.readings(read("results-readings"), 10),
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        save_figure(draw(), DOCS / "images" / f"{name}.png")
