"""The work of attention that runs as one kernel, from the two products that it is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from costmodels.compute import Work


def fused_attention(
    scores: Work, values: Work, *, keys: ArrayLike, shared: ArrayLike = 1
) -> list[Work]:
    """One kernel in place of the products of scores and of weighted values.

    All of the backward pass is one, too: it is that for the data, and none is left for weights.

    Parameters
    ----------
    scores, values
        The two products of one pass: queries by the keys that they see, contracted over a head's
        features, and by the features of its values.
    keys
        Keys of a sequence, seen or not. [items]
    shared
        Heads that share one head of keys and values. [items]
    """
    if scores.direction == "backward_weight":
        return []
    length = np.asarray(keys, dtype=float)
    return [
        Work(
            operation="attention",
            direction="forward" if scores.direction == "forward" else "backward",
            samples=scores.samples,
            channels=scores.channels,
            filters=values.filters,
            in_extents=(length,),
            out_extents=scores.out_extents,
            groups=np.asarray(shared, dtype=float),
            visible=np.minimum(scores.filters / length, 1.0),
        )
    ]
