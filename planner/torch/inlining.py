"""Parts of a module that run without gradients, written out among its other operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.torch.nodes import operator_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_NO_GRADIENTS = "wrap_with_set_grad_enabled"


def write_out_parts(program: ExportedProgram) -> None:
    """Put the operators of such parts in their places; what leaves a part is detached.

    Parameters
    ----------
    program
        The traced module, which is changed.
    """
    while found := [one for one in program.graph.nodes if operator_of(one) == _NO_GRADIENTS]:
        _write_out(found[0])
    program.graph.lint()


def _write_out(node: Node) -> None:
    import torch

    graph = node.graph
    trains, part, *given = node.args
    assert isinstance(part, torch.fx.Node), "the part is an attribute of the module"
    owner: Any = graph.owning_module
    inner: Any = owner.get_submodule(str(part.target))
    became: dict[Node, Any] = {}
    results: Any = ()
    entries = iter(given)
    with graph.inserting_before(node):
        for one in inner.graph.nodes:
            if one.op == "placeholder":
                became[one] = next(entries)
            elif one.op == "output":
                results = one.args[0]
            else:
                became[one] = graph.node_copy(one, lambda each: became[each])
                if one.op == "get_attr":
                    name = f"{part.target}_{str(one.target).replace('.', '_')}"
                    setattr(owner, name, _attribute(inner, str(one.target)))
                    became[one].target = name
    for reader in list(node.users):
        assert operator_of(reader) == "getitem", "a part has several results"
        result = became.get(results[reader.args[1]], results[reader.args[1]])
        name, meta = reader.name, dict(reader.meta)
        if not trains and isinstance(meta.get("val"), torch.Tensor):
            with graph.inserting_before(reader):
                result = graph.call_function(torch.ops.aten.detach.default, (result,))
                result.meta = meta
        reader.replace_all_uses_with(result)
        graph.erase_node(reader)
        if not trains and name != result.name:
            result._rename(name)
    graph.erase_node(node)
    if not part.users:
        graph.erase_node(part)


def _attribute(module: Any, path: str) -> Any:
    for step in path.split("."):
        module = getattr(module, step)
    return module
