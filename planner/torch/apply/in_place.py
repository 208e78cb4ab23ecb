"""Operators that write over what they read: run as those that do not, where nobody can tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from costmodels.errors import InputError
from planner.models.traced.nodes import CREATORS
from planner.models.traced.operators.views import TURNS
from planner.torch.nodes import operator_of

if TYPE_CHECKING:
    from torch.fx import Node

# Operators whose result lies in the memory of what they read.
_VIEWS = frozenset(
    {
        *TURNS,
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "alias"),
        *("slice", "select", "narrow", "split", "chunk", "unbind", "getitem", "detach"),
    }
)


def _overwriting(node: Node) -> str:
    """The name of an operator that writes over its first argument, empty for any other."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return name if name.endswith("_") and not name.endswith("__") else ""


def check_in_place(nodes: Sequence[Node], data: Collection[Node]) -> None:
    """Refuse a tensor that is written over and then read by another name, and automatic casts.

    Parameters
    ----------
    nodes, data
        All operators in order, and those that depend on the samples.

    Raises
    ------
    InputError
        When there is one.
    """
    place = {node: n for n, node in enumerate(nodes)}
    for node in nodes:
        if operator_of(node) == "wrap_with_autocast":
            raise InputError(
                "a plan cannot be applied to a part of a module under torch.autocast, of which "
                "the types are not written down; leave it out, or cast where it does"
            )
        if node not in data or not _overwriting(node):
            continue
        source = node.args[0]
        while True:
            later = (one for one in source.users if place.get(one, len(place)) > place[node])
            if any(operator_of(one) not in CREATORS for one in later):
                raise InputError(
                    f"a plan cannot be applied where a tensor is written over and read again, as "
                    f"by '{_overwriting(node)}' of '{source.name}'; use the operator that leaves "
                    "it as it is"
                )
            if operator_of(source) not in _VIEWS:
                break
            source = source.args[0]


def leave_as_it_is(nodes: Sequence[Node], data: Collection[Node]) -> None:
    """Let operators write a tensor of their own: what they read may be at hand on other ranks, too.

    Parameters
    ----------
    nodes, data
        As of `check_in_place`.
    """
    check_in_place(nodes, data)
    for node in nodes:
        name = _overwriting(node) if node in data else ""
        other = getattr(torch.ops.aten, name.rstrip("_"), None) if name else None
        overload = getattr(node.target, "_overloadname", "default")
        if other is not None and overload in other.overloads():
            node.target = getattr(other, overload)
