"""Cases: a command or a chain of them, with the files that they are given."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from hashlib import sha256

from benchmarks.same_answers.commands import (
    CATALOGUE,
    EACH,
    EVALUATE,
    OPTIMIZE,
    REFUSED,
    SCALE,
    SHORT,
    SIMULATE,
    SNIPPETS,
    SOLVE,
    THROUGHPUT,
)
from benchmarks.same_answers.files import GIVEN


@dataclass(frozen=True, slots=True)
class CommandCase:
    """Commands that run one after the other in one folder.

    Parameters
    ----------
    steps
        The words of each command.
    """

    steps: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The case as a line."""
        return " && ".join(map(shlex.join, self.steps))

    @property
    def name(self) -> str:
        """A name for folders: the same in every record, and of one case alone."""
        slug = re.sub(r"[^\w.+-]+", "_", self.text)[:60].strip("_.")
        return f"{slug}-{sha256(self.text.encode()).hexdigest()[:8]}"

    @property
    def files(self) -> dict[str, str]:
        """What the folder holds at the start."""
        words = {word for step in self.steps for word in step}
        return {name: text for name, text in GIVEN.items() if name in words}


def cases() -> list[CommandCase]:
    """All cases, the longest kinds first."""
    texts = (OPTIMIZE, EVALUATE, SCALE, SIMULATE, SOLVE, THROUGHPUT, REFUSED, CATALOGUE)
    lines = [line for text in texts for line in text.strip().splitlines()]
    found = [
        CommandCase(tuple(tuple(shlex.split(step)) for step in one.split(" && ")))
        for line in lines
        for one in _expanded(line)
    ]
    found += [CommandCase((("python", code),)) for code in SNIPPETS]
    if len({case.name for case in found}) != len(found):
        raise SystemExit("error: a case is listed twice")
    return found


def _expanded(line: str) -> list[str]:
    """A line with the words of `SHORT` written out, for every word of `EACH` that it wants."""
    for word, text in SHORT.items():
        line = line.replace(word, text)
    for word, texts in EACH.items():
        if f"<{word}>" in line:
            return [line.replace(f"<{word}>", text) for text in texts.split()]
    return [line]


# --- record
