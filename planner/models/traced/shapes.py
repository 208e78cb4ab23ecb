"""Shapes of inputs as text: 8,3,224,224 or input_ids=8,128:int64."""

from __future__ import annotations

import re

from costmodels.errors import InputError

SHAPE_ADVICE = "give --input 8,3,224,224, input_ids=8,128:int64, or package.module:function"
_SHAPE = re.compile(r"(?:([\w.\-]+)=)?\s*(\d{1,18}(?:\s*,\s*\d{1,18})*)\s*(?::(\w+))?", re.ASCII)


def parse_shape(text: str) -> tuple[str, tuple[int, ...], str]:
    """The name, the extents and the type that text says; name and type may be empty.

    Raises
    ------
    InputError
        When it is no shape.
    """
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise InputError.rule("an input (--input)", "be a shape", f"'{text}'", SHAPE_ADVICE)
    extents = tuple(int(extent) for extent in found[2].split(","))
    return found[1] or "", extents, found[3] or ""
