"""What PyTorch traced as nodes that know nothing of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from planner.models.traced.nodes import TracedNode

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

# Arguments of an operator by name: numbers, texts, nodes, and lists of these.
Arguments: TypeAlias = "dict[str, Any]"
AnyNode: TypeAlias = "Any"
# What each node of PyTorch became; several where it makes several tensors.
Origins: TypeAlias = "dict[Node, Any]"
# Operators that run a part of a module as it is.
FREE_CONTROL = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def nodes_of_program(
    program: ExportedProgram,
) -> tuple[list[TracedNode], list[TracedNode], Origins]:
    """All nodes of a traced module, those that it returns, and what each of PyTorch's became."""
    signature = program.graph_signature
    weights, inputs = signature.inputs_to_parameters, set(signature.user_inputs)
    frozen = {name for name, one in program.named_parameters() if not one.requires_grad}
    nodes: list[TracedNode] = []
    known: dict[Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = TracedNode(
                name=node.name,
                shapes=_shapes_of(node),
                weight=weights.get(node.name, ""),
                frozen=weights.get(node.name) in frozen,
                is_input=node.name in inputs and bool(_tensors(node)),
                whole_numbers=any(not one.dtype.is_floating_point for one in _tensors(node)),
            )
            nodes.append(known[node])
        else:
            _add(node, nodes, known)
    named = {node.name: node for node in nodes}
    outputs = [named.get(str(one)) for one in signature.user_outputs]
    return nodes, [one for one in outputs if one is not None], known


def _add(node: Node, nodes: list[TracedNode], known: dict[Node, Any]) -> None:
    """One more node; a part of a module that is run as it is becomes the nodes of that part."""
    if node.op == "output":
        # what is returned is read, too
        TracedNode(
            name=node.name, operator="output", arguments={"0": _own_argument(node.args, known)}
        )
        return
    if operator_of(node) in FREE_CONTROL:
        known[node] = _part(node, nodes, known)
        return
    if operator_of(node) == "getitem" and isinstance(found := known.get(node.args[0]), tuple):
        known[node] = found[node.args[1]]
        return
    call = node.op == "call_function"
    given = arguments(node) if call else {}
    known[node] = TracedNode(
        name=node.name,
        operator=operator_of(node) if call else "",
        arguments={name: _own_argument(one, known) for name, one in given.items()},
        shapes=_shapes_of(node),
        calls=_module_calls(node),
    )
    nodes.append(known[node])


def _part(node: Node, nodes: list[TracedNode], known: dict[Node, Any]) -> tuple[Any, ...]:
    """The results of a part of a module, whose nodes are added."""
    place = next(n for n, one in enumerate(node.args) if getattr(one, "op", "") == "get_attr")
    module: Any = node.graph.owning_module
    for step in str(node.args[place].target).split("."):
        module = getattr(module, step)
    inside = list(module.graph.nodes)
    entries = [one for one in inside if one.op == "placeholder"]
    for entry, source in zip(entries, node.args[place + 1 :], strict=True):
        known[entry] = known[source]
    for one in inside:
        if one.op not in ("placeholder", "output"):
            _add(one, nodes, known)
    return tuple(known.get(one) for one in inside[-1].args[0])


def _own_argument(argument: Any, known: Mapping[Node, Any]) -> Any:
    """An argument with the nodes that stand for those of PyTorch."""
    if isinstance(argument, list | tuple):
        return [_own_argument(one, known) for one in argument]
    if isinstance(argument, dict):
        return {name: _own_argument(one, known) for name, one in argument.items()}
    return known.get(argument) if hasattr(argument, "all_input_nodes") else argument


def _tensors(node: Node) -> list[Any]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if hasattr(one, "shape")]


def _shapes_of(node: Node) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(extent) for extent in one.shape) for one in _tensors(node))


def shape_of(node: Node) -> tuple[int, ...]:
    """Extents of the first tensor that a node makes. [items]"""
    return next(iter(_shapes_of(node)), ())


def operator_of(node: Node) -> str:
    """The name of an operator, without its overload, and of one in place that of the other."""
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    name = packet.__name__ if packet is not None else getattr(target, "__name__", str(target))
    return name if name.startswith("_") else name.rstrip("_")


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


def _module_calls(node: Node) -> list[tuple[str, str, str]]:
    """The calls of modules that a node is inside of: a key for each call, its path, its class."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    found = []
    for key, (path, kind) in stack.items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        found.append((key, re.sub(r"@\d+", "", path), name))
    return found


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
