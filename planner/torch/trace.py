"""Trace a module: every operator that it runs, without running one of them.

Tensors have a shape and no numbers (PyTorch's device "meta"), so that a network of any size is
traced in the memory of its source code.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

from costmodels.errors import InputError
from planner.torch.nodes import is_library, operator_of, user_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

MISSING = (
    "a PyTorch module must be traced by PyTorch, which is not installed; run pip install "
    "'planner[torch]' (or pip install torch==2.13.0)"
)
# Where networks come from that were traced.
MODULE_SOURCE = "a PyTorch module"
# Operators that run parts of a module or not, or several times.
_CONTROL = ("cond", "while_loop", "scan", "map_impl", "associative_scan")


def require_torch() -> None:
    """Say what to install where PyTorch is missing.

    Raises
    ------
    InputError
        When it is.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(MISSING) from None


def trace(
    module: object, args: Sequence[object], options: Mapping[str, object], name: str
) -> ExportedProgram:
    """What a module runs for some inputs.

    Parameters
    ----------
    module
        The module, on the device "meta".
    args, options
        What it is called with.
    name
        What error messages call it.

    Raises
    ------
    InputError
        When it cannot be traced: the operator and the line of the user's code are named.
    """
    import torch
    from torch import nn

    assert isinstance(module, nn.Module), "checked where it is made"
    # what PyTorch has to say of a failure is said in one sentence below
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with alone(), redirect_stdout(sys.stderr), redirect_stderr(StringIO()):
                program = torch.export.export(module, tuple(args), dict(options))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # the code of the user may end the program, which is no plan
        raise InputError(_sentence(name, error)) from None
    finally:
        logging.disable(level)
    for node in program.graph.nodes:
        _check(node, name)
    return program


@contextmanager
def alone() -> Iterator[None]:
    """Let SyncBatchNorm compute as one process does: its operators are known for GPUs only."""
    import torch.distributed as dist

    known = dist.is_initialized
    dist.is_initialized = lambda: False
    try:
        yield
    finally:
        dist.is_initialized = known


def _check(node: Node, name: str) -> None:
    """Refuse an operator whose result is of no fixed shape, or that chooses what to run."""
    if node.op not in ("call_function", "call_method"):
        return
    # what PyTorch writes itself has no line of the user's: that of what it reads is next to it
    lines = (user_line(one.meta.get("stack_trace") or "") for one in (node, *node.all_input_nodes))
    where = next(filter(None, lines), "")
    at = f" ({where})" if where else ""
    operator = operator_of(node)
    if operator in _CONTROL:
        raise InputError(
            f"{name} cannot be planned: it must run the same operators for all samples but "
            f"'{operator}' chooses among them{at}; plan for one branch"
        )
    values = node.meta.get("val")
    values = values if isinstance(values, list | tuple) else [values]
    for value in values:
        shape = getattr(value, "shape", ())
        if any(not isinstance(extent, int) for extent in shape):
            raise InputError(
                f"{name} cannot be planned: all shapes must be known but that of '{operator}' "
                f"depends on the samples{at}; give it a fixed size"
            )


def _sentence(name: str, error: BaseException) -> str:
    """Why a module cannot be traced: what failed, and where in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(frame.filename)]
    own = [frame for frame in own if "/planner/torch/" not in frame.filename]
    where = f"{own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else ""
    text = str(error)
    where = where or user_line(text)
    found = re.search(r"aten[.:]+(\w+)", text)
    operator = f"'{found[1]}' " if found else ""
    dependent = "data-dependent" in text or "DataDependent" in type(error).__name__
    dependent = dependent or "GuardOnDataDependent" in text or "unbacked" in text
    at = f" ({where})" if where else ""
    if dependent:
        return (
            f"{name} cannot be traced: what it runs, and all shapes, must not depend on values of "
            f"the samples but {operator or 'an operator '}does{at}; plan for one branch, or give "
            "it a fixed size"
        )
    reason = " ".join((text.splitlines() or [type(error).__name__])[0].split()) or "no reason given"
    return (
        f"{name} cannot be traced: {operator}{type(error).__name__}: {reason[:200]}{at}; correct "
        "the module or its inputs (--input)"
    )
