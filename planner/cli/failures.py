"""From exceptions to exit statuses: one line on stderr, and never a traceback.

| status | meaning |
| --- | --- |
| 0 | done |
| 1 | a problem file cannot be used (`solve`), or a defect; PLANNER_DEBUG=1 shows where |
| 2 | an input or the command line cannot be used |
| 3 | proven: no plan at all fits in memory, or a problem has no solution |
| 4 | no plan that fits, or no solution, was found; it is not proven that there is none |
| 130 | interrupted before there was anything to show |
| 141 | nobody reads the output any more |
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import click

DEFECT, UNUSABLE, INFEASIBLE, UNSOLVED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 130, 141
BAD_PROBLEM = 1


class Failure(Exception):
    """The end of a command with a status of its own.

    Attributes
    ----------
    status
        Exit status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(BaseException):
    """Ctrl-C, hidden from click, which would turn it into a message of its own.

    Its text, if it has any, says what is kept.
    """


class Unread(BaseException):
    """A broken pipe, hidden from click, which would exit with status 1."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with a status and at most one line for whatever goes wrong inside."""
    _open_missing_streams()
    try:
        yield
        sys.stdout.flush()
    except (Unread, BrokenPipeError):
        _discard_output()
        sys.exit(BROKEN_PIPE)
    except (Interrupted, KeyboardInterrupt, click.Abort) as error:
        _leave(INTERRUPTED, "; ".join(["interrupted", *map(str, error.args)]), mark="")
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "planner"
        message = error.format_message().rstrip(".")
        _leave(UNUSABLE, f"{message[:1].lower()}{message[1:]}; see '{where} --help'")
    except click.ClickException as error:
        _leave(UNUSABLE, error.format_message())
    except MemoryError:
        _leave(DEFECT, "the planner ran out of memory; lower --cap or free some memory")
    except Exception as error:
        if os.environ.get("PLANNER_DEBUG"):
            raise
        status, message = _explain(error)
        _leave(status, message)


def _explain(error: Exception) -> tuple[int, str]:
    from costmodels.errors import InputError
    from planner.errors import InfeasibleError

    if isinstance(error, Failure):
        return error.status, str(error)
    if isinstance(error, InfeasibleError):
        return INFEASIBLE if error.proven else UNSOLVED, str(error)
    # only a search that has begun can raise it: no need to import the module just to ask
    problem_error = getattr(sys.modules.get("search.errors"), "ProblemError", None)
    if isinstance(error, OSError):
        # files that are named are checked where they are opened, so this is one of the streams
        return UNUSABLE, f"the output cannot be written ({error.strerror or error})"
    if isinstance(error, InputError) or (problem_error and isinstance(error, problem_error)):
        return UNUSABLE, str(error)
    return (
        DEFECT,
        f"this is a defect of the planner ({type(error).__name__}: {error}); set PLANNER_DEBUG=1 "
        "to see where, and report it with the command",
    )


def _leave(status: int, message: str, mark: str = "error: ") -> None:
    # what is printed already comes first, even when both streams go to one file
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    from costmodels.errors import one_line

    with contextlib.suppress(OSError):
        click.echo(f"{mark}{one_line(message).rstrip('.')}", err=True)
    sys.exit(status)


def _open_missing_streams() -> None:
    """Give a program that was started with closed streams somewhere to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _discard_output() -> None:
    """Keep the interpreter from complaining when it flushes at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
