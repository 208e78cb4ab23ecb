"""What there is to say of an input, and the rules that values follow."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from costmodels.errors import InputError, closest, require_between

T = TypeVar("T")
# Whole numbers up to here have a float of the same value.
MOST = 2**53
# Refuses a value by raising an `InputError`.
Rule: TypeAlias = Callable[[Any], None]
# What an input is: text, a whole number, one of at least 1, a number, a switch (on the command line
# an option that switches something on, or off if it starts with "--no-"), paths (an option that may
# be repeated), several whole numbers, or an object, for which the command line takes its name.
# With "mixed" it is one of several, which its rule tells apart; "shapes" are those of tensors on
# the command line, and tensors or what makes them from Python.
Kind = Literal[
    "text",
    "whole",
    "count",
    "number",
    "switch",
    "texts",
    "counts",
    "object",
    "mixed",
    "shapes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(Generic[T]):
    """One input of a command.

    Parameters
    ----------
    name
        The field of `Request`, or of the part of it that is named by `part`.
    default
        Its value where none is given.
    text
        Its description for the docstrings of Python functions, with its unit.
    keyword
        Its name in Python functions, where that is not the field's.
    option
        Its name on the command line; empty where it has none.
    aliases
        Further names there.
    metavar, kind, help
        What the option takes, and its help text.
    bare
        What the option stands for where no value follows it; empty where one must.
    required, shown
        Whether it must be given, and whether its help text is to show the default.
    part
        The field of `Request` that it is a part of, such as "degrees".
    unit
        Reads text with a unit, such as "25 MiB".
    rule
        Refuses what cannot be used. Rules that need the network or the machine stand where those
        are known.
    usual
        What a default of None amounts to, where that depends on nothing else.
    chosen
        What a plan says when a default is filled in.
    recorded
        Whether the command that a plan records repeats it.
    """

    name: str
    default: T
    text: str
    keyword: str = ""
    option: str = ""
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    kind: Kind = "text"
    help: str = ""
    bare: str = ""
    required: bool = False
    shown: bool = False
    part: str = ""
    unit: Callable[[str], float] | None = None
    rule: Rule | None = None
    usual: object = None
    chosen: str = ""
    recorded: bool = True

    @property
    def called(self) -> str:
        """Its name in Python functions, and among the values of the command line."""
        return self.keyword or self.name

    @property
    def is_argument(self) -> bool:
        """Whether Python functions take it by its own name, as they take fields and degrees."""
        return self.part in ("", "degrees")

    @property
    def switched_to(self) -> bool:
        """The value that an option of kind "switch" stands for."""
        return not self.option.startswith("--no-")

    def check(self, value: object) -> object:
        """A value as it is used inside; None is no value.

        Raises
        ------
        InputError
            When it is of another kind, or breaks the rule.
        """
        if value is None:
            return None
        value = self._of_kind(value)
        if isinstance(value, str) and self.unit is not None:
            self.unit(value)
        elif self.rule is not None:
            self.rule(value)
        if isinstance(value, int) and abs(value) > MOST:
            what = f"the value of {self.option or self.called}"
            raise InputError.rule(what, "be at most 2**53", value, "lower it")
        return value

    def quantity(self, value: float | str) -> float:
        """A checked value in the unit that is used inside."""
        checked = self.check(value)
        if isinstance(checked, str):
            assert self.unit is not None, "only quantities with a unit are given as text"
            return self.unit(checked)
        assert isinstance(checked, float), "other quantities are numbers"
        return checked

    def _of_kind(self, value: object) -> object:
        """The value of the kind of the input that an argument from Python stands for."""
        if self.kind in ("whole", "count"):
            return self._whole(value, least=1 if self.kind == "count" else None)
        if self.kind == "number" or (self.unit is not None and not isinstance(value, str)):
            return self._real(value)
        if self.kind == "switch" and not isinstance(value, bool):
            raise self._misfit("be True or False", value)
        if self.kind == "text" and not isinstance(value, str):
            raise self._misfit("be text", value)
        if self.kind == "texts":
            paths = self._sequence(value, "be a list of paths")
            for path in paths:
                if not isinstance(path, str | os.PathLike) and not _is_table(path):
                    raise self._misfit("be a list of paths", path)
            return paths
        if self.kind == "counts" and not isinstance(value, str):
            numbers = self._sequence(value, "be whole numbers, or text like '4-64' or '4,16,64'")
            return tuple(self._whole(number) for number in numbers)
        return value

    def _whole(self, value: object, least: int | None = None) -> int:
        try:
            # truth is no number, though Python counts with it
            number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
        if number is None:
            raise self._misfit("be a whole number", value)
        if least is not None and number < least:
            what = f"the value of {self.option or self.called}"
            raise InputError.rule(what, f"be at least {least}", number, "raise it")
        return number

    def _real(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real) or value != value:
            also = ", or text with a unit" if self.unit is not None else ""
            raise self._misfit(f"be a number{also}", value)
        try:
            return float(value)
        except OverflowError:
            raise self._misfit("be a number that can be computed with", value) from None

    def _sequence(self, value: object, rule: str) -> tuple[object, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise self._misfit(rule, value)
        return tuple(value)

    def _misfit(self, rule: str, value: object) -> InputError:
        return InputError.rule(self.called, rule, repr(value), "correct it")

    def chose(self, **values: object) -> str:
        """What a plan says of the default that was filled in."""
        return self.chosen.format(**values)


AnyInput: TypeAlias = Input[Any]


def part_inputs(inputs: Sequence[AnyInput], part: str) -> tuple[AnyInput, ...]:
    """Those of the inputs that make up one field of `Request`."""
    return tuple(one for one in inputs if one.part == part)


def _is_table(value: object) -> bool:
    """Whether a value is a table that was read already."""
    from costmodels.compute.table import CostTable

    return isinstance(value, CostTable)


def at_least(least: float, what: str, advice: str, *, unit: str = "") -> Rule:
    """The rule of numbers from a least one on.

    Parameters
    ----------
    least
        The least one that can be used.
    what, advice
        What the number is, and what to do if it is less.
    unit
        Its unit, if it has one.
    """

    def check(value: float) -> None:
        if not value >= least:
            shown = f"at least {least:g}{f' {unit}' if unit else ''}"
            raise InputError.rule(what, f"be {shown}", f"{value}", advice)

    return check


def between(least: float, most: float, what: str, advice: str, *, unit: str = "") -> Rule:
    """The rule of numbers from one to another.

    Parameters
    ----------
    least, most
        The least and the largest one that can be used.
    what, advice
        What the number is, and what to do if it is another.
    unit
        Its unit, if it has one.
    """

    def check(value: float) -> None:
        require_between(what, value, (least, most), advice, unit=unit)

    return check


def seed_rule(what: str) -> Rule:
    """Whole numbers that every generator of random numbers takes."""

    def check(value: int) -> None:
        if not 0 <= value < 2**32:
            raise InputError.rule(
                what, "be at least 0 and less than 2**32", value, "choose another one"
            )

    return check


def one_of(what: str, known: Callable[[], Sequence[str]], advice: str = "") -> Rule:
    """The rule of names out of some.

    Parameters
    ----------
    what
        What the name is of.
    known
        Gives the names; asked only where there is a name to check.
    advice
        What to do about another one.
    """

    def check(value: str) -> None:
        names = known()
        if value not in names:
            end = f"; {advice}" if advice else ""
            nearest = closest(str(value), names)
            raise InputError(f"{what} must be one of {nearest} but is '{value}'{end}")

    return check
