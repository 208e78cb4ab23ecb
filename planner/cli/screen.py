"""Writing to the terminal: tables on stdout, progress on stderr."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

# Work that takes less than this needs no progress indicator. [s]
PATIENCE = 0.7
# Figures are never cut: a narrower terminal wraps the lines itself. [characters]
LEAST_WIDTH = 78
# A terminal tells its size in 16 bits; only the environment can say more. [characters]
MOST_WIDTH = 2**16 - 1
_STYLE = re.compile(r"(\x1b\[[\d;]*m)")


def write(text: str, *, styled: bool = False) -> None:
    """Write text and a line end to stdout.

    What its encoding lacks becomes a question mark; control characters are left out, but for those
    that choose colours in text that is styled.
    """
    from costmodels.errors import printable

    parts = _STYLE.split(text) if styled else [text]
    # styles are the odd parts
    text = "".join(part if n % 2 else printable(part) for n, part in enumerate(parts))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()


def write_output(path: str, text: str) -> None:
    """Write a text to a file, or to standard output where the path is "-"."""
    from planner.output import STDOUT, write_text

    if path != STDOUT:
        write_text(path, text)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def show(render: Callable[[Console], None]) -> None:
    """Write what `render` prints, in colour on a terminal that wants it, else as plain text."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, LEAST_WIDTH), MOST_WIDTH)
    with console.capture() as capture:
        render(console)
    lines = capture.get().rstrip("\n").split("\n")
    if not console.is_terminal:
        lines = [line.rstrip() for line in lines]
    write("\n".join(lines), styled=console.is_terminal)


def time_spent() -> float:
    """Since the command began, 0 where it does not run on its own. [s]"""
    started = click.get_current_context().obj
    return 0.0 if started is None else time.monotonic() - started


def shows_progress(*, quiet: bool) -> bool:
    """Whether anybody sees what goes on."""
    return not quiet and sys.stderr.isatty()


def search_progress(tell: Callable[[str], None]) -> Callable[[str, float, float], None]:
    """What tells the phase of a search of a plan, and the best step and the bound so far."""

    def watch(phase: str, step: float, bound: float) -> None:
        from costmodels.units import format_seconds

        best = f"best {format_seconds(step)}" if step < float("inf") else "no plan yet"
        at_least = f"bound {format_seconds(bound)}" if bound > 0.0 else "no bound yet"
        tell(f"{phase}, {best}, {at_least}" if step < float("inf") or bound > 0.0 else phase)

    return watch


@contextlib.contextmanager
def progress(text: str, *, quiet: bool = False, hint: str = "") -> Iterator[Callable[[str], None]]:
    """Show on stderr that something goes on, if that is a terminal and it takes a while.

    What it yields takes a text to show behind the first one.

    Parameters
    ----------
    text
        What goes on.
    quiet
        Whether to show nothing.
    hint
        What one can do meanwhile; shown last.
    """
    if not shows_progress(quiet=quiet):
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    console.width = min(console.width, MOST_WIDTH)
    bar = Progress(
        SpinnerColumn("line"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    from costmodels.errors import one_line

    text = one_line(text)
    task = bar.add_task(f"{text}{hint}", total=None)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda more: bar.update(task, description=f"{text}: {more}{hint}")
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
