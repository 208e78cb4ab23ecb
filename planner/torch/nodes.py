"""What a node of a traced module is: its operator, its arguments by name, the module it is of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch.fx import Node

# Operators that read no more of a tensor than its shape.
CREATORS = frozenset(
    {
        *("new_ones", "new_zeros", "new_full", "new_empty", "empty_like", "zeros_like"),
        *(
            "ones_like",
            "full_like",
            "rand_like",
            "randn_like",
            "sym_size",
            "_assert_tensor_metadata",
        ),
    }
)


def operator_of(node: Node) -> str:
    """The name of an operator, without its overload, and of one in place that of the other."""
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    name = packet.__name__ if packet is not None else getattr(target, "__name__", str(target))
    return name if name.startswith("_") else name.rstrip("_")


# The arguments of an operator by name: numbers, texts, nodes, and lists of these.
Arguments: TypeAlias = "dict[str, Any]"
AnyNode: TypeAlias = "Any"


def arguments(node: Node) -> Arguments:
    """Arguments of an operator by name, with its defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{str(n): arg for n, arg in enumerate(node.args)}, **node.kwargs}
    found = {}
    for place, one in enumerate(schema.arguments):
        given = node.args[place] if place < len(node.args) else None
        if place >= len(node.args):
            given = node.kwargs.get(one.name, one.default_value)
        found[one.name] = given
    return found


def shape_of(node: Node) -> tuple[int, ...]:
    """Extents of the tensor that a node makes, of the first one where it makes several. [items]"""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        value = next((one for one in value if hasattr(one, "shape")), None)
    return tuple(int(n) for n in value.shape) if hasattr(value, "shape") else ()


def module_calls(node: Node) -> list[tuple[str, str, str]]:
    """The calls of modules that a node is inside of: a key for each call, its path, its class."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    found = []
    for key, (path, kind) in stack.items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        found.append((key, re.sub(r"@\d+", "", path), name))
    return found


def data_nodes(nodes: list[Node], inputs: set[str]) -> set[Node]:
    """Nodes that depend on the samples, and not on their shapes only.

    Parameters
    ----------
    nodes
        All nodes, in order.
    inputs
        Names of those that are inputs of the user.
    """
    found: set[Node] = set()
    for node in nodes:
        if node.op == "placeholder":
            if node.name in inputs and hasattr(node.meta.get("val"), "shape"):
                found.add(node)
        elif operator_of(node) not in CREATORS and any(
            one in found for one in node.all_input_nodes
        ):
            found.add(node)
    return found


def num_elements(extents: tuple[int, ...]) -> int:
    """Numbers of a tensor. [items]"""
    return math.prod(extents)


def user_line(trace: str) -> str:
    """The last line of the user's own code in a trace of calls, empty where there is none."""
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', trace)
    own = [row for row in found if not is_library(row[0])]
    return f"{own[-1][0]}, line {own[-1][1]}: {own[-1][2].strip()}" if own else ""


def is_library(path: str) -> bool:
    """Whether a file is of PyTorch or of Python, and not the user's."""
    if path.startswith("<"):
        return True  # written by PyTorch
    return "/torch/" in path or ("/lib/python" in path and "site-packages" not in path)
