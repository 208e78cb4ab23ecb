"""Zeros that a module puts around what a convolution reads, as the padding of that convolution.

So it is split by space as any other. Zeros at one end only are not what a convolution pads by, and
stay an operator of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.torch.nodes import arguments, operator_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
_PADS = frozenset({"pad", "constant_pad_nd"})


def pad_by_convolutions(program: ExportedProgram) -> None:
    """Let convolutions of a traced module pad what they read, in place."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or operator_of(node) not in _CONVOLUTIONS:
            continue
        given = arguments(node)
        source = given["input"]
        if source.op != "call_function" or operator_of(source) not in _PADS:
            continue
        padding, zeros = given["padding"], _zeros_around(arguments(source), len(given["stride"]))
        if isinstance(padding, str) or zeros is None:
            continue
        padding = [int(one) for one in padding] * (len(zeros) // len(padding))
        summed = [one + other for one, other in zip(padding, zeros, strict=True)]
        node.args = tuple({**given, "input": arguments(source)["self"], "padding": summed}.values())
        node.kwargs = {}
        if not source.users:
            graph.erase_node(source)


def _zeros_around(given: Mapping[str, Any], count: int) -> list[int] | None:
    """Zeros at both ends of each dim of space, None where it is something else that is put there.

    Parameters
    ----------
    given
        Arguments of the padding operator.
    count
        Dims of space. [items]
    """
    ends = [int(one) for one in given["pad"]]
    ends += [0] * (2 * count - len(ends))
    if given.get("mode", "constant") != "constant" or given.get("value") not in (None, 0):
        return None
    # the last dim comes first
    firsts, lasts = ends[0 : 2 * count : 2][::-1], ends[1 : 2 * count : 2][::-1]
    if firsts != lasts or any(ends[2 * count :]) or min(firsts) < 0:
        return None
    return firsts
