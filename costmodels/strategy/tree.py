"""The strategy tree: layers are leaves, subgraphs are inner nodes (Proteus, IV.A).

Names of layers are paths: `h.3.attn.c_attn` lies in the subgraph `h.3.attn`, that in `h.3`, that in
`h`, and all of them in the network. A *pattern* is compared with a name segment by segment, where
a segment is written out, a range of numbers (`0-5`), or a shell pattern (`*`, `conv?`) that stays
within the segment. What is said of a subgraph holds for everything below it, unless more specific
patterns say otherwise: deeper ones, or of the same depth ones with more written out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from costmodels.errors import InputError

# longer ones are no numbers of layers
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
# Subgraphs in one another.
DEEPEST = 64
_SHELL = re.compile(r"[*?\[]")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A layer, or a subgraph with all that lies below it; `h.0.attn` of GPT-2 is both.

    Parameters
    ----------
    path
        Its name, empty for the whole network.
    is_layer
        Whether there is a layer of that name.
    layers
        All layers below, itself included, in the order of the forward pass.
    children
        By the next segment of their names.
    """

    path: str
    is_layer: bool
    layers: tuple[str, ...]
    children: Mapping[str, Node] = field(repr=False)

    @property
    def own_layers(self) -> tuple[str, ...]:
        """The layer of that name alone where there is one, else all layers below."""
        return (self.path,) if self.is_layer else self.layers

    def nodes(self) -> Iterable[Node]:
        """Itself and every node below."""
        yield self
        for child in self.children.values():
            yield from child.nodes()


def strategy_tree(names: Sequence[str], path: str = "") -> Node:
    """The tree of layers with these names, given in the order of the forward pass.

    Raises
    ------
    InputError
        When the names are no paths.
    """
    for name in () if path else names:
        segments = name.split(".")
        if "" in segments or len(segments) > DEEPEST:
            raise InputError(
                f"names of layers must be paths of at most {DEEPEST} parts between dots, none of "
                f"them empty, for strategies but one is '{name}'; rename the layer"
            )
    start = len(path) + 1 if path else 0
    below: dict[str, list[str]] = {}
    for name in names:
        if name != path:
            below.setdefault(name[start:].split(".")[0], []).append(name)
    children = {
        segment: strategy_tree(inside, f"{path}.{segment}" if path else segment)
        for segment, inside in below.items()
    }
    return Node(path=path, is_layer=path in names, layers=tuple(names), children=children)


def _fits(pattern: str, segment: str) -> bool:
    bounds = _RANGE.fullmatch(pattern)
    if bounds is not None and segment.isdecimal() and len(segment) <= 18:
        return int(bounds[1]) <= int(segment) <= int(bounds[2])
    return pattern == segment or fnmatchcase(segment, pattern)


def find_nodes(tree: Node, pattern: str) -> tuple[Node, ...]:
    """The nodes whose names a pattern fits; that of the empty pattern is the whole network."""
    nodes = [tree]
    for segment in pattern.split(".") if pattern else []:
        nodes = [
            child for node in nodes for name, child in node.children.items() if _fits(segment, name)
        ]
    return tuple(nodes)


def _specificity(segment: str) -> int:
    """How much a segment of a pattern says: nothing, a part of a name, numbers, the whole name."""
    if segment == "*":
        return 0
    if _SHELL.search(segment):
        return 1
    return 2 if _RANGE.fullmatch(segment) else 3


def more_specific(first: str, second: str) -> bool:
    """Whether the first of two patterns that fit one layer overrules the second."""
    one, two = ([_specificity(s) for s in p.split(".")] if p else [] for p in (first, second))
    if len(one) != len(two):
        return len(one) > len(two)
    return one != two and all(a >= b for a, b in zip(one, two, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying(Generic[Value]):
    """A value that one entry of a strategy gives to a layer.

    Parameters
    ----------
    pattern
        Of the entry.
    node
        Name of the node below which it holds.
    value
        What is said.
    label
        What error messages call the entry.
    """

    pattern: str
    node: str
    value: Value
    label: str


def strongest(sayings: Sequence[Saying[Value]], layer: str, what: str) -> Saying[Value]:
    """The most specific of what is said of one layer.

    Parameters
    ----------
    sayings
        What entries say of the layer, at least one.
    layer, what
        The layer and the setting, for error messages.

    Raises
    ------
    InputError
        When entries that are equally specific contradict each other.
    """
    best = [s for s in sayings if not any(more_specific(o.pattern, s.pattern) for o in sayings)]
    for other in best[1:]:
        if other.value != best[0].value:
            raise InputError(
                f"{best[0].label} and {other.label} are equally specific and must agree on the "
                f"{what} of layer '{layer}' but say {_value_text(best[0].value)} and "
                f"{_value_text(other.value)}; remove one, or name the layer more closely"
            )
    return best[0]


def _value_text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def unknown_pattern(tree: Node, pattern: str) -> str:
    """The nearest patterns that do fit something, for an error message."""

    def numbers_left_out(name: str) -> str:
        parts = name.split(".")
        return ".".join("*" if p.isdecimal() or _RANGE.fullmatch(p) else p for p in parts)

    known = dict.fromkeys(numbers_left_out(node.path) for node in tree.nodes() if node.path)
    near = difflib.get_close_matches(numbers_left_out(pattern), known, n=3, cutoff=0.3)
    return " or ".join(f"'{name}'" for name in near or list(known)[:3])


def compress(tree: Node, paths: Sequence[str]) -> tuple[str, ...]:
    """Few patterns that fit these nodes and no others, in the order of the first of each.

    Nodes that differ in one number only are put together, `h.0` to `h.5` as `h.0-5`, or as `h.*`
    where there are no others.
    """
    rows = [_around_number(path) for path in paths]
    numbers: dict[tuple[str, str], set[int]] = {}
    for before, number, after in rows:
        if number is not None:
            numbers.setdefault((before, after), set()).add(number)
    result: dict[str, None] = {}
    for before, number, after in rows:
        if number is None:
            result[before] = None
            continue
        same = numbers[before, after]
        fitted = {node.path for node in find_nodes(tree, f"{before}*{after}")}
        if len(same) > 1 and fitted == {f"{before}{n}{after}" for n in same}:
            result[f"{before}*{after}"] = None
            continue
        low = high = number
        while low - 1 in same:
            low -= 1
        while high + 1 in same:
            high += 1
        result[f"{before}{number if low == high else f'{low}-{high}'}{after}"] = None
    return tuple(result)


def _around_number(path: str) -> tuple[str, int | None, str]:
    """What is before the first number in a name, the number, and what is after it."""
    parts = path.split(".")
    for place, part in enumerate(parts):
        if part.isascii() and part.isdecimal() and part == str(int(part)):
            before = "".join(f"{p}." for p in parts[:place])
            return before, int(part), "".join(f".{p}" for p in parts[place + 1 :])
    return path, None, ""
