"""How long a client-round of fading takes, and how much memory a batch needs.

A client-round is the gain of one client over one round: 250 slots x 4 sub-bands. The batch is what
training asks for: 20 episodes of one round, 10 clients each.
"""

import importlib.util
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedfade.bench.timing import Figures, machine, median_cpu_ms
from fedfade.config import CellConfig, RadioConfig
from fedfade.device import one_thread
from fedfade.radio import Cell, Channel, frequency_offsets

CLIENTS, EPISODES = 10, 20
SIONNA_CLIENT_ROUNDS = 20


@one_thread()
def measure(repeats: int = 15, clusters: int = 21) -> Figures:
    """Median CPU time per client-round on one thread, and the memory of a batch of 200."""
    radio, cell = RadioConfig(clusters=clusters), CellConfig()
    trajectory = Cell(cell, radio, CLIENTS).trajectory([0], 1)

    def batch(**changes: str) -> partial[torch.Tensor]:
        channel = Channel(radio.model_copy(update=changes), cell, CLIENTS)
        return partial(channel.small_scale_gain, [0], 0, range(EPISODES), trajectory)

    before = memory_mb()
    batch()()  # first of all, so that the peak is this batch's
    memory, client_rounds = memory_mb("VmHWM") - before, CLIENTS * EPISODES

    def ms(**changes: str) -> float:
        return median_cpu_ms(batch(**changes), repeats) / client_rounds

    return {
        "ms_per_client_round": ms(),
        "ms_per_client_round_centre": ms(subband_gain="centre"),
        "ms_per_client_round_tr38901": ms(cluster_draw="tr38901"),
        "memory_mb": memory,
        "client_rounds": client_rounds,
        "slots": radio.slots,
        "subbands": radio.subbands,
        "subcarriers": radio.subcarriers,
        "clusters": clusters,
        "repeats": repeats,
        **_sionna(max(3, repeats // 3)),
        **machine(),
    }


def _sionna(repeats: int) -> Figures:
    """The same gains from Sionna, where it is installed: its UMi model has 19 clusters."""
    if importlib.util.find_spec("sionna") is None:
        return {"sionna": None}
    import sionna
    from sionna.phy.channel import cir_to_ofdm_channel

    radio = RadioConfig()
    model = _sionna_model(radio)
    frequencies = frequency_offsets(radio)

    def batch() -> object:
        coefficients, delays = model(radio.slots, 1.0 / radio.slot_s)
        response = cir_to_ofdm_channel(frequencies.flatten(), coefficients, delays)
        energy = torch.view_as_real(response).square().sum(-1)
        return energy.reshape(*energy.shape[:-1], *frequencies.shape).mean(-1)

    return {
        "sionna": sionna.__version__,
        "sionna_ms_per_client_round": median_cpu_ms(batch, repeats) / SIONNA_CLIENT_ROUNDS,
        "sionna_client_rounds": SIONNA_CLIENT_ROUNDS,
        "sionna_clusters": 19,
    }


def _sionna_model(radio: RadioConfig) -> Any:
    from sionna.phy.channel.tr38901 import PanelArray, UMi

    kind = {"polarization": "single", "polarization_type": "V", "antenna_pattern": "omni"}
    carrier = {"carrier_frequency": radio.carrier_hz}
    antenna = PanelArray(num_rows_per_panel=1, num_cols_per_panel=1, **kind, **carrier)
    arrays = {"ut_array": antenna, "bs_array": antenna, "direction": "uplink"}
    losses = {"o2i_model": "low", "enable_pathloss": False, "enable_shadow_fading": False}
    model = UMi(**carrier, **arrays, **losses)
    cell = Cell(CellConfig(mobility="redraw"), radio, 1)
    place = cell.trajectory(range(SIONNA_CLIENT_ROUNDS), 1).at(0)
    flat = torch.zeros(SIONNA_CLIENT_ROUNDS, 1, 3)
    client, base = flat.clone(), flat.clone()
    client[..., :2] = place.position
    client[..., 2], base[..., 2] = 1.5, 10.0
    velocity = flat.clone()
    velocity[..., 0] = radio.speed_mps * torch.cos(place.heading_rad)
    velocity[..., 1] = radio.speed_mps * torch.sin(place.heading_rad)
    indoors = torch.zeros(SIONNA_CLIENT_ROUNDS, 1, dtype=torch.bool)
    model.set_topology(client, base, flat, flat, velocity, indoors, los=False)
    return model


def memory_mb(kind: str = "VmRSS") -> float:
    """Memory this process holds in RAM; its peak with `VmHWM`, and where there is no /proc.

    >>> 10 < memory_mb() <= memory_mb("VmHWM")
    True
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    # On Linux ru_maxrss of a new process begins at the peak of the one that started it.
    return int(status.split(f"{kind}:")[1].split()[0]) / 2**10
