"""Problems and solutions as the contest's files hold them; see `search.files.contest` for the form.

Assumes: whoever writes a problem whose costs are no whole numbers says what one step is worth; the
form has no place for that but the name.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from search.errors import ProblemError
from search.files.contest import FORBIDDEN
from search.problem import Problem
from search.problem.checks import EXACT_LIMIT


def finest_unit(problem: Problem) -> float:
    """The finest power of ten in which costs can be counted so that their sums stay exact."""
    arrays = [*problem.costs, *(edge.matrix for edge in problem.edges)]
    most = {id(a): float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays}
    total = math.fsum(most[id(a)] for a in arrays)
    if total == 0.0:
        return 1.0
    # half of what is exact: rounding adds up to half a step for every term
    exponent = math.ceil(math.log10(total) - math.log10(EXACT_LIMIT / 2))
    return float(f"1e{max(exponent, -300)}")


def problem_bytes(
    problem: Problem, *, name: str, unit: float = 1.0, compressed: bool = False
) -> bytes:
    """A problem in the contest's form; names of nodes have no place in it.

    Times are moved so that none is below 0. A node that is never live has the interval [0, 0].

    Parameters
    ----------
    problem
        The problem.
    name
        What to call it; should say the unit of the costs.
    unit
        What one whole step of the file's costs is worth; costs are rounded to the nearest.
    compressed
        Whether to gzip.

    Raises
    ------
    ProblemError
        When the unit is too small for the costs, or no unit at all.
    """
    if not 0.0 < unit < math.inf:
        raise ProblemError(
            f"the unit of costs must be above 0 and finite, but is {unit}; give what one step is"
            " worth"
        )
    texts: dict[int, msgspec.Raw] = {}

    def text(array: np.ndarray, unit: float, label: str) -> msgspec.Raw:
        if id(array) not in texts:
            texts[id(array)] = msgspec.Raw(msgspec.json.encode(_steps(array, unit, label)))
        return texts[id(array)]

    costs = [text(c, unit, f"costs of node {v}") for v, c in enumerate(problem.costs)]
    matrices = [text(e.matrix, unit, f"costs of edge {i}") for i, e in enumerate(problem.edges)]
    texts.clear()  # an array of costs may also be one of usages, in another unit
    unused = tuple(np.zeros(size) for size in problem.sizes)
    usages = problem.usages or unused
    limit = problem.usage_limit
    content = {
        "name": name,
        "nodes": {
            "intervals": _written_intervals(problem),
            "costs": costs,
            "usages": [text(u, 1.0, f"usages of node {v}") for v, u in enumerate(usages)],
        },
        "edges": {
            "nodes": [[edge.source, edge.target] for edge in problem.edges],
            "costs": matrices,
        },
        "usage_limit": None if limit is None else int(limit),
    }
    data = msgspec.json.encode({"problem": content}) + b"\n"
    # without the time of writing, so that equal problems have equal files
    return gzip.compress(data, mtime=0) if compressed else data


def _steps(array: np.ndarray, unit: float, label: str) -> list[int]:
    """Costs as whole steps, row by row."""
    allowed = np.isfinite(array)
    steps = np.rint(np.where(allowed, array, 0.0) / unit)
    if np.abs(steps).max() >= EXACT_LIMIT:
        raise ProblemError(
            f"the {label} must be less than 2**53 steps of {unit:g} each, but one is"
            f" {np.abs(steps).max():.3g}; use a larger unit"
        )
    whole: list[int] = np.where(allowed, steps, FORBIDDEN).astype(np.int64).ravel().tolist()
    return whole


def _written_intervals(problem: Problem) -> list[tuple[int, int]]:
    given = problem.intervals or ((0, 1),) * problem.num_nodes
    live = [None if i is None or i[0] == i[1] else i for i in given]
    shift = -min([0, *(i[0] for i in live if i is not None)])
    return [(0, 0) if i is None else (i[0] + shift, i[1] + shift) for i in live]


def solution_text(choices: Sequence[int]) -> str:
    """A solution as the contest wants it: the candidate of each node, as a JSON list."""
    return json.dumps(list(choices)) + "\n"
