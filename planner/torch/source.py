"""What a user names: a module of PyTorch or its factory, and the inputs that it takes.

Importing the user's code is what naming it asks for; files of plans and networks never do so.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from costmodels.errors import InputError
from planner.models.traced.shapes import SHAPE_ADVICE, parse_shape
from planner.torch.own_code import own_code
from planner.torch.trace import require_torch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costmodels.graph import Network
    from planner.torch.ingest import Sample, TracedNetwork

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def is_reference(source: object) -> bool:
    """Whether text names something in Python: package.module:name."""
    return isinstance(source, str) and _REFERENCE.fullmatch(source) is not None


def network_of_source(source: object, inputs: object) -> Network:
    """The network of a module, of its factory, or of text that names one.

    Parameters
    ----------
    source
        The module, a function or class that makes one, or "package.module:name".
    inputs
        Shapes or tensors, the first extent of which is the samples.

    Raises
    ------
    InputError
        When there is no such module, or it cannot be traced with these inputs.
    """
    return traced_source(source, inputs).network


def traced_source(source: object, inputs: object) -> TracedNetwork:
    """As `network_of_source`, with the operators that the layers are made of."""
    require_torch()
    from planner.torch.ingest import network_of_module

    called = f"'{source}'" if isinstance(source, str) else "the model"
    found = _imported(source) if isinstance(source, str) else source
    module, device = _module_of(found, called)
    samples = samples_of(inputs, device, module)
    name = type(module).__name__
    states = [(each, each.training) for each in module.modules()]
    try:
        with own_code(f"calling train() of {called}"):
            module.train()
        return network_of_module(module, samples, name)
    finally:
        for each, state in states:
            each.training = state


def make_module(reference: str) -> nn.Module:
    """The module that text names, with its numbers."""
    require_torch()
    from torch import nn

    found = _imported(reference)
    called = f"'{reference}'"
    if isinstance(found, nn.Module):
        return found
    _module_of(found, called)
    assert callable(found), "what makes no module is refused"
    with own_code(f"calling {called}"):
        made: nn.Module = found()
    return made


def require_one_input(reference: str) -> None:
    """Refuse a module that cannot be called with the one input that a plan tells the shape of."""
    module, _ = _module_of(_imported(reference), f"'{reference}'")
    taken = inspect.signature(module.forward).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in taken if one.default is one.empty and one.kind not in variadic]
    if len(needed) > 1:
        raise InputError(
            f"the inputs of '{reference}' must be given, since a plan tells the shape of one, but "
            f"it takes {', '.join(needed)}; {SHAPE_ADVICE} for each, as when it was planned"
        )


def input_texts(reference: str, inputs: object) -> tuple[str, ...]:
    """The inputs of a module as text: name=extents:type each, without a name where by place.

    Parameters
    ----------
    reference
        The module, as "package.module:name".
    inputs
        Shapes or tensors, or what makes them.
    """
    import torch

    module, device = _module_of(_imported(reference), f"'{reference}'")
    return tuple(
        f"{one.name}{'=' if one.name else ''}{','.join(map(str, one.tensor.shape))}"
        f":{str(one.tensor.dtype).rpartition('.')[2]}"
        for one in samples_of(inputs, device, module)
        if isinstance(one.tensor, torch.Tensor)
    )


def _imported(reference: str) -> object:
    """What text names, imported from the folder that a command runs in or from elsewhere."""
    place, _, path = reference.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    with own_code(f"importing '{place}'"):
        try:
            found: object = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            advice = "run the command in its folder, or install it"
            if place.endswith(".py"):
                advice = f"leave .py out: {place.removesuffix('.py')}:{path}"
            raise InputError(
                f"'{reference}' must name a module that can be imported but there is no "
                f"'{error.name}'; {advice}"
            ) from None
    for part in path.split("."):
        with own_code(f"reading '{part}' of '{reference}'"):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise InputError(
                    f"'{reference}' must name something that is there but '{place}' has no "
                    f"'{part}'; correct the name"
                ) from None
    return found


def _module_of(source: object, called: str) -> tuple[Any, Any]:
    """The module that is traced, and the device of its weights: none of them has numbers yet."""
    import torch
    from torch import nn

    if isinstance(source, nn.Module):
        first = next(iter(source.parameters()), None)
        return source, torch.device("cpu") if first is None else first.device
    if not callable(source):
        raise InputError.rule(
            called,
            "be a torch.nn.Module or make one",
            f"of type {type(source).__name__}",
            "correct it",
        )
    meta = torch.device("meta")
    with own_code(f"calling {called}"):
        try:
            with meta:
                module = source()
        except Exception:
            # what computes with numbers while it is made needs some
            module = source()
            module = module.to(meta) if isinstance(module, nn.Module) else module
    if not isinstance(module, nn.Module):
        raise InputError.rule(
            f"what {called} makes",
            "be a torch.nn.Module",
            f"of type {type(module).__name__}",
            "return one",
        )
    return module, meta


def samples_of(inputs: object, device: torch.device | None, module: nn.Module) -> list[Sample]:
    """Tensors of the shapes of the inputs, with the names of those that are given by name.

    Parameters
    ----------
    inputs
        Tensors, shapes or what makes them.
    device
        Where tensors are to be.
    module
        What is called with them.
    """
    from planner.torch.ingest import Sample

    try:
        rows = _flat_inputs(inputs, device)
    except RecursionError:
        raise InputError(
            "the inputs of a module must not hold or make themselves but do; correct them"
        ) from None
    if not rows:
        raise InputError(
            f"the inputs of a module must be given with it but are not; {SHAPE_ADVICE}"
        )
    if all(tensor.dim() and tensor.shape[0] == 1 for _, tensor in rows):
        # a single sample cannot be told from what is the same for all samples
        rows = [(name, tensor.new_empty((2, *tensor.shape[1:]))) for name, tensor in rows]
    taken = inspect.signature(module.forward).parameters
    for name, _ in rows:
        variadic = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        if name and name not in taken and not variadic:
            known = ", ".join(taken)
            raise InputError(
                f"the input '{name}' must be an argument of {type(module).__name__} but that takes "
                f"{known}; correct --input"
            )
    found = [Sample(name=name, tensor=tensor) for name, tensor in rows]
    # caches of keys and values are for inference
    if "use_cache" in taken:
        found.append(Sample(name="use_cache", tensor=False))
    return found


def _flat_inputs(inputs: object, device: Any, name: str = "") -> list[tuple[str, Any]]:
    """Every input by name, empty for those that are given by their place.

    Parameters
    ----------
    inputs
        Tensors, shapes or what makes them.
    device
        Where tensors are to be.
    name
        What a single one is called.
    """
    import torch

    if isinstance(inputs, torch.Tensor):
        return [(name, torch.empty_like(inputs, device=device))]
    if isinstance(inputs, Mapping):
        named = ((one, _flat_inputs(each, device, str(one))) for one, each in inputs.items())
        return [(str(one), tensor) for one, rows in named for _, tensor in rows]
    if isinstance(inputs, str):
        return _from_text(inputs, device, name)
    if isinstance(inputs, Sequence):
        if inputs and all(isinstance(n, int) and not isinstance(n, bool) for n in inputs):
            return [(name, _empty(name, inputs, "", device))]
        return [row for one in inputs for row in _flat_inputs(one, device, name)]
    if callable(inputs):
        with own_code("calling the factory of inputs"):
            made = inputs()
        return _flat_inputs(made, device, name)
    raise InputError.rule(
        "an input of a module",
        "be a tensor, a shape or several of them",
        f"a {type(inputs).__name__}",
        "correct it",
    )


def _from_text(text: str, device: Any, name: str) -> list[tuple[str, Any]]:
    if is_reference(text):
        return _flat_inputs(_imported(text), device, name)
    called, extents, kind = parse_shape(text)
    name = called or name
    return [(name, _empty(name, extents, kind, device))]


def _empty(name: str, extents: Sequence[int], kind: str, device: Any) -> Any:
    """A tensor of a shape; what is called ids is of whole numbers.

    Parameters
    ----------
    name, extents
        The input. [items]
    kind
        Its type, such as "int64"; empty for the usual one.
    device
        Where it is to be.
    """
    import torch

    kind = kind or ("int64" if name.endswith("ids") else "float32")
    dtype = getattr(torch, kind, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError.rule(
            "the type of an input (--input)", "be one of PyTorch's", f"'{kind}'", "such as int64"
        )
    if not extents or min(extents) < 1:
        raise InputError.rule(
            "the extents of an input (--input)", "be at least 1", list(extents), SHAPE_ADVICE
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that PyTorch gives up
            return torch.empty(tuple(extents), dtype=dtype, device=device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"an input (--input) of {'x'.join(map(str, extents))} of {kind} must be a tensor that "
            f"PyTorch can make but is not: {reason}; {SHAPE_ADVICE}"
        ) from None
