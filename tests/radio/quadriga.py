"""QuaDRiGa 2.8.1 reference statistics: 3.5 GHz, 18.12 m/s, 250 slots of 2 ms, four 5 MHz bands.

Taken from 600 drops each in its default mode (3GPP_38.901_UMi_NLOS), gains divided by the mean
power after polarisation loss. Independent sets of 600 drops differ by about 0.04 at lag 1.
"""

from fedfade.radio.statistics import LAGS, PERCENTS, GainStatistics

# (clusters, sub-band gain): std in dB, percentiles in dB, autocorrelation, band correlation
_NUMBERS = {
    (14, "centre"): (
        5.56, (-20.0, -9.7, -1.6, 3.6, 6.6), (0.252, 0.127, 0.063, 0.028), (0.231, 0.110, 0.050)
    ),
    (14, "average"): (
        3.48, (-11.0, -5.7, -0.9, 2.9, 5.7), (0.316, 0.157, 0.074, 0.030), (0.451, 0.196, 0.090)
    ),
    (21, "centre"): (
        5.58, (-20.0, -9.8, -1.6, 3.6, 6.6), (0.242, 0.126, 0.063, 0.025), (0.205, 0.096, 0.037)
    ),
    (21, "average"): (
        3.46, (-11.0, -5.7, -0.9, 2.9, 5.7), (0.304, 0.155, 0.074, 0.030), (0.429, 0.170, 0.074)
    ),
    (28, "centre"): (
        5.58, (-20.0, -9.8, -1.6, 3.6, 6.6), (0.206, 0.104, 0.055, 0.022), (0.190, 0.082, 0.030)
    ),
    (28, "average"): (
        3.43, (-11.0, -5.6, -0.9, 2.9, 5.7), (0.257, 0.126, 0.060, 0.027), (0.405, 0.149, 0.059)
    ),
}  # fmt: skip

REFERENCE = {
    key: GainStatistics(
        mean=1.0,
        std_db=std,
        percentiles_db=dict(zip(PERCENTS, percentiles, strict=True)),
        autocorrelation=dict(zip(LAGS, lags, strict=True)),
        band_correlation=dict(zip((1, 2, 3), bands, strict=True)),
    )
    for key, (std, percentiles, lags, bands) in _NUMBERS.items()
}

SLOWER = {7.67: {1: 0.70, 2: 0.30, 5: 0.10}, 3 / 3.6: {1: 0.996, 2: 0.983, 5: 0.896}}
"""Autocorrelation at the sub-band centre for slower clients, by speed in m/s and lag."""
