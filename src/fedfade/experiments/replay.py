"""Play one round of a finished comparison again: as a picture, in motion, as a page to watch."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedfade.allocation import GENIE, PERFECT, History, described
from fedfade.config import Config, changed
from fedfade.device import one_thread
from fedfade.errors import not_allowed
from fedfade.experiments.comparison import compared_names, compared_policy, deliveries, stored_grams
from fedfade.experiments.metrics import Row, read_rows
from fedfade.experiments.run_folder import RESULTS, check_inputs, check_unchanged, open_finished
from fedfade.experiments.uploads import Uplink, ages_after
from fedfade.pages import PagePart
from fedfade.radio import Cell
from fedfade.style import shade
from fedfade.uplink import Scenario, mean_snr

_FADING_DB = (-20.0, 8.0)
"""The range of small-scale gains that a page tells apart."""


class ReplayedRound(NamedTuple):
    """A round as some policies played it, of one episode: the same gains for all."""

    config: Config
    seed: int
    number: int
    scenario: Scenario
    snr_db: list[float]  # [client] mean, at full power
    position: torch.Tensor  # [client, 2] in metres
    fading: torch.Tensor  # [slot, client, band]
    plays: dict[str, History]  # by policy
    about: dict[str, str]  # each of them in a phrase

    @property
    def name(self) -> str:
        return f"seed {self.seed}, round {self.number}"


def replayed(folder: Path, policies: Sequence[str], seed: int | None, number: int) -> ReplayedRound:
    """A round of a folder under some of its policies; without a seed, of the run's first."""
    config, record = open_finished(folder)
    sending = [name for name in compared_names(config) if name not in (PERFECT, GENIE)]
    for name in policies:
        if name not in sending:
            bound = " (this one is a bound and sends nothing)" if name in (PERFECT, GENIE) else ""
            raise not_allowed("--policy", name, f"one of {', '.join(sending)}{bound}")
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    seed = config.run.seed if seed is None else seed
    if seed not in seeds:
        raise not_allowed("--seed", seed, f"one of {', '.join(map(str, seeds))}")
    if not 0 <= number < config.run.rounds:
        raise not_allowed("--round", number, f"between 0 and {config.run.rounds - 1}")
    for name in policies:
        check_inputs(folder, config, record, name)
    check_unchanged(folder, record, *RESULTS)
    rows = read_rows(folder / "metrics.csv")
    return played_again(folder, config, rows, policies, seed, number)


def played_again(
    folder: Path,
    config: Config,
    rows: Sequence[Row],
    policies: Sequence[str],
    seed: int,
    number: int,
) -> ReplayedRound:
    """The same channel, gradients and policies as in the run, so the same round."""
    learning = [name for name in compared_names(config) if name != GENIE]
    inner, payload_bits = stored_grams(folder, config, len(learning))
    alone = changed(config, {"run.seed": seed, "run.seeds": 1})
    uplink = Uplink(alone, payload_bits, torch.device("cpu"))
    scenario, round_ = uplink.scenario, uplink.round(number)
    plays, about = {}, {}
    for name in policies:
        run = (seed - config.run.seed) * len(learning) + learning.index(name)
        before = [row for row in rows if row.round < number]
        age = ages_after(deliveries(before, seed, name), config.learning.clients)[None]
        policy = compared_policy(config, name)
        with one_thread():
            gram = torch.from_numpy(inner[run, number])[None]
            outcome = uplink.play(policy, number, gram, record=True, age=age)
        assert outcome.history is not None
        plays[name] = History(*(part[:, 0] for part in outcome.history))  # [slot, client]
        about[name] = described(policy)
    snr = mean_snr(scenario, round_)[0] * scenario.antennas
    cell = Cell(config.cell, config.radio, config.learning.clients)
    return ReplayedRound(
        *(config, seed, number, scenario, (10 * torch.log10(snr)).tolist()),
        *(cell.trajectory([seed], 1, number).position[0, 0], round_.fading[0], plays, about),
    )


def round_part(replay: ReplayedRound, title: str, picture: str | None) -> PagePart:
    """A round to watch; `picture` is shown without JavaScript."""
    text = {"round": replay.name, "policies": list(replay.plays), "picture": picture}
    return PagePart("round", title, text, _data(replay))


def _data(replay: ReplayedRound) -> dict[str, Any]:
    """A round for `round.js`; what there is much of, as bytes."""
    scenario, radio = replay.scenario, replay.config.radio
    low, high = _FADING_DB
    fading = 10 * torch.log10(replay.fading.clamp_min(1e-9))
    levels = [None if dbm <= -100 else dbm for dbm in radio.power_levels_dbm]
    return {
        "name": replay.name,
        "clients": scenario.clients,
        "bands": scenario.bands,
        "slots": scenario.slots,
        "slot_ms": 1000 * scenario.slot_s,
        "levels": levels,  # dBm; None is silence
        "colours": [shade(client) for client in range(scenario.clients)],
        "snr": [round(one, 1) for one in replay.snr_db],
        "place": replay.position.round().int().tolist(),
        "side": replay.config.cell.side_m,
        "fading_db": _FADING_DB,
        "fading": _bytes((fading - low) / (high - low) * 255),  # [slot, client, band]
        "plays": [
            {
                "policy": name,
                "about": replay.about[name],
                "band": _bytes(play.band),  # [slot, client]
                "level": _bytes(play.level),
                "left": _bytes(torch.ceil(255 * shares_left(play, scenario))),
            }
            for name, play in replay.plays.items()
        ],
    }


def shares_left(play: History, scenario: Scenario) -> torch.Tensor:
    """What each client has left to send after each slot, of 1: [slot, client]."""
    return (play.remaining_bits / scenario.payload_bits).clamp(0, 1)


def _bytes(numbers: torch.Tensor) -> str:
    """Whole numbers of 0 to 255 as base64."""
    small = numbers.round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(small.contiguous().numpy().tobytes()).decode("ascii")
