"""How long a client-round of fading takes, and how much memory a batch needs.

A client-round is the gain of one client over one round: 250 slots x 4 sub-bands. The batch is what
training asks for: 20 episodes of one round, 10 clients each.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedfade.bench import machine, median_cpu_ms
from fedfade.config import CellConfig, RadioConfig
from fedfade.radio import Cell, Channel, frequency_offsets

_CLIENTS, _EPISODES = 10, 20


def measure(repeats: int = 15, clusters: int = 21, sionna: bool = True) -> dict[str, object]:
    """Median CPU time per client-round on one thread, and the memory of a batch of 200."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = _ours(repeats, clusters)
        if sionna:
            figures |= _sionna(max(3, repeats // 3))
        return figures | machine()
    finally:
        torch.set_num_threads(threads)


def _ours(repeats: int, clusters: int) -> dict[str, object]:
    radio, cell = RadioConfig(clusters=clusters), CellConfig()
    client_rounds = _CLIENTS * _EPISODES
    place = Cell(cell, radio, _CLIENTS)
    trajectory = place.trajectory([0], 1)

    def batch(settings: RadioConfig) -> Callable[[], object]:
        channel = Channel(settings, cell, _CLIENTS)
        return lambda: channel.small_scale_gain([0], 0, range(_EPISODES), trajectory)

    before = _resident_mb()
    batch(radio)()  # first of all, so that the peak is this batch's
    memory = _peak_mb() - before
    centre = radio.model_copy(update={"subband_gain": "centre"})
    standard = radio.model_copy(update={"cluster_draw": "tr38901"})
    return {
        "ms_per_client_round": median_cpu_ms(batch(radio), repeats) / client_rounds,
        "ms_per_client_round_centre": median_cpu_ms(batch(centre), repeats) / client_rounds,
        "ms_per_client_round_tr38901": median_cpu_ms(batch(standard), repeats) / client_rounds,
        "memory_mb": memory,
        "client_rounds": client_rounds,
        "slots": radio.slots,
        "subbands": radio.subbands,
        "subcarriers": radio.subcarriers,
        "clusters": clusters,
        "repeats": repeats,
    }


def _sionna(repeats: int) -> dict[str, object]:
    """The same gains from Sionna, where it is installed: its UMi model has 19 clusters."""
    if importlib.util.find_spec("sionna") is None:
        return {"sionna": None}
    import sionna
    from sionna.phy.channel import cir_to_ofdm_channel

    radio = RadioConfig()
    client_rounds = 20
    model = _sionna_model(radio, client_rounds)
    frequencies = frequency_offsets(radio)

    def batch() -> object:
        coefficients, delays = model(radio.slots, 1.0 / radio.slot_s)
        response = cir_to_ofdm_channel(frequencies.flatten(), coefficients, delays)
        energy = torch.view_as_real(response).square().sum(-1)
        return energy.reshape(*energy.shape[:-1], *frequencies.shape).mean(-1)

    batch()
    return {
        "sionna": sionna.__version__,
        "sionna_ms_per_client_round": median_cpu_ms(batch, repeats) / client_rounds,
        "sionna_client_rounds": client_rounds,
        "sionna_clusters": 19,
    }


def _sionna_model(radio: RadioConfig, client_rounds: int) -> Any:
    from sionna.phy.channel.tr38901 import PanelArray, UMi

    antenna = PanelArray(
        num_rows_per_panel=1,
        num_cols_per_panel=1,
        polarization="single",
        polarization_type="V",
        antenna_pattern="omni",
        carrier_frequency=radio.carrier_hz,
    )
    model = UMi(
        carrier_frequency=radio.carrier_hz,
        o2i_model="low",
        ut_array=antenna,
        bs_array=antenna,
        direction="uplink",
        enable_pathloss=False,
        enable_shadow_fading=False,
    )
    cell = Cell(CellConfig(placement="redraw"), radio, 1)
    place = cell.trajectory(range(client_rounds), 1).at(0)
    flat = torch.zeros(client_rounds, 1, 3)
    client, base = flat.clone(), flat.clone()
    client[..., :2] = place.position
    client[..., 2], base[..., 2] = 1.5, 10.0
    velocity = flat.clone()
    velocity[..., 0] = radio.speed_mps * torch.cos(place.heading_rad)
    velocity[..., 1] = radio.speed_mps * torch.sin(place.heading_rad)
    indoors = torch.zeros(client_rounds, 1, dtype=torch.bool)
    model.set_topology(client, base, flat, flat, velocity, indoors, los=False)
    return model


def _peak_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    # On Linux ru_maxrss of a new process begins at the peak of the one that started it.
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return _peak_mb()
    return pages * resource.getpagesize() / 2**20
