"""What one rank runs, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from planner.plan import Plan
from planner.torch.apply import products  # noqa: F401 - its rules are registered
from planner.torch.apply.redistribution import MeshRanks, Move
from planner.torch.apply.rules import Held, RankPlace
from planner.torch.apply.tracing import Traced
from planner.torch.apply.views import (
    ViewLayout,
)

if TYPE_CHECKING:
    pass

# An axis of a tensor that no axis of a layer stands for.
_SKIPPED = frozenset({"_assert_tensor_metadata", "_assert_scalar"})


class Leaf(Struct, frozen=True, kw_only=True):
    """A use of a weight: a leaf of its own, whose gradient is summed as its layer says.

    Parameters
    ----------
    name
        The weight.
    layout
        How it lies where it is used.
    sums
        Axes over whose members its gradient is summed.
    """

    name: str
    layout: ViewLayout
    sums: frozenset[int]


class RankStep(Struct, frozen=True, kw_only=True):
    """One thing that a rank does.

    Parameters
    ----------
    key
        What its result is called.
    run, given
        What is called, and with what: `Ref` stands for results.
    layer
        The layer that it is of, empty for what does not depend on samples.
    move
        The move that it is.
    """

    key: object
    run: Callable[..., Any] | None
    given: Mapping[str, Any]
    layer: str = ""
    move: Move | None = None

    @property
    def reads(self) -> list[object]:
        """Results that it reads."""
        return [one.key for one in refs_of(self.given)]


class Ref(Struct, frozen=True):
    """A result of before, by its key."""

    key: object


def refs_of(given: object) -> list[Ref]:
    """All results among arguments."""
    if isinstance(given, Ref):
        return [given]
    if isinstance(given, Mapping):
        return [one for each in given.values() for one in refs_of(each)]
    if isinstance(given, list | tuple):
        return [one for each in given for one in refs_of(each)]
    return []


class Program(Struct, kw_only=True):
    """What all ranks of a plan run.

    Parameters
    ----------
    plan, traced
        The plan, and the operators of the module.
    place, ranks
        The ranks of a stage, as rules need to know them, and to move tensors.
    weights
        How each weight lies, before what ZeRO cuts besides.
    steps
        In order.
    held
        What each node is.
    moved
        Moves that were made already, by what moves and how.
    of_layers
        Uses of weights that are made where their layer is.
    """

    plan: Plan
    traced: Traced
    place: RankPlace
    ranks: MeshRanks
    weights: Mapping[str, ViewLayout]
    steps: list[RankStep] = field(default_factory=list)
    held: dict[Any, Any] = field(default_factory=dict)
    moved: dict[object, Held] = field(default_factory=dict)
    of_layers: set[object] = field(default_factory=set)

    @property
    def layouts(self) -> dict[object, ViewLayout]:
        """How every result lies, by its key."""
        rows = [*self.held.values(), *self.moved.values()]
        each = [one for row in rows for one in (row if isinstance(row, tuple) else (row,))]
        return {one.key: one.layout for one in each if isinstance(one, Held)}

    @property
    def input_layouts(self) -> tuple[ViewLayout, ...]:
        """How the inputs lie that a rank is called with."""
        return tuple(self.held[node].layout for node in self.traced.inputs)
