"""A page that follows a training: `training.html` beside TensorBoard's files, read again by the
browser every few seconds while it runs, and made from a folder's checkpoint at any time."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedfade.agents.trainer import Report
from fedfade.config import Config
from fedfade.errors import UserError
from fedfade.pages import PagePart, page_html
from fedfade.storage import write_text
from fedfade.wording import counted

PAGE = "training.html"
REFRESH_S = 5
_POINTS = 200  # of a curve; each is a mean over its episodes
_SHARE = 0.01  # of the time goes into pages, at most
_PLOTS = (
    ("reward", "Reward of an episode", 2),
    ("uploads", "Uploads a round, of {clients}", 2),
    ("epsilon", "Exploration (epsilon)", 3),
    ("q", "Value of a state", 2),
    ("loss", "Squared error of values", 4),
    ("accuracy", "Accuracy of the federated model in %", 1),
)
"""Figures of a `Report` that are drawn, what they are called, and their digits."""

Curves = Sequence[Sequence[Report]]


def training_part(
    config: Config, curves: Curves, title: str, state: str = "", left_s: float | None = None
) -> PagePart:
    """What a page shows of trainings of one kind, one curve a seed: numbers now, and how they came
    about. `left_s`: seconds it may still take."""
    table = _table(curves)  # [seed, batch, figure]
    recent = table[:, -max(1, table.shape[1] // 20) :]
    clients, places = config.learning.clients, Report._fields
    now = {name: _mean(recent[:, :, places.index(name)]) for name in places}
    total, episodes = config.qmix.episodes, int(table[0, -1, 0])
    seeds = f"mean of {counted(len(table), 'seed')}" if len(table) > 1 else ""
    last = "last twentieth of the episodes"
    cards = [
        _card("Episodes", f"{episodes:,}", f"of {total:,}", seeds),
        _card("Uploads a round", f"{now['uploads']:.2f}", f"of {clients}", last),
        _card("Reward of an episode", f"{now['reward']:.2f}", "", last),
    ]
    if np.nan_to_num(table[:, :, places.index("epsilon")]).any():
        epsilon = table[0, -1, places.index("epsilon")]
        cards.append(_card("Exploration", f"{epsilon:.3f}", "", "epsilon"))
    if now["q"] == now["q"]:
        cards.append(_card("Value of a state", f"{now['q']:.2f}", "", last))
    if left_s is not None:
        cards.append(_card("Time left", *_duration(left_s), "at the pace so far"))
    plots = [
        plot
        for name, label, digits in _PLOTS
        if (plot := _plot(table, name, label.format(clients=clients), digits))
    ]
    return PagePart("training", title, {"state": state, "cards": cards, "plots": plots})


def write_training_page(folder: Path, config: Config, curves: Curves, title: str) -> Path:
    """The page of trainings that have ended, or stopped; returns its path."""
    LivePage(folder, config, title).write(curves, ended=True)
    return folder / PAGE


def _table(curves: Curves) -> np.ndarray:
    """As far as all have come, in at most so many points: [seed, point, figure]."""
    length = min(map(len, curves))
    if not length:
        raise UserError("the training has played no episodes yet.")
    table = np.array([curve[:length] for curve in curves], float).reshape(len(curves), length, -1)
    parts = np.array_split(table, min(_POINTS, length), axis=1)
    points = np.stack([_means(part.swapaxes(1, 2)) for part in parts], 1)
    points[:, :, 0] = np.stack([part[:, -1, 0] for part in parts], 1)
    return points


def _means(values: np.ndarray) -> np.ndarray:
    """Mean of what was measured over the last axis; NaN where nothing was."""
    measured = ~np.isnan(values)
    total = np.where(measured, values, 0.0).sum(-1)
    return np.where(measured.any(-1), total / np.maximum(1, measured.sum(-1)), np.nan)


def _mean(values: np.ndarray) -> float:
    return float(_means(values.reshape(1, -1))[0])


def _card(what: str, number: str, unit: str = "", beside: str = "") -> dict[str, str]:
    return {"what": what, "number": number, "unit": unit, "beside": beside}


def _duration(seconds: float) -> tuple[str, str]:
    """
    >>> _duration(42.3), _duration(600), _duration(8000)
    (('42', 's'), ('10', 'min'), ('2.2', 'h'))
    """
    if seconds < 120:
        return f"{seconds:.0f}", "s"
    return (f"{seconds / 60:.0f}", "min") if seconds < 7200 else (f"{seconds / 3600:.1f}", "h")


def _plot(table: np.ndarray, name: str, label: str, digits: int) -> dict[str, Any] | None:
    """A small picture of one figure; None where it was never measured or is always 0."""
    values = table[:, :, Report._fields.index(name)] * (100 if name == "accuracy" else 1)
    known = values[~np.isnan(values)]
    if not known.size or not known.any():
        return None
    low, high = min(0.0, float(known.min())), float(known.max())
    episodes = table[0, :, 0]
    width = max(1.0, float(episodes[-1] - episodes[0]))
    x = 46 + 350 * (episodes - episodes[0]) / width
    y = 126 - 118 * (values - low) / max(high - low, 1e-12)
    lines = [
        " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, row, strict=True) if b == b)  # noqa: PLR0124
        for row in y
    ]
    ends = {"first": f"{episodes[0]:,.0f}", "end": f"{episodes[-1]:,.0f}"}
    numbers = {"low": low, "high": high, "last": known[-1]}
    texts = {which: f"{number:.{digits}f}" for which, number in numbers.items()}
    return {"name": label, "lines": lines, **ends, **texts}


class LivePage:
    """Writes a training's page now and then while it runs, and a last time when it ends."""

    def __init__(self, folder: Path, config: Config, title: str) -> None:
        self._path, self._config, self._title = folder / PAGE, config, title
        self._begun: tuple[float, int] | None = None  # when, and after which episode
        self._due = 0.0

    def write(self, curves: Curves, ended: bool = False) -> None:
        """The page, if it is time for one or the training has ended."""
        now = time.monotonic()
        episodes = curves[0][-1].episodes if curves and curves[0] else 0
        if self._begun is None:  # the first batch pays for what is done once
            self._begun = now, episodes
        if not episodes or (now < self._due and not ended):
            return
        begun, first = self._begun
        total, left = self._config.qmix.episodes, None
        if episodes > first and not ended:
            left = max(0, total - episodes) * (now - begun) / (episodes - first)
        moment = datetime.now().astimezone().strftime("%H:%M:%S")
        state = f"At {moment}. This page reads itself again every {REFRESH_S} seconds."
        if ended:
            state = "Finished." if episodes >= total else "Stopped. The same command continues it."
        part = training_part(self._config, curves, self._title, state, left)
        text = page_html(self._title, [part], None if ended else REFRESH_S)
        with suppress(UserError):  # if the folder was moved away, the next checkpoint will say so
            write_text(self._path, text)
        self._due = time.monotonic() + max(REFRESH_S, (time.monotonic() - now) / _SHARE)
