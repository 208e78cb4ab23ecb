"""Mixtures of experts: each rank holds some, and tokens travel to them and back.

What a module does to sort tokens by their experts is not run: ranks choose which tokens go where
from the router's choice, send them by one all-to-all, run the products of the module on what
arrives, and send the results back. Nothing is dropped, so that a rank may get more than its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.autograd import Function

from planner.torch.apply.groups import RankGroup
from planner.torch.apply.reading import read, weight_use
from planner.torch.apply.redistribution import MeshRanks, Move
from planner.torch.apply.rules import Held
from planner.torch.apply.steps import Program, RankStep, Ref
from planner.torch.apply.tracing import Traced
from planner.torch.apply.views import LayoutError, ViewLayout
from planner.torch.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


class ExpertNodes(Struct, frozen=True, kw_only=True):
    """The operators of a mixture of experts.

    Parameters
    ----------
    sent, products, combined
        Layers: what sends tokens, the two products, and what brings them back.
    inner
        Operators that are not run as they are.
    first, second, last
        The two grouped products, and the sum over the experts of a token.
    tokens, scores, choice
        What they read: tokens, the weight of each choice, and the experts that are chosen.
    weights
        What stands for the weights of the products.
    """

    sent: str
    products: tuple[str, str]
    combined: str
    inner: frozenset[Node]
    first: Node
    second: Node
    last: Node
    tokens: Node
    scores: Node
    choice: Node
    weights: tuple[Node, Node]


def find_experts(traced: Traced) -> Iterator[ExpertNodes]:
    """All mixtures of experts of a module whose operators are known."""
    rows = {row.name: row for row in traced.rows}
    for row in traced.rows:
        if row.kind != "combine":
            continue
        own = [node for node in traced.nodes if traced.layer_of(node) == row.name]
        products = [node for node in own if "grouped_mm" in operator_of(node)]
        if len(products) != 2:
            continue
        behind = own[own.index(products[1]) :]
        last = next((node for node in behind if operator_of(node) == "sum"), None)
        second = rows[row.inputs[0]]
        between = rows[second.inputs[0]]
        first = rows[between.inputs[0]]
        if last is None or first.kind != "linear":
            continue
        inner, outside = _above(traced, last, row.name)
        read_by = [_routed_as(node, products[0]) for node in outside]
        weights = [_weight_of(traced, node) for node in products]
        if sorted(read_by) != ["choice", "scores", "tokens"] or None in weights:
            continue
        found: dict[str, Any] = dict(zip(read_by, outside, strict=True))
        yield ExpertNodes(
            sent=first.inputs[0],
            products=(first.name, second.name),
            combined=row.name,
            inner=inner,
            first=products[0],
            second=products[1],
            last=last,
            weights=(weights[0], weights[1]),
            **found,
        )


def _above(traced: Traced, last: Node, layer: str) -> tuple[frozenset[Node], list[Node]]:
    """Operators of a layer above one, and what of other layers they read."""
    inner, left = {last}, [last]
    outside: dict[Node, None] = {}
    while left:
        for node in left.pop().all_input_nodes:
            if traced.layer_of(node) not in ("", layer):
                outside[node] = None
            elif node.op == "call_function" and node not in inner:
                inner.add(node)
                left.append(node)
    # constants may be read elsewhere, too
    own = {n for n in inner if traced.layer_of(n) == layer or inner.issuperset(n.users)}
    return frozenset(own), list(outside)


def _routed_as(node: Node, product: Node) -> str:
    """What a node is to experts."""
    if not node.meta["val"].dtype.is_floating_point:
        return "choice"
    return "tokens" if shape_of(node)[-1] == shape_of(product.args[0])[-1] else "scores"


def _weight_of(traced: Traced, product: Node) -> Node | None:
    """What stands for the weight of a product, behind views of it."""
    node: Any = product.args[1]
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node if node.name in traced.parameters else None


def add_experts(program: Program, found: ExpertNodes) -> None:
    """Add a mixture of experts to what ranks run.

    Raises
    ------
    LayoutError
        When it is cut otherwise than by experts and by the tokens of all their ranks.
    """
    tokens = read(program, found.tokens, program.held[found.tokens], found.sent)
    scores, choice = program.held[found.scores], program.held[found.choice]
    weights = [
        weight_use(program, program.held[node], node, layer)
        for node, layer in zip(found.weights, found.products, strict=True)
    ]
    cuts = {tuple(axis for part in held.layout.dims[0] for axis in part.axes) for held in weights}
    inside = [p for held in weights for dim in held.layout.dims[1:] for p in dim if p.axes]
    axes = next(iter(cuts))
    rows = tokens.layout.dims[0]
    if len(cuts) > 1 or len(axes) > 1 or inside:
        raise LayoutError("experts are cut otherwise than one by one over one axis")
    if any(one.layout.dims[0] != rows or one.layout.partial for one in (scores, choice)):
        raise LayoutError("what is routed lies in other blocks than its scores")
    if any(part.axes for dim in tokens.layout.dims[1:] for part in dim):
        raise LayoutError("the features of its tokens are cut")
    if set(axes) - {axis for part in rows for axis in part.axes}:
        raise LayoutError("ranks of different experts have the same tokens")
    call = _Experts(found, program.ranks, axes)
    given = {"tokens": tokens, "scores": scores, "choice": choice}
    given |= {"first": weights[0], "second": weights[1]}
    program.steps.append(
        RankStep(
            key=found.last,
            run=call,
            given={name: Ref(held.key) for name, held in given.items()},
            layer=found.combined,
        )
    )
    layout = ViewLayout((rows, *tokens.layout.dims[1:]))
    program.held[found.last] = Held(key=found.last, layout=layout)


class _Experts:
    """A mixture of experts on the tokens of a rank.

    Parameters
    ----------
    nodes, ranks
        Its operators, and the ranks of the stage.
    axes
        The axis of the mesh over whose members experts lie, none where every rank has all.
    """

    def __init__(self, nodes: ExpertNodes, ranks: MeshRanks, axes: tuple[int, ...]) -> None:
        self.nodes, self.ranks = nodes, ranks
        self.group = RankGroup(ranks.mesh.get_group(axes[0])) if axes else None
        self.ways = ranks.sizes[axes[0]] if axes else 1

    def __call__(
        self, tokens: Tensor, scores: Tensor, choice: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        """The weighted sum of what the experts of each token make of it.

        Parameters
        ----------
        tokens, scores, choice
            Tokens, and the weights and the experts of each.
        first, second
            Weights of the rank's experts.
        """
        count, top = choice.shape
        order = choice.reshape(-1).argsort(stable=True)
        here = torch.bincount(choice.reshape(-1), minlength=self.ways * first.shape[0])
        here = here.view(self.ways, -1)
        there = self._counts(here)
        leave, come = here.sum(1).tolist(), there.sum(1).tolist()
        names = self.nodes
        to, back = (
            f"{names.sent} -> {names.products[0]}",
            f"{names.products[1]} -> {names.combined}",
        )
        arrived = self._exchanged(tokens[order // top], (leave, come), to)
        # they come by ranks; those of one expert lie together
        owners = torch.arange(first.shape[0]).repeat(self.ways)
        together = owners.repeat_interleave(there.reshape(-1)).argsort(stable=True)
        made = self._products(arrived[together], first, second, there.sum(0).cumsum(0))
        returned = self._exchanged(made[together.argsort()], (come, leave), back)
        weighted = returned * scores.reshape(-1)[order].unsqueeze(-1)
        return weighted[order.argsort()].view(count, top, -1).sum(1)

    def _counts(self, here: Tensor) -> Tensor:
        """How many tokens of each rank go to each of the rank's experts. [items]"""
        if self.group is None:
            return here
        there = torch.empty_like(here)
        dist.all_to_all_single(there, here.contiguous(), group=self.group.now)
        return there

    def _exchanged(self, x: Tensor, sizes: tuple[list[int], list[int]], place: str) -> Tensor:
        """Rows of all ranks that are for this one.

        Parameters
        ----------
        x, sizes
            The rank's rows by where they go, how many go to each rank and come from it. [items]
        place
            The layers that they go from and to.
        """
        if self.group is None:
            return x
        found: Tensor = _AllToAll.apply(x, sizes, self, place)
        return found

    def send(
        self, x: Tensor, sizes: tuple[list[int], list[int]], place: str, backward: bool
    ) -> Tensor:
        """As `_exchanged`, without a gradient.

        Parameters
        ----------
        x, sizes, place
            As there.
        backward
            Whether they are gradients.
        """
        leave, come = sizes
        found = x.new_empty((sum(come), *x.shape[1:]))
        assert self.group is not None, "there are others to send to"
        group = self.group.now
        dist.all_to_all_single(found, x.contiguous(), come, leave, group=group)
        mine = come[dist.get_rank(group)]
        layout = ViewLayout(())
        move = Move(layout, layout, frozenset(), place)
        self.ranks.log(move, float((len(found) - mine) * x.shape[-1]), "all_to_all", backward)
        return found

    def _products(self, rows: Tensor, first: Tensor, second: Tensor, ends: Tensor) -> Tensor:
        """What the module computes of rows that are sorted by their experts.

        Parameters
        ----------
        rows, ends
            The rows, and where those of each expert end.
        first, second
            Weights of the rank's experts.
        """
        nodes = self.nodes
        where: Any = nodes.first.args[2]
        known: dict[Any, Any] = {
            nodes.first.args[0]: rows,
            where: ends.to(where.meta["val"].dtype),
            nodes.weights[0]: first,
            nodes.weights[1]: second,
        }
        found: Tensor = _computed(nodes.second, known)
        return found


class _AllToAll(Function):
    """Rows that go to other ranks; their gradients come back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Any, experts: _Experts, place: str) -> Tensor:
        ctx.given = (sizes, experts, place)
        return experts.send(x, sizes, place, False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (leave, come), experts, place = ctx.given
        return experts.send(gradients[0], (come, leave), place, True), None, None, None


def _computed(node: Any, known: Mapping[Any, Any]) -> Any:
    """What an operator makes of what is known."""
    if not isinstance(node, torch.fx.Node):
        if isinstance(node, list | tuple):
            return type(node)(_computed(one, known) for one in node)
        return node
    if node in known:
        return known[node]
    target: Any = node.target
    given = {name: _computed(one, known) for name, one in node.kwargs.items()}
    return target(*(_computed(one, known) for one in node.args), **given)
