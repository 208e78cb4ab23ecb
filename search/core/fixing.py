"""Candidates and pairs that no assignment cheaper than a known one can contain.

Models: prices on rows and messages along edges rewrite a core's cost, without changing that of any
assignment that fits by more than its unused room is worth, as a bound plus terms that are all at
least 0: one per candidate and one per pair (a reparametrisation). A pair whose own term, together
with the least that its candidates' other terms can be, exceeds what is left between bound and known
cost can go (reduced-cost fixing).
Assumes: the core has a node; messages come from whole passes of `search.core.messages`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from search.core.core import Core
from search.core.messages import NOISE, Messages, priced
from search.core.pricing import Pricing, proven
from search.problem.deadline import Deadline

# Moves of the prices, and passes of messages at the best ones.
PRICE_STEPS, FINAL_PASSES = 300, 50


class SeenEdge(NamedTuple):
    """An edge of a core as seen from its lower end, forbidden pairs included."""

    place: int
    source: int
    target: int
    matrix: np.ndarray


class Alive(Struct, frozen=True, kw_only=True):
    """What can be part of an assignment that costs no more than some cutoff.

    Parameters
    ----------
    bound
        No assignment that fits costs less.
    candidates
        Marks per candidate, node after node.
    pairs
        Marks per pair of every edge, in the order of `edges_of`.
    """

    bound: float
    candidates: np.ndarray
    pairs: tuple[np.ndarray, ...]

    @property
    def num_pairs(self) -> int:
        """How many pairs are left."""
        return sum(int(np.count_nonzero(p)) for p in self.pairs)


def edges_of(core: Core) -> Iterator[SeenEdge]:
    """Every edge once."""
    graph = core.graph
    sizes = graph.sizes.tolist()
    once = np.flatnonzero(graph.owners < graph.neighbours)
    columns = (once, graph.owners[once], graph.neighbours[once], graph.places[once])
    for index, source, target, place in zip(*(c.tolist() for c in columns), strict=True):
        shape = sizes[source], sizes[target]
        matrix = graph.matrices[place : place + shape[0] * shape[1]].reshape(shape)
        yield SeenEdge(index, source, target, matrix)


def best_prices(core: Core, known_cost: float, deadline: Deadline) -> np.ndarray:
    """Prices per row at which the bound is about as good as prices can make it.

    Parameters
    ----------
    core
        The core.
    known_cost
        Cost of the best assignment known, +inf where there is none.
    deadline
        When to stop with the best prices so far.
    """
    pricing = Pricing(core)
    for _ in range(PRICE_STEPS):
        if pricing.settled or deadline.passed:
            break
        pricing.step(known_cost)
    return pricing.best_prices


def what_is_alive(core: Core, prices: np.ndarray, cutoff: float) -> Alive:
    """Mark the candidates and pairs that can be part of what costs no more than the cutoff.

    Parameters
    ----------
    core
        The core.
    prices
        Price per unit in every row, at least 0.
    cutoff
        The most that an assignment may cost.
    """
    free, nodes, edges = _rewritten(core, prices)
    # Terms of forbidden pairs are as large as the penalty, so rounding may be as well.
    noise = NOISE * core.penalty
    bound = proven(core, free, prices) - noise
    room = cutoff - bound + noise
    parts = np.split(nodes, core.graph.offsets[1:-1])
    least = [(t.min(axis=1), t.min(axis=0)) for _, t in edges]
    for (edge, _), (ahead, back) in zip(edges, least, strict=True):
        parts[edge.source] += ahead
        parts[edge.target] += back
    alive = [part <= room for part in parts]
    pairs = []
    for (edge, terms), (ahead, back) in zip(edges, least, strict=True):
        rest = parts[edge.source] - ahead, parts[edge.target] - back
        marks = (terms + rest[0][:, None] + rest[1] <= room) & (edge.matrix < core.penalty)
        pairs.append(marks)
        alive[edge.source] &= marks.any(axis=1)
        alive[edge.target] &= marks.any(axis=0)
    # What went last may have been the last partner along an edge looked at before.
    for (edge, _), marks in zip(edges, pairs, strict=True):
        marks &= alive[edge.source][:, None] & alive[edge.target]
    return Alive(bound=bound, candidates=np.concatenate(alive), pairs=tuple(pairs))


def _rewritten(
    core: Core, prices: np.ndarray
) -> tuple[float, np.ndarray, list[tuple[SeenEdge, np.ndarray]]]:
    """The least that all costs at these prices come to, and terms that are at least 0.

    After a pass to lower nodes, a term of an edge is at least 0 once it gets the share of what its
    higher end has gathered that went into the message to its lower end.
    """
    graph = core.graph
    costs = priced(graph.offsets, core.costs, core.holdings, prices)
    messages = Messages(core)
    messages.passes(costs, FINAL_PASSES)
    owners = graph.owners
    places = messages.places.tolist()
    came = [messages.values[a:b] for a, b in itertools.pairwise(places)]
    parts = np.split(costs.copy(), graph.offsets[1:-1])
    for owner, message in zip(owners.tolist(), came, strict=True):
        parts[owner] += message
    least = [float(part.min()) for part in parts]
    for part, low in zip(parts, least, strict=True):
        part -= low
    edges = []
    for edge in edges_of(core):
        mirror = int(graph.mirrors[edge.place])
        given = messages.shares[edge.target] * parts[edge.target] - came[mirror]
        terms = edge.matrix - came[edge.place][:, None] + given
        least.append(float(terms.min()))
        edges.append((edge, terms - least[-1]))
    lower = np.bincount(owners, weights=graph.neighbours < owners, minlength=core.num_nodes)
    kept = np.repeat(1.0 - messages.shares * lower, graph.sizes)
    return math.fsum(least), np.concatenate(parts) * kept, edges
