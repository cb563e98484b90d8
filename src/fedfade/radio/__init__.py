"""Radio: the cell, its fading, and the link from gains to bits.

Cell      where clients are, their large-scale gain                    [run, round, client]
Channel   small-scale gain, per slot and sub-band       [run, episode, slot, client, band]
sinr, rate_bps, delivered_bits    what the base station hears, and gets      [..., client]
"""

from fedfade.radio.cell import Cell, Place, Trajectory
from fedfade.radio.channel import Channel
from fedfade.radio.link import (
    db_to_linear,
    dbm_to_w,
    delivered_bits,
    noise_w,
    rate_bps,
    received_w,
    sinr,
)
from fedfade.radio.scenario import path_loss_db

__all__ = [
    "Cell",
    "Channel",
    "Place",
    "Trajectory",
    "db_to_linear",
    "dbm_to_w",
    "delivered_bits",
    "noise_w",
    "path_loss_db",
    "rate_bps",
    "received_w",
    "sinr",
]
