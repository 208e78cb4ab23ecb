"""Study files: grids and ranges of the inputs of `planner optimize`, and the questions they make.

    name = "sizes"

    [[grid]]
    model = ["llama3-8b", "gpt2"]
    gpus = { from = 8, to = 64, factor = 2 }
    memory = ["40 GiB", "80 GiB"]
    precision = "bf16"

A grid asks one question for every combination of its values, the last input changing fastest. A
file with several grids asks those of each, equal ones once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

import planner
from costmodels.errors import InputError, closest, require_name
from costmodels.units.tables import parse_toml, read_text
from planner.request.inputs import COMMANDS
from planner.request.inputs.description import MOST, AnyInput
from planner.request.request import Request, make_request

# More are no study but a slip: at a second each they take hours. [items]
MOST_QUESTIONS = 10_000
LONGEST_NAME = 200
_RANGE = frozenset({"from", "to", "step", "factor"})
_QUANTITY = re.compile(r"\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[a-zA-Z]+)\s*")


def _input_names() -> dict[str, AnyInput]:
    """Inputs by all names that they have: in Python, and on the command line with underscores."""
    found: dict[str, AnyInput] = {}
    for one in COMMANDS["optimize"]:
        if not one.recorded:
            continue
        options = () if one.option.startswith("--no-") else (one.option, *one.aliases)
        for name in (one.called, *options):
            found[name.lstrip("-").replace("-", "_")] = one
    found.pop("", None)
    return found


class StudyQuestion(Struct, frozen=True, kw_only=True):
    """One question of a study.

    Parameters
    ----------
    values
        What is given, by the names of the inputs in Python.
    key
        The same for questions that have the same answer: values, contents of the files that they
        name, version of the planner.
    """

    values: Mapping[str, object]
    key: str

    def request(self) -> Request:
        """The request for its plan.

        Raises
        ------
        InputError
            When its values cannot be used together.
        """
        return make_request("optimize", self.values)


class Sweep(Struct, frozen=True, kw_only=True):
    """What a study file asks.

    Parameters
    ----------
    name
        Name of the study.
    questions
        In their order, each once.
    """

    name: str
    questions: tuple[StudyQuestion, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs that any question gives."""
        return tuple(dict.fromkeys(name for one in self.questions for name in one.values))

    @property
    def varied(self) -> tuple[str, ...]:
        """Inputs that are not the same in all questions."""
        return tuple(
            name
            for name in self.inputs
            if len({json.dumps(one.values.get(name)) for one in self.questions}) > 1
        )


def read_sweep(path: str) -> Sweep:
    """The questions of a study file.

    Raises
    ------
    InputError
        When the file is missing or wrong.
    """
    where = f"the study file {path}"
    tables = parse_toml(read_text(path, where), where)
    unknown = [key for key in tables if key not in ("name", "grid")]
    if unknown:
        raise InputError(
            f"{where} must hold a name and [[grid]] tables but has '{unknown[0]}'; put inputs of "
            "'planner optimize' into a grid"
        )
    name = tables.get("name", Path(path).stem)
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        rule = f"be text of at most {LONGEST_NAME} characters"
        raise InputError.rule(f"the name in {where}", rule, repr(name), "write another name")
    require_name(f"the name in {where}", name)
    given = tables.get("grid")
    grids = [given] if isinstance(given, dict) else given
    if not isinstance(grids, list) or not grids or not all(isinstance(g, dict) for g in grids):
        raise InputError(
            f"{where} must have at least one [[grid]] table but has none; add one with model and "
            "gpus"
        )
    read = [_values_of_grid(grid, f"{where}, grid {n}") for n, grid in enumerate(grids, 1)]
    count = sum(math.prod(len(values) for values in grid.values()) for grid in read)
    if count > MOST_QUESTIONS:
        # longer ranges were not read to their ends
        whole = all(len(values) <= MOST_QUESTIONS for grid in read for values in grid.values())
        raise InputError(
            f"{where} must ask at most {MOST_QUESTIONS:,} questions but asks "
            f"{f'{count:,}' if whole else 'more'}; take values out"
        )
    files: dict[str, str] = {}
    questions = [
        _question(dict(zip(grid, values, strict=True)), files)
        for grid in read
        for values in itertools.product(*grid.values())
    ]
    return Sweep(name=name, questions=tuple({one.key: one for one in questions}.values()))


def _values_of_grid(grid: Mapping[str, object], where: str) -> dict[str, Sequence[object]]:
    """The values of each input of a grid, checked one by one."""
    known = _input_names()
    found: dict[str, Sequence[object]] = {}
    for name, given in grid.items():
        one = known.get(name)
        if one is None:
            message = f"{where} must hold inputs of 'planner optimize' but has '{name}'"
            raise InputError(f"{message}; use one of {closest(name, list(known))}")
        if one.called in found:
            raise InputError(f"{where} gives {one.called} twice; leave one out")
        try:
            found[one.called] = [_checked(one, value) for value in _values_of(one, name, given)]
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    missing = [one for one in ("model", "gpus") if one not in found]
    if missing:
        raise InputError(f"{where} lacks {' and '.join(missing)}; add {' and '.join(missing)}")
    return found


def _values_of(one: AnyInput, name: str, given: object) -> Sequence[object]:
    """The values that a list, a range or one value stands for."""
    if isinstance(given, Mapping):
        if one.unit is not None:
            return list(_quantities(name, given))
        numbers = list(_range_values(name, given))
        return _whole(name, given, numbers) if one.kind in ("whole", "count") else numbers
    if not isinstance(given, list):
        return [given]
    if not given:
        raise InputError(f"the values of {name} must be at least one but are none; add one")
    return given


def _quantities(name: str, given: Mapping[str, object]) -> Iterator[str]:
    """The quantities of a range whose ends and step are text in one unit."""
    parts = {
        key: _QUANTITY.fullmatch(value) for key, value in given.items() if isinstance(value, str)
    }
    units = {part["unit"] for part in parts.values() if part is not None}
    if (
        None in parts.values()
        or len(units) != 1
        or not {"from", "to", "step"} & set(given) <= set(parts)
    ):
        raise InputError(
            f'the range of {name} must be of quantities in one unit like {{ from = "16 GiB", to '
            f'= "64 GiB", step = "16 GiB" }} but is {json.dumps(given, default=str)}; '
            "correct it"
        )
    (unit,) = units
    plain = {key: float(part["number"]) for key, part in parts.items() if part is not None}
    for value in _range_values(name, {**given, **plain}):
        yield f"{value:g} {unit}"


def _range_values(name: str, given: Mapping[str, object]) -> Iterator[float]:
    """The numbers of a range, both ends included."""
    how = [key for key in ("step", "factor") if key in given]
    numbers: dict[str, Any] = dict(given)
    plain = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers.values())
    if len(how) != 1 or set(given) - _RANGE or not {"from", "to"} <= set(given) or not plain:
        raise InputError(
            f"the range of {name} must be numbers like {{ from = 8, to = 64, factor = 2 }}, with "
            f"a step or a factor, but is {json.dumps(given, default=str)}; correct it"
        )
    first, last, by = numbers["from"], numbers["to"], numbers[how[0]]
    rises = by > 0 if how[0] == "step" else by > 1 and first > 0
    if not rises or not first <= last < math.inf:
        raise InputError(
            f"the range of {name} must rise from its first number to its last one but goes from "
            f"{first:g} to {last:g} by a {how[0]} of {by:g}; correct it"
        )
    for place in range(MOST_QUESTIONS + 1):
        try:
            value = first + place * by if how[0] == "step" else first * by**place
        except OverflowError:  # of fractions, so that it is beyond the last one
            return
        # a last value of fractions may miss the end by rounding
        if value > last * (1.0 + 1e-12):
            return
        yield value


def _whole(name: str, given: Mapping[str, Any], numbers: Sequence[float]) -> Sequence[float]:
    """The numbers of a range as whole ones.

    Parameters
    ----------
    name, given
        The input, and its range.
    numbers
        Those of the range.
    """
    broken = next((number for number in numbers if number % 1), None)
    if broken is not None:
        how = "step" if "step" in given else "factor"
        blamed = (
            f"begins with {broken:g}; correct where it begins"
            if broken == given["from"]
            else f"has {broken:g} by its {how} of {given[how]:g}; correct the {how}"
        )
        raise InputError(f"the range of {name} must be of whole numbers but {blamed}")
    # beyond, fractions stand for several numbers
    return [int(number) if number <= MOST else number for number in numbers]


def _checked(one: AnyInput, value: object) -> object:
    if one.kind == "texts" and isinstance(value, str):
        value = [value]
    named = isinstance(value, str) and bool(value.strip())
    if one.kind == "object" and not named and one.unit is None:
        raise InputError.rule(one.called, "be a name or a path", repr(value), "correct it")
    if one.unit is not None and isinstance(value, int | float) and not isinstance(value, bool):
        # files carry units, numbers without one are for Python
        one.unit(f"{value:g}")
    one.check(value)
    return value


def _question(values: Mapping[str, object], files: dict[str, str]) -> StudyQuestion:
    """A question with its key.

    Parameters
    ----------
    values
        What is given.
    files
        Digests of files by path, those that were not read yet are added.
    """
    named: dict[str, str] = {}
    for value in itertools.chain.from_iterable(
        one if isinstance(one, list) else (one,) for one in values.values()
    ):
        # built-in names come before files of such a name, but a file more does no harm
        if isinstance(value, str) and os.path.isfile(value):
            if value not in files:
                files[value] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
            named[value] = files[value]
    facts = {"values": values, "files": named, "planner": planner.__version__}
    text = json.dumps(facts, sort_keys=True)
    return StudyQuestion(values=values, key=hashlib.sha256(text.encode()).hexdigest())
