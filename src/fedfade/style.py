"""How pictures look: one set of colours, titles on the left, light grids, unframed legends."""

from typing import Any

_SHADES = (
    *("#4477aa", "#ee6677", "#228833", "#bb9922", "#3399bb", "#aa3377", "#996633", "#ee7733"),
    *("#332288", "#777777"),
)


def shade(place: int) -> str:
    """Ten colours, in turn, after Paul Tol's schemes, which most colour-blind people can tell
    apart. Of many clients it is the number that tells them apart."""
    return _SHADES[place % len(_SHADES)]


def blank(width: float, height: float) -> Any:
    """An empty figure, sizes in inches."""
    from matplotlib.figure import Figure  # which need not be installed

    return Figure(figsize=(width, height), layout="constrained")


def panels(width: float, height: float, rows: int, columns: int, **shared: Any) -> Any:
    """A figure in inches and its panels: [row, column]."""
    figure = blank(width, height)
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in grid.flat:
        tidy(axes)
    return figure, grid


def tidy(axes: Any) -> None:
    """Two spines and a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)


def label(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """What a panel shows, and its axes with their units."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel=x, ylabel=y)


def headline(figure: Any, text: str) -> None:
    """What all panels show."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=12)


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend for all panels: that of one of them."""
    style = {"ncols": columns, "frameon": False, "fontsize": 10}
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", **style)
