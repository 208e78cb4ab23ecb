"""What a problem must satisfy, checked where it is made.

Assumes: whoever made the problem reads the message, so each names the array, the rule and the
value, and says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from search.errors import ProblemError

# Below this, sums of whole numbers in float64 are exact.
EXACT_LIMIT = 2.0**53


def cost_array(values: ArrayLike, label: str, ndim: int) -> np.ndarray:
    """Costs as a read-only float64 array that is neither empty, NaN nor -inf.

    Parameters
    ----------
    values
        The costs.
    label
        What to call their owner in a message.
    ndim
        How many dimensions they must have.
    """
    array = _float_array(values, f"the costs of {label}")
    if array.ndim != ndim or array.size == 0:
        raise ProblemError(
            f"the costs of {label} must be a non-empty array of {ndim} dimension(s), but have"
            f" shape {array.shape}; give one number per candidate{' pair' if ndim == 2 else ''}"
        )
    # One reduction instead of two: the minimum is NaN if anything is.
    least = float(array.min())
    if math.isnan(least) or least == -math.inf:
        raise ProblemError(
            f"the costs of {label} must be finite or +inf (forbidden), but one is {least};"
            " correct that cost"
        )
    return array


def node_costs(costs: Sequence[ArrayLike]) -> tuple[np.ndarray, ...]:
    """Costs of nodes as `cost_array` makes them; an array that nodes share is checked once."""
    return _each_once(costs, lambda array, node: cost_array(array, f"node {node}", 1))


def usage_arrays(usages: Sequence[ArrayLike]) -> tuple[np.ndarray, ...]:
    """Usages as read-only float64 arrays of whole numbers, fractions rounded up."""
    arrays = _each_once(usages, _usage_array)
    most = {id(array): float(array.max()) for array in arrays}
    if sum(most[id(array)] for array in arrays) >= EXACT_LIMIT:
        raise ProblemError(
            "the usages of all nodes must add up to less than 2**53 bytes, but do not;"
            " use a larger unit"
        )
    return arrays


def interval_pair(interval: tuple[int, int] | None, node: int) -> tuple[int, int] | None:
    """A half-open interval of whole time steps, or None."""
    if interval is None:
        return None
    start, end = (int(bound) for bound in interval)
    if start > end:
        raise ProblemError(
            f"the interval of node {node} must not end before it starts, but is"
            f" [{start}, {end}); swap its bounds, or give None for a node that is never live"
        )
    return start, end


def check_lengths(
    sizes: Sequence[int], usages: Sequence[np.ndarray], num_intervals: int, num_names: int
) -> None:
    """One entry per node, wherever entries are given.

    Parameters
    ----------
    sizes
        Candidates per node.
    usages
        Usage per candidate, per node, or nothing. [B]
    num_intervals, num_names
        How many of each there are.
    """
    for what, count in (
        ("usages", len(usages)),
        ("intervals", num_intervals),
        ("names", num_names),
    ):
        if count not in (0, len(sizes)):
            raise ProblemError(
                f"a problem needs {what} for all of its {len(sizes)} nodes or for none,"
                f" but has {count}; give one per node"
            )
    for node, usage in enumerate(usages):
        if usage.size != sizes[node]:
            raise ProblemError(
                f"node {node} has {sizes[node]} costs, but {usage.size} usages;"
                " give one usage per candidate"
            )


def check_edges(sizes: Sequence[int], edges: Sequence[tuple[int, int, tuple[int, ...]]]) -> None:
    """Edges join two different nodes, by a matrix of the right shape."""
    for source, target, shape in edges:
        if not (0 <= source < len(sizes) and 0 <= target < len(sizes)) or source == target:
            raise ProblemError(
                f"an edge must join two different nodes out of 0 to {len(sizes) - 1}, but one"
                f" joins {source} and {target}; add a cost that concerns one node to that node"
            )
        if shape != (sizes[source], sizes[target]):
            raise ProblemError(
                f"the matrix of edge {source}->{target} must be {sizes[source]} x {sizes[target]},"
                f" one entry per pair of candidates, but is {shape[0]} x {shape[1]};"
                " check the order of its nodes"
            )


def check_limit(limit: float | None, has_usages: bool) -> float | None:
    """A limit in whole bytes, at least 0, where there is something to limit."""
    if limit is None:
        return None
    if not has_usages:
        raise ProblemError(
            f"a usage limit needs usages, but there is a limit of {limit} bytes and no usages;"
            " give usages or drop the limit"
        )
    if not limit >= 0:
        raise ProblemError(
            f"the usage limit must be at least 0 bytes, but is {limit}; give None for no limit"
        )
    return None if limit == math.inf else float(math.floor(limit))


def _float_array(values: ArrayLike, label: str) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ProblemError(
            f"{label} must be numbers, but are not ({error}); give numbers"
        ) from error
    array.setflags(write=False)
    return array


def _each_once(
    values: Sequence[ArrayLike], check: Callable[[ArrayLike, int], np.ndarray]
) -> tuple[np.ndarray, ...]:
    """What `check` makes of every value and its position; it sees each distinct object once."""
    values = tuple(values)  # holds on to them: what is gone may leave its id to another
    checked: dict[int, np.ndarray] = {}
    for position, value in enumerate(values):
        if id(value) not in checked:
            checked[id(value)] = check(value, position)
    return tuple(checked[id(value)] for value in values)


def _usage_array(values: ArrayLike, node: int) -> np.ndarray:
    array = _float_array(values, f"the usages of node {node}")
    if array.ndim != 1 or array.size == 0:
        raise ProblemError(
            f"the usages of node {node} must be a non-empty array of 1 dimension, but have"
            f" shape {array.shape}; give one number per candidate"
        )
    if not (array.min() >= 0 and array.max() < math.inf):
        raise ProblemError(
            f"the usages of node {node} must be finite and at least 0 bytes, but range from"
            f" {array.min()} to {array.max()}; forbid a candidate by the cost +inf instead"
        )
    return _rounded_up(array)


def _rounded_up(array: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.ceil(array)
    if np.array_equal(rounded, array):
        return array
    rounded.setflags(write=False)
    return rounded
