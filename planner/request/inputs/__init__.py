"""Every input of every command: its names, default, rule, sentence and help text, here only.

Options of the command line, signatures and docstrings of the Python functions, their checks and the
commands that plans record all come from these tables, or are tested against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.request.inputs.description import AnyInput, Input, part_inputs
from planner.request.inputs.distributed import THROUGHPUT
from planner.request.inputs.question import EVALUATE, FRONT_SIZES, QUESTION, SCALE_SIZES, SIZE
from planner.request.inputs.searching import (
    DUMP_PROBLEM,
    FRONT,
    LEAST_MEMORY,
    RUNTIME,
    SEARCH,
    WISHED,
)
from planner.request.inputs.simulating import SIMULATE

__all__ = ["COMMANDS", "AnyInput", "Input", "field_inputs", "part_inputs"]

# Inputs of each command, in the order of its help text.
COMMANDS: Mapping[str, tuple[AnyInput, ...]] = MappingProxyType(
    {
        "optimize": (*SIZE, *QUESTION, *SEARCH, LEAST_MEMORY, *WISHED, DUMP_PROBLEM),
        "simulate": (*SIMULATE, *QUESTION),
        "evaluate": (*SIZE, *EVALUATE, *QUESTION),
        "pareto": (*FRONT_SIZES, *QUESTION, *FRONT),
        "scale": (*SCALE_SIZES, *QUESTION, *SEARCH, RUNTIME),
        "throughput": THROUGHPUT,
    }
)


def field_inputs() -> dict[str, AnyInput]:
    """The inputs by field of `Request`; where commands differ, as the first one has it."""
    found: dict[str, AnyInput] = {}
    for inputs in COMMANDS.values():
        for one in inputs:
            if not one.part:
                found.setdefault(one.name, one)
    return found
