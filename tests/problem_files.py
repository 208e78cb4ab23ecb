"""Small problem files in the contest's form, good ones and every kind of bad one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

Content = dict[str, Any]

# Worked by hand: the cheapest pair, (1, 0), costs 5 + 1 + 2 = 8 but uses 9 at time 3; of those
# that stay within 8, (0, 1) is the cheapest at 1 + 7 + 4 = 12, using 3 + 5.
BEST_CHOICES, BEST_COST, BEST_PEAK = [0, 1], 12, 8


def small() -> Content:
    """Two nodes that are live together at time 3 only, one that never is, and an edge."""
    return {
        "problem": {
            "name": "small",
            "nodes": {
                "intervals": [[0, 4], [3, 9], []],
                "costs": [[1, 5], [1, 7, 10**18], [0]],
                "usages": [[3, 4], [5, 5, 0], [1000]],
            },
            "edges": {"nodes": [[1, 0]], "costs": [[20, 2, 4, 9, 0, 0]]},
            "usage_limit": 8,
        }
    }


def changed(change: Callable[[Content], object]) -> bytes:
    """The small file after a change of its inner object."""
    content = small()
    change(content["problem"])
    return json.dumps(content).encode()


def put(*path: str | int, value: Any) -> bytes:
    """The small file with another value at a place."""

    def change(inner: Content) -> None:
        place: Any = inner
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return changed(change)


GOOD = json.dumps(small()).encode()
ZIPPED = gzip.compress(GOOD)

# What is wrong, the file, and what the message must say of it.
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "must be JSON"),
    "no JSON": (b"nodes: 3", "must be JSON"),
    "cut": (GOOD[: len(GOOD) // 2], "truncated"),
    "more after the end": (GOOD + b"{}", "trailing"),
    "brackets without end": (b'{"problem":{"more":' + b"[" * 100_000, "must be JSON"),
    "another encoding": (GOOD.decode().encode("utf-16"), "must be JSON"),
    "gzip cut": (ZIPPED[: len(ZIPPED) // 2], "cut short or damaged"),
    "gzip by its first bytes only": (b"\x1f\x8b" + GOOD, "cut short or damaged"),
    "gzip of another sum": (ZIPPED[:-8] + b"\0" * 8, "cut short or damaged"),
    "gzip of no JSON": (gzip.compress(b"nothing"), "must be JSON"),
    "a list": (b"[]", "at the top"),
    "another object": (b"{}", "missing required field `problem`"),
    "no nodes": (changed(lambda p: p.pop("nodes")), "missing required field `nodes`"),
    "no edges": (changed(lambda p: p.pop("edges")), "missing required field `edges`"),
    "no usages": (changed(lambda p: p["nodes"].pop("usages")), "at problem.nodes"),
    "costs are no list": (put("nodes", "costs", value=5), "at problem.nodes.costs"),
    "edges are a list": (put("edges", value=[]), "at problem.edges"),
    "no node at all": (
        put("nodes", value={"intervals": [], "costs": [], "usages": []}),
        "at least one node",
    ),
    "too few intervals": (put("nodes", "intervals", value=[[0, 1]]), "as many intervals as nodes"),
    "too many usages": (put("nodes", "usages", value=[[1]] * 4), "that is 3, but there are 4"),
    "too few edge costs": (put("edges", "costs", value=[]), "as many lists of costs as edges"),
    "usages of one candidate too few": (put("nodes", "usages", 1, value=[5, 5]), "2 usages"),
    "no candidates": (put("nodes", "costs", 2, value=[]), "costs of node 2"),
    "no usages of a node": (put("nodes", "usages", 2, value=[]), "usages of node 2"),
    "matrix too short": (put("edges", "costs", 0, value=[1] * 5), "edge 0 from node 1 to node 0"),
    "matrix empty": (put("edges", "costs", 0, value=[]), "costs of edge 0"),
    "matrix not flat": (put("edges", "costs", 0, value=[[1, 2, 3], [4, 5, 6]]), "one is [1, 2, 3]"),
    "edge to no node": (put("edges", "nodes", 0, value=[1, 3]), "nodes of edge 0"),
    "edge from no node": (put("edges", "nodes", 0, value=[-1, 0]), "but are [-1, 0]"),
    "edge to itself": (put("edges", "nodes", 0, value=[1, 1]), "two different ones"),
    "edge of three nodes": (put("edges", "nodes", 0, value=[0, 1, 2]), "nodes of edge 0"),
    "edge by name": (put("edges", "nodes", 0, value=["a", "b"]), 'one is "a"'),
    "interval backwards": (put("nodes", "intervals", 1, value=[9, 3]), "interval of node 1"),
    "interval before the start": (put("nodes", "intervals", 1, value=[-1, 3]), "[-1, 3]"),
    "interval of one bound": (put("nodes", "intervals", 1, value=[3]), "interval of node 1"),
    "interval over 64 bits": (put("nodes", "intervals", 1, value=[0, 2**63]), "end < 2**63"),
    "interval of nothing": (put("nodes", "intervals", 1, value=None), "they are null"),
    "fraction": (put("nodes", "costs", 0, value=[1, 1.5]), "one is 1.5"),
    "exponent": (put("nodes", "costs", 0, value=[1, 1e18]), "without a fraction"),
    "truth": (put("nodes", "costs", 0, value=[1, True]), "one is true"),
    "text": (put("nodes", "usages", 0, value=["much", 4]), 'one is "much"'),
    "null": (put("edges", "costs", 0, 3, value=None), "costs of edge 0"),
    "text that is long": (put("nodes", "costs", 0, value="x" * 5000), "xxx..."),
    "text in another encoding": (GOOD.replace(b"1000]", b'"\xff"]'), "usages of node 2"),
    "name in another encoding": (GOOD.replace(b"small", b"\xff"), "must be JSON"),
    "thousands of digits": (GOOD.replace(b"1000]", b"9" * 5000 + b"]"), "usages of node 2"),
    "thousands of digits by exponent": (GOOD.replace(b"1000]", b"1e4005]"), "usages of node 2"),
    "NaN": (put("nodes", "costs", 0, value=[1, float("nan")]), "must be JSON"),
    "cost over 64 bits": (put("nodes", "costs", 0, value=[1, 2**63]), "64 bits"),
    "cost under 64 bits": (put("nodes", "costs", 0, value=[1, -(2**70)]), "costs of node 0"),
    "cost that float64 lacks": (put("nodes", "costs", 0, value=[1, 2**53 + 1]), "below 2**53"),
    "cost just not forbidden": (put("edges", "costs", 0, 0, value=10**18 - 1), "edge 0"),
    "usage below 0": (put("nodes", "usages", 0, value=[3, -4]), "usages of node 0"),
    "usage that float64 lacks": (put("nodes", "usages", 0, value=[3, 2**53]), "below 2**53"),
    "usage that would forbid": (put("nodes", "usages", 0, value=[3, 10**18]), "usages of node 0"),
    "limit below 0": (put("usage_limit", value=-1), "usage limit"),
    "limit over 64 bits": (put("usage_limit", value=10**400), "2**63 - 1"),
    "limit with a fraction": (put("usage_limit", value=8.5), "at problem.usage_limit"),
    "name is a number": (put("name", value=3), "at problem.name"),
}
