"""Reading an ONNX file, and refusing what is none or what no network can be made of."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from costmodels.errors import InputError

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

MISSING = (
    "an ONNX file must be read by the package onnx, which is not installed; run pip install "
    "'planner[onnx]' (or pip install onnx)"
)
# What one message of protobuf holds; larger weights lie in files beside it. [B]
MOST_BYTES = 2**31 - 1
# Operators after functions are written out; the largest networks have some ten thousands. [items]
MOST_NODES = 200_000
# Operators that run parts of a network or not, or several times.
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")
LONGEST_NAME = 120


def clean(text: str) -> str:
    """A name without what no name of a layer needs."""
    return re.sub(r"[^\w.\-/]", "_", text, flags=re.ASCII)[:LONGEST_NAME]


def shown(node: NodeProto) -> str:
    """What error messages call an operator."""
    name = clean(node.name or next(iter(node.output), ""))
    return f"'{name}' ({clean(node.op_type)})"


def read_model(path: str) -> ModelProto:
    """The model of a file, its functions written out.

    Raises
    ------
    InputError
        When there is none, or it has control flow or operators of no known set.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(MISSING) from None
    try:
        size = os.path.getsize(path)
        if size > MOST_BYTES:
            raise InputError.rule(
                f"the file {path}",
                "hold at most 2 GiB",
                f"{size} bytes",
                "save its weights beside it (onnx.save with save_as_external_data=True)",
            )
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(
            f"the file {path} must be readable but is not ({reason}); correct the path"
        ) from None
    except DecodeError:
        raise InputError(
            f"the file {path} must be an ONNX model but is none, or is cut short; export it again"
        ) from None
    if not model.graph.node or not model.opset_import:
        raise InputError(
            f"the file {path} must be an ONNX model but holds no operators; export it again"
        )
    _check_texts(model, path)
    _check_operator_sets(model, path, onnx.defs.onnx_opset_version())
    model = _without_functions(model, path)
    for each in (*model.opset_import, *model.graph.node):
        if each.domain == "ai.onnx":
            each.domain = ""  # ONNX's own set by its other name
    for node in model.graph.node:
        if node.op_type in _CONTROL and not node.domain:
            raise InputError(
                f"{path} cannot be planned: it must run the same operators for all samples but "
                f"{shown(node)} chooses what runs; export it for one branch"
            )
    return model


def _check_texts(model: ModelProto, path: str) -> None:
    """Refuse names that are no text: these come as bytes."""
    graph = model.graph
    bodies = [graph.node, *(one.node for one in model.functions)]
    texts = [text for nodes in bodies for one in nodes for text in (*one.input, *one.output)]
    texts += [text for n in bodies for one in n for text in (one.name, one.op_type, one.domain)]
    named = (*graph.input, *graph.output, *graph.initializer, *graph.value_info)
    texts += [one.name for one in (*named, *model.functions)]
    texts += [one.domain for one in (*model.opset_import, *model.functions)]
    if any(isinstance(text, bytes) for text in texts):
        raise InputError(
            f"the names in {path} must be text in UTF-8 but some are not; export it again"
        )


def _check_operator_sets(model: ModelProto, path: str, newest: int) -> None:
    """Refuse versions of ONNX's own operators that the installed package does not know."""
    for one in model.opset_import:
        if one.domain in ("", "ai.onnx") and not 1 <= one.version <= newest:
            raise InputError.rule(
                f"the operators of {path}",
                f"be of a version from 1 to {newest} (opset_import)",
                one.version,
                "install a newer onnx, or export it with another opset_version",
            )


def _without_functions(model: ModelProto, path: str) -> ModelProto:
    """The model with the operators of its functions in their place."""
    functions = {(one.domain, one.name): one for one in model.functions}
    counts: dict[tuple[str, str], int] = {}
    if _count_operators(model.graph.node, functions, counts, ()) > MOST_NODES:
        raise InputError.rule(
            f"the functions of {path}",
            f"have at most {MOST_NODES} operators when they are written out",
            "more",
            "export it without functions",
        )
    if not functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the functions of {path} cannot be written out ({reason}); export it without them"
        ) from None


def _count_operators(
    nodes: Sequence[NodeProto],
    functions: Mapping[tuple[str, str], FunctionProto],
    counts: dict[tuple[str, str], int],
    inside: tuple[tuple[str, str], ...],
) -> int:
    """Operators once functions are written out. [items]

    Parameters
    ----------
    nodes
        The operators.
    functions, counts
        All functions, and what is known of them.
    inside
        Functions that these operators are of.
    """
    total = 0
    for node in nodes:
        key = (node.domain, node.op_type)
        function = functions.get(key)
        if function is None:
            total += 1
            continue
        if key in inside or len(inside) > 100:
            raise InputError(
                f"the function {clean(node.op_type)} must not call itself but does; export the "
                "model without functions"
            )
        if key not in counts:
            counts[key] = _count_operators(function.node, functions, counts, (*inside, key))
        total += counts[key]
    return total
