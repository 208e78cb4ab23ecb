"""What there is to say of an input, and the rules that values follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from costmodels.errors import InputError

T = TypeVar("T")
# Whole numbers up to here have a float of the same value.
MOST = 2**53
# Refuses a value by raising an `InputError`.
Rule: TypeAlias = Callable[[Any], None]
# What an option takes on the command line: text, a whole number, one of at least 1, a number,
# nothing (the option switches something on, or off if it starts with "--no-"), or text repeatedly.
Kind = Literal["text", "whole", "count", "number", "switch", "texts"]


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
    metavar, kind, help
        What the option takes, and its help text.
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
    metavar: str | None = None
    kind: Kind = "text"
    help: str = ""
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
    def switched_to(self) -> bool:
        """The value that an option of kind "switch" stands for."""
        return not self.option.startswith("--no-")

    def check(self, value: object) -> None:
        """Refuse a value that cannot be used; None is no value.

        Raises
        ------
        InputError
            When it breaks the rule.
        """
        if value is None:
            return
        if isinstance(value, str) and self.unit is not None:
            self.unit(value)
        elif self.rule is not None:
            self.rule(value)
        if isinstance(value, int) and abs(value) > MOST:
            what = f"the value of {self.option or self.called}"
            raise InputError.rule(what, "be at most 2**53", value, "lower it")

    def quantity(self, value: float | str) -> float:
        """A checked value in the unit that is used inside."""
        self.check(value)
        if isinstance(value, str):
            assert self.unit is not None, "only quantities with a unit are given as text"
            return self.unit(value)
        return float(value)

    def chose(self, **values: object) -> str:
        """What a plan says of the default that was filled in."""
        return self.chosen.format(**values)


AnyInput: TypeAlias = Input[Any]


def part_inputs(inputs: Sequence[AnyInput], part: str) -> tuple[AnyInput, ...]:
    """Those of the inputs that make up one field of `Request`."""
    return tuple(one for one in inputs if one.part == part)


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
        if not least <= value <= most:
            rule = f"be from {least:g} to {most:g} {unit}".rstrip()
            raise InputError.rule(what, rule, f"{float(value):g} {unit}".rstrip(), advice)

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
            raise InputError(f"{what} must be one of {', '.join(names)} but is '{value}'{end}")

    return check
