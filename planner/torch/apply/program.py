"""From the operators of a module to what one rank runs: operators on blocks, and moves between.

Each tensor lies as the plan says of the layer that writes it; where another layer reads it
otherwise it is moved, once for all that read it alike. What does not depend on samples (masks,
tables of positions) every rank makes whole, and takes its part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from costmodels.errors import InputError
from planner.models.traced.values import Value
from planner.plan import Plan
from planner.torch.apply import products  # noqa: F401 - its rules are registered
from planner.torch.apply.experts import add_experts, find_experts
from planner.torch.apply.reading import read, weight_use
from planner.torch.apply.redistribution import MeshRanks
from planner.torch.apply.rules import Call, Held, OwnBlock, RankPlace, find_rule, tensors_of
from planner.torch.apply.statistics import cut_statistics
from planner.torch.apply.steps import Program, RankStep, Ref
from planner.torch.apply.tracing import Traced
from planner.torch.apply.views import (
    LayoutError,
    ViewLayout,
    in_blocks,
    layout_of_view,
    uncut,
)
from planner.torch.nodes import arguments, operator_of, shape_of

if TYPE_CHECKING:
    from torch.fx import Node

# Operators that read no more of another tensor than its shape or its type.
_SHAPED_AS = frozenset({"expand_as", "view_as", "reshape_as", "type_as"})
# An axis of a tensor that no axis of a layer stands for.
_SKIPPED = frozenset({"_assert_tensor_metadata", "_assert_scalar"})


def make_program(
    plan: Plan,
    traced: Traced,
    place: RankPlace,
    ranks: MeshRanks,
    weights: Mapping[str, ViewLayout],
) -> Program:
    """What all ranks run.

    Parameters
    ----------
    plan, traced, place, ranks, weights
        As of `Program`.

    Raises
    ------
    InputError
        When a layer is split in a way that its operators cannot be run in.
    """
    program = Program(plan=plan, traced=traced, place=place, ranks=ranks, weights=weights)
    experts = {one.last: one for one in find_experts(traced)}
    inner = {node for one in experts.values() for node in one.inner - {one.last}}
    unread = _unread(traced)
    for node in traced.nodes:
        if node in inner or node in unread:
            continue  # of a mixture of experts, or of no use
        if node.op == "placeholder":
            _enter_node(program, node)
        elif node.op == "get_attr":
            value = getattr(node.graph.owning_module, str(node.target))
            program.held[node] = value
        elif operator_of(node) not in _SKIPPED:
            try:
                if node in experts:
                    add_experts(program, experts[node])
                else:
                    _add_operator(program, node)
            except LayoutError as error:
                layer = traced.layer_of(node) or "a constant"
                raise InputError(
                    f"the operator '{operator_of(node)}' of {layer} must run on the blocks of the "
                    f"plan but {error}; {error.advice}"
                ) from None
    return program


def _unread(traced: Traced) -> set[Node]:
    """Operators of layers that are none of the plan, as nothing that is returned reads them."""
    rows = {"input", *(row.name for row in traced.rows)}
    needed, waiting = set(traced.outputs), list(traced.outputs)
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in needed:
                needed.add(node)
                waiting.append(node)
    layers = ((node, traced.layer_of(node)) for node in traced.nodes if node not in needed)
    return {node for node, layer in layers if layer and layer not in rows}


def _enter_node(program: Program, node: Node) -> None:
    """An input, a weight or a buffer."""
    traced = program.traced
    if node in traced.inputs:
        aside = _is_aside(traced, node)
        layout = uncut(shape_of(node)) if aside else _input_layout(program, node)
        program.held[node] = Held(key=node, layout=layout, is_constant=aside)
    elif node.name in traced.parameters:
        program.held[node] = traced.parameters[node.name]  # its layer says how it is used
    elif node.name in traced.buffers or node.name in traced.constants:
        layout = uncut(node.meta["val"].shape)
        program.held[node] = Held(key=node, layout=layout, is_constant=True)
    else:
        program.held[node] = traced.others.get(node)


def _is_aside(traced: Traced, node: Node) -> bool:
    """Whether masks alone are made of an input, which no layer of the plan reads.

    Every rank then has all of it, and takes its part of what is made of it.
    """
    rows = {row.name for row in traced.rows}
    own, waiting, seen = traced.layer_of(node), [node], False
    while waiting:
        one = waiting.pop()
        for user in one.users:
            if operator_of(user) in _SKIPPED or user.op == "output":
                continue
            mask = "attention" in operator_of(user) and one not in user.args[:3]
            if traced.layer_of(user) == own:
                waiting.append(user)
            elif traced.layer_of(user) in rows and not mask:
                return False
            seen = True
    return seen


def _input_layout(program: Program, node: Node) -> ViewLayout:
    """How an input lies: as the first layer reads it that reads one of its axes."""
    shape = shape_of(node)
    value = program.traced.known.get(node)
    for row in program.traced.rows:
        sharding = program.plan.placements(row.name)
        for source, placed in zip(row.inputs, sharding.inputs, strict=False):
            if source != "input" or not isinstance(value, Value):
                continue
            try:
                layout = layout_of_view(placed, value, program.place.sizes)
            except LayoutError:
                continue
            if layout.shape == shape:
                return layout
    return uncut(shape)


def _add_operator(program: Program, node: Node) -> None:
    """One operator."""
    traced = program.traced
    name = operator_of(node)
    layer = traced.layer_of(node)
    if name == "getitem":
        source, place = node.args
        found = program.held[source]
        program.held[node] = found[place] if isinstance(found, tuple | list) else found
        return
    has_schema = getattr(node.target, "_schema", None) is not None
    given: Any = arguments(node) if has_schema else {"args": node.args}
    reading = layer if _is_own(traced, node, layer) else ""
    given = _resolved(program, given, node, reading, layer)
    tensors = tensors_of(given)
    constant = all(one.is_constant for one in tensors)
    call = cut_statistics(program, node, layer, given)
    if call is None:
        call = find_rule(node, name)(program.place, node, given)
    if not has_schema:
        target: Any = node.target
        call = Call(run=lambda args: target(*args), given=call.given, layout=call.layout)
    given = {
        key: _reference(program, one, layer)
        for key, one in call.given.items()
        if key != "pin_memory"
    }
    step = RankStep(key=node, run=call.run, given=given, layer="" if constant else layer)
    program.steps.append(step)
    if isinstance(call.layout, tuple):
        held = []
        for number, layout in enumerate(call.layout):
            key = (node, number)
            program.steps.append(
                RankStep(
                    key=key,
                    run=_pick_result,
                    given={"of": Ref(node), "number": number},
                    layer=step.layer,
                )
            )
            held.append(Held(key=key, layout=layout, is_constant=constant))
        program.held[node] = tuple(held)
        return
    program.held[node] = Held(key=node, layout=call.layout, is_constant=constant)
    if not constant:
        _check_layout(program, node, layer, call.layout)


def _pick_result(of: Any, number: int) -> Any:
    return of[number]


def _is_own(traced: Traced, node: Node, layer: str) -> bool:
    """Whether an operator is of the layer, and no view of what that writes."""
    if not layer:
        return False
    return all(traced.layer_of(one) != layer for one in node.all_input_nodes) or any(
        traced.layer_of(one) not in ("", layer) for one in node.all_input_nodes
    )


def _resolved(program: Program, given: Any, node: Node, reading: str, layer: str) -> Any:
    """Arguments with what was held for nodes, moved to where the layer reads them.

    Parameters
    ----------
    program, given, node
        The arguments of a node.
    reading
        The layer, where the node reads what others have written.
    layer
        The layer of the node.
    """
    if isinstance(given, Mapping):
        alike = {"other"} if operator_of(node) in _SHAPED_AS else set()
        return {
            key: _resolved(program, one, node, "" if key in alike else reading, layer)
            for key, one in given.items()
        }
    if isinstance(given, list | tuple):
        return [_resolved(program, one, node, reading, layer) for one in given]
    if not isinstance(given, torch.fx.Node):
        return given
    found = program.held[given]
    if isinstance(found, str) and given.name in program.traced.parameters:
        return weight_use(program, found, given, layer)
    if isinstance(found, Held) and reading and not found.is_constant:
        return read(program, given, found, reading)
    return found


def _reference(program: Program, one: Any, layer: str) -> Any:
    """An argument as a step has it.

    Parameters
    ----------
    program, one
        What is made, and the argument.
    layer
        The layer that reads it.
    """
    if isinstance(one, Held):
        return Ref(one.key)
    if isinstance(one, OwnBlock):
        key = (one.of.key, "block", one.layout)
        if key not in program.moved:
            place, layout = program.place, one.layout
            program.steps.append(
                RankStep(
                    key=key,
                    run=lambda x: place.block(x, layout),
                    given={"x": Ref(one.of.key)},
                    layer=layer if one.of.key in program.of_layers else "",
                )
            )
            program.moved[key] = Held(key=key, layout=layout, is_constant=True)
        return Ref(key)
    if isinstance(one, Mapping):
        return {key: _reference(program, each, layer) for key, each in one.items()}
    if isinstance(one, list | tuple):
        return [_reference(program, each, layer) for each in one]
    return one


def _check_layout(program: Program, node: Node, layer: str, layout: ViewLayout) -> None:
    """Refuse a layer whose output does not lie as the plan says."""
    value = program.traced.known.get(node)
    if not isinstance(value, Value) or not layer or value.shape != shape_of(node):
        return
    if any(traced_layer(program, one) == layer for one in node.users):
        return  # there is more of it
    placed = program.plan.placements(layer).output if layer != "input" else None
    if placed is None or set(placed.dims) != set(value.axes):
        return
    if program.plan.layers[layer].kind == "opaque":
        return  # of which it is not known what its dims are
    expected = layout_of_view(placed, value, program.place.sizes)
    if layer in program.traced.halved:
        expected = in_blocks(expected, len(expected.dims) - 1, 2)
    if expected != layout and expected.shape == layout.shape:
        raise LayoutError(
            f"its output lies as {_layout_text(layout)} and not as {_layout_text(expected)}"
        )


def traced_layer(program: Program, node: Node) -> str:
    """The layer of a node."""
    return program.traced.layer_of(node)


def _layout_text(layout: ViewLayout) -> str:
    cuts = [
        f"dim {n} cut by axes {', '.join(map(str, part.axes))}"
        for n, dim in enumerate(layout.dims)
        for part in dim
        if part.axes
    ]
    sums = [f"sums over axes {', '.join(map(str, sorted(layout.partial)))}"]
    return " and ".join([*cuts, *(sums if layout.partial else [])]) or "a whole"
