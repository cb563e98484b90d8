"""The report: one page to read and to explore, of a comparison or of several folders.

Every kind of folder has a function that turns it into parts of a page; `READERS` says which, by
the file that tells the kind.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfade import agents
from fedfade.allocation import GENIE, PERFECT, described
from fedfade.config import Config, load_config
from fedfade.errors import UserError
from fedfade.experiments.comparison import compared_names
from fedfade.experiments.explore import cards, cells, explored, ranking
from fedfade.experiments.findings import Place, genie_line, headline, left_out_lines, ranked
from fedfade.experiments.metrics import SPENT, Row, policies_of, read_rows, shown, spent
from fedfade.experiments.replay import played_again, round_part
from fedfade.experiments.run_folder import RESULTS, check_inputs, check_unchanged, read_record
from fedfade.pages import PagePart, page_html, png_source
from fedfade.seams import POLICIES
from fedfade.storage import read_bytes, refuse_links, write_text, writing
from fedfade.wording import counted

_TITLE = "Who should send where?"
_BOUNDS = {
    PERFECT: "A bound: every upload succeeds",
    GENIE: "A bound: how many could deliver at most, with all gains known",
}
_PICTURES = {
    "accuracy": ("Accuracy", "test accuracy against rounds"),
    **{f"accuracy-{n}": (f"Accuracy against {n}", f"test accuracy against {n}") for n in SPENT},
    "uploads": ("Uploads per round", "uploads per round"),
    "served": ("Who is served", "share of rounds each client delivered"),
    "waste": ("Where the bits go", "bits delivered and wasted"),
}
_BESIDE = "max-sum-rate"  # carries the most bits and finishes fewer uploads: the telling contrast
_WATCHED = 50_000  # slots times clients of a round that a report holds at most
_POINTS = 400  # of a training's curve
_CONFIG_BYTES = 2**20


class _Compared(NamedTuple):
    """A comparison as far as it has come."""

    folder: Path
    config: Config
    record: Mapping[str, Any]
    rows: Sequence[Row]
    foreign: bool  # the folder may be a stranger's, so no code that it names is run
    name: str = ""  # of one run among several, which its parts bear


def write_report(
    folder: Path, config: Config, record: Mapping[str, Any], rows: Sequence[Row]
) -> Path:
    """Draw all figures and write `report.html`; returns its path."""
    return _write_report(_Compared(folder, config, record, rows, foreign=False))


def _write_report(run: _Compared) -> Path:
    pictures = _pictures(run.rows, run.config.learning.clients)
    for name, png in pictures.items():
        with writing(run.folder / "figures" / f"{name}.png") as temporary:
            temporary.write_bytes(png)
    write_text(run.folder / "report.html", page_html(_TITLE, _parts(run, pictures)))
    return run.folder / "report.html"


def write_joint_report(folders: Sequence[Path], out: Path | None) -> Path:
    """One page of several folders; without `out`, that of a comparison in its folder."""
    if out is None and len(folders) == 1 and (folders[0] / "run.json").is_file():
        refuse_links(folders[0])  # a figure would be written where a link leads
        return _write_report(_compared(folders[0]))
    out = out or Path("report.html")
    parts = [part for folder in folders for part in _read(folder)]
    write_text(out, page_html(_TITLE, [*_overview(folders), *parts]))
    return out


def _read(folder: Path) -> list[PagePart]:
    """The parts of whatever a folder holds."""
    place = agents.agents_folder(folder)
    for marker, read in READERS.items():
        if any(place.glob(marker)):
            return read(place)
    found = f"it has none of {', '.join(READERS)}"
    raise UserError(f"{str(folder)!r} holds no run, sweep, training or checkpoint: {found}.")


# --- a comparison --------------------------------------------------------------------------------


def _compared(folder: Path, name: str = "") -> _Compared:
    """What a folder holds: every round that all runs have."""
    config = load_config(folder / "config.yaml", stored=True)
    record, rows = read_record(folder / "run.json"), read_rows(folder / "metrics.csv")
    if record.get("finished") is not None:
        check_unchanged(folder, record, "metrics.csv")
    last = {(row.policy, row.seed): 0 for row in rows}
    for row in rows:
        last[row.policy, row.seed] = max(last[row.policy, row.seed], row.round)
    whole = min(last.values(), default=-1)
    rows = [row for row in rows if row.round <= whole]
    if len(rows) != len(last) * (whole + 1) or not rows:
        raise UserError(f"{str(folder / 'metrics.csv')!r} holds no whole round of all policies.")
    return _Compared(folder, config, record, rows, True, name)


def _comparison(folder: Path) -> list[PagePart]:
    run = _compared(folder, folder.name)
    return _parts(run, _pictures(run.rows, run.config.learning.clients))


def _parts(run: _Compared, pictures: Mapping[str, bytes]) -> list[PagePart]:
    """Results, a round in motion, and how it was made."""
    from fedfade.experiments.figures import colour  # Matplotlib takes a second to import

    folder, config, record, rows, _, name = run
    policies, of = policies_of(rows), f"{name}: " if name else ""
    colours = {policy: colour(policy, policies) for policy in policies}
    about = {policy: _about(policy, record) for policy in policies}
    order, clients = ranked(rows), config.learning.clients
    text = {
        "setting": _setting(config, rows),
        "headline": [*headline(rows, order, clients), *filter(None, [genie_line(rows)])],
        "cards": cards(rows, order, clients),
        "columns": shown(rows),
        "lines": ranking(rows, order, record.get("scopes") or {}, about),
        "left_out": left_out_lines(rows),
        "pictures": [(*_PICTURES[key], png_source(png)) for key, png in pictures.items()],
    }
    names = [place.policy for place in order] + [GENIE] * (GENIE in policies)
    data = explored(rows, names, config, colours, about)
    parts = [PagePart("comparison", name or "Results", text, data)]
    with suppress(UserError):  # agents that were moved, say: there is a report all the same
        parts += _watched(run, order, f"{of}One round, slot by slot")
    return [*parts, PagePart("made", f"{of}How this was made", _made(folder, record))]


def _setting(config: Config, rows: Sequence[Row]) -> str:
    learning, radio, run = config.learning, config.radio, config.run
    done = int(max(row.round for row in rows)) + 1
    partly = f" of which {done} {'is' if done == 1 else 'are'} done" if done < run.rounds else ""
    text = (
        f"{counted(learning.clients, 'client')}, {counted(radio.subbands, 'sub-band')}, "
        f"{counted(radio.slots, 'slot')} a round, {counted(run.rounds, 'round')}{partly}, "
        f"{counted(run.seeds, 'seed')}, data {learning.data}, mobility {config.cell.mobility}, "
        f"fading {radio.source}"
    )
    return f"{text} with {radio.clusters} clusters" if radio.source == "clustered" else text


def _about(policy: str, record: Mapping[str, Any]) -> str:
    """A policy in a phrase: the bounds', what the run noted, or what our own says of itself."""
    noted = _BOUNDS.get(policy) or (record.get("about") or {}).get(policy)
    return noted or described(POLICIES.own(policy.partition("@")[0]))


def _watched(run: _Compared, order: Sequence[Place], title: str) -> list[PagePart]:
    """A typical round of the best policy beside another, if it can be played again."""
    folder, config, record, rows, foreign, _ = run
    known = {*compared_names(config)} - {PERFECT}
    lines = [place.line for place in order if place.policy in known]
    names = [line.policy for line in lines]
    if not (folder / "gradients.npz").is_file() or not names:
        return []
    if config.radio.slots * config.learning.clients > _WATCHED:
        return []
    chosen = [names[0], *[n for n in (_BESIDE, *names) if n in names[1:]][:1]]
    if foreign:
        check_unchanged(folder, record, *RESULTS)
        for name in chosen:
            check_inputs(folder, config, record, name)
        named = [config.radio.source, *config.allocation.observe, *chosen]
        if any(":" in one for one in named) or {*chosen} & {*agents.trained_agents(config)}:
            return []
    own = [row for row in rows if (row.policy, row.seed) == (names[0], config.run.seed)]
    middle = max(row.round for row in own) / 2
    typical = min(own, key=lambda r: (abs(r.delivered - lines[0].uploads), abs(r.round - middle)))
    replay = played_again(folder, config, rows, chosen, config.run.seed, typical.round)
    return [round_part(replay, title, picture=None)]


def _made(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    made = (
        f"fedfade {record.get('fedfade')}, commit {record.get('commit') or 'unknown'}, "
        f"torch {record.get('torch')}, {record.get('device')}, started {record.get('started')}"
    )
    config = read_bytes(folder / "config.yaml", _CONFIG_BYTES).decode(errors="replace")
    return {"command": str(record.get("command")), "made": made, "config": config}


def _pictures(rows: Sequence[Row], clients: int) -> dict[str, bytes]:
    """What is shown without JavaScript, as PNG."""
    from fedfade.experiments import figures  # Matplotlib takes a second to import

    drawn = {
        "accuracy": figures.accuracy_figure(rows),
        **{f"accuracy-{name}": figures.accuracy_figure(rows, name) for name in spent(rows)},
        "uploads": figures.uploads_figure(rows, clients),
        "served": figures.served_figure(rows, clients),
        "waste": figures.waste_figure(rows),
    }
    pictures = {}
    for name, figure in drawn.items():
        figure.savefig(file := io.BytesIO(), dpi=150, format="png")
        pictures[name] = file.getvalue()
    return pictures


# --- several folders -----------------------------------------------------------------------------


def _overview(folders: Sequence[Path]) -> list[PagePart]:
    """All policies of all comparisons in one table, where there are several."""
    runs = [folder for folder in folders if (folder / "run.json").is_file()]
    if len(runs) < 2:
        return []
    tables = {folder.name: _compared(folder).rows for folder in runs}
    columns = {column.name: column for rows in tables.values() for column in shown(rows)}
    lines = [
        {"run": name, "policy": place.policy, "cells": cells(place.line, list(columns))}
        for name, rows in tables.items()
        for place in ranked(rows)
    ]
    return [PagePart("overview", "All runs", {"columns": list(columns.values()), "lines": lines})]


# --- a training ----------------------------------------------------------------------------------


def _training(folder: Path) -> list[PagePart]:
    """The learning curve of a training, all its seeds, or what a checkpoint without one says."""
    places = agents.trained_folders(folder)
    found = [agents.load_checkpoint(place) for place in places]
    config, total = found[0].config, found[0].config.qmix.episodes
    done = min(one.episodes for one in found)
    intro = (
        f"{config.qmix.algorithm.upper()} agents, {counted(len(places), 'seed')}: {done} of "
        f"{counted(total, 'episode')}, {counted(config.learning.clients, 'client')}, "
        f"{counted(config.radio.subbands, 'sub-band')}, {counted(config.radio.slots, 'slot')}."
    )
    curves = []
    with suppress(UserError):  # agents that come with the package have no curve
        curves = [agents.saved_curve(place) for place in places]
    length = min(map(len, curves), default=0)
    if not length:
        return [PagePart("chart", folder.name, {"intro": intro, "picture": None})]
    table = np.array([curve[:length] for curve in curves], float)  # [seed, batch, figure]
    blocks = np.array_split(table, min(length, _POINTS), axis=1)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # nothing in a block
        means = np.stack([np.nanmean(block, axis=1) for block in blocks], 1)
    labels = {
        "uploads": f"uploads a round, of {config.learning.clients}",
        "reward": "reward of an episode",
        "loss": "squared error of values",
        "q": "value of the joint action",
        "epsilon": "exploration",
        "accuracy": "test accuracy",
    }
    y = [
        {"name": name, "label": label, "digits": 3, "values": [means[:, :, column].tolist()]}
        for name, label in labels.items()
        if not np.isnan(means[:, :, column := agents.Report._fields.index(name)]).all()
    ]
    x = [{"name": "episodes", "label": "training episodes", "values": means[0, :, 0].tolist()}]
    line = {"name": config.qmix.algorithm, "colour": "#0077bb", "about": intro}
    data = {"file": "training", "kind": "seed", "lines": [line], "x": x, "y": y}
    return [PagePart("chart", folder.name, {"intro": intro, "picture": None}, data)]


def _sweep(folder: Path) -> list[PagePart]:
    from fedfade.experiments.sweep_figures import sweep_parts  # Matplotlib takes a second to import

    return sweep_parts(folder)


READERS: dict[str, Callable[[Path], list[PagePart]]] = {
    "run.json": _comparison,
    "checkpoint.json": _training,
    "seed-*/checkpoint.json": _training,
    "sweep.csv": _sweep,
}
"""What a folder is, by a file in it."""
