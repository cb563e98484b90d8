"""Radio: the cell, its fading, and the link from gains to bits.

Cell      where clients are, their large-scale gain                    [run, round, client]
Channel   small-scale gain, per slot and sub-band       [run, episode, slot, client, band]
OtherCells  what neighbouring cells add to the noise            [run, episode, slot, band]
sinr      how well the base station hears everybody                         [..., client]
Link      what gets through of a slot                                   [episode, client]

A `FadingSource` draws the small-scale gains. It and the `Link` are seams (`fedfade.seams`).
"""

from fedfade.radio.cell import Cell, LargeScale, Trajectory
from fedfade.radio.channel import Channel, SmallScale
from fedfade.radio.fading import FadingSource
from fedfade.radio.link import (
    coupling,
    db_to_linear,
    dbm_to_w,
    delivered_bits,
    noise_w,
    rate_bps,
    sinr,
)
from fedfade.radio.links import Link, LoadedLink, load_link
from fedfade.radio.microcell import LIGHT_MPS, path_loss_db
from fedfade.radio.other_cells import OtherCells
from fedfade.radio.rays import subcluster_sizes
from fedfade.radio.recording import Recording, import_drops, read_recording, sample_drops
from fedfade.radio.response import frequency_offsets
from fedfade.radio.statistics import RAYLEIGH, GainStatistics, gain_statistics
