"""How well predictions order plans, what the choice by them costs, and how far off they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share their mean rank.

    Parameters
    ----------
    first, second
        Two values of each thing.
    """
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (first, second)]
    apart = [rank - rank.mean() for rank in ranks]
    norm = float(np.sqrt((apart[0] ** 2).sum() * (apart[1] ** 2).sum()))
    return float((apart[0] * apart[1]).sum()) / norm if norm else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, number, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2.0)[number]


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much slower the plan that is predicted to be fastest is than the fastest one.

    Parameters
    ----------
    predicted, measured
        Steps of some plans of one question. [s]
    """
    chosen = min(range(len(predicted)), key=predicted.__getitem__)
    return measured[chosen] / min(measured) - 1.0


def mean_relative_error(pairs: Sequence[tuple[float, float]]) -> float:
    """Mean relative error of (predicted, measured) pairs, without signs."""
    return sum(abs(predicted / measured - 1.0) for predicted, measured in pairs) / len(pairs)
