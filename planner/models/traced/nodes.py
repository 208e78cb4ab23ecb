"""Operators as tracing finds them, whatever they were traced from.

What PyTorch traces and what ONNX files hold are both made into these; operators are called, and
take arguments, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# Of an operator: numbers, texts, nodes, and lists of these.
Argument: TypeAlias = Any
Arguments: TypeAlias = Mapping[str, Any]

# Operators that read no more of a tensor than its shape.
CREATORS = frozenset(
    {
        *("new_ones", "new_zeros", "new_full", "new_empty", "empty_like", "zeros_like"),
        *("ones_like", "full_like", "rand_like", "randn_like", "sym_size"),
        "_assert_tensor_metadata",
    }
)


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class TracedNode:
    """An operator, or a tensor that is given to operators.

    Parameters
    ----------
    name
        What it is called.
    operator
        What it does; empty for a tensor that is given.
    arguments
        Of the operator by name, in order: numbers, texts, nodes, and lists of these.
    shapes
        Of the tensors that it makes. [items]
    calls
        The calls of modules that it is inside of: a key for each call, its path, its class.
    weight
        What a parameter is called.
    frozen
        Whether that parameter is not trained.
    is_input
        Whether the tensor is of the samples.
    whole_numbers
        Whether it holds numbers such as those of tokens.
    hides_later
        Whether it is a mask that hides later positions; one that is computed is told by its
        operators.
    """

    name: str
    operator: str = ""
    arguments: Arguments = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] = ()
    calls: Sequence[tuple[str, str, str]] = ()
    weight: str = ""
    frozen: bool = False
    is_input: bool = False
    whole_numbers: bool = False
    hides_later: bool = False
    all_input_nodes: list[TracedNode] = field(init=False)
    users: list[TracedNode] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.all_input_nodes = list(dict.fromkeys(nodes_in(list(self.arguments.values()))))
        for one in self.all_input_nodes:
            one.users.append(self)

    def __repr__(self) -> str:
        # not what it reads: written out, that grows with every path to the inputs
        return f"<{self.operator or 'tensor'} {self.name}>"

    @property
    def is_call(self) -> bool:
        """Whether it is an operator."""
        return bool(self.operator)

    @property
    def args(self) -> list[Argument]:
        """Its arguments in order."""
        return list(self.arguments.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the first tensor that it makes. [items]"""
        return self.shapes[0] if self.shapes else ()


def nodes_in(argument: object) -> Iterator[TracedNode]:
    """The nodes of an argument."""
    if isinstance(argument, TracedNode):
        yield argument
    elif isinstance(argument, list | tuple):
        for one in argument:
            yield from nodes_in(one)
    elif isinstance(argument, dict):
        yield from nodes_in(list(argument.values()))


def data_nodes(nodes: Sequence[TracedNode]) -> set[TracedNode]:
    """Nodes that depend on the samples, and not on their shapes only."""
    found: set[TracedNode] = set()
    for node in nodes:
        read = node.operator not in CREATORS and any(one in found for one in node.all_input_nodes)
        if node.is_input or read:
            found.add(node)
    return found


def num_elements(extents: tuple[int, ...]) -> int:
    """Numbers of a tensor. [items]"""
    return math.prod(extents)
