"""How results are shown and written, the same for every command: --json, -v, -q and -o."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from msgspec import Struct

from planner.cli.completion import complete

_Command = Callable[..., Any]
# As the path of an output: standard output.
STDOUT = "-"


class Shown(Struct, frozen=True, kw_only=True):
    """How a result is shown on standard output.

    Parameters
    ----------
    as_json
        Whether only the figures are shown, as JSON.
    verbose
        Whether tables hold all there is.
    quiet
        Whether there is one line instead of tables.
    """

    as_json: bool = False
    verbose: bool = False
    quiet: bool = False

    def check(self, output: str | None = None) -> None:
        """Refuse ways that exclude each other, or an output that takes their place."""
        ways = {"--json": self.as_json, "--verbose": self.verbose, "--quiet": self.quiet}
        asked = [option for option, is_asked in ways.items() if is_asked]
        if len(asked) > 1:
            raise click.UsageError(f"{asked[0]} and {asked[1]} exclude each other")
        if output == STDOUT and asked:
            raise click.UsageError(f"-o - leaves no place for {asked[0]} on standard output")


_OPTIONS: Mapping[str, Callable[[_Command], _Command]] = {
    "as_json": click.option("--json", "as_json", is_flag=True, help="Only the figures, as JSON."),
    "verbose": click.option(
        "-v", "--verbose", is_flag=True, help="All there is: zeros, every layer, role or size."
    ),
    "quiet": click.option("-q", "--quiet", is_flag=True, help="One line instead of tables."),
}


def showing_options(*ways: str) -> Callable[[_Command], _Command]:
    """Options of the ways in which a command shows its result, given to it as `shown`.

    Parameters
    ----------
    ways
        Fields of `Shown`; all of them by default.
    """

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*arguments: object, **values: Any) -> object:
            asked = {way: values.pop(way) for way in ways or _OPTIONS}
            return command(*arguments, shown=Shown(**asked), **values)

        decorated: _Command = run
        for way in reversed(ways or tuple(_OPTIONS)):
            decorated = _OPTIONS[way](decorated)
        return decorated

    return decorate


def output_option(what: str) -> Callable[[_Command], _Command]:
    """The option that says where the result goes, besides what is shown of it."""
    text = f"Write {what}; '-' for stdout."
    files = complete(None, (".json",))
    return click.option("-o", "--output", metavar="FILE", help=text, shell_complete=files)


def report_option(command: _Command) -> _Command:
    """The option that says where reports go."""
    return click.option(
        "--report",
        metavar="FILE",
        multiple=True,
        help="Write a report: .html (one page) or .md; may be repeated.",
        shell_complete=complete(None, (".html", ".md")),
    )(command)


def check_figures_output(output: str | None, inputs: Iterable[object]) -> None:
    """Refuse a file of figures that cannot be written, or that is an input."""
    if output is None:
        return
    from planner.output import Output, check_outputs

    check_outputs([Output(option="-o", path=output, suffixes=(".json",), streams=True)], inputs)
