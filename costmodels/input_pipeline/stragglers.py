"""How long the slowest of many takes when each takes a random time.

A synchronous step waits for the last loader. Times are taken to be independent and normal.
"""

from __future__ import annotations

from statistics import NormalDist

from costmodels.errors import InputError


def expected_slowest(mean: float, variation: float, count: int) -> float:
    """Expected largest of many normal times. [s]

    The largest order statistic by Blom's approximation, `mean (1 + cv Phi^-1((n - 3/8) /
    (n + 1/4)))` (Blom 1958, "Statistical Estimates and Transformed Beta-Variables"), within
    0.03 standard deviations of the true value up to ten thousand.

    Parameters
    ----------
    mean
        Mean time of one. [s]
    variation
        Its coefficient of variation: the standard deviation as a part of the mean.
    count
        How many there are. [items]
    """
    if count < 1 or variation < 0:
        raise InputError(
            "the slowest needs at least 1 loader and a variation of at least 0 but has "
            f"{count} and {variation:g}; correct them"
        )
    return mean * (1.0 + variation * NormalDist().inv_cdf((count - 0.375) / (count + 0.25)))
