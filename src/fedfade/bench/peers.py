"""What other libraries do as well, beside them: one run, one table, one machine.

Figures come from the benchmark of each subject. A peer that is not installed leaves a row that says
what installs it.
"""

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import torch

from fedfade.bench import channel_speed, federated_round, flower_speed, qmix_speed
from fedfade.bench.timing import Figures, machine

HELD = {"decisions": "playing", "updates": "learning", "trained_decisions": "both"}
ENVIRONMENTS = {"batched_peer": "batched", "pettingzoo_peer": "one by one"}
"""How BenchMARL plays the same episodes: in our batched environment, or PettingZoo's."""


class PeerRow(NamedTuple):
    """One thing that both do; None for what was not measured."""

    measured: str
    unit: str  # a time or a rate
    ours: float | None
    peer: float | None
    who: str  # the peer with its version, or what installs it

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer fedfade is.

        >>> [PeerRow("", unit, 2.0, 6.0, "").ratio for unit in ("ms", "updates a second")]
        [3.0, 0.3333333333333333]
        """
        if self.ours is None or self.peer is None:
            return None
        return self.peer / self.ours if self.unit in ("s", "ms") else self.ours / self.peer


def measure(
    repeats: int = 15,
    rounds: int = 5,
    episodes: int = 100,
    threads: int = 1,
    paper: bool = False,
    tell: Callable[[PeerRow], None] = lambda row: None,
) -> Figures:
    """All rows, each told as soon as it is there; on a CPU."""
    found, before = [], logging.root.manager.disable
    logging.disable(logging.WARNING)  # peers tell what they do, some of it on standard output
    # Before anything else imports Flower, `_uplink` turns its telemetry off.
    parts = (_fading(repeats), _uplink(rounds), _round(repeats, threads))
    try:
        for row in chain(*parts, _agents(repeats, threads, episodes, paper)):
            tell(row)
            found.append({**row._asdict(), "ratio": row.ratio})
    finally:
        logging.disable(before)
    return {"rows": found, **machine()}


def _who(name: str, known: str | None, extra: str) -> str:
    return f"{name} {known}" if known else f"{name}, not installed: pip install 'fedfade[{extra}]'"


def _flower() -> str | None:
    return version("flwr") if find_spec("flwr") and find_spec("ray") else None


def _fading(repeats: int) -> Iterator[PeerRow]:
    found: dict[str, Any] = channel_speed.measure(repeats)
    ours, peer = (found.get(f"{whose}ms_per_client_round") for whose in ("", "sionna_"))
    who = _who("Sionna", found["sionna"], "sionna")
    yield PeerRow("fading of a client-round, CPU time", "ms", ours, peer, who)


def _uplink(rounds: int) -> Iterator[PeerRow]:
    found: dict[str, Any] = flower_speed.measure(rounds) if _flower() else {}
    who = _who("Flower", _flower(), "flower") + (" without uplink" if found else "")
    peer = found.get("fedavg_s_per_round")
    for side in ("server", "client"):
        ours = found.get(f"uplink_s_per_round decided by {side}")
        yield PeerRow(f"FedAvg with uplink, decided by the {side}", "s", ours, peer, who)


def _round(repeats: int, threads: int) -> Iterator[PeerRow]:
    device, flower = torch.device("cpu"), _flower()
    found: dict[str, Any] = federated_round.measure(repeats, device, flower is not None, threads)
    peers = {"plain_loop": f"plain loop, PyTorch {found['torch']}"}
    peers["flower"] = _who("Flower", flower, "flower")
    for name, who in peers.items():
        ours, peer = found["seconds_per_round"], found.get(f"{name}_seconds_per_round")
        yield PeerRow("federated round of the paper's CNN", "s", ours, peer, who)


def _agents(repeats: int, threads: int, episodes: int, paper: bool) -> Iterator[PeerRow]:
    found: dict[str, Any] = qmix_speed.train(repeats, threads, episodes, "cpu", paper)
    there = "held_batched_peer" not in found  # which says that it is absent
    who = _who("BenchMARL", version("benchmarl") if there else None, "peers")
    for start, what in {"collecting_": "playing", "": "both"}.items() if paper else ():
        ours, peer = (found.get(f"{whose}{start}transitions_per_s") for whose in ("", "peer_"))
        yield PeerRow(f"QMIX at the paper's sizes, {what}", "slots a second", ours, peer, who)
    for name, environment in ENVIRONMENTS.items():
        of = f"{who}, {environment}" if there else who
        for figure, what in HELD.items():
            ours, peer = found[f"held_{figure}_per_s"], found.get(f"held_{name}_{figure}_per_s")
            unit = f"{figure.rpartition('_')[2]} a second"
            yield PeerRow(f"QMIX with held decisions, {what}", unit, ours, peer, of)
