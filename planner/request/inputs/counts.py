"""Several whole numbers, the same everywhere: "4-64", "4,16,64" or "1-8,16", or a sequence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from costmodels.errors import InputError

_NUMBERS = re.compile(r"(\d{1,18})(?:\s*-\s*(\d{1,18}))?", re.ASCII)


def parse_counts(
    given: str | Sequence[int], *, what: str, most: int, possible: Callable[[int], bool]
) -> tuple[int, ...]:
    """The numbers that text or a sequence stands for, in their order; those of text each once.

    Numbers on their own are taken as they are, so that the caller says what is wrong with one; of a
    range only those are taken that are possible.

    Parameters
    ----------
    given
        The numbers.
    what
        What they are numbers of, in the plural.
    most
        Where ranges must end.
    possible
        Whether a number of a range can be used.

    Raises
    ------
    InputError
        When the text is no such numbers.
    """
    if not isinstance(given, str):
        return tuple(given)
    numbers: list[int] = []
    for piece in given.split(","):
        match = _NUMBERS.fullmatch(piece.strip())
        if match is None:
            raise InputError(
                f"the numbers of {what} must be whole numbers or ranges between commas but are "
                f"'{given}'; write them like 1-16 or 1,2,4,8"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if match[2] is None:
            numbers.append(first)
            continue
        if last < first or last > most:
            rule = "rise" if last < first else f"end at {most:,} or before"
            raise InputError.rule(
                f"a range of numbers of {what}", rule, f"'{piece.strip()}'", "write it like 1-16"
            )
        # zero is nowhere possible, and for the caller to refuse
        numbers += [n for n in range(first, last + 1) if n == 0 or possible(n)]
    return tuple(dict.fromkeys(numbers))
