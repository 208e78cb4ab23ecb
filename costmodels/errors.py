"""The one error a user can cause: its message is a single sentence that can be shown as it is."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence

# What moves a cursor, hides text, turns its direction or cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
_WORD = re.compile(r"\S{161,}")
# What is repeated of one quoted value, of one word such as a path, and of a whole message.
_LONGEST_QUOTED, _LONGEST_WORD, _LONGEST_MESSAGE = 80, 160, 560


def printable(text: str) -> str:
    """Text without control characters; tabs and line ends stay."""
    return text if text.isprintable() else _CONTROL.sub("", text)


def plain(text: str) -> str:
    """Text as one line without control characters."""
    return " ".join(printable(text).split())


def one_line(message: str) -> str:
    """A message as one line that a terminal can show, whatever the values are that it repeats."""
    text = plain(_shortened(message, 10_000))
    if len(text) > _LONGEST_QUOTED:
        text = _QUOTED.sub(lambda found: _shortened(found[0], _LONGEST_QUOTED), text)
        text = _WORD.sub(lambda found: _shortened(found[0], _LONGEST_WORD), text)
    return _shortened(text, _LONGEST_MESSAGE)


def _shortened(text: str, most: int) -> str:
    """Leave out the middle of a text that is too long."""
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 3]}...{text[-end:]}"


def closest(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name: the known ones that begin so, then the nearest ones first."""
    low = name.lower()
    begun = [one for one in known if low and one.lower().startswith(low)]
    match = difflib.get_close_matches(low, [one.lower() for one in known], n=3, cutoff=0.5)
    near = [one for text in match for one in known if one.lower() == text]
    return ", ".join(dict.fromkeys([*begun, *near, *known]))


class InputError(ValueError):
    """Something that the user gave cannot be used.

    The message says what, the rule, the value with its unit, and what to do next. It is one line,
    without control characters, in which long values are cut.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))

    @classmethod
    def rule(cls, what: str, rule: str, value: object, advice: str) -> InputError:
        """The usual sentence: what must be how, what it is instead, what to do next.

        Parameters
        ----------
        what
            What was given, such as "the overlap factor".
        rule
            What it must do, such as "be from 0 to 10".
        value
            What it is, with its unit.
        advice
            What to do next.
        """
        return cls(f"{what} must {rule} but is {value}; {advice}")


def require_name(what: str, name: str) -> None:
    """Refuse a name that nobody can see, or that is more than one line.

    Parameters
    ----------
    what
        What error messages call it.
    name
        The name.
    """
    if not name.strip() or printable(name) != name or len(name.splitlines()) > 1 or "\t" in name:
        rule = "be text on one line without control characters"
        raise InputError.rule(what, rule, f"'{name}'", "write another name")


def require_positive(what: str, value: float, unit: str = "", *, finite: bool = True) -> None:
    """Refuse a figure that is not above zero.

    Parameters
    ----------
    what
        What error messages call it.
    value
        The figure.
    unit
        Its unit, if it has one.
    finite
        Whether it must be finite, too; infinite rates set no limit.
    """
    if not value > 0 or (finite and math.isinf(value)):
        rule = "be greater than 0 and finite" if finite else "be greater than 0"
        raise InputError.rule(what, rule, f"{value:g} {unit}".rstrip(), "correct it")


def require_not_negative(what: str, value: float, unit: str = "") -> None:
    """Refuse a figure that is negative or infinite.

    Parameters
    ----------
    what
        What error messages call it.
    value
        The figure.
    unit
        Its unit, if it has one.
    """
    if not (math.isfinite(value) and value >= 0):
        rule = "not be negative and must be finite"
        raise InputError.rule(what, rule, f"{value:g} {unit}".rstrip(), "correct it")


def require_between(
    what: str, value: float, limits: tuple[float, float], advice: str, *, unit: str = ""
) -> None:
    """Refuse a figure below the least or above the largest one that can be used.

    Parameters
    ----------
    what
        What error messages call it.
    value
        The figure.
    limits
        The least and the largest one.
    advice
        What to do if it is another.
    unit
        Its unit, if it has one.
    """
    least, most = limits
    if not least <= value <= most:
        rule = f"be from {least:g} to {most:g} {unit}".rstrip()
        raise InputError.rule(what, rule, f"{float(value):g} {unit}".rstrip(), advice)
