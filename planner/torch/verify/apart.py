"""How far tensors are from those of one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor


def farthest(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[float, float, str]:
    """The largest difference, the largest number of `theirs`, and what differs most.

    A tensor that is missing, or holds what is no number, is infinitely far: the largest of several
    numbers is otherwise any of them where one of them is NaN.
    """
    rows = {
        name: _largest_of(mine[name].detach() - one.detach()) if name in mine else math.inf
        for name, one in theirs.items()
    }
    worst = max(rows, key=lambda name: rows[name])
    return rows[worst], max(_largest_of(one.detach()) for one in theirs.values()), worst


def _largest_of(tensor: Tensor) -> float:
    found = float(tensor.abs().max())
    return math.inf if math.isnan(found) else found
