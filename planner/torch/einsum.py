"""`einsum` of two tensors as what it is: views, and a product of matrices.

So it is planned and run as any other product. Equations that are no such product stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.torch.nodes import arguments, operator_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


def write_out_einsums(program: ExportedProgram) -> None:
    """Replace what einsum computes in a traced module, in place."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or operator_of(node) != "einsum":
            continue
        given = arguments(node)
        tensors = list(given["tensors"])
        labels = _labels(str(given["equation"]), [len(one.meta["val"].shape) for one in tensors])
        if labels is None or len(tensors) != 2:
            continue
        with graph.inserting_before(node):
            found = _einsum_written_out(graph, node, tensors, labels)
        if found is not None:
            node.replace_all_uses_with(found)
            graph.erase_node(node)
            found.name = node.name  # which what the module returns is told by


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """Labels of the dims of what an equation reads and writes, None where these do not say all.

    Parameters
    ----------
    equation
        The equation.
    ranks
        Dims of what it reads. [items]
    """
    text = equation.replace(" ", "")
    if "." in text or "->" not in text:
        return None
    left, _, out = text.partition("->")
    read = left.split(",")
    unlike = [len(set(one)) == len(one) for one in (*read, out)]
    fits = [len(one) for one in read] == list(ranks)
    return (read, out) if fits and all(unlike) else None


def _einsum_written_out(
    graph: Graph, node: Node, tensors: list[Node], labels: tuple[list[str], str]
) -> Node | None:
    """The product, None where the equation sums or repeats what one tensor alone has.

    Parameters
    ----------
    graph, node
        Where it is written, before which operator.
    tensors, labels
        What that reads, and the labels of their dims and of those of the result.
    """
    (first, second), out = labels
    both = [one for one in first if one in second]
    batch = [one for one in out if one in both]
    summed = [one for one in both if one not in out]
    mine = [one for one in out if one in first and one not in both]
    theirs = [one for one in out if one in second and one not in both]
    every = {*batch, *summed}
    if not summed or {*mine, *every} != set(first) or {*theirs, *every} != set(second):
        return None
    sizes: dict[str, int] = {}
    for names, tensor in zip((first, second), tensors, strict=True):
        for name, extent in zip(names, tensor.meta["val"].shape, strict=True):
            if sizes.setdefault(name, extent) != extent:
                return None  # repeated along a dim of one position
    if not batch and _is_given(tensors[0]) and not _is_given(tensors[1]):
        # a weight comes second
        tensors, first, second, mine, theirs = tensors[::-1], second, first, theirs, mine
    if not batch and _is_given(tensors[1]):
        x = _einsum_matrix(graph, node, tensors[0], first, [[], mine, summed], sizes, True)
        weight = _einsum_matrix(graph, node, tensors[1], second, [[], theirs, summed], sizes, False)
        product = _einsum_call(graph, node, "linear", x, weight)
    else:
        x = _einsum_matrix(graph, node, tensors[0], first, [batch, mine, summed], sizes, False)
        other = _einsum_matrix(
            graph, node, tensors[1], second, [batch, summed, theirs], sizes, False
        )
        product = _einsum_call(graph, node, "matmul", x, other)
    order = [*batch, *mine, *theirs]
    product = _einsum_reshaped(graph, node, product, [sizes[one] for one in order])
    return _einsum_turned(graph, node, product, [order.index(one) for one in out])


def _is_given(node: Node) -> bool:
    """Whether a tensor is a weight, or a view of nothing but one."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return bool(node.op == "placeholder") and node.name.startswith(("p_", "b_", "c_"))


def _einsum_matrix(
    graph: Graph,
    node: Node,
    x: Node,
    names: str,
    groups: Sequence[Sequence[str]],
    sizes: Mapping[str, int],
    keeps_rows: bool,
) -> Node:
    """A tensor as matrices: some dims outside, and one for each of two groups.

    Parameters
    ----------
    graph, node
        Where it is written, before which operator.
    x, names
        The tensor, and the labels of its dims.
    groups
        Labels of the dims outside, of the rows and of the columns.
    sizes
        Extents by label. [items]
    keeps_rows
        Whether the dims of the rows stay dims of their own.
    """
    outside, rows, columns = groups
    x = _einsum_turned(graph, node, x, [names.index(one) for group in groups for one in group])
    shape = [sizes[one] for one in (*outside, *rows)] if keeps_rows else [sizes[n] for n in outside]
    if not keeps_rows:
        shape.append(math.prod(sizes[one] for one in rows))
    return _einsum_reshaped(graph, node, x, [*shape, math.prod(sizes[one] for one in columns)])


def _einsum_turned(graph: Graph, node: Node, x: Node, order: list[int]) -> Node:
    return x if order == sorted(order) else _einsum_call(graph, node, "permute", x, order)


def _einsum_reshaped(graph: Graph, node: Node, x: Node, shape: list[int]) -> Node:
    if tuple(x.meta["val"].shape) == tuple(shape):
        return x
    return _einsum_call(graph, node, "reshape", x, shape)


def _einsum_call(graph: Graph, node: Node, name: str, *args: Any) -> Node:
    """One more operator, of the module and the line of another one.

    Parameters
    ----------
    graph, node
        Where it is written, and the other one.
    name, args
        The operator, and what it reads.
    """
    import torch
    from torch.fx.node import map_arg

    target = getattr(torch.ops.aten, name).default
    found = graph.call_function(target, args)
    found.meta = {key: one for key, one in node.meta.items() if key != "val"}
    found.meta["val"] = target(*map_arg(args, lambda one: one.meta["val"]))
    return found
