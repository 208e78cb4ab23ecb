"""Networks of operations over a mesh of devices, as problems of the contest's form.

Models: operations are iteration spaces over a mesh of two axes; a candidate says which dim each
axis splits, so that a tensor of rank r has up to (r + 1)**2 of them. Joining two operations costs
the bytes that a device receives to pass from one layout to the other, reducing over a split dim
costs an all-reduce, and element-wise operations are tied: other layouts than that of their operand
are forbidden. A backward pass and updates of the weights can follow, so that what is saved for it
is live for long. All numbers are whole, a forbidden one is 10**18.
Assumes: splitting the first dim along both axes is always possible and allowed. All operations can
then use the least they ever use at once, so the limit, a tenth above the least peak, can be met.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import prod
from typing import Any

FORBIDDEN = 10**18
MESHES = ((2, 2), (4, 2), (4, 4))
SLACK = (11, 10)  # limit over least peak, as in the contest's files

# the dim that each axis of the mesh splits, -1 for none
Layout = tuple[int, ...]
# which dim of the operation's iteration space each dim of a tensor is
View = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """What an operation reads; a tied operand must have the layout that is wanted of it."""

    node: int
    view: View
    tied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOperation:
    """An iteration space, the tensor that is made over some of its dims, and what is read."""

    dims: tuple[int, ...]
    out: View
    operands: tuple[Operand, ...]
    layouts: tuple[Layout, ...]

    @property
    def made(self) -> tuple[int, ...]:
        """Extents of the tensor that is made."""
        return tuple(self.dims[d] for d in self.out)


class MeshNetwork:
    """Operations in the order in which they run."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.mesh = self.random.choice(MESHES)
        self.operations: list[MeshOperation] = []

    def __len__(self) -> int:
        return len(self.operations)

    def made(self, node: int) -> tuple[int, ...]:
        """Extents of what an operation makes."""
        return self.operations[node].made

    def add(self, dims: Sequence[int], *operands: Operand, out: Sequence[int] | None = None) -> int:
        """An operation; `out` are the dims of what it makes, all of them if left out."""
        kept = tuple(range(len(dims)) if out is None else out)
        choices = product(range(-1, len(dims)), repeat=len(self.mesh))
        layouts = tuple(c for c in choices if self._divides(c, dims))
        assert (kept[0],) * len(self.mesh) in layouts, f"{dims} over {self.mesh}"
        self.operations.append(
            MeshOperation(dims=tuple(dims), out=kept, operands=operands, layouts=layouts)
        )
        return len(self) - 1

    def _divides(self, layout: Layout, dims: Sequence[int]) -> bool:
        degrees = [1] * len(dims)
        for dim, degree in zip(layout, self.mesh, strict=True):
            if dim >= 0:
                degrees[dim] *= degree
        return all(extent % degree == 0 for extent, degree in zip(dims, degrees, strict=True))

    def shards(self, layout: Layout) -> int:
        """In how many parts a layout cuts."""
        return prod(n for n, dim in zip(self.mesh, layout, strict=True) if dim >= 0)

    def map(self, *nodes: int) -> int:
        """An element-wise operation, tied to all that it reads."""
        dims = self.made(nodes[0])
        view = tuple(range(len(dims)))
        return self.add(dims, *(Operand(node=v, view=view, tied=True) for v in nodes))

    def affine(self, node: int) -> int:
        """An element-wise operation with two vectors over the last dim."""
        dims = self.made(node)
        last = len(dims) - 1
        vectors = [Operand(node=self.add(dims[-1:]), view=(last,)) for _ in range(2)]
        source = Operand(node=node, view=tuple(range(len(dims))), tied=True)
        return self.add(dims, source, *vectors)

    def linear(self, node: int, width: int, weight: int | None = None) -> int:
        """A product with a weight over the last dim.

        Parameters
        ----------
        node
            What is multiplied.
        width
            The extent of the last dim afterwards. [items]
        weight
            The weight; left out, a new one.
        """
        *rows, depth = self.made(node)
        last = len(rows)
        if weight is None:
            weight = self.add((width, depth))
        return self.add(
            (*rows, width, depth),
            Operand(node=node, view=(*range(last), last + 1)),
            Operand(node=weight, view=(last, last + 1)),
            out=range(last + 1),
        )

    def backward(self) -> None:
        """Gradients of all that is there, in reverse, and updates of what nothing made."""
        gradients: dict[int, list[int]] = {}
        for node in reversed(range(len(self))):
            one = self.operations[node]
            parts = gradients.pop(node, [])
            if not parts:
                parts = [self.map(node)]  # where the network ends
            gradient = parts[0] if len(parts) == 1 else self.map(*parts)
            if not one.operands:
                self.map(node, gradient)
            for operand in one.operands:
                others = tuple(o for o in one.operands if o is not operand and not o.tied)
                come = Operand(node=gradient, view=one.out, tied=operand.tied)
                made = self.add(one.dims, come, *others, out=operand.view)
                gradients.setdefault(operand.node, []).append(made)


def numbers(net: MeshNetwork) -> dict[str, Any]:
    """Costs, usages, intervals and limit of a network."""
    usages = [_usages(net, one) for one in net.operations]
    intervals = _intervals(net)
    pairs: list[tuple[int, int]] = []
    matrices: list[list[int]] = []
    known: dict[tuple[Any, ...], list[int]] = {}
    for node, one in enumerate(net.operations):
        for operand in one.operands:
            source = net.operations[operand.node]
            key = (source.layouts, source.made, source.out, one.layouts, operand.view, operand.tied)
            if key not in known:
                known[key] = _matrix(net, source, one, operand)
            pairs.append((operand.node, node))
            matrices.append(known[key])
    peak = _peak(intervals, [min(u) for u in usages])
    return {
        "nodes": {
            "intervals": intervals,
            "costs": [_costs(net, one) for one in net.operations],
            "usages": usages,
        },
        "edges": {"nodes": pairs, "costs": matrices},
        "usage_limit": peak * SLACK[0] // SLACK[1],
    }


def _over(layout: Layout, view: View) -> Layout:
    """What a layout of the iteration space means for a tensor over some of its dims."""
    return tuple(view.index(dim) if dim in view else -1 for dim in layout)


def _local(net: MeshNetwork, made: tuple[int, ...], layout: Layout) -> int:
    """Bytes of a device's part of a tensor, two an element."""
    return -(-2 * prod(made) // net.shards(layout))


def _usages(net: MeshNetwork, one: MeshOperation) -> list[int]:
    return [_local(net, one.made, _over(layout, one.out)) for layout in one.layouts]


def _costs(net: MeshNetwork, one: MeshOperation) -> list[int]:
    """Work and all-reduces of every candidate; few candidates are forbidden at random."""
    safe = (one.out[0],) * len(net.mesh)
    reducing = len(one.out) < len(one.dims)
    # what has no operands comes whole, and is dear to cut, each at its own rate
    rate = 0 if one.operands else net.random.randrange(64)
    costs = []
    for layout in one.layouts:
        if layout != safe and net.random.random() < 0.02:
            costs.append(FORBIDDEN)
            continue
        summed = prod(n for n, d in zip(net.mesh, layout, strict=True) if d not in (-1, *one.out))
        local = _local(net, one.made, _over(layout, one.out))
        work = prod(one.dims) // net.shards(layout) // 256 if reducing else 0
        cut = rate * local * (net.shards(layout) - 1) // 64
        costs.append(work + cut + 2 * local * (summed - 1) // summed)
    return costs


def _matrix(
    net: MeshNetwork, source: MeshOperation, one: MeshOperation, operand: Operand
) -> list[int]:
    """Cost of every pair of candidates, row by row."""
    wanted = [_over(layout, operand.view) for layout in one.layouts]
    row: list[int] = []
    for layout in source.layouts:
        held = _over(layout, source.out)
        for want in wanted:
            tied = operand.tied and held != want
            row.append(FORBIDDEN if tied else _received_bytes(net, source.made, held, want))
    return row


def _received_bytes(net: MeshNetwork, made: tuple[int, ...], held: Layout, want: Layout) -> int:
    """Bytes that a device receives: all-gathers and all-to-alls; to cut further is free."""
    local, received = _local(net, made, held), 0
    for degree, old, new in zip(net.mesh, held, want, strict=True):
        if old < 0 or old == new:
            continue
        if new < 0:
            local *= degree
        received += local * (degree - 1) // degree
    return received


def _intervals(net: MeshNetwork) -> list[tuple[int, int]]:
    """From where a tensor is made to where it is last read; weights stay, some are in place."""
    end = len(net)
    last = list(range(end))
    for node, one in enumerate(net.operations):
        for operand in one.operands:
            last[operand.node] = node
    intervals = []
    for node, one in enumerate(net.operations):
        in_place = len(one.operands) == 1 and net.random.random() < 0.3
        stays = not one.operands and net.random.random() < 0.7
        start = 0 if stays else node
        intervals.append((start, start if in_place else end if stays else last[node] + 1))
    return intervals


def _peak(intervals: Sequence[tuple[int, int]], usages: Sequence[int]) -> int:
    """The most used at any time."""
    change = [0] * (1 + max(end for _, end in intervals))
    for (start, end), usage in zip(intervals, usages, strict=True):
        change[start] += usage
        change[end] -= usage
    return max(accumulate(change))
