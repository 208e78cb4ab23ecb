"""What a solution of a contest file costs and uses, in whole numbers of any size.

Models: the contest's rules, from the raw JSON and with Python's own integers: the costs of nodes
and edges are added, a node's usage counts from the start of its interval to just before its end.
Assumes: nothing of `search`, whose answers this checks; it shares no code with it.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

FORBIDDEN = 10**18
# costs up to here are exact in float64; beyond it they may differ in the last digits
EXACT = 2**53

Raw = dict[str, Any]


def read_raw(path: Path) -> Raw:
    """The problem of a file, plain or gzipped, as Python's own lists."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    problem: Raw = json.loads(data)["problem"]
    return problem


def cost_of(problem: Raw, choices: Sequence[int]) -> int:
    """The cost of a solution; FORBIDDEN or more if it contains what is forbidden."""
    costs = problem["nodes"]["costs"]
    if len(choices) != len(costs):
        raise ValueError(f"the solution has {len(choices)} choices for {len(costs)} nodes")
    for node, choice in enumerate(choices):
        if not 0 <= choice < len(costs[node]):
            raise ValueError(f"node {node} has no candidate {choice}")
    terms = [costs[node][choice] for node, choice in enumerate(choices)]
    edges = problem["edges"]
    for (source, target), matrix in zip(edges["nodes"], edges["costs"], strict=True):
        terms.append(matrix[choices[source] * len(costs[target]) + choices[target]])
    # costs below zero could hide a forbidden one in the sum
    return max(terms) if max(terms) >= FORBIDDEN else sum(terms)


def peak_of(problem: Raw, choices: Sequence[int]) -> int:
    """The most that a solution uses at any time step. [B]"""
    change: dict[int, int] = {}
    nodes = problem["nodes"]
    for interval, usages, choice in zip(nodes["intervals"], nodes["usages"], choices, strict=True):
        if interval and interval[0] < interval[1]:
            start, end = interval
            change[start] = change.get(start, 0) + usages[choice]
            change[end] = change.get(end, 0) - usages[choice]
    return max(accumulate(change[step] for step in sorted(change)), default=0)


def disagreements(
    problem: Raw,
    choices: Sequence[int],
    *,
    cost: float,
    bound: float,
    peak: float,
    trace: Sequence[tuple[float, float, float]] = (),
    feasible: int | None = None,
) -> list[str]:
    """What is wrong with an answer; nothing if all is right.

    Parameters
    ----------
    problem
        The raw problem.
    choices
        The candidate of each node.
    cost, bound, peak
        What the solver says of them; of the peak: [B]
    trace
        What it said while it ran: seconds, cost and bound.
    feasible
        A cost that others are known to have reached.
    """
    try:
        true_cost, true_peak = cost_of(problem, choices), peak_of(problem, choices)
    except ValueError as error:
        return [str(error)]
    limit = problem.get("usage_limit")
    wrong = []
    if true_cost >= FORBIDDEN:
        return ["the solution contains what is forbidden"]
    if not _equal(cost, true_cost):
        wrong.append(f"the cost is {true_cost}, not {cost:.17g}")
    if not _equal(peak, true_peak):
        wrong.append(f"the peak usage is {true_peak} B, not {peak:.17g} B")
    if limit is not None and true_peak > limit:
        wrong.append(f"the peak usage of {true_peak} B exceeds the limit of {limit} B")
    reached = min([true_cost, *([] if feasible is None else [feasible])])
    highest = max([bound, *(point[2] for point in trace)])
    if highest > reached and not _equal(highest, reached):
        wrong.append(f"the bound of {highest:.17g} lies above the cost of {reached} that is known")
    lowest = min((point[1] for point in trace), default=math.inf)
    if lowest < true_cost and not _equal(lowest, true_cost):
        wrong.append(f"a cost of {lowest:.17g} was announced, but {true_cost} was returned")
    return wrong


def _equal(said: float, true: int) -> bool:
    if math.isfinite(said) and abs(true) >= EXACT:
        return math.isclose(said, true, rel_tol=1e-12)
    return said == true
