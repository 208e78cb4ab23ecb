"""Docstrings of the functions that take the inputs of a command, from the inputs' descriptions."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import TypeVar

from planner.request.inputs import COMMANDS, AnyInput

_Function = TypeVar("_Function", bound=Callable[..., object])
_WIDTH = 96
_UNIT = re.compile(r" \[[^\]]*\]$")


def documented(command: str) -> Callable[[_Function], _Function]:
    """Put the parameters of a command into the docstring of its function."""

    def describe(function: _Function) -> _Function:
        text, mark, rest = inspect.cleandoc(function.__doc__ or "").partition("Returns\n")
        function.__doc__ = f"{text}{_parameters(command)}\n\n{mark}{rest}"
        return function

    return describe


def _parameters(command: str) -> str:
    lines = ["Parameters", "----------"]
    for one in COMMANDS[command]:
        if one.is_argument:
            lines.append(one.called)
            # the unit stays last
            text, unit = _UNIT.split(one.text)[0], "".join(_UNIT.findall(one.text))
            paragraph = textwrap.wrap(f"{text}{_shown_default(one)}{unit}", _WIDTH - 4)
            lines += [f"    {line}" for line in paragraph]
    return "\n".join(lines)


def _shown_default(one: AnyInput) -> str:
    """What the text does not say of the default."""
    value = one.usual if one.default is None else one.default
    if value is None or value == () or "default" in one.text:
        return ""
    return f" By default {value!r}." if not isinstance(value, float) else f" By default {value:g}."
